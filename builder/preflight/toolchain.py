"""Facts about what compiles and what carries: toolkit, architectures, gcc, glibc, the base, the driver."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from builder.preflight.conditions import newest, public_version
from builder.preflight.knowledge.tables import base_table, cuda_table, package_table
from builder.preflight.pins import LockFacts, MaybeFacts, Pins, driver_floor, is_compiled

if TYPE_CHECKING:
    from builder.recipe.model import BuildSettings
    from builder.recipe.targets import GpuTarget

_MANYLINUX = re.compile(r"manylinux_(\d+)_(\d+)_")


def toolchain_facts(pins: Pins) -> MaybeFacts:
    """Return the facts about compilers, the base and the driver that the recipe asks for."""
    return {**_compiler_facts(pins), **_image_facts(pins), **_base_facts(pins), **_driver_facts(pins)}


def _compiler_facts(pins: Pins) -> MaybeFacts:
    compiled = {name: package for name, package in pins.stack.items() if is_compiled(name, package)}
    asked = {name: package.build.archs for name, package in compiled.items() if package.build and package.build.archs}
    archs = {arch for wanted in asked.values() for arch in wanted} or {pins.target.capability}
    known = {arch: cuda_table().first_nvcc[arch] for arch in sorted(archs) if arch in cuda_table().first_nvcc}
    first = newest(known.values()) if known else None
    packages = package_table()
    settings = [package.build for package in compiled.values() if package.build]
    threads = max((_threads(setting) for setting in settings), default=0) or None
    return {
        "archs.first-nvcc": first,
        "archs.newest": next((arch for arch, nvcc in known.items() if nvcc == first), None),
        "archs.without-target": tuple(n for n, wanted in asked.items() if not _covers(wanted, pins.target)),
        "compiled": tuple(compiled),
        "compiled.needs-nvcc": tuple(name for name in compiled if name in packages.needs_nvcc),
        "compile.threads": threads,
        "compile.memory": threads * packages.bytes_per_nvcc_thread if threads else None,
    }


def _image_facts(pins: Pins) -> MaybeFacts:
    base = pins.recipe.base
    there = {
        "nvcc": pins.recipe.image_compiler is not None,
        "g++": not {"g++", "build-essential"}.isdisjoint(base.packages),
    }
    return {
        "image.toolkit": pins.recipe.asked_compiler,
        "image.lacks": tuple(name for name, has in there.items() if not has) if base.debian else None,
    }


def _covers(archs: tuple[str, ...], target: GpuTarget) -> bool:
    """Say whether code for one of these architectures runs on the target: one major, no newer minor, `a` exactly."""
    major, minor = target.capability.split(".")
    for arch in archs:
        arch_major, arch_minor = arch.rstrip("af").split(".")
        same = arch_major == major and int(arch_minor) <= int(minor)
        if same and (not arch.endswith("a") or arch_minor == minor):
            return True
    return False


def _threads(settings: BuildSettings) -> int:
    jobs, threads = settings.env.get("MAX_JOBS", ""), settings.env.get("NVCC_THREADS", "1")
    return int(jobs) * int(threads) if jobs.isdigit() and threads.isdigit() else 0


def _base_facts(pins: Pins) -> MaybeFacts:
    recipe = pins.recipe
    bases = base_table().bases
    named = recipe.base.debian or recipe.base.image or ""
    system = next((system for name, system in bases.items() if name in named), None)
    gcc = _locked_gcc(pins.lock) or (system.gcc if system else None)
    needed, wheel = _glibc_need(pins)
    library_path = recipe.serve.env.get("LD_LIBRARY_PATH", "") if recipe.serve else ""
    compat_package = any(name.startswith("cuda-compat") for name in recipe.base.packages)
    return {
        "gcc": gcc,
        "gcc.first-refused": cuda_table().first_gcc_refused.get(recipe.cuda or ""),
        "base.python": system.python if system and recipe.base.debian else None,
        "base.glibc": system.glibc if system else None,
        "base.compat": compat_package or "/compat" in library_path,
        "wheels.glibc": needed,
        "wheels.glibc-of": wheel,
    }


def _locked_gcc(lock: LockFacts | None) -> str | None:
    found = lock.debian.get("gcc") if lock else None
    return found.rpartition(":")[2].partition("-")[0] if found else None


def _glibc_need(pins: Pins) -> tuple[str | None, str | None]:
    """Return the newest glibc that a wheel needs and the wheel: by file name from a lock, else by package."""
    needs = [(tuple(map(int, m)), name) for name in (pins.lock.filenames if pins.lock else ()) for m in _lowest(name)]
    if needs:
        (major, minor), wheel = max(needs)
        return f"{major}.{minor}", wheel
    for name, need in package_table().glibc.items():
        version = public_version((pins.sglang if name == "sglang" else pins.versions.get(name)) or "")
        built = name in pins.stack and is_compiled(name, pins.stack[name])
        if version and not built and version >= (public_version(need.since) or version):
            return need.needs, f"{name} {version}"
    return None, None


def _lowest(filename: str) -> list[tuple[str, str]]:
    tags = _MANYLINUX.findall(filename)
    return [min(tags, key=lambda tag: (int(tag[0]), int(tag[1])))] if tags else []


def _driver_facts(pins: Pins) -> MaybeFacts:
    host = pins.recipe.host
    return {
        "driver.asked": host.driver if host else None,
        "driver.asked-cuda": native_cuda(host.driver) if host else None,
        "driver.cuda": pins.needed_cuda,
        "driver.floor": driver_floor(pins.needed_cuda),
    }


def native_cuda(driver: str) -> str | None:
    """Return the newest toolkit that this driver is native to, or None for one older than the table."""
    asked = public_version(driver)
    native = cuda_table().native_drivers.items()
    fits = [cuda for cuda, first in native if asked and asked >= (public_version(first) or asked)]
    return newest(fits) if fits else None
