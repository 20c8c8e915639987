"""The CPU decode check: how the probe is run, and the one sentence for each way that it can end."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any, Literal

import pytest

import builder
from builder.document import pretty_json
from builder.engine import ContainerRun, Exit
from builder.recipe.model import Serve
from builder.store import Store
from builder.verify.cuda_error import BLOCKED, Attempts
from builder.verify.decode import cpu_decode, decode_check, gpu_check, gpu_decode
from builder.verify.family import greedy
from builder.verify.inside import ProbeAnswer, last_report
from builder.verify.levels import own_model_code
from builder.verify.place import InImage
from builder.verify.probe.stack import model_code
from builder.verify.tiny.config import SMALL
from builder.verify.tiny.deviations import deviation_among, known_deviations
from builder.verify.tiny.model import TinyModel, tiny_model
from builder.verify.tiny.planted import FAMILIES
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
CODE = {
    "model_class": "GlmMoeDsaForCausalLM",
    "model_code": "transformers.models.glm_moe_dsa.modeling_glm_moe_dsa.GlmMoeDsaForCausalLM",
    "model_code_sha256": "ab" * 32,
    "attention": "sdpa",
}
FIRST, SECOND = {"tokens": [7, 8], "margins": [4.0, 6.0]}, {"tokens": [9], "margins": [5.0]}
TIMES = {"first_token_seconds": 0.25, "decode_tokens_per_second": 40.0}


def run(first: dict[str, Any] = FIRST, second: dict[str, Any] = SECOND, dtype: str = "float32") -> dict[str, Any]:
    """One load of the model that answers both requests, and both again at once."""
    return {**CODE, "dtype": dtype, "answers": [[first], [second], [second, first]], "times": [TIMES] * 3}


GOOD: dict[str, Any] = {
    "phase": "done",
    "error": None,
    "seconds": {"start": 0.0, "import": 3.5, "load": 2.5, "prefill": 0.1, "decode": 0.5},
    "runs": [run()],
    "versions": {"python": "3.12.1", "torch": "2.13.0", "transformers": "5.24.0"},
    "peak_memory_mib": 391.0,
}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return Store(tmp_path_factory.mktemp("store"))


def answer(report: dict[str, Any] | None, ended: Exit | None = None) -> Attempts:
    return Attempts(first=ProbeAnswer(report=report, exit=ended or Exit(code=0), tail=("load ...",)))


def changed(**values: object) -> dict[str, Any]:
    return copy.deepcopy(GOOD) | values


def broken(phase: str, kind: str, message: str, missing: str | None = None, version: str = "5.24.0") -> dict[str, Any]:
    error = {"kind": kind, "message": message, "missing_module": missing, "traceback": ["Traceback", f"{kind}: it"]}
    versions = {"python": "3.12.1", "transformers": version}
    return {
        "phase": phase,
        "error": error,
        "seconds": {"import": 3.0},
        "runs": [],
        "versions": versions,
        "peak_memory_mib": 300.0,
    }


def test_right_answers_pass_and_say_what_was_proven() -> None:
    check = decode_check(answer(GOOD), MODEL)
    assert (check.name, check.level, check.outcome) == ("cpu-decode", "cpu-decode", "passed")
    assert check.summary == (
        "GlmMoeDsaForCausalLM of Transformers 5.24.0 decodes 6 of 6 tokens as it must, in 4 answers; mean margins "
        "100.0% to 100.0% of the reference's"
    )
    assert check.figures["model_code"] == CODE["model_code"]
    assert check.figures["transformers_version"] == "5.24.0"
    assert (check.figures["load_seconds"], check.figures["decode_seconds"]) == (2.5, 0.5)
    assert (check.figures["first_token_seconds"], check.figures["decode_tokens_per_second"]) == (0.25, 40.0)
    assert check.figures["peak_memory_mib"] == 391.0


def test_wrong_tokens_of_a_release_that_is_known_name_the_known_deviation_and_its_source() -> None:
    report = changed(
        runs=[run({"tokens": [7, 1], "margins": [4.0, 6.0]})],
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
    report = changed(runs=[run({"tokens": [1, 1], "margins": [4.0, 6.0]})])
    check = decode_check(answer(report), MODEL)
    assert check.outcome == "failed"
    assert "known:" not in check.summary


def test_margins_that_are_off_fail_though_all_tokens_are_right() -> None:
    report = changed(runs=[run({"tokens": [7, 8], "margins": [8.0, 8.0]})])
    check = decode_check(answer(report), MODEL)
    assert check.outcome == "failed"
    assert "160.0% of the reference's 5.000" in check.summary


def test_logits_that_are_not_finite_fail() -> None:
    report = changed(runs=[run({"tokens": [7, 0], "margins": [4.0, None]})])
    assert "not finite from decoded token 2 on" in decode_check(answer(report), MODEL).summary


def test_a_wrong_second_request_is_named() -> None:
    report = changed(runs=[run(second={"tokens": [7], "margins": [5.0]})])
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
    assert check.summary == "there is no transformers, so there is no model code to decode with"


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
    check = cpu_decode(InImage(engine=engine, store=store, image="sha256:1", memory=1 << 31), store=store, timeout=60.0)
    assert check.outcome == "failed"
    (job,) = engine.runs
    assert job.command == ("python3", "-m", "builder.verify.probe.decode", "/envbuild/asked")
    assert (job.read_only_root, job.memory, job.timeout) == (True, 1 << 31, 60.0)
    mounts = {mount.target: mount for mount in job.mounts}
    assert all(mount.read_only for mount in mounts.values())
    assert {target for target in mounts if target.startswith("/envbuild/asked/")} == {
        "/envbuild/asked/request.json",
        "/envbuild/asked/model/config.json",
        "/envbuild/asked/model/generation_config.json",
        "/envbuild/asked/model/hf_quant_config.json",
        "/envbuild/asked/model/model.safetensors",
    }
    request = json.loads(mounts["/envbuild/asked/request.json"].source.read_bytes())
    assert (request["device"], request["runs"]) == ("cpu", [{"dtype": "float32", "attention": None}])
    assert {name for together in request["rounds"] for one in together for name in one} == {"prompt", "new_tokens"}
    new_tokens = [[one["new_tokens"] for one in together] for together in request["rounds"]]
    assert new_tokens == [[96], [16], [16, 96]]


def test_a_right_report_from_the_engine_passes(store: Store) -> None:
    lines: list[str] = []

    def stack(_job: ContainerRun) -> Exit:
        """Answer with the expected tokens and margins, as the store's own record has them."""
        (key,) = (key for kind, key in store.results() if kind == "tiny-model")
        model = TinyModel.from_json(json.dumps(store.result("tiny-model", key)), source="record")
        first, second = (
            {"tokens": list(e.tokens), "margins": [e.min_margin] + [_rest(e)] * (len(e.tokens) - 1)}
            for e in model.expected
        )
        return Exit(code=0, stdout=json.dumps(changed(runs=[run(first, second)])).encode(), stderr=b"load ...\n")

    place = InImage(engine=FakeEngine(answer=stack), store=store, image="sha256:1")
    check = cpu_decode(place, store=store, on_line=lines.append)
    assert (check.outcome, check.figures["all_tokens_right"], check.figures["all_tokens"]) == ("passed", 224, 224)
    assert lines == ["load ..."]


def _rest(expected: Expectation) -> float:
    """Return the margin of all tokens but one so that the mean is the golden one."""
    count = len(expected.tokens)
    return (expected.mean_margin * count - expected.min_margin) / (count - 1)


def test_the_probe_runs_on_the_standard_library_alone_and_reports_what_is_missing(tmp_path: Path) -> None:
    asked = {"device": "cpu", "runs": [], "rounds": [], "server": "sglang"}
    (tmp_path / "request.json").write_bytes(pretty_json(asked))
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
    assert report["served_by"] is None
    assert decode_check(answer(report), MODEL).summary.startswith("there is no torch")


GPU_REPORT = {"driver": "580.159.03", "gpus": [{"name": "NVIDIA H200", "capability": "9.0", "memory_mib": 143771}]}


def test_a_gpu_is_named_with_what_it_could_not_exercise_and_each_format_has_its_own_band() -> None:
    near = {"tokens": [7, 8], "margins": [3.95, 5.95]}  # 99 % of the mean: right in 16 bits, not in 32
    runs = [run(), run(near, dtype="bfloat16"), {**run(near, dtype="bfloat16"), "attention": "eager"}]
    check = decode_check(answer(changed(runs=runs, gpu=GPU_REPORT)), MODEL, name="gpu-decode small", level="gpu-decode")
    assert (check.outcome, check.level) == ("passed", "gpu-decode")
    assert (check.figures["gpu"], check.figures["capability"], check.figures["driver"]) == (
        "NVIDIA H200",
        "9.0",
        "580.159.03",
    )
    assert "4-bit matrix products" in str(check.figures["not_exercised"])
    assert check.figures["bfloat16_eager_decode_tokens_per_second"] == 40.0
    assert (check.figures["dtype"], check.figures["attention"]) == ("float32, bfloat16", "sdpa, eager")
    strict = decode_check(answer(changed(runs=[run(near)])), MODEL)
    assert "99.0% of the reference's" in strict.summary


def test_one_of_several_runs_that_is_wrong_is_named_by_its_format_and_attention() -> None:
    runs = [run(), run({"tokens": [7, 1], "margins": [4.0, 6.0]}, dtype="bfloat16")]
    check = decode_check(answer(changed(runs=runs)), MODEL)
    assert "(bfloat16, sdpa): 1 of 2 tokens are wrong" in check.summary


def test_a_stack_that_sees_no_gpu_is_skipped_and_the_larger_model_is_not_made(store: Store) -> None:
    report = broken("import", "NoGpuError", "torch.cuda.is_available() is false")
    engine = FakeEngine(answer=lambda _job: Exit(code=0, stdout=json.dumps(report).encode()))
    place = InImage(engine=engine, store=store, image="sha256:1", gpus=1)
    (check,) = gpu_decode(place, store=store)
    assert (check.outcome, check.summary) == (
        "skipped",
        "the stack sees no GPU: torch.cuda.is_available() is false",
    )
    assert [job.gpus for job in engine.runs] == [1]


ASSERTION = (
    "/pytorch/aten/src/ATen/native/cuda/Indexing.cu:1422: indexSelectSmallIndex: block: [0,0,0], thread: [0,0,0] "
    "Assertion `srcIndex < srcSelectDimSize` failed.\n"
)


def test_a_device_side_assert_is_run_again_and_both_logs_are_kept(store: Store) -> None:
    def stack(job: ContainerRun) -> Exit:
        blocking = job.environment.get("CUDA_LAUNCH_BLOCKING") == "1"
        where = ("torch/nn/functional.py", 9, "embedding") if blocking else ("torch/_tensor.py", 1, "tolist")
        frame = 'File "/opt/env/lib/python3.13/site-packages/{}", line {}, in {}'.format(*where)
        report = broken("prefill", "AcceleratorError", "CUDA error: device-side assert triggered")
        text = f"{ASSERTION}Traceback\n  {frame}\ntorch.AcceleratorError: CUDA error: device-side assert triggered\n"
        return Exit(code=0, stdout=json.dumps(report).encode(), stderr=text.encode())

    engine = FakeEngine(answer=stack)
    place = InImage(engine=engine, store=store, image="sha256:1", gpus=1)
    model = tiny_model(SMALL, store)
    check = gpu_check(place, model, name="gpu-decode small", store=store)
    assert check.outcome == "failed"
    assert check.summary == (
        "in phase prefill: device-side assert in the kernel indexSelectSmallIndex (cuda/Indexing.cu:1422: "
        "srcIndex < srcSelectDimSize), launched from torch/nn/functional.py:9 in embedding (with asynchronous launches "
        "Python stood innocently at torch/_tensor.py:1 in tolist)"
    )
    assert [job.environment.get("CUDA_LAUNCH_BLOCKING") for job in engine.runs] == [None, "1"]
    first, _, blocked = store.path(str(check.log)).read_text().partition(BLOCKED)
    assert ("tolist" in first, "embedding" in blocked) == (True, True)


def as_family(store: Store, family: str, version: str) -> tuple[TinyModel, dict[str, Any]]:
    """What a release of a family would report: the greedy answers of the reference with its deviations."""
    from builder.verify.tiny.checkpoint import read_config, read_weights

    model = tiny_model(SMALL, store)
    files = {name: store.path(sha256).read_bytes() for name, sha256 in model.files.items()}
    reference = FAMILIES[family](read_config(files), read_weights(files))
    first, second = (greedy(reference, request).to_plain() for request in model.requests)
    return model, changed(runs=[run(first, second)], versions={"transformers": version})


OF_SGLANG = "sglang.srt.models.glm4_moe.GlmMoeDsaForCausalLM"


def test_a_known_deviation_is_a_notice_where_the_stack_has_the_servers_own_class_and_a_fault_elsewhere(
    store: Store,
) -> None:
    model, report = as_family(store, "both-half-split", "5.8.1")
    served = decode_check(answer(report | {"served_by": OF_SGLANG}), model, store=store)
    assert served.outcome == "passed"
    assert served.summary.startswith(
        "notice: GlmMoeDsaForCausalLM of Transformers 5.8.1 computes exactly as Transformers"
    )
    assert served.summary.endswith(f"; what serves is {OF_SGLANG}")
    assert "half-split" in str(served.figures["model_meaning"])
    assert served.figures["served_by"] == OF_SGLANG
    for without in ({}, {"served_by": None}):
        check = decode_check(answer(report | without), model, store=store)
        assert (check.outcome, check.figures["served_by"]) == ("failed", CODE["model_code"])
    report["versions"] = {"transformers": "5.12.1"}  # another family: the answers are not its own
    assert decode_check(answer(report | {"served_by": OF_SGLANG}), model, store=store).outcome == "failed"


@pytest.mark.parametrize(
    ("kind", "arguments", "package"),
    [
        ("sglang", {}, "sglang"),
        ("vllm", {"model-impl": "auto"}, "vllm"),
        ("sglang", {"model-impl": "transformers"}, None),
        ("vllm", {"model_impl": "transformers"}, None),
        ("sglang", {"--model-impl": "transformers"}, None),
        ("transformers", {}, None),
    ],
)
def test_only_a_server_that_is_not_told_to_use_transformers_has_model_code_of_its_own(
    kind: Literal["sglang", "vllm", "transformers"], arguments: dict[str, str | int | float | bool], package: str | None
) -> None:
    assert own_model_code(Serve(engine=kind, args=arguments)) == package


def test_no_server_has_no_model_code_of_its_own() -> None:
    assert own_model_code(None) is None


@pytest.mark.parametrize(
    ("file", "class_", "found"),
    [
        ("glm4_moe.py", "GlmMoeDsaForCausalLM", OF_SGLANG),
        ("glm4_moe.py", "GlmMoeForCausalLM", None),  # declared in the recipe, but this release lacks the class
        (None, "", None),  # not even installed
    ],
)
def test_the_servers_class_must_really_be_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str | None, class_: str, found: str | None
) -> None:
    package = tmp_path / "sglang"
    if file is not None:
        models = package / "srt" / "models"
        models.mkdir(parents=True)
        (package / "__init__.py").touch()
        (models / file).write_text(f"class {class_}(Base):\n    pass\n")
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: PathFinder.find_spec("sglang", [str(tmp_path)]))
    assert model_code("sglang").get("model_code") == found


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
