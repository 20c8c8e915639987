"""Every rule just outside and just inside: a good recipe, one pin made wrong, the right rule and no other refusal.

A case is a folder of `tests/cases/preflight`: `case.yaml` names the rule, the good recipe and the edits, `expected.txt`
holds the findings of the wrong one. `UPDATE_CASES=1` writes `expected.txt` anew.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from builder.preflight.examine import preflight
from builder.preflight.host import HostFacts, HostGpu
from builder.preflight.rulebook import rulebook
from builder.recipe.source import parse_recipe
from builder.recipe.targets import find_product

if TYPE_CHECKING:
    from builder.preflight.findings import Finding
    from builder.recipe.model import Recipe

ROOT = Path(__file__).parents[2]
CASES = sorted(path.parent for path in (ROOT / "tests/cases/preflight").glob("*/case.yaml"))
GOOD = ("quickstart", "sm120-glm5", "sm120-glm5-cu130", "sm120-glm5-torch291")


@pytest.mark.parametrize("folder", CASES, ids=lambda folder: folder.name)
def test_a_pin_made_wrong_is_found_by_its_rule(folder: Path) -> None:
    case = _read(folder)
    findings = _examine(case, "outside")
    found = [(finding.rule, finding.severity) for finding in findings]
    assert (case["rule"], case["severity"]) in found
    expected = folder / "expected.txt"
    said = "".join(f"{finding.headline('recipe')}\n  {finding.remedy}\n" for finding in findings)
    if os.environ.get("UPDATE_CASES"):
        expected.write_text(said, encoding="utf-8")
    assert said == expected.read_text(encoding="utf-8")


@pytest.mark.parametrize("folder", CASES, ids=lambda folder: folder.name)
def test_the_nearest_right_pin_is_not_found_by_that_rule(folder: Path) -> None:
    case = _read(folder)
    found = [(finding.rule, finding.severity) for finding in _examine(case, "inside")]
    assert (case["rule"], case["severity"]) not in found


def test_every_rule_has_a_case() -> None:
    assert {_read(folder)["rule"] for folder in CASES} == set(rulebook())


@pytest.mark.parametrize("name", GOOD)
def test_no_good_recipe_is_refused(name: str) -> None:
    findings = preflight(_recipe(_plain(name)))
    assert [finding for finding in findings if finding.severity in {"error", "warning"}] == []


def test_a_good_recipe_is_not_refused_on_the_machine_that_it_is_for() -> None:
    machine = _machine({"driver": "590.48.01", "gpus": ["NVIDIA RTX PRO 6000 Blackwell Workstation Edition"] * 8})
    findings = preflight(_recipe(_plain("sm120-glm5")), None, machine)
    assert {finding.severity for finding in findings} == {"notice"}


def _read(folder: Path) -> dict[str, Any]:
    return dict(yaml.safe_load((folder / "case.yaml").read_text(encoding="utf-8")))


def _examine(case: dict[str, Any], side: str) -> tuple[Finding, ...]:
    plain = _plain(case["recipe"])
    for path, value in case[side].items():
        _edit(plain, path.split("."), value)
    machine = case.get(f"{side}_machine", case.get("machine"))
    return preflight(_recipe(plain), None, _machine(machine) if machine else None)


def _plain(name: str) -> dict[str, Any]:
    return dict(yaml.safe_load((ROOT / "recipes" / f"{name}.yaml").read_text(encoding="utf-8")))


def _edit(node: dict[str, Any], keys: list[str], value: Any) -> None:
    *parents, last = keys
    for key in parents:
        node = node.setdefault(key, {})
    if value is None:
        del node[last]
    else:
        node[last] = value


def _recipe(plain: dict[str, Any]) -> Recipe:
    recipe, complaints = parse_recipe(json.dumps(plain, default=str))
    assert recipe is not None, complaints
    return recipe


def _machine(differences: dict[str, Any]) -> HostFacts:
    products = differences.get("gpus", ())
    known = [(product, find_product(product)) for product in products]
    return HostFacts(
        gpus=tuple(
            HostGpu(product=product, capability=target.capability, memory=target.memory)
            for product, target in known
            if target is not None
        ),
        driver=differences.get("driver"),
        driver_problem="",
        driver_cuda=None,
        container_toolkit="1.18.0",
        cores=16,
        memory=differences.get("memory", 256 << 30),
        memory_free=differences.get("memory", 256 << 30),
        shm=differences.get("shm", 64 << 30),
        disk_free=differences.get("disk_free", 1 << 40),
        open_files=65536,
        locked_memory=None,
    )
