"""The safetensors file format: a JSON header with its length in front, then the tensors' bytes.

Written here because the host has no torch; source: the format's own specification (8-byte little-endian header length,
header keys `dtype`, `shape`, `data_offsets`, no holes between tensors).
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from builder.document import canonical_json
from builder.errors import InvalidDocumentError
from builder.verify.tiny.floats import Array, Octets, bfloat16_bits, bfloat16_values, e4m3_values

if TYPE_CHECKING:
    from collections.abc import Mapping

BF16, F32, U8, F8_E4M3 = "BF16", "F32", "U8", "F8_E4M3"
ITEM_BYTES = {BF16: 2, F32: 4, U8: 1, F8_E4M3: 1}
_LENGTH_BYTES = 8
_METADATA = "__metadata__"


@dataclass(frozen=True, kw_only=True, slots=True)
class Tensor:
    """A tensor as a file holds it: its format's name, its shape, its little-endian bytes."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes

    @classmethod
    def bf16(cls, values: Array) -> Tensor:
        """Round values to bfloat16."""
        return cls(dtype=BF16, shape=values.shape, data=bfloat16_bits(values).astype("<u2").tobytes())

    @classmethod
    def f32(cls, values: Array) -> Tensor:
        """Round values to FP32."""
        return cls(dtype=F32, shape=values.shape, data=values.astype("<f4").tobytes())

    @classmethod
    def octets(cls, values: Octets, dtype: str = U8) -> Tensor:
        """Keep bytes as they are, under the name of a one-byte format."""
        return cls(dtype=dtype, shape=values.shape, data=values.tobytes())

    def raw(self) -> Octets:
        """Return the bytes of a one-byte format in the tensor's shape."""
        return np.frombuffer(self.data, dtype=np.uint8).reshape(self.shape)

    def values(self) -> Array:
        """Return the values in float64."""
        if self.dtype == BF16:
            return bfloat16_values(np.frombuffer(self.data, dtype="<u2").astype(np.uint16)).reshape(self.shape)
        if self.dtype == F32:
            return np.frombuffer(self.data, dtype="<f4").astype(np.float64).reshape(self.shape)
        return e4m3_values(self.raw()) if self.dtype == F8_E4M3 else self.raw().astype(np.float64)


def write_safetensors(tensors: Mapping[str, Tensor]) -> bytes:
    """Return the bytes of a file; wide items first, so that every tensor is aligned, then by name."""
    names = sorted(tensors, key=lambda name: (-ITEM_BYTES[tensors[name].dtype], name))
    header: dict[str, object] = {_METADATA: {"format": "pt"}}
    end = 0
    for name in names:
        start, end = end, end + len(tensors[name].data)
        header[name] = {"dtype": tensors[name].dtype, "shape": list(tensors[name].shape), "data_offsets": [start, end]}
    text = canonical_json(header)
    text += b" " * (-len(text) % _LENGTH_BYTES)
    return len(text).to_bytes(_LENGTH_BYTES, "little") + text + b"".join(tensors[name].data for name in names)


def read_safetensors(data: bytes) -> dict[str, Tensor]:
    """Return the tensors of a file; raise InvalidDocumentError if a tensor's bytes do not fit its shape."""
    begin = _LENGTH_BYTES + int.from_bytes(data[:_LENGTH_BYTES], "little")
    header = json.loads(data[_LENGTH_BYTES:begin])
    tensors = {}
    for name, entry in header.items():
        if name == _METADATA:
            continue
        first, last = entry["data_offsets"]
        shape, dtype = tuple(entry["shape"]), entry["dtype"]
        if last - first != math.prod(shape) * ITEM_BYTES[dtype] or begin + last > len(data):
            raise InvalidDocumentError(f"safetensors: {name}: {last - first} bytes do not fit {dtype} {list(shape)}")
        tensors[name] = Tensor(dtype=dtype, shape=shape, data=data[begin + first : begin + last])
    return tensors
