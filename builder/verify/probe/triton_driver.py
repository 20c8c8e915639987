"""A Triton driver whose GPU is a pretended one: kernels are compiled and checked as for a launch, and not launched.

Needs Triton (3.6 was tried). Triton's own code compares what a kernel asks for with what this driver says of the GPU,
so the refusal and its words are the real ones.
"""

# ruff: noqa: PLC0415 - Triton belongs to the stack under test
from __future__ import annotations

import contextlib
import functools
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.verify.probe.cubin import WARP, most_threads, resources

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

SHOWN = ("BLOCK", "Lq", "Lv", "Lk", "GROUP", "num_stages")


@dataclass(frozen=True, kw_only=True)
class PretendedGpu:
    """The limits of the GPU: compute capability such as (12, 0), shared memory per block in bytes, registers per SM."""

    capability: tuple[int, int]
    shared_memory: int
    registers: int
    sms: int


@dataclass(kw_only=True)
class Launch:
    """One compiled kernel: who calls it, what it asks for, and why it was refused. `spilled` is in bytes a thread."""

    kernel: str
    call_site: str
    shared: int
    warps: int
    stages: int
    constants: dict[str, Any]
    registers: int = 0
    spilled: int = 0
    refused: str | None = None
    tuned: bool = False


@dataclass
class Recorder:
    """What was compiled, in order; `tuning` is set while Triton's autotuner tries configurations.

    `touched` are the kernels that were to be launched since somebody last looked, each once: Triton compiles a kernel
    once and launches it from many places.
    """

    gpu: PretendedGpu
    launches: list[Launch] = field(default_factory=list)
    touched: list[Launch] = field(default_factory=list)
    tuning: bool = False

    def touch(self, launch: Launch) -> None:
        """Note a launch, made or refused."""
        if not any(launch is known for known in self.touched):
            self.touched.append(launch)

    def take_touched(self) -> list[Launch]:
        """Return the kernels that were launched since the last look."""
        taken, self.touched = self.touched, []
        return taken


class Launcher:
    """Made once for each compiled kernel, before Triton compares what it needs with the GPU's limits."""

    def __init__(self, recorder: Recorder, source: Any, metadata: Any) -> None:
        self.recorder = recorder
        self.launch = Launch(
            kernel=metadata.name,
            call_site=call_site(),
            shared=metadata.shared,
            warps=metadata.num_warps,
            stages=getattr(metadata, "num_stages", 1),
            constants=shown_constants(source),
            tuned=recorder.tuning,
        )
        recorder.launches.append(self.launch)

    def __call__(self, *_: Any, **__: Any) -> None:
        """Launch nothing."""
        self.recorder.touch(self.launch)


class Utilities:
    """What Triton asks of a GPU and of a loaded kernel."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder

    def get_device_properties(self, _: int) -> dict[str, int]:
        """Return the GPU's limits, and clocks that only estimates of time read."""
        return {
            "max_shared_mem": self.recorder.gpu.shared_memory,
            "max_num_regs": self.recorder.gpu.registers,
            "multiprocessor_count": self.recorder.gpu.sms,
            "warpSize": WARP,
            "sm_clock_rate": 2_000_000,
            "mem_clock_rate": 10_000_000,
            "mem_bus_width": 512,
        }

    def load_binary(self, name: str, cubin: bytes, *_: Any) -> tuple[object, object, int, int, int]:
        """Return module, function, registers, spilled bytes and the most threads of a kernel."""
        registers, frame = resources(cubin, name)
        launch = self.recorder.launches[-1]
        launch.registers, launch.spilled = registers, frame
        return object(), object(), registers, frame, most_threads(registers, self.recorder.gpu.registers)

    def unload_module(self, *_: Any) -> None:
        """Do nothing."""

    def cuOccupancyMaxActiveClusters(self, *_: Any) -> int:  # noqa: N802 - Triton's name
        """Return one."""
        return 1

    def fill_tma_descriptor(self, *_: Any) -> object:
        """Return something."""
        return object()

    set_printf_fifo_size = unload_module
    fill_tma_descriptor_tiled = fill_tma_descriptor_im2col = fill_tma_descriptor


def pretended_driver(recorder: Recorder) -> Any:
    """Return the driver. Of NVIDIA's one, nothing runs that would look for a GPU."""
    from triton.backends.compiler import GPUTarget
    from triton.backends.nvidia.driver import CudaDriver

    capability = recorder.gpu.capability

    class PretendedDriver(CudaDriver):  # type: ignore[misc]
        """NVIDIA's driver without its constructor, which would look for a GPU."""

        def __init__(self) -> None:
            self.utils = Utilities(recorder)
            self.launcher_cls = functools.partial(Launcher, recorder)
            self.get_device_capability = lambda *_: capability
            self.get_current_stream = lambda *_: 0
            self.get_current_device = lambda: 0
            self.set_current_device = lambda *_: None

        def get_current_target(self) -> Any:
            return GPUTarget("cuda", capability[0] * 10 + capability[1], WARP)

        def get_benchmarker(self) -> Any:
            return run_once

        def get_empty_cache_for_benchmark(self) -> None:
            """Nothing is cached."""

        def clear_cache(self, *_: Any) -> None:
            """Nothing is cached."""

    return PretendedDriver()


def run_once(call: Callable[[], object], *_: Any, quantiles: Any = None, **__: Any) -> Any:
    """Stand in for a benchmark: every configuration takes as long as every other."""
    call()
    return [1.0] * len(quantiles) if quantiles else 1.0


@contextlib.contextmanager
def pretending(gpu: PretendedGpu) -> Iterator[Recorder]:
    """Let Triton compile for a pretended GPU. A refused kernel is noted, and its caller goes on as if it had run.

    Only inside the autotuner the refusal is raised, so that it drops the configuration as on a real GPU.
    """
    from triton.compiler.compiler import CompiledKernel
    from triton.runtime import driver
    from triton.runtime.autotuner import Autotuner
    from triton.runtime.errors import OutOfResources

    recorder = Recorder(gpu)
    load, bench = CompiledKernel._init_handles, Autotuner._bench  # noqa: SLF001

    def load_or_note(kernel: Any) -> None:
        try:
            load(kernel)
        except OutOfResources as error:
            launch = recorder.launches[-1]
            launch.refused = str(error)
            if recorder.tuning:
                raise
            kernel.module, kernel.function = object(), object()
            kernel._run = lambda *_, **__: recorder.touch(launch)  # noqa: SLF001

    def bench_noting(tuner: Any, *arguments: Any, **options: Any) -> Any:
        recorder.tuning = True
        try:
            return bench(tuner, *arguments, **options)
        finally:
            recorder.tuning = False

    CompiledKernel._init_handles, Autotuner._bench = load_or_note, bench_noting  # noqa: SLF001
    before = driver._active  # noqa: SLF001
    driver.set_active(pretended_driver(recorder))
    try:
        yield recorder
    finally:
        CompiledKernel._init_handles, Autotuner._bench = load, bench  # noqa: SLF001
        driver._active = before  # noqa: SLF001


def call_site() -> str:
    """Return the innermost caller outside Triton and this module: `package/file.py:line function`."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001
    while frame is not None and is_machinery(frame.f_code.co_filename):
        frame = frame.f_back
    if frame is None:
        return "unknown"
    return f"{below_search_path(frame.f_code.co_filename)}:{frame.f_lineno} {frame.f_code.co_name}"


def is_machinery(file: str) -> bool:
    """Say whether a file is Triton's or this one."""
    triton = getattr(sys.modules.get("triton"), "__file__", None)
    return (
        file in {__file__, ""}
        or file.startswith("<")
        or (triton is not None and Path(triton).parent in Path(file).parents)
    )


def below_search_path(file: str) -> str:
    """Return a file's path below the folder that Python imports it from."""
    folders = [folder for folder in sys.path if folder and file.startswith(folder.rstrip("/") + "/")]
    return file.removeprefix(max(folders, key=len, default="").rstrip("/") + "/") if folders else Path(file).name


def shown_constants(source: Any) -> dict[str, Any]:
    """Return the constants of a kernel that say how large its blocks are."""
    constants = getattr(source, "constants", {})
    names = getattr(getattr(source, "fn", None), "arg_names", [])
    named = {names[key[0]]: value for key, value in constants.items() if isinstance(key, tuple) and len(key) == 1}
    return {name: value for name, value in named.items() if name.startswith(SHOWN) and isinstance(value, int)}
