"""The CPU decode check: how the probe is run, and the one sentence for each way that it can end."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import builder
from builder.document import pretty_json
from builder.engine import ContainerRun, Exit
from builder.store import Store
from builder.verify.decode import cpu_decode, decode_check
from builder.verify.inside import ProbeAnswer, last_report
from builder.verify.tiny.config import SMALL
from builder.verify.tiny.deviations import deviation_among, known_deviations
from builder.verify.tiny.model import TinyModel
from builder.verify.tiny.program import Expectation, Request
from tests.fakes import FakeEngine

MODEL = TinyModel(
    files={},
    requests=(Request(prompt=(1, 2), new_tokens=2), Request(prompt=(1, 3), new_tokens=1)),
    expected=(
        Expectation(tokens=(7, 8), mean_margin=5.0, min_margin=4.0),
        Expectation(tokens=(9,), mean_margin=5.0, min_margin=5.0),
    ),
)
GOOD: dict[str, Any] = {
    "phase": "done",
    "error": None,
    "seconds": {"start": 0.0, "import": 3.5, "load": 2.5, "prefill": 0.1, "decode": 0.5},
    "answers": [{"tokens": [7, 8], "margins": [4.0, 6.0]}, {"tokens": [9], "margins": [5.0]}],
    "versions": {"python": "3.12.1", "torch": "2.13.0", "transformers": "5.24.0"},
    "peak_memory_mib": 391.0,
    "model_class": "GlmMoeDsaForCausalLM",
    "model_code": "transformers.models.glm_moe_dsa.modeling_glm_moe_dsa.GlmMoeDsaForCausalLM",
    "model_code_sha256": "ab" * 32,
    "attention": "sdpa",
    "dtype": "float32",
}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return Store(tmp_path_factory.mktemp("store"))


def answer(report: dict[str, Any] | None, ended: Exit | None = None) -> ProbeAnswer:
    return ProbeAnswer(report=report, exit=ended or Exit(code=0), tail=("load ...",))


def changed(**values: object) -> dict[str, Any]:
    return copy.deepcopy(GOOD) | values


def broken(phase: str, kind: str, message: str, missing: str | None = None, version: str = "5.24.0") -> dict[str, Any]:
    error = {"kind": kind, "message": message, "missing_module": missing, "traceback": ["Traceback", f"{kind}: it"]}
    versions = {"python": "3.12.1", "transformers": version}
    return {
        "phase": phase,
        "error": error,
        "seconds": {"import": 3.0},
        "answers": [],
        "versions": versions,
        "peak_memory_mib": 300.0,
    }


def test_right_answers_pass_and_say_what_was_proven() -> None:
    check = decode_check(answer(GOOD), MODEL)
    assert (check.name, check.level, check.outcome) == ("cpu-decode", "cpu-decode", "passed")
    assert check.summary == (
        "GlmMoeDsaForCausalLM of Transformers 5.24.0 decodes 2 of 2 tokens as it must; mean margin 5.0 (reference 5.0)"
    )
    assert check.figures["model_code"] == GOOD["model_code"]
    assert check.figures["transformers_version"] == "5.24.0"
    assert (check.figures["load_seconds"], check.figures["decode_seconds"]) == (2.5, 0.5)
    assert (check.figures["second_request_tokens_right"], check.figures["second_request_tokens"]) == (1, 1)
    assert check.figures["peak_memory_mib"] == 391.0


def test_wrong_tokens_of_a_release_that_is_known_name_the_known_deviation_and_its_source() -> None:
    report = changed(
        answers=[{"tokens": [7, 1], "margins": [4.0, 6.0]}, {"tokens": [9], "margins": [5.0]}],
        versions={"transformers": "5.12.1"},
    )
    check = decode_check(answer(report), MODEL)
    assert check.outcome == "failed"
    assert check.summary == (
        "GlmMoeDsaForCausalLM of Transformers 5.12.1: 1 of 2 tokens are wrong, the first at decoded token 2: 8 "
        "expected, 1 seen; known: Transformers 5.11 and 5.12 rotate the RoPE of GLM-5's indexer half-split, where "
        "the configuration says interleaved"
    )
    assert any("5.12.1" in line and line.startswith("source of the hint") for line in check.evidence)


def test_wrong_tokens_of_a_release_that_is_not_known_give_no_hint() -> None:
    report = changed(answers=[{"tokens": [1, 1], "margins": [4.0, 6.0]}, {"tokens": [9], "margins": [5.0]}])
    check = decode_check(answer(report), MODEL)
    assert check.outcome == "failed"
    assert "known:" not in check.summary


def test_margins_that_are_off_fail_though_all_tokens_are_right() -> None:
    report = changed(answers=[{"tokens": [7, 8], "margins": [8.0, 8.0]}, {"tokens": [9], "margins": [5.0]}])
    check = decode_check(answer(report), MODEL)
    assert check.outcome == "failed"
    assert "160.0% of the reference's 5.000" in check.summary


def test_logits_that_are_not_finite_fail() -> None:
    report = changed(answers=[{"tokens": [7, 0], "margins": [4.0, None]}, {"tokens": [9], "margins": [5.0]}])
    assert "not finite from decoded token 2 on" in decode_check(answer(report), MODEL).summary


def test_a_wrong_second_request_is_named() -> None:
    report = changed(answers=[{"tokens": [7, 8], "margins": [4.0, 6.0]}, {"tokens": [7], "margins": [5.0]}])
    check = decode_check(answer(report), MODEL)
    assert check.outcome == "failed"
    assert "request 2, which shares its beginning with the first: 1 of 1 tokens are wrong" in check.summary


def test_an_unknown_model_type_names_the_first_release_that_knows_it() -> None:
    message = (
        "The checkpoint has model type `glm_moe_dsa` but Transformers does not recognize this architecture.\n\nMore"
    )
    check = decode_check(answer(broken("load", "ValueError", message, version="5.1.0")), MODEL)
    assert check.outcome == "failed"
    assert check.summary == (
        "Transformers 5.1.0 does not know the model type glm_moe_dsa; known: the model type glm_moe_dsa is unknown to "
        "Transformers before 5.2.0"
    )
    assert check.figures["phase"] == "load"
    assert check.evidence == ("Traceback", "ValueError: it")


def test_tensors_that_found_no_place_are_named() -> None:
    message = "missing_keys: model.layers.1.self_attn.indexer.wk.weight (1)"
    check = decode_check(answer(broken("load", "CheckpointNotUnderstoodError", message)), MODEL)
    assert check.outcome == "failed"
    assert "does not take the checkpoint as it is: missing_keys: model.layers.1" in check.summary


def test_an_image_without_transformers_is_skipped_not_passed() -> None:
    report = broken("import", "ModuleNotFoundError", "No module named 'transformers'", missing="transformers")
    check = decode_check(answer(report), MODEL)
    assert check.outcome == "skipped"
    assert check.summary == "the image has no transformers, so there is no model code to decode with"


def test_a_module_that_the_stack_itself_misses_is_a_failure() -> None:
    report = broken("import", "ModuleNotFoundError", "No module named 'regex'", missing="regex")
    check = decode_check(answer(report), MODEL)
    assert check.outcome == "failed"
    assert check.summary == "phase import ended with ModuleNotFoundError: No module named 'regex'"


def test_another_exception_is_named_with_its_phase_and_first_line() -> None:
    check = decode_check(answer(broken("decode", "RuntimeError", "shape mismatch\nmore")), MODEL)
    assert check.outcome == "failed"
    assert check.summary == "phase decode ended with RuntimeError: shape mismatch"


@pytest.mark.parametrize(
    ("kind", "message"),
    [("MemoryError", ""), ("RuntimeError", "[enforce fail] DefaultCPUAllocator: can't allocate memory")],
)
def test_memory_that_python_could_not_get_is_said(kind: str, message: str) -> None:
    assert decode_check(answer(broken("load", kind, message)), MODEL).summary.startswith("out of memory in phase load")


@pytest.mark.parametrize(
    ("ended", "words"),
    [
        (Exit(code=137, oom_killed=True), "killed: out of the memory"),
        (Exit(code=137, timed_out=True, seconds=600.0), "no answer after 600 s"),
        (Exit(code=139), "exit code 139"),
    ],
)
def test_a_probe_that_ended_without_a_report_says_how(ended: Exit, words: str) -> None:
    check = decode_check(answer(None, ended), MODEL)
    assert check.outcome == "failed"
    assert words in check.summary
    assert check.evidence == ("load ...",)


def test_the_probe_gets_the_checkpoint_and_the_requests_but_not_the_answers(store: Store) -> None:
    engine = FakeEngine(answer=lambda _job: Exit(code=0, stdout=b"no report"))
    check = cpu_decode(engine, image="sha256:1", store=store, memory=1 << 31, timeout=60.0)
    assert check.outcome == "failed"
    (job,) = engine.runs
    assert job.command == ("python3", "-m", "builder.verify.probe.decode", "/envbuild/decode")
    assert (job.read_only_root, job.memory, job.timeout) == (True, 1 << 31, 60.0)
    mounts = {mount.target: mount for mount in job.mounts}
    assert all(mount.read_only for mount in mounts.values())
    assert {target for target in mounts if target.startswith("/envbuild/decode/")} == {
        "/envbuild/decode/request.json",
        "/envbuild/decode/model/config.json",
        "/envbuild/decode/model/generation_config.json",
        "/envbuild/decode/model/hf_quant_config.json",
        "/envbuild/decode/model/model.safetensors",
    }
    request = json.loads(mounts["/envbuild/decode/request.json"].source.read_bytes())
    assert sorted(request) == ["dtype", "requests"]
    assert [sorted(entry) for entry in request["requests"]] == [["new_tokens", "prompt"]] * 2
    assert [entry["new_tokens"] for entry in request["requests"]] == [SMALL.new_tokens, SMALL.second_new_tokens]


def test_a_right_report_from_the_engine_passes(store: Store) -> None:
    lines: list[str] = []

    def stack(job: ContainerRun) -> Exit:
        """Answer with the expected tokens and margins, as the store's own record has them."""
        (key,) = (key for kind, key in store.results() if kind == "tiny-model")
        model = TinyModel.from_json(json.dumps(store.result("tiny-model", key)), source="record")
        answers = [
            {"tokens": list(e.tokens), "margins": [e.min_margin] + [_rest(e)] * (len(e.tokens) - 1)}
            for e in model.expected
        ]
        return Exit(code=0, stdout=json.dumps(changed(answers=answers)).encode(), stderr=b"load ...\n")

    check = cpu_decode(FakeEngine(answer=stack), image="sha256:1", store=store, on_line=lines.append)
    assert (check.outcome, check.figures["tokens_right"], check.figures["tokens"]) == ("passed", 48, 48)
    assert lines == ["load ..."]


def _rest(expected: Expectation) -> float:
    """Return the margin of all tokens but one so that the mean is the golden one."""
    count = len(expected.tokens)
    return (expected.mean_margin * count - expected.min_margin) / (count - 1)


def test_the_probe_runs_on_the_standard_library_alone_and_reports_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "request.json").write_bytes(pretty_json({"dtype": "float32", "requests": []}))
    root = str(Path(builder.__file__).parent.parent)
    ended = subprocess.run(
        [sys.executable, "-S", "-m", "builder.verify.probe.decode", str(tmp_path)],
        env={"PYTHONPATH": root, "PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        check=True,
    )
    report = last_report(ended.stdout)
    assert report is not None
    assert (report["phase"], report["error"]["missing_module"]) == ("import", "torch")
    assert decode_check(answer(report), MODEL).summary.startswith("the image has no torch")


def test_known_deviations_have_a_source_and_do_not_overlap() -> None:
    entries = known_deviations()
    assert all(entry.source and entry.what for entry in entries)
    assert [entry.before for entry in entries][:-1] == [entry.since for entry in entries][1:]


@pytest.mark.parametrize(
    ("version", "words"),
    [
        ("4.57.1", "unknown"),
        ("5.1.0", "unknown"),
        ("5.2.0", "ReLU"),
        ("5.3.0", "ReLU"),
        ("5.10.4", "both RoPEs"),
        ("5.12.1", "indexer half-split"),
    ],
)
def test_a_release_finds_its_deviation(version: str, words: str) -> None:
    entry = deviation_among({"transformers": version})
    assert entry is not None
    assert words in entry.what


@pytest.mark.parametrize("versions", [{"transformers": "5.13.0"}, {"transformers": "local build"}, {"torch": "2.9.1"}])
def test_other_releases_have_none(versions: dict[str, str]) -> None:
    assert deviation_among(versions) is None
