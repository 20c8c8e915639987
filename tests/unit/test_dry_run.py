"""The dry run outside the image: which calls are driven, what is judged, how the worst is shown first."""

from __future__ import annotations

import json
import re
import struct
import sys
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import MagicMock, patch

import pytest

from builder.engine import ContainerRun, Exit
from builder.recipe.model import Serve
from builder.recipe.targets import find_target
from builder.store import Store
from builder.verify.dry_run.check import dry_run, judge_dry_run
from builder.verify.dry_run.plan import model_shapes, planned_groups
from builder.verify.dry_run.report import groups_from
from builder.verify.place import InImage
from builder.verify.probe.cubin import most_threads, resources
from builder.verify.probe.drives import sglang_engine, sglang_kernels
from builder.verify.probe.drives.run_time import leave_out_nvcc, take_not_seen
from builder.verify.probe.dry_group import driven, ended_at, readable
from builder.verify.probe.triton_driver import below_search_path
from tests.fakes import FakeEngine

if TYPE_CHECKING:
    from pathlib import Path

    from builder.verify.verdict import Check

SM120 = find_target("rtx-pro-6000")
LAUNCH = {
    "kernel": "_fwd_kernel",
    "call_site": "sglang/srt/layers/attention/triton_ops/extend_attention.py:597 extend_attention_fwd",
    "shared": 106496,
    "warps": 8,
    "stages": 1,
    "constants": {"BLOCK_M": 32, "BLOCK_N": 64, "Lq": 576},
    "registers": 0,
    "spilled": 0,
    "refused": "out of resource: shared memory, Required: 106496, Hardware limit: 101376.",
    "tuned": False,
}
EVENT = {
    "event": "launch",
    "kernel": "rmsnorm",
    "archs": "sm_80 sm_90a",
    "via": "none",
    "threads": 128,
    "shared": 64,
    "error": 209,
    "count": 3,
}


def call(name: str = "extend", **changes: Any) -> dict[str, Any]:
    plain = {"call": name, "decides": True, "seconds": 1.0, "error": None, "launches": [], "runtime": []}
    return {**plain, **changes}


def group(*lines: dict[str, Any], **changes: Any) -> dict[str, Any]:
    plain = {"name": "attention", "seconds": 9.0, "ended": None, "tail": [], "lines": [{"canary": {}}, *lines]}
    return {**plain, **changes}


def judged(*groups: dict[str, Any], deciding: frozenset[str] = frozenset({"attention"})) -> Check:
    return judge_dry_run(groups_from({"groups": list(groups)}), SM120, set(deciding))


def test_a_refused_call_of_the_model_fails_with_kernel_bytes_and_call_site() -> None:
    check = judged(group(call("extend at head dimension 576/512, bfloat16", launches=[LAUNCH])))
    assert check.outcome == "failed"
    assert check.summary == (
        "_fwd_kernel asks for 106496 bytes of shared memory, rtx-pro-6000 (12.0) allows 101376: "
        "extend at head dimension 576/512, bfloat16 "
        "(sglang/srt/layers/attention/triton_ops/extend_attention.py:597 extend_attention_fwd; "
        "BLOCK_M=32, BLOCK_N=64; 8 warps, 1 stages)"
    )
    assert check.figures["refused"] == 1


def test_a_refused_call_that_the_model_does_not_make_is_listed_and_not_judged() -> None:
    check = judged(group(call("prefill", decides=False, launches=[LAUNCH])))
    assert (check.outcome, check.figures["not-judged"]) == ("passed", 1)
    assert check.evidence[0].startswith(" 106496 of  101376  refused, not reached by the model  _fwd_kernel, prefill")


def test_a_kernel_without_an_image_for_the_gpu_fails() -> None:
    summary = judged(group(call("torch norm", runtime=[EVENT], error="AcceleratorError: CUDA error"))).summary
    assert summary == (
        "rmsnorm is refused on rtx-pro-6000 (12.0), no kernel image is available for this GPU "
        "(cudaErrorNoKernelImageForDevice, 209): torch norm (none of sm_80 sm_90a)"
    )


def test_what_the_autotuner_drops_is_no_refusal() -> None:
    check = judged(group(call(launches=[{**LAUNCH, "tuned": True}])))
    assert (check.outcome, check.figures["launches"]) == ("passed", 0)


def test_an_exception_of_a_call_that_launches_nothing_is_the_stacks_own_refusal() -> None:
    check = judged(group(call("flashinfer experts", error="RuntimeError: SM 12.x requires CUDA >= 12.9", refuses=True)))
    assert (check.outcome, check.figures["refused"], check.figures["not-driven"]) == ("failed", 1, 0)
    assert check.summary == (
        "flashinfer experts is refused on rtx-pro-6000 (12.0): RuntimeError: SM 12.x requires CUDA >= 12.9"
    )
    assert check.evidence[0] == check.summary
    assert judged(group(call("flashinfer experts", refuses=True))).outcome == "passed"


def test_the_worst_stands_first() -> None:
    fits = {**LAUNCH, "refused": None, "registers": 255, "spilled": 32}
    lines = judged(
        group(
            call("a", launches=[{**fits, "shared": 2048}]),
            call("b", launches=[{**fits, "shared": 71680}]),
            call("c", decides=False, launches=[LAUNCH]),
            call("d", launches=[{**LAUNCH, "shared": 114688}]),
        )
    ).evidence
    assert [line.split(", ")[1 if "not reached" not in line else 2][0] for line in lines[:4]] == ["d", "c", "b", "a"]
    assert "255 registers, 32 bytes spilled, 8 warps" in lines[2]
    assert lines[-1].startswith("not known from a dry run: values, races, hangs")


def test_a_wrong_canary_gives_no_verdict_whatever_else_was_seen() -> None:
    lines = [{"canary": {"triton refuses": "262144 bytes of shared memory were accepted"}}, call(launches=[LAUNCH])]
    check = judged(group(lines=lines))
    assert check.outcome == "skipped"
    assert check.summary == (
        "no verdict, the pretence does not hold: attention: triton refuses: 262144 bytes of shared memory were accepted"
    )


@pytest.mark.parametrize(("decides", "outcome"), [(True, "skipped"), (False, "passed")])
def test_a_call_that_ends_with_another_exception_is_not_proven(decides: bool, outcome: str) -> None:
    check = judged(group(call(decides=decides, error="TypeError: unexpected")))
    assert check.outcome == outcome
    assert "extend was not driven to its end: TypeError: unexpected" in check.evidence


@pytest.mark.parametrize(("deciding", "outcome"), [(frozenset({"attention"}), "skipped"), (frozenset(), "passed")])
def test_a_process_that_ended_early_proves_nothing(deciding: frozenset[str], outcome: str) -> None:
    ended = group(lines=[], ended="exit code 1", tail=["ModuleNotFoundError: No module named 'sgl_kernel'"])
    check = judged(ended, deciding=deciding)
    assert check.outcome == outcome
    assert check.evidence[0] == (
        "the calls of attention were not driven to their end, exit code 1: "
        "ModuleNotFoundError: No module named 'sgl_kernel'"
    )


def test_a_group_without_a_canary_is_no_proof() -> None:
    assert judged(group(lines=[call()])).outcome == "skipped"


def serve(**args: Any) -> Serve:
    return Serve(engine="sglang", args={name.replace("_", "-"): value for name, value in args.items()})


def shapes(stated: Serve | None, name: str = "attention") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = next(
        each["shapes"] for each in planned_groups("glm5-nvfp4", stated, ("sglang",)) if each["name"] == name
    )
    return found


def deciding(stated: Serve | None) -> set[tuple[str, int, str]]:
    return {(each["phase"], each["query"], each["kv"]) for each in shapes(stated) if each["decides"]}


def test_the_models_own_shapes_decide_where_the_server_may_choose_triton() -> None:
    all_of_them = {("extend", 256, "bfloat16"), ("extend", 576, "bfloat16"), ("decode", 576, "bfloat16")}
    assert deciding(serve(attention_backend="triton")) == all_of_them
    assert deciding(serve()) == all_of_them
    assert deciding(serve(attention_backend="flashinfer")) == set()
    assert deciding(serve(attention_backend="flashinfer", decode_attention_backend="triton")) == {
        ("decode", 576, "bfloat16")
    }


def test_the_cache_type_and_the_ranks_shape_the_calls() -> None:
    stated = serve(attention_backend="triton", kv_cache_dtype="fp8_e4m3", tp=8)
    assert {kv for _, _, kv in deciding(stated)} == {"float8_e4m3fn"}
    heads = {(each["query"], each["heads"], each["kv_heads"]) for each in shapes(stated) if each["decides"]}
    assert heads == {(256, 8, 8), (576, 8, 1)}


def test_experts_decide_unless_they_are_nvfp4_or_of_another_runner() -> None:
    def decides(stated: Serve) -> bool:
        return any(each["decides"] for each in shapes(stated, "experts"))

    assert decides(serve())
    assert not decides(serve(quantization="modelopt_fp4"))
    assert not decides(serve(moe_runner_backend="flashinfer_cutlass"))


def test_flashinfer_is_asked_for_what_the_server_takes_from_it() -> None:
    def asked(stated: Serve) -> list[tuple[str, int | None]]:
        groups = {each["name"]: each for each in planned_groups("glm5-nvfp4", stated, ("sglang",))}
        assert groups["flashinfer"]["decides"] if "flashinfer" in groups else True
        return [(each["kind"], each.get("query")) for each in groups.get("flashinfer", {"shapes": []})["shapes"]]

    assert asked(serve(attention_backend="triton")) == []
    assert asked(serve(decode_attention_backend="flashinfer")) == [("latent", 576)]
    assert asked(serve(attention_backend="flashinfer", moe_runner_backend="flashinfer_cutlass")) == [
        ("ragged", 256),
        ("latent", 576),
        ("experts", None),
    ]


def test_the_shapes_are_those_of_the_configuration() -> None:
    found = model_shapes("glm5-nvfp4")
    assert (found.hidden, found.heads, found.experts, found.expert_width) == (6144, 64, 256, 2048)
    assert all(each.query == 512 + 64 for each in found.attention if each.latent)
    assert all(each.query == 192 + 64 for each in found.attention if not each.latent)


def run(tmp_path: Path, answer: dict[str, Any]) -> tuple[FakeEngine, Any]:
    engine = FakeEngine(answer=lambda _job: Exit(code=0, stdout=json.dumps(answer).encode()))

    place = InImage(engine=engine, store=Store(tmp_path / "store"), image="sha256:1", memory=4 << 30)

    def once() -> Check:
        return dry_run(
            place,
            target=SM120,
            groups=planned_groups("glm5-nvfp4", None, ()),
            environment={},
            driver_cuda=None,
            timeout=60.0,
        )

    return engine, once


def test_the_container_has_limits_and_a_whole_report_is_remembered(tmp_path: Path) -> None:
    engine, once = run(tmp_path, {"groups": [group(call(), name="torch")]})
    assert once().outcome == once().outcome == "passed"
    (job,) = engine.runs
    assert isinstance(job, ContainerRun)
    assert (job.memory, job.timeout, job.read_only_root) == (4 << 30, 60.0, True)
    assert {"/envbuild/asked/pretended/libcuda.so.1", "/envbuild/asked/request.json"} <= {
        mount.target for mount in job.mounts
    }


def test_a_report_that_ended_early_is_not_remembered(tmp_path: Path) -> None:
    engine, once = run(tmp_path, {"groups": [group(call(), name="torch", ended="not done after 50 s")]})
    assert once().outcome == once().outcome == "skipped"
    assert len(engine.runs) == 2


@pytest.mark.parametrize(("registers", "threads"), [(32, 1024), (64, 1024), (128, 512), (255, 256), (168, 384)])
def test_registers_limit_the_threads_of_a_block(registers: int, threads: int) -> None:
    assert most_threads(registers, 65536) == threads


def test_registers_and_spills_are_read_from_a_cubin() -> None:
    names, strings = b"\0.nv.info\0.symtab\0.strtab\0.shstrtab\0", b"\0kernel\0other\0"
    table = struct.pack("<IBBHQQ", 0, 0, 0, 0, 0, 0) + struct.pack("<IBBHQQ", 8, 18, 0, 1, 0, 0)
    table += struct.pack("<IBBHQQ", 1, 18, 0, 1, 0, 0)
    info = struct.pack("<BBHII", 4, 0x2F, 8, 1, 40) + struct.pack("<BBH", 3, 0x50, 0)
    info += struct.pack("<BBHII", 4, 0x2F, 8, 2, 168) + struct.pack("<BBHII", 4, 0x11, 8, 2, 32)
    parts = [(1, 0x70000000, info, 0), (10, 2, table, 3), (18, 3, strings, 0), (26, 3, names, 0)]
    offset, headers, body = 64 + 64 * 5, bytes(64), b""
    for name, kind, data, link in parts:
        headers += struct.pack("<IIQQQQIIQQ", name, kind, 0, 0, offset + len(body), len(data), link, 0, 1, 0)
        body += data
    start = b"\x7fELF\x02\x01".ljust(40, b"\0") + struct.pack("<Q10xHHH", 64, 64, 5, 4)
    assert resources(start.ljust(64, b"\0") + headers + body, "kernel") == (168, 32)
    assert resources(start.ljust(64, b"\0") + headers + body, "other") == (40, 0)


def test_a_call_site_is_named_below_the_folder_that_python_imports_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", ["/opt/env", "/opt/env/site-packages", ""])
    assert below_search_path("/opt/env/site-packages/sglang/a.py") == "sglang/a.py"
    assert below_search_path("/elsewhere/a.py") == "a.py"


@pytest.mark.parametrize(
    ("symbol", "name"),
    [
        ("_ZN2at6native12_GLOBAL__N_13addILi4EEEvPf", "at::native::add<4>"),
        ("plain_kernel", "plain_kernel"),
    ],
)
def test_symbols_are_shown_as_a_programmer_writes_them(symbol: str, name: str) -> None:
    assert readable(symbol) == name


def test_where_a_start_up_ends_among_made_up_values_is_said_and_decides_nothing_but_what_it_launches_does() -> None:
    ended = call("engine prefill", reaches=True, error="RuntimeError: no kernel (a.py:1 f)", said=["compiled later: x"])
    check = judged(group(call(), ended), deciding=frozenset({"attention"}))
    assert (check.outcome, check.figures["not-driven"]) == ("passed", 1)
    assert check.summary == (
        "all 0 launches of 2 calls are taken by rtx-pro-6000 (12.0); 1 of the calls are the model's; "
        "engine prefill was not driven to its end: RuntimeError: no kernel (a.py:1 f)"
    )
    assert check.evidence[:2] == (
        "engine prefill was not driven to its end: RuntimeError: no kernel (a.py:1 f)",
        "engine prefill: compiled later: x",
    )
    assert judged(group(call("engine prefill", reaches=True, launches=[LAUNCH]))).outcome == "failed"


def test_a_pass_says_that_a_process_of_no_weight_ended_early_and_nothing_of_calls_of_no_weight() -> None:
    listed = judged(group(call("survey", decides=False, error="TypeError: x")))
    assert listed.summary.endswith("are taken by rtx-pro-6000 (12.0); 0 of the calls are the model's")
    engine = group(name="engine", ended="exit code -11", lines=[{"canary": {}}, call("engine model")])
    assert judged(engine).summary.endswith("the calls of engine were not driven to their end, exit code -11")


def without_torch(**modules: ModuleType) -> Any:
    """PyTorch that makes nothing, and modules of the stack beside it."""
    return patch.dict(sys.modules, {"torch": MagicMock(), **modules})


def test_options_and_model_must_be_driven_to_their_end_and_the_steps_on_made_up_values_need_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", "/usr/bin")
    with without_torch():
        calls = list(sglang_engine.calls({"files": {}, "arguments": []}))
    assert [(each.name, each.decides, each.reaches) for each in calls] == [
        ("engine options", True, False),
        ("engine model", True, False),
        ("engine prefill of 2x128 tokens", True, True),
        ("engine decode step", True, True),
    ]


def test_a_kernel_of_the_model_that_the_stack_refuses_proves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refusing() -> None:
        raise RuntimeError("NVFP4 JIT kernels require compute capability >= 10.0, got 9.0.")

    kernels = ModuleType("sgl_kernel")
    vars(kernels).update(scaled_fp4_quant=refusing, topk_sigmoid=refusing, rmsnorm=lambda: None)
    monkeypatch.setenv("ENVBUILD_DRY_LOG", str(tmp_path / "log"))
    (asked,) = (
        each
        for each in planned_groups("glm5-nvfp4", serve(quantization="modelopt_fp4"), ("sglang",))
        if each["name"] == "kernels"
    )
    recorder: Any = SimpleNamespace(take_touched=list)
    with without_torch(sgl_kernel=kernels):
        lines = [driven(each, recorder) for each in sglang_kernels.calls(asked)]
    check = judged(group(*lines, name="kernels"), deciding=frozenset({"kernels"}))
    assert [line["call"] for line in lines] == ["kernel rmsnorm", "kernel topk_sigmoid", "kernel scaled_fp4_quant"]
    assert check.outcome == "skipped"
    assert re.fullmatch(
        r"kernel scaled_fp4_quant was not driven to its end: RuntimeError: NVFP4 JIT kernels require compute "
        r"capability >= 10\.0, got 9\.0\. \(.*test_dry_run\.py:\d+ refusing\)",
        check.summary,
    )


def test_the_engine_is_started_as_the_recipe_says_without_what_belongs_to_the_real_model() -> None:
    def groups(stated: Serve | None) -> dict[str, dict[str, Any]]:
        return {each["name"]: each for each in planned_groups("glm5-nvfp4", stated, ("sglang",))}

    engine = groups(serve(tp=8, moe_runner_backend="flashinfer_cutlass", tool_call_parser="glm47"))["engine"]
    words = engine["arguments"]
    assert words[:2] == ["--moe-runner-backend", "flashinfer_cutlass"]
    assert words[words.index("--tp") + 1] == "1"
    assert "--disable-cuda-graph" in words
    assert not {"--tool-call-parser", "--model-path", "--port"} & set(words)
    assert json.loads(engine["files"]["config.json"])["architectures"] == ["GlmMoeDsaForCausalLM"]
    assert "engine" not in groups(None)


def test_nvfp4_kernels_decide_where_the_server_may_choose_sglangs_own() -> None:
    def named(**args: Any) -> list[str]:
        groups = planned_groups("glm5-nvfp4", serve(**args), ("sglang",))
        deciding = next(each["deciding"] for each in groups if each["name"] == "kernels")
        return [name for name in deciding if "fp4" in name]

    assert named(quantization="modelopt_fp4") == ["scaled_fp4_quant", "cutlass_moe_fp4"]
    assert named(quantization="modelopt_fp4", moe_runner_backend="flashinfer_cutlass") == []
    assert named(quantization="fp8") == []


@pytest.mark.parametrize("args", [{}, {"quantization": "modelopt"}])
def test_experts_are_nvfp4_where_only_the_checkpoint_says_so(args: dict[str, str]) -> None:
    stated = Serve(engine="sglang", model="nvidia/GLM-5-NVFP4", args={**args})
    groups = {each["name"]: each for each in planned_groups("glm5-nvfp4", stated, ("sglang",))}
    assert {"scaled_fp4_quant", "cutlass_moe_fp4"} <= set(groups["kernels"]["deciding"])
    assert groups["kernels"]["decides"]
    assert not groups["experts"]["decides"]


def test_nothing_of_sglang_is_driven_where_another_engine_serves() -> None:
    def names(stated: Serve | None) -> list[str]:
        return [each["name"] for each in planned_groups("glm5-nvfp4", stated, ("sglang", "vllm"))]

    assert names(Serve(engine="vllm")) == ["torch"]
    assert names(None) == ["torch", "attention", "experts", "kernels"]


def test_kernels_that_are_compiled_at_their_first_call_are_named_once() -> None:
    core = ModuleType("flashinfer.jit.core")
    core.JitSpec = type("JitSpec", (), {"name": "sampling"})  # type: ignore[attr-defined]
    parents = {name: ModuleType(name) for name in ("flashinfer", "flashinfer.jit")}
    with patch.dict(sys.modules, {**parents, "flashinfer.jit.core": core}):
        leave_out_nvcc()
        module = core.JitSpec().build_and_load()
        core.JitSpec().build_and_load("verbose", class_name="Sampling")
    assert len(range(module.plan(1, named=2).get_tactic_num())) == 1
    assert take_not_seen() == ["compiled by nvcc at the first call: flashinfer sampling"]
    assert take_not_seen() == []


def test_an_exception_is_placed_where_it_was_raised() -> None:
    with pytest.raises(ValueError, match="no such") as caught:
        find_nothing()
    assert re.fullmatch(r"(tests/unit/)?test_dry_run\.py:\d+ find_nothing", ended_at(caught.value))


def find_nothing() -> None:
    raise ValueError("no such kernel")
