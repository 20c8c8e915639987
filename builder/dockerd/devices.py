"""The GPUs of an engine: which it says it has, and how a container asks for some of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from docker.types import DeviceRequest

from builder.engine import ALL_GPUS, NoGpuError

if TYPE_CHECKING:
    from collections.abc import Mapping

CDI = "nvidia.com/gpu="  # Container Device Interface; `all` names no single device
KINDS = {"gpu", "nvidia-gpu", "nvidia.com/gpu"}


def gpus_in(info: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the GPUs that `docker info` names.

    They are the CDI devices that Engine 28.3 and newer find, else the `node-generic-resources` that the operator has
    written into daemon.json, as NVIDIA's documentation of Swarm shows.
    """
    found = [str(device.get("ID", "")) for device in info.get("DiscoveredDevices") or ()]
    devices = [name.removeprefix(CDI) for name in found if name.startswith(CDI) and name != f"{CDI}all"]
    indexes = sorted((name for name in devices if name.isdecimal()), key=int)  # each GPU has further names
    if devices:
        return tuple(indexes or devices)
    named = [item.get("NamedResourceSpec") or {} for item in info.get("GenericResources") or ()]
    return tuple(str(one["Value"]) for one in named if str(one.get("Kind", "")).lower() in KINDS)


def gpu_requests(wanted: int, gpus: tuple[str, ...]) -> list[DeviceRequest] | None:
    """Return what a container asks for to see so many GPUs, of the engine's own or of those in `gpus`."""
    if not wanted:
        return None
    if not gpus:
        return [DeviceRequest(count=wanted, capabilities=[["gpu"]])]
    if wanted > len(gpus):
        raise NoGpuError(
            f"{wanted} GPUs are needed, and only {', '.join(gpus)} may be used",
            remedy="name more of them in ENVBUILD_GPUS",
        )
    chosen = gpus if wanted == ALL_GPUS else gpus[:wanted]
    return [DeviceRequest(device_ids=list(chosen), capabilities=[["gpu"]])]
