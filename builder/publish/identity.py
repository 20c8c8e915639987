"""An identity that signed: read out of the certificate that sigstore gave it, held against the one that must have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from cryptography.x509 import (
    Certificate,
    ExtensionNotFound,
    ObjectIdentifier,
    RFC822Name,
    SubjectAlternativeName,
    UniformResourceIdentifier,
)
from pydantic import Field

from builder.document import Document
from builder.publish.envelope import PAYLOAD_TYPE, UnprovenError, envelope_in

if TYPE_CHECKING:
    from sigstore.verify import Verifier

# Fulcio's certificate extensions: the issuer as a DER string, and, deprecated, as bare bytes.
# https://github.com/sigstore/fulcio/blob/main/docs/oid-info.md
ISSUER, OLD_ISSUER = (ObjectIdentifier(f"1.3.6.1.4.1.57264.1.{number}") for number in (8, 1))
# What the library says, and what it means; what it says otherwise is told as it is.
_MEANINGS = {
    "not valid at validation time": "is signed with a certificate that did not hold when it entered the log",
    "failed to build timestamp certificate chain": "is signed with a certificate of an authority that is not trusted",
    "failed to verify SCT": "is signed with a certificate that is in no trusted log of certificates",
    "expected certificate in bundle": "holds no certificate, so no identity signed it",
    "expected exactly one log entry": "is not in the log exactly once",
    "invalid log entry": "holds a log entry that no trusted log proves",
    "log entry payload hash does not match": "holds the log entry of another statement",
    "log entry signatures do not match": "holds the log entry of another signature",
    "log entry is inconsistent": "holds the log entry of another signature",
    "must contain an inclusion promise": "holds nothing that proves when it was signed",
    "not enough sources of verified time": "holds nothing that proves when it was signed",
    "DSSE: invalid signature": "is not what its certificate's key has signed",
    "failed to load bundle": "is no bundle that can be read",
}
_SHOWN = 300  # characters of what the library or a certificate says


class Identity(Document):
    """Who signed without a key of their own: whom a certificate names, and who vouched for them."""

    identity: Annotated[str, Field(min_length=1, description="the e-mail address or the address of the workflow")]
    issuer: Annotated[str, Field(min_length=1, description="the address of the OIDC issuer that vouches for it")]

    def __str__(self) -> str:
        return f"{self.identity} (issuer {self.issuer})"

    def verify(self, certificate: Certificate) -> None:
        """Raise UnprovenError unless the certificate was given to this identity by this issuer; sigstore calls it."""
        found = identity_in(certificate)
        if found.identity != self.identity:
            raise UnprovenError(f"is signed by another identity, {_shown(found.identity)}")
        if found.issuer != self.issuer:
            raise UnprovenError(f"is signed by an identity of another issuer, {_shown(found.issuer)}")


def identity_in(certificate: Certificate) -> Identity:
    """Return whom a certificate names; raises UnprovenError unless it is exactly one identity of one issuer."""
    extensions = certificate.extensions
    try:
        names = extensions.get_extension_for_class(SubjectAlternativeName).value
        said = _issuer(certificate)
    except ExtensionNotFound:
        raise UnprovenError("is signed with a certificate that names no identity and issuer") from None
    found = [*names.get_values_for_type(RFC822Name), *names.get_values_for_type(UniformResourceIdentifier)]
    if len(found) != 1 or len(list(names)) != 1 or not found[0] or not said:
        raise UnprovenError("is signed with a certificate that does not name exactly one identity and issuer")
    return Identity(identity=found[0], issuer=said)


def _issuer(certificate: Certificate) -> str:
    """Return the issuer that a certificate names; raises ExtensionNotFound, ValueError."""
    from cryptography.hazmat import asn1  # noqa: PLC0415 - in the releases that the extra asks for

    try:
        return asn1.decode_der(str, certificate.extensions.get_extension_for_oid(ISSUER).value.public_bytes())
    except ExtensionNotFound:
        return certificate.extensions.get_extension_for_oid(OLD_ISSUER).value.public_bytes().decode()


@dataclass(frozen=True, kw_only=True, slots=True)
class IdentityProof:
    """Proves what an identity signed, by the roots of one sigstore: its authority, its certificate and entry logs."""

    signer: Identity
    verifier: Verifier

    def payload_of(self, bundle: bytes) -> bytes:
        """Return what was signed in a bundle; raises UnprovenError.

        The certificate must come from the authority, be in the certificate log, name the identity and have been valid
        when the signature entered the log; the entry must be in that log and of this signature; no network is used.
        """
        from sigstore.models import Bundle  # noqa: PLC0415 - an extra

        envelope = envelope_in(bundle)
        try:
            kind, payload = self.verifier.verify_dsse(Bundle.from_json(bundle), self.signer)
        except UnprovenError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever an enemy's bundle makes the library raise proves nothing
            raise UnprovenError(_meaning(error)) from None
        if (kind, payload) != (PAYLOAD_TYPE, envelope.payload):
            raise UnprovenError("says two things")
        return payload


def _meaning(error: Exception) -> str:
    said = str(error) or type(error).__name__
    meant = next((meaning for words, meaning in _MEANINGS.items() if words in said), None)
    return meant or f"is not proven by sigstore: {_shown(said)}"


def _shown(text: str) -> str:
    """Return what an enemy may have written as one printable line of at most _SHOWN characters."""
    printable = "".join(char if char.isprintable() else " " for char in text)
    return " ".join(printable.split())[:_SHOWN]
