"""How rules are read, asked and said: three-valued conditions, holes in sentences, places, waivers, the refusal."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from builder.document import canonical_json
from builder.errors import InvalidDocumentError, PreflightRefusedError
from builder.preflight.conditions import Condition, holds, problems_of
from builder.preflight.examine import gather_facts, preflight
from builder.preflight.findings import Finding, refuse
from builder.preflight.knowledge.tables import all_tables, cuda_table, model_table, sglang_table, torch_table
from builder.preflight.pins import lock_facts
from builder.preflight.resources import disk_need, kv_bytes_per_token, plan_memory
from builder.preflight.rulebook import fill, read_rules, rulebook
from builder.preflight.serving import served_quantization
from builder.preflight.vocabulary import VOCABULARY, FactValue
from builder.recipe.model import Serve
from builder.recipe.source import RecipeFile, parse_recipe, read_recipe

ROOT = Path(__file__).parents[2]
KINDS: dict[str, tuple[type, ...]] = {
    "version": (str,),
    "text": (str,),
    "texts": (tuple,),
    "number": (int, float),
    "bytes": (int,),
    "flag": (bool,),
}
QUOTES = (('"', '"'), ('"$', '"'), ("{", "}"))
RULE = """\
rules:
  - id: R99
    guards: nothing
    certainty: derived
    sources: [nobody]
    cases:
      - when: [{fact: FACT, PREDICATE: OPERAND}]
        severity: error
        sentence: "HOLE"
        remedy: none
        place: [cuda]
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Wheel:
    name: str
    version: str
    filename: str
    size: int = 100


def wheel(filename: str) -> Wheel:
    name, version, *_ = filename.split("-")
    return Wheel(name=name, version=version, filename=filename)


def recipe_file(name: str = "sm120-glm5") -> RecipeFile:
    return read_recipe(ROOT / "recipes" / f"{name}.yaml")


def condition(plain: dict[str, Any]) -> Condition:
    return Condition.from_json(canonical_json(plain), source="test")


@pytest.mark.parametrize(
    ("plain", "answer"),
    [
        ({"fact": "cuda", "older-than": "12.9"}, True),
        ({"fact": "cuda", "older-than": "12.8"}, False),
        ({"fact": "cuda", "at-least": "12.8"}, True),
        ({"fact": "cuda", "at-least": "12.10"}, False),
        ({"fact": "cuda", "major-differs-from": "$torch.cuda"}, True),
        ({"fact": "cuda", "minor-differs-from": "12.8.1"}, False),
        ({"fact": "cuda", "older-than": "$driver.floor"}, None),
        ({"fact": "torch.version", "differs-from": "2.9.1"}, False),
        ({"fact": "torch.version", "older-than": "2.9.1"}, False),
        ({"fact": "gcc", "older-than": "12"}, None),
        ({"fact": "gcc", "known": False}, True),
        ({"fact": "cuda", "known": False}, False),
        ({"fact": "compiled", "empty": True}, False),
        ({"fact": "compiled", "holds-any-of": ["x", "flash-attn"]}, True),
        ({"fact": "serve.tp", "above": 7}, True),
        ({"fact": "serve.tp", "below": 8}, False),
        ({"fact": "serve.ipc", "one-of": ["host", "shareable"]}, True),
        ({"fact": "target.sm12", "is": False}, False),
        ({"not": {"fact": "gcc", "older-than": "12"}}, None),
        ({"not": {"fact": "target.sm12", "is": False}}, True),
        ({"any": [{"fact": "gcc", "older-than": "12"}, {"fact": "target.sm12", "is": True}]}, True),
        ({"any": [{"fact": "gcc", "older-than": "12"}, {"fact": "target.sm12", "is": False}]}, None),
        ({"all": [{"fact": "gcc", "older-than": "12"}, {"fact": "target.sm12", "is": False}]}, False),
        ({"all": [{"fact": "gcc", "older-than": "12"}, {"fact": "target.sm12", "is": True}]}, None),
    ],
)
def test_a_condition_is_true_false_or_unknown(plain: dict[str, Any], answer: bool | None) -> None:
    facts: dict[str, FactValue] = {
        "cuda": "12.8",
        "torch.cuda": "13.0",
        "torch.version": "2.9.1+cu130",
        "compiled": ("flash-attn",),
        "serve.tp": 8,
        "serve.ipc": "host",
        "target.sm12": True,
    }
    assert list(problems_of(condition(plain))) == []
    assert holds(condition(plain), facts) is answer


@pytest.mark.parametrize(
    ("question", "hole", "problem"),
    [
        (("cuds", "older-than", "'12.8'"), "", "no such fact"),
        (("cuda", "below", "12"), "", "below cannot be asked of cuda, which is version"),
        (("cuda", "older-than", "$serve.tp"), "", r"\$serve.tp is no version to compare cuda with"),
        (("cuda", "older-than", "'12.8'"), "{cudb}", "no fact fills {cudb}"),
        (("cuda", "younger-than", "'12.8'"), "", "Extra inputs are not permitted"),
    ],
)
def test_a_rule_that_makes_no_sense_is_refused(
    tmp_path: Path, question: tuple[str, str, str], hole: str, problem: str
) -> None:
    path = tmp_path / "bad.yaml"
    fact, predicate, operand = question
    text = RULE.replace("FACT", fact).replace("PREDICATE", predicate).replace("OPERAND", operand)
    path.write_text(text.replace("HOLE", hole), encoding="utf-8")
    with pytest.raises(InvalidDocumentError, match=problem):
        read_rules(path)


def test_the_rules_of_the_plan_are_all_there() -> None:
    planned = {f"R{number:02}" for number in range(1, 25)}
    assert planned <= set(rulebook())


def test_a_sentence_says_sizes_in_the_unit_of_people() -> None:
    facts: dict[str, FactValue] = {"serve.shm": 1023 << 20, "memory.static": 83 << 30, "compiled": ("a", "b")}
    assert fill("{serve.shm}, {memory.static}, {compiled}, {cuda}", facts) == "1023 MiB, 83.0 GiB, a, b, unknown"


@pytest.mark.parametrize("name", ["quickstart", "sm120-glm5", "sm120-glm5-cu130", "sm120-glm5-torch291"])
def test_every_gathered_fact_is_in_the_vocabulary_and_of_its_kind(name: str) -> None:
    facts = gather_facts(recipe_file(name).recipe, None, None)
    wrong = [key for key, value in facts.items() if not isinstance(value, KINDS[VOCABULARY[key].kind])]
    assert wrong == []


def test_every_fact_of_the_vocabulary_is_used_by_a_rule() -> None:
    text = "".join(rule.model_dump_json() for rule in rulebook().values())
    unused = [name for name in VOCABULARY if not any(f"{left}{name}{right}" in text for left, right in QUOTES)]
    assert unused == []


def test_a_finding_stands_at_the_line_and_column_of_the_pin() -> None:
    file = recipe_file()
    findings = preflight(file.recipe, places=file.places)
    lines = file.path.read_text(encoding="utf-8").splitlines()
    found = {finding.rule: finding for finding in findings}
    assert lines[(found["R03"].line or 0) - 1] == 'cuda: "13.1"'
    assert lines[(found["R08"].line or 0) - 1] == "  transformers:"
    assert (found["R08"].path, found["R08"].column) == ("overrides.transformers", 3)


def test_a_missing_setting_is_placed_at_the_section_where_it_belongs() -> None:
    text = (ROOT / "recipes/sm120-glm5-torch291.yaml").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if "disable-shared-experts-fusion" not in line]
    recipe, _ = parse_recipe("\n".join(lines))
    assert recipe is not None
    (finding,) = preflight(recipe)
    assert (finding.rule, finding.path) == ("R13", "serve.args")


def test_an_error_refuses_with_exit_code_4_its_place_and_the_remedy() -> None:
    finding = Finding(
        rule="R01", severity="error", sentence="no", remedy="do", sources=("s",), path="cuda", line=3, column=1
    )
    warning = finding.model_copy(update={"severity": "warning"})
    refuse([warning])
    with pytest.raises(PreflightRefusedError) as caught:
        refuse([warning, finding, finding.model_copy(update={"rule": "R02"})], "x.yaml")
    assert caught.value.exit_code == 4
    assert caught.value.message == "x.yaml:3:1: cuda: R01 error: no (and 1 more)"
    assert caught.value.remedy == "do"
    assert caught.value.evidence == (
        "x.yaml:3:1: cuda: R02 error: no",
        "R01: source: s",
        "R02: source: s",
    )


def test_a_waived_error_is_shown_and_kept_and_refuses_nothing() -> None:
    file = recipe_file("quickstart")
    plain = {**file.recipe.to_plain(), "cuda": "12.7", "waive": {"R01": "tried on purpose", "R04": "tried too"}}
    recipe, _ = parse_recipe(canonical_json(plain).decode())
    assert recipe is not None
    found = {finding.rule: finding for finding in preflight(recipe)}
    assert found["R01"].severity == "error"
    assert found["R01"].waived == "tried on purpose"
    assert found["R01"].headline("x").endswith("(waived: tried on purpose)")
    refuse([found["R01"], found["R04"]])
    with pytest.raises(PreflightRefusedError, match="R18"):
        refuse(found.values())


def test_a_lock_brings_the_versions_that_a_recipe_leaves_open() -> None:
    recipe = recipe_file("sm120-glm5-cu130").recipe
    wheels = [
        wheel("torch-2.11.0-cp311-cp311-manylinux_2_28_x86_64.whl"),
        wheel("flashinfer_python-0.6.12-py3-none-any.whl"),
        wheel("flashinfer_cubin-0.6.11-py3-none-any.whl"),
        Wheel(
            name="nvidia-cublas", version="13.4.0", filename="nvidia_cublas-13.4.0-py3-none-manylinux_2_27_x86_64.whl"
        ),
        wheel("new-1-cp311-cp311-manylinux_2_39_x86_64.manylinux_2_38_x86_64.whl"),
    ]
    lock = lock_facts(wheels, {"gcc": "4:9.4.0-1"})
    found = {finding.rule: finding for finding in preflight(recipe, lock)}
    assert "flashinfer-cubin 0.6.11" in found["R16"].sentence
    assert "cuBLAS 13.4.0" in found["R21"].sentence
    assert found["R17"].sentence == f"{wheels[4].filename} needs glibc 2.38, and the base has 2.36"
    assert "gcc 9.4.0" in found["R18"].sentence
    assert disk_need(lock) == 4 * 500


def test_a_lock_tells_the_cuda_of_a_torch_that_no_table_knows() -> None:
    recipe, _ = parse_recipe(
        (ROOT / "recipes/quickstart.yaml").read_text(encoding="utf-8").replace('torch: "2.11.0"', 'torch: "2.99.0"')
    )
    assert recipe is not None
    runtime = Wheel(
        name="nvidia-cuda-runtime", version="14.0.11", filename="nvidia_cuda_runtime-14.0.11-py3-none-any.whl"
    )
    found = {finding.rule: finding for finding in preflight(recipe, lock_facts([runtime], {}))}
    assert found["R03"].severity == "error"
    assert "built with CUDA 14.0" in found["R03"].sentence
    assert {finding.severity for finding in preflight(recipe)} == {"notice"}


def test_the_kv_cache_of_glm5_has_the_size_that_a_public_run_reports() -> None:
    family = model_table().families["glm-5"]
    assert kv_bytes_per_token(family, "bf16") == 100_152
    assert kv_bytes_per_token(family, "fp8_e4m3") == 55_224
    assert kv_bytes_per_token(family, "int3") is None
    assert pytest.approx(29.32, abs=0.01) == 314_304 * 100_152 / 2**30


@pytest.mark.parametrize(
    ("option", "model", "served"),
    [
        (None, "nvidia/GLM-5-NVFP4", "nvfp4"),
        ("modelopt", "nvidia/GLM-5-NVFP4", "nvfp4"),
        ("modelopt_fp4", "/models/unknown", "nvfp4"),
        ("fp8", "nvidia/GLM-5-NVFP4", "fp8"),
        ("modelopt", "/models/unknown", None),
        (None, None, None),
    ],
)
def test_the_quantization_served_is_the_options_or_the_checkpoints(
    option: str | None, model: str | None, served: str | None
) -> None:
    args = {"quantization": option} if option else {}
    assert served_quantization(Serve(engine="sglang", model=model, args={**args})) == served


def test_a_memory_plan_shares_out_the_card_as_the_server_does() -> None:
    plan = plan_memory(memory=97_887 << 20, fraction=0.88, weights=57 << 30, bytes_per_token=100_152)
    assert plan.static / 2**30 == pytest.approx(83.2, abs=0.1)
    assert plan.headroom / 2**30 == pytest.approx(11.4, abs=0.1)
    assert plan.kv_tokens == (plan.static - (57 << 30)) // 100_152
    assert plan_memory(memory=1 << 35, fraction=0.5, weights=1 << 36, bytes_per_token=1).kv_tokens == 0
    assert plan_memory(memory=1 << 35, fraction=0.5, weights=0, bytes_per_token=None).kv_tokens is None


def test_the_tables_name_their_sources_and_hold_what_the_rules_rest_on() -> None:
    assert all(getattr(table, "source", "") for table in all_tables().values())
    assert torch_table().series["2.9"].default == "cu128"
    assert sglang_table().releases["0.5.9"].transformers == "4.57.1"
    assert cuda_table().driver_floors["13"] == "580.65.06"
