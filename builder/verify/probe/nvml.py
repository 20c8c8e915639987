"""The GPUs as the driver sees them: NVML through ctypes, so that nothing of the stack is needed or touched."""

from __future__ import annotations

import ctypes
from typing import Any

LIBRARY = "libnvidia-ml.so.1"
_TEXT = 96


class _Memory(ctypes.Structure):
    """nvmlMemory_t."""

    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class Nvml:
    """The driver's own library, opened."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library

    @classmethod
    def opened(cls) -> Nvml | None:
        """Return the library, or None where there is no driver or it does not answer."""
        try:
            library = ctypes.CDLL(LIBRARY)
        except OSError:
            return None
        return cls(library) if library.nvmlInit_v2() == 0 else None

    def gpus(self) -> list[dict[str, Any]]:
        """Return each GPU's name, compute capability and memory in MiB."""
        return [self._gpu(device) for device in self._devices()]

    def driver(self) -> str:
        """Return the driver's version, such as 590.44.01."""
        text = ctypes.create_string_buffer(_TEXT)
        self._library.nvmlSystemGetDriverVersion(text, _TEXT)
        return text.value.decode(errors="replace")

    def used_mib(self) -> list[int]:
        """Return the memory that is taken on each GPU, by anyone."""
        return [int(self._memory(device).used) >> 20 for device in self._devices()]

    def _devices(self) -> list[ctypes.c_void_p]:
        count = ctypes.c_uint()
        self._library.nvmlDeviceGetCount_v2(ctypes.byref(count))
        handles = []
        for index in range(count.value):
            handle = ctypes.c_void_p()
            if self._library.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(handle)) == 0:
                handles.append(handle)
        return handles

    def _gpu(self, device: ctypes.c_void_p) -> dict[str, Any]:
        name = ctypes.create_string_buffer(_TEXT)
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._library.nvmlDeviceGetName(device, name, _TEXT)
        self._library.nvmlDeviceGetCudaComputeCapability(device, ctypes.byref(major), ctypes.byref(minor))
        return {
            "name": name.value.decode(errors="replace"),
            "capability": f"{major.value}.{minor.value}",
            "memory_mib": int(self._memory(device).total) >> 20,
        }

    def _memory(self, device: ctypes.c_void_p) -> _Memory:
        memory = _Memory()
        self._library.nvmlDeviceGetMemoryInfo(device, ctypes.byref(memory))
        return memory


def gpu_facts() -> dict[str, Any]:
    """Return the driver's version and the GPUs; both empty without a driver."""
    nvml = Nvml.opened()
    return {"driver": nvml.driver(), "gpus": nvml.gpus()} if nvml else {"driver": "", "gpus": []}
