"""The dry run on SGLang's own wheels: the releases that fail on SM120 and those that do not, on both GPUs."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from builder.engine import ImageBuild
from builder.recipe.model import Serve
from builder.recipe.targets import find_target
from builder.store import Store
from builder.verify.dry_run.check import dry_run
from builder.verify.dry_run.plan import planned_groups
from builder.verify.place import InImage
from builder.verify.static import static_checks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from builder.engine import Engine
    from builder.verify.verdict import Check
    from tests.command_line import Ended

pytestmark = [pytest.mark.docker, pytest.mark.network]

STACK_IMAGE = "envbuild/quickstart:latest"
SITE = "/opt/env/lib/python3.13/site-packages/"
# What SGLang's attention imports besides torch, Triton and Transformers; the image has no part of SGLang itself.
NEEDED = """
    aiohappyeyeballs aiohttp aiosignal asttokens attrs certifi charset-normalizer cloudpickle decorator
    dill distro einops executing fastapi frozenlist httpx importlib-metadata interegular ipython
    ipython-pygments-lexers jedi jiter matplotlib-inline msgspec multidict openai opentelemetry-api
    opentelemetry-sdk opentelemetry-semantic-conventions orjson parso partial-json-parser pexpect pillow
    prometheus-client prompt-toolkit propcache psutil ptyprocess pure-eval pybase64 pycountry
    python-multipart pyzmq requests sentencepiece setproctitle sniffio stack-data starlette tiktoken
    torchvision==0.26.0 traitlets urllib3 uvicorn uvloop wcwidth xgrammar yarl
"""
PLATFORM = ("--python-version", "3.13", "--python-platform", "x86_64-manylinux_2_34", "--only-binary", ":all:")
TRITON = Serve(engine="sglang", args={"tp": 8, "attention-backend": "triton"})


@pytest.fixture(scope="session")
def base(engine: Engine, quickstart: Ended, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The quickstart's image with what SGLang's attention imports."""
    assert engine.image_id(STACK_IMAGE) == quickstart.document["image_id"]
    folder = tmp_path_factory.mktemp("needed")
    install(folder / "site", *NEEDED.split())
    yield from built(engine, folder, STACK_IMAGE, "envbuild-test/sglang-needs:latest")


@pytest.fixture
def sglang(engine: Engine, base: str, tmp_path: Path) -> Iterator[Callable[[str], str]]:
    """Give an image with one release of SGLang, as its wheel has it."""
    made: list[Iterator[str]] = []

    def image(version: str) -> str:
        install(tmp_path / "site", f"sglang=={version}")
        made.append(built(engine, tmp_path, base, f"envbuild-test/sglang:{version}"))
        return next(made[-1])

    yield image
    for one in made:
        next(one, None)


def install(folder: Path, *names: str) -> None:
    """Put the wheels of some packages into a folder, without what they require."""
    command = [sys.executable, "-m", "uv", "pip", "install", "-q", "--no-deps", "--target", str(folder), *PLATFORM]
    subprocess.run([*command, *names], check=True)


def built(engine: Engine, folder: Path, base: str, tag: str) -> Iterator[str]:
    engine.build(ImageBuild(dockerfile=f"FROM {base}\nCOPY site {SITE}\n", context=folder, tag=tag))
    try:
        yield tag
    finally:
        engine.remove_image(tag)


def attention(engine: Engine, image: str, gpu: str, store: Path, phase: str | None = None) -> Check:
    """Drive the attention of the model alone, without the survey of other head dimensions, or one phase of all."""
    (group,) = (each for each in planned_groups("glm5-nvfp4", TRITON, ("sglang",)) if each["name"] == "attention")
    group["shapes"] = [shape for shape in group["shapes"] if (shape["phase"] == phase if phase else shape["decides"])]
    image_id = engine.image_id(image)
    assert image_id is not None
    return dry_run(
        InImage(engine=engine, store=Store(store), image=image_id, memory=8 << 30),
        target=find_target(gpu),
        groups=[group],
        environment={},
        driver_cuda=None,
        timeout=600.0,
    )


@pytest.mark.parametrize("version", ["0.5.6", "0.5.7", "0.5.8.post1"])
def test_releases_without_the_fix_fail_on_sm120_and_pass_on_hopper(
    engine: Engine, sglang: Callable[[str], str], tmp_path: Path, version: str
) -> None:
    image = sglang(version)
    check = attention(engine, image, "rtx-pro-6000", tmp_path / "store")
    assert check.outcome == "failed", check
    wide, latent = check.evidence[:2]
    place = "sglang/srt/layers/attention/triton_ops/extend_attention.py:597 extend_attention_fwd"
    assert wide.startswith(" 114688 of  101376  REFUSED  _fwd_kernel, extend at head dimension 256/256, bfloat16 (")
    assert place in wide
    assert latent.startswith(" 106496 of  101376  REFUSED  _fwd_kernel, extend at head dimension 576/512, bfloat16")
    assert attention(engine, image, "h200", tmp_path / "store").outcome == "passed"


@pytest.mark.parametrize("version", ["0.5.9", "0.5.10"])
def test_releases_with_the_fix_pass_on_both(
    engine: Engine, sglang: Callable[[str], str], tmp_path: Path, version: str
) -> None:
    image = sglang(version)
    check = attention(engine, image, "rtx-pro-6000", tmp_path / "store")
    assert check.outcome == "passed", check
    assert any(line.startswith("  71680 of  101376  fits  _fwd_kernel") for line in check.evidence)
    assert attention(engine, image, "h200", tmp_path / "store").outcome == "passed"


def test_the_prefill_kernel_asks_for_too_much_with_fp32_inputs_and_is_listed(
    engine: Engine, sglang: Callable[[str], str], tmp_path: Path
) -> None:
    image = sglang("0.5.14")
    check = attention(engine, image, "rtx-pro-6000", tmp_path / "store", phase="prefill")
    assert (check.outcome, check.figures["not-judged"]) == ("passed", 1), check
    assert check.evidence[0].startswith(
        " 131072 of  101376  refused, not reached by the model  _fwd_kernel, prefill at head dimension 128/128, float32"
    )
    check = attention(engine, image, "h200", tmp_path / "store", phase="prefill")
    assert (check.outcome, check.figures["not-judged"]) == ("passed", 0), check


@pytest.mark.parametrize("gpu", ["rtx-pro-6000", "h200"])
def test_the_quickstart_raises_no_false_alarm(engine: Engine, quickstart: Ended, tmp_path: Path, gpu: str) -> None:
    image = quickstart.document["image_id"]
    place = InImage(engine=engine, store=Store(tmp_path / "store"), image=image, memory=4 << 30)
    checks = static_checks(
        place,
        target=find_target(gpu),
        locked=(("torch", "2.11.0"),),
        built=("nvfp4-kernels",),
        stack=("torch", "transformers", "nvfp4-kernels"),
        timeout=600.0,
    )
    judged = {check.name: check.outcome for check in checks if check.name != "static.installed"}
    assert set(judged.values()) == {"passed"}, checks
    dry = dry_run(
        place,
        target=find_target(gpu),
        groups=planned_groups("glm5-nvfp4", None, ()),
        environment={},
        driver_cuda=None,
        timeout=600.0,
    )
    assert (dry.outcome, dry.figures["refused"]) == ("passed", 0), dry
