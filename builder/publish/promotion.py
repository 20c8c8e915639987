"""A published image into another repository: examined, then copied as it is with its proof; nothing is rebuilt."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.errors import NotVerifiedError
from builder.publish.aliases import age_of_published
from builder.publish.cosign_tags import copy_signature, put_attestations
from builder.publish.examination import examine_image
from builder.publish.shelf import RegistryShelf
from builder.publish.stage import Published, move_tags
from builder.registry.client import RegistryClient
from builder.registry.content import EMPTY, Payload
from builder.registry.referrers import attach_manifest
from builder.registry.transfer import fetch, push
from builder.tools import show_progress

if TYPE_CHECKING:
    from collections.abc import Callable

    from builder.console import Console
    from builder.download import Progress
    from builder.publish.examination import Examined
    from builder.publish.keys import PublicKey
    from builder.publish.policy import Policy
    from builder.registry.content import Descriptor, Manifest
    from builder.registry.reference import Reference
    from builder.store import Store
    from builder.tools import Tools


def examine_reference(
    shelf: RegistryShelf, reference: Reference, key: PublicKey, policy: Policy, console: Console
) -> Examined:
    """Examine the image that a reference names now; raises RegistryError if there is none."""
    manifest = shelf.client.manifest(reference)
    with console.step(f"prove every byte of {reference.repository}@{manifest.digest[:19]}") as step:
        return examine_image(shelf, str(reference), manifest, key, policy, on_progress=show_progress(step))


def promote_image(
    source: Reference, target: Reference, key: PublicKey, policy: Policy, tools: Tools, *, move_back: bool = False
) -> Published:
    """Copy an image and its proof into another repository, if the key proves all of it and the policy allows it.

    The image gets the tag of `target`, else that of `source`, if one of them has one. Raises NotVerifiedError before
    anything is written, or RegistryError.
    """
    near = source.repository.registry == target.repository.registry
    with RegistryClient(tools.settings) as client:
        there = RegistryShelf(client=client, repository=source.repository, store=None if near else tools.store)
        here = RegistryShelf(client=client, repository=target.repository)
        examined = examine_reference(there, source, key, policy, tools.console)
        if examined.report.reasons:
            raise NotVerifiedError(
                f"{source} is not promoted: {examined.report.reasons[0]}",
                remedy=f"see all reasons: envbuild verify {source}",
                evidence=examined.report.reasons[1:],
            )
        with tools.console.step(f"copy {examined.report.digest[:19]} to {target.repository}") as step:
            sent = _copy(there, here, examined.manifest, tools.store, show_progress(step))
            _copy_proof(there, here, examined)
            step.end(f"{sent >> 20} MiB sent" if sent else "all of it was there")
        return _tagged(here, target.tag or source.tag, examined, sent, tools.console, back=move_back)


def _copy(
    source: RegistryShelf,
    target: RegistryShelf,
    manifest: Manifest,
    store: Store,
    on_progress: Callable[[Progress], None],
) -> int:
    """Bring an image over, under its digest; return the bytes that travelled."""
    blobs = (manifest.config, *manifest.layers)
    missing = [blob for blob in blobs if not target.client.mount_blob(target.repository, blob, [source.repository])]
    fetch(source.client, source.repository, missing, store, on_progress=on_progress)
    payloads = [_payload(blob, store) for blob in missing]
    reference = target.repository.at(manifest.digest)
    pushed = push(target.client, reference, manifest.data, manifest.media_type, payloads, on_progress=on_progress)
    return pushed.sent - len(manifest.data)


def _payload(blob: Descriptor, store: Store) -> Payload:
    return Payload(digest=blob.digest, size=blob.size, source=store.path(blob.sha256))


def _copy_proof(source: RegistryShelf, target: RegistryShelf, examined: Examined) -> None:
    """Attach what the key proves, to the byte as it was; what it does not prove stays behind."""
    for item in examined.attestations.proven:
        attach_manifest(target.client, target.repository, item.manifest, (Payload.of(EMPTY), Payload.of(item.bundle)))
    copy_signature(source, target, examined.manifest.digest)
    put_attestations(target, examined.manifest.digest, examined.attestations)


def _tagged(
    shelf: RegistryShelf, tag: str | None, examined: Examined, sent: int, console: Console, *, back: bool
) -> Published:
    manifest = examined.manifest
    age = age_of_published(shelf, manifest.digest)
    if age is None:
        raise NotVerifiedError(f"{manifest.source} does not tell how new it is", remedy="publish it with this envbuild")
    moving = move_tags(shelf, [tag] if tag else [], manifest, age, console, back=back)
    return Published(
        reference=f"{shelf.repository}@{manifest.digest}",
        digest=manifest.digest,
        tag=None,
        moving=moving,
        sent=sent,
        attached=examined.report.proven,
    )
