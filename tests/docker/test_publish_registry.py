"""Publish, verify and promote on a real registry, Debian's: what is proven arrives, whatever is changed is refused."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import subprocess
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, NoEncryption, PrivateFormat

from builder.cli import run
from builder.console import Console
from builder.document import canonical_json
from builder.download import Patience
from builder.errors import NotVerifiedError, RegistryError
from builder.publish import aliases
from builder.publish.examination import examine_image
from builder.publish.keys import LoadedKey, load_secret_key
from builder.publish.policy import Policy
from builder.publish.promotion import examine_source, open_source, promote_image
from builder.publish.proof import KeyProof, KeySigner
from builder.publish.shelf import RegistryShelf
from builder.publish.stage import publish_recipe
from builder.publish.statements import PROVENANCE, SBOM, SIGNATURE, TEST_RESULT, Statement
from builder.publish.testresult import VERDICT
from builder.registry.client import RegistryClient
from builder.registry.content import OCI_INDEX, OCI_MANIFEST, Descriptor, Payload
from builder.registry.reference import Reference, Repository
from builder.settings import settings_from
from builder.store import Store
from tests.docker.docker_registry import PASSWORD, USER, docker_registry
from tests.publication import Enemy, new_key, new_signer, prove, proven_project, put_image
from tests.sigstore_standin import Sigstore, StandinSigner

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from builder.publish.examination import Examination
    from builder.publish.proof import Proof, Signer
    from builder.publish.stage import Published
    from tests.workshop import Project

COSIGN = shutil.which("cosign")
needs_cosign = pytest.mark.skipif(COSIGN is None, reason="cosign is not installed (Debian trixie has it)")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("registry")


@pytest.fixture(scope="module")
def host(data: Path) -> Iterator[str]:
    with docker_registry(data) as host:
        yield host


@pytest.fixture
def repository(host: str) -> Repository:
    return Repository(registry=host, name=f"tests/{uuid.uuid4().hex}")


@pytest.fixture(scope="module")
def signer(request: pytest.FixtureRequest) -> Signer:
    """Who publishes: by a key, or as the identity that a test asks for."""
    return StandinSigner(Sigstore()) if getattr(request, "param", "key") == "identity" else new_signer()


@pytest.fixture
def client(tmp_path: Path) -> Iterator[RegistryClient]:
    patience = Patience(attempts=3, pause=0.01, silence=20.0, parallel=4)
    with RegistryClient(settings_from({"DOCKER_CONFIG": str(tmp_path)}), patience=patience) as client:
        yield client


@pytest.fixture
def published(project: Project, repository: Repository, signer: Signer) -> Published:
    return publish_recipe(project.source, repository, signer, project.tools)


@pytest.fixture
def enemy(client: RegistryClient, repository: Repository, signer: Signer, published: Published) -> Enemy:
    image = client.manifest(repository.at(published.digest))
    return Enemy(client=client, repository=repository, image=image, signer=signer)


def examined(enemy: Enemy, reference: Reference | None = None, /, **policy: Any) -> Examination:
    shelf = RegistryShelf(client=enemy.client, repository=enemy.repository)
    manifest = enemy.client.manifest(reference or enemy.repository.at("small"))
    return examine_image(shelf, "it", manifest, enemy.signer.proof, Policy.model_validate(policy)).report


def test_what_is_published_is_proven_by_its_key_alone(enemy: Enemy, published: Published) -> None:
    assert published.attached == ("signature", "SBOM", "provenance", "verdict")
    report = examined(enemy, target="rtx-pro-6000", levels=("static",))
    assert (report.result, report.reasons, report.remarks) == ("verified", (), ())
    assert report.proven == ("signature", "SBOM", "provenance", "verdict")
    assert report.bytes_read == sum(blob.size for blob in (enemy.image.config, *enemy.image.layers))
    tags = {tag for tag in enemy.client.tags(enemy.repository) if not tag.startswith("sha256-")}
    assert tags == {*published.moving, *(f"{tag}-{enemy.image.digest[7:15]}" for tag in published.moving)}
    assert published.tag in tags
    assert set(published.moving.values()) == {"moved"}


def test_the_same_again_sends_nothing_and_signs_nothing(
    project: Project, repository: Repository, signer: Signer, published: Published, client: RegistryClient
) -> None:
    before = client.tags(repository)
    again = publish_recipe(project.source, repository, signer, project.tools)
    assert (again.sent, again.attached, set(again.moving.values())) == (0, (), {"current"})
    assert client.tags(repository) == before


def test_a_second_key_signs_the_same_image_and_both_prove_it(enemy: Enemy, project: Project) -> None:
    other = new_signer()
    publish_recipe(project.source, enemy.repository, other, project.tools)
    assert examined(enemy).result == "verified"
    enemy.signer = other
    assert examined(enemy).result == "verified"


def test_an_image_that_was_not_published_is_refused(enemy: Enemy) -> None:
    bare = json.loads(enemy.image.data)
    bare["layers"] = bare["layers"][:1]
    enemy.client.put_manifest(enemy.repository.at("bare"), canonical_json(bare), OCI_MANIFEST)
    report = examined(enemy, enemy.repository.at("bare"))
    assert report.result == "refused"
    assert any("no signature" in reason for reason in report.reasons)


# what the policy asks


def test_a_policy_that_is_not_met_is_refused_with_a_sentence_for_each_reason(
    enemy: Enemy, project: Project, tmp_path: Path
) -> None:
    asked = {"target": "h200", "levels": ["cpu-decode"], "max-age": "1h"}
    report = examined(enemy, None, **asked)
    assert report.result == "refused"
    assert report.reasons == (
        "it is for rtx-pro-6000, not for h200",
        "its verdict does not prove cpu-decode",
        "its verdict is of 2026-11-29, older than 1h",
    )


def test_a_waiver_is_accepted_only_by_a_policy_that_names_it(enemy: Enemy) -> None:
    enemy.resign(TEST_RESULT, lambda plain: plain["predicate"][VERDICT].update(waived={"R05": "it works all the same"}))
    [reason] = examined(enemy).reasons
    assert reason.startswith("it was made although R05 speaks against it (it works all the same)")
    assert examined(enemy, waivers=["R05"]).result == "verified"


# tags


def test_an_older_image_gets_its_own_tag_and_moves_none(
    client: RegistryClient, repository: Repository, signer: Signer, tmp_path: Path
) -> None:
    project = proven_project(tmp_path)
    newer = publish_recipe(project.source, repository, signer, project.tools)
    put_image(project, b"older")
    prove(project, finished="2026-11-28T00:00:00+00:00")
    older = publish_recipe(project.source, repository, signer, project.tools)
    assert older.tag is not None
    assert older.tag != newer.tag
    assert set(older.moving.values()) == {"kept"}
    assert client.manifest(repository.at(older.tag)).digest == older.digest
    assert client.manifest(repository.at("small")).digest == newer.digest
    back = publish_recipe(project.source, repository, signer, project.tools, move_back=True)
    assert set(back.moving.values()) == {"moved"}
    assert client.manifest(repository.at("small")).digest == older.digest


def test_a_tag_on_an_image_of_somebody_else_stays(enemy: Enemy, project: Project) -> None:
    _move_alias(enemy, enemy.client)
    again = publish_recipe(project.source, enemy.repository, enemy.signer, project.tools)
    assert again.moving["small"] == "unknown"
    assert examined(enemy).result == "refused"
    back = publish_recipe(project.source, enemy.repository, enemy.signer, project.tools, move_back=True)
    assert back.moving["small"] == "moved"
    assert examined(enemy).result == "verified"


def test_the_tag_that_never_moves_is_not_taken_from_another_image(enemy: Enemy, project: Project) -> None:
    other = enemy.client.manifest(enemy.repository.at(_other_image(enemy).digest))
    tag = next(tag for tag in enemy.client.tags(enemy.repository) if tag.endswith(enemy.image.digest[7:15]))
    enemy.client.put_manifest(enemy.repository.at(tag), other.data, OCI_MANIFEST)
    with pytest.raises(NotVerifiedError, match=r"names another image, .* and this tag never moves"):
        publish_recipe(project.source, enemy.repository, enemy.signer, project.tools, move_back=True)


def proven_on_four_days(tmp_path: Path) -> list[Project]:
    """One project four times, each with another image, proven one day later than the one before."""
    projects = [proven_project(tmp_path / str(day), content=bytes([day])) for day in range(1, 5)]
    for day, project in enumerate(projects, 1):
        prove(project, finished=f"2026-11-0{day}T00:00:00+00:00")
    return projects


def test_of_publishers_at_once_the_newest_image_keeps_the_tags(
    client: RegistryClient, repository: Repository, signer: Signer, tmp_path: Path
) -> None:
    projects = proven_on_four_days(tmp_path)

    def publish(project: Project) -> str:
        return publish_recipe(project.source, repository, signer, project.tools).digest

    with ThreadPoolExecutor(4) as pool:
        digests = list(pool.map(publish, projects))
    assert len(set(digests)) == 4
    assert client.manifest(repository.at("small")).digest == digests[-1]


def test_a_newer_image_that_comes_between_an_older_ones_look_and_its_write_gets_the_tag(
    client: RegistryClient, repository: Repository, signer: Signer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    older, newer = (proven_project(tmp_path / name, content=name.encode()) for name in ("older", "newer"))
    prove(older, finished="2026-11-01T00:00:00+00:00")
    prove(newer, finished="2026-11-02T00:00:00+00:00")
    put, done = RegistryClient.put_manifest, list[str]()

    def put_late(self: RegistryClient, reference: Reference, *args: Any, **named: Any) -> Any:
        if reference == repository.at("small") and not done:
            done.append("begun")
            done.append(publish_recipe(newer.source, repository, signer, newer.tools).digest)
        return put(self, reference, *args, **named)

    monkeypatch.setattr(RegistryClient, "put_manifest", put_late)
    published = publish_recipe(older.source, repository, signer, older.tools)
    assert client.manifest(repository.at("small")).digest == done[1] != published.digest
    assert published.moving["small"] == "kept"


def test_the_age_of_an_image_is_read_once_for_all_the_tags_that_it_had(
    repository: Repository, signer: KeySigner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, *_ = proven_on_four_days(tmp_path)
    old = publish_recipe(first.source, repository, signer, first.tools).digest
    read, asked = aliases.age_of_published, list[str]()

    def counted(shelf: RegistryShelf, digest: str) -> aliases.Age | None:
        asked.append(digest)
        return read(shelf, digest)

    monkeypatch.setattr(aliases, "age_of_published", counted)
    moving = publish_recipe(second.source, repository, signer, second.tools).moving
    assert set(moving.values()) == {"moved"}
    assert len(moving) == 3
    assert asked == [old] * 3  # where the tags point, before they move, and after


def test_after_a_tag_went_back_only_the_newest_of_all_moves_it_again(
    client: RegistryClient, repository: Repository, signer: Signer, tmp_path: Path
) -> None:
    projects = proven_on_four_days(tmp_path)

    def publish(day: int, *, move_back: bool = False) -> str:
        project = projects[day - 1]
        return publish_recipe(project.source, repository, signer, project.tools, move_back=move_back).moving["small"]

    assert [publish(3), publish(1, move_back=True), publish(2), publish(4)] == ["moved", "moved", "kept", "moved"]
    tags = [tag for tag in client.tags(repository) if re.fullmatch(r"small-[0-9a-f]{8}", tag)]
    assert len(tags) == 4


# promotion


def test_promotion_copies_image_and_proof_and_moves_the_tag(enemy: Enemy, tmp_path: Path, project: Project) -> None:
    target = Repository(registry=enemy.repository.registry, name=f"{enemy.repository.name}/prod")
    clean = replace(project.tools, store=Store(tmp_path / "clean"))
    done = promote_image(str(enemy.repository.at("small")), str(target), enemy.signer.proof, Policy(), clean)
    assert (done.digest, done.sent, done.moving) == (enemy.image.digest, 0, {"small": "moved"})
    there = replace(enemy, repository=target)
    assert examined(there).result == "verified"
    assert {item.digest for item in there.listed().values()} == {item.digest for item in enemy.listed().values()}


def test_promotion_to_another_registry_brings_the_blobs_over(enemy: Enemy, tmp_path: Path, project: Project) -> None:
    with docker_registry(tmp_path / "second") as host:
        target = Reference(repository=Repository(registry=host, name="prod"), tag="stable")
        clean = replace(project.tools, store=Store(tmp_path / "clean"))
        done = promote_image(str(enemy.repository.at("small")), str(target), enemy.signer.proof, Policy(), clean)
        assert done.sent == sum(blob.size for blob in (enemy.image.config, *enemy.image.layers))
        there = replace(enemy, repository=target.repository)
        assert examined(there, target).result == "verified"


def test_what_is_not_verified_is_not_promoted(enemy: Enemy, project: Project) -> None:
    target = Repository(registry=enemy.repository.registry, name=f"{enemy.repository.name}/prod")
    enemy.remove(TEST_RESULT)
    with pytest.raises(NotVerifiedError, match=r"is not promoted: there is no verdict") as caught:
        promote_image(
            str(enemy.repository.at("small")),
            str(target),
            enemy.signer.proof,
            Policy(),
            project.tools,
        )
    assert caught.value.exit_code == 10
    assert enemy.client.tags(target) == ()


# taken along


@pytest.mark.parametrize("name", ["layout", "layout.tar"])
def test_an_image_is_taken_along_verified_without_a_network_and_promoted_elsewhere(
    name: str, enemy: Enemy, tmp_path: Path, project: Project
) -> None:
    place, proof = f"oci:{tmp_path / name}", enemy.signer.proof
    promote_image(str(enemy.repository.at("small")), place, proof, Policy(), project.tools)
    with open_source(place, settings_from({})) as source:
        report = examine_source(source, proof, Policy(target="rtx-pro-6000"), Console()).report
        assert (report.result, report.digest) == ("verified", enemy.image.digest)
        assert examine_source(source, new_signer().proof, Policy(), Console()).report.result == "refused"
    with docker_registry(tmp_path / "second") as host:
        clean = replace(project.tools, store=Store(tmp_path / "clean"))
        done = promote_image(place, f"{host}/prod:stable", proof, Policy(), clean)
        there = replace(enemy, repository=Repository(registry=host, name="prod"))
        assert (done.digest, done.moving) == (enemy.image.digest, {"stable": "moved"})
        assert examined(there, there.repository.at("stable")).result == "verified"
        if COSIGN is not None and isinstance(proof, KeyProof):
            (tmp_path / "pub").write_text(proof.key.pem)
            answer = cosign("verify", "--key", str(tmp_path / "pub"), f"{host}/prod:stable")
            assert answer.returncode == 0, answer.stderr


def test_every_byte_of_a_layout_counts(enemy: Enemy, tmp_path: Path, project: Project) -> None:
    place, proof = tmp_path / "layout", enemy.signer.proof
    promote_image(str(enemy.repository.at("small")), f"oci:{place}", proof, Policy(), project.tools)
    files = [path for path in (place / "blobs" / "sha256").iterdir() if path.stat().st_size > 2]
    used = {item.digest for item in (enemy.image.config, *enemy.image.layers, enemy.image.descriptor)}
    used |= {item.digest for item in enemy.listed().values()}
    used |= {enemy.client.manifest(enemy.repository.at(i.digest)).layers[0].digest for i in enemy.listed().values()}
    counted = 0
    for path in files:
        if f"sha256:{path.name}" in used:
            counted += 1
            _flip(path)
            assert _layout_result(f"oci:{place}", proof) != "verified"
            _flip(path)
    assert counted == len(used) == 12
    assert _layout_result(f"oci:{place}", proof) == "verified"


def _layout_result(place: str, proof: Proof) -> str:
    try:
        with open_source(place, settings_from({})) as source:
            return examine_source(source, proof, Policy(), Console()).report.result
    except RegistryError:
        return "damaged"


# other tools, and the command line


def cosign(*arguments: str) -> subprocess.CompletedProcess[str]:
    offline = ("--insecure-ignore-tlog=true", "--allow-http-registry")
    return subprocess.run([str(COSIGN), *arguments, *offline], check=False, capture_output=True, text=True, timeout=120)


@needs_cosign
@pytest.mark.parametrize("kind", ["ecdsa", "ed25519"])
def test_cosign_verifies_signature_and_attestations(
    kind: str, project: Project, repository: Repository, tmp_path: Path
) -> None:
    own = new_key() if kind == "ecdsa" else LoadedKey(Ed25519PrivateKey.generate())
    published = publish_recipe(project.source, repository, KeySigner(own), project.tools)
    (tmp_path / "pub").write_text(own.public.pem)
    (tmp_path / "other").write_text(new_key().public.pem)
    reference, key = f"{repository}:{published.tag}", str(tmp_path / "pub")
    answer = cosign("verify", "--key", key, reference)
    assert answer.returncode == 0, answer.stderr
    assert json.loads(answer.stdout)[0]["critical"]["image"]["docker-manifest-digest"] == published.digest
    for predicate in ("cyclonedx", "slsaprovenance1", TEST_RESULT):
        answer = cosign("verify-attestation", "--key", key, "--type", predicate, reference)
        assert answer.returncode == 0, answer.stderr
        statement = json.loads(base64.b64decode(json.loads(answer.stdout)["payload"]))
        assert statement["subject"] == [
            {"name": "small", "digest": {"sha256": published.digest.removeprefix("sha256:")}}
        ]
    assert cosign("verify", "--key", str(tmp_path / "other"), reference).returncode != 0
    answer = cosign("verify-attestation", "--key", str(tmp_path / "other"), "--type", "cyclonedx", reference)
    assert answer.returncode != 0


@needs_cosign
def test_a_key_that_cosign_made_signs_what_cosign_verifies(
    project: Project, repository: Repository, tmp_path: Path
) -> None:
    made = subprocess.run(
        [str(COSIGN), "generate-key-pair"],
        cwd=tmp_path,
        env={**os.environ, "COSIGN_PASSWORD": "0pen"},
        check=False,
        capture_output=True,
        timeout=120,
    )
    assert made.returncode == 0, made.stderr
    secret = load_secret_key(str(tmp_path / "cosign.key"), {"COSIGN_PASSWORD": "0pen"})
    published = publish_recipe(project.source, repository, KeySigner(secret), project.tools)
    answer = cosign("verify", "--key", str(tmp_path / "cosign.pub"), f"{repository}:{published.tag}")
    assert answer.returncode == 0, answer.stderr


def test_the_command_line_publishes_verifies_and_promotes(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    project = proven_project(tmp_path / "project")
    own = new_key()
    secret = own.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    monkeypatch.setenv("THE_KEY", secret)
    monkeypatch.setenv("ENVBUILD_STORE", str(project.store.root))
    (tmp_path / "pub").write_text(own.public.pem)
    recipe, key = str(project.source.path), str(tmp_path / "pub")
    assert run(["publish", recipe, "--to", str(repository), "--key", "env:THE_KEY", "--json"]) == 0
    told = capsys.readouterr()
    published = json.loads(told.out)
    monkeypatch.setenv("ENVBUILD_STORE", str(tmp_path / "never-made"))
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere")
    assert run(["verify", f"{repository}:small", "--key", key, "--json", "--level", "static"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["result"], report["digest"]) == ("verified", published["digest"])
    assert not (tmp_path / "never-made").exists()
    assert run(["verify", f"{repository}:small", "--key", key, "--target", "h200"]) == 10
    assert "it is for rtx-pro-6000, not for h200" in capsys.readouterr().err
    assert run(["verify", f"{repository}:none", "--key", key]) == 11
    for new in (["signature", "SBOM", "provenance", "verdict"], []):
        assert run(["promote", f"{repository}:small", f"{repository}/prod:stable", "--key", key, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["attached"] == new
    (tmp_path / "policy.yaml").write_text("version: 1\ntarget: h200\n")
    asked = ["--key", key, "--policy", str(tmp_path / "policy.yaml")]
    assert run(["promote", f"{repository}:small", f"{repository}/prod", *asked]) == 10
    assert f"envbuild verify {repository}:small {' '.join(asked)}" in " ".join(capsys.readouterr().err.split())
    said = told.err + "".join(capsys.readouterr())
    assert not any(line in said for line in secret.splitlines()[1:-1])


def test_no_secret_leaves_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither the key, nor its password, nor the registry's is in what is said, what is published, or the store."""
    project = proven_project(tmp_path / "project")
    encrypted = new_key().key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"0pen-key"))
    login = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
    for name, value in {
        "THE_KEY": encrypted.decode(),
        "ENVBUILD_KEY_PASSWORD": "0pen-key",
        "ENVBUILD_STORE": str(project.store.root),
        "DOCKER_CONFIG": str(tmp_path),
    }.items():
        monkeypatch.setenv(name, value)
    line = ["--verbose", "publish", str(project.source.path), "--key", "env:THE_KEY", "--json", "--to"]
    with docker_registry(tmp_path / "registry", login=True) as host:
        assert run([*line, f"{host}/a/b"]) == 11
        (tmp_path / "config.json").write_text(json.dumps({"auths": {host: {"auth": login}}}))
        assert run([*line, f"{host}/a/b"]) == 0
    secrets = [b"0pen-key", PASSWORD.encode(), login.encode(), *encrypted.splitlines()[1:-1]]
    said = "".join(capsys.readouterr()).encode()
    places = [project.root, project.store.root, tmp_path / "registry" / "data"]
    kept = [path.read_bytes() for place in places for path in place.rglob("*") if path.is_file()]
    assert len(kept) > 50
    assert not [secret for secret in secrets for data in (said, *kept) if secret in data]


# what an enemy does, and the sentence that refuses it


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def _stored(data: Path, digest: str) -> Path:
    name = digest.removeprefix("sha256:")
    return data / "data" / "docker" / "registry" / "v2" / "blobs" / "sha256" / name[:2] / name / "data"


def _on_disk(choose: Callable[[Enemy], Descriptor], change: Callable[[Path], object]) -> Callable[[Enemy, Path], None]:
    """Change bytes in the registry's storage."""

    def tamper(enemy: Enemy, data: Path) -> None:
        change(_stored(data, choose(enemy).digest))

    return tamper


def _bundle_file(enemy: Enemy) -> Descriptor:
    return enemy.client.manifest(enemy.repository.at(enemy.listed()[SBOM].digest)).layers[0]


def _other_image(enemy: Enemy) -> Descriptor:
    other = json.loads(enemy.image.data)
    other["annotations"] = {"another": "image"}
    data = canonical_json(other)
    enemy.client.put_manifest(enemy.repository.at(Payload.of(data).digest), data, OCI_MANIFEST)
    return Descriptor(media_type=OCI_MANIFEST, digest=Payload.of(data).digest, size=len(data))


def _swap(kind: str) -> Callable[[Enemy, Path], None]:
    """Attach what the publisher signed of another image."""

    def swap(enemy: Enemy, _: Path) -> None:
        other = _other_image(enemy).digest.removeprefix("sha256:")
        enemy.resign(kind, lambda plain: plain["subject"][0]["digest"].update(sha256=other))

    return swap


def _list_anothers(enemy: Enemy, _: Path) -> None:
    """List an attestation whose manifest is attached to another image."""
    manifest = json.loads(enemy.client.manifest(enemy.repository.at(enemy.listed()[SBOM].digest)).data)
    manifest["subject"] = _other_image(enemy).to_plain()
    data = canonical_json(manifest)
    digest = Payload.of(data).digest
    enemy.client.put_manifest(enemy.repository.at(digest), data, OCI_MANIFEST)
    listed = enemy.listed()
    old = listed[SBOM]
    listed[SBOM] = Descriptor(
        media_type=OCI_MANIFEST,
        digest=digest,
        size=len(data),
        artifact_type=old.artifact_type,
        annotations=old.annotations,
    )
    enemy.relist(listed)


def _unsigned(kind: str, change: Callable[[dict[str, Any]], object]) -> Callable[[Enemy, Path], None]:
    """Change a statement in its envelope and leave the signature as it was."""

    def edit(enemy: Enemy, _: Path) -> None:
        plain = enemy.payload(kind)
        change(plain)
        text = base64.b64encode(canonical_json(plain)).decode()
        enemy.change_bundle(kind, lambda bundle: bundle["dsseEnvelope"].update(payload=text))

    return edit


def _wrap(change: Callable[[dict[str, Any]], object], kind: str = TEST_RESULT) -> Callable[[Enemy, Path], None]:
    """Change the bundle around a statement."""
    return lambda enemy, _: enemy.change_bundle(kind, change)


def _signed(change: Callable[[dict[str, Any]], object], kind: str = TEST_RESULT) -> Callable[[Enemy, Path], None]:
    """Change a statement that the publisher signs: a signer may have signed anything."""
    return lambda enemy, _: enemy.resign(kind, change)


def _all_by_another(enemy: Enemy, _: Path) -> None:
    for kind in (SIGNATURE, SBOM, PROVENANCE, TEST_RESULT):
        enemy.resign(kind, lambda _: None, new_signer())


def _sign_the_payload_alone(enemy: Enemy, _: Path) -> None:
    def change(bundle: dict[str, Any]) -> None:
        envelope = bundle["dsseEnvelope"]
        key = enemy.signer.key if isinstance(enemy.signer, KeySigner) else new_key()
        signature = key.sign(base64.b64decode(envelope["payload"]))
        envelope["signatures"][0]["sig"] = base64.b64encode(signature).decode()

    enemy.change_bundle(TEST_RESULT, change)


def _index(enemy: Enemy, _: Path) -> None:
    index = {"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": [enemy.image.descriptor.to_plain()]}
    enemy.client.put_manifest(enemy.repository.at("small"), canonical_json(index), OCI_INDEX)


def _move_alias(enemy: Enemy, _: object) -> None:
    other = enemy.client.manifest(enemy.repository.at(_other_image(enemy).digest))
    enemy.client.put_manifest(enemy.repository.at("small"), other.data, OCI_MANIFEST)


def _foreign_layer(enemy: Enemy, _: Path) -> None:
    plain = json.loads(enemy.image.data)
    plain["layers"][1]["mediaType"] = "application/vnd.enemy.layer"
    enemy.client.put_manifest(enemy.repository.at("small"), canonical_json(plain), OCI_MANIFEST)


def _newer_and_bad(enemy: Enemy, _: Path) -> None:
    """The publisher withdrew the image; the enemy leaves the old good verdict beside it."""
    predicate = enemy.payload(TEST_RESULT)["predicate"]
    verdict = {**predicate[VERDICT], "result": "bad", "finished": "2026-11-29T10:00:00+00:00", "cause": "found later"}
    verdict["checks"] = [{**verdict["checks"][0], "outcome": "failed"}]
    enemy.add(
        Statement(name="small", digest=enemy.image.digest, kind=TEST_RESULT, predicate={**predicate, VERDICT: verdict})
    )


def _verdict(**changes: Any) -> Callable[[dict[str, Any]], object]:
    return lambda plain: plain["predicate"][VERDICT].update(changes)


TAMPERINGS: dict[str, tuple[Callable[[Enemy, Path], None], str]] = {
    "a byte of a layer": (_on_disk(lambda enemy: enemy.image.layers[1], _flip), "sent other bytes than"),
    "a layer cut short": (
        _on_disk(lambda enemy: enemy.image.layers[1], lambda path: os.truncate(path, 100)),
        "did not give the blob",
    ),
    "a byte of the config": (_on_disk(lambda enemy: enemy.image.config, _flip), "sent other bytes than"),
    "a byte of a bundle": (_on_disk(_bundle_file, _flip), "the SBOM at .* proves nothing|no SBOM of it"),
    "a package out of the SBOM": (_unsigned(SBOM, lambda plain: plain["predicate"]["components"].pop()), "no SBOM"),
    "another builder in the provenance": (
        _unsigned(PROVENANCE, lambda plain: plain["predicate"]["runDetails"]["builder"].update(id="urn:x")),
        "no provenance",
    ),
    "another cause in the verdict": (_unsigned(TEST_RESULT, _verdict(cause="better")), "no verdict"),
    "the SBOM of another image": (_swap(SBOM), "no SBOM"),
    "the provenance of another image": (_swap(PROVENANCE), "no provenance"),
    "the verdict of another image": (_swap(TEST_RESULT), "no verdict"),
    "the signature of another image": (_swap(SIGNATURE), "no signature"),
    "an attestation that is attached to another image": (_list_anothers, "no SBOM"),
    "all signed by another": (_all_by_another, "no signature"),
    "another predicate type": (_signed(lambda plain: plain.update(predicateType="https://x/v1")), "no verdict"),
    "the signature taken away": (lambda enemy, _: enemy.remove(SIGNATURE), "no signature"),
    "the SBOM taken away": (lambda enemy, _: enemy.remove(SBOM), "no SBOM"),
    "the provenance taken away": (lambda enemy, _: enemy.remove(PROVENANCE), "no provenance"),
    "the verdict taken away": (lambda enemy, _: enemy.remove(TEST_RESULT), "no verdict"),
    "a newer bad verdict beside an old good one": (_newer_and_bad, "its verdict is bad: found later"),
    "a verdict from the future": (_signed(_verdict(finished="2999-01-01T00:00:00+00:00")), "in the future"),
    "a verdict on another image of the same recipe": (
        _signed(_verdict(image_id=f"sha256:{'1' * 64}")),
        "its verdict is on another image",
    ),
    "a verdict on another lock": (_signed(_verdict(lock_digest="1" * 64)), "its verdict is on another lock"),
    "a verdict on another recipe": (_signed(_verdict(recipe="other")), "its verdict is on another recipe"),
    "a verdict that does not follow from its checks": (_signed(_verdict(required=["gpu-decode"])), "holds no verdict"),
    "an SBOM on another lock": (
        _signed(lambda plain: plain["predicate"]["metadata"]["component"]["properties"][0].update(value="x"), SBOM),
        "its SBOM is on another lock",
    ),
    "an index in the place of the image": (_index, "it is no single image"),
    "an alias that names an image without proof": (_move_alias, "no signature"),
    "a layer of another type": (_foreign_layer, "has a layer of the type application/vnd.enemy.layer"),
    "another payload type": (
        _wrap(lambda bundle: bundle["dsseEnvelope"].update(payloadType="application/json")),
        "no verdict",
    ),
    "a second subject": (
        _signed(lambda plain: plain["subject"].append({"name": "x", "digest": {"sha256": "1" * 64}})),
        "no verdict",
    ),
    "a second signature": (
        _wrap(lambda bundle: bundle["dsseEnvelope"]["signatures"].append({"keyid": "", "sig": "AA=="})),
        "no verdict",
    ),
    "no signature in the envelope": (_wrap(lambda bundle: bundle["dsseEnvelope"]["signatures"].clear()), "no verdict"),
    "a signature over the payload alone": (_sign_the_payload_alone, "no verdict"),
    "another kind of bundle": (_wrap(lambda bundle: bundle.update(mediaType="application/x")), "no verdict"),
    "a bundle that is no JSON": (lambda enemy, _: enemy.replace(TEST_RESULT, b"\xff{"), "no verdict"),
    "a bundle of a million brackets": (lambda enemy, _: enemy.replace(TEST_RESULT, b"[" * 1_000_000), "no verdict"),
}


@pytest.fixture
def storage(data: Path) -> Iterator[Path]:
    """The registry's storage; what is changed in it is put back, since other tests share its blobs."""
    kept = {path: path.read_bytes() for path in (data / "data").rglob("data") if path.is_file()}
    yield data
    for path, content in kept.items():
        if path.read_bytes() != content:
            path.write_bytes(content)


@pytest.mark.parametrize("signer", ["key", "identity"], indirect=True)
@pytest.mark.parametrize("name", TAMPERINGS)
def test_an_image_is_refused_after(name: str, enemy: Enemy, storage: Path) -> None:
    tamper, sentence = TAMPERINGS[name]
    assert examined(enemy).result == "verified"
    tamper(enemy, storage)
    try:
        report = examined(enemy)
    except RegistryError as error:  # the registry itself does not give it any more
        said: tuple[str, ...] = (error.message,)
    else:
        assert report.result == ("bad" if "bad verdict" in name else "refused")
        said = (*report.reasons, *report.remarks)
    assert any(re.search(sentence, line) for line in said), said
