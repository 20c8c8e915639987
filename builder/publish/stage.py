"""A proven image -> a published reference: blobs, manifest, proof, the tag that stays, and last the tags that move."""

from __future__ import annotations

from datetime import UTC, datetime
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from builder.build.base import find_base
from builder.build.image import MANIFEST_TYPE
from builder.build.published import push_image
from builder.document import Document, key_of
from builder.errors import NotVerifiedError, RegistryError
from builder.publish.aliases import Age, Moved, companion, move_aliases
from builder.publish.bundles import CREATED, attachment_of, read_attestations
from builder.publish.cosign_tags import put_attestations, put_signature
from builder.publish.gate import proven_image
from builder.publish.naming import fixed_tag, moving_tags
from builder.publish.proof import KeySigner
from builder.publish.provenance import provenance_of
from builder.publish.sbom import FORM, bill_of
from builder.publish.shelf import RegistryShelf
from builder.publish.statements import KINDS, PROVENANCE, SBOM, SIGNATURE, TEST_RESULT, Statement
from builder.publish.testresult import result_predicate
from builder.registry.client import RegistryClient
from builder.registry.content import Manifest
from builder.registry.referrers import attach
from builder.tools import show_progress

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from builder.console import Console
    from builder.lock.model import Lock
    from builder.publish.gate import ProvenImage
    from builder.publish.proof import Signer
    from builder.recipe.source import RecipeFile
    from builder.registry.reference import Repository
    from builder.store import Store
    from builder.tools import Tools


class Published(Document):
    """What a publication did: `sent` are bytes of the image, `attached` the kinds of proof that were new.

    `moving` says of each tag that may move whether it did.
    """

    reference: str
    digest: str
    tag: str | None = None
    moving: dict[str, Moved]
    sent: int
    attached: tuple[str, ...]


def publish_recipe(
    source: RecipeFile, repository: Repository, signer: Signer, tools: Tools, *, move_back: bool = False
) -> Published:
    """Publish the image of a recipe if its verdict is good and holds for it; nothing is tagged before all is there.

    Raises NotVerifiedError, before anything is sent, or RegistryError.
    """
    image = proven_image(source, tools.store)
    fixed, tags = fixed_tag(image), moving_tags(image)
    with RegistryClient(tools.settings) as client:
        shelf = RegistryShelf(client=client, repository=repository)
        for tag in tags:
            _refuse_taken(shelf, companion(tag, image.digest), image)
        with tools.console.step(f"push {image.digest[:19]} to {repository}") as step:
            pushed = push_image(image.image, repository.at(image.digest), tools.store, client, show_progress(step))
            sent = pushed.sent - len(image.image.manifest)
            step.end(f"{sent >> 20} MiB sent" if sent else "all of it was there")
        manifest = Manifest(media_type=MANIFEST_TYPE, data=image.image.manifest, source=str(repository))
        attached = _attach_proof(shelf, manifest, image, signer, tools)
        moving = move_tags(shelf, tags, manifest, age_of(image), tools.console, back=move_back)
    return Published(
        reference=f"{repository}@{image.digest}",
        digest=image.digest,
        tag=fixed,
        moving=moving,
        sent=sent,
        attached=attached,
    )


def move_tags(
    shelf: RegistryShelf, tags: Sequence[str], image: Manifest, age: Age, console: Console, *, back: bool
) -> dict[str, Moved]:
    """Move tags to an image where it is the newer one; say which stay where they are, and why."""
    moved = move_aliases(shelf, tags, image, age, back=back)
    for tag, how in moved.items():
        if how == "kept":
            console.warn(f"{tag} stays: a newer image was published under it (--move-back moves it all the same)")
        if how == "unknown":
            console.warn(f"{tag} stays: it names an image that envbuild did not publish (--move-back moves it)")
    return moved


def age_of(image: ProvenImage) -> Age:
    """Return how new an image is."""
    return Age(
        locked=_instant(image.lock.epoch),
        as_of=image.recipe.as_of or "",
        proven=_instant(int(datetime.fromisoformat(image.verdict.finished).timestamp())),
    )


def _refuse_taken(shelf: RegistryShelf, tag: str, image: ProvenImage) -> None:
    found = shelf.client.find(shelf.repository.at(tag))
    if found is not None and found.digest != image.digest:
        raise NotVerifiedError(
            f"{shelf.repository}:{tag} names another image, {found.digest[:19]}, and this tag never moves",
            remedy="somebody else has written that tag: look into the registry, or publish to another repository",
        )


def _attach_proof(
    shelf: RegistryShelf, manifest: Manifest, image: ProvenImage, signer: Signer, tools: Tools
) -> tuple[str, ...]:
    """Attach the statements about an image that are not there yet, each signed; return their kinds."""
    proof = signer.proof  # before the step shows anything: it may ask a person to log in
    with tools.console.step("attach signature, SBOM, provenance and verdict") as step:
        attested = read_attestations(shelf, manifest, proof)
        wanted = [item for item in _statements(image, tools.store) if item.to_bytes() not in attested.payloads]
        notes = {CREATED: _instant(image.lock.epoch), **age_of(image).annotations()}
        for statement in wanted:
            bundle = attachment_of(signer.sign(statement.to_bytes()), statement.kind, notes)
            attach(shelf.client, shelf.repository, manifest.descriptor, bundle)
        if wanted:
            attested = read_attestations(shelf, manifest, proof)
        if not {item.to_bytes() for item in wanted} <= attested.payloads:
            raise RegistryError(f"{shelf.repository} does not give back what was attached to {manifest.digest}")
        if isinstance(signer, KeySigner):
            put_signature(shelf, manifest.digest, signer.key)
            put_attestations(shelf, manifest.digest, attested)
        step.end(f"{len(wanted)} new")
    return tuple(KINDS[item.kind] for item in wanted)


def _statements(image: ProvenImage, store: Store) -> tuple[Statement, ...]:
    said: dict[str, dict[str, Any]] = {
        SIGNATURE: {},
        SBOM: _bill(image, store),
        PROVENANCE: provenance_of(image),
        TEST_RESULT: result_predicate(image.verdict),
    }
    return tuple(
        Statement(name=image.recipe.name, digest=image.digest, kind=kind, predicate=predicate)
        for kind, predicate in said.items()
    )


def _bill(image: ProvenImage, store: Store) -> dict[str, Any]:
    """Return the bill of materials, read out of the wheels and the base once."""
    key = key_of([FORM, version("envbuild"), image.digest, image.lock.digest])
    kept = store.result("sbom", key)
    if kept is None:
        kept = bill_of(image, _rootfs(image.lock, store))
        store.keep_result("sbom", key, kept)
    return kept


def _rootfs(lock: Lock, store: Store) -> Path | None:
    """Return the bootstrapped base; None where the base is an image."""
    if lock.file.debian is None:
        return None
    rootfs = find_base(lock.file.debian, store)
    if rootfs is None:
        raise NotVerifiedError("the base of the image is not on this machine any more")
    return store.sound(rootfs.sha256)


def _instant(epoch: int) -> str:
    return datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
