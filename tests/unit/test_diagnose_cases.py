"""Every known case, other wordings, harmless mutations and healthy logs through the whole engine."""

from __future__ import annotations

import gzip
import random
import re
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from builder.diagnose import Diagnosis, diagnose, diagnose_files
from builder.diagnose.schema import SURE

if TYPE_CHECKING:
    from collections.abc import Callable

CASES = Path(__file__).parent.parent / "cases" / "diagnose"
GIVEN = sorted((CASES / "given").glob("*.yaml"))
HEALTHY = sorted((CASES / "healthy").glob("*.log"))
VARIANTS: list[dict[str, Any]] = yaml.safe_load((CASES / "variants.yaml").read_text("utf-8"))

NOISE = (
    "/usr/lib/python3.12/site-packages/torch/cuda/__init__.py:61: FutureWarning: The pynvml package is deprecated.",
    "WARNING 08-27 10:00:12 [fp8.py:90] Some fatal error: may happen if this warning is ignored",
    "[W320 10:00:11.100 socket.cpp:752] [c10d] The client socket has failed to connect to [localhost]:29500, retrying",
    "INFO 08-27 10:00:12 [importing.py:53] Triton module has been replaced with a placeholder.",
    "Ignore import error when loading sglang.srt.models.other: No module named 'torchaudio'",
    "nvcc warning : incompatible redefinition for option 'compiler-bindir', the last value of this option was used",
    "Exception ignored in: <function _releaseLock>, will be ignored",
)


def _load(path: Path) -> dict[str, Any]:
    case: dict[str, Any] = yaml.safe_load(path.read_text("utf-8"))
    return case


def _first_class(diagnosis: Diagnosis) -> str | None:
    return diagnosis.causes[0].kind if diagnosis.causes else None


def _numbers(lines: list[str], _: random.Random) -> list[str]:
    renumbered = [re.sub(r"\bline \d+(?=,|$| in)", "line 4711", line) for line in lines]
    return [re.sub(r"\.(py|cu|cuh|hpp|h|cpp):\d+", r".\1:977", line) for line in renumbered]


def _paths(lines: list[str], _: random.Random) -> list[str]:
    return [line.replace("…/", "/opt/conda/envs/serve/lib/python3.12/site-packages/") for line in lines]


def _ranks(lines: list[str], chance: random.Random) -> list[str]:
    prefixes = ("[2026-03-20 10:00:0{} TP3] ", "(Worker_TP1 pid=81{}) ", "[rank{}]: ", "[1,{}]<stderr>:")
    prefix = chance.choice(prefixes)
    mixed = []
    for number, line in enumerate(lines):
        mixed += [f"[2026-03-20 10:00:00 TP{number % 8}] Registering {number} cuda graph addresses"]
        mixed += [prefix.format(number % 8) + line]
    return mixed


def _colours(lines: list[str], _: random.Random) -> list[str]:
    return ["\x1b[1;31m" + line.replace(" ", " \x1b[0m", 1) + "\x1b[0m\x1b[K" for line in lines]


def _noise(lines: list[str], chance: random.Random) -> list[str]:
    mixed = [chance.choice(NOISE)]
    for line in lines:
        mixed += [line, chance.choice(NOISE)]
    return mixed[: len(mixed) - 1] if lines[-1].startswith("NCCL") else mixed


def _endings(lines: list[str], _: random.Random) -> list[str]:
    return [f"Loading: 10%|#\rLoading: 20%|##\r{line}\r\n" for line in lines]


MUTATIONS: tuple[Callable[[list[str], random.Random], list[str]], ...] = (
    _numbers,
    _paths,
    _ranks,
    _colours,
    _noise,
    _endings,
)


@pytest.mark.parametrize("path", GIVEN, ids=lambda path: path.stem)
def test_a_known_case_gets_its_phase_and_class(path: Path) -> None:
    case = _load(path)
    diagnosis = diagnose(case["log"])
    assert (diagnosis.phase, _first_class(diagnosis)) == (case["phase"], case["class"])


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.__name__.strip("_"))
@pytest.mark.parametrize("path", GIVEN, ids=lambda path: path.stem)
def test_a_harmless_change_of_a_log_changes_no_answer(
    path: Path, mutation: Callable[[list[str], random.Random], list[str]]
) -> None:
    case = _load(path)
    for seed in range(3):
        diagnosis = diagnose(mutation(case["log"], random.Random(seed)))
        assert (diagnosis.phase, _first_class(diagnosis)) == (case["phase"], case["class"])


@pytest.mark.parametrize("path", GIVEN, ids=lambda path: path.stem)
def test_lines_that_are_no_evidence_can_go_without_changing_the_class(path: Path) -> None:
    case = _load(path)
    full = diagnose(case["log"])
    needed = {evidence.line for cause in full.causes for evidence in cause.evidence}
    for number in range(1, len(case["log"]) + 1):
        if number not in needed:
            shorter = case["log"][: number - 1] + case["log"][number:]
            assert _first_class(diagnose(shorter)) == case["class"]


START = (CASES / "healthy" / "sglang-glm5-on-sm120.log").read_text("utf-8").splitlines()
BUILD = (CASES / "healthy" / "flash-attn-build.log").read_text("utf-8").splitlines()[:16]
IMAGE = (CASES / "healthy" / "docker-build.log").read_text("utf-8").splitlines()[:8]
BEFORE = {
    "resolve": BUILD,
    "wheel build": BUILD,
    "image build": IMAGE,
    "container start": IMAGE,
    "unknown": START[:3],
    "import": START[:3],
    "model load": START[:12],
    "cuda graph capture": START[:19],
    "prefill": START[:25],
    "decode": START[:27],
}
AFTER = (
    "[2026-03-20 10:09:00 TP1] Scheduler hit an exception: Traceback (most recent call last):",
    "[rank1]: torch.distributed.DistBackendError: NCCL communicator was aborted on rank 1.",
    "terminate called after throwing an instance of 'c10::Error'",
    "Aborted (core dumped)",
    "[2026-03-20 10:09:01] Received sigquit from a child process. It usually means the child failed.",
    "Killed",
)


@pytest.mark.parametrize("path", GIVEN, ids=lambda path: path.stem)
def test_a_failure_inside_a_whole_log_keeps_its_phase_and_class(path: Path) -> None:
    case = _load(path)
    serving = BEFORE[case["phase"]] not in (BUILD, IMAGE)
    diagnosis = diagnose([*BEFORE[case["phase"]], *case["log"], *(AFTER if serving else ())])
    assert _first_class(diagnosis) == case["class"]
    assert diagnosis.phase == case["phase"] or case["phase"] == "unknown"
    assert all(cause.confidence < SURE for cause in diagnosis.causes if cause.kind != case["class"])


@pytest.mark.parametrize("case", VARIANTS, ids=lambda case: f"{case['class']}-{VARIANTS.index(case)}")
def test_another_wording_of_a_failure_gets_its_class(case: dict[str, Any]) -> None:
    diagnosis = diagnose(case["log"])
    assert _first_class(diagnosis) == case["class"]
    if not case.get("any_phase"):
        assert diagnosis.phase == case["phase"]


@pytest.mark.parametrize("path", GIVEN, ids=lambda path: path.stem)
def test_no_wrong_class_is_reported_with_high_confidence(path: Path) -> None:
    case = _load(path)
    wrong = [cause for cause in diagnose(case["log"]).causes if cause.kind != case["class"]]
    assert all(cause.confidence < SURE for cause in wrong)


@pytest.mark.parametrize("path", HEALTHY, ids=lambda path: path.stem)
def test_a_healthy_log_full_of_warnings_gives_no_cause(path: Path) -> None:
    diagnosis = diagnose_files([path])
    assert diagnosis.causes == ()
    assert diagnosis.misleading == ()


@pytest.mark.parametrize("path", HEALTHY, ids=lambda path: path.stem)
def test_a_healthy_log_stays_healthy_with_more_noise(path: Path) -> None:
    lines = path.read_text("utf-8").splitlines()
    assert diagnose(_noise(lines, random.Random(1))).causes == ()


def test_there_are_at_least_ten_healthy_logs() -> None:
    assert len(HEALTHY) >= 10


def test_a_failure_at_the_end_of_a_healthy_start_is_found_with_its_phase() -> None:
    healthy = (CASES / "healthy" / "sglang-glm5-on-sm120.log").read_text("utf-8").splitlines()
    diagnosis = diagnose([*healthy, "[TP0] Detected errors during sampling! NaN in the logits."])
    assert (diagnosis.phase, _first_class(diagnosis)) == ("decode", "non-finite-logits")


def test_packed_and_plain_logs_give_the_same_diagnosis(tmp_path: Path) -> None:
    case = _load(CASES / "given" / "10-decode-device-side-assert-glm5-nvfp4.yaml")
    text = "\n".join(case["log"]).encode()
    plain, packed = tmp_path / "a.log", tmp_path / "b.log.gz"
    plain.write_bytes(text)
    packed.write_bytes(gzip.compress(text[:200]) + gzip.compress(text[200:]))
    assert diagnose_files([plain]) == diagnose_files([packed])


def test_no_ordinary_line_accuses_anything() -> None:
    ordinary = (resources.files("builder.diagnose") / "knowledge" / "ordinary.txt").read_text("utf-8").splitlines()
    assert len(ordinary) > 40
    accused = {line: diagnose([line, "and so on", "and so on", "and so on"]).causes for line in ordinary}
    assert {line: causes for line, causes in accused.items() if causes} == {}
