"""What the engine's answers say of an image: its layers with the history's words and sizes, its settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from builder.dockerd.names import id_of
from builder.engine import ImageFacts, ImageLayer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_OWN = "envbuild: "
_RUN = {"Cmd": (), "Entrypoint": (), "User": ("0", "root"), "WorkingDir": ("/",)}  # and what says nothing


def facts_of(inspected: Mapping[str, Any], history: Sequence[Mapping[str, Any]]) -> ImageFacts:
    """Return the facts of an image from the answers of `/images/NAME/json` and `/images/NAME/history`."""
    config = inspected.get("Config") or {}
    return ImageFacts(
        image_id=id_of(inspected),
        layers=layers_of(inspected["RootFS"].get("Layers") or [], history),
        environment=dict(_pair(line) for line in config.get("Env") or ()),
        labels=config.get("Labels") or {},
        run={name: config[name] for name, unsaid in _RUN.items() if config.get(name) and config[name] not in unsaid},
    )


def layers_of(diff_ids: Sequence[str], history: Sequence[Mapping[str, Any]]) -> tuple[ImageLayer, ...]:
    """Return the layers from the bottom. `history` is newest first, and has lines without a layer.

    The engine does not say which lines these are. Where it follows neither from their number nor from their sizes, no
    layer has words or a size.
    """
    lines = list(reversed(history))
    if len(lines) != len(diff_ids):
        lines = [line for line in lines if line["Size"] > 0]
    if len(lines) != len(diff_ids):
        return tuple(ImageLayer(diff_id=diff_id, title="", size=None) for diff_id in diff_ids)
    return tuple(
        ImageLayer(diff_id=diff_id, title=_title(str(line["CreatedBy"])), size=line["Size"])
        for diff_id, line in zip(diff_ids, lines, strict=True)
    )


def _title(created_by: str) -> str:
    return " ".join(created_by.removeprefix(_OWN).removeprefix("/bin/sh -c ").removeprefix("#(nop) ").split())


def _pair(line: str) -> tuple[str, str]:
    name, _, value = line.partition("=")
    return name, value
