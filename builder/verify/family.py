"""Whether a stack that does not compute the model computes exactly what a known release of Transformers does."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from builder.verify.oracle import Observation
from builder.verify.tiny.checkpoint import read_config, read_weights
from builder.verify.tiny.deviations import deviation_among
from builder.verify.tiny.planted import FAMILIES
from builder.verify.tiny.reference import margins

if TYPE_CHECKING:
    from builder.store import Store
    from builder.verify.decode_report import DecodeReport
    from builder.verify.tiny.model import TinyModel
    from builder.verify.tiny.program import Request
    from builder.verify.tiny.reference import Reference

LOGIT_TOLERANCE = 1e-3  # float32 and float64 differ by up to 4e-6 here


def known_family(report: DecodeReport, model: TinyModel, store: Store) -> str | None:
    """Return what the installed release is known to compute, if its first answers are exactly that, else None."""
    known = deviation_among(report.versions)
    if known is None or known.family is None or not report.runs:
        return None
    files = {name: store.sound(sha256).read_bytes() for name, sha256 in model.files.items()}
    reference = FAMILIES[known.family](read_config(files), read_weights(files))
    seen = report.runs[0].answers
    same = all(_equal(greedy(reference, request), seen[place][0]) for place, request in enumerate(model.requests))
    return known.what if same else None


def greedy(reference: Reference, request: Request) -> Observation:
    """Return what a reference decodes by itself."""
    reference.start()
    logits = reference.forward(request.prompt)[-1:]
    tokens, distances = [], []
    for _ in range(request.new_tokens):
        tokens.append(int(logits[0].argmax()))
        distances.append(float(margins(logits)[0]))
        logits = reference.forward(tokens[-1:])
    return Observation(tokens=tuple(tokens), margins=tuple(distances))


def _equal(wanted: Observation, seen: Observation) -> bool:
    """Say whether tokens agree and margins nearly so; where two tokens tie in float32, the tokens after differ."""
    if wanted.tokens != seen.tokens or None in seen.margins:
        return False
    return bool(
        np.allclose(np.array(wanted.margins, float), np.array(seen.margins, float), rtol=0, atol=LOGIT_TOLERANCE)
    )
