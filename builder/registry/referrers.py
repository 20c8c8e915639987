"""What is attached to an image: found and added by OCI 1.1 subject, or by tag where a registry has no referrers API."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from builder.document import canonical_json
from builder.errors import RegistryError
from builder.registry.content import (
    EMPTY,
    EMPTY_TYPE,
    OCI_INDEX,
    OCI_MANIFEST,
    Descriptor,
    Manifest,
    Payload,
    descriptor_from,
    digest_of,
    index_of,
)
from builder.registry.reference import Reference
from builder.registry.transfer import push

if TYPE_CHECKING:
    from collections.abc import Mapping

    from builder.registry.client import RegistryClient
    from builder.registry.reference import Repository

ATTEMPTS = 20  # rounds of publishers that overwrite each other's index
_MARK = 16  # characters of an attached manifest's digest in the tag that announces it


@dataclass(frozen=True, kw_only=True, slots=True)
class Attachment:
    """Something that is attached to an image: its kind (a media type), its files by media type, and notes on it."""

    artifact_type: str
    files: tuple[tuple[str, Payload], ...]
    annotations: Mapping[str, str] = field(default_factory=dict)

    def manifest(self, subject: Descriptor) -> bytes:
        """Return the manifest that attaches it to `subject` (OCI image specification 1.1, manifest.md)."""
        return canonical_json(
            {
                "schemaVersion": 2,
                "mediaType": OCI_MANIFEST,
                "artifactType": self.artifact_type,
                "config": {"mediaType": EMPTY_TYPE, "digest": digest_of(EMPTY), "size": len(EMPTY)},
                "layers": [
                    {"mediaType": media_type, "digest": file.digest, "size": file.size}
                    for media_type, file in self.files
                ],
                "subject": {"mediaType": subject.media_type, "digest": subject.digest, "size": subject.size},
                "annotations": dict(self.annotations),
            }
        )


def list_referrers(
    client: RegistryClient, repository: Repository, digest: str, *, artifact_type: str | None = None
) -> tuple[Descriptor, ...]:
    """Return what is attached to the manifest with this digest, all or of one kind."""
    action = f"list what is attached to {repository.name}@{digest}"
    pages = list(client.listing(repository, f"referrers/{digest}", action))
    if pages:
        listed = [item for page in pages for item in page.get("manifests") or ()]
        found = tuple(descriptor_from(item, source=f"the referrers of {repository}@{digest}") for item in listed)
    else:
        found = _indexed(client, _index_reference(repository, digest))
    return tuple(item for item in found if artifact_type in {None, item.artifact_type})


def attach(client: RegistryClient, repository: Repository, subject: Descriptor, attachment: Attachment) -> Descriptor:
    """Attach something to a manifest of the repository and return its descriptor; the same again changes nothing."""
    data = attachment.manifest(subject)
    payloads = (Payload.of(EMPTY), *(file for _, file in attachment.files))
    return attach_manifest(client, repository, Manifest(media_type=OCI_MANIFEST, data=data, source="new"), payloads)


def attach_manifest(
    client: RegistryClient, repository: Repository, manifest: Manifest, payloads: tuple[Payload, ...]
) -> Descriptor:
    """Attach a manifest to the subject that it names, as it is; `payloads` are its config and its files."""
    described, subject = _attached(manifest), _subject(manifest)
    if subject is None:
        raise RegistryError(f"{manifest.source} names no subject, so it cannot be attached to one")
    pushed = push(client, repository.at(described.digest), manifest.data, manifest.media_type, payloads)
    if not pushed.subject_known:
        _announce(client, repository, subject, manifest, payloads)
        _complete_index(client, repository, subject)
    return described


def _index_reference(repository: Repository, digest: str) -> Reference:
    """Return where the list of what is attached is (distribution specification 1.1, referrers tag schema)."""
    return Reference(repository=repository, tag=digest.replace(":", "-"))


def _indexed(client: RegistryClient, reference: Reference) -> tuple[Descriptor, ...]:
    manifest = client.find_manifest(reference)
    return manifest.manifests if manifest else ()


def _announce(
    client: RegistryClient, repository: Repository, subject: str, manifest: Manifest, payloads: tuple[Payload, ...]
) -> None:
    """Give an attached manifest a tag of its own, which no other publisher can overwrite."""
    tag = f"{_announcing(subject)}{manifest.digest.removeprefix('sha256:')[:_MARK]}"
    reference = Reference(repository=repository, tag=tag)
    client.put_manifest(reference, manifest.data, manifest.media_type, payloads=payloads)


def _announcing(digest: str) -> str:
    return f"{digest.replace(':', '-')}."


def _complete_index(client: RegistryClient, repository: Repository, digest: str) -> None:
    """Bring all that is announced into the index, and whatever else was seen in it.

    A registry cannot compare and swap, so two publishers may overwrite each other's index. Nothing is lost: everyone
    announces first, and ends only when a look after the own last write finds all that is announced in the index. So the
    last of all writers has seen what the others announced.
    """
    reference = _index_reference(repository, digest)
    known: dict[str, Descriptor] = {}
    for _ in range(ATTEMPTS):
        announced = _announced(client, repository, digest, known)
        listed = {item.digest: item for item in _indexed(client, reference)}
        known = {**known, **announced, **listed}
        if known.keys() == listed.keys():
            return
        entries = [*listed.values(), *(known[name] for name in sorted(known.keys() - listed.keys()))]
        client.put_manifest(reference, index_of(entries), OCI_INDEX)
    raise RegistryError(
        f"{repository.registry} does not keep the list of what is attached to {repository.name}@{digest}",
        remedy="other publishers change it all the time: run the same command again",
    )


def _announced(
    client: RegistryClient, repository: Repository, digest: str, known: Mapping[str, Descriptor]
) -> dict[str, Descriptor]:
    """Return what is announced and not yet known."""
    prefix = _announcing(digest)
    marks = {name.removeprefix("sha256:")[:_MARK] for name in known}
    found: dict[str, Descriptor] = {}
    for tag in client.tags(repository):
        mark = tag.removeprefix(prefix)
        if tag.startswith(prefix) and len(mark) == _MARK and mark not in marks:
            manifest = client.find_manifest(Reference(repository=repository, tag=tag))
            if manifest is not None and _subject(manifest) == digest:
                found[manifest.digest] = _attached(manifest)
    return found


def _subject(manifest: Manifest) -> str | None:
    subject = manifest.plain.get("subject")
    return subject.get("digest") if isinstance(subject, dict) else None


def _attached(manifest: Manifest) -> Descriptor:
    """Return how an index lists an attached manifest."""
    plain = manifest.plain
    artifact_type = plain.get("artifactType") or manifest.config.media_type
    return replace(manifest.descriptor, artifact_type=artifact_type, annotations=plain.get("annotations") or {})
