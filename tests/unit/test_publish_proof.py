"""What is said of an image: its bill of materials, its provenance, its verdict; each the same for the same image."""

from __future__ import annotations

import json
import zipfile
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL

from builder.build.wheelfile import WheelInput
from builder.document import canonical_json
from builder.lock.model import LockedDeb, LockedGit, LockedImage, LockedLayer, LockedPatch, LockedSdist
from builder.publish.envelope import UnprovenError
from builder.publish.gate import ProvenImage, proven_image
from builder.publish.licences import debian_licences, wheel_licences
from builder.publish.provenance import provenance_of
from builder.publish.sbom import bill_of
from builder.publish.statements import TEST_RESULT, Statement
from builder.publish.testresult import VERDICT, result_predicate, verdict_in
from tests.publication import base_tar, proven_project

if TYPE_CHECKING:
    from pathlib import Path

DEBS = tuple(
    LockedDeb(
        name=name,
        version="1:2.0+dfsg-1~deb13",
        architecture="amd64",
        archive="debian",
        filename=f"pool/{name}.deb",
        sha256=digit * 64,
        size=1,
    )
    for name, digit in (("one", "1"), ("two", "2"), ("three", "3"))
)
GIT = LockedGit(
    name="sglang",
    url="https://git.example/sglang.git",
    commit="a" * 40,
    tree="b" * 40,
    patches=(LockedPatch(file="x.patch", sha256="c" * 64),),
    archive="d" * 64,
)
SDIST = LockedSdist(
    name="flash-attn", version="2.8.3", filename="flash_attn-2.8.3.tar.gz", sha256="e" * 64, size=1, archive="f" * 64
)


@pytest.fixture
def rootfs(tmp_path: Path) -> Path:
    path = tmp_path / "rootfs.tar"
    path.write_bytes(base_tar())
    return path


@pytest.fixture
def image(tmp_path: Path) -> ProvenImage:
    project = proven_project(tmp_path / "project")
    plain = proven_image(project.source, project.store)
    assert plain.lock.file.debian is not None
    debian = plain.lock.file.debian.model_copy(update={"base": DEBS[:2], "toolchain": DEBS[2:]})
    file = plain.lock.file.model_copy(update={"debian": debian, "sources": (GIT, SDIST)})
    compiled = _wheel(tmp_path, "sglang", "License-Expression: apache-2.0 OR mit\n")
    wheels = (*plain.wheels, compiled)
    return replace(plain, lock=replace(plain.lock, file=file), plan=replace(plain.plan, wheels=wheels))


def _wheel(folder: Path, name: str, metadata: str) -> WheelInput:
    path = folder / f"{name}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}-1.0.dist-info/METADATA", f"Metadata-Version: 2.4\nName: {name}\n{metadata}")
    return WheelInput(name=name, version="1.0+cu130", filename=path.name, sha256="9" * 64, path=path)


def component(bill: dict[str, Any], name: str) -> dict[str, Any]:
    [found] = [item for item in bill["components"] if item["name"] == name and "pypi" in item["purl"]] or [
        item for item in bill["components"] if item["name"] == name
    ]
    return dict(found)


def test_the_bill_is_valid_cyclonedx(image: ProvenImage, rootfs: Path) -> None:
    validator = JsonStrictValidator(SchemaVersion.V1_6)
    bill = bill_of(image, rootfs)
    assert validator.validate_str(json.dumps(bill)) is None
    broken = {**bill, "components": [{"name": "without a type"}]}
    assert validator.validate_str(json.dumps(broken)) is not None


def test_the_bill_lists_every_package_of_the_image_and_none_of_the_toolchain(image: ProvenImage, rootfs: Path) -> None:
    bill = bill_of(image, rootfs)
    urls = [PackageURL.from_string(item["purl"]) for item in bill["components"]]
    assert [(url.type, url.name, url.version) for url in urls] == [
        ("deb", "one", "1:2.0+dfsg-1~deb13"),
        ("deb", "two", "1:2.0+dfsg-1~deb13"),
        ("generic", "sglang", "a" * 40),
        ("pypi", "bar", "1.0"),
        ("pypi", "flash-attn", "2.8.3"),
        ("pypi", "foo", "1.0"),
        ("pypi", "sglang", "1.0+cu130"),
    ]
    assert bill["dependencies"][0]["dependsOn"] == [item["bom-ref"] for item in bill["components"]]
    [git] = [item for item in bill["components"] if item["version"] == "a" * 40]
    assert git["pedigree"]["commits"] == [{"uid": "a" * 40, "url": "https://git.example/sglang.git"}]
    assert git["pedigree"]["patches"] == [{"type": "unofficial"}]
    assert {"name": "envbuild:compiled", "value": "true"} in component(bill, "sglang")["properties"]
    foo = next(wheel for wheel in image.wheels if wheel.name == "foo")
    assert component(bill, "foo")["hashes"] == [{"alg": "SHA-256", "content": foo.sha256}]


def test_the_bill_tells_the_licences_that_the_packages_state(image: ProvenImage, rootfs: Path) -> None:
    bill = bill_of(image, rootfs)
    assert component(bill, "sglang")["licenses"] == [{"expression": "Apache-2.0 OR MIT"}]
    both = [{"license": {"name": "GPL-2+"}}, {"license": {"name": "MIT"}}]
    assert component(bill, "one")["licenses"] == both
    assert component(bill, "two")["licenses"] == both  # its documentation is a link to that of `one`
    assert "licenses" not in component(bill, "foo")


def test_what_is_said_of_an_image_is_the_same_every_time(image: ProvenImage, rootfs: Path) -> None:
    assert canonical_json(bill_of(image, rootfs)) == canonical_json(bill_of(image, rootfs))
    assert canonical_json(provenance_of(image)) == canonical_json(provenance_of(image))
    other = replace(image, image=replace(image.image, manifest=b"{}"))
    assert bill_of(image, rootfs)["serialNumber"] != bill_of(other, rootfs)["serialNumber"]


@pytest.mark.parametrize(
    ("metadata", "licences"),
    [
        ("License-Expression: MIT\nLicense: GPL\n", [{"expression": "MIT"}]),
        ("License: BSD-3-Clause\n", [{"expression": "BSD-3-Clause"}]),
        ("License: BSD style\n", [{"license": {"name": "BSD style"}}]),
        (
            "License: UNKNOWN\nClassifier: License :: OSI Approved :: MIT License\n",
            [{"license": {"name": "MIT License"}}],
        ),
        ("License: " + "text " * 40 + "\n", []),
        ("Classifier: License :: OSI Approved\nClassifier: Topic :: A\n", []),
        ("", []),
    ],
)
def test_the_licences_of_a_wheel_are_those_of_its_metadata(metadata: str, licences: Any, tmp_path: Path) -> None:
    assert wheel_licences(_wheel(tmp_path, "x", metadata).path) == licences


def test_only_packages_with_a_copyright_file_have_licences(rootfs: Path) -> None:
    assert debian_licences(rootfs).keys() == {"one", "two"}


def test_the_provenance_names_all_that_went_in_by_hash(image: ProvenImage) -> None:
    said = provenance_of(image)
    materials = {item["uri"]: item["digest"] for item in said["buildDefinition"]["resolvedDependencies"]}
    assert materials["git+https://git.example/sglang.git@" + "a" * 40] == {"gitCommit": "a" * 40}
    assert materials["pkg:pypi/flash-attn@2.8.3"] == {"sha256": "e" * 64}
    assert {uri.partition("@")[0] for uri in materials} == {
        "pkg:deb/debian/one",
        "pkg:deb/debian/two",
        "pkg:deb/debian/three",
        "pkg:pypi/foo",
        "pkg:pypi/bar",
        "pkg:pypi/flash-attn",
        "git+https://git.example/sglang.git",
    }
    assert said["buildDefinition"]["externalParameters"]["target"] == {"gpu": "rtx-pro-6000", "count": 1}
    assert said["buildDefinition"]["internalParameters"]["lock"] == image.lock.digest


def test_the_verdict_comes_back_out_of_its_test_result(image: ProvenImage) -> None:
    predicate = result_predicate(image.verdict)
    assert (predicate["result"], predicate["passedTests"]) == ("PASSED", ["static.installed"])
    statement = Statement(name="x", digest="sha256:" + "1" * 64, kind=TEST_RESULT, predicate=predicate)
    assert verdict_in(statement) == image.verdict
    changes: list[dict[str, Any]] = [{}, {VERDICT: {}}, {VERDICT: {**predicate[VERDICT], "result": "bad"}}]
    for changed in changes:
        with pytest.raises(UnprovenError, match="holds no verdict"):
            verdict_in(replace(statement, predicate=changed))


def test_a_base_image_is_a_component_and_a_material_by_its_digest(image: ProvenImage) -> None:
    digest = f"sha256:{'ab' * 32}"
    layer = LockedLayer(digest=digest, size=1, diff_id=digest, unpacked=1, media_type="application/x-tar")
    base = LockedImage(
        image="registry.example:5000/vendor/base:1",
        digest=digest,
        created="2026-01-01T00:00:00+00:00",
        layers=(layer,),
        python="/usr/bin/python3.13",
        glibc=41,
        packages={"libc6": "2.41-12"},
    )
    file = image.lock.file.model_copy(update={"debian": None, "base": base})
    on_image = replace(image, lock=replace(image.lock, file=file))
    url = f"pkg:oci/base@sha256%3A{'ab' * 32}?repository_url=registry.example%3A5000%2Fvendor%2Fbase"
    components = {component["bom-ref"]: component for component in bill_of(on_image, None)["components"]}
    assert (components[url]["type"], components[url]["hashes"][0]["content"]) == ("container", "ab" * 32)
    assert components["base:libc6@2.41-12"]["version"] == "2.41-12"
    materials = provenance_of(on_image)["buildDefinition"]["resolvedDependencies"]
    assert {"uri": url, "digest": {"sha256": "ab" * 32}} in materials
    assert not any(item["uri"].startswith("pkg:deb/") for item in materials)
