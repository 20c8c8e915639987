"""Published as an identity on a real registry: who knows the identity verifies it, whatever is changed is refused."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import uuid
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from builder.cli import run
from builder.document import canonical_json
from builder.publish.examination import examine_image
from builder.publish.policy import Policy
from builder.publish.promotion import promote_image
from builder.publish.shelf import RegistryShelf
from builder.publish.stage import publish_recipe
from builder.publish.statements import KINDS, PROVENANCE, SBOM, SIGNATURE, TEST_RESULT
from builder.registry.client import RegistryClient
from builder.registry.reference import Repository
from builder.settings import settings_from
from tests.docker.docker_registry import docker_registry
from tests.publication import Enemy, new_signer
from tests.sigstore_standin import GITHUB, WORKFLOW, Sigstore, StandinSigner, identity_token, running

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

    from builder.publish.examination import Examination
    from builder.publish.proof import Proof
    from tests.sigstore_standin import Services
    from tests.workshop import Project

COSIGN = shutil.which("cosign")
SIGSTORE = Sigstore()
PUBLISHER = StandinSigner(SIGSTORE)
ASKED = ["--identity", WORKFLOW, "--issuer", GITHUB]


@pytest.fixture
def repository(host: str) -> Repository:
    return Repository(registry=host, name=f"tests/{uuid.uuid4().hex}")


@pytest.fixture
def client() -> Iterator[RegistryClient]:
    with RegistryClient(settings_from({})) as client:
        yield client


@pytest.fixture
def enemy(client: RegistryClient, repository: Repository, project: Project) -> Enemy:
    published = publish_recipe(project.source, repository, PUBLISHER, project.tools)
    image = client.manifest(repository.at(published.digest))
    return Enemy(client=client, repository=repository, image=image, signer=PUBLISHER)


def examined(enemy: Enemy, proof: Proof = PUBLISHER.proof) -> Examination:
    shelf = RegistryShelf(client=enemy.client, repository=enemy.repository)
    return examine_image(shelf, "it", enemy.client.manifest(enemy.repository.at("small")), proof, Policy()).report


def test_what_an_identity_published_is_proven_by_it_and_by_no_other(enemy: Enemy) -> None:
    report = examined(enemy)
    assert (report.result, report.reasons, report.remarks) == ("verified", (), ())
    assert report.proven == ("signature", "SBOM", "provenance", "verdict")
    assert report.to_plain()["signer"] == {"identity": WORKFLOW, "issuer": GITHUB}
    for identity, issuer, sentence in (
        ("someone@example.org", GITHUB, f"it is signed by another identity, {WORKFLOW}"),
        (WORKFLOW, "https://x.example", f"it is signed by an identity of another issuer, {GITHUB}"),
    ):
        report = examined(enemy, SIGSTORE.proof(identity, issuer))
        assert report.result == "refused"
        assert report.reasons == tuple(
            f"there is no {name} of it that is signed by {identity} (issuer {issuer})" for name in KINDS.values()
        )
        assert [remark.partition(" proves nothing: ")[2] for remark in report.remarks] == [sentence] * 4


def test_a_key_and_an_identity_prove_one_image_beside_each_other(enemy: Enemy, project: Project) -> None:
    key = new_signer()
    assert examined(enemy, key.proof).result == "refused"
    assert publish_recipe(project.source, enemy.repository, key, project.tools).attached == tuple(KINDS.values())
    assert examined(enemy, key.proof).result == "verified"
    assert examined(enemy).result == "verified"
    assert publish_recipe(project.source, enemy.repository, PUBLISHER, project.tools).attached == ()


def test_only_what_the_identity_proves_is_promoted(enemy: Enemy, project: Project) -> None:
    publish_recipe(project.source, enemy.repository, new_signer(), project.tools)
    target = Repository(registry=enemy.repository.registry, name=f"{enemy.repository.name}/prod")
    promote_image(str(enemy.repository.at("small")), str(target), PUBLISHER.proof, Policy(), project.tools)
    there = Enemy(client=enemy.client, repository=target, image=enemy.image, signer=PUBLISHER)
    assert examined(there).result == "verified"
    assert examined(there).remarks == ()
    assert not [tag for tag in enemy.client.tags(target) if tag.endswith((".sig", ".att"))]


# the command line


@dataclass
class Machine:
    """A machine of the publisher, whose sigstore answers."""

    project: Project
    services: Services
    trust: list[str]
    roots: list[str]


@pytest.fixture
def machine(project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
    monkeypatch.delenv("ENVBUILD_SIGNING_KEY", raising=False)
    monkeypatch.setenv("ENVBUILD_STORE", str(project.store.root))
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere")
    with running(SIGSTORE) as services:
        config, root = tmp_path / "config.json", tmp_path / "trusted_root.json"
        config.write_text(json.dumps(SIGSTORE.trust_config(services.address)))
        root.write_text(json.dumps(SIGSTORE.trusted_root()))
        trust, roots = ["--keyless", "--trust-config", str(config)], ["--trust-root", str(root)]
        yield Machine(project=project, services=services, trust=trust, roots=roots)


def test_the_command_line_publishes_verifies_and_promotes_as_an_identity(
    machine: Machine,
    repository: Repository,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    publish = ["publish", str(machine.project.source.path), "--to", str(repository), *machine.trust, "--json"]
    monkeypatch.setenv("SIGSTORE_ID_TOKEN", identity_token())
    for new, asked in ((list(KINDS.values()), 5), ([], 6)):
        assert run(publish) == 0
        assert json.loads(capsys.readouterr().out)["attached"] == new
        assert len(machine.services.asked) == asked, "a certificate for every publication, an entry for every signature"
    monkeypatch.delenv("SIGSTORE_ID_TOKEN")
    reference = f"{repository}:small"
    assert run(["verify", reference, *ASKED, *machine.roots, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["signer"] == {"identity": WORKFLOW, "issuer": GITHUB}
    other = ["--identity", "x@y.z", "--issuer", GITHUB, *machine.roots]
    assert run(["verify", reference, *other]) == 10
    said = " ".join(capsys.readouterr().err.split())
    assert f"there is no SBOM of it that is signed by x@y.z (issuer {GITHUB})" in said
    assert f"proves nothing: it is signed by another identity, {WORKFLOW}" in said
    assert run(["promote", reference, f"{repository}/prod:1", *other]) == 10
    said = " ".join(capsys.readouterr().err.split())
    assert f"envbuild verify {reference} --identity x@y.z --issuer {GITHUB} --trust-root" in said
    assert run(["promote", reference, f"oci:{tmp_path}/small.tar", *ASKED, *machine.roots]) == 0
    capsys.readouterr()
    assert run(["verify", f"oci:{tmp_path}/small.tar", *ASKED, *machine.roots]) == 0
    assert f"are signed by {WORKFLOW} (issuer {GITHUB})" in " ".join(capsys.readouterr().err.split())


def test_a_policy_says_who_must_have_signed(
    machine: Machine, enemy: Enemy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    policy, reference = tmp_path / "policy.yaml", str(enemy.repository.at("small"))
    policy.write_text(f"version: 1\nsigner: {{identity: '{WORKFLOW}', issuer: '{GITHUB}'}}\n")
    line = ["verify", reference, "--policy", str(policy)]
    assert run([*line, *machine.roots]) == 0
    assert run([*line, *ASKED, *machine.roots]) == 0
    assert run([*line, "--identity", "x@y.z", "--issuer", GITHUB]) == 2
    assert f"the policy asks for {WORKFLOW} (issuer {GITHUB}), not for x@y.z" in capsys.readouterr().err
    monkeypatch.setenv("PUB", new_signer().key.public.pem)
    assert run([*line, "--key", "env:PUB"]) == 2
    assert f"the policy asks for {WORKFLOW} (issuer {GITHUB}), which no key proves" in capsys.readouterr().err
    policy.write_text(f"version: 1\nsigner: {{identity: x@y.z, issuer: '{GITHUB}'}}\n")
    assert run([*line, *machine.roots]) == 10


def test_a_publication_that_sigstore_refuses_tags_nothing_and_shows_no_token(
    machine: Machine,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    token, project = identity_token(), machine.project
    monkeypatch.setenv("SIGSTORE_ID_TOKEN", token)
    with docker_registry(tmp_path / "registry") as host, RegistryClient(settings_from({})) as client:
        line = ["--verbose", "publish", str(project.source.path), "--to", f"{host}/a/b", *machine.trust]
        machine.services.refuses = True
        assert run(line) == 11
        assert not client.tags(Repository(registry=host, name="a/b"))
        machine.services.refuses = False
        assert run(line) == 0
    said = "".join(capsys.readouterr()) + caplog.text
    assert "sigstore does not give a certificate" in said
    places = [project.root, project.store.root, tmp_path / "registry" / "data"]
    kept = [path.read_bytes() for place in places for path in place.rglob("*") if path.is_file()]
    assert len(kept) > 50
    secret = token.rpartition(".")[2].encode()
    assert not [data for data in (said.encode(), *kept) if token.encode() in data or secret in data]


# what an enemy does, and the sentence that refuses it


def _by(signer: StandinSigner) -> Callable[[Enemy], None]:
    """Attach the same statements, signed by somebody else."""

    def sign(enemy: Enemy) -> None:
        for kind in KINDS:
            enemy.replace(kind, signer.sign(canonical_json(enemy.payload(kind))))

    return sign


def _late(enemy: Enemy) -> None:
    payload = canonical_json(enemy.payload(SBOM))
    enemy.replace(SBOM, SIGSTORE.bundle(payload, late=timedelta(minutes=11)))


def _wrap(kind: str, change: Callable[[Enemy, dict[str, Any]], object]) -> Callable[[Enemy], None]:
    return lambda enemy: enemy.change_bundle(kind, lambda plain: change(enemy, plain))


def _entry_of(kind: str) -> Callable[[Enemy, dict[str, Any]], None]:
    def change(enemy: Enemy, plain: dict[str, Any]) -> None:
        other = enemy.bundle(kind)["verificationMaterial"]
        plain["verificationMaterial"]["tlogEntries"] = other["tlogEntries"]

    return change


def _swap(enemy: Enemy) -> None:
    """List the SBOM as the provenance, and the provenance as the SBOM."""
    sbom, provenance = enemy.bundle(SBOM), enemy.bundle(PROVENANCE)
    enemy.replace(SBOM, provenance)
    enemy.replace(PROVENANCE, sbom)


def _of_another_image(enemy: Enemy) -> None:
    plain = enemy.payload(TEST_RESULT)
    plain["subject"][0]["digest"]["sha256"] = "1" * 64
    enemy.replace(TEST_RESULT, PUBLISHER.sign(canonical_json(plain)))


def _tampered(enemy: Enemy, plain: dict[str, Any]) -> None:
    statement = enemy.payload(SBOM)
    statement["predicate"]["components"].pop()
    plain["dsseEnvelope"]["payload"] = base64.b64encode(canonical_json(statement)).decode()


TAMPERINGS: dict[str, tuple[Callable[[Enemy], None], str, str]] = {
    "all signed by another identity": (
        _by(StandinSigner(SIGSTORE, identity="enemy@example.org")),
        "signature",
        "it is signed by another identity, enemy@example.org",
    ),
    "all signed by the same name of another issuer": (
        _by(StandinSigner(SIGSTORE, issuer="https://enemy.example")),
        "signature",
        "it is signed by an identity of another issuer, https://enemy.example",
    ),
    "all signed by the same name at another sigstore": (
        _by(StandinSigner(Sigstore())),
        "signature",
        "it is signed with a certificate of an authority that is not trusted",
    ),
    "a certificate that had expired": (
        _late,
        "SBOM",
        "it is signed with a certificate that did not hold when it entered the log",
    ),
    "the log entry of another bundle": (
        _wrap(SBOM, _entry_of(PROVENANCE)),
        "SBOM",
        "it holds the log entry of another statement",
    ),
    "no log entry": (
        _wrap(SIGNATURE, lambda _, plain: plain["verificationMaterial"]["tlogEntries"].clear()),
        "signature",
        "it is not in the log exactly once",
    ),
    "a package out of the SBOM": (_wrap(SBOM, _tampered), "SBOM", "it is not what its certificate's key has signed"),
    "the verdict of another image": (_of_another_image, "verdict", "it speaks of another image, sha256:1111"),
    "the verdict taken away": (lambda enemy: enemy.remove(TEST_RESULT), "verdict", ""),
}


@pytest.mark.parametrize("name", TAMPERINGS)
def test_an_image_of_an_identity_is_refused_after(name: str, enemy: Enemy) -> None:
    tamper, kind, sentence = TAMPERINGS[name]
    assert examined(enemy).result == "verified"
    tamper(enemy)
    report = examined(enemy)
    assert report.result == "refused"
    assert f"there is no {kind} of it that is signed by {WORKFLOW} (issuer {GITHUB})" in report.reasons
    assert not sentence or any(sentence in remark for remark in report.remarks), report.remarks


def test_attestations_that_are_listed_as_each_other_still_say_what_they_say(enemy: Enemy) -> None:
    """A list is not signed: the predicate type that counts is the signed one."""
    _swap(enemy)
    assert examined(enemy).result == "verified"


# another judge


def _pem(key: EllipticCurvePrivateKey) -> bytes:
    return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


@pytest.fixture
def judge(tmp_path: Path) -> dict[str, str]:
    """An environment in which cosign asks nobody; version 2 takes the roots from single files too."""
    chain = b"".join(one.public_bytes(Encoding.PEM) for one in SIGSTORE.authority.chain)
    files = {
        "SIGSTORE_REKOR_PUBLIC_KEY": _pem(SIGSTORE.log.key),
        "SIGSTORE_CT_LOG_PUBLIC_KEY_FILE": _pem(SIGSTORE.authority.log_key),
        "SIGSTORE_ROOT_FILE": chain,
    }
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    (tmp_path / "trusted_root.json").write_text(json.dumps(SIGSTORE.trusted_root()))
    return {**os.environ, **{name: str(tmp_path / name) for name in files}, "TUF_ROOT": str(tmp_path / "tuf")}


@pytest.mark.skipif(COSIGN is None, reason="cosign is not installed (Debian trixie has it)")
def test_cosign_verifies_what_an_identity_published(enemy: Enemy, judge: dict[str, str], tmp_path: Path) -> None:
    def cosign(*arguments: str, identity: str = WORKFLOW) -> subprocess.CompletedProcess[str]:
        roots = ["--new-bundle-format", "--trusted-root", str(tmp_path / "trusted_root.json")]
        asked = ["--certificate-identity", identity, "--certificate-oidc-issuer", GITHUB, "--allow-http-registry"]
        line = [str(COSIGN), *arguments, *roots, *asked, str(enemy.repository.at("small"))]
        return subprocess.run(line, check=False, capture_output=True, text=True, timeout=120, env=judge)

    for predicate in ("cyclonedx", "slsaprovenance1", TEST_RESULT):
        answer = cosign("verify-attestation", "--type", predicate)
        assert answer.returncode == 0, answer.stderr
        statement = json.loads(base64.b64decode(json.loads(answer.stdout)["payload"]))
        assert statement["subject"][0]["digest"] == {"sha256": enemy.image.digest.removeprefix("sha256:")}
    assert cosign("verify-attestation", "--type", "cyclonedx", identity="x@y.z").returncode != 0
    usage = subprocess.run([str(COSIGN), "verify", "--help"], check=True, capture_output=True, text=True).stdout
    if "--new-bundle-format=false" not in usage:  # before version 3, `verify` reads no bundle
        assert cosign("verify").returncode == 0
        assert cosign("verify", identity="x@y.z").returncode != 0
    enemy.change_bundle(SBOM, lambda plain: _tampered(enemy, plain))
    assert cosign("verify-attestation", "--type", "cyclonedx").returncode != 0
