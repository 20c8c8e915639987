"""A private key as `cosign generate-key-pair` writes it: PKCS8 in a NaCl secret box, its key made from a password."""

from __future__ import annotations

import base64
import hashlib
import json
import re

from builder.errors import InvalidDocumentError, UsageError

_BOX = re.compile(
    rb"-----BEGIN ENCRYPTED (SIGSTORE|COSIGN) PRIVATE KEY-----\s+"
    rb"([A-Za-z0-9+/=\s]+)"
    rb"-----END ENCRYPTED \1 PRIVATE KEY-----"
)
LARGEST_COST = 1 << 20  # of scrypt's N: cosign writes 2^15 or 2^16
_MEMORY = (1 << 31) - 1  # bytes that scrypt may use, the most that OpenSSL takes


def is_cosign_key(pem: bytes) -> bool:
    """Say whether this is such a key."""
    return _BOX.search(pem) is not None


def open_cosign_key(pem: bytes, password: str | None, name: str) -> bytes:
    """Return the key in PKCS8 (DER); raises InvalidDocumentError, with nothing of the key, if the password is wrong."""
    try:
        from nacl.exceptions import CryptoError  # noqa: PLC0415 - an extra
        from nacl.secret import SecretBox  # noqa: PLC0415
    except ImportError:
        raise UsageError("keys that cosign encrypted need an extra", remedy="pip install 'envbuild[cosign]'") from None
    found = _BOX.search(pem)
    try:
        box = json.loads(base64.b64decode(found[2])) if found else {}
        kdf, cipher = box["kdf"], box["cipher"]
        cost, salt = kdf["params"], base64.b64decode(kdf["salt"])
        if (kdf["name"], cipher["name"]) != ("scrypt", "nacl/secretbox") or cost["N"] > LARGEST_COST:
            raise InvalidDocumentError(f"{name} is encrypted by {kdf['name']} and {cipher['name']}, not as cosign does")
        key = hashlib.scrypt(
            (password or "").encode(), salt=salt, n=cost["N"], r=cost["r"], p=cost["p"], maxmem=_MEMORY, dklen=32
        )
        return SecretBox(key).decrypt(base64.b64decode(box["ciphertext"]), base64.b64decode(cipher["nonce"]))
    except CryptoError:
        raise InvalidDocumentError(
            f"{name} does not open with this password", remedy="set ENVBUILD_KEY_PASSWORD or COSIGN_PASSWORD"
        ) from None
    except (ValueError, KeyError, TypeError):
        raise InvalidDocumentError(f"{name} is no key of cosign that can be read") from None
