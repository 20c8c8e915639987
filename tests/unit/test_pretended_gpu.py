"""The libraries that play a GPU: what they refuse and with which error code, asked as a program asks the real ones."""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from builder.fatbin import MAGIC
from builder.recipe.targets import find_target
from builder.store import Store
from builder.verify.dry_run import pretended
from builder.verify.dry_run.pretended import described, pretended_libraries

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
FATBINS = Path(__file__).parents[1] / "cases" / "fatbin"
Ask = Any
START = """
import ctypes, json, struct, sys
folder, case = sys.argv[1:]
runtime = ctypes.CDLL(f"{folder}/libpretended_cudart.so", mode=ctypes.RTLD_GLOBAL)
driver = ctypes.CDLL(f"{folder}/libcuda.so.1")
number = lambda: ctypes.byref(ctypes.c_int())
def register(data):
    kept = ctypes.create_string_buffer(data)
    wrapper = ctypes.create_string_buffer(struct.pack("<iiQQ", 0x466243B1, 1, ctypes.addressof(kept), 0))
    host = ctypes.create_string_buffer(16)
    call = runtime["__cudaRegisterFatBinary"]
    call.restype = ctypes.c_void_p
    runtime["__cudaRegisterFunction"](ctypes.c_void_p(call(wrapper)), host, b"k", b"kernel", -1, *[None] * 5)
    register.kept.append((kept, wrapper, host))
    return host
register.kept = []
class Dim3(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint) for name in "xyz"]
def launch(host, threads, shared, blocks=1):
    return runtime.cudaLaunchKernel(host, Dim3(blocks, 1, 1), Dim3(threads, 1, 1), None, ctypes.c_size_t(shared), None)
data = open(case, "rb").read() if case else b""
"""


@pytest.fixture
def ask(players: Path, tmp_path: Path) -> Callable[..., Any]:
    """Run a few lines of Python against the libraries and return what they leave in `answer`."""

    def run(lines: str, *, gpu: str | None = "rtx-pro-6000", data: bytes = b"", driver: str = "13.1") -> Any:
        case = tmp_path / "case"
        case.write_bytes(data)
        seen = {"ENVBUILD_GPU": described(find_target(gpu), driver)} if gpu else {}
        done = subprocess.run(
            [sys.executable, "-c", f"{START}{lines}\nprint(json.dumps(answer))", str(players), str(case)],
            env={**os.environ, **seen, "ENVBUILD_DRY_LOG": str(tmp_path / "log")},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return run


def fat_binary(name: str) -> bytes:
    """The fat binary in one of the libraries that nvcc made."""
    data = (FATBINS / f"{name}.so").read_bytes()
    start = data.index(MAGIC)
    return data[start : start + 16 + struct.unpack_from("<Q", data, start + 8)[0]]


@pytest.mark.parametrize(
    ("gpu", "limit"), [("rtx-pro-6000", 101376), ("h200", 232448), ("a100", 166912), ("rtx-4090", 101376)]
)
def test_more_shared_memory_than_a_block_may_have_is_an_invalid_value(ask: Ask, gpu: str, limit: int) -> None:
    arch = find_target(gpu).capability.replace(".", "")
    entry = struct.pack("<HxxIQI4xHHI8xQ16x", 2, 64, 0, 0, 0, 0, int(arch), 0)
    code = MAGIC + struct.pack("<HHQ", 1, 16, len(entry)) + entry
    lines = f"""
k = register(data)
answer = [launch(k, 128, 49152), launch(k, 128, 49153), runtime.cudaFuncSetAttribute(k, 8, {limit}),
          launch(k, 128, {limit}), runtime.cudaFuncSetAttribute(k, 8, {limit + 1}), runtime.cudaGetLastError(),
          runtime.cudaGetLastError(), launch(k, 128, {limit + 1})]
"""
    assert ask(lines, gpu=gpu, data=code) == [0, 1, 0, 0, 1, 1, 0, 1]


@pytest.mark.parametrize(
    ("name", "gpu", "driver", "code"),
    [
        ("sm_120", "rtx-pro-6000", "13.1", 0),
        ("sm_120a", "rtx-pro-6000", "12.8", 0),
        ("sm_120a", "gb10", "13.1", 209),
        ("sm_120f", "gb10", "13.1", 0),
        ("sm_100f", "rtx-pro-6000", "13.1", 209),
        ("sm_90a", "rtx-pro-6000", "13.1", 209),
        ("sm_90a", "h200", "13.1", 0),
        ("compute_90", "rtx-pro-6000", "13.1", 0),
        ("compute_90", "rtx-pro-6000", "13.0", 209),
        ("compute_90", "a100", "13.1", 209),
        ("compute_120a", "rtx-pro-6000", "13.1", 0),
        ("compute_120a", "gb10", "13.1", 209),
        ("mixed", "rtx-pro-6000", "13.1", 0),
        ("mixed", "a100", "13.1", 209),
    ],
)
def test_code_for_other_gpus_is_refused_by_runtime_and_driver(
    ask: Ask, name: str, gpu: str, driver: str, code: int
) -> None:
    lines = "answer = [launch(register(data), 32, 0), driver.cuModuleLoadData(number(), data)]"
    module = "module = ctypes.c_void_p()\n" + lines.replace("number()", "ctypes.byref(module)")
    assert ask(module, gpu=gpu, data=fat_binary(name), driver=driver) == [code, code]


@pytest.mark.parametrize(("threads", "blocks", "code"), [(1024, 1, 0), (1025, 1, 9), (0, 1, 9), (32, 0, 9)])
def test_a_launch_that_no_gpu_takes_is_an_invalid_configuration(ask: Ask, threads: int, blocks: int, code: int) -> None:
    lines = f"answer = launch(register(data), {threads}, 0, {blocks})"
    assert ask(lines, data=fat_binary("sm_120")) == code


def test_every_launch_is_logged_with_its_kernel_and_image(ask: Ask, tmp_path: Path) -> None:
    ask("k = register(data)\nanswer = [launch(k, 64, 100), launch(k, 64, 60000)]", data=fat_binary("mixed"))
    first, second = (json.loads(line) for line in (tmp_path / "log").read_text().splitlines())
    common = {"event": "launch", "kernel": "kernel", "via": "sass", "threads": 64}
    common["archs"] = "sm_90a sm_100f sm_120f compute_120f"
    assert first == {**common, "shared": 100, "error": 0}
    assert second == {**common, "shared": 60000, "error": 1}


def test_the_device_answers_as_the_target(ask: Ask) -> None:
    lines = """
props = ctypes.create_string_buffer(1032)
at = lambda offset, form: struct.unpack_from(form, props.raw, offset)[0]
answer = []
for call, optin, sms in ((runtime.cudaGetDeviceProperties_v2, 696, 388), (runtime.cudaGetDeviceProperties, 672, 384)):
    call(props, 0)
    answer.append([props.value.decode(), at(288, "<Q"), at(360, "<i"), at(364, "<i"), at(optin, "<Q"), at(sms, "<i")])
"""
    seen = ["NVIDIA GeForce RTX 5090", 34190917632, 12, 0, 101376, 170]
    assert ask(lines, gpu="rtx-5090") == [seen, seen]


def test_without_a_gpu_everything_says_so(ask: Ask) -> None:
    lines = """
count = ctypes.c_int(7)
answer = [driver.cuInit(0), driver.cuDeviceGetCount(ctypes.byref(count)), count.value,
          runtime.cudaMalloc(ctypes.byref(ctypes.c_void_p()), ctypes.c_size_t(8)), driver.cuArrayCreate_v2()]
"""
    assert ask(lines, gpu=None) == [100, 100, 0, 100, 100]


def test_memory_is_host_memory_and_more_than_the_gpu_has_is_refused(ask: Ask) -> None:
    lines = """
at, size = ctypes.c_void_p(), ctypes.c_size_t
first = runtime.cudaMalloc(ctypes.byref(at), size(40 << 30))
runtime.cudaMemset(at, 7, size(16))
back = ctypes.create_string_buffer(4)
runtime.cudaMemcpy(back, at, size(4), 2)
answer = [first, list(back.raw), runtime.cudaFree(at), runtime.cudaMalloc(ctypes.byref(at), size(200 << 30))]
"""
    assert ask(lines) == [0, [7, 7, 7, 7], 0, 2]


@pytest.mark.parametrize(
    ("image", "code"),
    [
        (b".version 8.7\n.target sm_90\n.address_size 64\n\0", 0),
        (b".version 8.7\n.target sm_90a\n.address_size 64\n\0", 209),
        (b".version 9.9\n.target sm_90\n.address_size 64\n\0", 209),
        (b"\x7fELF\x02\x01\x01\x41\x08" + bytes(7) + struct.pack("<HHI24xI", 2, 190, 1, 0x6000002 | 120 << 8), 0),
        (b"\x7fELF\x02\x01\x01\x41\x08" + bytes(7) + struct.pack("<HHI24xI", 2, 190, 1, 0x6000002 | 100 << 8), 209),
        (b"\x7fELF\x02\x01\x01\x33\x07" + bytes(7) + struct.pack("<HHI24xI", 2, 190, 1, 0x500500 | 90), 209),
    ],
)
def test_the_driver_checks_ptx_and_cubins_that_are_loaded_at_run_time(ask: Ask, image: bytes, code: int) -> None:
    module = "module = ctypes.c_void_p()\nanswer = driver.cuModuleLoadData(ctypes.byref(module), data)"
    assert ask(module, data=image) == code


def test_the_driver_refuses_shared_memory_beyond_the_limit(ask: Ask) -> None:
    lines = """
module, function = ctypes.c_void_p(), ctypes.c_void_p()
driver.cuModuleLoadData(ctypes.byref(module), data)
driver.cuModuleGetFunction(ctypes.byref(function), module, b"k")
answer = [driver.cuFuncSetAttribute(function, 8, 101376), driver.cuFuncSetAttribute(function, 8, 101377)]
"""
    assert ask(lines, data=fat_binary("sm_120")) == [0, 1]


def test_the_libraries_are_compiled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path)
    first = pretended_libraries(store)
    compile_again = pytest.fail
    monkeypatch.setattr(pretended, "_compiled", lambda _store: compile_again("compiled twice"))
    assert pretended_libraries(store) == first
    assert b"libcuda.so.1" in first["pretended/libcuda.so.1"].read_bytes()


def test_a_gpu_is_described_for_the_libraries() -> None:
    assert described(find_target("rtx-pro-6000"), None) == (
        "120;101376;102400;65536;188;102641958912;13010;NVIDIA RTX PRO 6000 Blackwell Workstation Edition"
    )
    assert described(find_target("gb10"), "12.9").split(";")[5:7] == ["120000000000", "12090"]


def test_a_tensor_map_is_encoded_on_the_gpu_alone(ask: Callable[..., Any]) -> None:
    lines = "where = ctypes.create_string_buffer(b'x' * 128, 130)\n"
    lines += "answer = [driver.cuTensorMapEncodeTiled(where), where.raw[:128] == bytes(128)]"
    assert ask(lines) == [0, True]
    assert ask(lines, gpu=None)[0] == 100
