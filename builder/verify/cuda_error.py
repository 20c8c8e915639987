"""A CUDA error in a log: which kernel it was, and which line of Python launched it.

The GPU reports errors late: with asynchronous launches Python stands wherever it next waits, and its frame is innocent.
So a run that ends with such an error is run once more with CUDA_LAUNCH_BLOCKING=1, where the frame is the launch's own.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from builder.store import Store
    from builder.verify.inside import ProbeAnswer
    from builder.verify.verdict import Check

BLOCKED = "--- the same again, with CUDA_LAUNCH_BLOCKING=1 ---"
BLOCKING = {"CUDA_LAUNCH_BLOCKING": "1"}
LATE_KINDS = (
    "device-side assert",
    "illegal memory access",
    "illegal instruction",
    "misaligned address",
    "unspecified launch failure",
    "invalid argument",
    "no kernel image",
)
_KIND = re.compile(rf"(?i)(?:CUDA|cuda|CUBLAS|Triton)[^\n]{{0,80}}?(?P<kind>{'|'.join(LATE_KINDS)})")
_ASSERTION = re.compile(
    r"(?P<file>[^\s:]+):(?P<line>\d+): (?P<kernel>.+?): "
    r"block: \[[^]]*\], thread: \[[^]]*\] Assertion `(?P<what>.*?)` failed"
)
_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>\S+)')


@dataclass(frozen=True, kw_only=True, slots=True)
class CudaError:
    """What a log says of a CUDA error: its kind, the failed assertion with its kernel, the last frame of Python."""

    kind: str
    assertion: str | None
    frame: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Attempts:
    """A probe's answer, and, after a CUDA error, that of the second run whose launches were waited for."""

    first: ProbeAnswer
    blocked: ProbeAnswer | None = None

    def keep(self, check: Check, store: Store) -> Check:
        """Return a check that failed with the logs of both runs, kept in the store; any other as it is."""
        if check.outcome != "failed":
            return check
        text = log_of(self.first)
        if self.blocked is not None:
            text += f"{BLOCKED}\n{log_of(self.blocked)}"
        return check.model_copy(update={"log": store.add_bytes(text.encode())})

    def describe(self) -> str | None:
        """Return in a few words where the CUDA error came from, or None if there was none."""
        early = find_cuda_error(log_of(self.first).splitlines())
        if early is None or self.blocked is None:
            return None
        late = find_cuda_error(log_of(self.blocked).splitlines())
        if late is None:
            return (
                f"{early.kind}, not seen again with CUDA_LAUNCH_BLOCKING=1{_at(early)}: a race, or another run's memory"
            )
        return f"{late.kind}{_at(late)}, launched from {late.frame or 'no Python frame'}{_innocent(early, late)}"


def attempt_twice(attempt: Callable[[dict[str, str]], ProbeAnswer]) -> Attempts:
    """Run a probe, and once more with blocking launches if it ended with a CUDA error."""
    first = attempt({})
    if find_cuda_error(log_of(first).splitlines()) is None:
        return Attempts(first=first)
    return Attempts(first=first, blocked=attempt(BLOCKING))


def find_cuda_error(lines: Iterable[str]) -> CudaError | None:
    """Return the first CUDA error of a log, or None."""
    kind = assertion = frame = last = None
    for line in lines:
        if found := _ASSERTION.search(line):
            assertion = assertion or "{kernel} ({file}:{line}: {what})".format(**_short(found))
        elif found := _FRAME.search(line):
            last = "{file}:{line} in {function}".format(**_short(found))
        elif (found := _KIND.search(line)) and kind is None:
            kind, frame = found["kind"].lower(), last
    return CudaError(kind=kind, assertion=assertion, frame=frame) if kind else None


def log_of(answer: ProbeAnswer) -> str:
    """Return all that a probe's run has left to read: its log, and its server's if it started one."""
    served = (answer.report or {}).get("log") or []
    return "\n".join([answer.exit.stderr.decode(errors="replace").rstrip(), *served]) + "\n"


def _at(error: CudaError) -> str:
    return f" in the kernel {error.assertion}" if error.assertion else ""


def _innocent(early: CudaError, late: CudaError) -> str:
    if early.frame is None or early.frame == late.frame:
        return ""
    return f" (with asynchronous launches Python stood innocently at {early.frame})"


def _short(match: re.Match[str]) -> dict[str, str]:
    """Return the groups with the path shortened to what names the file in its package."""
    groups = {name: value or "" for name, value in match.groupdict().items()}
    parts = groups["file"].replace("\\", "/").split("/")
    marker = next((at for at, part in enumerate(parts) if part in {"site-packages", "dist-packages"}), None)
    return groups | {"file": "/".join(parts[marker + 1 :] if marker is not None else parts[-2:])}
