"""Who runs what next: cells over engines, within the cores, memory and GPUs of their hosts; knows no Docker."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

from builder.engine import NoGpuError
from builder.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

J = TypeVar("J", bound="Job")
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class Need:
    """What a job takes of a host while it runs: cores, bytes of memory, GPUs that are its alone."""

    cores: int
    memory: int
    gpus: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """A job by its name, what it needs, and the job that must have ended before it begins."""

    name: str
    need: Need
    after: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Seat:
    """An engine by the name that the user gave it, and its host; engines of one host share what the host has."""

    name: str
    host: str
    cores: int
    memory: int
    gpus: tuple[str, ...] = ()


@dataclass(kw_only=True)
class Schedule(Generic[J, T]):
    """Runs jobs on seats until every job has an answer; a seat whose engine is dead gives its jobs to the others.

    `execute` runs a job on a seat with the GPUs that it was given, and raises EngineError where the engine failed;
    `is_alive` says whether it still answers; `give_up` makes the answer of a job that no engine could run; `on_end`
    sees every answer as it comes; `on_stop` ends what runs when the run is interrupted.
    """

    jobs: Sequence[J]
    seats: Sequence[Seat]
    execute: Callable[[J, Seat, tuple[str, ...]], T]
    is_alive: Callable[[Seat], bool]
    give_up: Callable[[J, EngineError], T]
    on_end: Callable[[J, T], None]
    on_lost: Callable[[Seat, EngineError], None]
    on_stop: Callable[[], None]
    answers: dict[str, T] = field(default_factory=dict)
    _waiting: list[J] = field(default_factory=list)
    _running: dict[str, tuple[J, Seat, tuple[str, ...]]] = field(default_factory=dict)
    _living: list[Seat] = field(default_factory=list)
    _tried: dict[str, set[str]] = field(default_factory=dict)
    _why: dict[str, EngineError] = field(default_factory=dict)
    _crash: BaseException | None = None
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def run(self) -> dict[str, T]:
        """Run all jobs and return their answers by name; a fault of our own in a job ends the run and is raised."""
        self._waiting, self._living = list(self.jobs), list(self.seats)
        self._give_up_the_hopeless()
        threads = [
            threading.Thread(target=self._serve, args=(seat,), daemon=True)
            for seat in self.seats
            for _ in range(min(seat.cores, len(self.jobs)))
        ]
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        except BaseException as error:  # Ctrl-C: what runs is ended, and nobody writes to a console that goes away
            with self._changed:
                self._crash = error
                self._changed.notify_all()
            self.on_stop()
            for thread in threads:
                if thread.is_alive():
                    thread.join()
            raise
        if self._crash is not None:
            raise self._crash
        return self.answers

    def _serve(self, seat: Seat) -> None:
        while (taken := self._take(seat)) is not None:
            job, gpus = taken
            try:
                answer = self.execute(job, seat, gpus)
            except EngineError as error:
                self._failed(job, seat, error)
            except BaseException as error:  # noqa: BLE001 - it is raised again where `run` was called
                self._ended(job, crash=error)
            else:
                self._ended(job, answer=answer)

    def _take(self, seat: Seat) -> tuple[J, tuple[str, ...]] | None:
        """Wait for a job that this seat may begin, and give it GPUs; None when there is nothing more for it to do."""
        with self._changed:
            while self._crash is None and seat in self._living and (self._waiting or self._running):
                for job in self._waiting:
                    if self._may_begin(job, seat):
                        self._waiting.remove(job)
                        gpus = self._free_gpus(seat)[: job.need.gpus]
                        self._running[job.name] = (job, seat, gpus)
                        return job, gpus
                self._changed.wait()
            return None

    def _may_begin(self, job: J, seat: Seat) -> bool:
        """Whether a job may begin: it can run here, its leader is done, the host has room or does nothing."""
        leader_runs = job.after in self._running or any(other.name == job.after for other in self._waiting)
        if leader_runs or not self._can_run(job, seat) or self._has_idler_neighbour(job, seat):
            return False
        if job.need.gpus > len(self._free_gpus(seat)):
            return False
        here = [other.need for other, place, _ in self._running.values() if place.host == seat.host]
        cores = sum(need.cores for need in here) + job.need.cores
        memory = sum(need.memory for need in here) + job.need.memory
        return not here or (cores <= seat.cores and memory <= seat.memory)

    def _can_run(self, job: J, seat: Seat) -> bool:
        """Whether a job was not tried on a seat, and the seat has as many GPUs as it needs, be they free or not."""
        return seat.name not in self._tried.get(job.name, ()) and job.need.gpus <= len(seat.gpus)

    def _free_gpus(self, seat: Seat) -> tuple[str, ...]:
        """Return the GPUs of a seat that no job on its host has."""
        taken = {gpu for _, place, gpus in self._running.values() if place.host == seat.host for gpu in gpus}
        return tuple(gpu for gpu in seat.gpus if gpu not in taken)

    def _has_idler_neighbour(self, job: J, seat: Seat) -> bool:
        """Whether another engine of the same host runs fewer jobs and may take this one: it takes it."""

        def running(name: str) -> int:
            return sum(place.name == name for _, place, _ in self._running.values())

        neighbours = [each for each in self._living if each.host == seat.host and self._can_run(job, each)]
        return any(running(each.name) < running(seat.name) for each in neighbours)

    def _ended(self, job: J, *, answer: T | None = None, crash: BaseException | None = None) -> None:
        with self._changed:
            del self._running[job.name]
            self._crash = self._crash or crash
            if answer is not None and self._crash is None:
                self._answer(job, answer)
            self._changed.notify_all()

    def _failed(self, job: J, seat: Seat, error: EngineError) -> None:
        """Give a job that its engine failed to another one; no seat of a dead engine takes another job."""
        alive = self.is_alive(seat)
        with self._changed:
            del self._running[job.name]
            self._why[job.name] = error
            self._tried.setdefault(job.name, set()).add(seat.name)
            if self._crash is not None:
                return
            self._waiting.insert(0, job)
            if not alive and seat in self._living:
                self._living.remove(seat)
                self.on_lost(seat, error)
            self._give_up_the_hopeless()
            self._changed.notify_all()

    def _give_up_the_hopeless(self) -> None:
        for job in [job for job in self._waiting if not any(self._can_run(job, seat) for seat in self._living)]:
            self._waiting.remove(job)
            self._answer(job, self.give_up(job, self._reason(job)))

    def _reason(self, job: J) -> EngineError:
        """Return why no seat can run a job: its own failure, too few GPUs, else the first engine that was lost."""
        lost = next(iter(self._why.values()), EngineError("not run: no engine is left"))
        return self._why.get(job.name) or lack_of_gpus(job.need, self.seats) or lost

    def _answer(self, job: J, answer: T) -> None:
        self.answers[job.name] = answer
        self.on_end(job, answer)


def lack_of_gpus(need: Need, seats: Sequence[Seat]) -> NoGpuError | None:
    """Return the error for a job that needs more GPUs than any engine has; None where one has as many."""
    most = max((len(seat.gpus) for seat in seats), default=0)
    if need.gpus <= most:
        return None
    wanted = f"{need.gpus} GPU{'s' if need.gpus > 1 else ''}"
    return NoGpuError(f"not run: its checks need {wanted}, and no engine has {f'more than {most}' if most else 'any'}")
