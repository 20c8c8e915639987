"""A published image into another place: examined, then copied as it is with its proof; nothing is rebuilt or signed."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from builder.build.layout import opened_layout
from builder.errors import NotVerifiedError
from builder.places import refuse_taken
from builder.publish.aliases import age_of_published
from builder.publish.cosign_tags import copy_signature, put_attestations
from builder.publish.examination import examine_image
from builder.publish.layout_shelf import LayoutShelf, take_along
from builder.publish.proof import KeyName
from builder.publish.shelf import RegistryShelf
from builder.publish.stage import Published, move_tags
from builder.publish.statements import KINDS
from builder.registry.client import RegistryClient
from builder.registry.content import EMPTY, Payload
from builder.registry.reference import parse_reference
from builder.registry.referrers import attach_manifest
from builder.registry.transfer import push
from builder.tools import show_progress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from builder.console import Console
    from builder.download import Progress
    from builder.publish.aliases import Moved
    from builder.publish.examination import Examined
    from builder.publish.policy import Policy
    from builder.publish.proof import Proof
    from builder.publish.shelf import Shelf
    from builder.registry.content import Manifest
    from builder.registry.reference import Reference, Repository
    from builder.settings import Settings
    from builder.store import Store
    from builder.tools import Tools

LAYOUT = "oci:"  # before the path of a layout, where else a reference stands


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """A published image where it stands: `repository` is None for one in a layout."""

    name: str
    shelf: Shelf
    manifest: Manifest
    repository: Repository | None = None
    tag: str | None = None


@contextlib.contextmanager
def open_source(name: str, settings: Settings, store: Store | None = None) -> Iterator[Source]:
    """Give the image that a reference, or `oci:` and the path of a layout, names.

    With a `store`, what is read of a registry to prove it is kept there. Raises RegistryError, InvalidDocumentError.
    """
    if name.startswith(LAYOUT):
        with opened_layout(Path(name.removeprefix(LAYOUT))) as layout:
            shelf = LayoutShelf.of(layout)
            yield Source(name=name, shelf=shelf, manifest=shelf.image)
        return
    reference = parse_reference(name)
    with RegistryClient(settings) as client:
        yield Source(
            name=name,
            shelf=RegistryShelf(client=client, repository=reference.repository, store=store),
            manifest=client.manifest(reference),
            repository=reference.repository,
            tag=reference.tag,
        )


def examine_source(source: Source, proof: Proof, policy: Policy, console: Console) -> Examined:
    """Examine a published image; raises RegistryError."""
    with console.step(f"prove every byte of {source.name}") as step:
        manifest, shelf = source.manifest, source.shelf
        return examine_image(shelf, source.name, manifest, proof, policy, on_progress=show_progress(step))


def promote_image(
    name: str,
    place: str,
    proof: Proof,
    policy: Policy,
    tools: Tools,
    *,
    move_back: bool = False,
    options: str = "--key KEY",
) -> Published:
    """Copy an image and its proof to another place, if all of it is proven and the policy allows it.

    Both are references, or `oci:` and the path of a layout. In a registry the image gets the tag of `place`, else that
    of `name`, if one of them has one. `options` are how a person gives signer and policy to a command. Raises
    NotVerifiedError before anything is written, UsageError before anything is read where a layout's place is taken, or
    RegistryError.
    """
    target = None if place.startswith(LAYOUT) else parse_reference(place)
    if target is None:
        refuse_taken([Path(place.removeprefix(LAYOUT))])
    near = target is not None and name.partition("/")[0] == target.repository.registry
    with open_source(name, tools.settings, None if near else tools.store) as source:
        examined = examine_source(source, proof, policy, tools.console)
        if examined.report.reasons:
            raise NotVerifiedError(
                f"{name} is not promoted: {examined.report.reasons[0]}",
                remedy=f"see all reasons: envbuild verify {name} {options}",
                evidence=examined.report.reasons[1:],
            )
        if target is not None:
            return _into_registry(source, examined, target, tools, back=move_back)
        with tools.console.step(f"write {place}"):
            take_along(source.shelf, examined, source.tag, tools.store, Path(place.removeprefix(LAYOUT)))
    return _published(place, examined, 0, {}, examined.report.proven)


def _into_registry(source: Source, examined: Examined, target: Reference, tools: Tools, *, back: bool) -> Published:
    with RegistryClient(tools.settings) as client:
        here = RegistryShelf(client=client, repository=target.repository)
        with tools.console.step(f"copy {examined.report.digest[:19]} to {target.repository}") as step:
            sent = _copy(source, here, tools.store, show_progress(step))
            attached = _copy_proof(source.shelf, here, examined)
            step.end(f"{sent >> 20} MiB sent" if sent else "all of it was there")
        age, tag = age_of_published(here, source.manifest.digest), target.tag or source.tag
        if age is None:
            raise NotVerifiedError(f"{source.name} does not tell how new it is", remedy="publish it again")
        moving = move_tags(here, [tag] if tag else [], source.manifest, age, tools.console, back=back)
    return _published(f"{target.repository}@{source.manifest.digest}", examined, sent, moving, attached)


def _copy(source: Source, target: RegistryShelf, store: Store, on_progress: Callable[[Progress], None]) -> int:
    """Bring an image over, under its digest; return the bytes that travelled."""
    manifest = source.manifest
    near = [source.repository] if source.repository is not None else []
    blobs = (manifest.config, *manifest.layers)
    missing = [blob for blob in blobs if not target.client.mount_blob(target.repository, blob, near)]
    source.shelf.bring(missing, store, on_progress)
    payloads = [Payload(digest=blob.digest, size=blob.size, source=store.path(blob.sha256)) for blob in missing]
    reference = target.repository.at(manifest.digest)
    pushed = push(target.client, reference, manifest.data, manifest.media_type, payloads, on_progress=on_progress)
    return pushed.sent - len(manifest.data)


def _copy_proof(source: Shelf, target: RegistryShelf, examined: Examined) -> tuple[str, ...]:
    """Attach what is proven, to the byte as it was, and return the kinds that were new.

    What is not proven stays behind.
    """
    known = {item.digest for item in target.referrers(examined.manifest.digest)}
    new = {item.statement.kind for item in examined.attestations.proven if item.manifest.digest not in known}
    for item in examined.attestations.proven:
        files = (Payload.of(EMPTY), Payload.of(item.bundle))
        attach_manifest(target.client, target.repository, item.manifest, files)
    if isinstance(examined.report.signer, KeyName):
        copy_signature(source, target, examined.manifest.digest)
        put_attestations(target, examined.manifest.digest, examined.attestations)
    return tuple(name for kind, name in KINDS.items() if kind in new)


def _published(
    reference: str, examined: Examined, sent: int, moving: dict[str, Moved], attached: tuple[str, ...]
) -> Published:
    return Published(
        reference=reference,
        digest=examined.report.digest,
        moving=moving,
        sent=sent,
        attached=attached,
    )
