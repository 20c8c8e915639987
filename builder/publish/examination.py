"""A published image -> what is proven of it, and a sentence for each reason not to trust it; needs no engine."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Literal

from builder.build.image import CONFIG_TYPE
from builder.document import Document
from builder.publish.bundles import Attestations, read_attestations
from builder.publish.envelope import UnprovenError
from builder.publish.identity import Identity
from builder.publish.proof import KeyName
from builder.publish.statements import KINDS, PROVENANCE, SBOM, TEST_RESULT
from builder.publish.testresult import verdict_in
from builder.registry.content import INDEX_TYPES, OCI_MANIFEST
from builder.registry.faults import DamagedError
from builder.verify.verdict import Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from builder.download import Progress
    from builder.publish.bundles import Attested
    from builder.publish.policy import Policy
    from builder.publish.proof import Proof
    from builder.publish.shelf import Shelf
    from builder.registry.content import Manifest

LAYER_TYPES = tuple(f"application/vnd.oci.image.layer.v1.tar{packed}" for packed in ("", "+gzip", "+zstd"))
LARGEST_CONFIG = 4 << 20  # bytes
RECIPE_LABEL, TARGET_LABEL, LOCK_LABEL = "dev.envbuild.recipe", "dev.envbuild.target", "dev.envbuild.lock"
AHEAD = timedelta(minutes=10)  # that clocks may differ by
Result = Literal["verified", "refused", "bad"]


class Examination(Document):
    """What came of looking at a published image: `reasons` are empty if all that was asked for is proven.

    `bad` is one whose newest signed verdict is not good. `remarks` are of what was found and not believed.
    """

    reference: str
    digest: str
    result: Result
    reasons: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    proven: tuple[str, ...] = ()
    signer: KeyName | Identity
    recipe: str | None = None
    target: str | None = None
    lock: str | None = None
    verdict: Verdict | None = None
    bytes_read: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Examined:
    """An examination, and the proven pieces that it is about."""

    report: Examination
    manifest: Manifest
    attestations: Attestations


def examine_image(
    shelf: Shelf,
    reference: str,
    manifest: Manifest,
    proof: Proof,
    policy: Policy,
    *,
    now: datetime | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> Examined:
    """Look at an image and all that is attached to it; every byte of both is read and proven. Raises RegistryError."""
    attestations = read_attestations(shelf, manifest, proof)
    labels: dict[str, str] = {}
    verdict: Verdict | None = None
    reasons = list(_of_form(manifest))
    if not reasons:  # else nothing more of it can be read
        labels = _labels(shelf, manifest)
        verdict, reasons = _newest_verdict(attestations)
        reasons += [*_missing(attestations, proof), *_of_image(labels, policy), *_of_statements(attestations, labels)]
        if verdict is not None:
            reasons += _of_verdict(verdict, manifest, labels, policy, now or datetime.now(UTC))
        reasons += _of_bytes(shelf, manifest, on_progress)
    report = Examination(
        reference=reference,
        digest=manifest.digest,
        result=_result(verdict, reasons),
        reasons=tuple(dict.fromkeys(reasons)),
        remarks=attestations.unproven,
        proven=tuple(name for kind, name in KINDS.items() if attestations.of(kind)),
        signer=proof.signer,
        recipe=labels.get(RECIPE_LABEL),
        target=labels.get(TARGET_LABEL),
        lock=labels.get(LOCK_LABEL),
        verdict=verdict,
        bytes_read=0 if reasons else sum(blob.size for blob in (manifest.config, *manifest.layers)),
    )
    return Examined(report=report, manifest=manifest, attestations=attestations)


def _result(verdict: Verdict | None, reasons: list[str]) -> Result:
    if verdict is not None and verdict.result != "good":
        return "bad"
    return "refused" if reasons else "verified"


def _of_form(manifest: Manifest) -> Iterator[str]:
    """Say what else than the manifest of one image it is: a registry and a manifest may call it by different names."""
    try:
        said, config, layers = manifest.plain.get("mediaType"), manifest.plain.get("config"), manifest.layers
        if manifest.media_type in INDEX_TYPES or "manifests" in manifest.plain or config is None:
            yield "it is no single image, and envbuild publishes nothing else"
            return
        if manifest.media_type != OCI_MANIFEST or said != OCI_MANIFEST:
            yield f"the registry calls it {manifest.media_type}, it calls itself {said}: both must say {OCI_MANIFEST}"
        if manifest.config.media_type != CONFIG_TYPE or manifest.config.size > LARGEST_CONFIG:
            yield f"its config is a {manifest.config.media_type} of {manifest.config.size} bytes, not that of an image"
        for kind in sorted({layer.media_type for layer in layers} - {*LAYER_TYPES}):
            yield f"it has a layer of the type {kind}"
    except DamagedError as error:
        yield error.message


def _labels(shelf: Shelf, manifest: Manifest) -> dict[str, str]:
    """Return what the image says of itself, nothing if it cannot be read."""
    try:
        labels = json.loads(shelf.blob(manifest.config))["config"]["Labels"]
        return {str(name): str(value) for name, value in labels.items()}
    except (DamagedError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}


def _newest_verdict(attestations: Attestations) -> tuple[Verdict | None, list[str]]:
    """Return the verdict that was signed last: an older good one never hides a newer bad one."""
    verdicts, reasons = [], []
    for item in attestations.of(TEST_RESULT):
        try:
            verdicts.append(verdict_in(item.statement))
        except UnprovenError as error:
            reasons.append(f"a signed verdict {error}")
    return max(verdicts, key=_finished, default=None), reasons


def _finished(verdict: Verdict) -> datetime:
    try:
        finished = datetime.fromisoformat(verdict.finished)
    except ValueError:
        return datetime.fromtimestamp(0, UTC)
    return finished if finished.tzinfo else finished.replace(tzinfo=UTC)


def _missing(attestations: Attestations, proof: Proof) -> Iterator[str]:
    for kind, name in KINDS.items():
        if not attestations.of(kind):
            yield f"there is no {name} of it that is signed by {proof.signer}"


def _of_verdict(
    verdict: Verdict, manifest: Manifest, labels: dict[str, str], policy: Policy, now: datetime
) -> Iterator[str]:
    if verdict.result != "good":
        yield f"its verdict is {verdict.result}: {verdict.cause}"
    if verdict.image_id != manifest.config.digest:
        yield f"its verdict is on another image, {verdict.image_id[:19]}"
    if verdict.lock_digest != labels.get(LOCK_LABEL):
        yield "its verdict is on another lock than the image was made from"
    if verdict.recipe != labels.get(RECIPE_LABEL):
        yield f"its verdict is on another recipe, {verdict.recipe}"
    if verdict.gpu != labels.get(TARGET_LABEL):
        yield f"its verdict is for another GPU than the image, {verdict.gpu}"
    for level in policy.levels:
        outcomes = {check.outcome for check in verdict.checks if check.level == level}
        if outcomes != {"passed"}:
            yield f"its verdict does not prove {level}"
    for rule, reason in verdict.waived.items():
        if rule not in policy.waivers:
            yield f"it was made although {rule} speaks against it ({reason}), and the policy does not allow that"
    yield from _of_age(_finished(verdict), policy, now)


def _of_age(finished: datetime, policy: Policy, now: datetime) -> Iterator[str]:
    if finished > now + AHEAD:
        yield f"its verdict is of {finished:%Y-%m-%d %H:%M}, which is in the future"
    if policy.span is not None and now - finished > policy.span:
        yield f"its verdict is of {finished:%Y-%m-%d}, older than {policy.max_age}"


def _of_image(labels: dict[str, str], policy: Policy) -> Iterator[str]:
    if not {RECIPE_LABEL, TARGET_LABEL, LOCK_LABEL} <= labels.keys():
        yield "its config does not name recipe, target and lock, as that of an image of envbuild does"
    if policy.target is not None and labels.get(TARGET_LABEL) != policy.target:
        yield f"it is for {labels.get(TARGET_LABEL, 'no GPU that it names')}, not for {policy.target}"


def _of_statements(attestations: Attestations, labels: dict[str, str]) -> Iterator[str]:
    """Say which signed statement speaks of another lock than the image: a signer may have signed anything."""
    lock = labels.get(LOCK_LABEL)
    told = {
        "SBOM": [_lock_of_bill(item) for item in attestations.of(SBOM)],
        "provenance": [_lock_of_provenance(item) for item in attestations.of(PROVENANCE)],
    }
    for name, locks in told.items():
        if locks and lock not in locks:
            yield f"its {name} is on another lock than the image was made from"


def _lock_of_bill(item: Attested) -> str | None:
    try:
        properties = item.statement.predicate["metadata"]["component"]["properties"]
        return next((entry["value"] for entry in properties if entry["name"] == "envbuild:lock"), None)
    except (KeyError, TypeError):
        return None


def _lock_of_provenance(item: Attested) -> str | None:
    try:
        return str(item.statement.predicate["buildDefinition"]["internalParameters"]["lock"])
    except (KeyError, TypeError):
        return None


def _of_bytes(shelf: Shelf, manifest: Manifest, on_progress: Callable[[Progress], None] | None) -> Iterator[str]:
    try:
        shelf.prove((manifest.config, *manifest.layers), on_progress)
    except DamagedError as error:
        yield error.message
