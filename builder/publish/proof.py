"""Who signs, and what proves it: a key here, an identity in `identity` and `keyless`; all that follows is the same."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from builder.document import Document, canonical_json
from builder.publish.envelope import BUNDLE_TYPE, UnprovenError, envelope_in, seal

if TYPE_CHECKING:
    from builder.publish.identity import Identity
    from builder.publish.keys import PublicKey, SecretKey


class KeyName(Document):
    """A key by its fingerprint: the sha256 of its public half (SubjectPublicKeyInfo, DER), in hexadecimal."""

    key: str

    def __str__(self) -> str:
        return f"the key {self.key[:16]}"


class Proof(Protocol):
    """What a person holds against which bundles are proven."""

    @property
    def signer(self) -> KeyName | Identity:
        """Who must have signed."""

    def payload_of(self, bundle: bytes) -> bytes:
        """Return what was signed in a sigstore bundle that may come from anywhere; raises UnprovenError."""


class Signer(Protocol):
    """Signs statements."""

    @property
    def proof(self) -> Proof:
        """What proves what this signs."""

    def sign(self, payload: bytes) -> bytes:
        """Return the sigstore bundle of an in-toto statement."""


@dataclass(frozen=True, slots=True)
class KeyProof:
    """Proves what the owner of a key signed."""

    key: PublicKey

    @property
    def signer(self) -> KeyName:
        """The key that must have signed."""
        return KeyName(key=self.key.fingerprint)

    def payload_of(self, bundle: bytes) -> bytes:
        """Return what was signed in a bundle; raises UnprovenError."""
        envelope = envelope_in(bundle)
        if not envelope.is_proven_by(self.key):
            raise UnprovenError("is not signed by this key")
        return envelope.payload


@dataclass(frozen=True, slots=True)
class KeySigner:
    """Signs with a key."""

    key: SecretKey

    @property
    def proof(self) -> KeyProof:
        """What proves what this signs."""
        return KeyProof(self.key.public)

    def sign(self, payload: bytes) -> bytes:
        """Return the bundle of a statement: its envelope, and that a key proves it, in no log."""
        plain = {
            "mediaType": BUNDLE_TYPE,
            "verificationMaterial": {"publicKey": {"hint": ""}, "tlogEntries": []},
            "dsseEnvelope": seal(payload, self.key).to_plain(),
        }
        return canonical_json(plain)
