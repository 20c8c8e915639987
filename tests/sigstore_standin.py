"""A sigstore of the tests' own: an authority that certifies identities, a log of certificates, a log of signatures.

It answers as Fulcio and Rekor do, as Rekor of version 2 with a time stamping authority (openssl) besides, and can be
told to misbehave. Its roots are a trusted_root.json.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import struct
import subprocess
import tempfile
import threading
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cached_property
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from cryptography import x509
from cryptography.hazmat import asn1
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from sigstore.models import TrustedRoot
from sigstore.verify import Verifier
from sigstore_models.trustroot.v1 import TrustedRoot as PlainRoot

from builder.document import canonical_json
from builder.publish.envelope import BUNDLE_TYPE, seal
from builder.publish.identity import Identity, IdentityProof
from builder.publish.keys import LoadedKey

if TYPE_CHECKING:
    from collections.abc import Iterator

WORKFLOW = "https://github.com/team/stacks/.github/workflows/stacks.yml@refs/heads/main"
GITHUB = "https://token.actions.githubusercontent.com"
SCT_LIST = x509.ObjectIdentifier("1.3.6.1.4.1.11129.2.4.2")
SHA256 = ec.ECDSA(hashes.SHA256())
BEGAN = datetime(2026, 1, 1, tzinfo=UTC)
CERTIFIED = timedelta(minutes=10)  # how long Fulcio's certificates hold
ORIGIN = "log.tests"


def new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def der(key: ec.EllipticCurvePublicKey) -> bytes:
    return key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def identity_token(identity: str = WORKFLOW, issuer: str = GITHUB, *, seconds: int = 300) -> str:
    """A token as GitHub's: the subject is not what the certificate will name."""
    now = int(time.time())
    claims = {"iss": issuer, "sub": "repo:team/stacks:ref:refs/heads/main", "aud": "sigstore", "names": identity}
    parts = [{"alg": "RS256", "typ": "JWT"}, {**claims, "iat": now, "nbf": now, "exp": now + seconds}]
    encoded = [base64.urlsafe_b64encode(canonical_json(part)).decode().rstrip("=") for part in parts]
    return ".".join([*encoded, "s3cret-signature"])


@dataclass
class Authority:
    """Certifies identities, as Fulcio does: a root, and an intermediate that signs."""

    root_key: ec.EllipticCurvePrivateKey = field(default_factory=new_key)
    key: ec.EllipticCurvePrivateKey = field(default_factory=new_key)
    log_key: ec.EllipticCurvePrivateKey = field(default_factory=new_key)

    @cached_property
    def chain(self) -> tuple[x509.Certificate, x509.Certificate]:
        """The intermediate and the root."""
        root, name = _name("root"), _name("intermediate")
        of_root = _ca(root, root, self.root_key.public_key(), self.root_key.public_key())
        of_intermediate = _ca(name, root, self.key.public_key(), self.root_key.public_key())
        return of_intermediate.sign(self.root_key, hashes.SHA256()), of_root.sign(self.root_key, hashes.SHA256())

    def certify(
        self,
        key: ec.EllipticCurvePublicKey,
        identity: str,
        issuer: str | None,
        at: datetime,
        *,
        old_issuer: str | None = None,
        logged: bool = True,
        usage: x509.ObjectIdentifier = ExtendedKeyUsageOID.CODE_SIGNING,
        more: str | None = None,
    ) -> x509.Certificate:
        """Return the certificate of an identity (and `more`), which is in the log of certificates if it is `logged`."""
        names = [_subject(one) for one in (identity, more) if one is not None]
        builder = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([]))
            .issuer_name(self.chain[0].subject)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(at)
            .not_valid_after(at + CERTIFIED)
            .add_extension(_usage(signs=True), critical=True)
            .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()), critical=False)
            .add_extension(x509.SubjectAlternativeName(names), critical=True)
        )
        if issuer is not None:
            builder = builder.add_extension(_note(8, asn1.encode_der(issuer)), critical=False)
        if old_issuer is not None:
            builder = builder.add_extension(_note(1, old_issuer.encode()), critical=False)
        if logged:
            before = builder.sign(self.key, hashes.SHA256())
            listed = x509.UnrecognizedExtension(SCT_LIST, self._timestamps(before.tbs_certificate_bytes, at))
            builder = builder.add_extension(listed, critical=False)
        return builder.sign(self.key, hashes.SHA256())

    def _timestamps(self, certificate: bytes, at: datetime) -> bytes:
        """The log's promise to list a certificate (RFC 6962, section 3.2), as a certificate's extension."""
        milliseconds = int(at.timestamp() * 1000)
        issuer = hashlib.sha256(der(self.key.public_key())).digest()
        entry = issuer + len(certificate).to_bytes(3) + certificate
        said = struct.pack("!BBQH", 0, 0, milliseconds, 1) + entry + b"\0\0"
        signature = self.log_key.sign(said, SHA256)
        log = hashlib.sha256(der(self.log_key.public_key())).digest()
        one = struct.pack("!B32sQHBBH", 0, log, milliseconds, 0, 4, 3, len(signature)) + signature
        return asn1.encode_der(struct.pack("!HH", len(one) + 2, len(one)) + one)


def _subject(identity: str) -> x509.GeneralName:
    return x509.UniformResourceIdentifier(identity) if "://" in identity else x509.RFC822Name(identity)


def _name(text: str) -> x509.Name:
    organization = x509.NameAttribute(NameOID.ORGANIZATION_NAME, "tests")
    return x509.Name([organization, x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=signs,
        key_cert_sign=not signs,
        crl_sign=not signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _ca(
    name: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, by: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(BEGAN)
        .not_valid_after(BEGAN + timedelta(days=3650))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(by), critical=False)
    )


def _note(number: int, value: bytes) -> x509.UnrecognizedExtension:
    return x509.UnrecognizedExtension(x509.ObjectIdentifier(f"1.3.6.1.4.1.57264.1.{number}"), value)


@dataclass
class Log:
    """Remembers signatures in a Merkle tree (RFC 6962), as Rekor does."""

    key: ec.EllipticCurvePrivateKey = field(default_factory=new_key)
    leaves: list[bytes] = field(default_factory=lambda: [hashlib.sha256(bytes([1])).digest()])
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def identifier(self) -> bytes:
        return hashlib.sha256(der(self.key.public_key())).digest()

    def enter(self, envelope: dict[str, Any], certificate: bytes, at: datetime) -> dict[str, Any]:
        """Remember an envelope and the certificate (PEM) that proves it; return the entry as Rekor tells it."""
        payload = base64.b64decode(envelope["payload"])
        said = [{"signature": item["sig"], "verifier": text(certificate)} for item in envelope["signatures"]]
        body = canonical_json(
            {
                "apiVersion": "0.0.1",
                "kind": "dsse",
                "spec": {
                    "envelopeHash": _sha256(canonical_json(envelope)),
                    "payloadHash": _sha256(payload),
                    "signatures": said,
                },
            }
        )
        proof = self._remember(body)
        entry = {
            "body": text(body),
            "integratedTime": int(at.timestamp()),
            "logID": self.identifier.hex(),
            "logIndex": proof["logIndex"],
        }
        promise = text(self.key.sign(canonical_json(entry), SHA256))
        return {**entry, "verification": {"inclusionProof": proof, "signedEntryTimestamp": promise}}

    def enter_anew(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Remember a signature as version 2 does, which promises no time; return the entry as bundles tell it."""
        said = {"algorithm": "SHA2_256", "digest": asked["digest"]}
        spec = {"hashedRekordV002": {"data": said, "signature": asked["signature"]}}
        body = canonical_json({"apiVersion": "0.0.2", "kind": "hashedrekord", "spec": spec})
        proof = self._remember(body)
        return {
            "logIndex": str(proof["logIndex"]),
            "logId": {"keyId": text(self.identifier)},
            "kindVersion": {"kind": "hashedrekord", "version": "0.0.2"},
            "inclusionProof": _proof_in_bundle(proof),
            "canonicalizedBody": text(body),
        }

    def _remember(self, body: bytes) -> dict[str, Any]:
        """Add a leaf, and prove that it is there."""
        with self.lock:
            self.leaves.append(hashlib.sha256(b"\0" + body).digest())
            index, leaves = len(self.leaves) - 1, list(self.leaves)
        root = _root(leaves)
        return {
            "logIndex": index,
            "treeSize": len(leaves),
            "rootHash": root.hex(),
            "hashes": [part.hex() for part in _path(index, leaves)],
            "checkpoint": self._checkpoint(len(leaves), root),
        }

    def _checkpoint(self, size: int, root: bytes) -> str:
        note = f"{ORIGIN} - 1\n{size}\n{text(root)}\n"
        signature = self.key.sign(note.encode(), SHA256)
        return f"{note}\n— {ORIGIN} {text(self.identifier[:4] + signature)}\n"


def _sha256(data: bytes) -> dict[str, str]:
    return {"algorithm": "sha256", "value": hashlib.sha256(data).hexdigest()}


def _split(count: int) -> int:
    return 1 << (count - 1).bit_length() - 1


def _root(leaves: list[bytes]) -> bytes:
    if len(leaves) == 1:
        return leaves[0]
    half = _split(len(leaves))
    return hashlib.sha256(b"\1" + _root(leaves[:half]) + _root(leaves[half:])).digest()


def _path(index: int, leaves: list[bytes]) -> list[bytes]:
    if len(leaves) == 1:
        return []
    half = _split(len(leaves))
    if index < half:
        return [*_path(index, leaves[:half]), _root(leaves[half:])]
    return [*_path(index - half, leaves[half:]), _root(leaves[:half])]


STAMPS = """\
[tsa]
serial = {folder}/serial
default_policy = 1.2.3.4.1
signer_digest = sha256
digests = sha256
ess_cert_id_alg = sha256
"""


@dataclass
class Clock:
    """Says when it was shown a signature (RFC 3161), by openssl."""

    root_key: ec.EllipticCurvePrivateKey = field(default_factory=new_key)
    key: ec.EllipticCurvePrivateKey = field(default_factory=new_key)

    @cached_property
    def chain(self) -> tuple[x509.Certificate, x509.Certificate]:
        """The certificate that signs, and its root."""
        name, public = _name("clock"), self.root_key.public_key()
        root = _ca(name, name, public, public)
        leaf = (
            x509.CertificateBuilder()
            .subject_name(_name("clock now"))
            .issuer_name(name)
            .public_key(self.key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(BEGAN)
            .not_valid_after(BEGAN + timedelta(days=3650))
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs=True), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.TIME_STAMPING]), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self.key.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(public), critical=False)
        )
        return leaf.sign(self.root_key, hashes.SHA256()), root.sign(self.root_key, hashes.SHA256())

    def stamp(self, query: bytes) -> bytes:
        """Answer a request for the time."""
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            (folder / "query").write_bytes(query)
            (folder / "cnf").write_text(STAMPS.format(folder=folder))
            (folder / "cert").write_bytes(self.chain[0].public_bytes(Encoding.PEM))
            (folder / "key").write_bytes(self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
            line = "ts -reply -config cnf -section tsa -queryfile query -signer cert -inkey key -out answer"
            subprocess.run(["openssl", *line.split()], cwd=folder, check=True, capture_output=True)
            return (folder / "answer").read_bytes()


@dataclass
class Sigstore:
    """One sigstore."""

    authority: Authority = field(default_factory=Authority)
    log: Log = field(default_factory=Log)
    clock: Clock = field(default_factory=Clock)

    def trusted_root(self) -> dict[str, Any]:
        """Its roots, as `trusted_root.json` gives them."""
        return {
            "mediaType": "application/vnd.dev.sigstore.trustedroot+json;version=0.1",
            "tlogs": [_log("https://log.tests", self.log.key)],
            "certificateAuthorities": [_certifier("https://authority.tests", self.authority.chain)],
            "ctlogs": [_log("https://certificates.tests", self.authority.log_key)],
            "timestampAuthorities": [_certifier("https://clock.tests", self.clock.chain)],
        }

    def trust_config(self, address: str, *, rekor: int = 1) -> dict[str, Any]:
        """Its roots, and where its services answer; with Rekor of version 2 a clock is asked for the time."""
        service = {
            "url": address,
            "majorApiVersion": 1,
            "validFor": {"start": "2026-01-01T00:00:00Z"},
            "operator": "tests",
        }
        clocks = [{**service, "url": f"{address}/api/v1/timestamp"}] if rekor == 2 else []
        return {
            "mediaType": "application/vnd.dev.sigstore.clienttrustconfig.v0.1+json",
            "trustedRoot": self.trusted_root(),
            "signingConfig": {
                "mediaType": "application/vnd.dev.sigstore.signingconfig.v0.2+json",
                "caUrls": [service],
                "oidcUrls": [service],
                "rekorTlogUrls": [{**service, "majorApiVersion": rekor}],
                "rekorTlogConfig": {"selector": "ANY"},
                "tsaUrls": clocks,
                "tsaConfig": {"selector": "ANY"},
            },
        }

    def proof(self, identity: str = WORKFLOW, issuer: str = GITHUB) -> IdentityProof:
        root = TrustedRoot(PlainRoot.from_json(json.dumps(self.trusted_root())))
        signer = Identity(identity=identity, issuer=issuer)
        return IdentityProof(signer=signer, verifier=Verifier(trusted_root=root))

    def bundle(
        self,
        payload: bytes,
        identity: str = WORKFLOW,
        issuer: str | None = GITHUB,
        *,
        late: timedelta = timedelta(seconds=1),
        **certificate: Any,
    ) -> dict[str, Any]:
        """Sign a statement as sigstore's clients do; the entry comes into the log so `late` after the certificate."""
        key, at = new_key(), datetime.now(UTC).replace(microsecond=0) - timedelta(minutes=1)
        certified = self.authority.certify(key.public_key(), identity, issuer, at, **certificate)
        envelope = seal(payload, LoadedKey(key)).to_plain()
        entry = self.log.enter(envelope, certified.public_bytes(Encoding.PEM), at + late)
        return {
            "mediaType": BUNDLE_TYPE,
            "verificationMaterial": {
                "certificate": {"rawBytes": text(certified.public_bytes(Encoding.DER))},
                "tlogEntries": [_in_bundle(entry)],
            },
            "dsseEnvelope": envelope,
        }


def _certifier(address: str, chain: tuple[x509.Certificate, ...]) -> dict[str, Any]:
    return {
        "subject": {"organization": "tests", "commonName": "tests"},
        "uri": address,
        "certChain": {"certificates": [{"rawBytes": text(one.public_bytes(Encoding.DER))} for one in chain]},
        "validFor": {"start": "2026-01-01T00:00:00Z"},
    }


def _log(address: str, key: ec.EllipticCurvePrivateKey) -> dict[str, Any]:
    public = der(key.public_key())
    return {
        "baseUrl": address,
        "hashAlgorithm": "SHA2_256",
        "publicKey": {
            "rawBytes": text(public),
            "keyDetails": "PKIX_ECDSA_P256_SHA_256",
            "validFor": {"start": "2026-01-01T00:00:00Z"},
        },
        "logId": {"keyId": text(hashlib.sha256(public).digest())},
    }


def _in_bundle(entry: dict[str, Any]) -> dict[str, Any]:
    """An entry of the log as a bundle tells it."""
    verification = entry["verification"]
    return {
        "logIndex": str(entry["logIndex"]),
        "logId": {"keyId": text(bytes.fromhex(entry["logID"]))},
        "kindVersion": {"kind": "dsse", "version": "0.0.1"},
        "integratedTime": str(entry["integratedTime"]),
        "inclusionPromise": {"signedEntryTimestamp": verification["signedEntryTimestamp"]},
        "inclusionProof": _proof_in_bundle(verification["inclusionProof"]),
        "canonicalizedBody": entry["body"],
    }


def _proof_in_bundle(proof: dict[str, Any]) -> dict[str, Any]:
    return {
        "logIndex": str(proof["logIndex"]),
        "rootHash": text(bytes.fromhex(proof["rootHash"])),
        "treeSize": str(proof["treeSize"]),
        "hashes": [text(bytes.fromhex(part)) for part in proof["hashes"]],
        "checkpoint": {"envelope": proof["checkpoint"]},
    }


@dataclass
class StandinSigner:
    """Signs as an identity at a sigstore, without asking its services."""

    sigstore: Sigstore
    identity: str = WORKFLOW
    issuer: str = GITHUB

    @cached_property
    def proof(self) -> IdentityProof:
        return self.sigstore.proof(self.identity, self.issuer)

    def sign(self, payload: bytes) -> bytes:
        return canonical_json(self.sigstore.bundle(payload, self.identity, self.issuer))


@dataclass
class Services:
    """The services of a sigstore as they run; where one `refuses`, its answer repeats what it was asked with."""

    sigstore: Sigstore
    address: str
    refuses: bool = False
    asked: list[str] = field(default_factory=list)


class _Server(ThreadingHTTPServer):
    services: Services


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_GET(self) -> None:
        """Ask a person who they are, as an issuer does, and come back; or give a job its token, as GitHub does."""
        asked, address = urlsplit(self.path), self.server.services.address
        if asked.path == "/.well-known/openid-configuration":
            places = {"authorization_endpoint": f"{address}/login", "token_endpoint": f"{address}/code"}
            return self._answer(200, places)
        if asked.path == "/login":
            query = dict(parse_qsl(asked.query))
            back = urlencode({"code": "1", "state": query["state"]})
            return self._answer(302, {}, Location=f"{query['redirect_uri']}?{back}")
        if self.headers["Authorization"] != "bearer of-the-job":
            return self._answer(403, {})
        return self._answer(200, {"value": identity_token()})

    def do_POST(self) -> None:
        """Give a token for a login, a certificate for a token, the time, or an entry of the log."""
        body, services = self.rfile.read(int(self.headers["Content-Length"])), self.server.services
        if self.path == "/code":
            return self._answer(200, {"access_token": identity_token()})
        services.asked.append(self.path)
        if self.path == "/api/v1/timestamp":
            return self._answer(200, services.sigstore.clock.stamp(body))
        asked, bearer = json.loads(body), self.headers["Authorization"]
        if services.refuses:
            return self._answer(400, {"code": 3, "message": f"refused: {asked}"}, reason=f"refused {bearer}")
        now = datetime.now(UTC).replace(microsecond=0)
        if self.path == "/api/v2/signingCert":
            token = bearer.removeprefix("Bearer ")
            return self._answer(201, _certified(services.sigstore.authority, asked, token, now))
        if self.path == "/api/v2/log/entries":
            return self._answer(201, services.sigstore.log.enter_anew(asked["hashedRekordRequestV002"]))
        content = asked["spec"]["proposedContent"]
        [certificate] = content["verifiers"]
        entry = services.sigstore.log.enter(json.loads(content["envelope"]), base64.b64decode(certificate), now)
        return self._answer(201, {f"{entry['logIndex']:064x}": entry})

    def _answer(self, status: int, said: dict[str, Any] | bytes, reason: str | None = None, **headers: str) -> None:
        data = said if isinstance(said, bytes) else json.dumps(said).encode()
        self.send_response(status, reason)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None: ...


@contextlib.contextmanager
def running(sigstore: Sigstore) -> Iterator[Services]:
    """Run Fulcio and Rekor, GitHub's giver of tokens and an issuer that asks people, at one address."""
    with _Server(("127.0.0.1", 0), _Handler) as server:
        server.services = Services(sigstore, f"http://127.0.0.1:{server.server_address[1]}")
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.services
        server.shutdown()


def _certified(authority: Authority, asked: dict[str, Any], token: str, now: datetime) -> dict[str, Any]:
    """Answer a request for a certificate as Fulcio does, of the identity in the token."""
    request = x509.load_pem_x509_csr(base64.b64decode(asked["certificateSigningRequest"]))
    key = request.public_key()
    assert request.is_signature_valid
    assert isinstance(key, ec.EllipticCurvePublicKey)
    claims = json.loads(base64.urlsafe_b64decode(token.split(".")[1] + "=="))
    chain = [authority.certify(key, claims["names"], claims["iss"], now, old_issuer=claims["iss"]), *authority.chain]
    certificates = [one.public_bytes(Encoding.PEM).decode() for one in chain]
    return {"signedCertificateEmbeddedSct": {"chain": {"certificates": certificates}}}
