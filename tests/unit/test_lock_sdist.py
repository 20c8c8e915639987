"""Source distributions: found, fetched by hash, patched; what they declare is read and never run."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from typing import TYPE_CHECKING, Any

import pytest

from builder.errors import InvalidDocumentError, ResolveError
from builder.lock.model import LockedSdist
from builder.lock.project import source_project
from builder.lock.sources import locked_source, restore_source, source_declarations
from builder.lock.wish import wishes_of
from builder.recipe.model import Recipe
from builder.recipe.source import RecipeFile
from builder.settings import settings_from
from builder.store import Store
from tests.package_index import PackageIndex, serve

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from builder.lock.wish import Wish

SETUP = "raise SystemExit('setup.py was run')\n"
PKG_INFO = "Metadata-Version: 2.2\nName: pkg\nVersion: 1.0\nRequires-Dist: torch\nRequires-Dist: einops\n"
EXTRAS = (
    "Provides-Extra: fast\nRequires-Dist: numba>1; extra == 'fast'\n"
    "Requires-Dist: tool; (os_name == 'nt' or python_version > '3') and extra == 'fast'\n"
)


@pytest.fixture
def index() -> Iterator[PackageIndex]:
    index = PackageIndex()
    index.add_sdist("pkg", "1.0", {"PKG-INFO": PKG_INFO, "setup.py": SETUP})
    index.add("pkg", "1.0")
    index.add_sdist("pkg", "1.1", {"PKG-INFO": PKG_INFO})
    with serve(index) as served:
        yield served


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def wish(index: PackageIndex, folder: Path, store: Store, **more: Any) -> Wish:
    fields = more.pop("fields", {})
    plain = {
        "version": 1,
        "name": "x",
        "target": {"gpu": "h200"},
        "base": {"debian": "trixie"},
        "python": "3.13",
        "stack": {"pkg": {"version": "1.0", "build": {}, **more}},
        **fields,
    }
    recipe = Recipe.from_json(json.dumps(plain), source="test")
    settings = settings_from({"ENVBUILD_INDEX_URL": index.url})
    return wishes_of(RecipeFile(path=folder / "recipe.yaml", recipe=recipe), store, settings)[0]


def test_the_pinned_sdist_is_locked_and_its_wheel_is_not_taken(
    index: PackageIndex, tmp_path: Path, store: Store
) -> None:
    wished = wish(index, tmp_path, store)
    locked = locked_source(wished)
    data = index.files["pkg"]["pkg-1.0.tar.gz"]
    assert isinstance(locked, LockedSdist)
    assert (locked.filename, locked.sha256) == ("pkg-1.0.tar.gz", hashlib.sha256(data).hexdigest())
    assert locked.size == len(data)
    assert source_declarations(locked, wished).dependencies == ("einops", "torch")
    with tarfile.open(store.path(locked.archive)) as tar:
        assert tar.getnames() == ["PKG-INFO", "setup.py"]


def test_a_lost_archive_is_made_again_from_the_locked_file(index: PackageIndex, tmp_path: Path, store: Store) -> None:
    wished = wish(index, tmp_path, store)
    locked = locked_source(wished)
    assert isinstance(locked, LockedSdist)
    for sha256 in (locked.archive, locked.sha256):
        store.path(sha256).unlink()
    index.add_sdist("pkg", "1.0", {"PKG-INFO": PKG_INFO, "setup.py": "other"})
    with pytest.raises(ResolveError, match=r"has another file under the name pkg-1\.0\.tar\.gz"):
        restore_source(locked, wished)
    index.add_sdist("pkg", "1.0", {"PKG-INFO": PKG_INFO, "setup.py": SETUP})
    assert restore_source(locked, wished).is_file()


def test_a_file_that_is_not_the_one_that_the_index_lists_is_refused(
    index: PackageIndex, tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = index.page("pkg")
    monkeypatch.setattr(index, "page", lambda project: page)
    index.add_sdist("pkg", "1.0", {"PKG-INFO": PKG_INFO, "setup.py": "evil"})
    with pytest.raises(ResolveError, match=r"pkg-1\.0\.tar\.gz: ") as caught:
        locked_source(wish(index, tmp_path, store))
    assert caught.value.exit_code == 6


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"version": "9.9"}, r"has no source distribution \(\.tar\.gz\) of pkg 9\.9"),
        (
            {"fields": {"as-of": "2025-12-31"}},
            r"pkg-1\.0\.tar\.gz was published on 2026-01-01, after `as-of: 2025-12-31`",
        ),
    ],
)
def test_a_version_without_a_lockable_sdist_is_refused(
    more: dict[str, Any], said: str, index: PackageIndex, tmp_path: Path, store: Store
) -> None:
    with pytest.raises(ResolveError, match=rf"stack\.pkg: .*{said}"):
        locked_source(wish(index, tmp_path, store, **more))


def test_an_archive_that_is_no_sdist_is_refused(index: PackageIndex, tmp_path: Path, store: Store) -> None:
    index.files["pkg"]["pkg-1.0.tar.gz"] = b"no archive"
    with pytest.raises(ResolveError, match=r"stack\.pkg: pkg-1\.0\.tar\.gz cannot be unpacked"):
        locked_source(wish(index, tmp_path, store))
    index.files["pkg"]["pkg-1.0.tar.gz"] = _tar("pkg-1.0/../../outside")
    with pytest.raises(ResolveError, match=r"holds a file with the forbidden name"):
        locked_source(wish(index, tmp_path, store))


def _tar(name: str) -> bytes:
    output = io.BytesIO()
    with tarfile.open(fileobj=output, mode="w:gz") as archive:
        archive.addfile(tarfile.TarInfo(name))
    return output.getvalue()


def test_a_patch_applies_below_the_top_folder(index: PackageIndex, tmp_path: Path, store: Store) -> None:
    patch = f"--- a/setup.py\n+++ b/setup.py\n@@ -1 +1 @@\n-{SETUP}+import setuptools\n"
    (tmp_path / "a.patch").write_text(patch, encoding="utf-8")
    locked = locked_source(wish(index, tmp_path, store, patches=["a.patch"]))
    with tarfile.open(store.path(locked.archive)) as tar:
        file = tar.extractfile("setup.py")
        assert file is not None
        assert file.read() == b"import setuptools\n"


def declared(pyproject: str | None = None, pkg_info: str | None = None, **more: Any) -> tuple[str, ...]:
    fields = {"said": None, "known": None, **more}
    extras = fields.pop("extras", ())
    project = source_project("pkg", "stack.pkg", pyproject=pyproject, pkg_info=pkg_info, **fields)
    return project.dependencies_with(extras)


STATIC = '[project]\nname = "pkg"\ndependencies = ["numpy"]\n[project.optional-dependencies]\n'
STATIC += 'fast = ["numba"]\nall = ["pkg[fast]", "dask"]\n'
DYNAMIC = '[project]\nname = "pkg"\ndynamic = ["dependencies"]\n'


def test_dependencies_are_taken_from_the_first_place_that_fixes_them() -> None:
    assert declared(STATIC, PKG_INFO, known=["x"]) == ("numpy",)
    assert declared(DYNAMIC, PKG_INFO, known=["x"]) == ("einops", "torch")
    assert declared(DYNAMIC, PKG_INFO + "Dynamic: Requires-Dist\n", known=["x"]) == ("x",)
    assert declared(None, PKG_INFO.replace("2.2", "2.1"), known=["x"]) == ("x",)
    assert declared(STATIC, PKG_INFO, said=["y>1"], known=["x"]) == ("y>1",)
    assert declared(None, None, said=[]) == ()


def test_extras_of_sources_are_honoured_also_those_made_of_others() -> None:
    assert declared(STATIC, extras=["all"]) == ("dask", "numba", "numpy")
    assert declared(None, PKG_INFO + EXTRAS) == ("einops", "torch")
    assert declared(None, PKG_INFO + EXTRAS, extras=["fast"]) == (
        "einops",
        "numba>1",
        'tool; os_name == "nt" or python_version > "3"',
        "torch",
    )
    with pytest.raises(InvalidDocumentError, match="pkg declares no extra 'slow'"):
        declared(STATIC, extras=["slow"])


@pytest.mark.parametrize("pkg_info", [None, PKG_INFO + "Dynamic: Requires-Dist\n", PKG_INFO.replace("2.2", "2.1")])
def test_dependencies_that_only_code_knows_must_be_written_in_the_recipe(pkg_info: str | None) -> None:
    with pytest.raises(ResolveError, match="the source leaves its dependencies to code") as caught:
        declared(DYNAMIC, pkg_info)
    assert "stack.pkg.build.dependencies" in caught.value.remedy


PATCH = "--- a/setup.py\n+++ b/setup.py\n@@ -1 +1,2 @@\n raise SystemExit('setup.py was run')\n+FIXED = True\n"
FIX = {"id": "pkg#1", "file": "setup.py", "contains": "FIXED = True"}


def test_a_fix_is_proven_in_the_patched_source_and_locked(index: PackageIndex, tmp_path: Path, store: Store) -> None:
    (tmp_path / "fix.patch").write_text(PATCH)
    locked = locked_source(wish(index, tmp_path, store, patches=["fix.patch"], fixes=[FIX]))
    assert [(fix.id, fix.proof) for fix in locked.fixes] == [("pkg#1", "setup.py contains 'FIXED = True'")]
    with tarfile.open(store.path(locked.archive)) as tar:
        member = tar.extractfile("setup.py")
        assert member is not None
        assert member.read().endswith(b"FIXED = True\n")


def test_a_source_without_the_fix_is_refused_with_the_way_to_bring_it(
    index: PackageIndex, tmp_path: Path, store: Store
) -> None:
    with pytest.raises(ResolveError, match=r"does not have pkg#1: setup\.py does not contain 'FIXED = True'") as caught:
        locked_source(wish(index, tmp_path, store, fixes=[FIX]))
    assert caught.value.remedy == "take a version that has it, or bring it in `patches`"


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"fixes": [FIX], "build": None}, "`git`, or a `version` with a `build` section"),
        ({"fixes": [{"id": "pkg#1", "commit": "a" * 40}]}, "a released version has no history"),
        ({"subdirectory": "python"}, "`subdirectory` belongs to a `git` source"),
    ],
)
def test_what_only_a_git_source_has_is_refused_for_a_version(
    index: PackageIndex, tmp_path: Path, store: Store, more: dict[str, Any], said: str
) -> None:
    with pytest.raises(InvalidDocumentError, match=said):
        wish(index, tmp_path, store, **more)
