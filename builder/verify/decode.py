"""The CPU decode check: the tiny GLM-5-NVFP4 is mounted into the image, decoded there, and judged here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from builder.document import Document, canonical_json
from builder.engine import Mount
from builder.verify.inside import ProbeAnswer, run_probe, with_log
from builder.verify.oracle import BAND, EXACT, Figures, Judgement, Observation, judge_answer
from builder.verify.tiny.config import SMALL
from builder.verify.tiny.deviations import deviation_among
from builder.verify.tiny.model import TinyModel, tiny_model
from builder.verify.verdict import Check, Outcome

if TYPE_CHECKING:
    from collections.abc import Callable

    from builder.engine import Engine
    from builder.store import Store

NAME: Literal["cpu-decode"] = "cpu-decode"
FOLDER = "/envbuild/decode"
DTYPE = "float32"
MODEL_TYPE = "glm_moe_dsa"
STACK_MODULES = ("torch", "transformers", "safetensors")

Phase = Literal["start", "import", "load", "prefill", "decode", "done"]


class ProbeError(Document):
    """The exception that ended the probe: class, message, the module that is missing if it is that, the traceback."""

    kind: str
    message: str
    missing_module: str | None
    traceback: tuple[str, ...]


class DecodeReport(Document):
    """What `builder/verify/probe/decode.py` reports: `seconds` by phase, `answers` one per finished request."""

    phase: Phase
    error: ProbeError | None
    seconds: dict[str, float]
    answers: tuple[Observation, ...]
    versions: dict[str, str]
    peak_memory_mib: float
    model_class: str = "the model"
    model_code: str = "none"
    model_code_sha256: str = "none"
    attention: str = "none"
    dtype: str = DTYPE


def cpu_decode(
    engine: Engine,
    *,
    image: str,
    store: Store,
    memory: int | None = None,
    timeout: float = 600.0,
    on_line: Callable[[str], None] | None = None,
) -> Check:
    """Decode the tiny checkpoint in the image's own Transformers, on the CPU, and judge the tokens and their margins.

    `memory` is in bytes, `timeout` in seconds. Proves the image's model code and its arithmetic, not a GPU kernel.
    """
    model = tiny_model(SMALL, store)
    answer = run_probe(
        engine,
        image=image,
        module="decode",
        arguments=(FOLDER,),
        mounts=_mounts(model, store),
        memory=memory,
        timeout=timeout,
        on_line=on_line,
    )
    return with_log(decode_check(answer, model), answer, store)


def decode_check(answer: ProbeAnswer, model: TinyModel) -> Check:
    """Return the check for what the probe answered."""
    if answer.report is None:
        return _check("failed", f"the probe ended without a report: {answer.ending}", {}, answer.tail)
    report = DecodeReport.from_json(canonical_json(answer.report), source="the decode probe's report")
    if report.error is not None:
        outcome: Outcome = "skipped" if report.error.missing_module in STACK_MODULES else "failed"
        return _check(outcome, _broken(report, report.error), _figures(report), report.error.traceback)
    return _judged(report, model)


def _mounts(model: TinyModel, store: Store) -> tuple[Mount, ...]:
    """Return the checkpoint's files and the requests, read-only; the expected tokens stay outside."""
    request = {"dtype": DTYPE, "requests": [request.to_plain() for request in model.requests]}
    sha256 = store.add_bytes(canonical_json(request))
    files = [Mount(source=store.sound(file), target=f"{FOLDER}/model/{name}") for name, file in model.files.items()]
    return (*files, Mount(source=store.sound(sha256), target=f"{FOLDER}/request.json"))


def _judged(report: DecodeReport, model: TinyModel) -> Check:
    band = EXACT if report.dtype == "float32" else BAND
    judgements = [judge_answer(*pair, band) for pair in zip(model.expected, report.answers, strict=True)]
    figures = judgements[0].figures | _second_figures(judgements[1:]) | _figures(report)
    wrong = next((place for place, judgement in enumerate(judgements) if judgement.cause), None)
    if wrong is None:
        return _check("passed", _passed(report, judgements[0]), figures, ())
    prefix = "" if wrong == 0 else f"request {wrong + 1}, which shares its beginning with the first: "
    return _check(
        "failed", f"{_stack(report)}: {prefix}{judgements[wrong].cause}{_hint(report)}", figures, _code(report)
    )


def _passed(report: DecodeReport, first: Judgement) -> str:
    return (
        f"{_stack(report)} decodes {first.figures['tokens_right']} of {first.figures['tokens']} tokens as it must; "
        f"mean margin {first.figures['mean_margin']} (reference {first.figures['golden_mean_margin']})"
    )


def _second_figures(others: list[Judgement]) -> Figures:
    """Return the tokens of the requests after the first, summed."""
    return {
        f"second_request_{name}": sum(int(judgement.figures[name]) for judgement in others)
        for name in ("tokens", "tokens_right")
    }


def _broken(report: DecodeReport, error: ProbeError) -> str:
    """Return one sentence for an exception, with the cause where it is known."""
    first_line = error.message.strip().partition("\n")[0]
    if error.missing_module in STACK_MODULES:
        return f"the image has no {error.missing_module}, so there is no model code to decode with"
    if error.kind == "ValueError" and MODEL_TYPE in error.message and "does not recognize" in error.message:
        return f"{_transformers(report)} does not know the model type {MODEL_TYPE}{_hint(report)}"
    if error.kind == "CheckpointNotUnderstoodError":
        return f"{_stack(report)} does not take the checkpoint as it is: {first_line}{_hint(report)}"
    if error.kind == "MemoryError" or "DefaultCPUAllocator" in error.message:
        return f"out of memory in phase {report.phase}: {error.kind}: {first_line}"
    return f"phase {report.phase} ended with {error.kind}: {first_line}"


def _hint(report: DecodeReport) -> str:
    known = deviation_among(report.versions)
    return f"; known: {known.what}" if known else ""


def _code(report: DecodeReport) -> tuple[str, ...]:
    """Return the lines that name the model code that was run, and the source of a hint."""
    known = deviation_among(report.versions)
    source = (f"source of the hint: {known.source}",) if known else ()
    return (f"model code: {report.model_code}, sha256 {report.model_code_sha256}", *source)


def _stack(report: DecodeReport) -> str:
    return f"{report.model_class} of {_transformers(report)}"


def _transformers(report: DecodeReport) -> str:
    return f"Transformers {report.versions.get('transformers', '(version unknown)')}"


def _figures(report: DecodeReport) -> Figures:
    """Return how long the phases took, what they needed, and what exactly was proven."""
    figures: Figures = {
        f"{phase}_seconds": seconds for phase, seconds in report.seconds.items() if phase not in ("start", "done")
    }
    figures |= {f"{package}_version": version for package, version in report.versions.items()}
    return figures | {
        "phase": report.phase,
        "peak_memory_mib": report.peak_memory_mib,
        "model_code": report.model_code,
        "model_code_sha256": report.model_code_sha256,
        "attention": report.attention,
        "dtype": report.dtype,
    }


def _check(outcome: Outcome, summary: str, figures: Figures, evidence: tuple[str, ...]) -> Check:
    return Check(name=NAME, level=NAME, outcome=outcome, summary=summary, figures=figures, evidence=evidence)
