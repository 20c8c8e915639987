"""A key that never leaves its PKCS#11 token, named by a `pkcs11:` URI (RFC 7512)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote

from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature

from builder.errors import InvalidDocumentError, UsageError
from builder.publish.keys import PASSWORD, PublicKey

if TYPE_CHECKING:
    from collections.abc import Mapping

SHAPE = "write pkcs11:token=NAME;object=LABEL?module-path=/usr/lib/softhsm/libsofthsm2.so"


@dataclass(frozen=True)
class TokenSigner:
    """Signs with an ECDSA P-256 key inside a token; `session` is open as long as this lives."""

    session: Any
    key: Any
    public: PublicKey

    def sign(self, data: bytes) -> bytes:
        """Return the signature over some bytes: the token's two numbers as an ASN.1 sequence."""
        import pkcs11  # noqa: PLC0415 - an extra

        digest = hashes.Hash(hashes.SHA256())
        digest.update(data)
        raw: bytes = self.key.sign(digest.finalize(), mechanism=pkcs11.Mechanism.ECDSA)
        half = len(raw) // 2
        return encode_dss_signature(int.from_bytes(raw[:half]), int.from_bytes(raw[half:]))


def open_token(uri: str, environment: Mapping[str, str]) -> TokenSigner:
    """Open the key that a URI names; the PIN is in its `pin-source` file, else in ENVBUILD_KEY_PASSWORD.

    Raises UsageError, or InvalidDocumentError if the token has no such key.
    """
    try:
        import pkcs11  # noqa: PLC0415
        from pkcs11.util.ec import encode_ec_public_key  # noqa: PLC0415
    except ImportError:
        raise UsageError("keys on a token need an extra", remedy="pip install 'envbuild[pkcs11]'") from None
    fields = read_uri(uri)
    try:
        token = pkcs11.lib(fields["module-path"]).get_token(token_label=fields["token"])
        session = token.open(user_pin=_pin(fields, environment))
        key = session.get_key(object_class=pkcs11.ObjectClass.PRIVATE_KEY, label=fields["object"])
        held: Any = session.get_key(object_class=pkcs11.ObjectClass.PUBLIC_KEY, label=fields["object"])
    except (pkcs11.PKCS11Error, RuntimeError) as error:
        raise InvalidDocumentError(
            f"the token {fields['token']!r} does not give the key {fields['object']!r}: "
            f"{type(error).__name__} {error}".rstrip(),
            remedy=f"check the URI and the PIN; {SHAPE}",
        ) from None
    public = serialization.load_der_public_key(encode_ec_public_key(held))
    if not isinstance(public, EllipticCurvePublicKey) or public.key_size != 256:
        raise InvalidDocumentError(f"{fields['object']!r} of the token is no ECDSA P-256 key")
    return TokenSigner(session=session, key=key, public=PublicKey(public))


def read_uri(uri: str) -> dict[str, str]:
    """Return the attributes of a `pkcs11:` URI by name; raises UsageError if one that is needed is not there."""
    path, _, query = uri.removeprefix("pkcs11:").partition("?")
    pairs = [part.partition("=") for part in path.split(";") if part]
    fields = {name: unquote(value) for name, _, value in pairs} | dict(parse_qsl(query))
    missing = [name for name in ("token", "object", "module-path") if not fields.get(name)]
    if missing:
        raise UsageError(f"the URI of the key names no {', '.join(missing)}", remedy=SHAPE)
    return fields


def _pin(fields: Mapping[str, str], environment: Mapping[str, str]) -> str | None:
    source = fields.get("pin-source")
    if source is None:
        return environment.get(PASSWORD)
    path = Path(source.removeprefix("file:"))
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise UsageError(f"the PIN cannot be read from {path}: {error.strerror}") from None
