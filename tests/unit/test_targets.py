"""The table of GPUs: ids, the names that drivers print, and numbers that agree with each other."""

from __future__ import annotations

import pytest

from builder.errors import InvalidDocumentError
from builder.recipe.targets import find_product, find_target, targets

IDS = (
    *("rtx-pro-6000", "rtx-pro-6000-max-q", "rtx-pro-6000-server", "rtx-5090", "gb10", "b200", "b300"),
    *("h100", "h200", "l40s", "rtx-4090", "rtx-3090", "a10", "a100"),
)


def test_every_gpu_of_the_plan_is_known_and_no_other() -> None:
    assert tuple(targets()) == IDS


def test_the_target_of_the_project_has_the_limit_that_its_crashes_name() -> None:
    target = find_target("rtx-pro-6000")
    assert (target.capability, target.arch, target.major) == ("12.0", "sm_120", 12)
    assert target.shared_memory_per_block == 101_376
    assert target.shared_memory_per_sm == 102_400
    assert target.memory == 97_887 * 2**20
    assert target.first_nvcc == "12.8"


@pytest.mark.parametrize(
    ("gpu", "arch", "per_block"),
    [
        ("gb10", "sm_121", 99),
        ("b200", "sm_100", 227),
        ("b300", "sm_103", 227),
        ("h200", "sm_90", 227),
        ("l40s", "sm_89", 99),
        ("a10", "sm_86", 99),
        ("a100", "sm_80", 163),
    ],
)
def test_each_architecture_has_its_shared_memory(gpu: str, arch: str, per_block: int) -> None:
    target = find_target(gpu)
    assert (target.arch, target.shared_memory_per_block) == (arch, per_block * 1024)


@pytest.mark.parametrize("gpu", IDS)
def test_a_block_leaves_one_kibibyte_of_the_sm_to_the_system(gpu: str) -> None:
    target = find_target(gpu)
    assert target.shared_memory_per_sm - target.shared_memory_per_block == 1024


@pytest.mark.parametrize("gpu", IDS)
def test_every_number_of_a_gpu_names_its_source(gpu: str) -> None:
    target = find_target(gpu)
    told = set(type(target).model_fields) - {"id", "family", "sources"}
    assert set(target.sources) == told


def test_the_three_cards_of_one_name_are_told_apart_by_their_product() -> None:
    products = {target.product: target.id for target in targets().values() if "RTX PRO 6000" in target.product}
    assert len(products) == 3
    found = find_product("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition")
    assert found is not None
    assert found.id == "rtx-pro-6000-max-q"


def test_a_product_that_is_not_in_the_table_is_none() -> None:
    assert find_product("NVIDIA Tesla T4") is None


def test_an_unknown_gpu_is_an_error_that_names_the_nearest() -> None:
    with pytest.raises(InvalidDocumentError, match=r"no GPU 'RTX_Pro_600' is known \(did you mean rtx-pro-6000\?\)"):
        find_target("RTX_Pro_600")


def test_a_gpu_without_any_near_name_is_answered_with_all_of_them() -> None:
    with pytest.raises(InvalidDocumentError, match=r"known: rtx-pro-6000, .*, a100"):
        find_target("mi300x")
