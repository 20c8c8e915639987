"""How much of a machine a compilation takes, and how its progress is counted: arithmetic and text."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from builder.build import effort
from builder.build.benches import ContainerBench
from builder.build.compiling import Workshop, _attempts
from builder.build.effort import Effort, effort_here, effort_on, memory_for
from builder.build.failing import out_of_memory
from builder.build.measuring import UNKNOWN_UNIT, Measures, keep_measures, unit_memory
from builder.build.progress import UnitProgress, shown_time, units_in
from builder.build.wheels import WheelJob
from builder.console import Console, Step
from builder.engine import ContainerRun, Exit
from builder.errors import UsageError
from builder.settings import settings_from
from builder.store import Store
from tests.fakes import FACTS, FakeEngine

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

GIB = 1 << 30


def test_memory_is_what_is_free_but_for_a_tenth_of_the_machine() -> None:
    assert memory_for(100 * GIB, 60 * GIB) == 50 * GIB
    assert memory_for(4 * GIB, 3 * GIB) == 2 * GIB  # and for a GiB at least
    assert memory_for(4 * GIB, GIB) == GIB


def test_settings_overrule_what_the_machine_has() -> None:
    given = settings_from({"ENVBUILD_MEMORY": "512m", "ENVBUILD_JOBS": "9", "ENVBUILD_PRIORITY": "low"})
    assert effort_on(FACTS, given) == Effort(memory=512 << 20, jobs=9, cpu_shares=64)
    assert effort_on(FACTS, settings_from({}), free=6 * GIB) == Effort(
        memory=6 * GIB - FACTS.memory // 10, jobs=FACTS.cpus
    )


@pytest.mark.parametrize(
    ("name", "text"), [("ENVBUILD_MEMORY", "8"), ("ENVBUILD_JOBS", "two"), ("ENVBUILD_PRIORITY", "lowest")]
)
def test_a_setting_that_means_nothing_is_refused_by_its_name(name: str, text: str) -> None:
    with pytest.raises(UsageError, match=name):
        settings_from({name: text})


@pytest.mark.parametrize(("unit", "jobs"), [(3 * GIB, 4), (5 * GIB, 2), (13 * GIB, 1), (1, 8)])
def test_as_many_jobs_as_fit_and_one_at_least(unit: int, jobs: int) -> None:
    assert Effort(memory=12 * GIB, jobs=8).jobs_for(unit) == jobs


def test_the_memory_of_a_unit_is_measured_known_or_guessed(tmp_path: Path) -> None:
    store = Store(tmp_path)
    assert unit_memory("unheard-of", store) == UNKNOWN_UNIT
    assert unit_memory("flash-attn", store) > 6 * 10**9
    keep_measures("1" * 64, Measures(name="flash-attn", unit_memory=4 * GIB, cache_misses=3), store)
    keep_measures("2" * 64, Measures(name="flash-attn", unit_memory=5 * GIB, cache_misses=3), store)
    assert unit_memory("flash-attn", store) == 5 * GIB


def test_a_build_that_came_from_the_cache_says_nothing_of_memory(tmp_path: Path) -> None:
    keep_measures("1" * 64, Measures(name="x", unit_memory=5, cache_hits=9, cache_misses=1), Store(tmp_path))
    assert unit_memory("x", Store(tmp_path)) == UNKNOWN_UNIT


@pytest.mark.parametrize(
    ("ended", "killed"),
    [
        (Exit(code=1, oom_killed=True), True),
        (Exit(code=1, stderr=b"g++: fatal error: Killed signal terminated program cc1plus\n"), True),
        (Exit(code=1, stderr=b"nvcc error   : 'cicc' died due to signal 9 (Kill signal)\n"), True),
        (Exit(code=1, stderr=b"Killed\n"), True),
        (Exit(code=1, stderr=b"error: Killed is not declared\n"), False),
        (Exit(code=0, oom_killed=True), False),  # something died, and the build went on
        (Exit(code=137, timed_out=True, oom_killed=True), False),
        (Exit(code=1, stderr=b"nvcc error: 'cicc' died due to signal 11\n"), False),
    ],
)
def test_want_of_memory_is_told_from_other_failures(ended: Exit, killed: bool) -> None:
    assert out_of_memory(ended) is killed


def attempts(
    tmp_path: Path, endings: Iterable[Exit], jobs: int, environment: tuple[tuple[str, str], ...] = ()
) -> tuple[list[str], Exit]:
    answers = iter(endings)
    engine = FakeEngine(answer=lambda _job: next(answers))
    shop = Workshop(
        bench=ContainerBench(
            toolchain="t",
            engine=engine,
            effort=Effort(memory=jobs * UNKNOWN_UNIT, jobs=jobs),
            cache=tmp_path / "ccache",
        ),
        store=Store(tmp_path),
        on_line=lambda _line: None,
        warn=lambda _line: None,
    )
    job = WheelJob(
        name="x", source=tmp_path, source_digest="", environment=environment, toolchain_key="", script_digest=""
    )
    ended = _attempts(job, tmp_path, tmp_path, shop)
    runs: list[ContainerRun] = engine.runs
    return [run.environment["MAX_JOBS"] for run in runs], ended


@pytest.mark.parametrize(
    ("threads", "archs", "jobs"),
    [("1", "9.0;12.0", "6"), ("2", "9.0;12.0", "3"), ("4", "12.0", "6"), ("0", "9.0;12.0", "3")],
)
def test_each_architecture_beside_another_takes_memory_of_its_own(
    tmp_path: Path, threads: str, archs: str, jobs: str
) -> None:
    environment = (("NVCC_THREADS", threads), ("TORCH_CUDA_ARCH_LIST", archs))
    assert attempts(tmp_path, [Exit(code=0)], 6, environment) == ([jobs], Exit(code=0))


def test_what_is_said_of_memory_holds_against_what_a_machine_without_containers_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(effort, "_meminfo", lambda: (31 * GIB, 25 * GIB))
    monkeypatch.setattr(effort, "_own_limit", lambda: None)
    assert effort_here(settings_from({})).memory < 25 * GIB
    given = settings_from({"ENVBUILD_MEMORY": "240g", "ENVBUILD_JOBS": "30"})
    assert effort_here(given) == Effort(memory=240 * GIB, jobs=30)


def test_jobs_are_halved_until_one_is_left(tmp_path: Path) -> None:
    killed = Exit(code=1, oom_killed=True)
    assert attempts(tmp_path, [killed, killed, Exit(code=0)], 5) == (["5", "2", "1"], Exit(code=0))
    assert attempts(tmp_path, [killed, killed], 2) == (["2", "1"], killed)


def test_another_failure_is_not_tried_again(tmp_path: Path) -> None:
    failed = Exit(code=1, stderr=b"error: expected ';'\n")
    assert attempts(tmp_path, [failed], 4) == (["4"], failed)


@pytest.mark.parametrize(
    ("line", "units"),
    [
        ("[12/73] /build/tools/bin/nvcc -c a.cu", (12, 73)),
        ("[ 42%] Building CUDA object a.cu.o", (42, 100)),
        ("[100%] Linking", (100, 100)),
        ("array[3/4] of", None),
        ("copying a -> b", None),
    ],
)
def test_the_counters_of_ninja_and_make_are_read(line: str, units: tuple[int, int] | None) -> None:
    assert units_in(line) == units


def test_where_nobody_watches_each_tenth_is_a_line_with_the_time_left(capsys: pytest.CaptureFixture[str]) -> None:
    times = iter([0.0, *(600.0 * n for n in range(1, 21))])
    progress = UnitProgress("flash-attn", Step("compile", None), Console(), clock=lambda: next(times))
    for number in range(1, 21):
        progress.hear(f"[{number}/20] nvcc")
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "    flash-attn: 2 of 20 files, about 180 min left"
    assert len(lines) == 10


def test_work_that_was_done_before_an_interruption_does_not_shorten_the_time_left() -> None:
    times = iter([0.0, 100.0, 200.0])
    step = Step("compile", None)
    progress = UnitProgress("x", step, Console(), clock=lambda: next(times))
    progress.hear("[51/60] nvcc")
    assert progress.shown == "51 of 60 files, about 15 min left"
    progress.hear("[52/60] nvcc")
    assert progress.shown == "52 of 60 files, about 13 min left"


def test_durations_are_in_the_unit_that_suits_them() -> None:
    assert [shown_time(seconds) for seconds in (0.4, 99, 5700)] == ["0 s", "99 s", "95 min"]


def test_what_attempts_took_is_added_up(tmp_path: Path) -> None:
    (tmp_path / "measures.json").write_text('{"cpu_seconds": 2.0, "unit_memory": 7, "cache_misses": 1}')
    once = Measures(name="x").and_attempt(tmp_path, Exit(code=1, seconds=3.0), 2)
    (tmp_path / "measures.json").unlink()
    twice = once.and_attempt(tmp_path, Exit(code=1, seconds=4.0), 1)
    assert twice == replace_measures(once, attempts=2, seconds=7.0, jobs=1)
    assert (once.cpu_seconds, once.unit_memory, once.hit_rate) == (2.0, 7, 0.0)


def replace_measures(measures: Measures, **values: object) -> Measures:
    return measures.model_copy(update=values)
