"""The check `static.imports`: the modules of direct packages import, without a GPU and on a pretended one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.verify.static_report import first_of, shortened
from builder.verify.verdict import Check, Outcome

if TYPE_CHECKING:
    from collections.abc import Sequence

    from builder.verify.static_report import SeenImport, StaticReport

# Libraries of the driver: they come with the GPU's machine and are in no image.
DRIVER_LIBRARIES = ("libcuda.so.1", "libnvidia-ml.so.1")


def imports_check(report: StaticReport, product: str, missing: str | None = None) -> Check:
    """Say whether the modules import. `product` names the pretended GPU, `missing` is why there was none.

    A package that imports on the pretended GPU and not without one is no fault, and is said.
    """
    failed = [one for one in report.imports if one.failed is not None]
    on_gpu = {one.distribution for one in report.imports if one.on == "gpu" and one.failed is None and not one.server}
    excused = [one for one in failed if one.on == "cpu" and one.distribution in on_gpu]
    decisive = _once_each([one for one in failed if one not in excused])
    drivers = [one for one in decisive if any(name in (one.error or "") for name in DRIVER_LIBRARIES)]
    outcome: Outcome = "passed" if not decisive else "skipped" if len(drivers) == len(decisive) else "failed"
    # A failure that only a driver could cure must not hide another one.
    sentences = [_sentence(one, product) for one in sorted(decisive, key=lambda one: one in drivers)]
    if outcome == "skipped":
        sentences = [f"{sentence} (the driver's library; only a machine with a GPU has it)" for sentence in sentences]
    packages = {one.distribution: len(one.modules) for one in report.imports if not one.server}
    served = any(one.server for one in report.imports)
    notices = [f"notice: only on a GPU: {_sentence(one, product)}" for one in excused]
    notices += [f"notice: imported without a pretended GPU only: {missing}"] if missing and report.imports else []
    return Check(
        name="static.imports",
        level="static",
        outcome=outcome,
        summary=first_of(sentences)
        or f"all {sum(packages.values())} modules of {len(packages)} direct packages import"
        + (", and the server's own on a pretended GPU" if served else ""),
        figures={"packages": len(packages), "modules": sum(packages.values()), "failed": len(decisive)},
        evidence=shortened(
            [*(line for one in decisive for line in (f"{one.distribution}: {one.error}", *one.tail)), *notices]
        ),
    )


def _once_each(failed: Sequence[SeenImport]) -> list[SeenImport]:
    """Leave out what failed on the pretended GPU just as it did without one."""
    plain = {(one.distribution, one.failed) for one in failed if one.on == "cpu"}
    return [one for one in failed if one.on == "cpu" or (one.distribution, one.failed) not in plain]


def _sentence(one: SeenImport, product: str) -> str:
    return f"import {one.failed}{f' on a pretended {product}' if one.on == 'gpu' else ''}: {one.error}"
