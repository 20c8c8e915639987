"""Log in, diagnosis out: the road of this stage in one place."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.diagnose.conditions import Scene
from builder.diagnose.facts import gather_facts
from builder.diagnose.judgement import causes_of, evidence_of, is_mild, suspects, unknown_cause
from builder.diagnose.knowledge import knowledge_with
from builder.diagnose.model import UNKNOWN, Diagnosis, Failure
from builder.diagnose.observe import observe
from builder.diagnose.reader import log_of, open_log, unheard
from builder.verify.reported import Misleading

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from builder.diagnose.judgement import Suspect
    from builder.diagnose.model import Cause
    from builder.diagnose.observe import Hit
    from builder.diagnose.reader import Log, Readable
    from builder.lock.model import Lock
    from builder.recipe.model import Recipe
    from builder.verify.reported import Evidence, Phase

MOST_MISLEADING = 12
_FRAME = (
    "the GPU reports errors late: Python stands wherever it next waited for the GPU, so this frame says nothing about "
    "the kernel that failed"
)


def diagnose(
    lines: Readable | Iterable[str] | Iterable[bytes],
    *,
    recipe: Recipe | None = None,
    lock: Lock | None = None,
    target: str | None = None,
    findings: Path | None = None,
) -> Diagnosis:
    """Diagnose one log, given as lines or as a binary stream (plain or gzip), read once in bounded memory.

    `recipe` and `lock` tell versions and settings that the log does not; `target` is the GPU's compute capability
    (`12.0`) if it is known better than from the log; `findings` is a folder of the user's own knowledge. Raises
    InvalidDocumentError if a file there is not valid.
    """
    return _diagnose([log_of(lines)], recipe=recipe, lock=lock, target=target, findings=findings)


def diagnose_files(
    paths: Sequence[Path],
    *,
    recipe: Recipe | None = None,
    lock: Lock | None = None,
    target: str | None = None,
    findings: Path | None = None,
    warn: Callable[[str], None] = unheard,
) -> Diagnosis:
    """Diagnose log files together (`-` is standard input); raise UsageError if one cannot be read.

    `warn` hears which of them is cut off.
    """
    return _diagnose(
        [open_log(path, warn) for path in paths], recipe=recipe, lock=lock, target=target, findings=findings
    )


def _diagnose(
    logs: Sequence[Log], *, recipe: Recipe | None, lock: Lock | None, target: str | None, findings: Path | None
) -> Diagnosis:
    knowledge = knowledge_with(findings)
    seen = observe(logs, knowledge)
    known = gather_facts(seen, knowledge, recipe=recipe, lock=lock, capability=target)
    scene = Scene(seen=seen, known=known, knowledge=knowledge)
    several = len(logs) > 1
    found = suspects(scene)
    deceptive = tuple(_deceptive(scene, {suspect.finding.kind for suspect in found} or {UNKNOWN}))
    misleading = frozenset(hit.order for hit, _, always in deceptive if not always)
    causes = tuple(causes_of(found, recipe, misleading=misleading, several=several))
    if not causes:
        unknown = unknown_cause(scene, several=several)
        causes = (unknown,) if unknown is not None else ()
    first = _first(scene, found, misleading) if causes else None
    return Diagnosis(
        phase=_phase(scene, found, first),
        causes=causes,
        misleading=tuple(_misleading(deceptive, causes)),
        first=None if first is None else _failure(first),
        consequences=tuple(_consequences(scene, first, several=several)),
        facts=known.facts,
        lines=seen.lines,
    )


def _phase(scene: Scene, found: list[Suspect], first: Hit | None) -> Phase:
    if found:
        return found[0].phase
    return scene.seen.phase if first is None else first.phase


def _first(scene: Scene, found: list[Suspect], misleading: frozenset[int]) -> Hit | None:
    """Return the first failure in time: by the clock of the log where lines have one, else by their order."""
    hits = [hit for hit in scene.seen.salient if not is_mild(hit, scene)]
    hits += [hit for suspect in found[:1] for hit in suspect.failure]
    hits = [hit for hit in hits if hit.order not in misleading] or hits
    hits.sort(key=lambda hit: hit.order)
    timed = [hit for hit in hits if hit.line.time is not None]
    if hits and hits[0].line.time is not None:
        return min(timed, key=lambda hit: (hit.line.time or "", hit.order))
    return hits[0] if hits else None


def _failure(hit: Hit) -> Failure:
    return Failure(line=hit.line.number, text=hit.line.shown, rank=hit.line.rank, time=hit.line.time)


def _consequences(scene: Scene, first: Hit | None, *, several: bool) -> Iterator[Evidence]:
    """Yield the lines that only follow from the first failure."""
    if first is None:
        return
    patterns = [line for file in scene.knowledge.files for line in scene.knowledge.expand(file.consequences)]
    for hit in scene.seen.hits(patterns)[:MOST_MISLEADING]:
        if hit.order > first.order:
            yield evidence_of(hit, several=several)


def _deceptive(scene: Scene, kinds: set[str]) -> Iterator[tuple[Hit, str, bool]]:
    """Yield lines that look guilty of such failures, why they are not, and whether they are evidence all the same."""
    for file in scene.knowledge.files:
        for deceptive in file.misleading:
            if not deceptive.with_ or kinds.intersection(deceptive.with_):
                for hit in scene.seen.hits(scene.knowledge.expand(deceptive.lines))[:1]:
                    yield hit, deceptive.why, deceptive.always
    for late in scene.seen.frames[:2]:
        yield late.frame, _FRAME, False


def _misleading(deceptive: tuple[tuple[Hit, str, bool], ...], causes: tuple[Cause, ...]) -> Iterator[Misleading]:
    """Yield the misleading lines by line number, each once; none where nothing failed."""
    accusing = {evidence.line for cause in causes[:1] for evidence in cause.evidence}
    shown: set[int] = set()
    for hit, why, always in sorted(deceptive, key=lambda entry: entry[0].order) if causes else ():
        number = hit.line.number
        if hit.order not in shown and (always or number not in accusing) and len(shown) < MOST_MISLEADING:
            shown.add(hit.order)
            yield Misleading(line=number, text=hit.line.shown, why=why)
