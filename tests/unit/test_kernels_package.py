"""The quickstart's NVFP4 kernels: the commands that compile them, the format on the host, the kernels on a GPU."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

if TYPE_CHECKING:
    from types import ModuleType

    from numpy.typing import NDArray

PACKAGE = Path(__file__).parents[2] / "recipes" / "quickstart" / "kernels"
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
# The host functions of the kernels behind a C ABI: whole arrays in, whole arrays out.
HOST = """
#include "nvfp4_format.h"
#define MAP(NAME, FROM, TO, EXPRESSION) \\
    extern "C" void NAME(const FROM *in, TO *out, int n) { for (int i = 0; i < n; ++i) out[i] = EXPRESSION; }
MAP(decode_e2m1, uint8_t, float, nvfp4::decode_e2m1(in[i]))
MAP(decode_e4m3, uint8_t, float, nvfp4::decode_e4m3(in[i]))
MAP(encode_e2m1, float, uint8_t, nvfp4::encode_e2m1(in[i]))
MAP(encode_e4m3, float, uint8_t, nvfp4::encode_e4m3(in[i]))
MAP(block_scale, float, uint8_t, nvfp4::block_scale(in[i], 1.0f))
"""


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"kernels_{name}", PACKAGE / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


nvcc = load("nvcc")


def e4m3_table() -> NDArray[np.float64]:
    """All 256 values of E4M3FN, from its definition: bias 7, three bits of mantissa, no infinities."""
    byte = np.arange(256)
    exponent, mantissa = byte >> 3 & 15, byte & 7
    size = np.where(exponent == 0, mantissa * 2.0**-9, (8 + mantissa) * 2.0 ** (exponent - 10.0))
    return np.where(byte & 127 == 127, np.nan, size) * np.where(byte < 128, 1.0, -1.0)


def nearest_even(values: NDArray[Any], table: NDArray[np.float64]) -> NDArray[np.uint8]:
    """The code of the nearest number of the ascending `table` by exhaustive search; ties to the even code."""
    inside = np.clip(np.asarray(values, np.float64), table[0], table[-1])
    distance = np.abs(inside[:, None] - table[None, :])
    tied = distance == distance.min(axis=1, keepdims=True)
    even = tied & (np.arange(len(table)) % 2 == 0)[None, :]
    codes: NDArray[np.uint8] = np.where(even.any(axis=1), even.argmax(axis=1), tied.argmax(axis=1)).astype(np.uint8)
    return codes


def quantize(values: NDArray[np.float32], global_scale: np.float32) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """NVFP4 by its definition, [N, K] -> packed [N, K/2] and E4M3 bytes [N, K/16]."""
    blocks = values.reshape(-1, 16)
    scale = np.abs(blocks).max(axis=1) / (np.float32(6) * global_scale)
    codes = nearest_even(np.clip(np.where(scale == 0, 1, scale), 2.0**-9, 448), e4m3_table()[:127])
    step = e4m3_table()[codes].astype(np.float32) * global_scale
    scaled = (blocks / step[:, None]).ravel()
    nibbles = nearest_even(np.abs(scaled), E2M1[:8]) | np.signbit(scaled).astype(np.uint8) << 3
    rows, columns = values.shape
    packed = (nibbles[1::2] << 4 | nibbles[0::2]).astype(np.uint8)
    return packed.reshape(rows, columns // 2), codes.reshape(rows, columns // 16)


def dequantize(packed: NDArray[np.uint8], scales: NDArray[np.uint8], global_scale: np.float32) -> NDArray[np.float32]:
    """fp32 [N, K] of packed [N, K/2] and E4M3 bytes [N, K/16]; code times block scale is exact."""
    nibbles = np.stack([packed & 15, packed >> 4], axis=-1).reshape(packed.shape[0], -1)
    return (E2M1[nibbles] * np.repeat(e4m3_table()[scales], 16, axis=1)).astype(np.float32) * global_scale


class HostFormat:
    """The format functions of the kernels, compiled for the host."""

    def __init__(self, folder: Path) -> None:
        (folder / "host.cpp").write_text(HOST)
        command = ["g++", "-std=c++17", "-O2", "-shared", "-fPIC", f"-I{PACKAGE / 'csrc'}", "host.cpp", "-o", "host.so"]
        subprocess.run(command, cwd=folder, check=True)
        self.library = ctypes.CDLL(str(folder / "host.so"))

    def __call__(self, name: str, values: NDArray[Any], out: type[np.generic]) -> NDArray[Any]:
        result = np.empty(len(values), out)
        pointers = (ctypes.c_void_p(array.ctypes.data) for array in (values, result))
        self.library[name](*pointers, len(values))
        return result


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> HostFormat:
    if shutil.which("g++") is None:
        pytest.skip("no g++ to compile the format functions for the host")
    return HostFormat(tmp_path_factory.mktemp("host"))


def test_each_architecture_gets_machine_code_and_ptx_only_when_asked() -> None:
    assert nvcc.gencode_flags("9.0;12.0a, 12.0f+PTX") == [
        *("-gencode", "arch=compute_90,code=sm_90"),
        *("-gencode", "arch=compute_120a,code=sm_120a"),
        *("-gencode", "arch=compute_120f,code=[sm_120f,compute_120f]"),
    ]


@pytest.mark.parametrize(
    ("architectures", "message"),
    [("", "set TORCH_CUDA_ARCH_LIST"), ("sm_120", "'sm_120' is not an architecture"), ("12.0b", "'12.0b' is not")],
)
def test_architectures_that_nvcc_would_misread_are_refused(architectures: str, message: str) -> None:
    with pytest.raises(SystemExit, match=message):
        nvcc.gencode_flags(architectures)


def test_the_toolkit_of_cuda_home_wins_over_the_one_in_path(tmp_path: Path) -> None:
    for name in ("home", "other"):
        (tmp_path / name / "bin").mkdir(parents=True)
        (tmp_path / name / "bin" / "nvcc").touch(0o755)
    environment = {"CUDA_HOME": str(tmp_path / "home"), "PATH": str(tmp_path / "other" / "bin")}
    assert nvcc.toolkit(environment) == tmp_path / "home"
    assert nvcc.toolkit({"PATH": environment["PATH"]}) == tmp_path / "other"
    with pytest.raises(SystemExit, match=r"no nvcc in .*empty/bin"):
        nvcc.toolkit({"CUDA_HOME": str(tmp_path / "empty"), "PATH": environment["PATH"]})


def test_the_runtime_is_linked_by_its_soname(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"no libcudart\.so"):
        nvcc.cuda_runtime(tmp_path)
    (tmp_path / "lib").mkdir()
    for name in ("libcudart_static.a", "libcudart.so.13", "libcudart.so.13.1.80"):
        (tmp_path / "lib" / name).touch()
    command = nvcc.link_command(tmp_path, [Path("a.o")], Path("out.so"))
    assert str(tmp_path / "lib" / "libcudart.so.13") in command
    assert "-s" in command


def test_every_code_decodes_to_its_value(host: HostFormat) -> None:
    codes = np.arange(16, dtype=np.uint8)
    decoded = host("decode_e2m1", codes, np.float32)
    assert np.array_equal(decoded, E2M1)
    assert np.array_equal(np.signbit(decoded), codes >= 8)
    scales = np.arange(256, dtype=np.uint8)
    assert np.array_equal(host("decode_e4m3", scales, np.float32), e4m3_table(), equal_nan=True)


def test_encoding_rounds_to_the_nearest_code_and_ties_to_the_even_one(host: HostFormat) -> None:
    for name, table in (("encode_e2m1", E2M1[:8]), ("encode_e4m3", e4m3_table()[:127])):
        middles = ((table[1:] + table[:-1]) / 2).astype(np.float32)
        near = [np.nextafter(middles, np.float32(side)) for side in (0, 1e9)]
        random = np.exp(np.random.default_rng(0).uniform(-14, 7, 4000))
        values = np.concatenate([table, middles, *near, random, [1e30]]).astype(np.float32)
        assert np.array_equal(host(name, values, np.uint8), nearest_even(values, table)), name


def test_a_block_with_a_value_that_is_no_number_gets_a_nan_scale(host: HostFormat) -> None:
    largest = np.array([np.nan, np.inf, 0.0, 6.0, 1e-9, 1e9], np.float32)
    assert host("block_scale", largest, np.uint8).tolist() == [0x7F, 0x7F, 0x38, 0x38, 0x01, 0x7E]


@pytest.mark.gpu
def test_the_kernels_agree_with_the_definition_bit_for_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    shutil.copytree(PACKAGE / "nvfp4_kernels", tmp_path / "nvfp4_kernels")
    home, compiled = nvcc.toolkit(os.environ), tmp_path / "nvfp4.o"
    architecture = "{}.{}".format(*torch.cuda.get_device_capability())
    source = str(PACKAGE / "csrc" / "nvfp4.cu")
    subprocess.run(nvcc.compile_command(home, source, compiled, architecture), check=True)
    subprocess.run(nvcc.link_command(home, [compiled], tmp_path / "nvfp4_kernels" / "libnvfp4.so"), check=True)
    monkeypatch.syspath_prepend(str(tmp_path))
    kernels = importlib.import_module("nvfp4_kernels")
    generator = torch.Generator(device="cuda").manual_seed(1)
    for rows, columns in ((1, 16), (3, 48), (257, 1040), (512, 6144)):
        values = torch.randn(rows, columns, generator=generator, device="cuda").exp2().sub(1).bfloat16()
        values[0, :16] = 0
        scale = kernels.global_scale_of(values)
        packed, scales = kernels.quantize(values, scale)
        expected = quantize(values.float().cpu().numpy(), np.float32(scale.item()))
        assert np.array_equal(packed.cpu().numpy(), expected[0])
        assert np.array_equal(scales.view(torch.uint8).cpu().numpy(), expected[1])
        restored = torch.from_numpy(dequantize(*expected, np.float32(scale.item()))).bfloat16()
        assert torch.equal(kernels.dequantize(packed, scales, scale).cpu(), restored)
    values[5, 7] = torch.nan
    packed, scales = kernels.quantize(values, scale)
    assert kernels.dequantize(packed, scales, scale)[5, :16].isnan().all()
    with pytest.raises(ValueError, match="multiple of 16"):
        kernels.quantize(values[:, :8].contiguous(), scale)
    sys.modules.pop("nvfp4_kernels")
