"""What a dry run reports, as frozen values, and the table of it."""

from __future__ import annotations

from builder.document import Document

ERRORS = {
    1: "invalid value (cudaErrorInvalidValue, 1)",
    9: "invalid configuration (cudaErrorInvalidConfiguration, 9)",
    98: "no such kernel (cudaErrorInvalidDeviceFunction, 98)",
    209: "no kernel image is available for this GPU (cudaErrorNoKernelImageForDevice, 209)",
}


class TritonLaunch(Document):
    """A Triton kernel: what it asks for (`shared` in bytes a block, `spilled` in bytes a thread) and who calls it.

    `tuned`: Triton's autotuner tried it and drops it where it is refused.
    """

    kernel: str
    call_site: str
    shared: int
    warps: int
    stages: int
    constants: dict[str, int | bool]
    registers: int
    spilled: int
    refused: str | None
    tuned: bool


class RuntimeEvent(Document):
    """Launches of a compiled kernel that ended alike; `shared` is the most dynamic shared memory, in bytes."""

    event: str
    kernel: str
    archs: str
    via: str
    threads: int
    shared: int
    error: int
    count: int


class DrivenCall(Document):
    """One call of the stack's host code, and all that it launched; `error` is the exception that ended it.

    `refuses`: such an exception is the stack's own refusal of the target. `reaches`: the call works on values that no
    kernel has made, and where it ends is only said. `said` are lines about what it found and what of it is not seen.
    """

    call: str
    decides: bool
    seconds: float
    error: str | None
    refuses: bool = False
    reaches: bool = False
    said: tuple[str, ...] = ()
    launches: tuple[TritonLaunch, ...]
    runtime: tuple[RuntimeEvent, ...]


class DrivenGroup(Document):
    """The calls of one process; `ended` says how it ended, if not well; `canary` what was wrong with the pretence."""

    name: str
    seconds: float
    ended: str | None
    tail: tuple[str, ...]
    canary: dict[str, str] | None
    calls: tuple[DrivenCall, ...]


class Row(Document):
    """A line of the table: shared memory in bytes that was asked for and is allowed, and the verdict on it."""

    used: int
    allowed: int
    refused: str | None
    decides: bool
    kernel: str
    call: str
    place: str

    @property
    def line(self) -> str:
        """The row as text."""
        verdict = "fits" if self.refused is None else "REFUSED" if self.decides else "refused, not reached by the model"
        return f"{self.used:>7} of {self.allowed:>7}  {verdict}  {self.kernel}, {self.call}{self.place}"

    @property
    def order(self) -> tuple[bool, bool, int, str, str]:
        """What sorts the worst first."""
        return self.refused is None or not self.decides, self.refused is None, -self.used, self.kernel, self.call


def groups_from(plain: dict[str, object]) -> tuple[DrivenGroup, ...]:
    """Return the groups that the probe reported."""
    groups: list[dict[str, object]] = plain["groups"]  # type: ignore[assignment]
    return tuple(_group(group) for group in groups)


def _group(plain: dict[str, object]) -> DrivenGroup:
    lines: list[dict[str, object]] = plain["lines"]  # type: ignore[assignment]
    canary = next((line["canary"] for line in lines if "canary" in line), None)
    calls = [line for line in lines if "call" in line]
    known = {name: value for name, value in plain.items() if name != "lines"}
    return DrivenGroup.model_validate({**known, "canary": canary, "calls": calls}, strict=False)


def table_of(groups: tuple[DrivenGroup, ...], allowed: int) -> tuple[Row, ...]:
    """Return all kernels of a dry run, the worst first. `allowed` is what one block may have, in bytes."""
    rows = [row for group in groups for call in group.calls for row in (*_triton(call, allowed), *_cuda(call, allowed))]
    return tuple(sorted(rows, key=lambda row: row.order))


def _triton(call: DrivenCall, allowed: int) -> list[Row]:
    return [
        Row(
            used=launch.shared,
            allowed=allowed,
            refused=launch.refused,
            decides=call.decides,
            kernel=launch.kernel,
            call=call.call,
            place=f" ({launch.call_site}; {_details(launch)})",
        )
        for launch in call.launches
        if not (launch.tuned and launch.refused)
    ]


def _details(launch: TritonLaunch) -> str:
    blocks = [f"{name}={value}" for name, value in launch.constants.items() if name.startswith("BLOCK")]
    spilled = f", {launch.spilled} bytes spilled" if launch.spilled else ""
    registers = f"{launch.registers} registers{spilled}, " if launch.registers else ""
    return f"{', '.join(blocks)}{'; ' if blocks else ''}{registers}{launch.warps} warps, {launch.stages} stages"


def _cuda(call: DrivenCall, allowed: int) -> list[Row]:
    return [
        Row(
            used=event.shared,
            allowed=allowed,
            refused=ERRORS.get(event.error, f"error {event.error}") if event.error else None,
            decides=call.decides,
            kernel=event.kernel,
            call=call.call,
            place=f" ({event.via} of {event.archs})" if event.error else "",
        )
        for event in call.runtime
    ]
