"""Keys that sign and prove, and the envelopes around what they sign."""

from __future__ import annotations

import base64
import hashlib
import json
import subprocess
from typing import TYPE_CHECKING

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
)
from nacl.secret import SecretBox

from builder.errors import EnvbuildError, InvalidDocumentError, UsageError
from builder.publish.envelope import PAYLOAD_TYPE, Envelope, UnprovenError, read_envelope, seal, signed_bytes
from builder.publish.keys import LoadedKey, load_public_key, load_secret_key
from builder.publish.statements import Statement, read_statement
from builder.publish.token import read_uri

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

    from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes

P256, ED25519 = ec.generate_private_key(ec.SECP256R1()), ed25519.Ed25519PrivateKey.generate()


def pem(key: PrivateKeyTypes, encryption: KeySerializationEncryption | None = None) -> str:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption or NoEncryption()).decode()


@pytest.mark.parametrize("key", [P256, ED25519], ids=["ecdsa", "ed25519"])
def test_what_a_key_signs_its_public_half_proves_and_no_other(
    key: ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey, tmp_path: Path
) -> None:
    (tmp_path / "key").write_text(pem(key))
    signer = load_secret_key(str(tmp_path / "key"), {})
    (tmp_path / "pub").write_text(signer.public.pem)
    public = load_public_key(str(tmp_path / "pub"), {})
    signature = signer.sign(b"data")
    assert public.proves(signature, b"data")
    assert not public.proves(signature, b"date")
    assert not public.proves(signature[:-1], b"data")
    other = LoadedKey(ED25519 if key is P256 else P256)
    assert not other.public.proves(signature, b"data")
    assert public.fingerprint != other.public.fingerprint


def test_a_key_may_be_in_the_environment_and_encrypted() -> None:
    text = pem(P256, BestAvailableEncryption(b"open sesame"))
    environment = {"KEY": text, "ENVBUILD_KEY_PASSWORD": "open sesame"}
    signer = load_secret_key("env:KEY", environment)
    assert load_public_key("env:PUB", {"PUB": signer.public.pem}).proves(signer.sign(b"x"), b"x")


def test_the_documented_commands_make_a_key_that_signs(tmp_path: Path) -> None:
    commands = (
        "openssl ecparam -name prime256v1 -genkey -noout | openssl pkcs8 -topk8 -nocrypt -out envbuild.key"
        " && openssl pkey -in envbuild.key -pubout -out envbuild.pub"
    )
    subprocess.run(["sh", "-c", commands], check=True, cwd=tmp_path, capture_output=True)
    signer = load_secret_key(str(tmp_path / "envbuild.key"), {})
    assert load_public_key(str(tmp_path / "envbuild.pub"), {}).proves(signer.sign(b"x"), b"x")


@pytest.mark.parametrize(
    ("text", "environment", "error", "sentence"),
    [
        ("env:KEY", {}, UsageError, "the variable KEY of the key is not set"),
        ("env:KEY", {"KEY": "s3cret"}, InvalidDocumentError, "env:KEY is no private key in PEM"),
        ("/no/such/key", {}, UsageError, "the key /no/such/key cannot be read: No such file"),
        (
            "env:KEY",
            {"KEY": pem(P256, BestAvailableEncryption(b"s3cret"))},
            InvalidDocumentError,
            "is encrypted, no password is set",
        ),
        (
            "env:KEY",
            {"KEY": pem(P256, BestAvailableEncryption(b"right")), "ENVBUILD_KEY_PASSWORD": "s3cret"},
            InvalidDocumentError,
            "no private key in PEM that can be read",
        ),
        (
            "env:KEY",
            {"KEY": pem(P256), "ENVBUILD_KEY_PASSWORD": "s3cret"},
            InvalidDocumentError,
            "is not encrypted, but a password is set",
        ),
        ("env:KEY", {"KEY": pem(ec.generate_private_key(ec.SECP384R1()))}, InvalidDocumentError, "of another kind"),
        ("env:KEY", {"KEY": pem(rsa.generate_private_key(65537, 2048))}, InvalidDocumentError, "of another kind"),
        ("pkcs11:token=a", {}, UsageError, "names no object, module-path"),
    ],
)
def test_a_key_that_cannot_sign_is_named_and_never_shown(
    text: str, environment: dict[str, str], error: type[EnvbuildError], sentence: str
) -> None:
    with pytest.raises(error, match=sentence) as caught:
        load_secret_key(text, environment)
    said = f"{caught.value.message} {caught.value.remedy} {caught.value.__cause__} {caught.value!r}"
    assert "s3cret" not in said


@pytest.fixture
def of_cosign() -> bytes:
    """A key of cosign, with a cheaper scrypt than its own."""
    salt, nonce = b"s" * 32, b"n" * 24
    der = P256.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())
    key = hashlib.scrypt(b"0pen", salt=salt, n=1024, r=8, p=1, dklen=32)
    ciphertext = SecretBox(key).encrypt(der, nonce).ciphertext
    text = {name: base64.b64encode(data).decode() for name, data in (("s", salt), ("n", nonce), ("c", ciphertext))}
    box = {
        "kdf": {"name": "scrypt", "params": {"N": 1024, "r": 8, "p": 1}, "salt": text["s"]},
        "cipher": {"name": "nacl/secretbox", "nonce": text["n"]},
        "ciphertext": text["c"],
    }
    kind = b"ENCRYPTED SIGSTORE PRIVATE KEY-----"
    return b"-----BEGIN %s\n%s-----END %s\n" % (kind, base64.encodebytes(json.dumps(box).encode()), kind)


@pytest.mark.parametrize("variable", ["ENVBUILD_KEY_PASSWORD", "COSIGN_PASSWORD"])
def test_a_key_of_cosign_opens_with_its_password(variable: str, of_cosign: bytes) -> None:
    signer = load_secret_key("env:KEY", {"KEY": of_cosign.decode(), variable: "0pen"})
    assert LoadedKey(P256).public.proves(signer.sign(b"x"), b"x")
    with pytest.raises(InvalidDocumentError, match="env:KEY does not open with this password"):
        load_secret_key("env:KEY", {"KEY": of_cosign.decode(), variable: "other"})


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        (b"scrypt", b"argon2", "encrypted by argon2 and nacl/secretbox"),
        (b'"N": 1024', b'"N": 9999999', "not as cosign does"),
        (b'"N": 1024', b'"N": "x"', "no key of cosign that can be read"),
        (b'"kdf"', b'"xyz"', "no key of cosign that can be read"),
        (b'"ciphertext": "', b'"ciphertext": "AAAA', "does not open"),
    ],
)
def test_a_key_of_cosign_that_is_damaged_is_named(of_cosign: bytes, old: bytes, new: bytes, sentence: str) -> None:
    head, *lines, foot = of_cosign.splitlines()
    changed = base64.encodebytes(base64.b64decode(b"".join(lines)).replace(old, new))
    damaged = b"\n".join([head, changed.strip(), foot])
    with pytest.raises(InvalidDocumentError, match=sentence):
        load_secret_key("env:KEY", {"KEY": damaged.decode(), "COSIGN_PASSWORD": "0pen"})


def test_a_private_key_is_not_taken_for_a_public_one() -> None:
    with pytest.raises(InvalidDocumentError, match="env:KEY is no public key") as caught:
        load_public_key("env:KEY", {"KEY": pem(P256)})
    assert "openssl pkey" in caught.value.remedy


def test_a_signer_shows_no_secret() -> None:
    assert repr(LoadedKey(P256)) == "LoadedKey()"


def test_the_attributes_of_a_token_are_read_from_its_uri() -> None:
    uri = "pkcs11:token=my%20token;object=key?module-path=/usr/lib/x.so&pin-source=file:/run/pin"
    assert read_uri(uri) == {
        "token": "my token",
        "object": "key",
        "module-path": "/usr/lib/x.so",
        "pin-source": "file:/run/pin",
    }


def test_what_is_signed_of_an_envelope_is_its_type_and_its_payload() -> None:
    assert signed_bytes(b"hello world", "http://example.com/HelloWorld") == (  # the example of the DSSE protocol
        b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"
    )


def test_an_envelope_is_read_as_it_was_written() -> None:
    signer = LoadedKey(P256)
    envelope = seal(b'{"a":1}', signer)
    assert read_envelope(envelope.to_plain()) == envelope
    assert envelope.is_proven_by(signer.public)
    assert not Envelope(payload=b'{"a":2}', signature=envelope.signature).is_proven_by(signer.public)
    assert not Envelope(payload=envelope.payload, signature=signer.sign(envelope.payload)).is_proven_by(signer.public)


WHOLE = {"payloadType": PAYLOAD_TYPE, "payload": "AA==", "signatures": [{"sig": "AA=="}]}


@pytest.mark.parametrize(
    ("plain", "sentence"),
    [
        (None, "holds no envelope"),
        ([], "holds no envelope"),
        ({**WHOLE, "payloadType": "text/plain"}, "says that its payload is 'text/plain'"),
        ({**WHOLE, "signatures": []}, "exactly one signature"),
        ({**WHOLE, "signatures": [{"sig": "AA=="}] * 2}, "exactly one signature"),
        ({**WHOLE, "signatures": {"sig": "AA=="}}, "exactly one signature"),
        ({**WHOLE, "signatures": ["AA=="]}, "cannot be read"),
        ({**WHOLE, "payload": "not base64!"}, "cannot be read"),
        ({**WHOLE, "payload": 7}, "cannot be read"),
        ({"payloadType": PAYLOAD_TYPE, "signatures": [{"sig": "AA=="}]}, "cannot be read"),
    ],
)
def test_an_envelope_of_an_enemy_is_refused(plain: Any, sentence: str) -> None:
    assert read_envelope(WHOLE).payload == base64.b64decode("AA==")
    with pytest.raises(UnprovenError, match=sentence):
        read_envelope(plain)


STATEMENT = Statement(name="x", digest=f"sha256:{'1' * 64}", kind="https://x/v1", predicate={"a": 1})


@pytest.mark.parametrize(
    ("payload", "sentence"),
    [
        (b"\xff", "no in-toto statement"),
        (b"[]", "no in-toto statement"),
        (STATEMENT.to_bytes().replace(b"Statement/v1", b"Statement/v0.1"), "no in-toto statement of version 1"),
        (STATEMENT.to_bytes().replace(b'{"a":1}', b"[]"), "no in-toto statement of version 1"),
        (STATEMENT.to_bytes().replace(b'"subject":[', b'"subject":[{},'), "exactly one image"),
        (STATEMENT.to_bytes().replace(b'"sha256"', b'"sha512"'), "a sha256 alone"),
        (STATEMENT.to_bytes().replace(b'{"sha256"', b'{"sha512":"","sha256"'), "a sha256 alone"),
        (STATEMENT.to_bytes().replace(b'"digest"', b'"digests"'), "does not name its image by a digest"),
    ],
)
def test_a_statement_speaks_of_exactly_one_image(payload: bytes, sentence: str) -> None:
    assert read_statement(STATEMENT.to_bytes()) == STATEMENT
    with pytest.raises(UnprovenError, match=sentence):
        read_statement(payload)
