"""What installed packages ask of each other: as `pip check` sees it, compared with the recipe's overrides."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.unit.test_static_check import Environment

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    return Environment(tmp_path)


def test_a_conflict_without_an_override_fails_and_with_one_it_is_named(environment: Environment) -> None:
    environment.install("sglang", {"sglang.py": b""}, requires=("transformers==4.57.1",))
    environment.install("transformers", {"transformers.py": b""})
    check = environment.check()["static.requirements"]
    sentence = "sglang 1.0 requires transformers==4.57.1, 1.0 is installed"
    assert (check.outcome, check.summary) == ("failed", f"{sentence}, and the recipe has no override for it")
    check = environment.check(overrides=("Transformers",))["static.requirements"]
    assert (check.outcome, check.evidence) == ("passed", (f"overruled by the recipe: {sentence}",))
    assert check.summary == "what the packages ask of each other holds, but for 1 that the recipe overrules"


def test_an_override_that_overrules_nothing_is_said(environment: Environment) -> None:
    environment.install("a", {"a.py": b""}, requires=("b>=0.9",))
    environment.install("b", {"b.py": b""})
    check = environment.check(overrides=("b",))["static.requirements"]
    assert (check.outcome, check.evidence) == ("passed", ("notice: the override of b overrules nothing",))


def test_a_package_that_is_not_there_is_a_conflict(environment: Environment) -> None:
    environment.install("a", {"a.py": b""}, requires=("absent",))
    assert environment.check()["static.requirements"].summary == (
        "a 1.0 requires absent, nothing of it is installed, and the recipe has no override for it"
    )


@pytest.mark.parametrize(
    "requirement", ["absent; sys_platform == 'win32'", "absent; extra == 'dev'", "absent; python_version < '3'", "???"]
)
def test_requirements_for_others_and_those_that_cannot_be_read_do_not_count(
    environment: Environment, requirement: str
) -> None:
    environment.install("a", {"a.py": b""}, requires=(requirement,))
    assert environment.check()["static.requirements"].outcome == "passed"


def test_packages_of_one_source_must_be_of_one_version(environment: Environment) -> None:
    environment.install("flashinfer_python", {"flashinfer.py": b""})
    environment.install("flashinfer_cubin", {"flashinfer_cubin.py": b""})
    assert environment.check()["static.requirements"].outcome == "passed"
    info = environment.site / "flashinfer_cubin-1.0.dist-info"
    info.joinpath("METADATA").write_text("Metadata-Version: 2.1\nName: flashinfer-cubin\nVersion: 1.1\n")
    assert environment.check()["static.requirements"].summary == (
        "flashinfer-python 1.0, flashinfer-cubin 1.1: these must be of one version"
    )
