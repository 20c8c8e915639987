"""Launches whose fate is known: one that must be refused and one that must pass, by Triton and by the CUDA runtime."""

# ruff: noqa: PLC0415 - PyTorch and Triton belong to the stack under test
from __future__ import annotations

import ctypes
import struct
from typing import TYPE_CHECKING, Any

import triton
import triton.language as tl

if TYPE_CHECKING:
    from builder.verify.probe.triton_driver import Recorder

NO_IMAGE, REFUSED, FINE = 209, 1, 0
MAX_DYNAMIC_SHARED_MEMORY = 8


@triton.jit  # type: ignore[untyped-decorator]
def staged_product(a, b, c, steps, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, STAGES: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201, N803, PLR0917
    """Multiply [M, K * steps] by [K * steps, N] with STAGES tiles of both in shared memory at once."""
    rows, columns, depth = tl.arange(0, M)[:, None], tl.arange(0, N)[None, :], tl.arange(0, K)
    total = tl.zeros((M, N), dtype=tl.float32)
    for step in tl.range(0, steps, num_stages=STAGES):
        x = tl.load(a + rows * K * steps + step * K + depth[None, :])
        y = tl.load(b + (step * K + depth)[:, None] * N + columns)
        total = tl.dot(x, y, total)
    tl.store(c + rows * N + columns, total)


def look(recorder: Recorder) -> dict[str, str]:
    """Return what is wrong with the pretence, by the name of the canary; empty: it can be trusted."""
    torch = {"torch": torch_is_fooled(recorder), "values": values_are_garbage()}
    answers = {**torch, **runtime_refuses(recorder), **triton_refuses(recorder)}
    return {name: problem for name, problem in answers.items() if problem}


def torch_is_fooled(recorder: Recorder) -> str:
    """Say if PyTorch does not take the GPU for real: libraries would then take their branch for other devices."""
    import torch

    if torch.version.cuda is None:
        return "this torch is a build without CUDA"
    if not torch.cuda.is_available():
        return "torch sees no GPU"
    seen = torch.cuda.get_device_capability()
    if seen != recorder.gpu.capability:
        return f"torch sees a GPU of capability {seen}, {recorder.gpu.capability} is pretended"
    with_add = (torch.ones(8, device="cuda") + 1).shape
    return "" if tuple(with_add) == (8,) else "an addition has the wrong shape"


def values_are_garbage() -> str:
    """Say if small tensors of the GPU do not get their values (`small_values`)."""
    import torch

    from builder.verify.probe.drives.small_values import SmallValues

    with SmallValues():
        ends = torch.tensor([3, 0, 4], device="cuda").cumsum(0)
        ends[1] += 1
    return "" if ends.tolist() == [3, 4, 7] else f"sums of 3, 0 + 1 and 4 are {ends.tolist()}"


def triton_refuses(recorder: Recorder) -> dict[str, str]:
    """Compile one kernel with two stages and one with more than the GPU has shared memory for."""
    import torch

    tile = 2 * 2 * 128 * 64
    most = recorder.gpu.shared_memory // tile + 3
    a = torch.empty(128, 64 * 16, dtype=torch.bfloat16, device="cuda")
    b = torch.empty(64 * 16, 128, dtype=torch.bfloat16, device="cuda")
    c = torch.empty(128, 128, dtype=torch.float32, device="cuda")
    launches = []
    for stages in (2, most):
        staged_product[1,](a, b, c, 16, 128, 128, 64, stages, num_warps=8)
        launches.append(recorder.launches.pop())
    small, large = launches
    return {
        "triton passes": "" if small.refused is None else f"{small.shared} bytes were refused: {small.refused}",
        "triton refuses": "" if large.refused is not None else f"{large.shared} bytes of shared memory were accepted",
    }


def runtime_refuses(recorder: Recorder) -> dict[str, str]:
    """Register made-up kernels with the CUDA runtime in this process: for this GPU, and for none that there is."""
    runtime: Any = ctypes.CDLL(None)
    if not hasattr(runtime, "pretended_attribute"):
        return {"runtime": "the pretended CUDA runtime is not loaded"}
    arch = recorder.gpu.capability[0] * 10 + recorder.gpu.capability[1]
    own, foreign = (register(runtime, number) for number in (arch, 999))
    limit = recorder.gpu.shared_memory
    answers = {
        "runtime passes": (runtime.cudaFuncSetAttribute(own, MAX_DYNAMIC_SHARED_MEMORY, limit), FINE),
        "runtime refuses shared memory": (
            runtime.cudaFuncSetAttribute(own, MAX_DYNAMIC_SHARED_MEMORY, limit + 1),
            REFUSED,
        ),
        "runtime refuses foreign code": (runtime.cudaFuncSetAttribute(foreign, MAX_DYNAMIC_SHARED_MEMORY, 0), NO_IMAGE),
    }
    runtime.cudaGetLastError()
    return {name: "" if seen == due else f"code {seen}, {due} is due" for name, (seen, due) in answers.items()}


def register(runtime: Any, arch: int) -> ctypes.Array[ctypes.c_char]:
    """Register a kernel whose fat binary has machine code for one architecture; return the address that stands for it.

    The layouts are those of docs/explanation/device-code.md; the objects live as long as the process.
    """
    entry = struct.pack("<HxxIQI4xHHI8xQ16x", 2, 64, 0, 0, 0, 0, arch, 0)
    data = ctypes.create_string_buffer(struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(entry)) + entry)
    wrapper = ctypes.create_string_buffer(struct.pack("<iiQQ", 0x466243B1, 1, ctypes.addressof(data), 0))
    host, name = ctypes.create_string_buffer(16), ctypes.create_string_buffer(b"canary")
    register_image = runtime["__cudaRegisterFatBinary"]
    register_image.restype = ctypes.c_void_p
    image = ctypes.c_void_p(register_image(wrapper))
    runtime["__cudaRegisterFunction"](image, host, name, name, -1, None, None, None, None, None)
    KEPT.extend((data, wrapper, host, name))
    return host


KEPT: list[ctypes.Array[ctypes.c_char]] = []
