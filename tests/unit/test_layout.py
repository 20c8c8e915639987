"""OCI layouts: the same image, the same bytes; what was written is read back; what is damaged is refused."""

from __future__ import annotations

import io
import json
import tarfile
from typing import TYPE_CHECKING

import pytest

from builder.build.layout import opened_layout, read_layout_image, write_layout
from builder.document import sha256_bytes, sha256_file
from builder.errors import BuildFailedError, InvalidDocumentError, UsageError
from builder.store import Store
from tests.registry_image import make_image

if TYPE_CHECKING:
    from pathlib import Path

    from builder.build.image import Image


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def image(store: Store) -> Image:
    return make_image(store, {"a": b"1" * 5000}, {"b": b"2"})


def test_a_folder_holds_what_the_specification_names(image: Image, store: Store, tmp_path: Path) -> None:
    write_layout(image, tmp_path / "out", store=store, name="stack-1")
    assert json.loads((tmp_path / "out" / "oci-layout").read_bytes()) == {"imageLayoutVersion": "1.0.0"}
    [entry] = json.loads((tmp_path / "out" / "index.json").read_bytes())["manifests"]
    assert (entry["digest"], entry["size"]) == (image.manifest_digest, len(image.manifest))
    assert entry["annotations"] == {"org.opencontainers.image.ref.name": "stack-1"}
    blobs = sorted((tmp_path / "out" / "blobs" / "sha256").iterdir())
    assert len(blobs) == 4
    assert all(sha256_file(path) == path.name for path in blobs)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_the_same_image_makes_the_same_file(image: Image, store: Store, tmp_path: Path) -> None:
    write_layout(image, tmp_path / "one.tar", store=store)
    write_layout(image, tmp_path / "two.tar", store=store)
    assert (tmp_path / "one.tar").read_bytes() == (tmp_path / "two.tar").read_bytes()
    with tarfile.open(tmp_path / "one.tar") as archive:
        members = archive.getmembers()
    assert [member.name for member in members][:2] == ["oci-layout", "index.json"]
    assert [member.name for member in members][2:] == sorted(member.name for member in members[2:])
    assert {(member.mtime, member.uid, member.mode) for member in members} == {(0, 0, 0o644)}


@pytest.mark.parametrize("name", ["out", "out.tar"])
def test_what_was_written_is_read_into_another_store(name: str, image: Image, store: Store, tmp_path: Path) -> None:
    write_layout(image, tmp_path / name, store=store)
    other = Store(tmp_path / "other")
    found = read_layout_image(tmp_path / name, other)
    assert found == image
    assert all(other.has(layer.blob.digest.removeprefix("sha256:")) for layer in found.layers)


def test_a_name_chooses_among_several_images(image: Image, store: Store, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    write_layout(image, folder, store=store, name="one")
    index = json.loads((folder / "index.json").read_bytes())
    [entry] = index["manifests"]
    index["manifests"].append({**entry, "annotations": {"org.opencontainers.image.ref.name": "two"}})
    (folder / "index.json").write_text(json.dumps(index))
    assert read_layout_image(folder, store, name="two") == image
    with pytest.raises(InvalidDocumentError, match="holds 2 images, not one"):
        read_layout_image(folder, store)
    with pytest.raises(InvalidDocumentError, match="holds 0 images called three"):
        read_layout_image(folder, store, name="three")


def test_a_folder_that_is_there_is_not_overwritten(image: Image, store: Store, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis").touch()
    (tmp_path / "out.tar").write_bytes(b"mine")
    for name in ("out", "out.tar"):
        with pytest.raises(UsageError, match="is there already"):
            write_layout(image, tmp_path / name, store=store)
    assert (tmp_path / "out.tar").read_bytes() == b"mine"


@pytest.mark.parametrize("name", ["out", "out.tar"])
def test_a_layer_that_is_missing_in_the_store_leaves_nothing(
    name: str, image: Image, store: Store, tmp_path: Path
) -> None:
    store.path(image.layers[1].blob.digest.removeprefix("sha256:")).unlink()
    with pytest.raises(BuildFailedError, match="cannot be written: No such file"):
        write_layout(image, tmp_path / name, store=store)
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


@pytest.mark.parametrize("which", [0, 1, 2, 3])
def test_a_damaged_blob_is_refused(which: int, image: Image, store: Store, tmp_path: Path) -> None:
    write_layout(image, tmp_path / "out", store=store)
    blob = sorted((tmp_path / "out" / "blobs" / "sha256").iterdir())[which]
    blob.write_bytes(blob.read_bytes()[:-1] + b"x")
    with pytest.raises(InvalidDocumentError, match=f"the blob sha256:{blob.name} is damaged"):
        read_layout_image(tmp_path / "out", Store(tmp_path / "other"))


def test_what_is_no_layout_is_refused(image: Image, store: Store, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"no tar")
    with pytest.raises(InvalidDocumentError, match="is no folder and no tar file"):
        read_layout_image(tmp_path / "file", store)
    (tmp_path / "folder").mkdir()
    with pytest.raises(InvalidDocumentError, match="holds no oci-layout"):
        read_layout_image(tmp_path / "folder", store)
    write_layout(image, tmp_path / "out", store=store)
    (tmp_path / "out" / "blobs" / "sha256" / image.config_digest.removeprefix("sha256:")).unlink()
    with pytest.raises(InvalidDocumentError, match="holds no blobs/sha256/"):
        read_layout_image(tmp_path / "out", Store(tmp_path / "other"))


def test_parts_that_do_not_belong_together_are_refused(image: Image, store: Store, tmp_path: Path) -> None:
    """Every blob is what its digest says, but the manifest names the layers in another order than the config."""
    write_layout(image, tmp_path / "out", store=store)
    manifest = json.loads(image.manifest)
    manifest["layers"].reverse()
    data = json.dumps(manifest).encode()
    (tmp_path / "out" / "blobs" / "sha256" / sha256_bytes(data)).write_bytes(data)
    index = json.loads((tmp_path / "out" / "index.json").read_bytes())
    index["manifests"][0] |= {"digest": f"sha256:{sha256_bytes(data)}", "size": len(data)}
    (tmp_path / "out" / "index.json").write_text(json.dumps(index))
    with pytest.raises(InvalidDocumentError, match="does not unpack to sha256:"):
        read_layout_image(tmp_path / "out", Store(tmp_path / "other"))


@pytest.mark.parametrize("kept", [10, 600, 1500])
def test_a_tar_file_that_is_cut_off_is_refused_in_a_sentence(tmp_path: Path, kept: int) -> None:
    whole = tmp_path / "whole.tar"
    with tarfile.open(whole, "w") as archive:
        for name, data in (("oci-layout", b'{"imageLayoutVersion":"1.0.0"}'), ("index.json", b"{}" * 700)):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    cut = tmp_path / "cut.tar"
    cut.write_bytes(whole.read_bytes()[:kept])
    with pytest.raises(InvalidDocumentError, match=r"cut\.tar"), opened_layout(cut) as layout:
        layout.index()
