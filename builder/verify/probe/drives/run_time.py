"""Kernels that are compiled at their first call: what a dry run does not see of them is said by name.

What nvcc would compile is asked for and not compiled. What CuTe DSL compiles is compiled for the target, and not
launched: its launcher carries a CUDA runtime of its own, which the pretended GPU cannot answer.
"""

from __future__ import annotations

import contextlib
import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

BY_NVCC, BY_CUTE = "compiled by nvcc at the first call", "compiled by CuTe DSL for the target, its launch not seen"
CUTE_EXECUTORS = ("base_dsl.jit_executor", "cutlass_dsl.cuda_jit_executor", "cutlass_dsl.tvm_ffi_provider")
NOT_SEEN: list[tuple[str, str]] = []


class Module:
    """A module of kernels of which none does anything, or what a function of it makes; as a number it is one."""

    def __index__(self) -> int:
        return 1

    def __getattr__(self, _: str) -> Callable[..., Module]:
        return lambda *_, **__: Module()


def leave_out_nvcc() -> None:
    """Let SGLang's and FlashInfer's loaders note what they would compile and give modules that do nothing.

    Before the modules that use SGLang's are imported: they take `load_jit` by name. Releases before 0.5.8 have none.
    """
    with contextlib.suppress(ModuleNotFoundError):
        utilities: Any = importlib.import_module("sglang.jit_kernel.utils")
        utilities.load_jit = lambda *marks, **_: _module(f"sglang {'_'.join(map(str, marks))}")
    with contextlib.suppress(ModuleNotFoundError, AttributeError):
        core: Any = importlib.import_module("flashinfer.jit.core")
        core.JitSpec.build_and_load = lambda spec, *_, **__: _module(f"flashinfer {spec.name}")


def leave_out_cute_launches() -> None:
    """Let what CuTe DSL has compiled note its call and do nothing."""
    for name in CUTE_EXECUTORS:
        with contextlib.suppress(ImportError):
            for made in vars(importlib.import_module(f"cutlass.{name}")).values():
                if isinstance(made, type) and "JitCompiledFunction" in made.__name__ and "__call__" in vars(made):
                    setattr(made, "__call__", lambda kernel, *_, **__: _called(kernel))  # noqa: B010


def take_not_seen() -> list[str]:
    """Return a line for each way of compiling, with the names since the last look."""
    named = {kind: sorted({name for each, name in NOT_SEEN if each == kind}) for kind in (BY_NVCC, BY_CUTE)}
    NOT_SEEN.clear()
    return [f"{kind}: {', '.join(names)}" for kind, names in named.items() if names]


def _module(name: str) -> Module:
    NOT_SEEN.append((BY_NVCC, name))
    return Module()


def _called(kernel: object) -> None:
    name = str(getattr(kernel, "function_name", type(kernel).__name__))
    NOT_SEEN.append((BY_CUTE, name.partition("_object_at_")[0].removeprefix("cutlass___call___")))
