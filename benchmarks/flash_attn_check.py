"""Whether a compiled flash-attn computes attention: forward and gradients against PyTorch's on this machine's GPU.

    PYTHONPATH=WHEEL python3 benchmarks/flash_attn_check.py [--forward] [--record RESULT.json]

WHEEL is the folder that the wheel was installed into. The reference is PyTorch's attention in fp32. An answer in bf16
or fp16 may be wrong by twice what PyTorch's own attention in that type is wrong by at most, and by one step of the type
at the token's largest value. `--forward` leaves out gradients and windows, for a package compiled without them. Exit
code 0: every case is within its bound.
"""

from __future__ import annotations

import argparse
import json
import sys
import zlib
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

HEAD_DIMS = (32, 64, 96, 128, 192, 256)  # one set of kernels each
TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
PAGE = 256  # flash-attn 2 takes pages of a multiple of this many tokens
WINDOW = 64
Tensors = tuple[torch.Tensor, ...]


@dataclass(frozen=True, kw_only=True)
class Case:
    """One call: `queries` and `keys` are the tokens of each sequence, `heads` those of queries and of keys."""

    kind: str
    dtype: str
    dim: int
    causal: bool
    queries: tuple[int, ...]
    keys: tuple[int, ...]
    heads: tuple[int, int]
    window: int = -1
    gradients: bool = True

    @property
    def name(self) -> str:
        words = [self.kind, self.dtype, f"d{self.dim}", "causal" if self.causal else "full"]
        words += [f"window {self.window}"] if self.window >= 0 else []
        shapes = [f"{queries}x{keys}" for queries, keys in zip(self.queries, self.keys, strict=True)]
        return " ".join([*words, "+".join(shapes), f"heads {self.heads[0]}/{self.heads[1]}"])


@dataclass(frozen=True, kw_only=True)
class Error:
    """The largest difference of one result from the reference: flash-attn's, and PyTorch's in the same type.

    `used` is the largest share of its bound that a token's error takes up.
    """

    result: str
    ours: float
    theirs: float
    used: float

    @property
    def is_within(self) -> bool:
        return self.used <= 1  # not so for a NaN


def cases(*, forward: bool) -> Iterator[Case]:
    """Yield all calls."""
    for dtype in TYPES:
        for dim in HEAD_DIMS:
            for causal in (False, True):
                of: dict[str, Any] = {"dtype": dtype, "dim": dim, "causal": causal, "gradients": not forward}
                yield Case(kind="dense", queries=(1024,) * 2, keys=(1024,) * 2, heads=(8, 8), **of)
                yield Case(kind="dense", queries=(333,) * 2, keys=(777,) * 2, heads=(8, 2), **of)
                yield Case(kind="varlen", queries=(5, 128, 777, 1), keys=(5, 128, 777, 1), heads=(8, 2), **of)
                yield Case(kind="varlen", queries=(1, 64, 300), keys=(900, 64, 513), heads=(4, 4), **of)
                if not forward:
                    yield Case(kind="dense", queries=(515,), keys=(515,), heads=(4, 4), window=WINDOW, **of)
            cached: dict[str, Any] = {"dtype": dtype, "dim": dim, "causal": True, "gradients": False}
            yield Case(kind="cache", queries=(1, 1, 1), keys=(1, 700, 1500), heads=(16, 2), **cached)
            yield Case(kind="paged", queries=(1, 1, 1), keys=(1, 700, 1500), heads=(16, 2), **cached)
            yield Case(kind="paged", queries=(7, 7), keys=(256, 1031), heads=(8, 8), **cached)


def inputs(case: Case, device: str) -> list[Tensors]:
    """Return queries, keys, values and the gradient of the answer of each sequence: (tokens, heads, dim), in fp32.

    Their values are those that the case's type can hold.
    """
    source = torch.Generator().manual_seed(zlib.crc32(case.name.encode()))

    def random(tokens: int, heads: int) -> torch.Tensor:
        values = torch.randn(tokens, heads, case.dim, generator=source)
        return values.to(TYPES[case.dtype]).float().to(device)

    ours, theirs = case.heads
    return [
        (random(queries, ours), random(keys, theirs), random(keys, theirs), random(queries, ours))
        for queries, keys in zip(case.queries, case.keys, strict=True)
    ]


def allowed(case: Case, queries: int, keys: int, device: str) -> torch.Tensor:
    """Return which keys each query sees, (queries, keys): the last query is beside the last key."""
    places = torch.arange(queries, device=device)[:, None] + (keys - queries)
    distance = places - torch.arange(keys, device=device)[None, :]
    seen = torch.ones(queries, keys, dtype=torch.bool, device=device)
    if case.causal:
        seen &= distance >= 0
    if case.window >= 0:
        seen &= distance.abs() <= case.window
    return seen


def by_torch(case: Case, sequences: Sequence[Tensors], dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Return what PyTorch answers in a type: output and, if asked, gradients, of all sequences one behind the other."""
    results = []
    for sequence in sequences:
        q, k, v, gradient = (part.to(dtype) for part in sequence)
        leaves = [part.detach().requires_grad_(case.gradients) for part in (q, k, v)]
        groups = case.heads[0] // case.heads[1]
        query, key, value = (part.transpose(0, 1)[None] for part in leaves)
        key, value = (part.repeat_interleave(groups, dim=1) for part in (key, value))
        mask = allowed(case, query.shape[2], key.shape[2], str(q.device))
        out = scaled_dot_product_attention(query, key, value, attn_mask=mask)[0].transpose(0, 1)
        results.append((out, *(torch.autograd.grad(out, leaves, gradient) if case.gradients else ())))
    return named([torch.cat(parts) for parts in zip(*results, strict=True)])


def named(results: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return results in fp32 by name; without gradients there is only the first."""
    return {name: value.detach().float() for name, value in zip(("out", "dq", "dk", "dv"), results, strict=False)}


def by_flash(case: Case, sequences: Sequence[Tensors], flash: Any) -> dict[str, torch.Tensor]:
    """Return the same as flash-attn answers it."""
    typed = [tuple(part.to(TYPES[case.dtype]) for part in sequence) for sequence in sequences]
    if case.kind in {"cache", "paged"}:
        return named([from_cache(case, typed, flash)])
    join = torch.stack if case.kind == "dense" else torch.cat
    q, k, v, gradient = (join(parts) for parts in zip(*typed, strict=True))
    leaves = [part.requires_grad_(case.gradients) for part in (q, k, v)]
    options = {"causal": case.causal, "window_size": (case.window, case.window)}
    if case.kind == "dense":
        out = flash.flash_attn_func(*leaves, **options)
    else:
        ends = [ends_of(lengths, str(q.device)) for lengths in (case.queries, case.keys)]
        out = flash.flash_attn_varlen_func(*leaves, *ends, max(case.queries), max(case.keys), **options)
    results = (out, *(torch.autograd.grad(out, leaves, gradient) if case.gradients else ()))
    return named([part.flatten(0, 1) if case.kind == "dense" else part for part in results])


def ends_of(lengths: Sequence[int], device: str) -> torch.Tensor:
    """Return where each sequence begins and ends among all tokens."""
    return torch.tensor([0, *lengths], device=device).cumsum(0, dtype=torch.int32)


def from_cache(case: Case, typed: Sequence[Tensors], flash: Any) -> torch.Tensor:
    """Return the answer to the newest tokens: older ones are in the cache, the call puts the new ones there."""
    device, new = str(typed[0][0].device), case.queries[0]
    lengths = [keys - new for keys in case.keys]
    pages = -(-max(case.keys) // PAGE)
    shape = (len(typed) * pages, PAGE, case.heads[1], case.dim)
    order = torch.randperm(shape[0], generator=torch.Generator().manual_seed(1)) if case.kind == "paged" else None
    table = (torch.arange(shape[0]) if order is None else order).view(len(typed), pages)
    caches = [torch.full(shape, 7.0, dtype=TYPES[case.dtype], device=device) for _ in range(2)]
    for cache, which in zip(caches, (1, 2), strict=True):
        for row, (length, sequence) in enumerate(zip(lengths, typed, strict=True)):
            for token in range(0, length, PAGE):
                piece = sequence[which][token : min(token + PAGE, length)]
                cache[table[row, token // PAGE], : len(piece)] = piece
    fresh = [torch.stack([sequence[which][-new:] for sequence in typed]) for which in (1, 2)]
    if order is None:
        caches = [cache.view(len(typed), pages * PAGE, *shape[2:]) for cache in caches]
    out = flash.flash_attn_with_kvcache(
        torch.stack([sequence[0] for sequence in typed]),
        *caches,
        *fresh,
        cache_seqlens=torch.tensor(lengths, dtype=torch.int32, device=device),
        block_table=None if order is None else table.to(device=device, dtype=torch.int32),
        causal=case.causal,
    )
    return out.flatten(0, 1)


def errors(case: Case, flash: Any, device: str) -> list[Error]:
    """Return how far flash-attn and PyTorch are from the reference."""
    dtype, sequences = TYPES[case.dtype], inputs(case, device)
    with sdpa_kernel(SDPBackend.MATH):
        right = by_torch(case, sequences, torch.float32)
    theirs, ours = by_torch(case, sequences, dtype), by_flash(case, sequences, flash)
    return [error(name, ours[name] - wanted, theirs[name] - wanted, wanted, dtype) for name, wanted in right.items()]


def error(name: str, ours: torch.Tensor, theirs: torch.Tensor, wanted: torch.Tensor, dtype: torch.dtype) -> Error:
    """Return one result's error from the differences of both answers, each (tokens, heads, dim)."""
    peer = theirs.abs().max()
    bounds = 2 * peer + torch.finfo(dtype).eps * wanted.abs().amax((1, 2))
    used = (ours.abs().amax((1, 2)) / bounds).max()
    return Error(result=name, ours=float(ours.abs().max()), theirs=float(peer), used=float(used))


def examine(flash: Any, *, device: str, forward: bool) -> list[dict[str, Any]]:
    """Check every case and print a line for each."""
    rows = []
    for case in cases(forward=forward):
        try:
            found = errors(case, flash, device)
        except RuntimeError as error:  # a kernel that cannot be launched
            rows.append({"case": case.name, "ok": False, "failure": str(error).splitlines()[0]})
        else:
            ok = all(one.is_within for one in found)
            rows.append({"case": case.name, "ok": ok, "errors": [asdict(one) for one in found]})
        print("ok   " if rows[-1]["ok"] else "WRONG", case.name, rows[-1].get("failure") or figures(found))
    return rows


def figures(found: Sequence[Error]) -> str:
    """Return the errors as `result ours/theirs`."""
    return ", ".join(f"{one.result} {one.ours:.2e}/{one.theirs:.2e}" for one in found)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--forward", action="store_true")
    parser.add_argument("--record", type=Path)
    options = parser.parse_args(arguments)
    flash_attn = import_module("flash_attn")
    torch.backends.cuda.matmul.allow_tf32 = False
    rows = examine(flash_attn, device="cuda", forward=options.forward)
    wrong = [row for row in rows if not row["ok"]]
    facts = {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "flash-attn": flash_attn.__version__,
        "cases": len(rows),
        "wrong": len(wrong),
        "worst": max((one["used"] for row in rows for one in row.get("errors", ())), default=None),
    }
    print(json.dumps(facts))
    if options.record:
        options.record.write_text(json.dumps({**facts, "rows": rows}, indent=1) + "\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
