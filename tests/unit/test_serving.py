"""The server driver against a stand-in with every misbehaviour: a right verdict within its deadline, nothing left."""

from __future__ import annotations

import json
import math
import socket
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from builder.document import canonical_json
from builder.recipe.model import Serve
from builder.recipe.options import Argument, server_options
from builder.store import Store
from builder.verify.cuda_error import BLOCKED
from builder.verify.dry_run.plan import planned_groups
from builder.verify.launch import Deadlines, Launch, other_than_asked, sglang_launch
from builder.verify.place import Here
from builder.verify.rounds import SERVED, rounds_request
from builder.verify.serving import server_check
from builder.verify.tiny.model import TinyModel
from builder.verify.tiny.program import Expectation, Request
from builder.verify.tiny.safetensors import Tensor, write_safetensors
from tests.tiny_glm5 import small

if TYPE_CHECKING:
    from builder.verify.verdict import Check

STANDIN = Path(__file__).parents[1] / "sglang_standin.py"
PATIENT = Deadlines(ready=60.0, request=30.0, stop=20.0)
EXPECTED = (
    Expectation(tokens=tuple(range(10, 58)), mean_margin=5.0, min_margin=5.0),
    Expectation(tokens=tuple(range(70, 86)), mean_margin=5.0, min_margin=5.0),
)
REQUESTS = (Request(prompt=(1, 2, 3, 4), new_tokens=48), Request(prompt=(1, 2, 9, 9), new_tokens=16))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return Store(tmp_path_factory.mktemp("store"))


def model_in(store: Store, **left_out: bool) -> TinyModel:
    """A checkpoint without layers: what the driver looks at, and nothing that takes time."""
    import numpy as np

    names = ("model.embed_tokens.weight", "model.norm.weight", "lm_head.weight")
    tensors = {name: Tensor.bf16(np.ones((2, 2))) for name in names if not left_out.get(name.split(".")[-2], False)}
    files = {
        "config.json": canonical_json({"num_hidden_layers": 0, "first_k_dense_replace": 0, "n_routed_experts": 0}),
        "model.safetensors": write_safetensors(tensors),
    }
    return TinyModel(
        files={name: store.add_bytes(data) for name, data in files.items()}, requests=REQUESTS, expected=EXPECTED
    )


def launch_of(store: Store, misbehaviour: str, *more: str, deadlines: Deadlines = PATIENT) -> Launch:
    answers = [
        {"prompt": request.prompt, "tokens": expected.tokens, "margins": [5.0] * len(expected.tokens)}
        for request, expected in zip(REQUESTS, EXPECTED, strict=True)
    ]
    known = store.path(store.add_bytes(canonical_json({"answers": answers})))
    return Launch(
        command=(
            *("{python}", str(STANDIN), "--model-path", "{model}", "--port", "{port}", "--answers", str(known)),
            *("--misbehave", misbehaviour, *more),
        ),
        asked={"attention-backend": "flashinfer", "kv-cache-dtype": "bf16"},
        deadlines=deadlines,
    )


def check_of(store: Store, misbehaviour: str, *more: str, deadlines: Deadlines = PATIENT) -> Check:
    place = Here(store=store, python=Path(sys.executable))
    launch = launch_of(store, misbehaviour, *more, deadlines=deadlines)
    return server_check(place, launch, model_in(store), store=store, level="gpu-decode", name="gpu-decode server")


def gone(marker: str) -> bool:
    """Wait until nothing with the marker runs any more: a guard needs a moment to see that its probe is gone."""
    deadline = time.monotonic() + 30
    while (left := still_running(marker)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not left


def still_running(marker: str) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes().decode(errors="replace")
        except OSError:
            continue
        if marker in command:
            found.append(command)
    return found


def test_a_right_server_passes_and_everything_it_did_is_recorded(store: Store) -> None:
    check = check_of(store, "")
    assert (check.outcome, check.evidence) == ("passed", ())
    assert "decodes 304 of 304 tokens in 9 answers as it must" in check.summary
    figures = check.figures
    assert (figures["phase"], figures["stop"], figures["left_behind"]) == ("done", "terminated", 0)
    assert (figures["server_attention_backend"], figures["server_max_total_num_tokens"]) == ("flashinfer", 4096)
    assert {"ready_seconds", "first_token_seconds", "decode_tokens_per_second", "graph_capture_seconds"} <= set(figures)
    assert still_running(str(STANDIN)) == []


def test_what_is_compiled_at_the_first_decode_is_waited_for_before_anything_is_judged(store: Store) -> None:
    """One token is a prefill: the first request of two must be the patient one."""
    check = check_of(store, "hangs if judged before it decoded", deadlines=Deadlines(ready=60.0, request=5.0))
    assert (check.outcome, check.evidence) == ("passed", ())


def test_an_older_server_names_itself_elsewhere(store: Store) -> None:
    assert check_of(store, "", "--info", "/get_server_info").outcome == "passed"


@pytest.mark.parametrize(
    ("misbehaviour", "phase", "words"),
    [
        ("dies at import", "import", "exit code 1 in phase import: ModuleNotFoundError: No module named 'sgl_kernel'"),
        ("dies at load", "load", "exit code 1 in phase load: RuntimeError: The size of tensor a (3072) must match"),
        ("dies at capture", "graph capture", "in phase graph capture: RuntimeError: TllmGenFmhaRunner: Unsupported"),
        (
            "dies at first decode",
            "decode",
            "in phase decode: device-side assert in the kernel operator() (cuda/IndexKernel",
        ),
        ("garbage", "done", "48 of 48 tokens are wrong, the first at decoded token 1: 10 expected, 11 seen"),
        ("one token", "done", "1 tokens were decoded instead of 48"),
        ("healed NaN", "done", "48 of 48 tokens are wrong"),
        ("NaN", "done", "the logits are not finite from decoded token 1 on"),
        ("weak", "done", "the mean margin is 2.500, 50.0% of the reference's"),
        ("wrong second", "done", "request 2, which shares its beginning with the first: 16 of 16 tokens are wrong"),
        ("wrong when repeated", "done", "request 1 again: 48 of 48 tokens are wrong"),
        (
            "another backend",
            "done",
            "other parts than the recipe asks for: attention-backend dsa instead of flashinfer",
        ),
        ("a weight without a place", "done", "weights found no place: Parameter model.layers.1.mlp.gate.weight"),
        ("another interface", "prefill", "in phase prefill: /generate: not the answer that sglang gives"),
        ("a foreign server", "import", "another server answers on the port: it serves /another"),
    ],
)
def test_a_misbehaviour_is_named_with_its_phase_and_nothing_is_left(
    store: Store, misbehaviour: str, phase: str, words: str
) -> None:
    check = check_of(store, misbehaviour)
    assert check.outcome == "failed"
    assert words in check.summary
    assert misbehaviour == "a foreign server" or check.figures["phase"] == phase
    assert still_running(str(STANDIN)) == []


def test_a_server_that_never_answers_is_given_up_in_the_phase_it_reached(store: Store) -> None:
    check = check_of(store, "never ready", deadlines=replace(PATIENT, ready=3.0))
    assert (
        "in phase graph capture: no answer within 3 s; no compiler was running, and it stood at File" in check.summary
    )
    assert "in start" in check.summary
    assert still_running(str(STANDIN)) == []


def test_compiling_is_granted_beyond_the_deadline_and_not_for_ever(store: Store) -> None:
    check = check_of(store, "compiles, never ready", deadlines=replace(PATIENT, ready=3.0, compiling=2.0))
    assert "in phase graph capture: no answer within 3 s and 2 s of compiling" in check.summary
    assert "1 compilers were running, such as nvcc" in check.summary
    assert still_running(str(STANDIN)) == []


def test_a_server_that_hangs_at_the_first_request_is_given_up_in_phase_decode(store: Store) -> None:
    check = check_of(store, "hangs at decode", deadlines=replace(PATIENT, request=2.0))
    assert "in phase decode: /generate: no answer within 2 s" in check.summary
    assert "1 compilers were running, such as nvcc" in check.summary
    assert still_running(str(STANDIN)) == []


def test_a_cuda_error_is_run_again_with_blocking_launches_and_named_by_its_kernel(store: Store) -> None:
    check = server_check(
        Here(store=store, python=Path(sys.executable)),
        launch_of(store, "device assert"),
        model_in(store),
        store=store,
        level="gpu-decode",
        name="gpu-decode server",
    )
    assert check.outcome == "failed"
    assert "in phase decode: device-side assert in the kernel operator() (cuda/IndexKernel.cu:111" in check.summary
    assert "launched from sglang/srt/managers/topk.py:91 in select" in check.summary
    assert "stood innocently at sglang/srt/managers/scheduler.py:377 in process_batch_result_decode" in check.summary
    first, _, blocked = store.path(str(check.log)).read_text().partition(BLOCKED)
    assert ("scheduler.py" in first, "topk.py" in first) == (True, False)
    assert ("Load weight begin" in blocked, "topk.py" in blocked) == (True, True)


def test_processes_that_outlive_the_server_are_ended_and_named(store: Store) -> None:
    check = check_of(store, "leaves children behind")
    assert check.outcome == "passed"
    assert check.summary.endswith("; it left 2 processes behind, which were ended")
    assert check.figures["left_behind"] == 2
    assert all("time.sleep(600)" in line for line in check.evidence)
    assert still_running("time.sleep(600)") == []


def test_a_server_that_ignores_sigterm_is_killed(store: Store) -> None:
    check = check_of(store, "ignores SIGTERM", deadlines=replace(PATIENT, stop=1.0))
    assert check.outcome == "passed"
    assert check.summary.endswith("; it did not end when asked and was killed")
    assert still_running(str(STANDIN)) == []


def test_a_probe_that_is_ended_from_outside_takes_its_server_along(store: Store) -> None:
    launch, model = launch_of(store, "children, never ready"), model_in(store)
    files = {f"model/{name}": store.path(sha256) for name, sha256 in model.files.items()}
    request = {**launch.to_request(), "rounds": rounds_request(model, SERVED)}
    answer = Here(store=store, python=Path(sys.executable)).probe("serve", request, files, timeout=3.0)
    assert (answer.report, answer.exit.timed_out) == (None, True)
    assert "graph capture" in answer.exit.stderr.decode()
    assert gone(str(STANDIN))
    assert gone("time.sleep(600)")


def test_a_port_in_use_is_said_before_anything_is_started(store: Store) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        launch = replace(launch_of(store, ""), port=other.getsockname()[1])
        place = Here(store=store, python=Path(sys.executable))
        check = server_check(place, launch, model_in(store), store=store, level="gpu-decode", name="server")
    assert check.outcome == "failed"
    assert f"port {launch.port} is in use by another program" in check.summary
    assert check.figures["phase"] == "start"


def test_a_log_without_end_is_kept_at_both_ends_and_takes_no_memory(store: Store) -> None:
    check = check_of(store, "gigabytes of log", "--blocks", "300")
    assert check.outcome == "passed"
    assert int(check.figures["log_bytes"]) > 280_000_000
    assert float(check.figures["peak_memory_mib"]) < 150


def test_a_checkpoint_without_a_tensor_is_found_though_the_server_serves_it(store: Store) -> None:
    place = Here(store=store, python=Path(sys.executable))
    model = model_in(store, norm=True)
    check = server_check(place, launch_of(store, ""), model, store=store, level="gpu-decode", name="server")
    assert check.outcome == "failed"
    assert "the checkpoint lacks 1 tensors, and it served without them: model.norm.weight" in check.summary


def test_a_program_that_does_not_exist_is_an_answer_too(store: Store) -> None:
    place = Here(store=store, python=Path(sys.executable))
    launch = replace(launch_of(store, ""), command=("/nowhere/python", "-m", "sglang.launch_server"))
    check = server_check(place, launch, model_in(store), store=store, level="gpu-decode", name="server")
    assert check.outcome == "failed"
    assert "No such file or directory: '/nowhere/python'" in check.summary


def test_the_whole_tiny_checkpoint_lacks_nothing(tmp_path: Path) -> None:
    from builder.verify.probe.tensors import compare_tensors

    for name, data in small().files.items():
        (tmp_path / name).write_bytes(data)
    assert compare_tensors(tmp_path) == {"present": len(_names(tmp_path)), "missing": 0, "missing_names": []}


def _names(folder: Path) -> set[str]:
    data = (folder / "model.safetensors").read_bytes()
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    return set(header) - {"__metadata__"}


def test_the_recipes_options_reach_the_server_without_those_of_the_real_model() -> None:
    serve = Serve(
        engine="sglang",
        model="nvidia/GLM-5-NVFP4",
        args={
            "tp": 8,
            "attention-backend": "flashinfer",
            "tool-call-parser": "glm47",
            "disable-custom-all-reduce": True,
            "enable-torch-compile": False,
        },
        env={"NCCL_P2P_LEVEL": "SYS"},
    )
    launch = sglang_launch(serve, ranks=1, graphs=False)
    text = " ".join(launch.command)
    assert "--attention-backend flashinfer --disable-custom-all-reduce" in text
    assert "--tp 1" in text
    assert text.endswith("--disable-cuda-graph")
    assert not {"--tool-call-parser", "--enable-torch-compile", "8"} & set(launch.command)
    assert (launch.environment, launch.asked) == ({"NCCL_P2P_LEVEL": "SYS"}, {"attention-backend": "flashinfer"})
    assert "--disable-cuda-graph" not in sglang_launch(serve).command


def test_an_option_is_the_same_however_its_name_is_written() -> None:
    args: dict[str, Argument] = {
        "--tp": 8,
        "tool_call_parser": "glm47",
        "random_seed": 7,
        "attention_backend": "flashinfer",
        "--x_y": True,
    }
    launch = sglang_launch(Serve(engine="sglang", args=args))
    text = " ".join(launch.command)
    assert "--port {port} --attention_backend flashinfer --x_y --skip" in text  # spelled as the recipe spells it
    assert (text.count("--tp"), text.count("seed"), "--tp 1" in text) == (1, 1, True)
    assert not {"--tool_call_parser", "----tp"} & set(launch.command)
    assert launch.asked == {"attention-backend": "flashinfer"}


def test_the_dry_run_reads_an_option_however_its_name_is_written() -> None:
    def sizes(args: dict[str, Argument]) -> list[dict[str, Any]]:
        groups = planned_groups("glm5-nvfp4", Serve(engine="sglang", args=args), ("sglang",))
        return [group for group in groups if group["name"] != "engine"]  # whose words are spelled as written

    plain = sizes({"tp": 8, "kv-cache-dtype": "fp8_e4m3"})
    assert sizes({"--tp": 8, "kv_cache_dtype": "fp8_e4m3"}) == plain != sizes({"tp": 8})


def test_the_grammars_of_the_real_model_are_not_asked_of_the_tiny_one() -> None:
    launch = sglang_launch(Serve(engine="sglang", args={"grammar-backend": "xgrammar"}))
    assert (launch.asked, "xgrammar" in launch.command, "none" in launch.command) == ({}, False, True)


def test_the_words_of_a_command_line_are_spelled_as_written() -> None:
    given: dict[str, Argument] = {"--a": 0.5, "b_c": True, "off": False, "d-e": "x"}
    assert list(server_options(given)) == ["--a", "0.5", "--b_c", "--d-e", "x"]


def test_two_spellings_of_one_format_are_the_same() -> None:
    assert other_than_asked({"kv-cache-dtype": "bf16"}, {"kv_cache_dtype": "bfloat16"}) == {}
    assert other_than_asked({"kv-cache-dtype": "bf16"}, {"kv_cache_dtype": "fp8_e4m3"}) == {
        "kv-cache-dtype": ("bf16", "fp8_e4m3")
    }
    assert other_than_asked({"moe-runner-backend": "x"}, {}) == {}


def test_a_release_gets_the_knob_that_makes_it_fail_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    from builder.verify.launch import BY_VERSION
    from builder.verify.probe import stack

    def options(version: str) -> tuple[list[str], dict[str, str]]:
        monkeypatch.setattr(stack, "installed", lambda _package: version)
        return stack.own_options("sglang", list(BY_VERSION))

    assert options("0.5.9") == (["--enable-nan-detection"], {"SGLANG_IS_IN_CI": "true"})
    assert options("0.5.12.post1") == options("0.5.9")
    assert options("0.5.14") == ([], {"SGLANG_ENABLE_ASYNC_ASSERT": "1"})
    assert options("") == ([], {})


def test_margins_that_no_number_stands_for_are_none() -> None:
    from builder.verify.probe.sglang_api import observation

    def answer(first: float | None, second: float | None) -> dict[str, object]:
        best = [[[first, 5, None], [second, 6, None]]]
        return {"meta_info": {"output_token_logprobs": [[first, 5, None]], "output_top_logprobs": best}}

    assert observation(answer(-0.5, -2.0)) == {"tokens": [5], "margins": [1.5]}
    for wrong in (None, math.nan, -math.inf):
        assert observation(answer(-0.5, wrong)) == {"tokens": [5], "margins": [None]}
