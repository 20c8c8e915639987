"""Signed statements as sigstore bundles that are attached to an image: written, and read as if an enemy wrote them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from builder.document import canonical_json
from builder.publish.envelope import Envelope, UnprovenError, read_envelope
from builder.publish.statements import KINDS, Statement, read_statement
from builder.registry.content import Payload
from builder.registry.faults import DamagedError
from builder.registry.referrers import Attachment

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from builder.publish.keys import PublicKey
    from builder.publish.shelf import Shelf
    from builder.registry.content import Descriptor, Manifest

BUNDLE_TYPE = "application/vnd.dev.sigstore.bundle.v0.3+json"
LARGEST_BUNDLE = 32 << 20  # bytes; a statement of a stack has less than one MiB
CREATED = "org.opencontainers.image.created"
_CONTENT = {"dev.sigstore.bundle.content": "dsse-envelope"}
_PREDICATE = "dev.sigstore.bundle.predicateType"


@dataclass(frozen=True, kw_only=True, slots=True)
class Attested:
    """A statement about an image that a key proves, and the attached manifest that holds it."""

    statement: Statement
    envelope: Envelope
    manifest: Manifest
    bundle: bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Attestations:
    """What is attached to one image: what the key proves, and a sentence for each thing that it does not."""

    proven: tuple[Attested, ...]
    unproven: tuple[str, ...]

    @property
    def payloads(self) -> frozenset[bytes]:
        """What the key proves, to the byte."""
        return frozenset(item.envelope.payload for item in self.proven)

    def of(self, kind: str) -> tuple[Attested, ...]:
        """Return those of one predicate type."""
        return tuple(item for item in self.proven if item.statement.kind == kind)


def attachment_of(envelope: Envelope, kind: str, annotations: Mapping[str, str]) -> Attachment:
    """Return the bundle of a signed statement as something to attach, found by its predicate type."""
    plain = {
        "mediaType": BUNDLE_TYPE,
        "verificationMaterial": {"publicKey": {"hint": ""}, "tlogEntries": []},
        "dsseEnvelope": envelope.to_plain(),
    }
    return Attachment(
        artifact_type=BUNDLE_TYPE,
        files=((BUNDLE_TYPE, Payload.of(canonical_json(plain))),),
        annotations={**_CONTENT, _PREDICATE: kind, **annotations},
    )


def read_attestations(shelf: Shelf, image: Manifest, key: PublicKey) -> Attestations:
    """Return what is attached to an image, every byte of it proven by digests and by the key; raises RegistryError."""
    proven, unproven = [], []
    for described in _bundles(shelf.referrers(image.digest)):
        try:
            proven.append(_read(shelf, described, image, key))
        except (UnprovenError, DamagedError) as error:
            kind = KINDS.get(described.annotations.get(_PREDICATE, ""), "attestation")
            said = error.message if isinstance(error, DamagedError) else f"it {error}"
            unproven.append(f"the {kind} at {described.digest[:19]} proves nothing: {said}")
    return Attestations(proven=tuple(proven), unproven=tuple(unproven))


def _bundles(listed: Iterable[Descriptor]) -> list[Descriptor]:
    return [item for item in listed if item.artifact_type == BUNDLE_TYPE]


def _read(shelf: Shelf, described: Descriptor, image: Manifest, key: PublicKey) -> Attested:
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
    envelope = _envelope_in(bundle)
    if not envelope.is_proven_by(key):
        raise UnprovenError("is not signed by this key")
    statement = read_statement(envelope.payload)
    if statement.digest != image.digest:
        raise UnprovenError(f"speaks of another image, {statement.digest[:19]}")
    return Attested(statement=statement, envelope=envelope, manifest=manifest, bundle=bundle)


def _envelope_in(data: bytes) -> Envelope:
    try:
        plain: Any = json.loads(data)
    except (ValueError, RecursionError):
        raise UnprovenError("is no JSON") from None
    if not isinstance(plain, dict) or plain.get("mediaType") != BUNDLE_TYPE:
        raise UnprovenError("is no bundle of version 0.3")
    return read_envelope(plain.get("dsseEnvelope"))
