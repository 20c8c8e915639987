"""A report of a matrix with one cell of every kind, as a run might have left it."""

from __future__ import annotations

from builder.matrix.cellreport import CellReport, Expected, LastGood, Layer, MatrixReport, Span
from builder.verify.verdict import Check, Verdict, judge

KERNELS = (
    " 104448 of  101376  REFUSED  extend_attention_fwd, extend (extend.py:412; BLOCK_M=64; 8 warps, 2 stages)",
    "  65536 of  101376  fits  decode_attention_fwd, decode (decode.py:88; BLOCK_N=64; 4 warps, 2 stages)",
)
STATIC = Check(
    name="static.installed",
    level="static",
    outcome="passed",
    summary="the 58 distributions are those of the lock",
    figures={"distributions": 58, "megabytes": 5073},
)
DECODE = Check(
    name="cpu-decode",
    level="cpu-decode",
    outcome="passed",
    summary="decodes 48 of 48 tokens as it must; mean margin 5.8798",
    figures={"tokens": 48, "mean_margin": 5.8798},
)
DRY = Check(
    name="dry-run",
    level="dry-run",
    outcome="failed",
    summary="extend_attention_fwd asks for 104448 bytes of shared memory, one block may have 101376",
    evidence=(*KERNELS, "not known from a dry run: values, races & <hangs>"),
)
LAYERS = (
    Layer(title="Debian base", compressed=49_000_000, unpacked=149_000_000),
    Layer(title="torch 2.11.0", compressed=1_943_000_000, unpacked=3_732_000_000),
    Layer(title="transformers 5.24.0", compressed=12_400_000, unpacked=61_000_000),
)
STEPS = (
    Span(text="resolve Debian packages and wheels", start=0.0, seconds=14.2),
    Span(text="compile nvfp4-kernels for 9.0 and 12.0", start=14.3, seconds=74.0),
    Span(text="assemble envbuild/quickstart:try-4f", start=88.4, seconds=31.5),
    Span(text="prove envbuild/quickstart:try-4f: static, cpu-decode", start=120.0, seconds=22.8),
)
PACKAGES = {"python torch": "2.11.0", "python transformers": "5.24.0", "debian libc6": "2.41-12"}


def verdict(*checks: Check) -> Verdict:
    """Return the verdict over some checks, all of them required."""
    required = tuple(dict.fromkeys(check.level for check in checks))
    result, cause = judge(checks, required)
    return Verdict(
        recipe="quickstart",
        result=result,
        cause=cause,
        lock_digest="ab" * 32,
        image_id=f"sha256:{'cd' * 32}",
        suite_digest="ef" * 32,
        engine={"version": "20.10.24", "operating_system": "Debian GNU/Linux 12"},
        required=required,
        checks=checks,
        finished="2026-11-29T03:12:44+00:00",
    )


def cell(torch: str, target: str, state: str, cause: str, **more: object) -> CellReport:
    """Return the report of a cell of the sample's grid."""
    return CellReport.model_validate(
        {
            "name": f"{torch}_{target}",
            "recipe": "quickstart",
            "target": target,
            "values": {"torch": torch, "target": target},
            "state": state,
            "cause": cause,
            **more,
        }
    )


def proven(*checks: Check, start: float, seconds: float, place: str) -> dict[str, object]:
    """Return what a cell that was built and proven has beside its state."""
    return {
        "verdict": verdict(*checks),
        "layers": LAYERS,
        "timeline": STEPS,
        "packages": PACKAGES,
        "started": 1_764_385_000.0 + start,
        "minutes": seconds / 60,
        "place": place,
        "key": f"{start:064.0f}",
    }


def sample_report() -> MatrixReport:
    """Return the report."""
    first, second = "default", "ssh://builder-2"
    good = proven(STATIC, DECODE, start=0, seconds=142.8, place=first)
    bad = proven(STATIC, DRY, start=12, seconds=96, place=second)
    before = LastGood(
        finished="2026-11-22T03:10:00+00:00",
        image_id=f"sha256:{'aa' * 32}",
        packages={**PACKAGES, "python torch": "2.10.0", "python sympy": "1.13"},
    )
    known_bad = Expected(result="bad", reason="2.9.1 has no kernel for this shape <yet>, see upstream")
    cells = (
        cell("2.11.0", "rtx-pro-6000", "good", "2 checks passed: static.installed, cpu-decode", **good),
        cell("2.11.0", "h200", "good", "2 checks passed: static.installed, cpu-decode", **{**good, "known": True}),
        cell("2.10.0", "rtx-pro-6000", "bad", f"dry-run: {DRY.summary}", **{**bad, "last_good": before}),
        cell("2.10.0", "h200", "unverified", "gpu-decode: this machine has no GPU", place=second),
        cell("2.9.1", "rtx-pro-6000", "bad", f"dry-run: {DRY.summary}", **bad, expected=known_bad),
        cell("2.9.1", "h200", "unbuildable", "compiling nvfp4-kernels failed with exit code 2", place=first),
        cell("2.6.0", "rtx-pro-6000", "refused", "R02: torch 2.6.0 as cu124 carries no code for sm_120"),
        cell("2.6.0", "h200", "excluded", "nobody runs this any more"),
    )
    return MatrixReport(
        name="stacks",
        description="Quickstart over PyTorch releases and GPUs",
        axes=("torch", "target"),
        finished="2026-11-29T03:14:00+00:00",
        seconds=238.8,
        places=(first, second),
        cells=cells,
    )
