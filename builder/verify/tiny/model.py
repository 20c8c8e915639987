"""The tiny model ready to be mounted: its files in the store, its requests, and what a right stack answers."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from builder.document import Document, canonical_json, key_of, tree_digest
from builder.verify.tiny.checkpoint import checkpoint_files, read_config, read_weights
from builder.verify.tiny.construction import construct
from builder.verify.tiny.program import Expectation, Program, Request, requests_of
from builder.verify.tiny.reference import Reference, margins

if TYPE_CHECKING:
    from collections.abc import Mapping

    from builder.store import Store
    from builder.verify.tiny.config import Preset

KIND = "tiny-model"


class TinyModel(Document):
    """A checkpoint as sha256 by file name, its requests, and the expected answer to each."""

    files: dict[str, str]
    requests: tuple[Request, ...]
    expected: tuple[Expectation, ...]


def tiny_model(preset: Preset, store: Store) -> TinyModel:
    """Return the model of a preset, made in seconds when the store does not have it.

    The key covers the preset and the source of this package; the files are the same bytes on every machine.
    """
    key = key_of({"preset": asdict(preset), "source": tree_digest(Path(__file__).parent)})
    with store.exclusive(f"{KIND}-{key}"):
        kept = store.result(KIND, key)
        if kept is not None:
            model = TinyModel.from_json(canonical_json(kept), source=f"{KIND} {key}")
            if all(store.has(sha256) for sha256 in model.files.values()):
                return model
        model = _make(preset, store)
        store.keep_result(KIND, key, model.to_plain())
        return model


def _make(preset: Preset, store: Store) -> TinyModel:
    made = construct(preset)
    files = checkpoint_files(preset, made.weights)
    requests = requests_of(preset)
    return TinyModel(
        files={name: store.add_bytes(data) for name, data in files.items()},
        requests=requests,
        expected=expectations(files, made.program, requests),
    )


def expectations(
    files: Mapping[str, bytes], program: Program, requests: tuple[Request, ...]
) -> tuple[Expectation, ...]:
    """Return the program's tokens with the margins that the float64 reference has on the quantised checkpoint."""
    reference = Reference(read_config(files), read_weights(files))
    expected = []
    for request in requests:
        tokens = program.continuation(request.prompt, request.new_tokens)
        reference.start()
        logits = reference.forward(request.prompt + tokens[:-1])
        distances = margins(logits[len(request.prompt) - 1 :])
        expected.append(
            Expectation(
                tokens=tokens,
                mean_margin=round(float(distances.mean()), 6),
                min_margin=round(float(distances.min()), 6),
            )
        )
    return tuple(expected)
