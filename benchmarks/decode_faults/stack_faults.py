"""Planted faults and honest variants in a real stack (Transformers), on a GPU or the CPU, judged as the checks judge.

    python stack_faults.py --python PYTHON --device cuda --variant bfloat16:sdpa --case small --out FILE

PYTHON is the stack's interpreter. Writes one JSON record: what was seen of each fault, and whether it was caught.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from builder.document import Document, canonical_json
from builder.process import run
from builder.store import Store
from builder.verify.oracle import Observation, band_for
from builder.verify.place import Here
from builder.verify.rounds import SERVED, Rounds, judge_rounds, rounds_request
from builder.verify.tiny.config import GPU, SMALL, Preset
from builder.verify.tiny.model import TinyModel, tiny_model

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
ROUNDS = ((0,), (1,))
Variants = list[list[str]]
CASES = {"small": SMALL, "kernel-sized": GPU}


class Seen(Document):
    fault: str
    dtype: str
    attention: str
    answers: tuple[tuple[Observation, ...], ...]
    error: str | None
    seconds: float


def laid_out(model: TinyModel, store: Store, folder: Path) -> Path:
    for name, sha256 in model.files.items():
        (folder / name).symlink_to(store.sound(sha256))
    return folder


def judged(seen: Seen, model: TinyModel, rounds: Rounds = ROUNDS) -> dict[str, Any]:
    entry = {"name": seen.fault, "dtype": seen.dtype, "attention": seen.attention, "seconds": seen.seconds}
    if seen.error is not None:
        return {**entry, "caught": True, "by": seen.error}
    judgement = judge_rounds(model, rounds, seen.answers, band_for(seen.dtype))
    figures = {
        name: judgement.figures[name]
        for name in (
            *("all_tokens_right", "all_tokens", "lowest_mean_margin_ratio", "highest_mean_margin_ratio"),
            "lowest_min_margin_ratio",
        )
    }
    caught = judgement.cause is not None
    return {**entry, "caught": caught, "by": judgement.cause, **figures}


def observe(python: Path, model: TinyModel, store: Store, asked: dict[str, Any]) -> list[Seen]:
    """Run the faults in the stack's interpreter."""
    with tempfile.TemporaryDirectory() as folder:
        place = laid_out(model, store, Path(folder))
        (request := Path(folder, "request.txt")).write_bytes(canonical_json(asked))
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        ended = run(
            [str(python), str(HERE / "on_stack.py"), str(place), str(request)],
            environment={"PYTHONPATH": path},
            on_line=lambda line: print(line, file=sys.stderr) if "Error" in line else None,
        )
    lines = [line for line in ended.stdout.decode().splitlines() if line.startswith("{")]
    if not lines:
        raise SystemExit(ended.text[-2000:])
    return [Seen.from_json(line, source="on_stack.py") for line in lines]


def faults(python: Path, preset: Preset, store: Store, device: str, variants: Variants) -> list[dict[str, Any]]:
    model = tiny_model(preset, store)
    asked = {"device": device, "variants": variants, "names": None, "rounds": rounds_request(model, ROUNDS)}
    return [judged(one, model) for one in observe(python, model, store, asked)]


def honest(python: Path, store: Store, device: str, seeds: int, variants: Variants) -> list[dict[str, Any]]:
    """Right stacks that differ in formats, attention kinds, batches and models; none may be flagged."""
    results = []
    for seed in range(100, 100 + seeds):
        model = tiny_model(dataclasses.replace(SMALL, seed=seed), store)
        asked = {"device": device, "variants": variants, "names": ["none"], "rounds": rounds_request(model, SERVED)}
        results += [judged(one, model, SERVED) | {"seed": seed} for one in observe(python, model, store, asked)]
    return results


def device_assert(python: Path, store: Store) -> dict[str, Any]:
    """A token beyond the vocabulary in a real run: the check must name the kernel and the line that launched it."""
    from builder.verify.decode import gpu_check  # noqa: PLC0415

    model = tiny_model(SMALL, store)
    first = model.requests[0]
    beyond = first.model_copy(update={"prompt": (*first.prompt[:-1], 1 << 20)})
    broken = model.model_copy(update={"requests": (beyond, *model.requests[1:])})
    check = gpu_check(Here(store=store, python=python), broken, name="gpu-decode assert", store=store)
    log = store.sound(str(check.log)).read_text().splitlines() if check.log else []
    return {"check": check.to_plain(), "log": log}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", type=Path, default=Path(sys.executable))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--variant", action="append", default=[], help="such as bfloat16:sdpa")
    parser.add_argument("--case", choices=CASES, action="append", default=[])
    parser.add_argument("--seeds", type=int, default=0)
    parser.add_argument("--assert", dest="provoke", action="store_true")
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    store = Store(given.store)
    record: dict[str, Any] = {}
    if given.provoke:
        record["device assert"] = device_assert(given.python, store)
    variants = [one.split(":") for one in given.variant]
    if given.seeds:
        record["honest"] = honest(given.python, store, given.device, given.seeds, variants)
    for case in given.case:
        record[case] = faults(given.python, CASES[case], store, given.device, variants)
    given.out.write_text(json.dumps(record, indent=1))
    for name, entries in record.items():
        if isinstance(entries, list):
            print(name, sum(entry["caught"] for entry in entries), "flagged of", len(entries))


if __name__ == "__main__":
    main()
