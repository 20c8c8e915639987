"""NVIDIA ModelOpt's NVFP4 format: 4-bit values, an FP8 scale for every 16 of them, one FP32 scale per tensor.

    value[r, c] = E2M1[code[r, c]] * E4M3[weight_scale[r, c // 16]] * weight_scale_2

Two codes share a byte, the even column in the low half. Source: nvidia-modelopt 0.47, NVFP4QTensor, whose packed bytes
and scales are identical.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from builder.verify.tiny.floats import E4M3_MAX, E4M3_SMALLEST, Array, Octets, e4m3_octets, e4m3_values

GROUP = 16
E2M1_MAX = 6.0
FULL_RANGE = E2M1_MAX * E4M3_MAX
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], dtype=np.float64)
_MIDPOINTS = np.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])
_MIDPOINTS_TO_EVEN_ABOVE = np.array([0.75, 1.75, 3.5])
_SIGN_BIT = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Quantised:
    """A weight [N, K]: `packed` u8 [N, K/2], `scales` E4M3 bytes [N, K/16], `tensor_scale` the FP32 weight_scale_2."""

    packed: Octets
    scales: Octets
    tensor_scale: float


def power_of_two_above(value: float) -> float:
    """Return the smallest power of two that is not below a positive value."""
    mantissa, exponent = math.frexp(value)
    return math.ldexp(1.0, exponent - 1 if mantissa == 0.5 else exponent)


def tensor_scale_for(largest: float) -> float:
    """Return a weight_scale_2 for weights up to `largest`: a power of two, so that dequantised values fit bfloat16."""
    return power_of_two_above(largest / FULL_RANGE)


def quantise(weight: Array, tensor_scale: float) -> Quantised:
    """Round a weight [N, K] to NVFP4 in FP32 arithmetic, as ModelOpt does; K must be a multiple of 16."""
    rows, columns = weight.shape
    blocks = weight.astype(np.float32).reshape(rows, columns // GROUP, GROUP)
    scale_2 = np.float32(tensor_scale)
    wanted = np.abs(blocks).max(axis=-1) / (np.float32(E2M1_MAX) * scale_2)
    wanted = np.where(wanted == 0, np.float32(1), wanted).astype(np.float64)
    scales = e4m3_octets(np.maximum(wanted, E4M3_SMALLEST))
    step = (e4m3_values(scales).astype(np.float32) * scale_2)[..., None]
    codes = _e2m1_codes((blocks / step).reshape(rows, columns))
    packed = ((codes[:, 1::2] << 4) | codes[:, 0::2]).astype(np.uint8)
    return Quantised(packed=packed, scales=scales, tensor_scale=tensor_scale)


def dequantise(weight: Quantised) -> Array:
    """Return the values of an NVFP4 weight, exact in float64."""
    return unpack(weight.packed) * np.repeat(e4m3_values(weight.scales), GROUP, axis=1) * weight.tensor_scale


def unpack(packed: Octets) -> Array:
    """Return the E2M1 values [N, K] of packed bytes [N, K/2]."""
    values = np.empty((packed.shape[0], packed.shape[1] * 2), dtype=np.float64)
    values[:, 0::2] = E2M1[packed & 15]
    values[:, 1::2] = E2M1[packed >> 4]
    return values


def _e2m1_codes(values: np.ndarray[tuple[int, ...], np.dtype[np.float32]]) -> Octets:
    magnitude = np.abs(values)
    code = np.searchsorted(_MIDPOINTS, magnitude, side="left") + np.isin(magnitude, _MIDPOINTS_TO_EVEN_ABOVE)
    sign = np.signbit(values).astype(np.uint8) << np.uint8(_SIGN_BIT)
    codes: Octets = sign | code.astype(np.uint8)
    return codes
