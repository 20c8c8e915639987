"""NVFP4 for torch tensors; torch is imported when a function is called."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nvfp4_kernels.library import BLOCK, dequantize_raw, quantize_raw

if TYPE_CHECKING:
    from torch import Tensor

E2M1_MAX = 6.0
E4M3_MAX = 448.0


def global_scale_of(values: Tensor) -> Tensor:
    """Return the f32 scalar [] that maps the largest magnitude of `values` to NVFP4's largest (1 for all zeros)."""
    largest = values.abs().amax().float()
    return (largest / (E2M1_MAX * E4M3_MAX)).where(largest > 0, 1.0)


def quantize(values: Tensor, global_scale: Tensor) -> tuple[Tensor, Tensor]:
    """Return packed codes (uint8 [N, K/2], even column in the low nibble) and block scales (float8_e4m3fn [N, K/16]).

    `values` is bf16 [N, K] with K a multiple of 16, `global_scale` an f32 scalar above 0 on the same GPU. A block with
    NaN or infinity gets a NaN scale. Raises ValueError for other tensors and Nvfp4Error if the launch fails.
    """
    import torch  # noqa: PLC0415 - importing this package needs no torch

    _expect("values", values, torch.bfloat16, like=values)
    rows, columns = _shape(values)
    _expect("global_scale", global_scale, torch.float32, like=values)
    packed = values.new_empty((rows, columns // 2), dtype=torch.uint8)
    scales = values.new_empty((rows, columns // BLOCK), dtype=torch.float8_e4m3fn)
    with torch.cuda.device(values.device):
        quantize_raw(
            values=values.data_ptr(),
            global_scale=global_scale.data_ptr(),
            packed=packed.data_ptr(),
            scales=scales.data_ptr(),
            rows=rows,
            columns=columns,
            stream=torch.cuda.current_stream().cuda_stream,
        )
    return packed, scales


def dequantize(packed: Tensor, scales: Tensor, global_scale: Tensor) -> Tensor:
    """Return bf16 [N, K] from packed codes (uint8 [N, K/2]), block scales (float8_e4m3fn [N, K/16]) and an f32 scalar.

    All are contiguous and on one GPU. Raises ValueError for other tensors and Nvfp4Error if the launch fails.
    """
    import torch  # noqa: PLC0415 - importing this package needs no torch

    _expect("packed", packed, torch.uint8, like=packed)
    _expect("scales", scales, torch.float8_e4m3fn, like=packed)
    _expect("global_scale", global_scale, torch.float32, like=packed)
    out = packed.new_empty((packed.shape[0], packed.shape[-1] * 2), dtype=torch.bfloat16)
    rows, columns = _shape(out)
    if tuple(scales.shape) != (rows, columns // BLOCK):
        raise ValueError(f"scales: shape {tuple(scales.shape)}, packed needs {(rows, columns // BLOCK)}")
    with torch.cuda.device(packed.device):
        dequantize_raw(
            packed=packed.data_ptr(),
            scales=scales.data_ptr(),
            global_scale=global_scale.data_ptr(),
            out=out.data_ptr(),
            rows=rows,
            columns=columns,
            stream=torch.cuda.current_stream().cuda_stream,
        )
    return out


def _shape(matrix: Tensor) -> tuple[int, int]:
    if matrix.dim() != 2 or matrix.shape[1] % BLOCK != 0:
        raise ValueError(f"a matrix [N, K] with K a multiple of {BLOCK} is needed, not {tuple(matrix.shape)}")
    return matrix.shape[0], matrix.shape[1]


def _expect(name: str, tensor: Tensor, dtype: object, *, like: Tensor) -> None:
    if tensor.dtype != dtype or tensor.device != like.device or not tensor.is_cuda or not tensor.is_contiguous():
        raise ValueError(
            f"{name}: a contiguous {dtype} tensor on one GPU is needed, not {tensor.dtype} on {tensor.device}"
        )
    if name == "global_scale" and tensor.numel() != 1:
        raise ValueError(f"global_scale: one number is needed, not {tensor.numel()}")
