"""The check `static.device-code`: which libraries of an image carry code that the target GPU runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name

from builder.fatbin import needed_code, sorted_labels
from builder.verify.static_report import first_of, shortened
from builder.verify.verdict import Check

if TYPE_CHECKING:
    from collections.abc import Sequence

    from builder.verify.static_report import SeenLibrary, StaticReport

TORCH_KERNELS = "libtorch_cuda.so"


def device_code_check(report: StaticReport, *, capability: str, target_name: str, built: Sequence[str]) -> Check:
    """Hold the device code of all libraries against the target's loading rules.

    A distribution that the recipe compiled fails if none of its libraries runs, and torch if its kernels do not. Other
    libraries without code for the target are figures and evidence: whether they are reached, only a run shows.
    """
    need = f"the target {target_name} ({capability}) needs {needed_code(capability)}"
    carriers = (*report.libraries, *report.bare)
    idle = [library for library in carriers if library.usable is None]
    required = _required(report, built)
    problems = [f"{_carries(library)}; {need}" for library in idle if library.path in required]
    problems += _torch_without_kernels(report)
    usable = [library for library in carriers if library.usable is not None]
    jit = [library for library in usable if library.usable == "ptx"]
    trapping = [_trapping(library) for library in usable if library.trapping]
    warned = [library for library in idle if library.path not in required]
    return Check(
        name="static.device-code",
        level="static",
        outcome="failed" if problems else "passed",
        summary=first_of(problems)
        or f"{len(usable)} of {len(carriers)} libraries with device code run on {target_name} ({capability})",
        figures={
            "libraries": len(carriers),
            "machine-code": len(usable) - len(jit),
            "ptx-only": len(jit),
            "without": len(idle),
            "trapping": sum(library.trapping for library in usable),
        },
        evidence=shortened([*problems, *map(_warning, [*warned, *jit]), *trapping, *_listed(report, built)]),
    )


def _required(report: StaticReport, built: Sequence[str]) -> set[str]:
    """Return the libraries that must run: torch's kernels, and those of compiled distributions of which none does."""
    names = {canonicalize_name(name) for name in built}
    running = {library.distribution for library in report.libraries if library.usable is not None}
    return {
        library.path
        for library in report.libraries
        if library.distribution in names - running or _is_torch_kernels(library)
    }


def _is_torch_kernels(library: SeenLibrary) -> bool:
    return library.distribution == "torch" and library.path.endswith(f"/{TORCH_KERNELS}")


def _torch_without_kernels(report: StaticReport) -> list[str]:
    if not any(one.name == "torch" for one in report.distributions) or any(map(_is_torch_kernels, report.libraries)):
        return []
    return [f"torch is a build without CUDA: it has no {TORCH_KERNELS}"]


def _carries(library: SeenLibrary) -> str:
    if library.error is not None:
        return f"{library.path} cannot be read ({library.error})"
    labels = sorted_labels(library.codes)
    return f"{library.path} carries {', '.join(labels)} only" if labels else f"{library.path} carries no device code"


def _warning(library: SeenLibrary) -> str:
    return f"warning: {_carries(library)}" + (": its PTX is compiled at first use" if library.usable else "")


def _trapping(library: SeenLibrary) -> str:
    return (
        f"warning: {library.path}: {library.trapping} of its {library.kernels} kernels for the target only trap, "
        f"as main loops of another architecture do, such as {library.trapping_first}"
    )


def _listed(report: StaticReport, built: Sequence[str]) -> list[str]:
    names = {canonicalize_name(name) for name in built}
    own = [library for library in report.libraries if library.distribution in names or _is_torch_kernels(library)]
    return [
        f"{library.path}: " + ", ".join(f"{library.codes[label]} {label}" for label in sorted_labels(library.codes))
        for library in own
    ]
