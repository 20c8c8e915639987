"""Signed statements as sigstore bundles that are attached to an image: written, and read as if an enemy wrote them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.publish.envelope import BUNDLE_TYPE, UnprovenError
from builder.publish.statements import KINDS, Statement, read_statement
from builder.registry.content import Payload
from builder.registry.faults import DamagedError
from builder.registry.referrers import Attachment

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from builder.publish.proof import Proof
    from builder.publish.shelf import Shelf
    from builder.registry.content import Descriptor, Manifest

LARGEST_BUNDLE = 32 << 20  # bytes; a statement of a stack has less than one MiB
CREATED = "org.opencontainers.image.created"
_CONTENT = {"dev.sigstore.bundle.content": "dsse-envelope"}
_PREDICATE = "dev.sigstore.bundle.predicateType"


@dataclass(frozen=True, kw_only=True, slots=True)
class Attested:
    """A proven statement about an image, to the byte as it was signed, and the attached manifest that holds it."""

    statement: Statement
    payload: bytes
    manifest: Manifest
    bundle: bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Attestations:
    """What is attached to one image: what is proven, and a sentence for each thing that is not."""

    proven: tuple[Attested, ...]
    unproven: tuple[str, ...]

    @property
    def payloads(self) -> frozenset[bytes]:
        """What is proven, to the byte."""
        return frozenset(item.payload for item in self.proven)

    def of(self, kind: str) -> tuple[Attested, ...]:
        """Return those of one predicate type."""
        return tuple(item for item in self.proven if item.statement.kind == kind)


def attachment_of(bundle: bytes, kind: str, annotations: Mapping[str, str]) -> Attachment:
    """Return the bundle of a signed statement as something to attach, found by its predicate type."""
    return Attachment(
        artifact_type=BUNDLE_TYPE,
        files=((BUNDLE_TYPE, Payload.of(bundle)),),
        annotations={**_CONTENT, _PREDICATE: kind, **annotations},
    )


def read_attestations(shelf: Shelf, image: Manifest, proof: Proof) -> Attestations:
    """Return what is attached to an image, every byte proven by digests and by its signer; raises RegistryError."""
    proven, unproven = [], []
    for described in _bundles(shelf.referrers(image.digest)):
        try:
            proven.append(_read(shelf, described, image, proof))
        except (UnprovenError, DamagedError) as error:
            kind = KINDS.get(described.annotations.get(_PREDICATE, ""), "attestation")
            said = error.message if isinstance(error, DamagedError) else f"it {error}"
            unproven.append(f"the {kind} at {described.digest[:19]} proves nothing: {said}")
    return Attestations(proven=tuple(proven), unproven=tuple(unproven))


def _bundles(listed: Iterable[Descriptor]) -> list[Descriptor]:
    return [item for item in listed if item.artifact_type == BUNDLE_TYPE]


def _read(shelf: Shelf, described: Descriptor, image: Manifest, proof: Proof) -> Attested:
    manifest = shelf.find(described.digest)
    if manifest is None:
        raise UnprovenError("is listed, but it is not there")
    plain = manifest.plain
    if plain.get("artifactType") != BUNDLE_TYPE or len(manifest.layers) != 1:
        raise UnprovenError("is not the manifest of one bundle")
    [file] = manifest.layers
    if file.media_type != BUNDLE_TYPE or file.size > LARGEST_BUNDLE:
        raise UnprovenError(f"is a {file.media_type} of {file.size} bytes, not a bundle")
    subject = plain.get("subject")
    if not isinstance(subject, dict) or subject.get("digest") != image.digest:
        raise UnprovenError("is attached to another image")
    bundle = shelf.blob(file)
    payload = proof.payload_of(bundle)
    statement = read_statement(payload)
    if statement.digest != image.digest:
        raise UnprovenError(f"speaks of another image, {statement.digest[:19]}")
    return Attested(statement=statement, payload=payload, manifest=manifest, bundle=bundle)
