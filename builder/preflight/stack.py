"""Facts about the stack's packages: torch's CUDA build, what sglang pins, kernels, FlashInfer, flash-attn."""

from __future__ import annotations

from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name

from builder.preflight.conditions import newest
from builder.preflight.knowledge.tables import cuda_table, package_table, sglang_table, torch_table
from builder.preflight.pins import VARIANT, MaybeFacts, Pins, cuda_of, is_compiled, runtime_cuda, series_of

if TYPE_CHECKING:
    from builder.preflight.knowledge.tables import TorchSeries

SMEM_FIX = "sglang#14311"
_FLASHINFER = ("flashinfer-cubin", "flashinfer-jit-cache")
_KERNELS = ("sglang-kernel", "sgl-kernel")


def stack_facts(pins: Pins) -> MaybeFacts:
    """Return the facts about the target and the versions of the stack."""
    return {**_target_facts(pins), **_torch_facts(pins), **_sglang_facts(pins), **_package_facts(pins)}


def _target_facts(pins: Pins) -> MaybeFacts:
    target = pins.target
    return {
        "target.gpu": target.id,
        "target.arch": target.arch,
        "target.capability": target.capability,
        "target.sm12": target.major == 12,
        "target.rtx": target.id.startswith("rtx-"),
        "target.count": pins.recipe.target.count,
        "target.interconnect": target.interconnect,
        "target.first-driver": target.first_driver,
        "python": pins.recipe.python,
        "cuda": pins.recipe.cuda,
        "cuda.newest-known": newest(cuda_table().native_drivers),
    }


def _torch_facts(pins: Pins) -> MaybeFacts:
    version = pins.versions.get("torch")
    if version is None:
        return {}
    table = torch_table()
    variant = pins.cuda_variant
    series = table.series.get(series_of(version))
    has_sm120 = variant in series.sm120 if series and variant in series.variants else None
    return {
        "torch.version": version,
        "torch.variant": variant,
        "torch.cuda": cuda_of(variant) or runtime_cuda(pins.versions),
        "torch.default-index": pins.index_of("torch") is None and "+" not in version,
        "torch.sm120": False if variant in table.without_blackwell else has_sm120,
        "torch.better-variant": _better_variant(pins, series),
        "torch.newest-known": newest(table.series),
    }


def _better_variant(pins: Pins, series: TorchSeries | None) -> str | None:
    """Return the newest build of this torch for the toolkit's CUDA major that carries code for the target."""
    wanted = (pins.recipe.cuda or "?").partition(".")[0]
    builds = (series.sm120 if pins.target.major == 12 else series.variants) if series else []
    return next((build for build in reversed(builds) if (cuda_of(build) or "").startswith(f"{wanted}.")), None)


def _sglang_facts(pins: Pins) -> MaybeFacts:
    package = pins.stack.get("sglang")
    commit = package.commit if package else None
    release = pins.release
    return {
        "sglang.version": pins.sglang,
        "sglang.unknown-commit": commit[:12] if commit and pins.sglang is None else None,
        "sglang.proves-smem-fix": any(fix.id == SMEM_FIX for fix in package.fixes) if package else None,
        "sglang.newest-known": newest(sglang_table().releases),
        "sglang.pin-torch": release.torch if release else None,
        "sglang.pin-transformers": release.transformers if release else None,
        "sglang.pin-flashinfer": release.flashinfer if release else None,
        "sglang.pin-kernel": release.kernel.version if release else None,
        **_kernel_facts(pins),
    }


def _kernel_facts(pins: Pins) -> MaybeFacts:
    name = next((name for name in _KERNELS if name in pins.versions), None)
    if name is None:
        return {}
    version = pins.versions[name]
    builds = [r for r in sglang_table().releases.values() if r.kernel.version == version.partition("+")[0]]
    local = VARIANT.search(version.partition("+")[2] or getattr(pins.index_of(name), "url", ""))
    own_build = name in pins.stack and is_compiled(name, pins.stack[name])
    pypi = builds[0].kernel.pypi_cuda if builds and pins.index_of(name) is None else None
    return {
        "kernel.name": name,
        "kernel.version": version,
        "kernel.cuda": None if own_build else cuda_of(local.group()) if local else pypi,
        "kernel.torch": builds[0].torch if builds and not own_build else None,
    }


def _package_facts(pins: Pins) -> MaybeFacts:
    overrides = {str(canonicalize_name(name)): override for name, override in pins.recipe.overrides.items()}
    main = pins.versions.get("flashinfer-python")
    others = {name: pins.versions[name] for name in _FLASHINFER if name in pins.versions}
    flash_attn = pins.stack.get("flash-attn")
    return {
        "transformers.version": pins.versions.get("transformers"),
        "transformers.overridden": "transformers" in overrides,
        "torch.overridden": "torch" in overrides,
        "overrides.against-stack": tuple(
            name for name, each in overrides.items() if name in pins.stack and each.contradicts(pins.stack[name])
        ),
        "flashinfer.version": main,
        "flashinfer.others": tuple(f"{n} {v}" for n, v in others.items() if main and v.split("+")[0] != main),
        "flashinfer.jit-cache": "flashinfer-jit-cache" in pins.versions,
        "flash-attn.version": pins.versions.get("flash-attn"),
        "flash-attn-4.version": pins.versions.get("flash-attn-4"),
        "flash-attn.has-wheel": _has_flash_attn_wheel(pins) if flash_attn else None,
        "flash-attn.built": bool(flash_attn.build or flash_attn.git or pins.index_of("flash-attn"))
        if flash_attn
        else None,
        "cublas.version": pins.versions.get("nvidia-cublas"),
    }


def _has_flash_attn_wheel(pins: Pins) -> bool | None:
    cuda, torch = cuda_of(pins.cuda_variant), pins.versions.get("torch")
    if cuda is None or torch is None:
        return None
    wheels = package_table().flash_attn_wheels
    fits_python = pins.recipe.python in wheels.python
    return series_of(torch) in wheels.torch and cuda.startswith(f"{wheels.cuda_major}.") and fits_python
