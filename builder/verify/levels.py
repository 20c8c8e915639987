"""The levels that decode: which checks each of them is, for a stack with and without a server of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.engine import NoGpuError
from builder.verify.verdict import Check, Level

if TYPE_CHECKING:
    from collections.abc import Callable

    from builder.recipe.model import Recipe, Serve
    from builder.store import Store
    from builder.verify.place import Place

OWN_MODEL_CODE = ("sglang", "vllm")
DECODING: tuple[Level, ...] = ("cpu-decode", "gpu-decode", "target-decode")


def gpus_needed(recipe: Recipe) -> int:
    """Return how many GPUs the checks that a recipe requires need at a time."""
    if "target-decode" in recipe.smoke.require:
        return recipe.target.count
    return 1 if "gpu-decode" in recipe.smoke.require else 0


def own_model_code(serve: Serve | None) -> str | None:
    """Return the package whose own model code serves; None: Transformers' does."""
    if serve is None or serve.engine not in OWN_MODEL_CODE or serve.options.get("model-impl") == "transformers":
        return None
    return serve.engine


@dataclass(frozen=True, kw_only=True, slots=True)
class Decoding:
    """What the levels that decode need: `place` gives the stack's place with so many GPUs; `timeout` is in seconds."""

    place: Callable[[int], Place]
    serve: Serve | None
    store: Store
    timeout: float
    on_line: Callable[[str], None] | None = None

    def run(self, level: Level) -> tuple[Check, ...]:
        """Run one level; where no GPU can be had, its checks are skipped and say so."""
        try:
            return self._run(level)
        except NoGpuError as error:
            return (Check(name=level, level=level, outcome="skipped", summary=error.message),)

    def _run(self, level: Level) -> tuple[Check, ...]:
        from builder.verify.decode import cpu_decode, gpu_decode  # noqa: PLC0415 - NumPy is slow to import

        if level == "cpu-decode":
            place, server = self.place(0), own_model_code(self.serve)
            check = cpu_decode(place, store=self.store, server=server, timeout=self.timeout, on_line=self.on_line)
            return (check,)
        if level == "gpu-decode" and self.serve is not None and self.serve.engine == "sglang":
            return self._served(self.serve)
        if level == "gpu-decode":
            place = self.place(1)
            return gpu_decode(place, store=self.store, timeout=self.timeout, on_line=self.on_line)
        summary = f"this version of envbuild has no {level} check yet"
        return (Check(name=level, level=level, outcome="skipped", summary=summary),)

    def _served(self, serve: Serve) -> tuple[Check, ...]:
        """Decode through the recipe's own server on one GPU, with CUDA graphs and without."""
        from builder.verify.launch import Deadlines, sglang_launch  # noqa: PLC0415
        from builder.verify.serving import server_check  # noqa: PLC0415
        from builder.verify.tiny.config import GPU  # noqa: PLC0415
        from builder.verify.tiny.model import tiny_model  # noqa: PLC0415

        model, place = tiny_model(GPU, self.store), self.place(1)
        limits = Deadlines(ready=self.timeout, request=self.timeout / 2)
        return tuple(
            server_check(
                place,
                sglang_launch(serve, graphs=graphs, deadlines=limits),
                model,
                store=self.store,
                level="gpu-decode",
                name=name,
                on_line=self.on_line,
            )
            for name, graphs in (("gpu-decode server", True), ("gpu-decode server without graphs", False))
        )
