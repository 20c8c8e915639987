"""A registry that fails while an image is published: it completes, or says what failed and tags nothing half."""

from __future__ import annotations

import uuid
from functools import partial
from typing import TYPE_CHECKING

import pytest

from builder.download import Patience
from builder.errors import RegistryError
from builder.publish import stage
from builder.publish.examination import examine_image
from builder.publish.policy import Policy
from builder.publish.shelf import RegistryShelf
from builder.publish.stage import publish_recipe
from builder.registry import upload
from builder.registry.client import RegistryClient
from builder.registry.reference import Repository
from builder.settings import settings_from
from tests.docker.fault_proxy import Fault, fault_proxy
from tests.publication import new_signer

if TYPE_CHECKING:
    from builder.publish.stage import Published
    from tests.docker.fault_proxy import FaultProxy
    from tests.workshop import Project

PATIENCE = Patience(attempts=4, pause=0.0, silence=5.0, parallel=2)
SIGNER = new_signer()
LONG = 10_000  # more often than anybody tries
MENDING = {
    "500 for a look at a blob": Fault(method="HEAD", path="/blobs/", times=3),
    "503 for the beginning of an upload": Fault(method="POST", path="/uploads/", status=503, times=3),
    "429 with a pause": Fault(method="POST", path="/uploads/", status=429, headers={"Retry-After": "0"}, times=2),
    "500 for the end of an upload": Fault(method="PUT", path="/uploads/", times=2),
    "a reset instead of an answer": Fault(method="PUT", path="/uploads/", how="reset", times=2),
    "a reset in the middle of a chunk": Fault(method="PATCH", path="/uploads/", how="cut request", times=2),
    "an upload whose answer is lost": Fault(method="PUT", path="/uploads/", how="lose answer", times=2),
    "a chunk whose answer is lost": Fault(method="PATCH", path="/uploads/", how="lose answer", times=2),
    "a blob damaged on the way": Fault(method="PUT", path="/uploads/", how="corrupt request"),
    "500 for the manifest": Fault(method="PUT", path="/manifests/sha256:", times=2),
    "a manifest whose answer is lost": Fault(method="PUT", path="/manifests/sha256:", how="lose answer", times=2),
    "500 for the list of what is attached": Fault(method="GET", path="/manifests/sha256-", times=2),
    "a cut list of what is attached": Fault(method="GET", path="/manifests/sha256-", how="cut answer", times=2),
    "500 for a write of that list": Fault(method="PUT", path="/manifests/sha256-", times=2),
    "500 for the tags": Fault(method="GET", path="/tags/list", times=3),
    "500 for a tag": Fault(method="PUT", path="/manifests/small", times=3),
    "a reset for a tag": Fault(method="PUT", path="/manifests/small", how="lose answer", times=2),
    "slow answers": Fault(method="PUT", path="/manifests/", how="slow", times=2),
}
LASTING = {
    "no look at a blob": (Fault(method="HEAD", path="/blobs/", times=LONG), "did not take the blob .* HTTP 500"),
    "no beginning of an upload": (Fault(method="POST", path="/uploads/", times=LONG), "did not take the blob"),
    "no end of an upload": (Fault(method="PUT", path="/uploads/", how="reset", times=LONG), "did not take the blob"),
    "damage in every upload": (
        Fault(method="PUT", path="/uploads/", how="corrupt request", times=LONG),
        "did not take the blob .* DIGEST_INVALID",
    ),
    "no chunk": (Fault(method="PATCH", path="/uploads/", how="cut request", times=LONG), "did not take the blob"),
    "an upload denied": (Fault(method="POST", path="/uploads/", status=403, times=LONG), "refused to take .* HTTP 403"),
    "too long a pause": (
        Fault(method="POST", path="/uploads/", status=429, headers={"Retry-After": "3600"}, times=LONG),
        "for the next 3600 s",
    ),
    "no manifest": (Fault(method="PUT", path="/manifests/sha256:", times=LONG), "did not take the manifest"),
    "no list of what is attached": (Fault(method="PUT", path="/manifests/sha256-", times=LONG), "did not take the"),
    "other bytes than were attached": (
        Fault(method="GET", path="/blobs/sha256:", how="corrupt answer", times=LONG),
        "does not give back what was attached",
    ),
    "no tag": (Fault(method="PUT", path="/manifests/small-sm120", times=LONG), "did not take the manifest"),
}


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage, "RegistryClient", partial(RegistryClient, patience=PATIENCE))
    monkeypatch.setattr(upload, "MONOLITHIC", 300)
    monkeypatch.setattr(upload, "CHUNK", 200)


def publish_through(proxy: FaultProxy, name: str, project: Project) -> Published:
    return publish_recipe(project.source, Repository(registry=proxy.host, name=name), SIGNER, project.tools)


def tags_that_are_whole(host: str, name: str) -> set[str]:
    """Return the tags that people use; every one of them must name an image that is proven to the last byte."""
    repository = Repository(registry=host, name=name)
    with RegistryClient(settings_from({}), patience=PATIENCE) as client:
        tags = {tag for tag in client.tags(repository) if not tag.startswith("sha256-")}
        shelf = RegistryShelf(client=client, repository=repository)
        for tag in tags:
            manifest = client.manifest(repository.at(tag))
            assert examine_image(shelf, tag, manifest, SIGNER.proof, Policy()).report.result == "verified"
    return tags


def tags_of(published: Published) -> set[str]:
    """Return the tags that a publication gives: those that move, each with its companion."""
    mark = published.digest.removeprefix("sha256:")[:8]
    return {*published.moving, *(f"{tag}-{mark}" for tag in published.moving)}


@pytest.mark.parametrize("name", MENDING)
def test_a_publication_completes_after(name: str, host: str, project: Project) -> None:
    fault, where = MENDING[name], f"tests/{uuid.uuid4().hex}"
    with fault_proxy(host, fault) as proxy:
        published = publish_through(proxy, where, project)
        assert proxy.met > 0
    assert tags_that_are_whole(host, where) == tags_of(published)


@pytest.mark.parametrize("name", LASTING)
def test_a_publication_says_what_failed_and_tags_nothing_with(name: str, host: str, project: Project) -> None:
    (fault, sentence), where = LASTING[name], f"tests/{uuid.uuid4().hex}"
    with fault_proxy(host, fault) as proxy:
        with pytest.raises(RegistryError, match=sentence):
            publish_through(proxy, where, project)
        assert tags_that_are_whole(host, where) == set()
        proxy.faults.clear()
        published = publish_through(proxy, where, project)
    assert tags_that_are_whole(host, where) == tags_of(published)


def test_a_failure_between_the_tags_leaves_only_whole_ones(host: str, project: Project) -> None:
    where = f"tests/{uuid.uuid4().hex}"
    fault = Fault(method="PUT", path="/manifests/small$", times=LONG)
    with fault_proxy(host, fault) as proxy, pytest.raises(RegistryError, match="did not take the manifest"):
        publish_through(proxy, where, project)
    whole = publish_recipe(project.source, Repository(registry=host, name=f"{where}/whole"), SIGNER, project.tools)
    assert tags_that_are_whole(host, where) == tags_of(whole) - {"small"}


def test_tokens_that_run_out_are_asked_for_again(host: str, project: Project) -> None:
    where = f"tests/{uuid.uuid4().hex}"
    with fault_proxy(host, token_uses=16) as proxy:
        published = publish_through(proxy, where, project)
        assert len(proxy.tokens) > 3
    assert tags_that_are_whole(host, where) == tags_of(published)
