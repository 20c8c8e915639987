"""The C ABI of libnvfp4.so as Python functions over device pointers."""

from __future__ import annotations

import ctypes
from pathlib import Path

ABI_VERSION = 1
BLOCK = 16


class Nvfp4Error(RuntimeError):
    """A kernel could not be launched; `code` is the CUDA runtime's error number."""

    def __init__(self, function: str, code: int, text: str) -> None:
        super().__init__(f"{function}: CUDA error {code}: {text}")
        self.code = code


def _load() -> ctypes.CDLL:
    library = ctypes.CDLL(str(Path(__file__).with_name("libnvfp4.so")))
    pointer, size = ctypes.c_void_p, ctypes.c_int64
    for name in ("nvfp4_dequantize_bf16", "nvfp4_quantize_bf16"):
        function = library[name]
        function.argtypes = (pointer, pointer, pointer, pointer, size, size, pointer)
        function.restype = ctypes.c_int
        setattr(library, name, function)
    library.nvfp4_error_string.argtypes = (ctypes.c_int,)
    library.nvfp4_error_string.restype = ctypes.c_char_p
    found = library.nvfp4_kernels_version()
    if found != ABI_VERSION:
        raise ImportError(f"libnvfp4.so has C ABI version {found}, this package needs {ABI_VERSION}")
    return library


_LIBRARY = _load()


def version() -> int:
    """Return the version of the library's C ABI."""
    return int(_LIBRARY.nvfp4_kernels_version())


def dequantize_raw(
    *, packed: int, scales: int, global_scale: int, out: int, rows: int, columns: int, stream: int
) -> None:
    """Enqueue packed u8 [rows, columns/2] x E4M3 [rows, columns/16] x f32 [1] -> bf16 [rows, columns].

    All are addresses on the current device and contiguous; `packed` is aligned to 4 bytes, `out` to 16.
    `stream` is a CUDA stream handle (0: the default stream). Raises Nvfp4Error.
    """
    _check("nvfp4_dequantize_bf16", packed, scales, global_scale, out, rows, columns, stream)


def quantize_raw(
    *, values: int, global_scale: int, packed: int, scales: int, rows: int, columns: int, stream: int
) -> None:
    """Enqueue bf16 [rows, columns] x f32 [1] -> packed u8 [rows, columns/2], E4M3 [rows, columns/16].

    All are addresses on the current device and contiguous; `values` are aligned to 16 bytes, `packed` to 8.
    `stream` is a CUDA stream handle (0: the default stream). Raises Nvfp4Error.
    """
    _check("nvfp4_quantize_bf16", values, global_scale, packed, scales, rows, columns, stream)


def _check(name: str, *arguments: int) -> None:
    code = getattr(_LIBRARY, name)(*arguments)
    if code != 0:
        raise Nvfp4Error(name, code, _LIBRARY.nvfp4_error_string(code).decode())
