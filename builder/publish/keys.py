"""The keys that sign and prove: ECDSA P-256 and Ed25519, from a file, the environment or a PKCS#11 token."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric.ec import (
    ECDSA,
    SECP256R1,
    EllipticCurvePrivateKey,
    EllipticCurvePublicKey,
)
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from builder.document import sha256_bytes
from builder.errors import InvalidDocumentError, UsageError
from builder.publish.cosign_key import is_cosign_key, open_cosign_key

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes

ENVIRONMENT = "env:"
TOKEN = "pkcs11:"  # noqa: S105 - the scheme of RFC 7512
PASSWORD = "ENVBUILD_KEY_PASSWORD"  # noqa: S105 - the name of a variable
MAKE_A_KEY = (
    "make one: openssl ecparam -name prime256v1 -genkey -noout | openssl pkcs8 -topk8 -nocrypt -out envbuild.key"
)
_SHA256 = ECDSA(hashes.SHA256())


@dataclass(frozen=True, slots=True)
class PublicKey:
    """A key that proves signatures."""

    key: EllipticCurvePublicKey | Ed25519PublicKey

    def proves(self, signature: bytes, data: bytes) -> bool:
        """Say whether this key's owner signed `data`; ECDSA is over its SHA-256, as an ASN.1 sequence."""
        try:
            if isinstance(self.key, Ed25519PublicKey):
                self.key.verify(signature, data)
            else:
                self.key.verify(signature, data, _SHA256)
        except InvalidSignature:
            return False
        return True

    @property
    def pem(self) -> str:
        """The key as PEM text (SubjectPublicKeyInfo)."""
        encoded = self.key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
        return encoded.decode()

    @property
    def fingerprint(self) -> str:
        """The sha256 of the key (SubjectPublicKeyInfo, DER)."""
        return sha256_bytes(
            self.key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
        )


class SecretKey(Protocol):
    """A key that signs and never shows itself."""

    @property
    def public(self) -> PublicKey:
        """The key that proves what this signs."""

    def sign(self, data: bytes) -> bytes:
        """Return the signature over some bytes."""


@dataclass(frozen=True)
class LoadedKey:
    """A private key in memory."""

    key: EllipticCurvePrivateKey | Ed25519PrivateKey = field(repr=False)

    @cached_property
    def public(self) -> PublicKey:
        """The key that proves what this signs."""
        return PublicKey(self.key.public_key())

    def sign(self, data: bytes) -> bytes:
        """Return the signature over some bytes."""
        return self.key.sign(data) if isinstance(self.key, Ed25519PrivateKey) else self.key.sign(data, _SHA256)


def load_secret_key(text: str, environment: Mapping[str, str]) -> SecretKey:
    """Return the key that `text` names: a PEM file, `env:NAME`, or a `pkcs11:` URI.

    The password of an encrypted key is in ENVBUILD_KEY_PASSWORD, that of one of cosign also in COSIGN_PASSWORD. Raises
    InvalidDocumentError, UsageError; nothing of a key or a password is part of a message.
    """
    if text.startswith(TOKEN):
        from builder.publish.token import open_token  # noqa: PLC0415 - the library is an extra

        return open_token(text, environment)
    try:
        key = _private_key(text, environment)
    except TypeError:
        said = "not encrypted, but a password is set" if environment.get(PASSWORD) else "encrypted, no password is set"
        raise InvalidDocumentError(f"{text} is {said}", remedy=f"see {PASSWORD}") from None
    except (ValueError, UnsupportedAlgorithm):
        raise InvalidDocumentError(f"{text} is no private key in PEM that can be read", remedy=MAKE_A_KEY) from None
    if isinstance(key, Ed25519PrivateKey) or (
        isinstance(key, EllipticCurvePrivateKey) and isinstance(key.curve, SECP256R1)
    ):
        return LoadedKey(key)
    raise InvalidDocumentError(f"{text} is a key of another kind than ECDSA P-256 or Ed25519", remedy=MAKE_A_KEY)


def _private_key(text: str, environment: Mapping[str, str]) -> PrivateKeyTypes:
    pem, password = _pem(text, environment), environment.get(PASSWORD)
    if is_cosign_key(pem):
        opened = open_cosign_key(pem, password or environment.get("COSIGN_PASSWORD"), text)
        return serialization.load_der_private_key(opened, None)
    return serialization.load_pem_private_key(pem, password.encode() if password else None)


def load_public_key(text: str, environment: Mapping[str, str]) -> PublicKey:
    """Return the public key in a PEM file or in `env:NAME`; of a private key its public half is not taken."""
    try:
        key = serialization.load_pem_public_key(_pem(text, environment))
    except (ValueError, UnsupportedAlgorithm):
        raise InvalidDocumentError(
            f"{text} is no public key in PEM",
            remedy="write it: openssl pkey -in envbuild.key -pubout -out envbuild.pub",
        ) from None
    if isinstance(key, Ed25519PublicKey) or (
        isinstance(key, EllipticCurvePublicKey) and isinstance(key.curve, SECP256R1)
    ):
        return PublicKey(key)
    raise InvalidDocumentError(f"{text} is a key of another kind than ECDSA P-256 or Ed25519", remedy=MAKE_A_KEY)


def _pem(text: str, environment: Mapping[str, str]) -> bytes:
    if text.startswith(ENVIRONMENT):
        name = text.removeprefix(ENVIRONMENT)
        if not environment.get(name):
            raise UsageError(f"the variable {name} of the key is not set", remedy=f"put the key's PEM text into {name}")
        return environment[name].encode()
    try:
        return Path(text).read_bytes()
    except OSError as error:
        raise UsageError(f"the key {text} cannot be read: {error.strerror}", remedy="give the path of a key") from None
