"""DSSE envelopes: a payload, its type, one signature over both (secure-systems-lab DSSE 1.0.2); and their bundles."""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from builder.publish.keys import PublicKey, SecretKey

PAYLOAD_TYPE = "application/vnd.in-toto+json"
ENVELOPE_TYPE = "application/vnd.dsse.envelope.v1+json"
BUNDLE_TYPE = "application/vnd.dev.sigstore.bundle.v0.3+json"


class UnprovenError(Exception):
    """Something attached to an image proves nothing; the message completes "… because it …"."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Envelope:
    """A payload of in-toto's type, and the signature over it."""

    payload: bytes
    signature: bytes

    def to_plain(self) -> dict[str, Any]:
        """Return the envelope as JSON."""
        return {
            "payload": _text(self.payload),
            "payloadType": PAYLOAD_TYPE,
            "signatures": [{"keyid": "", "sig": _text(self.signature)}],
        }

    def is_proven_by(self, key: PublicKey) -> bool:
        """Say whether the owner of the key signed the payload as what it says it is."""
        return key.proves(self.signature, signed_bytes(self.payload))


def seal(payload: bytes, key: SecretKey) -> Envelope:
    """Return the envelope of a signed payload."""
    return Envelope(payload=payload, signature=key.sign(signed_bytes(payload)))


def signed_bytes(payload: bytes, payload_type: str = PAYLOAD_TYPE) -> bytes:
    """Return what is signed of an envelope: the pre-authentication encoding (DSSE 1.0.2)."""
    kind = payload_type.encode()
    return b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload)


def envelope_in(bundle: bytes) -> Envelope:
    """Return the envelope of a sigstore bundle that may come from anywhere, as yet unproven; raises UnprovenError."""
    try:
        plain: Any = json.loads(bundle)
    except (ValueError, RecursionError):
        raise UnprovenError("is no JSON") from None
    if not isinstance(plain, dict) or plain.get("mediaType") != BUNDLE_TYPE:
        raise UnprovenError("is no bundle of version 0.3")
    return read_envelope(plain.get("dsseEnvelope"))


def read_envelope(plain: Any) -> Envelope:  # noqa: ANN401 - any JSON value
    """Read an envelope that may come from anywhere; raises UnprovenError."""
    if not isinstance(plain, dict):
        raise UnprovenError("holds no envelope")
    if plain.get("payloadType") != PAYLOAD_TYPE:
        raise UnprovenError(f"says that its payload is {str(plain.get('payloadType'))[:80]!r}")
    signatures = plain.get("signatures")
    if not isinstance(signatures, list) or len(signatures) != 1:
        raise UnprovenError("does not hold exactly one signature")
    try:
        payload = base64.b64decode(plain["payload"], validate=True)
        signature = base64.b64decode(signatures[0]["sig"], validate=True)
    except (KeyError, TypeError, ValueError, binascii.Error):
        raise UnprovenError("holds an envelope that cannot be read") from None
    return Envelope(payload=payload, signature=signature)


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()
