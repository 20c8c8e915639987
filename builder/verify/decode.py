"""The decode checks with Transformers' model code: the tiny GLM-5-NVFP4 is decoded in the stack and judged here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from builder.document import canonical_json
from builder.verify.cuda_error import Attempts, attempt_twice, log_of
from builder.verify.decode_report import DecodeReport
from builder.verify.family import known_family
from builder.verify.gpu_facts import OF_A_SERVER
from builder.verify.inside import NO_REPORT, with_log
from builder.verify.oracle import Figures, Judgement, band_for
from builder.verify.rounds import ALONE_AND_TOGETHER, judge_rounds, rounds_request
from builder.verify.tiny.config import GPU, SMALL
from builder.verify.tiny.model import TinyModel, tiny_model
from builder.verify.verdict import Check, Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from builder.store import Store
    from builder.verify.decode_report import DecodeRun
    from builder.verify.inside import ProbeAnswer
    from builder.verify.place import Place
    from builder.verify.tiny.config import Preset

    OnLine = Callable[[str], None] | None

CPU: Literal["cpu-decode"] = "cpu-decode"
ON_GPU: Literal["gpu-decode"] = "gpu-decode"
CPU_RUNS = ({"dtype": "float32", "attention": None},)
GPU_RUNS = (
    {"dtype": "float32", "attention": "sdpa"},
    {"dtype": "bfloat16", "attention": "sdpa"},
    {"dtype": "bfloat16", "attention": "eager"},
    {"dtype": "float16", "attention": "sdpa"},
)
TITLES = {SMALL.name: "small", GPU.name: "kernel-sized"}
EVIDENCE_LINES = 30


def cpu_decode(
    place: Place, *, store: Store, server: str | None = None, timeout: float = 600.0, on_line: OnLine = None
) -> Check:
    """Decode the tiny checkpoint in the stack's own Transformers, on the CPU, and judge the tokens and their margins.

    Proves Transformers' model code and its arithmetic, not a GPU kernel. `server` names the package whose own model
    code serves: where the stack really has GLM-5's class of it, a known difference of Transformers' code is a notice.
    """
    model = tiny_model(SMALL, store)
    request, files = _request("cpu", CPU_RUNS, model, server), _files(model, store)
    answer = place.probe("decode", request, files, timeout=timeout, on_line=on_line)
    check = decode_check(Attempts(first=answer), model, store=store)
    return with_log(check, answer, store)


def gpu_decode(
    place: Place,
    *,
    store: Store,
    presets: tuple[Preset, ...] = (SMALL, GPU),
    timeout: float = 600.0,
    on_line: OnLine = None,
) -> tuple[Check, ...]:
    """Decode both sizes of the tiny model in Transformers on a GPU, in three formats and with two kinds of attention.

    Float32 is judged as strictly as on the CPU, and sees what 16 bits hide. Where there is no GPU, one skipped check
    says so, and the larger model is not even made. After a CUDA error a size is decoded once more with blocking
    launches; both logs are kept.
    """
    checks: list[Check] = []
    for preset in presets:
        model, name = tiny_model(preset, store), f"{ON_GPU} {TITLES[preset.name]}"
        check = gpu_check(place, model, name=name, store=store, timeout=timeout, on_line=on_line)
        checks.append(check)
        if check.outcome == "skipped":
            break
    return tuple(checks)


def gpu_check(
    place: Place,
    model: TinyModel,
    *,
    name: str,
    store: Store,
    timeout: float = 600.0,
    on_line: OnLine = None,
) -> Check:
    """Decode one model in Transformers on a GPU."""
    request, files = _request("cuda", GPU_RUNS, model), _files(model, store)

    def attempt(environment: Mapping[str, str]) -> ProbeAnswer:
        return place.probe("decode", request, files, timeout=timeout, environment=environment, on_line=on_line)

    attempts = attempt_twice(attempt)
    return attempts.keep(decode_check(attempts, model, store=store, name=name, level=ON_GPU), store)


def decode_check(
    attempts: Attempts,
    model: TinyModel,
    *,
    store: Store | None = None,
    name: str = CPU,
    level: Literal["cpu-decode", "gpu-decode"] = CPU,
) -> Check:
    """Return the check for what the probe answered."""
    answer = attempts.first
    if answer.report is None:
        summary = f"the probe ended without a report: {answer.ending}"
        return Check(name=name, level=level, outcome="failed", summary=summary, evidence=answer.tail)
    report = DecodeReport.from_json(canonical_json(answer.report), source="the decode probe's report", remedy=NO_REPORT)
    figures = report.figures() | _gpu_figures(report, level)
    if report.error is not None:
        outcome: Outcome = "skipped" if report.cannot_run(report.error) else "failed"
        located = attempts.describe()
        summary = f"in phase {report.phase}: {located}" if located else report.broken(report.error)
        evidence = (*report.error.traceback, *_blocked(attempts))
        return Check(name=name, level=level, outcome=outcome, summary=summary, figures=figures, evidence=evidence)
    outcome, summary, judged, evidence = _judged(report, model, store)
    return Check(name=name, level=level, outcome=outcome, summary=summary, figures=judged | figures, evidence=evidence)


def _request(
    device: str, runs: tuple[dict[str, Any], ...], model: TinyModel, server: str | None = None
) -> dict[str, object]:
    rounds = rounds_request(model, ALONE_AND_TOGETHER)
    return {"device": device, "runs": list(runs), "rounds": rounds, "server": server}


def _files(model: TinyModel, store: Store) -> dict[str, Any]:
    """Return the checkpoint's files by their place; the expected tokens stay outside."""
    return {f"model/{name}": store.sound(sha256) for name, sha256 in model.files.items()}


def _judged(
    report: DecodeReport, model: TinyModel, store: Store | None
) -> tuple[Outcome, str, Figures, tuple[str, ...]]:
    judgements = [judge_rounds(model, ALONE_AND_TOGETHER, run.answers, band_for(run.dtype)) for run in report.runs]
    figures = _together(judgements)
    wrong = next((place for place, judgement in enumerate(judgements) if judgement.cause), None)
    if wrong is None:
        return "passed", _passed(report, figures), figures, ()
    cause = f"{report.stack}{_variant(report, wrong)}: {judgements[wrong].cause}{report.hint}"
    family = known_family(report, model, store) if store else None
    if family and report.served_by:
        figures |= {"model_meaning": family}
        notice = f"notice: {report.stack} computes exactly as {family}; what serves is {report.served_by}"
        return "passed", notice, figures, report.code()
    return "failed", cause, figures, report.code()


def _together(judgements: list[Judgement]) -> Figures:
    """Return the first run's figures, with the sums and extremes over all runs."""
    figures = dict(judgements[0].figures)
    for name in ("answers", "all_tokens", "all_tokens_right"):
        figures[name] = sum(int(one.figures[name]) for one in judgements)
    for name, extreme in (
        ("lowest_mean_margin_ratio", min),
        ("highest_mean_margin_ratio", max),
        ("lowest_min_margin_ratio", min),
    ):
        figures[name] = extreme(float(one.figures[name]) for one in judgements)
    return figures


def _passed(report: DecodeReport, figures: Figures) -> str:
    return (
        f"{report.stack} decodes {figures['all_tokens_right']} of {figures['all_tokens']} tokens as it must, in "
        f"{figures['answers']} answers; mean margins {figures['lowest_mean_margin_ratio']:.1%} to "
        f"{figures['highest_mean_margin_ratio']:.1%} of the reference's"
    )


def _variant(report: DecodeReport, place: int) -> str:
    """Return which of several runs is meant."""
    run = report.runs[place]
    return f" ({run.dtype}, {run.attention})" if len(report.runs) > 1 else ""


def _gpu_figures(report: DecodeReport, level: str) -> Figures:
    """Return the speed of the last request that was alone, and on a GPU what it is and what was not exercised."""
    figures: Figures = {}
    for run in report.runs:
        figures |= _speed(run, prefix=f"{run.dtype}_{run.attention}_" if len(report.runs) > 1 else "")
    if level == CPU:
        return figures
    return figures | report.gpu.figures() | {"not_exercised": OF_A_SERVER}


def _speed(run: DecodeRun, *, prefix: str) -> Figures:
    alone = [times for times, together in zip(run.times, ALONE_AND_TOGETHER, strict=False) if len(together) == 1]
    figures: Figures = {f"{prefix}peak_gpu_mib": run.peak_gpu_mib} if run.peak_gpu_mib else {}
    for times in alone[-1:]:
        figures[f"{prefix}first_token_seconds"] = times.first_token_seconds
        figures[f"{prefix}decode_tokens_per_second"] = times.decode_tokens_per_second
    return figures


def _blocked(attempts: Attempts) -> tuple[str, ...]:
    if attempts.blocked is None:
        return ()
    return ("with CUDA_LAUNCH_BLOCKING=1:", *log_of(attempts.blocked).rstrip().splitlines()[-EVIDENCE_LINES:])
