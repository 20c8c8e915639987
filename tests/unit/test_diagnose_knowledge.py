"""The pattern language, the schema of the knowledge, and the knowledge itself."""

from __future__ import annotations

import random
import re
import re._parser as parser  # type: ignore[import-not-found]
from pathlib import Path
from typing import Any

import pytest

from builder.diagnose import Edit, diagnose, offered_finding
from builder.diagnose.knowledge import built_in, knowledge_with
from builder.diagnose.pattern import ANCHOR, Pattern, PatternError, fold
from builder.diagnose.reference import PAGE, diagnosis_files, reference_page
from builder.diagnose.schema import SURE
from builder.diagnose.sieve import Sieve
from builder.errors import InvalidDocumentError
from builder.recipe.generated import stale_generated, write_generated
from builder.verify.reported import PHASE_NAMES

ROOT = Path(__file__).parent.parent.parent
SAMPLES = {
    "int": "7", "num": "1.5", "hex": "0x1f", "word": "some_word", "path": "/some/path", "text": "some text",
    "version": "1.2.3", "edge": "",
}  # fmt: skip


def _spoken(source: str) -> str:
    """Return a line as a program could write it for a pattern: holes filled, gaps with words, the first choices."""
    text = re.sub(r"\\(.)|<([^<>|]*)(?:\|[^<>]*)?>", lambda found: found[1] or found[2] or "", source)
    text = re.sub(r"\{(?:[a-z_]+:)?([a-z]+)\}", lambda found: SAMPLES[found[1]], text)
    begin, end = "" if text.startswith("^") else "so ", "" if text.endswith("$") else " it"
    return begin + text.replace("*", " xyz ").removeprefix("^").removesuffix("$") + end


def test_gaps_choices_holes_and_ends_match_what_they_say() -> None:
    pattern = Pattern("required: {required:int}*limit <is|was> {limit:int}$")
    assert pattern.match(fold("Required:  5 of it, LIMIT was 44")) == {"required": "5", "limit": "44"}
    assert pattern.match("required: 5, limit was 44 bytes") is None
    assert pattern.match("limit was 44, required: 5") is None
    assert Pattern("^killed$").match("killed") == {}
    assert Pattern("^killed$").match("was killed") is None
    assert Pattern("element \\< 0 here").match("element < 0 here") == {}


def test_quotes_case_and_spaces_do_not_matter() -> None:
    assert Pattern("no module named 'torch'").match(fold("No  module named `Torch`")) == {}
    assert Pattern("no module named 'torch'").match(fold("No module named ‘torch’")) == {}  # noqa: RUF001


def test_a_pattern_without_seven_literal_characters_or_with_an_unknown_hole_is_refused() -> None:
    for source in ("short", "{int}*{word}", "a < b"):
        with pytest.raises(PatternError, match="7 literal characters"):
            _ = Pattern(source).anchors
    with pytest.raises(PatternError, match="no hole is called 'number'"):
        Pattern("something {number}")
    with pytest.raises(PatternError, match="combinations"):
        Pattern("<a|b|c|d|e><a|b|c|d|e><a|b|c|d|e> something")


def _repeats(tree: Any, outer: int = 1) -> list[str]:
    """Return what is dangerous in a parsed expression: endless repeats, and repeats of many repeats."""
    wrong = []
    for operation, argument in tree:
        name = str(operation)
        if "REPEAT" in name:
            low, high, body = argument
            if high is parser.MAXREPEAT or (outer > 1 and outer * high > 32):
                wrong.append(f"{low}..{high}")
            wrong += _repeats(body, outer * int(high))
        elif name == "SUBPATTERN":
            wrong += _repeats(argument[-1], outer)
        elif name == "BRANCH":
            wrong += [part for branch in argument[1] for part in _repeats(branch, outer)]
    return wrong


def test_no_expression_of_the_knowledge_can_run_away() -> None:
    for pattern in built_in().patterns.values():
        for piece in pattern.pieces:
            assert _repeats(parser.parse(piece)) == [], piece
    assert _repeats(parser.parse(r"(a+)+")) != []
    assert _repeats(parser.parse(r"(a{1,9}){1,9}")) != []


def test_a_line_that_a_pattern_speaks_of_passes_the_sieve_and_matches() -> None:
    sieve = Sieve(built_in().by_anchor)
    for source, pattern in built_in().patterns.items():
        line = _spoken(source)
        assert pattern.match(fold(line)) is not None, source
        shift = random.Random(source).randrange(4)
        found = list(sieve.candidates(b"o\n" * shift + line.upper().encode() + b"\nlast\n"))
        assert any(pattern.anchors & candidate.anchors for candidate in found), source


def test_the_sieve_finds_an_anchor_at_every_alignment_and_numbers_the_lines() -> None:
    sieve = Sieve([b"glm_moe"])
    for shift in range(9):
        block = b"x" * shift + b"\n\nabc GLM_MOE def\nnothing\n"
        assert [(found.line, found.text) for found in sieve.candidates(block)] == [(2, b"abc GLM_MOE def")]


def test_every_anchor_is_as_long_as_the_sieve_needs() -> None:
    assert {len(anchor) for anchor in built_in().by_anchor} == {ANCHOR}


def test_every_finding_has_a_known_class_a_remedy_and_valid_edits() -> None:
    known = built_in()
    for finding in known.findings:
        assert finding.kind in known.classes
        assert finding.phase in PHASE_NAMES
    assert set(known.classes) == {finding.kind for finding in known.findings}


def test_every_finding_fires_on_a_log_made_from_its_own_conditions() -> None:
    known = built_in()
    silent = []
    for finding in known.findings:
        helping = [part for part in finding.support if part.adds > 0 and part.lines]
        log = [line for part in (*finding.all, *helping) for line in _lines_for(part)]
        causes = diagnose(log, target=next((f"{c}0" for part in finding.all for c in part.capability), None)).causes
        if finding.kind not in {cause.kind for cause in causes}:
            silent.append(finding.name)
    assert silent == []


def _lines_for(part: Any) -> list[str]:
    known = built_in()
    lines = [f"{name}={values[0]}" for name, values in part.env.items()]
    lines += [f"{package}=={_version(condition)}" for package, condition in part.versions.items()]
    if part.lines:
        spoken = _spoken(known.expand(part.lines)[0])
        sizes = "The size of tensor a (3072) must match the size of tensor b (6144)"
        lines.append(sizes if "size of tensor" in spoken else spoken)
    return lines


def _version(condition: str) -> str:
    return re.sub(r"[^0-9.]", "", condition.split(",", maxsplit=1)[0]) + ".1"


def test_findings_of_the_user_are_added_and_used(tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text(
        """
classes:
  frobnicator-jammed: {title: the frobnicator is jammed, about: It happens on Mondays.}
findings:
- name: jam
  class: frobnicator-jammed
  cause: the frobnicator was fed too fast
  confidence: 0.9
  all:
  - lines: ["frobnicator jammed at {speed:int}"]
    where: [{left: speed, is: above, right: 100}]
  remedy: feed it more slowly
  edits: [{path: serve.args.speed, value: 100}]
"""
    )
    fast = diagnose(["RuntimeError: Frobnicator jammed at 120 rpm"], findings=tmp_path)
    assert [(cause.kind, cause.edits[0].path) for cause in fast.causes] == [("frobnicator-jammed", "serve.args.speed")]
    slow = diagnose(["RuntimeError: Frobnicator jammed at 20 rpm"], findings=tmp_path)
    assert [cause.kind for cause in slow.causes] == ["unknown"]
    assert knowledge_with(tmp_path / "missing") is built_in()


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("findings: [{name: x}]", "own.yaml: findings.0.class: Field required"),
        ("classes: {a: {title: a short title, about: some words}, color: 3}", "own.yaml: classes.color"),
        ("signals: {s: [tiny]}", "own.yaml: signals.s.0: Value error, 'tiny': needs 7 literal characters"),
        ("failures: ['@missing ref']", "no signal is called @missing ref"),
        ("classes: [", "own.yaml:2:1: did not find expected node content"),
        ("[]", "own.yaml: Input should be an object"),
        ("findings: [{name: 2026-01-01, 2026-01-01: x}]", "own.yaml: findings.0.class: Field required"),
        ("name: \udcff", "own.yaml: unacceptable character"),
    ],
)
def test_a_file_of_findings_that_is_not_valid_names_the_place(tmp_path: Path, text: str, complaint: str) -> None:
    (tmp_path / "own.yaml").write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(InvalidDocumentError) as error:
        knowledge_with(tmp_path)
    assert complaint in error.value.message


def test_a_finding_with_an_unknown_class_signal_or_general_finding_is_refused(tmp_path: Path) -> None:
    finding = "{name: x, class: %s, cause: some cause, confidence: 0.5, all: [{lines: ['%s']}], remedy: some remedy%s}"
    for values, complaint in (
        (("nothing-known", "something odd", ""), "no class is called nothing-known"),
        (("disk-full", "@nothing", ""), "no signal is called @nothing"),
        (("disk-full", "something odd", ", refines: nobody"), "refines nobody"),
    ):
        (tmp_path / "own.yaml").write_text("findings: [" + finding % values + "]")
        with pytest.raises(InvalidDocumentError, match=complaint):
            knowledge_with(tmp_path)


def test_the_reference_page_is_current_and_a_stale_one_is_noticed(tmp_path: Path) -> None:
    assert stale_generated(diagnosis_files(), ROOT) == ()
    assert write_generated(diagnosis_files(), tmp_path) == (PAGE,)
    assert stale_generated(diagnosis_files(), tmp_path) == ()
    (tmp_path / PAGE).write_text(reference_page() + "more\n")
    assert stale_generated(diagnosis_files(), tmp_path) == (PAGE,)


def test_a_cure_becomes_a_finding_that_recognises_the_failure_again(tmp_path: Path) -> None:
    bad = diagnose(["RuntimeError: <frobnicator> 17 jammed at {120} rpm"])
    cure = [Edit(path="serve.args.speed", value=100)]
    (tmp_path / "own.yaml").write_bytes(offered_finding(bad, cure, name="frobnicator-jammed"))
    again = diagnose(["[TP1] RuntimeError: <frobnicator> 18 jammed at {99} rpm"], findings=tmp_path)
    assert [(cause.kind, cause.edits[0].value) for cause in again.causes] == [("frobnicator-jammed", 100)]
    assert again.causes[0].confidence < SURE
    with pytest.raises(ValueError, match="no line"):
        offered_finding(diagnose([]), cure, name="nothing")
