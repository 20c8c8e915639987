"""PyTorch's own kernels around attention and experts: normalisation, rotary embedding, routing, sampling, casts."""

# ruff: noqa: PLC0415 - PyTorch belongs to the stack under test
from __future__ import annotations

from typing import TYPE_CHECKING, Any

from builder.verify.probe.drives.call import Call

if TYPE_CHECKING:
    from collections.abc import Iterator

TOKENS, BATCH = 128, 4


def calls(group: dict[str, Any]) -> Iterator[Call]:
    """Yield the calls at the sizes of the model: `hidden`, `vocabulary`, `experts`, `per_token`, `rope`."""
    import torch

    def filled(*shape: int, dtype: Any = torch.bfloat16) -> Any:
        return torch.ones(*shape, dtype=dtype, device="cuda")

    hidden, vocabulary, experts = group["hidden"], group["vocabulary"], group["experts"]

    def norm() -> None:
        x = filled(TOKENS, hidden)
        _ = (x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-5)).to(x.dtype) * filled(hidden)

    def rope() -> None:
        angles = torch.arange(TOKENS, device="cuda", dtype=torch.float32)[:, None] * filled(group["rope"] // 2).float()
        x, half = filled(TOKENS, 8, group["rope"]), group["rope"] // 2
        cos, sin = angles.cos()[:, None].to(x.dtype), angles.sin()[:, None].to(x.dtype)
        _ = torch.cat((x[..., :half] * cos - x[..., half:] * sin, x[..., half:] * cos + x[..., :half] * sin), dim=-1)

    def route() -> None:
        scores = filled(TOKENS, experts, dtype=torch.float32).sigmoid()
        weights, chosen = scores.topk(group["per_token"], dim=-1)
        _ = weights / weights.sum(-1, keepdim=True), torch.nn.functional.one_hot(chosen, experts).sum((0, 1))

    def sample() -> None:
        chances = torch.softmax(filled(BATCH, vocabulary, dtype=torch.float32), dim=-1)
        ordered, _ = chances.sort(dim=-1, descending=True)
        _ = ordered.cumsum(-1), chances.argmax(-1), torch.multinomial(chances, 1)

    def quantise() -> None:
        x = filled(TOKENS, hidden)
        scale = x.abs().amax(-1, keepdim=True).float() / 448
        _ = (x / scale).clamp(-448, 448).to(torch.float8_e4m3fn)

    def embed() -> None:
        table = filled(vocabulary // 16, hidden)
        _ = torch.nn.functional.embedding(torch.zeros(TOKENS, dtype=torch.int64, device="cuda"), table)

    parts = {"norm": norm, "rope": rope, "routing": route, "sampling": sample, "fp8 cast": quantise, "embedding": embed}
    for name, part in parts.items():
        yield Call(name=f"torch {name}", run=part, decides=True)
