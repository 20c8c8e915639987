"""A key that never leaves its PKCS#11 token, named by a `pkcs11:` URI (RFC 7512)."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote

from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature

from builder.errors import InvalidDocumentError, UsageError
from builder.publish.keys import PASSWORD, PublicKey

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

SHAPE = "write pkcs11:token=NAME;object=LABEL?module-path=/usr/lib/softhsm/libsofthsm2.so"


@dataclass(frozen=True, kw_only=True, slots=True)
class Token:
    """A token by its library and its name; `pin` opens it."""

    module: str
    name: str
    label: str
    pin: str | None = field(repr=False)

    @contextlib.contextmanager
    def key(self, *, private: bool) -> Iterator[Any]:
        """Give one half of the key while the token is open; raises InvalidDocumentError if it does not give it."""
        import pkcs11  # noqa: PLC0415 - an extra

        half = pkcs11.ObjectClass.PRIVATE_KEY if private else pkcs11.ObjectClass.PUBLIC_KEY
        try:
            with pkcs11.lib(self.module).get_token(token_label=self.name).open(user_pin=self.pin) as session:
                yield session.get_key(object_class=half, label=self.label)
        except (pkcs11.PKCS11Error, RuntimeError) as error:
            said = f"{type(error).__name__} {error}".rstrip()
            raise InvalidDocumentError(
                f"the token {self.name!r} does not give the key {self.label!r}: {said}",
                remedy=f"check the URI and the PIN; {SHAPE}",
            ) from None


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenKey:
    """An ECDSA P-256 key inside a token."""

    token: Token
    public: PublicKey

    def sign(self, data: bytes) -> bytes:
        """Return the signature over some bytes: the token's two numbers as an ASN.1 sequence."""
        import pkcs11  # noqa: PLC0415

        digest = hashes.Hash(hashes.SHA256())
        digest.update(data)
        with self.token.key(private=True) as key:
            raw: bytes = key.sign(digest.finalize(), mechanism=pkcs11.Mechanism.ECDSA)
        half = len(raw) // 2
        return encode_dss_signature(int.from_bytes(raw[:half]), int.from_bytes(raw[half:]))


def open_token(uri: str, environment: Mapping[str, str]) -> TokenKey:
    """Return the key that a URI names; the PIN is in its `pin-source` file, else in ENVBUILD_KEY_PASSWORD.

    Raises UsageError, or InvalidDocumentError if the token has no such key.
    """
    fields = read_uri(uri)
    try:
        from pkcs11.util.ec import encode_ec_public_key  # noqa: PLC0415
    except ImportError:
        raise UsageError("keys on a token need an extra", remedy="pip install 'envbuild[pkcs11]'") from None
    token = Token(
        module=fields["module-path"], name=fields["token"], label=fields["object"], pin=_pin(fields, environment)
    )
    with token.key(private=False) as key:
        public = serialization.load_der_public_key(encode_ec_public_key(key))
    if not isinstance(public, EllipticCurvePublicKey) or public.key_size != 256:
        raise InvalidDocumentError(f"{token.label!r} of the token is no ECDSA P-256 key")
    return TokenKey(token=token, public=PublicKey(public))


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
    except UnicodeDecodeError:
        raise UsageError(f"the PIN cannot be read from {path}: it is not UTF-8 text") from None
