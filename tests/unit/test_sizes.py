"""The bytes of an image: packages from wheels in the store, layers that were made, libraries that are there twice."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from rich.console import Console as RichConsole

from builder.build.base import base_key, find_base
from builder.build.duplicates import BASE, find_duplicates
from builder.build.image import Layer
from builder.build.layers import make_base_layer, make_layers
from builder.build.sizes import measure_image
from builder.build.sizes_table import sizes_table
from builder.build.stage import find_plan
from builder.build.venv import Venv
from builder.build.wheelfile import read_layout
from builder.errors import UsageError
from builder.lock.model import LockedWheel
from builder.lock.question import question_of
from builder.lock.stage import locked_recipe
from builder.recipe.source import read_recipe
from builder.recipe.workspace import workspace_of
from builder.sizes import shown_bytes, shown_delta
from builder.store import Store
from tests.fakes import FakeEngine
from tests.sides import deb, debian_lock, write_lock_files
from tests.wheels import make_wheel

if TYPE_CHECKING:
    from builder.build.duplicates import Duplicate
    from builder.build.wheelfile import WheelInput
    from builder.recipe.source import RecipeFile

LIBRARIES = Path(__file__).parents[1] / "cases" / "fatbin"
ONE = (LIBRARIES / "sm_120.so").read_bytes()  # its soname is libsm_120.so
OTHER = (LIBRARIES / "sm_90a.so").read_bytes()
VENV = Venv(python="3.13")
SITE = "/opt/env/lib/python3.13/site-packages"
RECIPE = """\
version: 1
name: x
target: {gpu: h200}
base: {debian: trixie}
python: "3.13"
stack: {large: "1.0", small: "1.0"}
"""


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def duplicates(store: Store, *wheels: dict[str, bytes], rootfs: Path | None = None) -> tuple[Duplicate, ...]:
    layouts = [
        read_layout(make_wheel(store.root, f"w{number}", files), VENV) for number, files in enumerate(wheels, start=1)
    ]
    return find_duplicates(layouts, rootfs, store)


def test_a_library_of_two_wheels_is_found_by_its_soname(store: Store) -> None:
    [found] = duplicates(store, {"w1/libx.so": ONE}, {"w2/lib/libx.so.1": ONE}, {"w3/liby.so": OTHER})
    assert found.soname == "libsm_120.so"
    assert [(copy.owner, copy.path, copy.size) for copy in found.copies] == [
        ("w1", f"{SITE}/w1/libx.so", len(ONE)),
        ("w2", f"{SITE}/w2/lib/libx.so.1", len(ONE)),
    ]


def test_the_hash_that_a_bundler_adds_to_file_and_soname_hides_nothing(store: Store) -> None:
    bundled = (LIBRARIES / "compute_120a.so").read_bytes()
    one, other = (
        bundled.replace(b"libcompute_120a.so", name) for name in (b"libabc-1a2b3c4d.so", b"libabc-99887766.so")
    )
    [found] = duplicates(store, {"w1.libs/libabc-1a2b3c4d.so": one}, {"w2.libs/libabc-99887766.so": other})
    assert found.soname == "libabc.so"
    assert len(found.copies) == 2


def test_two_copies_in_one_wheel_count_too(store: Store) -> None:
    [found] = duplicates(store, {"w1/libx.so": ONE, "w1/libx.so.1": ONE})
    assert [copy.owner for copy in found.copies] == ["w1", "w1"]


@pytest.mark.parametrize(
    "wheels",
    [
        ({"w1/libx.so": ONE}, {"w2/libx.so": OTHER}),  # one name, two libraries
        ({"w1/libx.so": ONE}, {"w2/libx.so": b"no library"}),
        ({"w1/libx.so": ONE}, {"w2/libx.so.py": ONE}),
        ({"w1/libx.so": ONE}, {"w2/liby.so": ONE}),  # files of other names are not read
        ({"w1/libx.so": ONE},),
    ],
)
def test_what_only_looks_alike_is_not_there_twice(wheels: tuple[dict[str, bytes], ...], store: Store) -> None:
    assert duplicates(store, *wheels) == ()


def rootfs(folder: Path, files: dict[str, bytes]) -> Path:
    path = folder / "rootfs.tar"
    with tarfile.open(path, "w") as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
        link = tarfile.TarInfo("./usr/lib/libx.so")
        link.type, link.linkname = tarfile.SYMTYPE, "libx.so.1"
        archive.addfile(link)
    return path


def test_a_library_of_the_base_counts_and_links_to_it_do_not(store: Store, tmp_path: Path) -> None:
    base = rootfs(tmp_path, {"./usr/lib/libx.so.1": ONE})
    assert duplicates(store, rootfs=base) == ()
    [found] = duplicates(store, {"w1/libx.so": ONE}, rootfs=base)
    assert {(copy.owner, copy.path) for copy in found.copies} == {
        ("w1", f"{SITE}/w1/libx.so"),
        (BASE, "/usr/lib/libx.so.1"),
    }


@pytest.fixture
def source(store: Store, tmp_path: Path) -> RecipeFile:
    """A locked recipe whose wheels are in the store, and nothing else."""
    path = tmp_path / "recipes" / "x.yaml"
    path.parent.mkdir()
    path.write_text(RECIPE, encoding="utf-8")
    source = read_recipe(path)
    large = make_wheel(tmp_path, "large", {"large/libx.so": ONE, "large/data": bytes(1000)})
    small = make_wheel(tmp_path, "small", {"small/libx.so": ONE})
    lock_wheels(source, store, large, small)
    return source


def lock_wheels(source: RecipeFile, store: Store, *wheels: WheelInput) -> None:
    """Move wheels into the store and write the lock that names them."""
    locked = [
        LockedWheel(
            name=wheel.name,
            version=wheel.version,
            filename=wheel.filename,
            sha256=wheel.sha256,
            size=wheel.path.stat().st_size,
        )
        for wheel in wheels
    ]
    for wheel in wheels:
        store.add(wheel.path)
    write_lock_files(workspace_of(source).lock, question_of(source), debian_lock(deb("libc6", "1")), tuple(locked))


def test_packages_are_measured_as_they_are_installed_the_biggest_first(source: RecipeFile, store: Store) -> None:
    report = measure_image(source, locked_recipe(source), store)
    assert [package.name for package in report.packages] == ["large", "small"]
    large, small = report.packages
    assert large.bytes - small.bytes == 1000
    assert large.files - small.files == 1
    assert small.bytes > len(ONE)
    assert report.installed == large.bytes + small.bytes


def test_what_another_wheel_lies_over_is_not_counted_and_not_there_twice(
    source: RecipeFile, store: Store, tmp_path: Path
) -> None:
    large = make_wheel(tmp_path, "large", {"lib/libx.so": ONE, "lib/y.so": OTHER})
    small = make_wheel(tmp_path, "small", {"lib/libx.so": ONE + b"1", "small/libx.so": ONE}, requires=["large"])
    lock_wheels(source, store, large, small)
    report = measure_image(source, locked_recipe(source), store)
    sizes = {package.name: package.bytes for package in report.packages}
    assert sizes["large"] - len(OTHER) < len(ONE)
    [twice] = report.twice
    assert [(copy.owner, copy.bytes) for copy in twice.copies] == [("small", len(ONE) + 1), ("small", len(ONE))]


def test_layers_that_are_not_made_have_no_size_and_no_total(source: RecipeFile, store: Store) -> None:
    report = measure_image(source, locked_recipe(source), store)
    assert len(report.layers) == 5  # the base, the environment, a bucket for each wheel, the recipe and the lock
    assert {layer.compressed for layer in report.layers} == {None}
    assert report.compressed is None
    assert "not made" in shown(report)


def test_layers_that_were_made_have_the_sizes_of_their_blobs(source: RecipeFile, store: Store, tmp_path: Path) -> None:
    lock = locked_recipe(source)
    sha256 = store.add(rootfs(tmp_path, {"./etc/x": b"x" * 5000}))
    size = store.path(sha256).stat().st_size
    assert lock.file.debian is not None
    store.keep_result("base", base_key(lock.file.debian), {"sha256": sha256, "size": size})
    assert find_base(lock.file.debian, store) is not None
    base = make_base_layer(sha256, store=store)
    plan = find_plan(source, lock, store)
    assert plan is not None
    made = make_layers(
        plan.layers([read_layout(wheel, plan.terms.venv) for wheel in plan.wheels]),
        base=(base,),
        terms=plan.terms,
        engine=FakeEngine(),
        store=store,
        on_progress=lambda _text: None,
    )
    report = measure_image(source, lock, store)
    blobs = {layer.title: layer.blob for layer in (*made, Layer(title="Debian base", blob=base.blob))}
    assert {(layer.title, layer.compressed, layer.unpacked) for layer in report.layers} == {
        (title, blob.size, blob.unpacked) for title, blob in blobs.items()
    }
    sizes = [layer.compressed or 0 for layer in report.layers]
    assert sizes == sorted(sizes, reverse=True)
    assert report.compressed == sum(sizes)
    assert shown_bytes(sum(sizes)) in shown(report)


def test_a_library_that_is_there_twice_is_a_warning(source: RecipeFile, store: Store) -> None:
    [warning] = measure_image(source, locked_recipe(source), store).warnings
    assert warning.startswith("libsm_120.so is in the image 2 times: ")
    assert f"{SITE}/small/libx.so (small, {shown_bytes(len(ONE))})" in warning


def test_an_image_whose_wheels_are_not_here_cannot_be_measured(source: RecipeFile, store: Store) -> None:
    lock = locked_recipe(source)
    store.path(lock.wheels[0].sha256).unlink()
    with pytest.raises(UsageError, match="not all in the store") as caught:
        measure_image(source, lock, store)
    assert caught.value.remedy == f"run `envbuild build {source.path}`"


def shown(report: object) -> str:
    out = io.StringIO()
    RichConsole(file=out, width=200).print(sizes_table(report))  # type: ignore[arg-type]
    return out.getvalue()


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (99_940, "99.9 kB"),
        (99_960, "100 kB"),
        (999_600, "1.0 MB"),
        (5_160_000_000, "5.2 GB"),
        (-1500, "-1.5 kB"),
        (12_345_678_900_000, "12.3 TB"),
    ],
)
def test_bytes_are_shown_with_a_decimal_unit(size: int, text: str) -> None:
    assert shown_bytes(size) == text


def test_a_difference_has_a_sign() -> None:
    assert [shown_delta(size) for size in (1500, -1500, 0)] == ["+1.5 kB", "-1.5 kB", ""]
