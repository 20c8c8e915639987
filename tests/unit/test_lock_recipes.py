"""Whole locks of recipes with fetched sources, against a git repository and package indexes on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from builder.errors import ResolveError, StaleLockError
from builder.lock.lockfile import current_lock
from builder.lock.model import DebianLock, DebianRelease, LockedGit, LockedSdist
from builder.lock.question import changed_fields, question_of
from builder.lock.resolve import resolve_lock
from builder.lock.writing import write_lock
from builder.recipe.source import read_recipe
from builder.settings import Settings, mirror_setting, settings_from
from builder.store import Store
from tests.git_repositories import commit
from tests.package_index import PackageIndex, serve

if TYPE_CHECKING:
    from collections.abc import Iterator

    from builder.recipe.source import RecipeFile

RECIPE = Path(__file__).parents[2] / "recipes" / "sm120-glm5.yaml"
TOOLKIT_EXTRAS = ("cccl", "crt", "nvcc", "nvvm")
COMMIT = "bbe9c7eeb520b0a67e92d133dfc137a3688dc7f2"
SGLANG = {
    "README.md": "x",
    "python/pyproject.toml": (
        '[build-system]\nrequires = ["setuptools>=61.0", "setuptools-scm>=8.0", "wheel"]\n'
        '[project]\nname = "sglang"\ndynamic = ["version"]\n'
        'dependencies = ["sgl-kernel==0.3.21", "torch==2.9.1", "torchaudio==2.9.1", "torchvision", '
        '"transformers==4.57.1", "flashinfer_python==0.6.3", "flashinfer_cubin==0.6.3"]\n'
    ),
    "python/sglang/srt/layers/attention/triton_ops/extend_attention.py": "if CUDA_CAPABILITY[0] == 12:\n    pass\n",
}
TOOLS = "build pip setuptools setuptools-scm wheel einops ninja packaging psutil"
DEBIAN = DebianLock(
    suite="bookworm",
    releases=(
        DebianRelease(archive="debian", suite="bookworm", date="2026-11-01T00:00:00Z", packages_sha256="0" * 64),
    ),
    base=(),
)


@pytest.fixture
def default() -> Iterator[PackageIndex]:
    """An index that has what the default one has, torch built for CUDA 12.8 among it."""
    index = PackageIndex()
    for name in TOOLS.split():
        index.add(name, "100.0")
    for name, version in {"torch": "2.9.1", "torchaudio": "2.9.1", "torchvision": "0.24.1", "triton": "3.5.1"}.items():
        index.add(name, version)
    for name, version in {"flashinfer-python": "0.6.3", "flashinfer-cubin": "0.6.3", "sgl-kernel": "0.3.21"}.items():
        index.add(name, version)
    for version in ("4.57.1", "5.2.0"):
        index.add("transformers", version)
    for version in ("9.10.2.21", "9.19.1.2"):
        index.add("nvidia-cudnn-cu13", version)
    for toolkit, nvcc in (("13.0.2", "13.0.88"), ("13.1.2", "13.1.115")):
        index.add("nvidia-cuda-nvcc", nvcc)
        marker = " or ".join(f"extra == {extra!r}" for extra in TOOLKIT_EXTRAS)
        index.add("cuda-toolkit", toolkit, f"nvidia-cuda-nvcc=={nvcc}; {marker}")
    index.add_sdist("flash-attn", "2.8.3", {"setup.py": "import torch\n"})
    with serve(index) as served:
        yield served


@pytest.fixture
def torch_index() -> Iterator[PackageIndex]:
    index = PackageIndex()
    index.add("torch", "2.9.1+cu130", "triton==3.5.1", "nvidia-cudnn-cu13==9.10.2.21")
    for name, version in {"torchaudio": "2.9.1+cu130", "torchvision": "0.24.1+cu130", "triton": "3.5.1"}.items():
        index.add(name, version)
    with serve(index) as served:
        yield served


@pytest.fixture
def kernel_index() -> Iterator[PackageIndex]:
    index = PackageIndex()
    index.add("sgl-kernel", "0.3.21+cu130")
    with serve(index) as served:
        yield served


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RecipeFile:
    """The recipe, with the commit of a small sglang in the place that git's configuration gives for GitHub."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    monkeypatch.setattr("builder.lock.resolve.resolve_debian", lambda *_: DEBIAN)
    head = commit(tmp_path / "mirror" / "sgl-project" / "sglang.git", SGLANG)
    (tmp_path / ".gitconfig").write_text(f'[url "{tmp_path}/mirror/"]\n\tinsteadOf = https://github.com/\n')
    path = tmp_path / "recipes" / RECIPE.name
    path.parent.mkdir()
    path.write_text(RECIPE.read_text(encoding="utf-8").replace(COMMIT, head), encoding="utf-8")
    return read_recipe(path)


def settings_for(tmp_path: Path, default: PackageIndex, **mirrors: str) -> Settings:
    indexes = {mirror_setting(name.replace("_", "-")): url for name, url in mirrors.items()}
    return settings_from({"ENVBUILD_STORE": str(tmp_path / "store"), "ENVBUILD_INDEX_URL": default.url, **indexes})


@pytest.mark.parametrize("address", ["nonsense", "ftp://user:secret@here/", "https:///simple/"])
def test_a_setting_that_is_no_address_is_named_before_anything_is_asked(
    source: RecipeFile, default: PackageIndex, tmp_path: Path, address: str
) -> None:
    def refused(**more: str) -> ResolveError:
        settings = settings_from({"ENVBUILD_STORE": str(tmp_path / "store"), "ENVBUILD_INDEX_URL": default.url, **more})
        with pytest.raises(ResolveError, match="which is no address") as raised:
            resolve_lock(source, None, Store(settings.store), settings)
        assert "secret" not in raised.value.message
        return raised.value

    assert "ENVBUILD_INDEX_URL" in refused(ENVBUILD_INDEX_URL=address).remedy
    assert refused(ENVBUILD_INDEX_TORCH_CU130_URL=address).message.startswith("the mirror of the index torch-cu130")
    assert default.asked == []


def test_the_stack_as_it_was_asked_for_locks_where_its_servers_have_mirrors(
    source: RecipeFile,
    default: PackageIndex,
    torch_index: PackageIndex,
    kernel_index: PackageIndex,
    tmp_path: Path,
) -> None:
    settings = settings_for(tmp_path, default, torch_cu130=torch_index.url, sglang_cu130=kernel_index.url)
    folder = tmp_path / "lock"
    files = resolve_lock(source, None, Store(settings.store), settings)
    assert resolve_lock(source, None, Store(tmp_path / "another"), settings) == files
    write_lock(folder, files)
    lock = current_lock(source, folder)
    wheels = {wheel.name: wheel.version for wheel in lock.wheels}
    assert wheels == {
        "cuda-toolkit": "13.0.2",
        "einops": "100.0",
        "flashinfer-cubin": "0.6.3",
        "flashinfer-python": "0.6.3",
        "nvidia-cuda-nvcc": "13.0.88",
        "nvidia-cudnn-cu13": "9.19.1.2",
        "sgl-kernel": "0.3.21+cu130",
        "torch": "2.9.1+cu130",
        "torchaudio": "2.9.1+cu130",
        "torchvision": "0.24.1+cu130",
        "transformers": "5.2.0",
        "triton": "3.5.1",
    }
    toolchain = {wheel.name: wheel.version for wheel in lock.toolchain_wheels}
    assert toolchain["torch"] == "2.9.1+cu130"
    assert {*TOOLS.split()} < {*toolchain}
    assert "nvidia-cuda-nvcc" not in toolchain
    compiler = {wheel.name: wheel.version for wheel in lock.compiler_wheels}
    assert compiler == {"cuda-toolkit": "13.1.2", "nvidia-cuda-nvcc": "13.1.115"}
    sglang, flash = lock.sources["sglang"], lock.sources["flash-attn"]
    assert isinstance(sglang, LockedGit)
    assert isinstance(flash, LockedSdist)
    assert (sglang.url, sglang.subdirectory) == ("https://github.com/sgl-project/sglang.git", "python")
    assert [fix.id for fix in sglang.fixes] == ["sglang#14311"]
    assert flash.filename == "flash_attn-2.8.3.tar.gz"
    assert all(b"127.0.0.1" not in content for content in files.values())


def test_an_index_that_cannot_be_reached_is_named_with_package_and_setting_and_the_old_lock_stays(
    source: RecipeFile, default: PackageIndex, kernel_index: PackageIndex, tmp_path: Path
) -> None:
    closed = "http://127.0.0.1:9/whl/cu130"
    settings = settings_for(tmp_path, default, torch_cu130=closed, sglang_cu130=kernel_index.url)
    with pytest.raises(ResolveError) as caught:
        resolve_lock(source, None, Store(settings.store), settings)
    assert caught.value.exit_code == 6
    assert caught.value.message == f"indexes.torch-cu130: torch cannot be had from {closed}"
    assert "set ENVBUILD_INDEX_TORCH_CU130_URL to a mirror" in caught.value.remedy
    assert default.asked == []


LOCAL = """version: 1
name: x
target: {gpu: h200}
base: {debian: bookworm}
python: "3.11"
stack:
  pkg:
    git: https://git.example.org/pkg
    commit: COMMIT
    subdirectory: python
    patches: [a.patch]
    fixes:
      - {id: one, file: a, contains: b}
    build: {requires: [ninja]}
"""


def question(folder: Path, text: str = LOCAL, patch: str = "x") -> dict[str, object]:
    (folder / "a.patch").write_text(patch, encoding="utf-8")
    (folder / "r.yaml").write_text(text.replace("COMMIT", "1" * 40), encoding="utf-8")
    return question_of(read_recipe(folder / "r.yaml"))


@pytest.mark.parametrize(
    ("old", "new", "field"),
    [
        ("git.example.org", "other.example.org", "python.stack.pkg.git"),
        ("commit: COMMIT", f"commit: {'2' * 40}", "python.stack.pkg.commit"),
        ("subdirectory: python", "subdirectory: src", "python.stack.pkg.subdirectory"),
        ("contains: b", "contains: c", "python.stack.pkg.fixes"),
        ("requires: [ninja]", "requires: [cmake]", "python.stack.pkg.build-requires"),
        ("requires: [ninja]", "requires: [ninja], dependencies: [numpy]", "python.stack.pkg.dependencies"),
        ("    patches: [a.patch]\n", "", "python.stack.pkg.patches"),
    ],
)
def test_what_says_where_a_source_comes_from_is_part_of_the_question(
    old: str, new: str, field: str, tmp_path: Path
) -> None:
    before = question(tmp_path)
    assert changed_fields(before, question(tmp_path)) == ()
    changed = changed_fields(before, question(tmp_path, LOCAL.replace(old, new)))
    assert [change.partition(" ")[0] for change in changed] == [field]


def test_an_edited_patch_makes_the_lock_stale(source: RecipeFile, default: PackageIndex, tmp_path: Path) -> None:
    head = commit(
        tmp_path / "mirror" / "pkg", {"pyproject.toml": '[project]\nname = "pkg"\nversion = "1"\n', "a": "a\n"}
    )
    patch = "--- a/a\n+++ b/a\n@@ -1 +1 @@\n-a\n+b\n"
    text = LOCAL.replace("COMMIT", head).replace("https://git.example.org", str(tmp_path / "mirror"))
    question(tmp_path, text.replace("    subdirectory: python\n", ""), patch)
    wished = read_recipe(tmp_path / "r.yaml")
    settings = settings_for(tmp_path, default)
    write_lock(tmp_path / "lock", resolve_lock(wished, None, Store(settings.store), settings))
    assert current_lock(wished, tmp_path / "lock").sources["pkg"].patches[0].file == "a.patch"
    (tmp_path / "a.patch").write_text(patch.replace("+b", "+bb"), encoding="utf-8")
    with pytest.raises(StaleLockError, match=r"changed since: python\.stack\.pkg\.patches"):
        current_lock(wished, tmp_path / "lock")
