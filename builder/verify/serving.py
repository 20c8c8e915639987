"""The server check: the stack's own server decodes the tiny model through its HTTP interface, and is judged here."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from builder.document import Document, canonical_json
from builder.verify.cuda_error import Attempts, attempt_twice, log_of
from builder.verify.gpu_facts import FOUR_BIT, GpuFacts
from builder.verify.inside import NO_REPORT, ProbeError
from builder.verify.launch import GRAPHS_OFF, other_than_asked
from builder.verify.oracle import BAND, HALF, Figures, Observation
from builder.verify.rounds import SERVED, judge_rounds, rounds_request
from builder.verify.verdict import Check, Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from builder.store import Store
    from builder.verify.inside import ProbeAnswer
    from builder.verify.launch import Launch
    from builder.verify.oracle import Band
    from builder.verify.place import Place
    from builder.verify.rounds import Rounds
    from builder.verify.tiny.model import TinyModel
    from builder.verify.verdict import Level

EVIDENCE_LINES = 30
SIXTEEN_BITS = ("bfloat16", "float16")
Phase = Literal["start", "collective", "import", "load", "graph capture", "prefill", "decode", "done"]


class Ending(Document):
    """How the server went: what ended it, the processes that outlived it, and whether port and GPU memory are back."""

    how: Literal["exited", "terminated", "killed"]
    code: int | None
    left_behind: tuple[str, ...]
    seconds: float
    log_bytes: int
    port_free: bool
    gpu_memory_back: bool


class Tensors(Document):
    """The checkpoint as the server was given it."""

    present: int
    missing: int
    missing_names: tuple[str, ...]


class ServeReport(Document):
    """What `builder/verify/probe/serve.py` reports."""

    phase: Phase
    error: ProbeError | None
    seconds: dict[str, float]
    answers: tuple[tuple[Observation, ...], ...]
    server_info: dict[str, str | int | float | bool | None]
    ending: Ending | None
    log: tuple[str, ...]
    not_loaded: tuple[str, ...] = ()
    compilers: tuple[str, ...] = ()
    tensors: Tensors | None
    times: dict[str, float]
    gpu: GpuFacts = GpuFacts()
    versions: dict[str, str]
    peak_memory_mib: float
    peak_gpu_mib: int = 0
    model_code: str = "unknown"
    model_code_sha256: str = "unknown"


def server_check(
    place: Place,
    launch: Launch,
    model: TinyModel,
    *,
    store: Store,
    level: Level,
    name: str,
    rounds: Rounds = SERVED,
    on_line: Callable[[str], None] | None = None,
) -> Check:
    """Start the stack's server on the tiny model, decode, end it, and judge what it answered.

    After a CUDA error it is started once more with blocking launches and without graphs; both logs are kept.
    The server is ended, and its port and GPU memory are free again, whatever happens.
    """
    files = {f"model/{file}": store.sound(sha256) for file, sha256 in model.files.items()}

    def attempt(environment: Mapping[str, str]) -> ProbeAnswer:
        started = _blocking(launch) if environment else launch
        request = {**started.to_request(), "rounds": rounds_request(model, rounds)}
        timeout = launch.deadlines.longest
        return place.probe("serve", request, files, timeout=timeout, environment=environment, on_line=on_line)

    attempts = attempt_twice(attempt)
    return attempts.keep(served_check(attempts, launch, model, level=level, name=name, rounds=rounds), store)


def served_check(
    attempts: Attempts, launch: Launch, model: TinyModel, *, level: Level, name: str, rounds: Rounds
) -> Check:
    """Return the check for what the probe answered."""
    answer = attempts.first
    if answer.report is None:
        summary, evidence = f"the probe ended without a report: {answer.ending}", answer.tail
        return Check(name=name, level=level, outcome="failed", summary=summary, evidence=evidence)
    report = ServeReport.from_json(canonical_json(answer.report), source="the server probe's report", remedy=NO_REPORT)
    cause = _broken(report, attempts) or _misled(report, launch)
    figures = _figures(report)
    if cause is None:
        judgement = judge_rounds(model, rounds, report.answers, served_band(report))
        figures = judgement.figures | figures
        cause = judgement.cause
    outcome: Outcome = "failed" if cause else "passed"
    if report.error is not None and report.error.kind == "NoGpuError":
        outcome = "skipped"
    said = f"{_engine(report, launch)}: {cause}" if cause else _passed(report, launch, figures)
    summary = f"{said}{_untidy(report)}"
    evidence = _evidence(report, attempts) if cause else _left(report)
    return Check(name=name, level=level, outcome=outcome, summary=summary, figures=figures, evidence=evidence)


def served_band(report: ServeReport) -> Band:
    """Return the band of what the server says it computed with: narrow for 16 bits throughout, else wide."""
    cache = str(report.server_info.get("kv_cache_dtype", ""))
    return HALF if cache in SIXTEEN_BITS and not report.gpu.has_four_bit_units else BAND


def _blocking(launch: Launch) -> Launch:
    """Return the launch without graphs: a replayed graph is one launch, which names no kernel."""
    return replace(launch, command=(*launch.command, *(word for word in GRAPHS_OFF if word not in launch.command)))


def _broken(report: ServeReport, attempts: Attempts) -> str | None:
    """Return what ended the probe, in a sentence without subject; None: it went to its end."""
    error = report.error
    if error is None:
        return None
    located = attempts.describe()
    if located is not None:
        return f"in phase {report.phase}: {located}"
    if error.kind in {"NotReadyError", "NoAnswerError"}:
        return f"in phase {report.phase}: {error.first_line}{_what_it_did(report)}"
    if error.kind == "ServerEndedError":
        return f"{error.first_line} in phase {report.phase}{_last_words(report)}"
    return f"in phase {report.phase}: {error.first_line}"


def _misled(report: ServeReport, launch: Launch) -> str | None:
    """Return what is wrong though the server answered: other parts than asked, or weights that found no place."""
    other = other_than_asked(launch.asked, report.server_info)
    if other:
        parts = (f"{name} {run} instead of {asked}" for name, (asked, run) in other.items())
        return f"it runs other parts than the recipe asks for: {', '.join(parts)}"
    if report.tensors is not None and report.tensors.missing:
        names = ", ".join(report.tensors.missing_names)
        return f"the checkpoint lacks {report.tensors.missing} tensors, and it served without them: {names}"
    return f"weights found no place: {report.not_loaded[0].strip()}" if report.not_loaded else None


def _what_it_did(report: ServeReport) -> str:
    """Return what a server that did not answer was busy with: compiling takes minutes, and only the first time."""
    if report.compilers:
        return f"; {len(report.compilers)} compilers were running, such as {report.compilers[-1][:120]}"
    frames = [line.strip() for line in report.log if line.startswith("  File ") and " line " in line]
    return f"; no compiler was running, and it stood at {frames[0]}" if frames else "; no compiler was running"


def _last_words(report: ServeReport) -> str:
    """Return the last line of the log that names an error, with a colon before it."""
    errors = [line.strip() for line in report.log if _names_an_error(line)]
    return f": {errors[-1][:300]}" if errors else ""


def _names_an_error(line: str) -> bool:
    word = line.strip().partition(":")[0].rpartition(".")[2]
    return word.isidentifier() and word.endswith(("Error", "Exception", "Interrupt"))


def _passed(report: ServeReport, launch: Launch, figures: Figures) -> str:
    return (
        f"{_engine(report, launch)} decodes {figures['all_tokens_right']} of {figures['all_tokens']} tokens in "
        f"{figures['answers']} answers as it must; mean margins {figures['lowest_mean_margin_ratio']:.1%} to "
        f"{figures['highest_mean_margin_ratio']:.1%} of the reference's"
    )


def _untidy(report: ServeReport) -> str:
    """Return what is to be said of the server's end beside the verdict."""
    ending = report.ending
    if ending is None:
        return ""
    said = ["it did not end when asked and was killed"] if ending.how == "killed" else []
    if ending.left_behind:
        said.append(f"it left {len(ending.left_behind)} processes behind, which were ended")
    return f"; {'; '.join(said)}" if said else ""


def _evidence(report: ServeReport, attempts: Attempts) -> tuple[str, ...]:
    lines = list(report.log[-EVIDENCE_LINES:]) or list(report.error.traceback if report.error else ())
    if attempts.blocked is not None:
        blocked = log_of(attempts.blocked).rstrip().splitlines()
        lines += ["with CUDA_LAUNCH_BLOCKING=1:", *blocked[-EVIDENCE_LINES:]]
    return (*lines, *_left(report))


def _left(report: ServeReport) -> tuple[str, ...]:
    return tuple(f"left behind: {command}" for command in (report.ending.left_behind if report.ending else ()))


def _engine(report: ServeReport, launch: Launch) -> str:
    return f"{launch.engine} {report.versions.get(launch.engine, '(version unknown)')}"


def _figures(report: ServeReport) -> Figures:
    """Return times, memory, versions, and what exactly was proven."""
    info = report.server_info
    figures: Figures = {f"{phase.replace(' ', '_')}_seconds": seconds for phase, seconds in report.seconds.items()}
    figures |= dict(report.times) | {f"{package}_version": version for package, version in report.versions.items()}
    figures |= {
        "phase": report.phase,
        "model_code": report.model_code,
        "model_code_sha256": report.model_code_sha256,
        "served_by": "transformers" if info.get("model_impl") == "transformers" else report.model_code,
        "peak_memory_mib": report.peak_memory_mib,
        "peak_gpu_mib": report.peak_gpu_mib,
        "not_exercised": "nothing" if report.gpu.has_four_bit_units else FOUR_BIT,
        **report.gpu.figures(),
    }
    figures |= {f"server_{name}": value for name in SAID if (value := info.get(name)) is not None}
    if report.ending is not None:
        figures |= {"stop": report.ending.how, "stop_seconds": report.ending.seconds}
        figures |= {"log_bytes": report.ending.log_bytes, "left_behind": len(report.ending.left_behind)}
    return figures


# What a server says of itself that a reader of the verdict wants to know; KV tokens are `max_total_num_tokens`.
SAID = (
    *("attention_backend", "decode_attention_backend", "prefill_attention_backend", "dsa_prefill_backend"),
    *("dsa_decode_backend", "nsa_prefill_backend", "nsa_decode_backend", "moe_runner_backend", "fp4_gemm_backend"),
    *("fp4_gemm_runner_backend", "sampling_backend", "kv_cache_dtype", "quantization", "max_total_num_tokens"),
    *("disable_cuda_graph", "model_impl", "version"),
)
