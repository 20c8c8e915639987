"""The check `dry-run`: the stack's own host code in the image, against a GPU that is only pretended."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from builder.document import key_of, tree_digest
from builder.process import MissingProgramError
from builder.verify.dry_run.pretended import FOLDER, described, pretended_libraries
from builder.verify.dry_run.report import groups_from, table_of
from builder.verify.inside import SOURCE, with_log
from builder.verify.static_report import first_of, shortened
from builder.verify.verdict import Check, Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from builder.recipe.targets import GpuTarget
    from builder.verify.dry_run.plan import Group
    from builder.verify.dry_run.report import DrivenCall, DrivenGroup, Row
    from builder.verify.place import InImage

KIND = "dry-run"
# Two processes at a time; what a garbage size may take before its process is ended.
PROCESSES = 2
UNLIMITED = 1 << 40  # bytes, where the place has no limit
UNKNOWN = (
    "not known from a dry run: values, races, hangs, CUDA graphs, what cuBLAS, cuDNN, NCCL and CuTe DSL launch "
    "themselves, kernels that depend on values or are compiled by nvcc at run time"
)


class _Undriven(NamedTuple):
    """What was not driven to its end: it keeps the check from passing, or a pass says it, or it is only listed."""

    line: str
    blocks: bool
    limits: bool


def dry_run(
    place: InImage,
    *,
    target: GpuTarget,
    groups: Sequence[Group],
    environment: Mapping[str, str],
    driver_cuda: str | None,
    timeout: float,
    on_line: Callable[[str], None] | None = None,
) -> Check:
    """Drive groups of calls inside an image and judge what they launch. `timeout` is in seconds.

    A report of the same image, target, calls and probe is remembered, if nothing in it ended before its time.
    """
    store = place.store
    try:
        players = pretended_libraries(store)
    except MissingProgramError as error:
        return _check("skipped", f"no GPU can be pretended: {error.message}")
    request = {
        "gpu": {
            "capability": [int(part) for part in target.capability.split(".")],
            "shared_memory": target.shared_memory_per_block,
            "registers": target.registers_per_sm,
            "sms": target.sms,
        },
        "described": described(target, driver_cuda),
        "pretended": FOLDER,
        "env": dict(environment),
        "groups": list(groups),
        "seconds": timeout - 10,
        "memory": (place.memory or UNLIMITED) // PROCESSES,
    }
    key = key_of([place.image, request, tree_digest(SOURCE / "verify"), [path.name for path in players.values()]])
    kept = store.result(KIND, key)
    if kept is not None:
        return _judged(kept, target, groups)
    answer = place.probe("dry_run", request, players, timeout=timeout, on_line=on_line)
    if answer.report is None:
        return _check("skipped", f"the dry run gave no report: {answer.ending}", answer.tail)
    if all(group["ended"] is None for group in answer.report["groups"]):
        store.keep_result(KIND, key, answer.report)
    return with_log(_judged(answer.report, target, groups), answer, store)


def _judged(report: dict[str, Any], target: GpuTarget, groups: Sequence[Group]) -> Check:
    return judge_dry_run(groups_from(report), target, {group["name"] for group in groups if group["decides"]})


def judge_dry_run(groups: tuple[DrivenGroup, ...], target: GpuTarget, deciding: set[str]) -> Check:
    """Say what a dry run has shown: nothing if a canary is wrong, a failure if a call that decides was refused."""
    wrong = [f"{group.name}: {name}: {text}" for group in groups for name, text in (group.canary or {}).items()]
    wrong += [f"{group.name}: no canary was seen" for group in groups if group.calls and group.canary is None]
    if wrong:
        return _check("skipped", f"no verdict, the pretence does not hold: {first_of(wrong)}", wrong)
    rows = table_of(groups, target.shared_memory_per_block)
    refused = [row for row in rows if row.decides and row.refused is not None]
    calls = [call for group in groups for call in group.calls]
    by_stack = [f"{call.call} is refused on {_named(target)}: {call.error}" for call in calls if _is_refusal(call)]
    undriven = _undriven(groups, deciding)
    blocking = [each.line for each in undriven if each.blocks]
    outcome: Outcome = "failed" if refused or by_stack else "skipped" if blocking else "passed"
    said = [f"{call.call}: {line}" for call in calls for line in call.said]
    told = [row.line for row in rows if row.refused], [row.line for row in rows if row.used and not row.refused]
    lines = [*by_stack, *told[0], *(each.line for each in undriven), *said, *told[1]]
    driven = sum(1 for call in calls if call.decides and call.error is None)
    taken = f"all {len(rows)} launches of {len(calls)} calls are taken by {_named(target)}"
    return _check(
        outcome,
        first_of([*by_stack, *(_refusal(row, target) for row in refused)])
        or first_of(blocking)
        or "; ".join(
            [taken, f"{driven} of the calls are the model's", *(each.line for each in undriven if each.limits)]
        ),
        (*shortened(lines), UNKNOWN),
        {
            "calls": len(calls),
            "launches": len(rows),
            "refused": len(refused) + len(by_stack),
            "not-judged": sum(1 for row in rows if row.refused and not row.decides),
            "not-driven": len(undriven),
            "most-shared-memory": max((row.used for row in rows if row.refused is None), default=0),
            "allowed-shared-memory": target.shared_memory_per_block,
        },
    )


def _named(target: GpuTarget) -> str:
    return f"{target.id} ({target.capability})"


def _is_refusal(call: DrivenCall) -> bool:
    return call.refuses and call.error is not None


def _refusal(row: Row, target: GpuTarget) -> str:
    if row.used > row.allowed:
        return (
            f"{row.kernel} asks for {row.used} bytes of shared memory, {_named(target)} allows "
            f"{row.allowed}: {row.call}{row.place}"
        )
    return f"{row.kernel} is refused on {_named(target)}, {row.refused}: {row.call}{row.place}"


def _undriven(groups: tuple[DrivenGroup, ...], deciding: set[str]) -> list[_Undriven]:
    found = []
    for group in groups:
        if group.ended is not None:
            why = f"{group.ended}{f': {group.tail[-1]}' if group.tail else ''}"
            line, blocks = f"the calls of {group.name} were not driven to their end, {why}", group.name in deciding
            found.append(_Undriven(line, blocks=blocks, limits=not blocks))
        for call in group.calls:
            refused = (
                _is_refusal(call)
                or any(launch.refused for launch in call.launches)
                or any(event.error for event in call.runtime)
            )
            if call.error is not None and not refused:
                line, blocks = f"{call.call} was not driven to its end: {call.error}", call.decides and not call.reaches
                found.append(_Undriven(line, blocks=blocks, limits=call.decides and call.reaches))
    return found


def _check(
    outcome: Outcome,
    summary: str,
    evidence: Sequence[str] = (),
    figures: dict[str, str | int | float | bool] | None = None,
) -> Check:
    return Check(
        name="dry-run",
        level="dry-run",
        outcome=outcome,
        summary=summary,
        figures=figures or {},
        evidence=tuple(evidence),
    )
