"""Any bytes at all: no crash, bounded work, answers that keep their promises."""

from __future__ import annotations

import io
from pathlib import Path

import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from builder.diagnose import diagnose, render
from builder.diagnose.knowledge import built_in
from builder.diagnose.reader import BLOCK, Log, blocks
from builder.diagnose.sieve import LONGEST_LINE, Sieve
from builder.verify.reported import PHASE_NAMES

CASES = Path(__file__).parent.parent / "cases" / "diagnose" / "given"
KNOWN = sorted({line for path in CASES.glob("*.yaml") for line in yaml.safe_load(path.read_text("utf-8"))["log"]})
FRAGMENTS = sorted(anchor.decode("latin-1") for anchor in built_in().by_anchor)

lines = st.one_of(
    st.sampled_from(KNOWN),
    st.text(max_size=60),
    st.lists(st.sampled_from(FRAGMENTS), max_size=8).map(" ".join),
    st.binary(max_size=80).map(lambda raw: raw.decode("latin-1")),
)
relaxed = settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@relaxed
@given(st.lists(lines, max_size=30))
def test_any_lines_give_a_diagnosis_that_keeps_its_promises(log: list[str]) -> None:
    diagnosis = diagnose(log)
    count = sum(line.count("\n") + 1 - line.endswith("\n") for line in log)
    assert diagnosis.phase in PHASE_NAMES
    assert diagnosis.lines == count
    for cause in diagnosis.causes:
        assert cause.evidence
        assert all(1 <= evidence.line <= count for evidence in cause.evidence)
        assert 0 < cause.confidence < 1
    assert render(diagnosis)


@relaxed
@given(st.binary(max_size=3000))
def test_any_bytes_are_read_without_a_crash(raw: bytes) -> None:
    assert diagnose(io.BytesIO(raw)).lines >= raw.count(b"\n") * (raw[:2] != b"\x1f\x8b") * (b"\x1b" not in raw)


@relaxed
@given(st.lists(st.binary(max_size=400), max_size=8), st.integers(0, 3))
def test_the_way_a_stream_is_cut_into_pieces_changes_nothing(pieces: list[bytes], extra: int) -> None:
    whole = b"".join(pieces) + b"\n" * extra
    cut = b"".join(blocks(Log(name="a", pieces=iter([*pieces, b"\n" * extra]))))
    assert cut == b"".join(blocks(Log(name="a", pieces=iter([whole]))))


@relaxed
@given(st.sampled_from(KNOWN), st.text(alphabet=" abc\t", max_size=30), st.integers(0, 7))
def test_what_stands_before_a_known_line_does_not_hide_it_from_the_sieve(line: str, before: str, shift: int) -> None:
    sieve = Sieve(built_in().by_anchor)
    plain = {anchor for found in sieve.candidates(line.encode() + b"\n") for anchor in found.anchors}
    moved = {
        anchor for found in sieve.candidates(b"#" * shift + f"{before} {line}\n".encode()) for anchor in found.anchors
    }
    assert plain <= moved


def test_a_block_without_line_ends_yields_pieces_of_bounded_length() -> None:
    block = b"CUDA error: " * (BLOCK // 12)
    pieces = [candidate.text for candidate in Sieve(built_in().by_anchor).candidates(block)]
    assert pieces
    assert max(map(len, pieces)) <= LONGEST_LINE
    assert sum(map(len, pieces)) <= 2 * len(block)
