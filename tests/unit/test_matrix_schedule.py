"""Cells over engines: hosts are not overfull, leaders go first, a dead engine's jobs move on."""

from __future__ import annotations

import signal
import threading
from dataclasses import dataclass, field

import pytest

from builder.errors import EngineError
from builder.matrix.schedule import Job, Need, Schedule, Seat

GIB = 1 << 30
SMALL = Need(cores=1, memory=GIB)


def seat(name: str, *, host: str = "h", cores: int = 2, memory: int = 4 * GIB, gpus: tuple[str, ...] = ()) -> Seat:
    return Seat(name=name, host=host, cores=cores, memory=memory, gpus=gpus)


@dataclass
class World:
    """Engines that are functions: those in `dead` fail whatever they run; what ran at the same time is noted."""

    dead: set[str] = field(default_factory=set)
    sick: set[str] = field(default_factory=set)
    most: dict[str, Need] = field(default_factory=dict)
    done: list[tuple[str, str]] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    beside: threading.Barrier | None = None
    gate: threading.Event | None = None
    in_use: set[tuple[str, str]] = field(default_factory=set)
    most_gpus: int = 0
    _now: list[tuple[Job, Seat]] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def execute(self, job: Job, place: Seat, gpus: tuple[str, ...]) -> str:
        with self._lock:
            assert not self.in_use & {(place.host, gpu) for gpu in gpus}
            assert len(gpus) == job.need.gpus
            self.in_use |= {(place.host, gpu) for gpu in gpus}
            self.most_gpus = max(self.most_gpus, len(self.in_use))
            self._now.append((job, place))
            here = [other.need for other, at in self._now if at.host == place.host]
            now = Need(cores=sum(need.cores for need in here), memory=sum(need.memory for need in here))
            old = self.most.get(place.host, Need(cores=0, memory=0))
            self.most[place.host] = Need(cores=max(old.cores, now.cores), memory=max(old.memory, now.memory))
        try:
            if self.beside is not None:
                self.beside.wait(10)
            if self.gate is not None and place.name not in self.dead:
                self.gate.wait(10)
            if place.name in self.dead | self.sick:
                raise EngineError(f"{place.name} failed")
            return place.name
        finally:
            with self._lock:
                self._now.remove((job, place))
                self.in_use -= {(place.host, gpu) for gpu in gpus}
                self.done.append((job.name, place.name))

    def schedule(self, jobs: list[Job], seats: list[Seat]) -> dict[str, str]:
        return Schedule[Job, str](
            jobs=jobs,
            seats=seats,
            execute=self.execute,
            is_alive=lambda place: place.name not in self.dead,
            give_up=lambda _, error: f"given up: {error.message}",
            on_end=lambda _job, _answer: None,
            on_lost=lambda place, _: self._lose(place),
            on_stop=lambda: None,
        ).run()

    def _lose(self, place: Seat) -> None:
        self.lost.append(place.name)
        if self.gate is not None:
            self.gate.set()


def jobs(count: int, need: Need = SMALL) -> list[Job]:
    return [Job(name=f"j{number}", need=need) for number in range(count)]


def test_every_job_gets_an_answer_and_engines_of_one_host_share_the_work() -> None:
    world = World(beside=threading.Barrier(2))
    answers = world.schedule(jobs(8), [seat("a"), seat("b")])
    assert sorted(answers) == sorted(job.name for job in jobs(8))
    assert sorted(answers.values()) == ["a"] * 4 + ["b"] * 4
    assert world.most["h"].cores == 2


def test_a_host_never_runs_more_than_its_memory_holds() -> None:
    world = World()
    world.schedule(jobs(9, Need(cores=1, memory=2 * GIB)), [seat("a", cores=8), seat("b", cores=8)])
    assert world.most["h"].memory <= 4 * GIB


def test_a_job_that_is_larger_than_the_host_runs_alone() -> None:
    world = World()
    large = Job(name="large", need=Need(cores=64, memory=64 * GIB))
    answers = world.schedule([*jobs(4), large], [seat("a")])
    assert answers["large"] == "a"
    assert world.most["h"] == Need(cores=64, memory=64 * GIB)


def test_who_waits_for_a_leader_begins_after_it() -> None:
    world = World()
    world.schedule([Job(name="b", need=SMALL, after="a"), Job(name="a", need=SMALL)], [seat("x", cores=4)])
    assert [name for name, _ in world.done] == ["a", "b"]


def test_the_jobs_of_a_dead_engine_move_on() -> None:
    world = World(dead={"b"}, gate=threading.Event())
    answers = world.schedule(jobs(6), [seat("a"), seat("b", host="other")])
    assert set(answers.values()) == {"a"}
    assert len(answers) == 6
    assert world.lost == ["b"]


def test_a_job_that_no_engine_can_run_is_given_up_with_the_reason_and_the_engines_go_on() -> None:
    world = World(sick={"a", "b"})
    answers = world.schedule(jobs(2), [seat("a"), seat("b")])
    assert set(answers.values()) <= {"given up: a failed", "given up: b failed"}
    assert sorted(world.done) == [("j0", "a"), ("j0", "b"), ("j1", "a"), ("j1", "b")]
    assert world.lost == []


def test_where_all_engines_die_every_job_still_has_an_answer() -> None:
    world = World(dead={"a", "b"})
    answers = world.schedule(jobs(5), [seat("a"), seat("b", host="other")])
    assert len(answers) == 5
    assert all(answer.startswith("given up: ") for answer in answers.values())


ON_A_GPU = Need(cores=1, memory=GIB, gpus=1)


def test_a_job_with_a_gpu_goes_to_an_engine_that_has_one_and_the_others_go_where_there_is_room() -> None:
    world = World(beside=threading.Barrier(2))
    mixed = [*jobs(1), Job(name="gpu", need=ON_A_GPU)]
    answers = world.schedule(mixed, [seat("plain", host="other", cores=1), seat("card", gpus=("0",), cores=1)])
    assert answers == {"j0": "plain", "gpu": "card"}


def test_a_gpu_has_one_job_at_a_time_and_two_gpus_have_two() -> None:
    world = World(beside=threading.Barrier(2))
    cards = [seat("a", gpus=("0", "1"), cores=8, memory=64 * GIB)]
    assert len(world.schedule(jobs(6, ON_A_GPU), cards)) == 6
    assert world.most_gpus == 2


def test_engines_of_one_host_share_its_gpus() -> None:
    world = World()
    cards = [seat(name, gpus=("0",), cores=8, memory=64 * GIB) for name in "ab"]
    assert set(world.schedule(jobs(6, ON_A_GPU), cards).values()) <= {"a", "b"}
    assert world.most_gpus == 1


def test_a_job_that_needs_more_gpus_than_any_engine_has_is_not_run_and_says_so() -> None:
    world = World()
    many = Job(name="many", need=Need(cores=1, memory=GIB, gpus=8))
    follower = Job(name="follower", need=SMALL, after="many")
    answers = world.schedule([many, follower, *jobs(2)], [seat("a", gpus=("0", "1")), seat("b")])
    assert answers["many"] == "given up: not run: its checks need 8 GPUs, and no engine has more than 2"
    assert {name for name, _ in world.done} == {"follower", "j0", "j1"}
    alone = world.schedule([Job(name="gpu", need=ON_A_GPU)], [seat("b")])
    assert alone == {"gpu": "given up: not run: its checks need 1 GPU, and no engine has any"}


def test_where_the_engine_with_the_gpu_dies_its_job_is_given_up_and_the_rest_goes_on() -> None:
    world = World(dead={"card"})
    work = [Job(name="gpu", need=ON_A_GPU), *jobs(3)]
    answers = world.schedule(work, [seat("card", gpus=("0",), host="other"), seat("plain")])
    assert answers == {"gpu": "given up: card failed", "j0": "plain", "j1": "plain", "j2": "plain"}


def test_a_fault_of_our_own_ends_the_run_and_is_raised() -> None:
    def broken(_job: Job, _place: Seat, _gpus: tuple[str, ...]) -> str:
        raise ZeroDivisionError

    world = World()
    schedule = Schedule[Job, str](
        jobs=jobs(3),
        seats=[seat("a")],
        execute=broken,
        is_alive=lambda _: True,
        give_up=lambda _, error: error.message,
        on_end=lambda _job, _answer: None,
        on_lost=lambda _place, _error: None,
        on_stop=lambda: None,
    )
    with pytest.raises(ZeroDivisionError):
        schedule.run()
    assert world.done == []


def test_an_interrupt_ends_what_runs_waits_for_it_and_counts_no_answer_after() -> None:
    stopped = threading.Event()
    ended: list[str] = []

    def execute(job: Job, _place: Seat, _gpus: tuple[str, ...]) -> str:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        assert stopped.wait(10)
        ended.append(job.name)
        return "late"

    schedule = Schedule[Job, str](
        jobs=jobs(3),
        seats=[seat("a", cores=1)],
        execute=execute,
        is_alive=lambda _: True,
        give_up=lambda _, error: error.message,
        on_end=lambda _job, _answer: None,
        on_lost=lambda _place, _error: None,
        on_stop=stopped.set,
    )
    with pytest.raises(KeyboardInterrupt):
        schedule.run()
    assert ended == ["j0"]
    assert schedule.answers == {}
