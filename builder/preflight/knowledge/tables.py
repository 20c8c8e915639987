"""The tables of this folder as frozen values, read once."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import yaml

from builder.document import Document, pretty_json

if TYPE_CHECKING:
    from collections.abc import Mapping

FOLDER = Path(__file__).parent
_Table = TypeVar("_Table", bound=Document)


class TorchSeries(Document):
    """One series of PyTorch: the variant of the default index, all variants, and those with code for SM120."""

    default: str
    variants: list[str]
    sm120: list[str]


class TorchTable(Document):
    """PyTorch by series, oldest first, and the variants that no series builds for Blackwell."""

    source: str
    without_blackwell: list[str]
    series: dict[str, TorchSeries]


class KernelPin(Document):
    """The kernel package of a SGLang release, and the CUDA major of its wheel on the default index."""

    name: str
    version: str
    pypi_cuda: str


class SglangRelease(Document):
    """What one SGLang release pins, and its commit where it is known."""

    torch: str
    kernel: KernelPin
    flashinfer: str
    transformers: str
    commit: str | None = None


class SglangTable(Document):
    """SGLang by release, oldest first."""

    source: str
    releases: dict[str, SglangRelease]


class CudaTable(Document):
    """Drivers, compilers and host compilers by CUDA version."""

    source: str
    driver_floors: dict[str, str]
    native_drivers: dict[str, str]
    first_nvcc: dict[str, str]
    first_gcc_refused: dict[str, str]


class BaseSystem(Document):
    """The versions that a base system brings."""

    glibc: str
    gcc: str
    python: str


class BaseTable(Document):
    """Base systems by the word that names them."""

    source: str
    bases: dict[str, BaseSystem]


class WheelRange(Document):
    """The combinations that a package publishes wheels for."""

    torch: list[str]
    cuda_major: int
    python: list[str]


class GlibcNeed(Document):
    """The glibc that a package's wheels need from a version on."""

    since: str
    needs: str


class PackageTable(Document):
    """Packages by what they need; sizes are in bytes."""

    source: str
    pure_python: list[str]
    needs_nvcc: list[str]
    flash_attn_wheels: WheelRange
    jit_caches: list[str]
    glibc: dict[str, GlibcNeed]
    bytes_per_nvcc_thread: int
    build_disk_peak: int
    image_disk: int
    wheel_unpack_factor: int


class ModelFamily(Document):
    """The shape of a model's KV cache; sizes are in bytes, `kv_elements` per layer and token."""

    names: list[str]
    model_type: str
    layers: int
    kv_elements: int
    indexer_bytes: int
    replicated_bytes: int


class Checkpoint(Document):
    """A published checkpoint: its size in bytes and what of it is quantized."""

    bytes: int
    quantization: str
    excludes_shared_experts: bool


class ModelTable(Document):
    """Model families, checkpoints, and the constants of the memory plan in bytes."""

    source: str
    families: dict[str, ModelFamily]
    checkpoints: dict[str, Checkpoint]
    kv_dtype_bytes: dict[str, int]
    driver_reserve: int
    least_headroom: int


@cache
def torch_table() -> TorchTable:
    """Return the table of PyTorch series."""
    return _read("torch.yaml", TorchTable)


@cache
def sglang_table() -> SglangTable:
    """Return the table of SGLang releases."""
    return _read("sglang.yaml", SglangTable)


@cache
def cuda_table() -> CudaTable:
    """Return the tables of CUDA."""
    return _read("cuda.yaml", CudaTable)


@cache
def base_table() -> BaseTable:
    """Return the table of base systems."""
    return _read("bases.yaml", BaseTable)


@cache
def package_table() -> PackageTable:
    """Return the tables of packages."""
    return _read("packages.yaml", PackageTable)


@cache
def model_table() -> ModelTable:
    """Return the tables of models."""
    return _read("models.yaml", ModelTable)


def read_plain(path: Path) -> Any:  # noqa: ANN401 - what YAML gives
    """Return what one of our own YAML files says."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return yaml.load(path.read_text(encoding="utf-8"), Loader=loader)  # noqa: S506 - a safe loader


def all_tables() -> Mapping[str, Document]:
    """Return every table by the name of its file."""
    return {
        "torch.yaml": torch_table(),
        "sglang.yaml": sglang_table(),
        "cuda.yaml": cuda_table(),
        "bases.yaml": base_table(),
        "packages.yaml": package_table(),
        "models.yaml": model_table(),
    }


def _read(name: str, kind: type[_Table]) -> _Table:
    return kind.from_json(pretty_json(read_plain(FOLDER / name)), source=name)
