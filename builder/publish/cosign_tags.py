"""The signature and the attestations once more, under the tags where cosign before version 3 looks for them."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

from builder.build.image import CONFIG_TYPE
from builder.document import canonical_json
from builder.publish.envelope import ENVELOPE_TYPE, envelope_in
from builder.publish.statements import SIGNATURE
from builder.registry.content import OCI_MANIFEST, Payload
from builder.registry.reference import Reference
from builder.registry.transfer import push

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from builder.publish.bundles import Attestations
    from builder.publish.keys import SecretKey
    from builder.publish.shelf import RegistryShelf, Shelf
    from builder.registry.client import RegistryClient
    from builder.registry.content import Descriptor
    from builder.registry.reference import Repository

SIMPLE_TYPE = "application/vnd.dev.cosign.simplesigning.v1+json"
_SIGNATURE = "dev.cosignproject.cosign/signature"
_PREDICATE = "predicateType"


def signed_name(repository: Repository, digest: str) -> bytes:
    """Return what cosign signs of an image (simple signing, atomic container signature)."""
    return canonical_json(
        {
            "critical": {
                "identity": {"docker-reference": str(repository)},
                "image": {"docker-manifest-digest": digest},
                "type": "cosign container image signature",
            },
            "optional": {},
        }
    )


def put_signature(shelf: RegistryShelf, digest: str, key: SecretKey) -> None:
    """Sign an image for cosign, unless this key's signature is there."""
    reference, payload = _reference(shelf.repository, digest, "sig"), signed_name(shelf.repository, digest)
    found = shelf.client.find_manifest(reference)
    kept = found.layers if found else ()
    if any(_is_signed(layer, payload, key) for layer in kept):
        return
    signature = base64.b64encode(key.sign(payload)).decode()
    added = (SIMPLE_TYPE, Payload.of(payload), {_SIGNATURE: signature})
    others = [layer.to_plain() for layer in kept]
    _push(shelf.client, reference, [added], others)


def _is_signed(layer: Descriptor, payload: bytes, key: SecretKey) -> bool:
    try:
        said = base64.b64decode(layer.annotations.get(_SIGNATURE, ""))
    except (ValueError, TypeError):
        return False
    return layer.digest == Payload.of(payload).digest and key.public.proves(said, payload)


def put_attestations(shelf: RegistryShelf, digest: str, attested: Attestations) -> None:
    """Write the proven attestations of an image where cosign looks for them; the same again changes nothing."""
    layers = [
        (ENVELOPE_TYPE, Payload.of(canonical_json(envelope_in(item.bundle).to_plain())), _notes(item.statement.kind))
        for item in sorted(attested.proven, key=lambda item: item.manifest.digest)
        if item.statement.kind != SIGNATURE
    ]
    reference = _reference(shelf.repository, digest, "att")
    found = shelf.client.find_manifest(reference)
    ours = {payload.digest for _, payload, _ in layers}
    others = [layer.to_plain() for layer in (found.layers if found else ()) if layer.digest not in ours]
    if found is None or len(others) + len(layers) != len(found.layers):
        _push(shelf.client, reference, layers, others)


def signature_tag(digest: str) -> str:
    """Return the tag of an image's signatures."""
    return f"{digest.replace(':', '-')}.sig"


def copy_signature(source: Shelf, target: RegistryShelf, digest: str) -> None:
    """Copy the signatures of an image for cosign as they are, if there are any."""
    found = source.find(signature_tag(digest))
    if found is not None:
        payloads = [Payload.of(source.blob(described)) for described in (found.config, *found.layers)]
        reference = _reference(target.repository, digest, "sig")
        push(target.client, reference, found.data, found.media_type, payloads)


def _reference(repository: Repository, digest: str, kind: str) -> Reference:
    return Reference(repository=repository, tag=f"{digest.replace(':', '-')}.{kind}")


def _notes(kind: str) -> dict[str, str]:
    return {_SIGNATURE: "", _PREDICATE: kind}


def _push(
    client: RegistryClient,
    reference: Reference,
    layers: Iterable[tuple[str, Payload, Mapping[str, str]]],
    others: list[dict[str, Any]],
) -> None:
    """Push the manifest of an artifact in cosign's form: an image whose layers are what was signed."""
    files = list(layers)
    described = [
        {"mediaType": kind, "digest": file.digest, "size": file.size, "annotations": dict(notes)}
        for kind, file, notes in files
    ]
    listed = [*others, *described]
    config = canonical_json(
        {
            "architecture": "",
            "config": {},
            "created": "0001-01-01T00:00:00Z",
            "history": [],
            "os": "",
            "rootfs": {"type": "layers", "diff_ids": [layer["digest"] for layer in listed]},
        }
    )
    kept = Payload.of(config)
    manifest = {
        "schemaVersion": 2,
        "mediaType": OCI_MANIFEST,
        "config": {"mediaType": CONFIG_TYPE, "digest": kept.digest, "size": kept.size},
        "layers": listed,
    }
    push(client, reference, canonical_json(manifest), OCI_MANIFEST, [kept, *(file for _, file, _ in files)])
