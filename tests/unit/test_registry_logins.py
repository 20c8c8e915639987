"""Logins: Docker's configuration and helpers, basic and token registries; and no secret where a person could see it."""

from __future__ import annotations

import base64
import json
import logging
import stat
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from builder.download import Patience
from builder.errors import InvalidDocumentError, RegistryError, UsageError
from builder.registry.client import RegistryClient
from builder.registry.content import OCI_MANIFEST, Descriptor, Payload
from builder.registry.credentials import Credential, find_credential
from builder.registry.reference import Repository
from builder.registry.tokens import parse_challenges
from builder.settings import settings_from
from builder.store import Store
from tests.fake_registry import Account, FakeRegistry, Fault, running

if TYPE_CHECKING:
    from pathlib import Path

HASTY = Patience(attempts=2, pause=0.0, silence=5.0, parallel=4)
HELPER = """#!/bin/sh
[ "$1" = get ] || exit 3
read -r server || :
case "$server" in
good.example) printf '{"ServerURL":"%s","Username":"me","Secret":"s3cret-pass"}' "$server" ;;
token.example) printf '{"ServerURL":"%s","Username":"<token>","Secret":"s3cret-identity"}' "$server" ;;
broken.example) echo s3cret-noise; exit 1 ;;
junk.example) echo s3cret-noise ;;
*) echo "credentials not found in native keychain"; exit 1 ;;
esac
"""


def write_config(folder: Path, config: dict[str, Any]) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def encoded(user: str, password: str) -> str:
    return base64.b64encode(f"{user}:{password}".encode()).decode()


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return tmp_path / "docker"


@pytest.fixture
def helper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "bin" / "docker-credential-fake"
    program.parent.mkdir()
    program.write_text(HELPER)
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")


# configuration


def test_without_a_configuration_the_user_is_anonymous(config: Path) -> None:
    assert find_credential("registry.example", config) is None
    write_config(config, {"auths": {"other.example": {"auth": encoded("a", "b")}, "registry.example": {}}})
    assert find_credential("registry.example", config) is None


@pytest.mark.parametrize(
    "name", ["registry.example:5000", "https://registry.example:5000/v1/", "http://registry.example:5000"]
)
def test_a_login_is_found_under_each_spelling_of_its_registry(name: str, config: Path) -> None:
    write_config(config, {"auths": {name: {"auth": encoded("me", "s3cret:with:colons")}}})
    assert find_credential("registry.example:5000", config) == Credential(user="me", password="s3cret:with:colons")
    assert find_credential("registry.example", config) is None


def test_the_login_of_the_hub_is_found_under_its_old_name(config: Path) -> None:
    write_config(config, {"auths": {"https://index.docker.io/v1/": {"auth": encoded("me", "s3cret")}}})
    assert find_credential("docker.io", config) == Credential(user="me", password="s3cret")


def test_an_identity_token_is_read(config: Path) -> None:
    write_config(config, {"auths": {"a.example": {"auth": encoded("me", ""), "identitytoken": "s3cret"}}})
    assert find_credential("a.example", config) == Credential(user="me", identity_token="s3cret")


@pytest.mark.usefixtures("helper")
def test_a_helper_of_the_registry_comes_before_the_store_and_the_file(config: Path) -> None:
    auths = {"good.example": {"auth": encoded("file", "file")}, "other.example": {"auth": encoded("file", "file")}}
    write_config(config, {"credHelpers": {"good.example": "fake"}, "credsStore": "missing", "auths": auths})
    assert find_credential("good.example", config) == Credential(user="me", password="s3cret-pass")
    write_config(config, {"credsStore": "fake", "auths": auths})
    assert find_credential("good.example", config) == Credential(user="me", password="s3cret-pass")
    assert find_credential("other.example", config) == Credential(user="file", password="file")
    found = find_credential("token.example", config)
    assert found is not None
    assert found.identity_token == "s3cret-identity"


@pytest.mark.usefixtures("helper")
@pytest.mark.parametrize("registry", ["broken.example", "junk.example"])
def test_a_helper_that_fails_is_named_and_what_it_printed_is_not(registry: str, config: Path) -> None:
    write_config(config, {"credsStore": "fake"})
    with pytest.raises(RegistryError, match=f"docker-credential-fake failed with exit code . for {registry}") as caught:
        find_credential(registry, config)
    assert "s3cret" not in caught.value.message + "".join(caught.value.evidence)
    assert caught.value.remedy == f"run `docker login {registry}` again"


def test_a_helper_that_is_not_installed_is_named(config: Path) -> None:
    write_config(config, {"credsStore": "nowhere"})
    with pytest.raises(RegistryError, match="docker-credential-nowhere, which is not installed"):
        find_credential("a.example", config)


@pytest.mark.parametrize("text", ["s3cret no json", '["s3cret"]', '{"auths": ["s3cret"]}'])
def test_a_configuration_that_is_none_is_named_and_not_shown(text: str, config: Path) -> None:
    write_config(config, {})
    (config / "config.json").write_text(text)
    with pytest.raises(InvalidDocumentError, match=r"config\.json is not a Docker configuration") as caught:
        find_credential("a.example", config)
    assert "s3cret" not in caught.value.message


def test_a_configuration_that_cannot_be_read_is_named_with_the_remedy(config: Path) -> None:
    (config / "config.json").mkdir(parents=True)
    with pytest.raises(UsageError, match=r"config\.json cannot be read: Is a directory") as caught:
        find_credential("a.example", config)
    assert "DOCKER_CONFIG" in caught.value.remedy


def test_a_damaged_login_is_named_and_not_shown(config: Path) -> None:
    write_config(config, {"auths": {"a.example": {"auth": "s3cret!"}}})
    with pytest.raises(InvalidDocumentError, match=r"damaged login for a\.example") as caught:
        find_credential("a.example", config)
    assert "s3cret" not in caught.value.message


def test_a_credential_does_not_show_its_secrets() -> None:
    shown = repr(Credential(user="me", password="s3cret-pass", identity_token="s3cret-identity"))
    assert "me" in shown
    assert "s3cret" not in shown


# challenges


@pytest.mark.parametrize(
    ("header", "found"),
    [
        ('Basic realm="a b"', {"basic": {"realm": "a b"}}),
        (
            'Bearer realm="https://auth.example/token",service="reg",scope="repository:a/b:pull,push"',
            {"bearer": {"realm": "https://auth.example/token", "service": "reg", "scope": "repository:a/b:pull,push"}},
        ),
        (
            'Negotiate, bearer Realm = "x\\"y" , error=invalid',
            {"negotiate": {}, "bearer": {"realm": 'x"y', "error": "invalid"}},
        ),
        ('Basic realm="r", Bearer realm="t"', {"basic": {"realm": "r"}, "bearer": {"realm": "t"}}),
        ("", {}),
    ],
)
def test_challenges_are_read(header: str, found: dict[str, dict[str, str]]) -> None:
    assert parse_challenges(header) == found


# registries


def push_something(registry: FakeRegistry, config: Path, text: bytes = b"blob") -> RegistryClient:
    with RegistryClient(settings_from({"DOCKER_CONFIG": str(config)}), patience=HASTY) as client:
        client.push_blob(Repository(registry=registry.host, name="a/b"), Payload.of(text))
    return client


def log_in(registry: FakeRegistry, config: Path, **entry: str) -> None:
    assert registry.account is not None
    entry = entry or {"auth": encoded(registry.account.user, registry.account.password)}
    write_config(config, {"auths": {registry.host: entry}})


@pytest.mark.parametrize("scheme", ["basic", "bearer"])
def test_a_login_opens_a_registry(scheme: str, config: Path) -> None:
    with running(FakeRegistry(account=Account(scheme=scheme))) as registry:  # type: ignore[arg-type]
        log_in(registry, config)
        push_something(registry, config)
        assert registry.blobs["a/b"] == {Payload.of(b"blob").digest: b"blob"}


def test_a_token_is_asked_for_once_for_what_it_is_for(config: Path) -> None:
    with running(FakeRegistry(account=Account(scheme="bearer"))) as registry:
        log_in(registry, config)
        repository = Repository(registry=registry.host, name="a/b")
        with RegistryClient(settings_from({"DOCKER_CONFIG": str(config)}), patience=HASTY) as client:
            for text in (b"one", b"two", b"three"):
                client.push_blob(repository, Payload.of(text))
            client.find(repository.at("1"))
            client.find(repository.at("2"))
        scopes = [form["scope"] for form in registry.token_requests]
        assert scopes == [["repository:a/b:pull,push"], ["repository:a/b:pull"]]
        assert [form["service"] for form in registry.token_requests] == [["fake"], ["fake"]]


def test_threads_share_one_token(config: Path) -> None:
    with running(FakeRegistry(account=Account(scheme="bearer"))) as registry:
        log_in(registry, config)
        repository = Repository(registry=registry.host, name="a/b")
        with (
            RegistryClient(settings_from({"DOCKER_CONFIG": str(config)}), patience=HASTY) as client,
            ThreadPoolExecutor(8) as pool,
        ):
            assert list(pool.map(lambda tag: client.find(repository.at(tag)), "abcdefgh")) == [None] * 8
        assert len(registry.token_requests) == 1


def test_a_token_that_expires_in_the_middle_is_renewed(config: Path) -> None:
    with running(FakeRegistry(account=Account(scheme="bearer", uses=2))) as registry:
        log_in(registry, config)
        push_something(registry, config)
        assert len(registry.token_requests) == 2
        assert Payload.of(b"blob").digest in registry.blobs["a/b"]


def test_a_token_past_its_life_is_not_sent(config: Path) -> None:
    with running(FakeRegistry(account=Account(scheme="bearer", life=-1))) as registry:
        log_in(registry, config)
        with pytest.raises(RegistryError, match="HTTP 401"):
            push_something(registry, config)


def test_a_mount_asks_for_the_right_to_read_the_source(config: Path) -> None:
    with running(FakeRegistry(account=Account(scheme="bearer"))) as registry:
        log_in(registry, config)
        registry.add_blob("c/d", b"blob")
        with RegistryClient(settings_from({"DOCKER_CONFIG": str(config)}), patience=HASTY) as client:
            source = Repository(registry=registry.host, name="c/d")
            target = Repository(registry=registry.host, name="a/b")
            assert client.push_blob(target, Payload.of(b"blob"), sources=[source]) == 0
        assert ["repository:a/b:pull,push", "repository:c/d:pull"] in [
            form["scope"] for form in registry.token_requests
        ]


def test_an_identity_token_is_exchanged(config: Path) -> None:
    with running(FakeRegistry(account=Account(scheme="bearer"))) as registry:
        log_in(registry, config, auth=encoded("me", ""), identitytoken="s3cret-identity")
        push_something(registry, config)
        [form] = registry.token_requests
        assert form["grant_type"] == ["refresh_token"]
        assert not registry.asked("s3cret-identity"), "the identity token is in no URL"


def test_the_service_of_tokens_is_asked_again_after_a_fault(config: Path) -> None:
    with running(FakeRegistry(account=Account(scheme="bearer"))) as registry:
        log_in(registry, config)
        registry.faults.append(Fault(method="GET", path="/token", status=503))
        push_something(registry, config)
        assert len(registry.asked("/token")) == 2


@pytest.mark.parametrize("scheme", ["basic", "bearer"])
def test_a_wrong_password_is_refused_without_showing_it(scheme: str, config: Path) -> None:
    with running(FakeRegistry(account=Account(scheme=scheme))) as registry:  # type: ignore[arg-type]
        log_in(registry, config, auth=encoded("someone", "s3cret-wrong"))
        with pytest.raises(RegistryError, match="HTTP 401") as caught:
            push_something(registry, config)
        assert "docker login" in caught.value.remedy or "log in" in caught.value.remedy
        assert "s3cret" not in str(caught.value) + caught.value.remedy


@pytest.mark.parametrize("scheme", ["basic", "bearer"])
def test_who_has_no_login_is_told_how_to_log_in(scheme: str, config: Path) -> None:
    with running(FakeRegistry(account=Account(scheme=scheme))) as registry:  # type: ignore[arg-type]
        with pytest.raises(RegistryError, match="HTTP 401") as caught:
            push_something(registry, config)
        assert f"docker login {registry.host}" in caught.value.remedy


@pytest.mark.parametrize("body", ["", "[]", "{}", "no json"])
def test_a_service_that_gives_no_token_is_named(body: str, config: Path) -> None:
    with running(FakeRegistry(account=Account(scheme="bearer"))) as registry:
        log_in(registry, config)
        registry.faults.append(Fault(method="GET", path="/token", status=200, body=body))
        with pytest.raises(RegistryError, match="answered without a token"):
            push_something(registry, config)


@pytest.mark.parametrize(
    ("challenge", "said"),
    [('Bearer service="x"', "does not say where"), ('Bearer realm="http://a.example/t"', "not encrypted")],
)
def test_a_challenge_that_leads_nowhere_safe_gets_no_login(challenge: str, said: str, config: Path) -> None:
    with running(FakeRegistry()) as registry:
        write_config(config, {"auths": {registry.host: {"auth": encoded("me", "s3cret")}}})
        headers = {"WWW-Authenticate": challenge}
        registry.faults.append(Fault(method="HEAD", path="blobs", status=401, headers=headers))
        with pytest.raises(RegistryError, match=said):
            push_something(registry, config)
        assert registry.authorizations == [None]


def test_a_registry_that_repeats_secrets_does_not_make_us_show_them(config: Path) -> None:
    with running(FakeRegistry(account=Account(scheme="bearer"))) as registry:
        log_in(registry, config)
        said = f"s3cret-pass s3cret-token-0 {encoded('someone', 's3cret-pass')} is not enough"
        body = json.dumps({"errors": [{"code": "DENIED", "message": said}]})
        registry.faults.append(Fault(method="POST", path="uploads", status=403, body=body))
        with pytest.raises(RegistryError, match=r"\*\*\* \*\*\* \*\*\* is not enough") as caught:
            push_something(registry, config)
        assert "s3cret" not in caught.value.message


def test_the_login_does_not_follow_a_redirect(config: Path, tmp_path: Path) -> None:
    digest = Payload.of(b"blob").digest
    with running(FakeRegistry(account=Account(scheme="basic"))) as registry, running(FakeRegistry()) as elsewhere:
        log_in(registry, config)
        elsewhere.add_blob("kept", b"blob")
        location = {"Location": f"http://{elsewhere.host}/v2/kept/blobs/{digest}"}
        registry.faults.append(Fault(method="GET", path="blobs", status=307, headers=location))
        with RegistryClient(settings_from({"DOCKER_CONFIG": str(config)}), patience=HASTY) as client:
            blob = Descriptor(media_type="a/b", digest=digest, size=4)
            client.fetch_blob(Repository(registry=registry.host, name="a/b"), blob, Store(tmp_path / "store"))
        assert elsewhere.authorizations == [None]
        assert registry.authorizations[-1] is not None


def test_the_netrc_file_is_not_a_login(config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login a password s3cret\n")
    (tmp_path / "netrc").chmod(0o600)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    with running(FakeRegistry()) as registry:
        push_something(registry, config)
        assert set(registry.authorizations) == {None}


def test_nothing_that_is_logged_or_shown_holds_a_secret(config: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with running(FakeRegistry(account=Account(scheme="bearer"))) as registry:
        log_in(registry, config)
        repository = Repository(registry=registry.host, name="a/b")
        with RegistryClient(settings_from({"DOCKER_CONFIG": str(config)}), patience=HASTY) as client:
            client.put_manifest(repository.at("1"), b"{}", OCI_MANIFEST)
            shown = caplog.text + repr(client) + repr(vars(client))
    assert f"{registry.host}" in caplog.text
    assert "s3cret" not in shown
    assert encoded("someone", "s3cret-pass") not in shown
