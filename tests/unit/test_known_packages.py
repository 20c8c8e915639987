"""What is known of packages, as data, and what a compile job makes of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from builder.build.wheels import plan_wheels
from builder.errors import InvalidDocumentError
from builder.lock.model import DebianLock, DebianRelease, Lock, LockedSdist, LockFile
from builder.recipe.model import Recipe
from builder.recipe.packages import KnownPackage, known_package, known_packages
from builder.recipe.source import RecipeFile

SDIST = LockedSdist(name="flash-attn", version="2.8.3", filename="f.tar.gz", sha256="1" * 64, size=1, archive="2" * 64)


def test_the_data_of_every_package_is_sound_and_known_by_each_of_its_names() -> None:
    assert {"flash-attn", "sgl-kernel", "sglang-kernel", "flashinfer-python", "deep-gemm"} <= {*known_packages()}
    assert known_package("Flash_Attn") is known_packages()["flash-attn"]
    assert known_package("numpy").environment == {}


def test_architectures_are_written_as_each_package_wants_them() -> None:
    archs = ("9.0a", "12.0")
    assert known_package("flash-attn").environment_for(archs)["FLASH_ATTN_CUDA_ARCHS"] == "90;120"
    assert known_package("flashinfer-python").environment_for(archs) == {"FLASHINFER_CUDA_ARCH_LIST": "9.0a 12.0"}


@pytest.mark.parametrize(
    "plain",
    [
        {"names": ["x"], "requires": ["ninja"], "sources": {}},
        {"names": ["x"], "sources": {"requires": "a place that says so"}},
        {"names": ["x"], "environment": {"A": "{arch}"}, "sources": {"environment": "a place that says so"}},
    ],
)
def test_a_fact_without_a_source_and_an_unknown_placeholder_are_refused(plain: dict[str, object]) -> None:
    with pytest.raises(InvalidDocumentError):
        KnownPackage.from_json(json.dumps(plain), source="x.yaml")


def plan(**build: object) -> dict[str, str]:
    plain = {
        "version": 1,
        "name": "x",
        "target": {"gpu": "rtx-pro-6000"},
        "base": {"debian": "trixie"},
        "python": "3.13",
        "stack": {"flash-attn": {"version": "2.8.3", "build": build}},
    }
    source = RecipeFile(path=Path("r.yaml"), recipe=Recipe.from_json(json.dumps(plain), source="test"))
    release = DebianRelease(archive="debian", suite="trixie", date="1970-01-02T00:00:00Z", packages_sha256="0" * 64)
    debian = DebianLock(suite="trixie", releases=(release,), base=())
    file = LockFile(question={}, debian=debian, python={}, sources=(SDIST,), tools={})
    lock = Lock(name="x", file=file, wheels=(), toolchain_wheels=(), digest="d")
    (job,) = plan_wheels(source, lock, "toolchain", Path)
    assert (job.source, job.source_digest, job.subdirectory) == (Path("2" * 64), "2" * 64, ".")
    return dict(job.environment)


def test_a_job_has_the_packages_own_variables_and_the_targets_architecture() -> None:
    assert plan() == {
        "FLASH_ATTENTION_FORCE_BUILD": "TRUE",
        "FLASH_ATTN_CUDA_ARCHS": "120",
        "NVCC_THREADS": "1",
        "SOURCE_DATE_EPOCH": "86400",
        "TORCH_CUDA_ARCH_LIST": "12.0",
    }


def test_the_recipe_overrules_what_is_known_of_a_package() -> None:
    variables = plan(archs=["9.0", "12.0"], env={"NVCC_THREADS": "2"})
    assert variables["FLASH_ATTN_CUDA_ARCHS"] == "90;120"
    assert variables["NVCC_THREADS"] == "2"
