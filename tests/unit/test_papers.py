"""What an image says of itself: its papers, its labels, its variables."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from builder.build.environment import image_environment, image_labels, image_venv
from builder.build.papers import PAPERS, image_papers
from builder.document import sha256_bytes
from builder.lock.lockfile import LOCK, PYLOCK, parse_lock
from builder.lock.model import DebianLock, DebianRelease, Lock, LockedGit, LockedSdist, LockedWheel, LockFile
from builder.lock.pylock import write_pylock
from builder.lock.question import question_of
from builder.preflight.knowledge.tables import package_table
from builder.recipe.source import read_recipe

if TYPE_CHECKING:
    from pathlib import Path

    from builder.recipe.source import RecipeFile

RECIPE = """\
version: 1
name: papers
target: {gpu: rtx-pro-6000}
base: {debian: trixie}
python: "3.13"
stack:
  torch: "2.11.0"
  sglang: {git: "https://git.example.org/sglang", commit: COMMIT, build: {}}
  flash-attn: {version: "2.8.3", build: {}}
"""
COMMIT = "ab" * 20


@pytest.fixture
def source(tmp_path: Path) -> RecipeFile:
    return recipe(tmp_path)


def recipe(folder: Path, text: str = "") -> RecipeFile:
    path = folder / "papers.yaml"
    path.write_text(RECIPE.replace("COMMIT", COMMIT) + text)
    return read_recipe(path)


def wheel(name: str, version: str) -> LockedWheel:
    return LockedWheel(name=name, version=version, filename=f"{name}.whl", sha256=sha256_bytes(name.encode()), size=1)


def locked(*runtime: tuple[str, str]) -> Lock:
    release = DebianRelease(archive="debian", suite="trixie", date="2026-01-01T00:00:00Z", packages_sha256="0" * 64)
    wheels = (wheel("torch", "2.11.0"), wheel("numpy", "2.5.5"), *(wheel(name, version) for name, version in runtime))
    pylock = write_pylock(wheels, python="3.13")
    git = LockedGit(name="sglang", url="https://git.example.org/sglang", commit=COMMIT, tree="c" * 40, archive="0" * 64)
    sdist = LockedSdist(
        name="flash-attn", version="2.8.3", filename="f.tar.gz", sha256="1" * 64, size=1, archive="2" * 64
    )
    file = LockFile(
        question={"asked": True},
        debian=DebianLock(suite="trixie", releases=(release,), base=()),
        python={PYLOCK: sha256_bytes(pylock)},
        sources=(git, sdist),
        tools={},
    )
    return Lock(name="papers", file=file, wheels=wheels, toolchain_wheels=(), digest="d" * 64, pylocks={PYLOCK: pylock})


CUDA = ("nvidia-cuda-runtime", "13.0.96")
COMPILER = "  cuda-toolkit: {version: 13.0.2, extras: [nvcc]}\n"


def test_the_recipe_in_an_image_is_one_that_can_be_read_again(source: RecipeFile, tmp_path: Path) -> None:
    papers = {paper.path: paper.content for paper in image_papers(source.recipe, locked())}
    text = papers[f"{PAPERS}/recipe.yaml"]
    assert isinstance(text, bytes)
    (tmp_path / "again.yaml").write_bytes(text)
    again = read_recipe(tmp_path / "again.yaml")
    assert again.recipe == source.recipe
    assert question_of(again)["debian"] == question_of(source)["debian"]


def test_the_lock_in_an_image_is_whole(source: RecipeFile) -> None:
    lock = locked(CUDA)
    papers = {paper.path.rpartition("/")[2]: paper.content for paper in image_papers(source.recipe, lock)}
    assert sorted(papers) == [LOCK, PYLOCK, "recipe.yaml"]
    texts = {name: text for name, text in papers.items() if isinstance(text, bytes)}
    again = parse_lock(texts.get, place="image", name="papers")
    assert again is not None
    assert (again.file, again.wheels) == (lock.file, tuple(sorted(lock.wheels)))


def test_a_comment_changes_no_paper(source: RecipeFile, tmp_path: Path) -> None:
    before = image_papers(source.recipe, locked())
    assert image_papers(recipe(tmp_path, "# why\n").recipe, locked()) == before
    assert image_papers(recipe(tmp_path, "description: another stack\n").recipe, locked()) != before


def test_the_labels_name_the_versions_of_wheels_sdists_and_commits(source: RecipeFile) -> None:
    labels = image_labels(source.recipe, locked(CUDA))
    stack = {name.rpartition(".")[2]: value for name, value in labels.items() if ".stack." in name}
    assert stack == {"torch": "2.11.0", "sglang": COMMIT, "flash-attn": "2.8.3"}
    assert labels["dev.envbuild.lock"] == "d" * 64
    assert labels["dev.envbuild.target"] == "rtx-pro-6000"
    assert labels["org.opencontainers.image.created"] == "2026-01-01T00:00:00+00:00"


@pytest.mark.parametrize(
    ("runtime", "more", "required", "driver"),
    [
        ([CUDA], "", "cuda>=13.0", "580.65.06"),
        ([("nvidia-cuda-runtime-cu12", "12.8.90")], "", "cuda>=12.0", "525.60.13"),
        ([CUDA], "host: {driver: '590.48.01'}\n", "cuda>=13.0,driver>=590.48.01", "590.48.01"),
        ([("nvidia-cuda-runtime-cu12", "12.8.90")], COMPILER, "cuda>=13.0", "580.65.06"),
        ([], COMPILER, "cuda>=13.0", "580.65.06"),
        ([], "", None, None),
    ],
)
def test_the_driver_that_a_stack_needs_is_asked_for_and_named(
    runtime: list[tuple[str, str]], more: str, required: str | None, driver: str | None, tmp_path: Path
) -> None:
    found, lock = recipe(tmp_path, more).recipe, locked(*runtime)
    assert image_environment(found, lock).get("NVIDIA_REQUIRE_CUDA") == required
    assert image_labels(found, lock).get("dev.envbuild.driver") == driver


def test_every_cache_of_a_compiler_lies_below_the_fingerprint_of_the_stack(source: RecipeFile) -> None:
    variables = image_environment(source.recipe, locked())
    caches = {name for name, value in variables.items() if value.startswith(f"/var/cache/envbuild/{'d' * 16}/")}
    assert caches == {
        "CUDA_CACHE_PATH",
        "CUTE_DSL_CACHE_DIR",
        "DG_JIT_CACHE_DIR",
        "FLASHINFER_WORKSPACE_BASE",
        "SGLANG_DG_CACHE_DIR",
        "TILELANG_CACHE_DIR",
        "TORCHINDUCTOR_CACHE_DIR",
        "TORCH_EXTENSIONS_DIR",
        "TRITON_CACHE_DIR",
        "TVM_FFI_CACHE_DIR",
        "XDG_CACHE_HOME",
    }
    assert caches == set(package_table().jit_caches)
    assert variables["SGLANG_DG_CACHE_DIR"] == variables["DG_JIT_CACHE_DIR"]  # which SGLang sets to the first
    assert len({variables[name] for name in caches - {"SGLANG_DG_CACHE_DIR"}}) == len(caches) - 1
    assert "envbuild" not in variables["HF_HOME"]


def test_the_cuda_compiler_that_the_stack_names_is_one_toolkit(tmp_path: Path) -> None:
    named = recipe(tmp_path, COMPILER).recipe
    lock = locked(CUDA, ("nvidia-cuda-nvrtc", "13.0.88"))
    venv, variables = image_venv(named, lock), image_environment(named, lock)
    home = f"{venv.site_packages}/nvidia/cu13"
    assert variables["CUDA_HOME"] == home
    assert variables["LD_RUN_PATH"] == f"{home}/lib"
    assert {path: target for path, target in venv.links.items() if path.startswith(home)} == {
        f"{home}/lib64": "lib",
        f"{home}/lib/libcudart.so": "libcudart.so.13",
        f"{home}/lib/libnvrtc.so": "libnvrtc.so.13",
    }


def test_the_cuda_compiler_is_found_however_the_stack_spells_it(tmp_path: Path) -> None:
    named = recipe(tmp_path, "  cuda_toolkit: {version: 13.0.2, extras: [nvcc]}\n").recipe
    assert image_venv(named, locked(CUDA)).cuda == "13"
    assert "CUDA_HOME" in image_environment(named, locked(CUDA))


@pytest.mark.parametrize(
    "stack",
    [
        "",
        "  cuda-toolkit: {version: 13.0.2, extras: [cudart]}\n",
        "  cuda-toolkit: {version: 12.9.1, extras: [nvcc]}\n",  # whose wheels hold no nvcc
    ],
)
def test_an_image_without_a_compiler_says_nothing_of_one(stack: str, tmp_path: Path) -> None:
    named, lock = recipe(tmp_path, stack).recipe, locked(CUDA)
    assert not {"CUDA_HOME", "LD_RUN_PATH"} & {*image_environment(named, lock)}
    assert not any("nvidia" in path for path in image_venv(named, lock).links)
