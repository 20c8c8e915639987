"""Config, manifest and archive of an image."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from typing import TYPE_CHECKING

import pytest

from builder.build.compression import COMPRESSIONS, GZIP, ZSTD
from builder.build.image import ImageSettings, Layer, assemble, chain_ids, docker_archive, load_image
from builder.build.tarlayer import Blob, compress_tar
from builder.errors import EngineError
from builder.store import DamagedFileError, Store
from tests.fakes import FakeEngine

if TYPE_CHECKING:
    from pathlib import Path

    from builder.build.compression import Compression
    from builder.build.image import Image

SETTINGS = ImageSettings(
    epoch=1_764_000_000,
    environment={"PATH": "/opt/env/bin:/bin", "LANG": "C.UTF-8"},
    labels={"b": "2", "a": "1"},
)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path)


def layer(store: Store, title: str, compression: Compression = GZIP) -> Layer:
    out = io.BytesIO()
    blob = compress_tar(io.BytesIO(f"bytes of {title}".encode()), out, compression)
    store.add_bytes(out.getvalue())
    return Layer(title=title, blob=blob, media_type=compression.media_type)


def known(title: str) -> Layer:
    data = f"bytes of {title}".encode()
    diff_id = f"sha256:{hashlib.sha256(title.encode()).hexdigest()}"
    digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
    return Layer(title=title, blob=Blob(digest=digest, size=len(data), diff_id=diff_id, unpacked=10240))


@pytest.fixture
def image(store: Store) -> Image:
    return assemble((layer(store, "base"), layer(store, "environment"), layer(store, "torch 2")), SETTINGS)


def archive_of(data: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        files = {member.name: archive.extractfile(member) for member in archive}
        return {name: file.read() for name, file in files.items() if file is not None}


def test_the_config_says_what_the_image_is(image: Image) -> None:
    config = json.loads(image.config)
    assert config["created"] == "2025-11-24T16:00:00Z"
    assert (config["architecture"], config["os"]) == ("amd64", "linux")
    assert config["config"] == {
        "Env": ["PATH=/opt/env/bin:/bin", "LANG=C.UTF-8"],
        "Labels": {"a": "1", "b": "2"},
        "Cmd": ["python3"],
    }
    assert config["rootfs"]["diff_ids"] == [layer.blob.diff_id for layer in image.layers]
    assert [entry["created_by"] for entry in config["history"]] == [
        "envbuild: base",
        "envbuild: environment",
        "envbuild: torch 2",
    ]


def test_the_manifest_names_config_and_layers(image: Image) -> None:
    manifest = json.loads(image.manifest)
    assert manifest["mediaType"] == "application/vnd.oci.image.manifest.v1+json"
    assert manifest["config"]["digest"] == f"sha256:{hashlib.sha256(image.config).hexdigest()}" == image.config_digest
    assert manifest["config"]["size"] == len(image.config)
    assert [(entry["digest"], entry["size"]) for entry in manifest["layers"]] == [
        (layer.blob.digest, layer.blob.size) for layer in image.layers
    ]
    assert image.manifest_digest == f"sha256:{hashlib.sha256(image.manifest).hexdigest()}"


def test_a_known_image_has_its_known_digests() -> None:
    image = assemble(tuple(known(title) for title in ("base", "environment", "torch 2")), SETTINGS)
    assert image.config_digest == "sha256:a287ebedbb6e5b41786e87c39a7f3139728fb69087b2bd27a6d1392d35a05df1"
    assert image.manifest_digest == "sha256:4f00d05531c25bf2dd11677cf76d5025b1d2e411a127749c806225563cbc76f1"


def test_the_order_of_labels_does_not_matter(store: Store) -> None:
    layers = (layer(store, "base"),)
    one = assemble(layers, ImageSettings(epoch=0, labels={"a": "1", "b": "2"}))
    assert one == assemble(layers, ImageSettings(epoch=0, labels={"b": "2", "a": "1"}))


def test_chain_ids_follow_the_specification(image: Image) -> None:
    first, second, _ = (layer.blob.diff_id for layer in image.layers)
    chain = chain_ids(image.layers)
    assert chain[0] == first
    assert chain[1] == f"sha256:{hashlib.sha256(f'{first} {second}'.encode()).hexdigest()}"
    assert len(set(chain)) == 3


@pytest.mark.parametrize("compression", COMPRESSIONS.values(), ids=COMPRESSIONS)
def test_the_archive_holds_config_manifest_and_unpacked_layers(compression: Compression, store: Store) -> None:
    layers = tuple(layer(store, title, compression) for title in ("base", "environment", "torch 2"))
    image = assemble(layers, SETTINGS)
    files = archive_of(b"".join(docker_archive(image, "x/y:1", store=store, present=frozenset())))
    [entry] = json.loads(files["manifest.json"])
    assert entry["RepoTags"] == ["x/y:1"]
    assert files[entry["Config"]] == image.config
    assert [files[name] for name in entry["Layers"]] == [b"bytes of base", b"bytes of environment", b"bytes of torch 2"]


def test_the_archive_is_an_image_layout_of_the_unpacked_layers_too(image: Image, store: Store) -> None:
    files = archive_of(b"".join(docker_archive(image, "x/y:1", store=store, present=frozenset())))
    blobs = {f"sha256:{hashlib.sha256(data).hexdigest()}": data for data in files.values()}
    assert json.loads(files["oci-layout"]) == {"imageLayoutVersion": "1.0.0"}
    [described] = json.loads(files["index.json"])["manifests"]
    assert described["annotations"] == {
        "io.containerd.image.name": "docker.io/x/y:1",
        "dev.envbuild.config": image.config_digest,
    }
    manifest = json.loads(blobs[described["digest"]])
    assert blobs[manifest["config"]["digest"]] == image.config
    assert [blobs[item["digest"]] for item in manifest["layers"]] == [
        b"bytes of base",
        b"bytes of environment",
        b"bytes of torch 2",
    ]
    for item in (described, manifest["config"], *manifest["layers"]):
        assert item["size"] == len(blobs[item["digest"]])


def test_the_id_of_an_image_does_not_depend_on_how_its_layers_are_packed(store: Store) -> None:
    packed, small = (assemble((layer(store, "base", each),), SETTINGS) for each in (GZIP, ZSTD))
    assert packed.config_digest == small.config_digest
    assert packed.manifest_digest != small.manifest_digest
    [entry] = json.loads(small.manifest)["layers"]
    assert entry["mediaType"] == "application/vnd.oci.image.layer.v1.tar+zstd"


@pytest.mark.parametrize("compression", COMPRESSIONS.values(), ids=COMPRESSIONS)
@pytest.mark.parametrize("place", [0, 12, -1])
def test_an_archive_never_ends_with_a_damaged_layer(place: int, compression: Compression, store: Store) -> None:
    image = assemble((layer(store, "base", compression),), SETTINGS)
    path = store.path(image.layers[0].blob.digest.removeprefix("sha256:"))
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)
    with pytest.raises(DamagedFileError, match="is damaged: its bytes have the sha256") as raised:
        b"".join(docker_archive(image, "x/y:1", store=Store(store.root), present=frozenset()))
    assert raised.value.sha256 == path.name


def test_layers_that_the_engine_has_are_named_but_not_sent(image: Image, store: Store) -> None:
    present = frozenset(chain_ids(image.layers)[:2])
    files = archive_of(b"".join(docker_archive(image, "x/y:1", store=store, present=present)))
    [entry] = json.loads(files["manifest.json"])
    assert len(entry["Layers"]) == 3
    assert [name in files for name in entry["Layers"]] == [False, False, True]


def test_an_image_that_the_engine_has_is_not_loaded_again(image: Image, store: Store) -> None:
    engine = FakeEngine(images={"x/y:1": image.config_digest})
    load_image(image, "x/y:1", engine=engine, store=store)
    assert engine.loaded == []


def test_another_image_under_the_reference_is_an_error(image: Image, store: Store) -> None:
    engine = FakeEngine(images={"x/y:1": "sha256:other"}, chains=frozenset(chain_ids(image.layers)[:1]))
    with pytest.raises(EngineError, match=r"loaded x/y:1 as sha256:other instead of sha256:"):
        load_image(image, "x/y:1", engine=engine, store=store)
    assert sum(name.endswith(".tar") for name in archive_of(engine.loaded[0])) == 2
