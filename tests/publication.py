"""A project whose image is in the store and proven good, keys that sign it, an enemy who changes what is published."""

from __future__ import annotations

import base64
import io
import json
import tarfile
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from cryptography.hazmat.primitives.asymmetric import ec

from builder.build.assembly import find_image
from builder.build.image import Layer, assemble
from builder.build.layers import make_base_layer
from builder.build.stage import find_plan
from builder.document import canonical_json
from builder.errors import EngineError
from builder.publish.bundles import attachment_of
from builder.publish.envelope import BUNDLE_TYPE
from builder.publish.keys import LoadedKey
from builder.publish.proof import KeySigner
from builder.recipe.workspace import workspace_of
from builder.registry.content import OCI_INDEX, Descriptor, Payload
from builder.registry.referrers import Attachment, attach, list_referrers
from builder.verify.grounds import grounds_of
from builder.verify.record import keep_proof
from builder.verify.verdict import Check, Verdict
from tests.registry_image import tar_of
from tests.workshop import Project, new_project

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from builder.build.image import Image
    from builder.engine import Engine
    from builder.publish.proof import Signer
    from builder.publish.statements import Statement
    from builder.registry.client import RegistryClient
    from builder.registry.content import Manifest
    from builder.registry.reference import Repository

COPYRIGHT = b"Format: 1.0\n\nFiles: *\nLicense: GPL-2+\n text\n\nFiles: debian/*\nLicense: MIT\n text\n"


def new_key() -> LoadedKey:
    return LoadedKey(ec.generate_private_key(ec.SECP256R1()))


def new_signer() -> KeySigner:
    return KeySigner(new_key())


def no_engine() -> Engine:
    raise EngineError("no engine runs")


def base_tar() -> bytes:
    """A root filesystem of a few files, with the copyright file of one Debian package and a link to it."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, data in {"./etc/os": b"base", "./usr/share/doc/one/copyright": COPYRIGHT}.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
        link = tarfile.TarInfo("./usr/share/doc/two")
        link.type, link.linkname = tarfile.SYMTYPE, "one"
        archive.addfile(link)
    return out.getvalue()


def proven_project(folder: Path, *, name: str = "small", content: bytes = b"1") -> Project:
    """Make a project with an image of two layers in its store, the second with `content`, and a good verdict on it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "base.tar").write_bytes(base_tar())
    project = new_project(folder, folder / "base.tar", no_engine, name=name)
    put_image(project, content)
    prove(project)
    return project


def put_image(project: Project, content: bytes) -> Image:
    """Put the layers of the recipe's image into the store, as its assembly would, but for what is in them."""
    plan = find_plan(project.source, project.lock, project.store)
    assert plan is not None
    blobs = [make_base_layer(project.store.add_bytes(data), store=project.store).blob for data in _layers(content)]
    layers = tuple(Layer(title=title, blob=blob) for title, blob in zip(("base", "foo"), blobs, strict=True))
    project.store.keep_result("assembled", plan.key, {"layers": [asdict(layer) for layer in layers]})
    return assemble(layers, plan.settings)


def image_of(project: Project) -> Image:
    """The image of the project's recipe as it is now."""
    plan = find_plan(project.source, project.lock, project.store)
    assert plan is not None
    image = find_image(plan, project.store)
    assert image is not None
    return image


def _layers(content: bytes) -> tuple[bytes, bytes]:
    return base_tar(), tar_of({"content": content, "noise": bytes(range(256)) * 64})


def prove(project: Project, **changes: Any) -> Verdict:
    """Write and record the verdict on the project's image, good but for the `changes`."""
    grounds = grounds_of(project.source, project.lock, image_of(project).config_digest)
    check = Check(name="static.installed", level="static", outcome="passed", summary="all is there")
    values = {
        "recipe": project.name,
        "result": "good",
        "cause": "1 checks passed",
        **asdict(grounds),
        "engine": {"version": "20.10"},
        "required": ("static",),
        "checks": (check,),
        "finished": "2026-11-29T00:00:00+00:00",
    }
    verdict = Verdict.model_validate({**values, **changes})
    path = workspace_of(project.source).verdict
    path.unlink(missing_ok=True)  # a proof of another day is written too
    keep_proof(verdict, path, project.store)
    return verdict


@dataclass(kw_only=True)
class Enemy:
    """Somebody who may write to the repository of a published image, and changes what is there."""

    client: RegistryClient
    repository: Repository
    image: Manifest
    signer: Signer

    def listed(self) -> dict[str, Descriptor]:
        """What is attached, by predicate type."""
        found = list_referrers(self.client, self.repository, self.image.digest)
        return {item.annotations["dev.sigstore.bundle.predicateType"]: item for item in found}

    def bundle(self, kind: str) -> dict[str, Any]:
        """The bundle of a predicate type."""
        manifest = self.client.manifest(self.repository.at(self.listed()[kind].digest))
        plain: dict[str, Any] = json.loads(self.client.read_blob(self.repository, manifest.layers[0]))
        return plain

    def payload(self, kind: str) -> dict[str, Any]:
        """The signed statement of a predicate type."""
        plain: dict[str, Any] = json.loads(base64.b64decode(self.bundle(kind)["dsseEnvelope"]["payload"]))
        return plain

    def remove(self, kind: str) -> None:
        """Take an attestation out of the list."""
        self.relist({name: item for name, item in self.listed().items() if name != kind})

    def relist(self, items: Mapping[str, Descriptor]) -> None:
        """Write the list of what is attached."""
        index = {"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": [item.to_plain() for item in items.values()]}
        tag = self.image.digest.replace(":", "-")
        self.client.put_manifest(self.repository.at(tag), canonical_json(index), OCI_INDEX)

    def replace(self, kind: str, bundle: Mapping[str, Any] | bytes, *, listed_as: str | None = None) -> None:
        """Put another bundle in the place of one."""
        before = {name: item for name, item in self.listed().items() if name != kind}
        data = bundle if isinstance(bundle, bytes) else canonical_json(bundle)
        annotations = {"dev.sigstore.bundle.predicateType": listed_as or kind}
        note = Attachment(artifact_type=BUNDLE_TYPE, files=((BUNDLE_TYPE, Payload.of(data)),), annotations=annotations)
        added = attach(self.client, self.repository, self.image.descriptor, note)
        self.relist({**before, listed_as or kind: added})

    def change_bundle(self, kind: str, change: Callable[[dict[str, Any]], object]) -> None:
        """Change the JSON of a bundle."""
        plain = self.bundle(kind)
        change(plain)
        self.replace(kind, plain)

    def resign(self, kind: str, change: Callable[[dict[str, Any]], object], signer: Signer | None = None) -> None:
        """Change a statement, and sign it (default: as the publisher does): a signer may sign anything."""
        plain = self.payload(kind)
        change(plain)
        self.attach_signed(plain, kind, signer or self.signer)

    def attach_signed(self, plain: dict[str, Any], kind: str, signer: Signer) -> None:
        self.replace(kind, signer.sign(canonical_json(plain)))

    def add(self, statement: Statement, signer: Signer | None = None) -> None:
        """Attach one more signed statement."""
        bundle = (signer or self.signer).sign(statement.to_bytes())
        attach(self.client, self.repository, self.image.descriptor, attachment_of(bundle, statement.kind, {}))
