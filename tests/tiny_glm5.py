"""The small preset, made once for all tests that look at it."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from builder.verify.oracle import Judgement, Observation, judge_answer
from builder.verify.tiny.checkpoint import checkpoint_files, read_config, read_weights
from builder.verify.tiny.config import SMALL
from builder.verify.tiny.construction import Construction, construct
from builder.verify.tiny.model import expectations
from builder.verify.tiny.program import Expectation, Request, requests_of
from builder.verify.tiny.reference import ModelConfig, Reference, margins

if TYPE_CHECKING:
    from builder.verify.tiny.floats import Array


@dataclass(frozen=True, kw_only=True)
class Small:
    made: Construction
    files: dict[str, bytes]
    config: ModelConfig
    weights: dict[str, Array]
    request: Request
    expected: Expectation


@functools.cache
def small() -> Small:
    made = construct(SMALL)
    files = checkpoint_files(SMALL, made.weights)
    requests = requests_of(SMALL)[:1]
    return Small(
        made=made,
        files=files,
        config=read_config(files),
        weights=read_weights(files),
        request=requests[0],
        expected=expectations(files, made.program, requests)[0],
    )


def observe(reference: Reference, *, stepwise: bool = False) -> Observation:
    """What a stack would show that computes like `reference`, each token after the right ones before it.

    At once where the cache does not matter, else prompt first and then step by step.
    """
    model = small()
    prompt, answer = list(model.request.prompt), list(model.expected.tokens)
    reference.start()
    with np.errstate(all="ignore"):
        if stepwise:
            rows = [reference.forward(prompt)[-1:], *(reference.forward([token]) for token in answer[:-1])]
            logits = np.concatenate(rows)
        else:
            logits = reference.forward(prompt + answer[:-1])[len(prompt) - 1 :]
    finite = [bool(np.isfinite(row).all()) for row in logits]
    distances = margins(np.where(np.isfinite(logits), logits, 0.0))
    return Observation(
        tokens=tuple(int(row.argmax()) for row in logits),
        margins=tuple(float(d) if ok else None for d, ok in zip(distances, finite, strict=True)),
    )


def judged(reference: Reference, *, stepwise: bool = False) -> Judgement:
    return judge_answer(small().expected, observe(reference, stepwise=stepwise))
