"""What the decode probe reports, and the sentences that are made of it."""

from __future__ import annotations

from typing import Literal

from builder.document import Document
from builder.verify.gpu_facts import GpuFacts
from builder.verify.inside import ProbeError
from builder.verify.oracle import Figures, Observation
from builder.verify.tiny.deviations import deviation_among

MODEL_TYPE = "glm_moe_dsa"
STACK_MODULES = ("torch", "transformers", "safetensors")
Phase = Literal["start", "import", "load", "prefill", "decode", "done"]


class DecodeTimes(Document):
    """How fast one round went."""

    first_token_seconds: float
    decode_tokens_per_second: float


class DecodeRun(Document):
    """One load of the model: the code that ran, its format and attention, the answers and times by round."""

    dtype: str
    attention: str
    model_class: str
    model_code: str
    model_code_sha256: str
    answers: tuple[tuple[Observation, ...], ...]
    times: tuple[DecodeTimes, ...]
    peak_gpu_mib: float = 0.0


class DecodeReport(Document):
    """What `builder/verify/probe/decode.py` reports: `seconds` by phase, `runs` as far as they came.

    `served_by` is the server's own model class, found in the stack; None: Transformers' code is what serves.
    """

    phase: Phase
    error: ProbeError | None
    seconds: dict[str, float]
    runs: tuple[DecodeRun, ...]
    versions: dict[str, str]
    peak_memory_mib: float
    gpu: GpuFacts = GpuFacts()
    served_by: str | None = None

    @property
    def transformers(self) -> str:
        """The release of Transformers, named."""
        return f"Transformers {self.versions.get('transformers', '(version unknown)')}"

    @property
    def stack(self) -> str:
        """The model class and whose it is."""
        return f"{self.runs[0].model_class if self.runs else 'the model'} of {self.transformers}"

    @property
    def hint(self) -> str:
        """What is known of this release, as the end of a sentence."""
        known = deviation_among(self.versions)
        return f"; known: {known.what}" if known else ""

    def broken(self, error: ProbeError) -> str:
        """Return one sentence for an exception, with the cause where it is known."""
        if error.missing_module in STACK_MODULES:
            return f"there is no {error.missing_module}, so there is no model code to decode with"
        if error.kind == "NoGpuError":
            return f"the stack sees no GPU: {error.first_line}"
        if error.kind == "ValueError" and MODEL_TYPE in error.message and "does not recognize" in error.message:
            return f"{self.transformers} does not know the model type {MODEL_TYPE}{self.hint}"
        if error.kind == "CheckpointNotUnderstoodError":
            return f"{self.stack} does not take the checkpoint as it is: {error.first_line}{self.hint}"
        if error.kind == "MemoryError" or "DefaultCPUAllocator" in error.message:
            return f"out of memory in phase {self.phase}: {error.kind}: {error.first_line}"
        return f"phase {self.phase} ended with {error.kind}: {error.first_line}"

    def cannot_run(self, error: ProbeError) -> bool:
        """Say whether nothing could be tried, so that nothing is proven either way."""
        return error.missing_module in STACK_MODULES or error.kind == "NoGpuError"

    def code(self) -> tuple[str, ...]:
        """Return the lines that name the model code that was run, and the source of a hint."""
        known = deviation_among(self.versions)
        source = (f"source of the hint: {known.source}",) if known else ()
        ran = (f"model code: {run.model_code}, sha256 {run.model_code_sha256}" for run in self.runs[:1])
        return (*ran, *source)

    def figures(self) -> Figures:
        """Return how long the phases took, what they needed, and what exactly was proven."""
        figures: Figures = {
            f"{phase}_seconds": seconds for phase, seconds in self.seconds.items() if phase not in ("start", "done")
        }
        figures |= {f"{package}_version": version for package, version in self.versions.items()}
        figures |= {"phase": self.phase, "peak_memory_mib": self.peak_memory_mib}
        for run in self.runs[-1:]:
            figures |= {"model_code": run.model_code, "model_code_sha256": run.model_code_sha256}
            figures |= {"served_by": self.served_by or run.model_code}
        return figures | {
            "attention": ", ".join(dict.fromkeys(run.attention for run in self.runs)) or "none",
            "dtype": ", ".join(dict.fromkeys(run.dtype for run in self.runs)) or "none",
        }
