"""What the engine makes of ranks, time, restarts, recipes and locks."""

from __future__ import annotations

import gzip
import io
from pathlib import Path
from typing import Any

import pytest
import yaml

from builder.diagnose import Diagnosis, diagnose, diagnose_files, explain, render
from builder.diagnose.schema import SURE
from builder.errors import UsageError
from builder.lock.model import DebianLock, DebianRelease, Lock, LockedWheel, LockFile
from builder.recipe.model import Base, Package, Recipe, Serve, Target

CASES = Path(__file__).parent.parent / "cases" / "diagnose" / "given"
FOUNDING: list[str] = yaml.safe_load((CASES / "10-decode-device-side-assert-glm5-nvfp4.yaml").read_text("utf-8"))["log"]


def _recipe(**serve: Any) -> Recipe:
    return Recipe(
        version=1,
        name="glm5",
        target=Target(gpu="rtx-pro-6000", count=8),
        base=Base(debian="bookworm"),
        python="3.12",
        stack={"sglang": Package(version="0.5.9"), "transformers": Package(version="5.2.0")},
        serve=Serve(engine="sglang", **serve),
    )


def _lock(**versions: str) -> Lock:
    release = DebianRelease(
        archive="debian", suite="bookworm", date="2026-03-01T00:00:00+00:00", packages_sha256="0" * 64
    )
    file = LockFile(question={}, debian=DebianLock(suite="bookworm", releases=(release,), base=()), python={}, tools={})
    wheels = tuple(
        LockedWheel(name=name.replace("_", "-"), version=version, filename="x.whl", sha256="0" * 64, size=1)
        for name, version in versions.items()
    )
    return Lock(name="glm5", file=file, wheels=wheels, toolchain_wheels=(), digest="0" * 64)


def _findings(diagnosis: Diagnosis) -> list[str]:
    return [cause.finding for cause in diagnosis.causes]


def test_the_founding_crash_ranks_kv_cache_gemm_race_and_deepgemm_first_with_their_edits() -> None:
    diagnosis = diagnose(FOUNDING)
    assert _findings(diagnosis) == [
        "fp8-kv-cache-without-scales",
        "flashinfer-fp4-gemm-race",
        "deepgemm-ue8m0-scales",
    ]
    edits = {(edit.path, edit.value) for cause in diagnosis.causes for edit in cause.edits}
    assert ("serve.args.kv-cache-dtype", "bfloat16") in edits
    assert ("serve.args.fp4-gemm-backend", "flashinfer_cudnn") in edits
    assert ("serve.env.SGLANG_ENABLE_JIT_DEEPGEMM", "0") in edits
    assert all(cause.confidence < SURE for cause in diagnosis.causes)


def test_the_founding_crash_names_the_rope_notice_and_the_frame_as_misleading_and_why() -> None:
    diagnosis = diagnose(FOUNDING)
    why = {line.line: line.why for line in diagnosis.misleading}
    assert "generic notice" in why[1]
    assert "reports errors late" in why[5]
    accused = {evidence.line for cause in diagnosis.causes for evidence in cause.evidence}
    assert accused.isdisjoint({1, 5})
    assert diagnosis.first is not None
    assert diagnosis.first.line == 6


def test_a_lock_with_the_racing_flashinfer_raises_the_gemm_race_and_a_fixed_one_rules_it_out() -> None:
    def race(flashinfer: str) -> float:
        causes = diagnose(FOUNDING, recipe=_recipe(), lock=_lock(flashinfer_python=flashinfer)).causes
        return next((cause.confidence for cause in causes if cause.finding == "flashinfer-fp4-gemm-race"), 0.0)

    assert race("0.6.3") > race("0.6.7") > race("0.6.8.post1") == 0


@pytest.mark.parametrize("name", ["kv-cache-dtype", "--kv_cache_dtype"])
def test_a_recipe_that_already_serves_with_bfloat16_rules_the_fp8_cache_out(name: str) -> None:
    diagnosis = diagnose(FOUNDING[:3] + FOUNDING[4:], recipe=_recipe(args={name: "bfloat16"}))
    assert "fp8-kv-cache-without-scales" not in _findings(diagnosis)
    assert diagnosis.causes[0].finding == "flashinfer-fp4-gemm-race"


@pytest.mark.parametrize("name", ["kv-cache-dtype", "kv_cache_dtype"])
def test_what_the_log_shows_overrules_what_the_recipe_wishes_and_the_cause_says_so(name: str) -> None:
    recipe = _recipe(
        args={name: "bf16", "attention-backend": "flashinfer"},
        env={"SGLANG_ENABLE_JIT_DEEPGEMM": "0", "SGLANG_ENABLE_DEEP_GEMM": "0"},
    )
    causes = {cause.finding: cause for cause in diagnose(FOUNDING, recipe=recipe).causes}
    assert next(iter(causes)) == "fp8-kv-cache-without-scales"
    assert "deepgemm-ue8m0-scales" in causes
    for finding in ("fp8-kv-cache-without-scales", "deepgemm-ue8m0-scales"):
        assert causes[finding].edits == ()
        assert "already: this log is of a server that was started otherwise" in causes[finding].because[-1]


def test_edits_that_the_recipe_already_holds_are_not_proposed() -> None:
    recipe = _recipe(env={"SGLANG_ENABLE_DEEP_GEMM": "0"})
    edits = [edit.path for cause in diagnose(FOUNDING, recipe=recipe).causes for edit in cause.edits]
    assert "serve.env.SGLANG_ENABLE_JIT_DEEPGEMM" in edits
    assert "serve.env.SGLANG_ENABLE_DEEP_GEMM" not in edits


def test_versions_of_the_log_come_before_those_of_lock_and_recipe_and_known_pins() -> None:
    log = ["transformers: 4.57.1", "KeyError: 'glm_moe_dsa'"]
    versions = diagnose(log, recipe=_recipe(), lock=_lock(torch="2.9.1+cu130")).facts.versions
    assert versions["transformers"] == "4.57.1"
    assert versions["torch"] == "2.9.1+cu130"
    assert versions["sglang"] == "0.5.9"
    assert versions["flashinfer-python"] == "0.6.3"


def test_the_target_overrules_the_gpu_of_the_log() -> None:
    log = ["NVIDIA H200", "RuntimeError: probability tensor contains either `inf`, `nan` or element < 0"]
    assert "fp8-kv-cache-without-scales" not in _findings(diagnose(log))
    assert "fp8-kv-cache-without-scales" in _findings(diagnose(log, target="12.0"))


def test_settings_come_from_the_whole_server_args_line() -> None:
    filler = ", ".join(f"option_{number}=None" for number in range(200))
    log = [f"server_args=ServerArgs(model_path='/m', {filler}, kv_cache_dtype='fp8_e4m3', tp_size=8)"]
    settings = diagnose(log).facts.settings
    assert settings["kv-cache-dtype"] == "fp8_e4m3"
    assert settings["tp-size"] == "8"


def test_a_variable_that_is_only_proposed_is_not_set() -> None:
    assert diagnose(["Set FLASHINFER_DISABLE_VERSION_CHECK=1 to bypass this check."]).facts.env == {}
    assert diagnose(["export FLASHINFER_DISABLE_VERSION_CHECK=1"]).facts.env == {
        "FLASHINFER_DISABLE_VERSION_CHECK": "1"
    }


def test_the_first_failure_is_the_first_in_time_not_in_the_file() -> None:
    log = [
        "[2026-03-20 10:00:07 TP0] Scheduler hit an exception: RuntimeError: NCCL communicator was aborted",
        "[2026-03-20 10:00:01 TP3] torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
        "[2026-03-20 10:00:09 TP1] Scheduler hit an exception: RuntimeError: NCCL communicator was aborted",
        "Killed",
    ]
    diagnosis = diagnose(log)
    assert diagnosis.causes[0].kind == "gpu-out-of-memory"
    assert diagnosis.first is not None
    assert (diagnosis.first.line, diagnosis.first.rank, diagnosis.first.time) == (2, "TP3", "2026-03-20 10:00:01")


def test_killed_at_the_end_is_a_consequence_where_something_failed_before() -> None:
    log = ["out of resource: shared memory, Required: 147456, Hardware limit: 101376.", "Killed"]
    diagnosis = diagnose(log)
    assert _findings(diagnosis) == ["fused-moe-tiles"]
    assert [evidence.line for evidence in diagnosis.consequences] == [2]
    assert any(line.line == 2 for line in diagnosis.misleading)
    assert diagnose(["Killed"]).causes[0].kind == "host-out-of-memory"


def test_of_two_sure_classes_the_first_failure_leads_and_the_second_is_not_sure() -> None:
    log = ["torch.OutOfMemoryError: CUDA out of memory.", "RuntimeError: CUDNN_STATUS_SUBLIBRARY_VERSION_MISMATCH"]
    causes = diagnose(log).causes
    assert [cause.kind for cause in causes] == ["gpu-out-of-memory", "cudnn-mismatch"]
    assert causes[0].confidence >= SURE > causes[1].confidence


def test_shared_memory_within_the_limit_is_no_reason_for_sureness() -> None:
    above = diagnose(["out of resource: shared memory, Required: 106497, Hardware limit: 101376."])
    below = diagnose(["out of resource: shared memory, Required: 1024, Hardware limit: 101376."])
    assert above.causes[0].confidence > below.causes[0].confidence


def test_an_index_assertion_beside_a_device_assert_is_not_taken_for_nan() -> None:
    log = [
        *FOUNDING[:4],
        "Indexing.cu:1515: indexSelectSmallIndex: block: [0,0,0] Assertion `srcIndex < srcSelectDimSize` failed.",
        *FOUNDING[4:],
    ]
    assert {cause.kind for cause in diagnose(log).causes} == {"index-out-of-bounds"}


def test_a_device_assert_without_context_is_unknown_with_its_lines() -> None:
    diagnosis = diagnose(["Decode batch. #running-req: 1", "RuntimeError: CUDA error: device-side assert triggered"])
    assert [cause.kind for cause in diagnosis.causes] == ["unknown"]
    assert diagnosis.causes[0].evidence[0].line == 2
    assert diagnosis.causes[0].edits == ()
    assert diagnosis.phase == "decode"


def test_a_start_that_failed_before_a_good_one_is_forgiven_and_a_crash_while_serving_is_not() -> None:
    start = "server_args=ServerArgs(model_path='/m')"
    ready = "The server is fired up and ready to roll!"
    oom = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
    assert diagnose([start, oom, start, ready]).causes == ()
    assert [cause.kind for cause in diagnose([start, ready, oom, start, ready]).causes] == ["gpu-out-of-memory"]


def test_json_has_exactly_the_keys_that_the_command_promises() -> None:
    document = diagnose(FOUNDING).reported.to_plain()
    assert list(document) == ["phase", "causes", "misleading"]
    assert list(document["causes"][0]) == ["class", "confidence", "evidence", "remedy", "edits"]
    assert document["causes"][0]["evidence"][-1] == {
        "line": 6,
        "text": "torch.AcceleratorError: CUDA error: device-side assert triggered",
    }
    assert document["causes"][0]["edits"][0]["path"] == "serve.args.kv-cache-dtype"
    assert diagnose([]).reported.to_plain() == {"phase": "unknown", "causes": [], "misleading": []}


def test_line_numbers_count_newlines_whatever_stands_between_them() -> None:
    log = (
        b"\xff\xfe\x00\n"
        b"progress 1%\rprogress 2%\rKeyError: 'glm_moe_dsa'\n" + b"\n" * 70_000 + b"No CUDA GPUs are available"
    )
    evidence = [cause.evidence[0].line for cause in diagnose(io.BytesIO(log)).causes]
    assert evidence == [2, 70_003]


def test_a_line_longer_than_a_block_is_cut_and_does_not_move_the_numbers() -> None:
    log = b"x" * 3_000_000 + b"\nNo CUDA GPUs are available\n"
    assert diagnose(io.BytesIO(log)).causes[0].evidence[0].line == 2


def test_a_torn_gzip_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    text = b"KeyError: 'glm_moe_dsa'\n" + b"".join(b"line %d\n" % number for number in range(200_000))
    torn = tmp_path / "torn.gz"
    torn.write_bytes(gzip.compress(text)[:-2000])
    said: list[str] = []
    diagnosis = diagnose_files([torn], warn=said.append)
    assert diagnosis.causes[0].kind == "unknown-model-type"
    assert 1000 < diagnosis.lines < 200_001
    assert said == [f"{torn}: the gzip file is cut off or damaged: only what comes before that is read"]


def test_a_whole_gzip_is_not_called_torn(tmp_path: Path) -> None:
    whole = tmp_path / "whole.gz"
    whole.write_bytes(gzip.compress(b"KeyError: 'glm_moe_dsa'\n") + gzip.compress(b"more\n") + b"\0" * 512)
    said: list[str] = []
    assert diagnose_files([whole], warn=said.append).lines == 2
    assert said == []


def test_several_logs_are_read_together_and_evidence_names_its_log(tmp_path: Path) -> None:
    first, second = tmp_path / "rank0.log", tmp_path / "rank1.log"
    first.write_text("Load weight begin.\n")
    second.write_text("torch.OutOfMemoryError: CUDA out of memory.\n")
    diagnosis = diagnose_files([first, second])
    assert diagnosis.phase == "model load"
    assert diagnosis.causes[0].evidence[0].log == str(second)


def test_a_missing_log_is_an_error_of_usage(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        diagnose_files([tmp_path / "none.log"])


def test_a_failure_is_still_found_after_a_million_lines_of_the_same_noise() -> None:
    noise = b"[2026-03-20 10:00:00 TP0] Decode batch. #running-req: 1, #token: 425, token usage: 0.00\n" * 60_000
    log = noise + b"RuntimeError: probability tensor contains either `inf`, `nan` or element < 0\n" + noise[:200]
    diagnosis = diagnose(io.BytesIO(log))
    assert diagnosis.causes[0].kind == "non-finite-logits"
    assert diagnosis.causes[0].evidence[0].line == 60_001


def test_an_error_that_decoding_outlives_is_no_unknown_failure_even_when_decoding_was_muted() -> None:
    decode = "[2026-03-20 10:00:00 TP0] Decode batch. #running-req: 1"
    log = [decode] * 100 + ["Traceback (most recent call last):", "ValueError: odd request"] + [decode] * 3
    assert diagnose(log).causes == ()
    assert [cause.kind for cause in diagnose(log[:102]).causes] == ["unknown"]


def test_the_text_for_people_shows_phase_cause_edit_and_what_misleads() -> None:
    text = render(diagnose(FOUNDING))
    assert "phase reached: decode" in text
    assert "serve.args.kv-cache-dtype: bfloat16" in text
    assert text.index("1. non-finite-logits") < text.index("looks guilty, and is not:") < text.index("generic notice")
    assert render(diagnose([])) == "phase reached: unknown\nno cause found: nothing in the log is known to be wrong\n"


def test_a_class_is_explained_with_findings_and_sources_and_a_wrong_name_gets_the_nearest() -> None:
    text = explain("shared-memory-exceeded")
    assert "101,376" in text
    assert "extend-attention-tiles" in text
    assert "pull/14311" in text
    assert "unknown" in explain("unknown")
    with pytest.raises(UsageError) as error:
        explain("shared-memory")
    assert "shared-memory-exceeded" in error.value.remedy


@pytest.mark.parametrize(
    "line",
    [
        "HTTP status client error (429 Too Many Requests) for url (http://index/simple/packaging/)",
        "InRelease: could not be fetched in 5 attempts: HTTP 429 Too Many Requests",
        "requests.exceptions.HTTPError: 429 Client Error: Too Many Requests for url: https://hub/api",
        "toomanyrequests: You have reached your pull rate limit.",
    ],
)
def test_who_asks_too_often_is_told_to_wait(line: str) -> None:
    (first, *_) = diagnose(["Request failed after 3 retries in 7.1s", line]).causes
    assert first.finding == "asked-too-often"
    assert first.remedy.startswith("wait some minutes")
    assert first.evidence[0].line == 2
