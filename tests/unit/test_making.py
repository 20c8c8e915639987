"""Who gets a core: one goes to the lowest layer, which the engine needs next, the others to the most urgent."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from builder.build.layerplan import LayerPlan
from builder.build.making import Cores, LayerJob, by_urgency
from builder.build.tarlayer import File
from builder.build.wheelfile import WheelInput, WheelLayout


def job(number: int, size: int = 1) -> LayerJob:
    wheel = WheelInput(name="x", version="1", filename="x.whl", sha256="x", path=Path("x"))
    layout = WheelLayout(wheel=wheel, files=(File(path="/x", size=size, content=b""),), record="/record")
    return LayerJob(number=number, plan=LayerPlan(title="x", layouts=(layout,)), key=str(number))


@pytest.mark.parametrize(("free", "order"), [("lowest", [2, 3, 4]), ("other", [3, 4, 2])])
def test_one_core_goes_to_the_lowest_layer_and_the_others_to_the_most_urgent(free: str, order: list[int]) -> None:
    first, waiting = [job(0), job(1)], [job(4), job(2), job(3)]
    cores, got = Cores(2, [*first, *(waiting[place] for place in (2, 0, 1))]), list[int]()

    def work(mine: LayerJob) -> None:
        with cores.one_for(mine):
            got.append(mine.number)

    with ExitStack() as both:
        held = {name: both.enter_context(ExitStack()) for name in ("lowest", "other")}
        held["lowest"].enter_context(cores.one_for(first[0]))
        held["other"].enter_context(cores.one_for(first[1]))
        threads = [threading.Thread(target=work, args=(each,)) for each in waiting]
        for thread in threads:
            thread.start()
        while len(cores._waiting) < len(waiting):
            time.sleep(0.001)
        held[free].close()
        for thread in threads:
            thread.join(60)
    assert got == order


def test_byte_code_is_wanted_first_of_what_the_engine_reaches_first_or_takes_long_to_write() -> None:
    sizes = {1: 30, 2: 7, 3: 1, 4: 12, 5: 2}  # of them 4 is the one like torch, 5 the one like transformers
    jobs = [job(number, size) for number, size in sizes.items()]
    assert [each.number for each in by_urgency(jobs)] == [1, 2, 4, 3, 5]


def test_a_core_is_given_back_by_work_that_fails() -> None:
    cores = Cores(1, [job(0), job(1)])
    for number in range(2):
        with pytest.raises(ZeroDivisionError), cores.one_for(job(number)):
            raise ZeroDivisionError
