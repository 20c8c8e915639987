"""From what was seen to ranked causes: each finding weighed, the first failure told from its consequences."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.diagnose.conditions import Held, holds
from builder.diagnose.model import UNKNOWN, Cause
from builder.diagnose.schema import SURE
from builder.verify.reported import PHASE_NAMES, Edit, Evidence

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from builder.diagnose.conditions import Scene
    from builder.diagnose.observe import Hit
    from builder.diagnose.schema import Finding
    from builder.recipe.model import Recipe
    from builder.verify.reported import Phase

MOST = 0.97
NOT_FIRST = 0.7
LEAST = 0.25
NEARLY = 0.1
NOT_KNOWN = 0.3
EVIDENCE_SHOWN = 8
_BUILDING: frozenset[Phase] = frozenset({"resolve", "wheel build", "image build", "container start"})
_UNKNOWN_REMEDY = (
    "nothing that is known fits; rerun with CUDA_LAUNCH_BLOCKING=1 and without CUDA graphs and speculation, "
    "and look at the first line above"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Suspect:
    """A finding that fits: how likely, its failure (first condition), all its lines, what speaks for it in words."""

    finding: Finding
    confidence: float
    failure: tuple[Hit, ...]
    hits: tuple[Hit, ...]
    shown: tuple[Hit, ...]
    because: tuple[str, ...]

    @property
    def begins(self) -> int:
        """Where in the log its failure stands."""
        return self.failure[0].order

    @property
    def phase(self) -> Phase:
        """The phase that the log had reached at its failure, and at least the one that the finding names."""
        reached = self.failure[0].phase
        own = self.finding.phase
        if own in _BUILDING and reached in _BUILDING:
            return own
        return max(reached, own, key=PHASE_NAMES.index)


def suspects(scene: Scene) -> list[Suspect]:
    """Return every finding that fits the log, without general ones and mere tails.

    Of those that are nearly as likely as the likeliest the first failure in the log leads; then by confidence.
    """
    found = [suspect for finding in scene.knowledge.findings if (suspect := _weigh(finding, scene)) is not None]
    found = _without_tails(found, scene)
    found = _without_generals(found)
    nearly = max((suspect.confidence for suspect in found), default=0.0) - NEARLY
    found.sort(key=lambda suspect: _rank(suspect, nearly))
    return found


def _rank(suspect: Suspect, nearly: float) -> tuple[bool, int, float, str]:
    leading = suspect.confidence >= nearly
    return not leading, suspect.begins if leading else 0, -suspect.confidence, suspect.finding.name


def _weigh(finding: Finding, scene: Scene) -> Suspect | None:
    def counts(hit: Hit) -> bool:
        return _counts(finding, hit, scene)

    required = [holds(condition, scene, counts=counts) for condition in finding.all]
    if any(part is None for part in required):
        return None
    if any(holds(condition, scene, counts=_always) is not None for condition in finding.unless):
        return None
    held = [part for part in required if part is not None]
    confidence, helped, because = _support(finding, scene)
    limit = MOST if finding.direct else SURE - 0.01
    confidence = max(0.0, min(confidence, limit))
    shown = tuple(
        hit for condition, part in zip(finding.all, held, strict=True) if condition.lines for hit in part.hits
    )
    if confidence < LEAST:
        return None
    every = [hit for part in (*held, *helped) for hit in part.hits]
    facts = tuple(text for part in (*held, *helped) for text in part.facts)
    return Suspect(
        finding=finding,
        confidence=round(confidence, 2),
        failure=held[0].hits,
        hits=_in_order(every),
        shown=shown,
        because=facts + because,
    )


def _support(finding: Finding, scene: Scene) -> tuple[float, list[Held], tuple[str, ...]]:
    confidence = finding.confidence
    helped, because = [], []
    for support in finding.support:
        held = holds(support, scene, counts=_always)
        if held is not None:
            confidence += support.adds
            helped.append(held)
            because += [support.because] if support.because else []
    return confidence, helped, tuple(because)


def _always(_: Hit) -> bool:
    return True


def _counts(finding: Finding, hit: Hit, scene: Scene) -> bool:
    """Whether a line may accuse: not a mere warning, not one that the server or its owner outlived."""
    if not finding.warned and is_mild(hit, scene):
        return False
    if finding.survives:
        return True
    return not _outlived(hit, scene)


def is_mild(hit: Hit, scene: Scene) -> bool:
    """Whether the line itself says that it is no failure."""
    if hit.line.mild:
        return True
    return any(text in hit.line.folded for file in scene.knowledge.files for text in file.benign)


def _outlived(hit: Hit, scene: Scene) -> bool:
    """Whether the server came to serve after this line, in this life or a later one, or was stopped before it."""
    seen = scene.seen
    if seen.first_stopped is not None and hit.order > seen.first_stopped and hit.life == seen.stopped_life:
        return True
    return not hit.serving and any(life >= hit.life for life in seen.ready_lives)


def _without_tails(found: list[Suspect], scene: Scene) -> list[Suspect]:
    """Leave out findings whose lines are only the end of a failure, explained by something else or not at all."""
    solid = [suspect for suspect in found if not suspect.finding.tail]
    if solid or not found:
        return solid
    own = {hit.order for suspect in found for hit in suspect.shown}
    earlier = [hit.order for hit in scene.seen.salient if hit.order not in own and _alarms(hit, scene)]
    return [suspect for suspect in found if not earlier or suspect.begins < min(earlier)]


def _without_generals(found: list[Suspect]) -> list[Suspect]:
    """Leave out a general finding where a special one of about the same weight says more."""
    replaced = {
        suspect.finding.refines
        for suspect in found
        for general in found
        if general.finding.name == suspect.finding.refines and suspect.confidence >= general.confidence - NEARLY
    }
    return [suspect for suspect in found if suspect.finding.name not in replaced]


def _in_order(hits: Iterable[Hit]) -> tuple[Hit, ...]:
    by_line = {(hit.order, hit.line.shown): hit for hit in hits}
    return tuple(sorted(by_line.values(), key=lambda hit: hit.order))


def causes_of(
    found: list[Suspect], recipe: Recipe | None, *, misleading: frozenset[int], several: bool
) -> Iterator[Cause]:
    """Yield the causes; a class other than the first one's is never sure, and misleading lines are no evidence."""
    for suspect in found:
        confidence = suspect.confidence
        if suspect.finding.kind != found[0].finding.kind:
            confidence = min(confidence, NOT_FIRST)
        finding = suspect.finding
        edits = tuple(_edits(suspect, found))
        fitting = tuple(edit for edit in edits if _changes(edit, recipe))
        yield Cause(
            kind=finding.kind,
            confidence=confidence,
            evidence=tuple(evidence_of(hit, several=several) for hit in _shown(suspect, misleading)),
            remedy=finding.remedy,
            edits=fitting,
            finding=finding.name,
            cause=finding.cause,
            because=suspect.because if fitting else (*suspect.because, *_in_vain(edits)),
            sources=finding.sources,
        )


def _shown(suspect: Suspect, misleading: frozenset[int]) -> tuple[Hit, ...]:
    """Return the evidence to show: without misleading lines, and never without the finding's own."""
    own = {hit.order for hit in suspect.shown}
    kept = [hit for hit in suspect.hits if hit.order not in misleading]
    first = [hit for hit in kept if hit.order in own] or list(suspect.shown)
    other = [hit for hit in kept if hit.order not in own]
    return _in_order([*first[:EVIDENCE_SHOWN], *other[: max(0, EVIDENCE_SHOWN - len(first))]])


def _edits(suspect: Suspect, found: list[Suspect]) -> Iterator[Edit]:
    """Yield a finding's own edits, and after them those of the findings that refine it; each place once."""
    special = [other for other in found if other.finding.refines == suspect.finding.name]
    places: set[str] = set()
    for finding in (suspect.finding, *(other.finding for other in special)):
        for edit in finding.edits:
            if edit.path not in places:
                places.add(edit.path)
                yield edit


def _in_vain(edits: Iterable[Edit]) -> Iterator[str]:
    """Say that a recipe has all these settings already, and that the log shows a server without them."""
    names = [edit.path.rpartition(".")[2] for edit in edits if edit.path.startswith("serve.")]
    if names:
        yield f"the recipe sets {', '.join(names)} already: this log is of a server that was started otherwise"


def _changes(edit: Edit, recipe: Recipe | None) -> bool:
    """Whether an edit fits the recipe: not there already, and no version for what is pinned by commit."""
    if recipe is None:
        return True
    part, _, rest = edit.path.partition(".")
    if part == "stack":
        return _changes_stack(rest, edit, recipe)
    if part == "serve" and recipe.serve is not None:
        group, _, name = rest.partition(".")
        held = recipe.serve.options if group == "args" else recipe.serve.env
        return _spelled(held.get(name)) != _spelled(edit.value)
    if part == "base":
        return recipe.base.debian not in (None, edit.value)
    return part != "cuda" or recipe.cuda != edit.value


def _spelled(value: object) -> str:
    """Return a setting's value in one spelling; servers know types by two names."""
    said = str(value).lower()
    return {"bf16": "bfloat16", "fp16": "float16"}.get(said, said)


def _changes_stack(place: str, edit: Edit, recipe: Recipe) -> bool:
    name, _, build = place.partition(".build.")
    if build:
        return name in recipe.stack
    package = recipe.stack.get(place.removesuffix(".version"))
    return package is None or (package.version is not None and package.version != edit.value)


def unknown_cause(scene: Scene, *, several: bool) -> Cause | None:
    """Return a cause of class `unknown` with the salient lines if something failed that nothing explains."""
    salient = [hit for hit in scene.seen.salient if _alarms(hit, scene)]
    if not salient:
        return None
    late = [hit for hit in scene.seen.late if _alarms(hit, scene)]
    shown = _in_order((*salient[: EVIDENCE_SHOWN - 2], *late[-2:]))
    return Cause(
        kind=UNKNOWN,
        confidence=NOT_KNOWN,
        evidence=tuple(evidence_of(hit, several=several) for hit in shown),
        remedy=_UNKNOWN_REMEDY,
        finding=UNKNOWN,
        cause="something failed, and nothing that is known fits its lines",
    )


def _alarms(hit: Hit, scene: Scene) -> bool:
    """Whether a line that looks like a failure was one: nothing went on after it as if nothing had happened."""
    seen = scene.seen
    if is_mild(hit, scene) or _outlived(hit, scene):
        return False
    return hit.order > max(seen.last_alive, seen.last_built)


def evidence_of(hit: Hit, *, several: bool) -> Evidence:
    """Return a line as evidence; the log is named only where there are several."""
    return Evidence(
        line=hit.line.number, text=hit.line.shown, rank=hit.line.rank, log=hit.line.log if several else None
    )
