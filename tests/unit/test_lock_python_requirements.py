from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from builder.errors import InvalidDocumentError, ResolveError
from builder.lock import requirements
from builder.lock.project import local_projects
from builder.lock.question import python_question
from builder.lock.requirements import built_packages, separate_compiler
from builder.recipe.model import Recipe
from builder.recipe.source import RecipeFile

if TYPE_CHECKING:
    from pathlib import Path

KERNELS = """
[build-system]
requires = ["setuptools >= 77", "wheel", "torch"]
[project]
name = "My_Kernels"
version = "1"
dependencies = ["numpy>=2 ", "torch", "my-other; python_version < '4'"]
[project.optional-dependencies]
fast = ["numba"]
"""
OTHER = '[project]\nname = "my-other"\nversion = "1"\n'


def recipe(stack: dict[str, Any], **fields: Any) -> Recipe:
    plain = {
        "version": 1,
        "name": "x",
        "target": {"gpu": "rtx-pro-6000"},
        "base": {"debian": "trixie"},
        "python": "3.13",
        "cuda": "13.1",
        "stack": stack,
        **fields,
    }
    return Recipe.from_json(json.dumps(plain), source="test")


def written(recipe: Recipe, folder: Path) -> RecipeFile:
    """Return a recipe as if it had been read in a folder."""
    return RecipeFile(path=folder / "recipe.yaml", recipe=recipe)


def requirements_of(wished: Recipe, folder: Path) -> tuple[str, ...]:
    return requirements.requirements_of(wished, local_projects(written(wished, folder)))


def toolchain_requirements(wished: Recipe, folder: Path) -> tuple[str, ...]:
    return requirements.toolchain_requirements(wished, local_projects(written(wished, folder)))


def add_package(folder: Path, text: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "pyproject.toml").write_text(text, encoding="utf-8")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    add_package(tmp_path / "kernels", KERNELS)
    add_package(tmp_path / "other", OTHER)
    return tmp_path


STACK = {
    "torch": "2.11.0",
    "fastapi": {"version": "0.120.0", "extras": ["standard", "all"]},
    "my-kernels": {"path": "kernels", "build": {"archs": ["12.0"], "requires": ["ninja"]}},
    "my-other": {"path": "other"},
}


def test_pins_and_declared_dependencies_are_required_and_local_packages_are_not(folder: Path) -> None:
    wished = recipe(STACK)
    assert built_packages(wished) == ("my-kernels", "my-other")
    assert requirements_of(wished, folder) == ("fastapi[all,standard]==0.120.0", "numpy>=2", "torch", "torch==2.11.0")


def test_the_extras_of_a_local_package_bring_their_dependencies(folder: Path) -> None:
    stack = {"my-kernels": {"path": "kernels", "extras": ["fast"]}, "my-other": {"path": "other"}}
    assert requirements_of(recipe(stack), folder) == ("numba", "numpy>=2", "torch")


def test_an_extra_that_a_local_package_does_not_declare_is_refused(folder: Path) -> None:
    with pytest.raises(InvalidDocumentError, match="my-kernels declares no extra 'quick'"):
        requirements_of(recipe({"my-kernels": {"path": "kernels", "extras": ["quick"]}}), folder)


COMPILER = "cuda-toolkit[cccl,crt,cudart,nvcc,nvvm]==13.1.*"


def test_the_toolchain_has_the_build_requirements_with_the_pins_of_the_stack(folder: Path) -> None:
    assert toolchain_requirements(recipe(STACK), folder) == (
        "build",
        "ninja",
        "pip",
        "setuptools>=40.8.0",
        "setuptools>=77",
        "torch==2.11.0",
        "wheel",
    )


def test_the_cuda_compiler_lives_apart_only_where_torch_brings_cuda_libraries_of_its_own(folder: Path) -> None:
    with_torch, without = recipe(STACK), recipe({"my-other": {"path": "other"}})
    assert separate_compiler(with_torch, local_projects(written(with_torch, folder))) == (COMPILER,)
    assert separate_compiler(without, local_projects(written(without, folder))) == ()
    assert COMPILER in toolchain_requirements(without, folder)
    assert separate_compiler(recipe({"torch": "2.11.0"}), {}) == ()


def test_a_build_requirement_of_another_index_comes_with_all_that_the_stack_takes_from_there(folder: Path) -> None:
    indexes = {"more": {"url": "https://example.org/simple", "packages": ["torch", "triton", "torchaudio"]}}
    wished = recipe({**STACK, "triton": "3.5.1"}, indexes=indexes)
    assert "triton==3.5.1" in toolchain_requirements(wished, folder)
    assert "triton==3.5.1" not in toolchain_requirements(recipe({**STACK, "triton": "3.5.1"}), folder)


def test_without_cuda_the_toolchain_has_no_compiler_of_nvidia(folder: Path) -> None:
    plain = toolchain_requirements(recipe({"my-other": {"path": "other"}}, cuda=None), folder)
    assert plain == ("build", "pip", "setuptools>=40.8.0", "wheel")


def test_where_nothing_is_compiled_pip_alone_is_locked_for_the_dockerfile(folder: Path) -> None:
    wished = recipe({"torch": "2.11.0"})
    assert toolchain_requirements(wished, folder) == ("pip",)
    assert python_question(written(wished, folder))["tools"] == ["pip"]
    assert "cuda" not in python_question(written(wished, folder))


@pytest.mark.parametrize(
    ("text", "error", "said"),
    [
        ("", InvalidDocumentError, r"has no \[project\] table"),
        ("[project", InvalidDocumentError, "Expected ']'"),
        (KERNELS.replace("My_Kernels", "kernels"), InvalidDocumentError, "the package calls itself kernels"),
        (KERNELS.replace("numpy>=2 ", "numpy>=>2"), InvalidDocumentError, "numpy>=>2"),
        ('[project]\nname = "my-kernels"\ndynamic = ["dependencies"]\n', ResolveError, "dependencies as dynamic"),
    ],
)
def test_a_local_package_without_proper_declarations_is_refused(
    text: str, error: type[Exception], said: str, tmp_path: Path
) -> None:
    add_package(tmp_path / "kernels", text)
    with pytest.raises(error, match=rf"stack\.my-kernels\.path: .*{said}"):
        requirements_of(recipe({"my-kernels": {"path": "kernels"}}), tmp_path)


def test_a_missing_local_package_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidDocumentError, match=r"pyproject\.toml cannot be read: No such file"):
        requirements_of(recipe({"my-kernels": {"path": "nowhere"}}), tmp_path)


def test_the_question_is_plain_and_complete(folder: Path) -> None:
    wished = recipe(
        STACK,
        overrides={"torch": {"version": "2.11.0", "reason": "the cap is too strict"}},
        indexes={"nvidia": {"url": "https://example.org/simple", "packages": ["torch", "fastapi"]}},
        **{"as-of": "2026-11-25"},
    )
    question = python_question(written(wished, folder))
    assert json.loads(json.dumps(question)) == question
    assert question == {
        "python": "3.13",
        "as-of": "2026-11-25",
        "stack": {
            "fastapi": {"version": "0.120.0", "extras": ["all", "standard"]},
            "my-kernels": {
                "dependencies": ['my-other; python_version < "4"', "numpy>=2", "torch"],
                "build-requires": ["ninja", "setuptools>=77", "torch", "wheel"],
            },
            "my-other": {"dependencies": [], "build-requires": ["setuptools>=40.8.0", "wheel"]},
            "torch": {"version": "2.11.0"},
        },
        "cuda": "13.1",
        "tools": ["build", "pip", "cccl", "crt", "cudart", "nvcc", "nvvm"],
        "overrides": {"torch": "2.11.0"},
        "indexes": {"nvidia": {"url": "https://example.org/simple", "packages": ["fastapi", "torch"]}},
    }


def test_what_does_not_change_the_wheels_does_not_change_the_question(folder: Path) -> None:
    before = python_question(written(recipe(STACK), folder))
    (folder / "kernels" / "kernel.cu").write_text("__global__ void k() {}", encoding="utf-8")
    add_package(folder / "kernels", f"# a comment\n{KERNELS}".replace('version = "1"', 'version = "2"'))
    (folder / "kernels").rename(folder / "moved")
    moved = STACK | {"my-kernels": {"path": "moved", "build": {"archs": ["9.0"], "requires": ["ninja"]}}}
    assert python_question(written(recipe(moved, description="another"), folder)) == before


@pytest.mark.parametrize(
    ("stack", "fields"),
    [
        ({"torch": "2.11.1"}, {}),
        ({"fastapi": {"version": "0.120.0", "extras": ["all"]}}, {}),
        ({"my-kernels": {"path": "kernels", "build": {"requires": ["ninja>1"]}}}, {}),
        ({}, {"python": "3.12"}),
        ({}, {"cuda": "13.0"}),
        ({}, {"as-of": "2026-01-01"}),
        ({}, {"overrides": {"numpy": {"version": "2.0", "reason": "the cap is too strict"}}}),
        ({}, {"indexes": {"more": {"url": "https://example.org/simple", "packages": ["torch"]}}}),
    ],
)
def test_what_changes_the_wheels_changes_the_question(
    stack: dict[str, Any], fields: dict[str, Any], folder: Path
) -> None:
    before = python_question(written(recipe(STACK), folder))
    assert python_question(written(recipe({**STACK, **stack}, **fields), folder)) != before


@pytest.mark.parametrize(
    ("old", "new"), [("numpy>=2", "numpy>=2.1"), ("setuptools >= 77", "setuptools >= 78"), ('"wheel", ', "")]
)
def test_a_changed_declaration_of_a_local_package_changes_the_question(old: str, new: str, folder: Path) -> None:
    before = python_question(written(recipe(STACK), folder))
    add_package(folder / "kernels", KERNELS.replace(old, new))
    assert python_question(written(recipe(STACK), folder)) != before
