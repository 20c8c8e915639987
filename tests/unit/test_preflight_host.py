"""What a machine says of itself, and what the doctor makes of it; the answers are texts that real machines printed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from builder.preflight.doctor import doctor_findings
from builder.preflight.host import (
    QUERY,
    TOOLKIT,
    HostFacts,
    HostGpu,
    host_facts,
    parse_driver_cuda,
    parse_gpus,
    parse_meminfo,
)
from builder.preflight.host_script import driver_script
from builder.process import Completed, MissingProgramError
from builder.recipe.source import read_recipe

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from builder.recipe.model import Recipe

ROOT = Path(__file__).parents[2]
TWO_CARDS = """\
NVIDIA RTX PRO 6000 Blackwell Workstation Edition, 12.0, 97887 MiB, 590.48.01
NVIDIA RTX PRO 6000 Blackwell Workstation Edition, 12.0, 97887 MiB, 590.48.01
"""
SHARED_MEMORY = "NVIDIA GB10, 12.1, [N/A], 580.159.03\n"
BANNER = """\
+-----------------------------------------------------------------------------------------+
| NVIDIA-SMI 590.48.01              Driver Version: 590.48.01      CUDA Version: 13.1     |
+-----------------------------------------+------------------------+----------------------+
"""
BROKEN = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n"
MEMINFO = "MemTotal:       127601388 kB\nMemFree:         1000000 kB\nMemAvailable:   27365908 kB\n"
CARD = HostGpu(product="NVIDIA RTX PRO 6000 Blackwell Workstation Edition", capability="12.0", memory=97_887 << 20)
MACHINE = HostFacts(
    gpus=(CARD,) * 8,
    driver="590.48.01",
    driver_problem="",
    driver_cuda="13.1",
    container_toolkit="1.18.1",
    cores=64,
    memory=512 << 30,
    memory_free=500 << 30,
    shm=256 << 30,
    disk_free=2 << 40,
    open_files=65536,
    locked_memory=None,
)


def recipe() -> Recipe:
    return read_recipe(ROOT / "recipes/sm120-glm5.yaml").recipe


def answers(**texts: str | int) -> Callable[[Sequence[str]], Completed]:
    """Answer the commands of `host_facts` with texts; a number is the exit code of a broken driver."""

    def ask(command: Sequence[str]) -> Completed:
        key = {QUERY: "query", TOOLKIT: "toolkit", ("nvidia-smi",): "banner"}[tuple(command)]
        said = texts.get(key)
        if said is None:
            raise MissingProgramError(f"the program {command[0]!r} is not installed")
        if isinstance(said, int):
            return Completed(code=said, stdout=BROKEN.encode(), stderr=b"")
        return Completed(code=0, stdout=said.encode(), stderr=b"")

    return ask


def test_cards_are_read_with_their_exact_names_and_bytes() -> None:
    gpus, driver = parse_gpus(TWO_CARDS)
    assert gpus == (CARD, CARD)
    assert driver == "590.48.01"


def test_a_gpu_that_shares_the_memory_of_its_host_has_no_memory_of_its_own() -> None:
    assert parse_gpus(SHARED_MEMORY) == (
        (HostGpu(product="NVIDIA GB10", capability="12.1", memory=None),),
        "580.159.03",
    )


def test_text_that_is_no_gpu_is_left_out() -> None:
    assert parse_gpus("No devices were found\n, ,\n") == ((), None)


def test_the_banner_tells_the_cuda_of_the_driver() -> None:
    assert parse_driver_cuda(BANNER) == "13.1"
    assert parse_driver_cuda(BROKEN) is None


def test_memory_is_read_in_bytes() -> None:
    assert parse_meminfo(MEMINFO) == (127_601_388 * 1024, 27_365_908 * 1024)


def test_a_machine_with_cards_is_read_whole(tmp_path: Path) -> None:
    toolkit = "NVIDIA Container Toolkit CLI version 1.18.1\ncommit: 1234567\n"
    facts = host_facts(tmp_path / "store", answers(query=TWO_CARDS, banner=BANNER, toolkit=toolkit))
    assert (len(facts.gpus), facts.driver, facts.driver_cuda) == (2, "590.48.01", "13.1")
    assert facts.container_toolkit == "1.18.1"
    assert facts.memory >= facts.memory_free > 0
    assert facts.cores >= 1
    assert facts.disk_free > 0


def test_a_machine_without_a_driver_says_so(tmp_path: Path) -> None:
    facts = host_facts(tmp_path, answers())
    assert (facts.gpus, facts.driver) == ((), None)
    assert facts.driver_problem == "nvidia-smi is not installed"


def test_a_driver_that_does_not_answer_is_quoted(tmp_path: Path) -> None:
    facts = host_facts(tmp_path, answers(query=9))
    assert facts.driver is None
    assert facts.driver_problem == f"nvidia-smi ended with code 9: {BROKEN.strip()}"
    (driver, *_) = doctor_findings(facts, None)
    assert (driver.severity, driver.sentence) == ("error", facts.driver_problem)


def test_the_machine_of_the_recipe_is_ok_in_every_part() -> None:
    findings = doctor_findings(MACHINE, recipe())
    assert {finding.severity for finding in findings} == {"ok"}
    parts = ["driver", "gpus", "container-toolkit", "shm", "locked-memory", "memory", "disk", "open-files"]
    assert [finding.rule for finding in findings] == parts


@pytest.mark.parametrize(
    ("part", "severity", "machine"),
    [
        ("driver", "error", replace(MACHINE, driver="580.95.05")),
        ("gpus", "notice", replace(MACHINE, gpus=(CARD,) * 7)),
        ("container-toolkit", "error", replace(MACHINE, container_toolkit=None)),
        ("shm", "warning", replace(MACHINE, shm=(1 << 30) - 1)),
        ("locked-memory", "notice", replace(MACHINE, locked_memory=8 << 20)),
        ("memory", "warning", replace(MACHINE, memory=(8 << 30) - 1)),
        ("disk", "warning", replace(MACHINE, disk_free=(24 << 30) - 1)),
        ("open-files", "warning", replace(MACHINE, open_files=1023)),
    ],
)
def test_each_part_that_is_wrong_is_a_problem_with_a_remedy(part: str, severity: str, machine: HostFacts) -> None:
    wrong = [finding for finding in doctor_findings(machine, recipe()) if finding.severity != "ok"]
    assert [(finding.rule, finding.severity) for finding in wrong] == [(part, severity)]
    assert wrong[0].remedy


def test_a_machine_that_only_builds_is_not_wrong() -> None:
    builder = replace(MACHINE, gpus=(), driver=None, driver_problem="nvidia-smi is not installed")
    findings = doctor_findings(builder, recipe())
    assert [(f.rule, f.severity) for f in findings if f.severity != "ok"] == [("driver", "notice")]


def test_a_recipe_without_a_driver_asks_for_the_floor_of_its_torch() -> None:
    plain = recipe()
    stack = {name: package for name, package in plain.stack.items() if name != "cuda-toolkit"}
    plain = plain.model_copy(update={"host": None, "stack": stack})
    driver = doctor_findings(replace(MACHINE, driver="575.57.08"), plain)[0]
    assert driver.severity == "error"
    assert "CUDA 13.0 needs 580.65.06 or newer" in driver.sentence


def test_a_recipe_without_a_driver_asks_for_the_floor_of_its_compiler_too() -> None:
    of_cuda_12 = read_recipe(ROOT / "recipes/sm120-glm5-torch291.yaml").recipe.model_copy(update={"host": None})
    driver = doctor_findings(replace(MACHINE, driver="575.57.08"), of_cuda_12)[0]
    assert driver.severity == "error"
    assert "CUDA 13.1.1 needs 580.65.06 or newer" in driver.sentence


def test_a_card_that_is_not_in_the_table_is_named() -> None:
    other = replace(MACHINE, gpus=(HostGpu(product="NVIDIA T4", capability="7.5", memory=1 << 34),))
    gpus = doctor_findings(other, None)[1]
    assert (gpus.severity, gpus.sentence) == ("notice", "1x NVIDIA T4 (not in the table of targets: NVIDIA T4)")


def test_the_script_for_a_host_keeps_to_the_branch_of_the_driver_and_is_shell() -> None:
    script = driver_script("590.44.01")
    assert script.startswith("#!/bin/sh\n")
    assert "apt-get install --yes nvidia-driver-pinning-590\n" in script
    assert "want 590.44.01 or newer" in script
