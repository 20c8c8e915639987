"""What a recipe asks of the Python world: the requirements of its image, its toolchain and its CUDA compiler."""

from __future__ import annotations

from typing import TYPE_CHECKING

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from builder.recipe.packages import known_package

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from builder.lock.project import Project
    from builder.recipe.model import Package, Recipe

# What compiles a wheel: the front ends, and the parts of NVIDIA's `cuda-toolkit` metapackage that nvcc needs.
BUILD_TOOLS = ("build", "pip")
INSTALLER = "pip"  # installs the wheels where the rendered Dockerfile is built with plain Docker
COMPILER_PARTS = ("cccl", "crt", "cudart", "nvcc", "nvvm")


def built_packages(recipe: Recipe) -> tuple[str, ...]:
    """Return the packages of the stack that are made from source here, and so come from no index."""
    return tuple(sorted(canonicalize_name(name) for name, package in recipe.stack.items() if package.from_source))


def absent_packages(recipe: Recipe) -> tuple[str, ...]:
    """Return the packages that the recipe's overrides leave out of the image, whatever others ask for."""
    return tuple(sorted(canonicalize_name(name) for name, override in recipe.overrides.items() if override.absent))


def requirements_of(recipe: Recipe, projects: Mapping[str, Project]) -> tuple[str, ...]:
    """Return what the image's wheels must satisfy: the stack's pins and what its sources declare, sorted.

    `projects` are the declarations of all packages that are compiled, by their names in the stack.
    """
    built = built_packages(recipe)
    lines: set[str] = set()
    for name, package in recipe.stack.items():
        declared = projects[name].dependencies_with(package.extras) if package.from_source else ()
        lines.update(declared if package.from_source else (_pin(name, package),))
    return tuple(sorted(line for line in lines if canonicalize_name(Requirement(line).name) not in built))


def stack_packages(recipe: Recipe) -> tuple[str, ...]:
    """Return the packages of the stack with the extras that are asked of them, such as `a[b,c]`, sorted."""
    return tuple(sorted(_with_extras(name, package) for name, package in recipe.stack.items()))


def toolchain_requirements(recipe: Recipe, projects: Mapping[str, Project]) -> tuple[str, ...]:
    """Return what the toolchain's wheels must satisfy, sorted; where nothing is compiled, only pip is there to install.

    A build requirement that the stack pins takes the stack's version, so that it is compiled against what will run; if
    it comes from an index of the recipe, so does all that the stack takes from that index: it was made to fit together.
    """
    pins = {canonicalize_name(name): _pin(name, p) for name, p in recipe.stack.items() if not p.from_source}
    lines = {*BUILD_TOOLS} if projects else {INSTALLER}
    for name, project in projects.items():
        for line in build_requirements(name, recipe.stack[name], project):
            lines.add(pins.get(canonicalize_name(Requirement(line).name), line))
    names = {canonicalize_name(Requirement(line).name) for line in lines}
    for index in recipe.indexes.values():
        tied = {canonicalize_name(package) for package in index.packages}
        lines.update(pins[name] for name in (tied & {*pins} if tied & names else ()))
    if not _has_torch(lines):
        lines.update(compiler_requirements(recipe))
    return tuple(sorted(lines))


def separate_compiler(recipe: Recipe, projects: Mapping[str, Project]) -> tuple[str, ...]:
    """Return what a CUDA compiler in an environment of its own must satisfy; nothing if it lives with the toolchain.

    It lives apart where torch is needed to compile: torch pins the CUDA libraries of its own build, whose release is
    seldom the compiler's, and nvcc refuses headers of another release in its own folder.
    """
    together = not _has_torch(toolchain_requirements(recipe, projects))
    return () if together or not projects else compiler_requirements(recipe)


def compiler_requirements(recipe: Recipe) -> tuple[str, ...]:
    """Return what the CUDA compiler of a recipe is made of; nothing if the recipe names no CUDA toolkit."""
    return (
        (f"cuda-toolkit[{','.join(COMPILER_PARTS)}]=={recipe.cuda}.*",)
        if recipe.cuda and built_packages(recipe)
        else ()
    )


def build_requirements(name: str, package: Package, project: Project) -> tuple[str, ...]:
    """Return what compiling a package needs: what it declares, what is known of it, what the recipe adds; sorted."""
    added = package.build.requires if package.build else ()
    return tuple(sorted({*project.build_requirements, *known_package(name).requires, *added}))


def _pin(name: str, package: Package) -> str:
    return f"{_with_extras(name, package)}=={package.version}"


def _with_extras(name: str, package: Package) -> str:
    return f"{name}[{','.join(sorted(package.extras))}]" if package.extras else name


def _has_torch(lines: Iterable[str]) -> bool:
    return any(canonicalize_name(Requirement(line).name) == "torch" for line in lines)
