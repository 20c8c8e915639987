"""An identity in the place of a key: what proves it, what does not, and where its token comes from."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import webbrowser
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from urllib.request import urlopen

import pytest
from cryptography.x509.oid import ExtendedKeyUsageOID
from sigstore.models import ClientTrustConfig
from sigstore.oidc import IdentityToken

from builder.cli import run
from builder.document import canonical_json
from builder.errors import InvalidDocumentError, RegistryError, UsageError
from builder.publish.envelope import UnprovenError
from builder.publish.gate import proven_image
from builder.publish.identity import Identity
from builder.publish.keyless import KeylessSigner, given_token, open_keyless
from builder.publish.naming import fixed_tag
from builder.publish.proof import KeyProof
from builder.publish.statements import Statement
from builder.publish.trust import load_trust_config, load_verifier
from builder.recipe.workspace import workspace_of
from builder.registry.content import OCI_INDEX
from builder.verify.verdict import Check
from tests.fake_registry import FakeRegistry, Fault
from tests.fake_registry import running as running_registry
from tests.publication import new_signer, prove, proven_project
from tests.sigstore_standin import GITHUB, WORKFLOW, Authority, Sigstore, identity_token, running

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.sigstore_standin import Services
    from tests.workshop import Project

STATEMENT = Statement(name="x", digest=f"sha256:{'1' * 64}", kind="https://x/v1", predicate={}).to_bytes()
OTHER = STATEMENT.replace(b"x/v1", b"x/v2")
SIGSTORE = Sigstore()
PROOF = SIGSTORE.proof()


@pytest.fixture
def services() -> Iterator[Services]:
    with running(SIGSTORE) as services:
        yield services


def config(services: Services, *, rekor: int = 1) -> ClientTrustConfig:
    return ClientTrustConfig.from_json(json.dumps(SIGSTORE.trust_config(services.address, rekor=rekor)))


def bundle(change: Callable[[dict[str, Any]], object] = lambda _: None, **how: Any) -> dict[str, Any]:
    plain = SIGSTORE.bundle(STATEMENT, **how)
    change(plain)
    return plain


def entry(plain: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = plain["verificationMaterial"]["tlogEntries"][0]
    return found


# what an identity proves


def test_what_an_identity_signed_is_proven_by_it() -> None:
    for how in ({}, {"issuer": None, "old_issuer": GITHUB}, {"late": timedelta(minutes=10)}):
        assert PROOF.payload_of(canonical_json(bundle(**how))) == STATEMENT
    person = SIGSTORE.proof("someone@example.org", "https://accounts.example")
    signed = bundle(identity="someone@example.org", issuer="https://accounts.example")
    assert person.payload_of(canonical_json(signed)) == STATEMENT


def test_a_bundle_of_a_key_is_of_no_identity_and_a_bundle_of_an_identity_of_no_key() -> None:
    signer = new_signer()
    with pytest.raises(UnprovenError, match="holds no certificate, so no identity signed it"):
        PROOF.payload_of(signer.sign(STATEMENT))
    with pytest.raises(UnprovenError, match="is not signed by this key"):
        signer.proof.payload_of(canonical_json(bundle()))
    assert KeyProof(signer.key.public).payload_of(signer.sign(STATEMENT)) == STATEMENT


OF_ANOTHER_CA = Sigstore(authority=Authority(log_key=SIGSTORE.authority.log_key), log=SIGSTORE.log)
IN_ANOTHER_CERTIFICATE_LOG = Sigstore(
    authority=Authority(root_key=SIGSTORE.authority.root_key, key=SIGSTORE.authority.key), log=SIGSTORE.log
)
IN_ANOTHER_LOG = Sigstore(authority=SIGSTORE.authority)
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "another identity": (bundle(identity="someone@example.org"), "signed by another identity, someone@example.org"),
    "another branch of the workflow": (bundle(identity=WORKFLOW.replace("main", "x")), "another identity, .*heads/x"),
    "an identity that writes on the terminal": (
        bundle(identity="https://x.example/\x1b[2J\nverified" + "!" * 400),
        r"^is signed by another identity, https://x.example/ \[2J verified!{269}$",
    ),
    "an issuer that writes on the terminal": (
        bundle(issuer="https://x.example/\x1b[2J\nverified"),
        r"^is signed by an identity of another issuer, https://x.example/ \[2J verified$",
    ),
    "another issuer": (bundle(issuer="https://x.example"), "an identity of another issuer, https://x.example"),
    "another issuer behind the old field": (
        bundle(issuer="https://x.example", old_issuer=GITHUB),
        "an identity of another issuer, https://x.example",
    ),
    "no issuer": (bundle(issuer=None), "a certificate that names no identity and issuer"),
    "two identities": (bundle(more="https://x.example"), "does not name exactly one identity"),
    "a certificate that had expired": (bundle(late=timedelta(minutes=11)), "did not hold when it entered the log"),
    "a certificate of the future": (bundle(late=-timedelta(minutes=1)), "did not hold when it entered the log"),
    "another authority": (OF_ANOTHER_CA.bundle(STATEMENT), "a certificate of an authority that is not trusted"),
    "another log of certificates": (IN_ANOTHER_CERTIFICATE_LOG.bundle(STATEMENT), "in no trusted log of certificates"),
    "a certificate in no log": (bundle(logged=False), "in no trusted log of certificates"),
    "a certificate for something else": (
        bundle(usage=ExtendedKeyUsageOID.CLIENT_AUTH),
        "is not proven by sigstore: .*code signing",
    ),
    "another log": (IN_ANOTHER_LOG.bundle(STATEMENT), "holds a log entry that no trusted log proves"),
    "no log entry": (bundle(lambda b: b["verificationMaterial"]["tlogEntries"].clear()), "not in the log exactly once"),
    "two log entries": (
        bundle(lambda b: b["verificationMaterial"]["tlogEntries"].append(entry(b))),
        "not in the log exactly once",
    ),
    "the log entry of another statement": (
        bundle(lambda b: b["verificationMaterial"].update(tlogEntries=[entry(SIGSTORE.bundle(OTHER))])),
        "holds the log entry of another statement",
    ),
    "the log entry of another signature": (
        bundle(lambda b: b["verificationMaterial"].update(tlogEntries=[entry(bundle())])),
        "holds the log entry of another signature",
    ),
    "another time in the log": (
        bundle(lambda b: entry(b).update(integratedTime=str(int(entry(b)["integratedTime"]) + 1))),
        "holds a log entry that no trusted log proves",
    ),
    "no promise of the log": (
        bundle(lambda b: entry(b).pop("inclusionPromise")),
        "holds nothing that proves when it was signed",
    ),
    "no proof of the log": (bundle(lambda b: entry(b).pop("inclusionProof")), "is no bundle that can be read"),
    "half a proof of the log": (
        bundle(lambda b: entry(b)["inclusionProof"]["hashes"].pop()),
        "holds a log entry that no trusted log proves",
    ),
    "a root that the log never had": (
        bundle(lambda b: entry(b)["inclusionProof"].update(rootHash="AAAA")),
        "holds a log entry that no trusted log proves",
    ),
    "another statement": (
        bundle(lambda b: b["dsseEnvelope"].update(payload=SIGSTORE.bundle(OTHER)["dsseEnvelope"]["payload"])),
        "is not what its certificate's key has signed",
    ),
    "another certificate of the same identity": (
        bundle(lambda b: b["verificationMaterial"].update(certificate=bundle()["verificationMaterial"]["certificate"])),
        "is not what its certificate's key has signed",
    ),
    "a certificate that is none": (
        bundle(lambda b: b["verificationMaterial"].update(certificate={"rawBytes": "AAAA"})),
        "is not proven by sigstore: ",
    ),
    "no material": (bundle(lambda b: b.update(verificationMaterial=None)), "is no bundle that can be read"),
    "an older form": (bundle(lambda b: b.update(mediaType=f"{b['mediaType']}x")), "is no bundle of version 0.3"),
    "words for a terminal": (
        bundle(lambda b: entry(b)["kindVersion"].update(version="\x1b[2J verified")),
        "^is not proven by sigstore: .*got \\[2J verified$",
    ),
    "a signature without text": (
        bundle(lambda b: b["dsseEnvelope"]["signatures"][0].update(sig="")),
        "is not proven by sigstore: ",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_identity_proves_nothing_with(name: str) -> None:
    plain, sentence = REFUSED[name]
    with pytest.raises(UnprovenError, match=sentence):
        PROOF.payload_of(canonical_json(plain))


# roots


def test_the_roots_of_a_sigstore_are_read_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "root.json").write_text(json.dumps(SIGSTORE.trusted_root()))
    verifier = load_verifier(tmp_path / "root.json")
    kind, payload = verifier.verify_dsse(_parsed(bundle()), Identity(identity=WORKFLOW, issuer=GITHUB))
    assert (kind, payload) == ("application/vnd.in-toto+json", STATEMENT)


def _parsed(plain: dict[str, Any]) -> Any:
    from sigstore.models import Bundle

    return Bundle.from_json(canonical_json(plain))


@pytest.mark.parametrize("load", [load_verifier, load_trust_config])
def test_roots_that_cannot_be_read_are_named(load: Callable[[Path], object], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"none\.json cannot be read: No such file"):
        load(tmp_path / "none.json")
    for text in ("", "{}", json.dumps({**SIGSTORE.trusted_root(), "mediaType": "x"}), "\xff"):
        (tmp_path / "root.json").write_text(text, encoding="latin-1")
        with pytest.raises(InvalidDocumentError, match=r"root\.json is no (trusted_root|client trust)") as said:
            load(tmp_path / "root.json")
        assert "\n" not in said.value.message
    nothing = {**SIGSTORE.trusted_root(), "certificateAuthorities": []}
    (tmp_path / "root.json").write_text(json.dumps(nothing))
    with pytest.raises(InvalidDocumentError):
        load(tmp_path / "root.json")


def test_roots_that_nobody_gives_are_a_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("sigstore._internal.tuf.DEFAULT_TUF_URL", "http://127.0.0.1:9")
    monkeypatch.setattr("sigstore.models.DEFAULT_TUF_URL", "http://127.0.0.1:9")
    with pytest.raises(RegistryError, match="the roots of the public sigstore cannot be fetched") as caught:
        load_verifier(None)
    assert "--trust-root" in caught.value.remedy


def test_without_the_extra_one_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sigstore", None)
    for load in (load_verifier, load_trust_config):
        with pytest.raises(UsageError, match="need an extra") as caught:
            load(None)
        assert caught.value.remedy == "pip install 'envbuild[keyless]'"


def test_nothing_of_sigstore_is_read_where_no_identity_is_asked_for() -> None:
    line = (
        "from builder.cli import run; import sys; "
        "code = run(['verify', 'reg.example/a:1', '--key', 'env:NONE']); print(code, 'sigstore' in sys.modules)"
    )
    ended = subprocess.run([sys.executable, "-c", line], capture_output=True, text=True, check=True)
    assert ended.stdout == "2 False\n", ended.stderr


# tokens


def test_a_signer_gets_a_certificate_and_signs(services: Services) -> None:
    signer = KeylessSigner(config=config(services), environment={}, token=IdentityToken(identity_token()))
    assert services.asked == []
    assert signer.proof.signer == Identity(identity=WORKFLOW, issuer=GITHUB)
    assert services.asked == ["/api/v2/signingCert"]
    assert signer.proof.payload_of(signer.sign(STATEMENT)) == STATEMENT
    assert PROOF.payload_of(signer.sign(OTHER)) == OTHER
    assert services.asked == ["/api/v2/signingCert", *["/api/v1/log/entries"] * 2]


def test_a_log_without_a_time_of_its_own_is_believed_with_a_time_stamp(services: Services) -> None:
    signer = KeylessSigner(config=config(services, rekor=2), environment={}, token=IdentityToken(identity_token()))
    signed = signer.sign(STATEMENT)
    assert services.asked == ["/api/v2/signingCert", "/api/v1/timestamp", "/api/v2/log/entries"]
    assert PROOF.payload_of(signed) == STATEMENT
    plain, other = json.loads(signed), json.loads(signer.sign(OTHER))
    for name, sentence in (
        ("timestampVerificationData", "holds nothing that proves when it was signed"),
        ("tlogEntries", "holds the log entry of another signature"),
    ):
        changed = {**plain["verificationMaterial"], name: other["verificationMaterial"][name]}
        with pytest.raises(UnprovenError, match=sentence):
            PROOF.payload_of(canonical_json({**plain, "verificationMaterial": changed}))


def test_a_token_that_ended_meanwhile_is_renewed(services: Services) -> None:
    ended = IdentityToken(identity_token("someone@example.org"))
    ended._exp = 0
    signer = KeylessSigner(config=config(services), environment={"SIGSTORE_ID_TOKEN": identity_token()}, token=ended)
    assert signer.proof.signer.identity == WORKFLOW
    signer = KeylessSigner(config=config(services), environment={"SIGSTORE_ID_TOKEN": "ended"}, token=ended)
    with pytest.raises(UsageError, match="SIGSTORE_ID_TOKEN gives no identity token"):
        signer.sign(STATEMENT)


def test_what_sigstore_refuses_is_told_without_the_token(services: Services) -> None:
    token = identity_token()
    signer = KeylessSigner(config=config(services), environment={}, token=IdentityToken(token))
    services.refuses = True
    with pytest.raises(RegistryError, match=r"sigstore does not sign: 400 .*refused Bearer … for") as caught:
        signer.sign(STATEMENT)
    said = f"{caught.value.message} {caught.value.remedy} {caught.value.__cause__} {signer!r}"
    assert token not in said
    assert "s3cret" not in said
    assert caught.value.__suppress_context__


def test_a_sigstore_that_is_not_there_is_told(services: Services) -> None:
    away = ClientTrustConfig.from_json(json.dumps(SIGSTORE.trust_config("http://127.0.0.1:9")))
    signer = KeylessSigner(config=away, environment={}, token=IdentityToken(identity_token()))
    with pytest.raises(RegistryError, match=r"sigstore does not give a certificate: .*refused"):
        _ = signer.proof


def test_github_gives_a_job_its_token(services: Services, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    with pytest.raises(UsageError, match=r"this machine gives no identity token: .*ACTIONS_ID_TOKEN_REQUEST") as caught:
        given_token({})
    assert "`id-token: write`" in caught.value.remedy
    monkeypatch.setenv("ACTIONS_ID_TOKEN_REQUEST_TOKEN", "of-the-job")
    monkeypatch.setenv("ACTIONS_ID_TOKEN_REQUEST_URL", f"{services.address}/token?version=1")
    (tmp_path / "config.json").write_text(json.dumps(SIGSTORE.trust_config(services.address)))
    signer = open_keyless(tmp_path / "config.json", {})
    assert PROOF.payload_of(signer.sign(STATEMENT)) == STATEMENT
    monkeypatch.setenv("ACTIONS_ID_TOKEN_REQUEST_TOKEN", "s3cret-of-another")
    with pytest.raises(UsageError, match="OIDC token request failed") as caught:
        given_token({})
    assert "s3cret" not in f"{caught.value.message} {caught.value.__cause__}"


@pytest.mark.parametrize(
    "token", ["s3cret", "s3cret.s3cret.s3cret", identity_token(seconds=-60)], ids=["text", "dots", "ended"]
)
def test_a_token_that_is_none_is_named_and_never_shown(token: str) -> None:
    with pytest.raises(UsageError, match="SIGSTORE_ID_TOKEN gives no identity token") as caught:
        given_token({"SIGSTORE_ID_TOKEN": token})
    assert token not in f"{caught.value.message} {caught.value.remedy} {caught.value.__cause__}"


def test_without_token_and_terminal_a_sentence_says_how_to_get_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
    monkeypatch.setattr("sys.stdin.isatty", lambda: False, raising=False)
    with pytest.raises(UsageError, match="nothing here says who signs") as caught:
        given_token({})
    assert "SIGSTORE_ID_TOKEN" in caught.value.remedy


@pytest.fixture
def logins(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The logins that a browser shows to a person at a terminal, who logs in."""
    shown: list[str] = []

    def look(address: str) -> bool:
        shown.append(address)
        threading.Thread(target=lambda: urlopen(address, timeout=20).close(), daemon=True).start()
        return True

    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
    monkeypatch.delenv("SIGSTORE_ID_TOKEN", raising=False)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr(webbrowser, "open", look)
    return shown


# the library leaves the socket open at which it waits for the browser
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_at_a_terminal_a_browser_asks_once_who_signs_when_something_is_signed(
    services: Services, logins: list[str], tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(SIGSTORE.trust_config(services.address)))
    signer = open_keyless(tmp_path / "config.json", {})
    assert (logins, services.asked) == ([], [])
    assert signer.proof.signer == Identity(identity=WORKFLOW, issuer=GITHUB)
    assert signer.proof.payload_of(signer.sign(STATEMENT)) == STATEMENT
    assert len(logins) == 1


def unproven(project: Project, _: FakeRegistry) -> None:
    workspace_of(project.source).verdict.unlink()


def bad(project: Project, _: FakeRegistry) -> None:
    failed = Check(name="static.installed", level="static", outcome="failed", summary="a file is missing")
    prove(project, result="bad", checks=(failed,))


def taken(project: Project, registry: FakeRegistry) -> None:
    tag = fixed_tag(proven_image(project.source, project.store))
    registry.manifests["a/b"] = {tag: (OCI_INDEX, b"{}")}


def closed(_: Project, registry: FakeRegistry) -> None:
    registry.faults.append(Fault(method="POST", path="/v2/a/b/blobs/uploads", status=403, times=99))


REFUSALS: dict[str, tuple[Callable[[Project, FakeRegistry], None], int]] = {
    "was never proven": (unproven, 10),
    "its verdict is bad": (bad, 10),
    "this tag never moves": (taken, 10),
    "403": (closed, 11),
}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    made = proven_project(tmp_path)
    monkeypatch.setenv("ENVBUILD_STORE", str(made.store.root))
    return made


@pytest.mark.parametrize("sentence", REFUSALS)
def test_nobody_is_asked_to_log_in_for_what_is_not_published(
    sentence: str, project: Project, services: Services, logins: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    refused, code = REFUSALS[sentence]
    config = project.root / "config.json"
    config.write_text(json.dumps(SIGSTORE.trust_config(services.address)))
    with running_registry(FakeRegistry()) as registry:
        refused(project, registry)
        options = ["--to", f"{registry.host}/a/b", "--keyless", "--trust-config", str(config)]
        assert run(["publish", str(project.source.path), *options]) == code
    assert sentence in capsys.readouterr().err
    assert logins == []
