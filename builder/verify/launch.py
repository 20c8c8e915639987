"""Recipe's `serve` -> the command that starts its server on the tiny model, and what is asked of it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from builder.recipe.options import Argument, option_name, server_options

if TYPE_CHECKING:
    from builder.recipe.model import Serve

# Options that speak of the real model, its tokenizer or its network, and none of the stack's arithmetic.
OF_THE_REAL_MODEL = (
    *("model-path", "model", "tokenizer-path", "served-model-name", "chat-template", "revision", "download-dir"),
    *("tool-call-parser", "reasoning-parser", "host", "port", "api-key", "context-length", "max-total-tokens"),
    *("speculative-algorithm", "speculative-num-steps", "speculative-eagle-topk", "speculative-num-draft-tokens"),
    *("tp", "tp-size", "tensor-parallel-size", "dp", "dp-size", "ep", "ep-size", "nnodes", "node-rank"),
)
OF_THE_TINY_MODEL: dict[str, Argument] = {
    "skip-tokenizer-init": True,
    "skip-server-warmup": True,
    "grammar-backend": "none",
    "random-seed": 1,
}
REPLACED = (*OF_THE_REAL_MODEL, *OF_THE_TINY_MODEL)
GRAPHS_OFF = ("--disable-cuda-graph",)
HEALING = "SGLANG_SANITIZE_NAN_LOGITS"
# Values that are not finite must end the server, not be replaced. Source: server_args.py and sampler.py of 0.5.9,
# 0.5.12 and 0.5.14: up to 0.5.12 an option detects, and raises only under the variable of sglang's own CI; 0.5.14 has a
# variable of its own.
BY_VERSION: tuple[dict[str, Any], ...] = (
    {
        "before": "0.5.13",
        "arguments": ["--enable-nan-detection"],
        "environment": {"SGLANG_IS_IN_CI": "true"},
    },
    {"since": "0.5.13", "arguments": [], "environment": {"SGLANG_ENABLE_ASYNC_ASSERT": "1"}},
)
PHASES = (
    (r"Load weight begin|Loading safetensors", "load"),
    (r"Capture .{0,40}graph begin|Capturing batches", "graph capture"),
)
# What people write -> what the server says of itself.
SPELLINGS = {"bf16": "bfloat16", "fp8": "fp8_e4m3"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Deadlines:
    """Seconds: `ready` from the start to the first answer; `request` for each later one, `stop` to end.

    While the server's compilers run, the clock of `ready` stands still, for `compiling` seconds in all: on Hopper the
    Marlin modules of sglang 0.5.14 take nvcc 325 each (docs/evidence/h200/sglang-0.5.14-jit.txt).
    """

    ready: float = 900.0
    compiling: float = 1800.0
    request: float = 300.0
    stop: float = 30.0

    @property
    def longest(self) -> float:
        """How long a whole run may take, the requests answered two at a time."""
        return self.ready + self.compiling + 4 * self.request + 4 * self.stop


@dataclass(frozen=True, kw_only=True, slots=True)
class Launch:
    """A server to be started: `command` holds "{python}", "{model}" and "{port}" where the probe puts its own.

    `asked` are the backends and formats that the recipe names; the server must say that it runs exactly these. `ranks`
    above 1: so many GPUs must first agree on a sum.
    """

    engine: Literal["sglang"] = "sglang"
    command: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)
    without: tuple[str, ...] = (HEALING,)
    by_version: tuple[dict[str, Any], ...] = BY_VERSION
    phases: tuple[tuple[str, str], ...] = PHASES
    asked: dict[str, str] = field(default_factory=dict)
    port: int | None = None
    ranks: int = 1
    needs_gpu: bool = False
    collective: str = "nccl"
    deadlines: Deadlines = Deadlines()

    def to_request(self) -> dict[str, Any]:
        """Return what the probe reads of it."""
        limits = self.deadlines
        return {
            "command": list(self.command),
            "environment": self.environment,
            "without": list(self.without),
            "by_version": list(self.by_version),
            "package": self.engine,
            "phases": [list(pair) for pair in self.phases],
            "port": self.port,
            "ranks": self.ranks,
            "needs_gpu": self.needs_gpu,
            "collective": self.collective,
            "deadlines": asdict(limits),
        }


def sglang_launch(serve: Serve, *, ranks: int = 1, graphs: bool = True, deadlines: Deadlines | None = None) -> Launch:
    """Return how the recipe's sglang is started on the tiny model.

    `ranks` is the tensor parallelism, `graphs` whether CUDA graphs are captured as the recipe has it.
    """
    return Launch(
        command=(
            *("{python}", "-m", "sglang.launch_server", "--model-path", "{model}", "--host", "127.0.0.1"),
            *("--port", "{port}", *tiny_options(serve, ranks=ranks, graphs=graphs)),
        ),
        environment=serve.env,
        asked={name: str(value) for name, value in serve.options.items() if _is_named_part(name)},
        ranks=ranks,
        needs_gpu=True,
        deadlines=deadlines or Deadlines(),
    )


def tiny_options(serve: Serve, *, ranks: int = 1, graphs: bool = True) -> tuple[str, ...]:
    """Return the recipe's options of sglang for the tiny model, but for the model itself and the network."""
    kept = {name: value for name, value in serve.args.items() if option_name(name) not in REPLACED}
    words = server_options(kept | OF_THE_TINY_MODEL | {"tp": ranks})
    return (*words, *(() if graphs else GRAPHS_OFF))


def other_than_asked(asked: dict[str, str], info: dict[str, Any]) -> dict[str, tuple[str, str]]:
    """Return (asked, run) for each part that the server says it runs otherwise than asked."""
    other = {}
    for name, wanted in asked.items():
        said = info.get(name.replace("-", "_"))
        if said is not None and _same(wanted) != _same(str(said)):
            other[name] = (wanted, str(said))
    return other


def _is_named_part(name: str) -> bool:
    """Say whether an option names a part that a server may quietly replace by another."""
    named = name.endswith("backend") or name in {"quantization", "kv-cache-dtype", "model-impl"}
    return named and name not in REPLACED


def _same(value: str) -> str:
    return SPELLINGS.get(value, value)
