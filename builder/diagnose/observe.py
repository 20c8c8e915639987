"""One pass over a log: every line that the knowledge speaks of, in order, with the phase and the life it fell in."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, get_args

from builder.diagnose.line import LogLine
from builder.diagnose.reader import Log, blocks
from builder.verify.reported import PHASE_NAMES, Phase

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from builder.diagnose.knowledge import Knowledge

Role = Literal["starts", "ready", "alive", "built", "stopped", "failures", "frames", "asynchronous", "setting_lines"]
ROLES: tuple[Role, ...] = get_args(Role)

KEPT = 4
ENOUGH = 32
MOST_FRAMES = 200
MOST_LIVES = 64
_FRAME_REACH = 80
_LAST_LINES = 3


@dataclass(frozen=True, slots=True)
class Hit:
    """A pattern found in a line; `life` counts the starts of a server in the log, `order` the lines of all logs."""

    line: LogLine
    holes: Mapping[str, str]
    phase: Phase
    life: int
    order: int
    serving: bool


@dataclass(slots=True)
class _Tally:
    hits: list[Hit] = field(default_factory=list)
    last: Hit | None = None
    count: int = 0
    in_life: int = 0
    life: int = 0


@dataclass(frozen=True, slots=True)
class AsynchronousFrame:
    """The last frame of Python before an error that the GPU reported late."""

    frame: Hit
    error: Hit


@dataclass(slots=True)
class Observation:
    """What one or more logs hold: hits by pattern, and the order of the events that excuse or condemn."""

    tallies: dict[str, _Tally] = field(default_factory=dict)
    ready_lives: set[int] = field(default_factory=set)
    last_alive: int = -1
    last_built: int = -1
    first_stopped: int | None = None
    stopped_life: int | None = None
    frames: list[AsynchronousFrame] = field(default_factory=list)
    salient: list[Hit] = field(default_factory=list)
    late: deque[Hit] = field(default_factory=lambda: deque(maxlen=6))
    setting_lines: list[Hit] = field(default_factory=list)
    phase: Phase = "unknown"
    lines: int = 0

    def hits(self, sources: Iterable[str]) -> list[Hit]:
        """Return the kept hits of patterns, in the order of the log."""
        found = [hit for source in sources for hit in self._of(source).hits]
        return sorted(found, key=lambda hit: hit.order)

    def count(self, sources: Iterable[str]) -> int:
        """Return how many lines matched any of the patterns."""
        return sum(self._of(source).count for source in sources)

    def last(self, sources: Iterable[str]) -> Hit | None:
        """Return the last line that matched any of the patterns."""
        found = [hit for source in sources if (hit := self._of(source).last) is not None]
        return max(found, key=lambda hit: hit.order, default=None)

    def is_at_end(self, hit: Hit) -> bool:
        """Whether hardly anything follows a line."""
        return hit.order > self.lines - _LAST_LINES

    def _of(self, source: str) -> _Tally:
        return self.tallies.get(source) or _Tally()


def observe(logs: Iterable[Log], knowledge: Knowledge) -> Observation:
    """Read logs once, one after the other, in bounded memory."""
    observer = _Observer(knowledge)
    for log in logs:
        observer.read(log)
    return observer.seen


class _Observer:
    """The state of the one pass: the current life of the server, its phase, and which patterns have said enough."""

    def __init__(self, knowledge: Knowledge) -> None:
        from builder.diagnose.listening import Listener  # noqa: PLC0415 - numpy is slow to import: only for a log

        self.seen = Observation()
        self._knowledge = knowledge
        self._listener = Listener(knowledge.patterns)
        self._roles = _roles(knowledge)
        self._markers = {
            line: marker.phase
            for file in knowledge.files
            for marker in file.markers
            for line in knowledge.expand(marker.lines)
        }
        self._after_failure = tuple(source for source, roles in self._roles.items() if roles & {"alive", "frames"})
        self._life = 0
        self._serving = False
        self._renewals = 0
        self._frame: Hit | None = None

    def read(self, log: Log) -> None:
        """Read one log; line numbers start again, the order goes on."""
        number = 1
        begun = self.seen.lines
        for block in blocks(log):
            for candidate, sources in self._listener.candidates(block):
                line = LogLine(number + candidate.line, candidate.text, log.name)
                self._look(line, sources, begun + line.number)
            number += block.count(b"\n")
        self.seen.lines = begun + number - 1

    def _look(self, line: LogLine, sources: Iterable[str], order: int) -> None:
        matches = [
            (source, holes)
            for source in sources
            if (holes := self._knowledge.patterns[source].match(line.folded)) is not None
        ]
        roles = {role for source, _ in matches for role in self._roles.get(source, ())}
        self._begin(roles)
        for source, _ in matches:
            self._advance(self._markers.get(source))
        for source, holes in matches:
            hit = Hit(line, holes, self.seen.phase, self._life, order, self._serving)
            self._count(source, hit)
        if matches:
            self._note(roles, Hit(line, matches[0][1], self.seen.phase, self._life, order, self._serving))

    def _begin(self, roles: set[Role]) -> None:
        """Begin a new life of the server: its phase is unknown again."""
        if "starts" not in roles:
            return
        if self._serving or self.seen.phase != "unknown":
            self._renew()
        self._serving = False
        self.seen.phase = "unknown"

    def _renew(self) -> None:
        self._life += 1
        self._listen(self._knowledge.patterns)

    def _listen(self, sources: Iterable[str]) -> None:
        """Listen again to patterns that had said enough; a bounded number of times."""
        if self._renewals < MOST_LIVES:
            self._renewals += 1
            self._listener.again(sources)

    def _advance(self, phase: Phase | None) -> None:
        if phase is not None and PHASE_NAMES.index(phase) > PHASE_NAMES.index(self.seen.phase):
            self.seen.phase = phase

    def _count(self, source: str, hit: Hit) -> None:
        tally = self.seen.tallies.setdefault(source, _Tally())
        if tally.life != hit.life and self._renewals < MOST_LIVES:
            tally.life, tally.in_life = hit.life, 0
        tally.count += 1
        tally.in_life += not (hit.line.mild and "failures" in self._roles.get(source, ()))
        tally.last = hit
        if tally.in_life <= KEPT and len(tally.hits) < KEPT * MOST_LIVES:
            tally.hits.append(hit)
        if tally.in_life == (MOST_FRAMES if "frames" in self._roles.get(source, ()) else ENOUGH):
            self._listener.enough(source)

    def _note(self, roles: set[Role], hit: Hit) -> None:
        """Remember what a line means for the lines before and after it."""
        seen = self.seen
        if "ready" in roles:
            self._serving = True
            seen.ready_lives.add(self._life)
        if "alive" in roles:
            seen.last_alive = hit.order
        if "built" in roles:
            seen.last_built = hit.order
        if "stopped" in roles and seen.first_stopped is None:
            seen.first_stopped, seen.stopped_life = hit.order, self._life
        if "setting_lines" in roles and len(seen.setting_lines) < ENOUGH:
            seen.setting_lines.append(hit)
        self._note_failure(roles, hit)

    def _note_failure(self, roles: set[Role], hit: Hit) -> None:
        if "asynchronous" in roles and self._frame is not None and hit.order - self._frame.order <= _FRAME_REACH:
            if len(self.seen.frames) < KEPT:
                self.seen.frames.append(AsynchronousFrame(self._frame, hit))
            self._frame = None
        if "frames" in roles:
            self._frame = hit
        if "failures" in roles:
            if len(self.seen.salient) < ENOUGH:
                self.seen.salient.append(hit)
            self.seen.late.append(hit)
            self._listen(self._after_failure)


def _roles(knowledge: Knowledge) -> dict[str, set[Role]]:
    roles: dict[str, set[Role]] = {}
    for file in knowledge.files:
        for role in ROLES:
            for line in knowledge.expand(getattr(file, role)):
                roles.setdefault(line, set()).add(role)
    return roles
