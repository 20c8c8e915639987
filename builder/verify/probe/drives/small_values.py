"""Small tensors of the pretended GPU have their real values: PyTorch's own operations on them are computed on the host.

The pretended GPU launches nothing, but its memory is the host's. So each operation of PyTorch is made twice: on the
GPU, where its kernels are checked and noted, and, if all its tensors are small, on the CPU over the same memory.
Lengths, offsets and conditions are then what the code computed; kernels that are not PyTorch's still leave garbage.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

MOST_ELEMENTS = 1 << 14


class SmallValues(TorchDispatchMode):  # type: ignore[misc]
    """While it is entered, small results of PyTorch's operations on the GPU have their values."""

    def __torch_dispatch__(self, operation: Any, _: Any, given: Any = (), named: Any = None) -> Any:
        """Make the operation on the GPU, and again over the same memory on the host where that can be."""
        named = named or {}
        made = operation(*given, **named)
        leaves = tree_leaves((given, named, made))
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        if (
            not any(tensor.is_cuda for tensor in tensors)
            or any(tensor.numel() > MOST_ELEMENTS for tensor in tensors)
            or any(isinstance(leaf, torch.Generator) for leaf in leaves)
        ):
            return made
        try:
            due = operation(*tree_map(on_host, given), **tree_map(on_host, named))
            return tree_map(_with_value, made, due)
        except Exception:
            return made  # the CPU has no such operation, or not for this type, or garbage is an index


def on_host(value: Any) -> Any:
    """Return a tensor of the GPU as one of the CPU over the same memory, the GPU as the CPU, anything else as it is."""
    if isinstance(value, torch.device):
        return torch.device("cpu")
    if not isinstance(value, torch.Tensor) or not value.is_cuda:
        return value
    storage = value.untyped_storage()
    if not storage.nbytes():
        return torch.empty(value.shape, dtype=value.dtype)
    memory = (ctypes.c_char * storage.nbytes()).from_address(storage.data_ptr())
    whole = torch.frombuffer(memory, dtype=torch.uint8).untyped_storage()
    return torch.empty(0, dtype=value.dtype).set_(whole, value.storage_offset(), value.size(), value.stride())


def _with_value(made: Any, due: Any) -> Any:
    """Return what the GPU's operation returned, with the value that is due."""
    if not isinstance(made, torch.Tensor):
        return due
    on_host(made).copy_(due)
    return made
