"""Signs as an identity: its issuer's token gets a certificate for minutes, and a log remembers what was signed."""

from __future__ import annotations

import contextlib
import sys
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from builder.errors import RegistryError, UsageError
from builder.publish.identity import IdentityProof, identity_in
from builder.publish.trust import load_trust_config

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from sigstore.models import ClientTrustConfig
    from sigstore.oidc import IdentityToken
    from sigstore.sign import Signer

TOKEN = "SIGSTORE_ID_TOKEN"  # noqa: S105 - the name of a variable
_GET_A_TOKEN = (
    "in GitHub Actions give the job the permission `id-token: write`; elsewhere put a token for the audience sigstore"
    f" into {TOKEN}, or publish at a terminal, where a browser asks who you are"
)


@dataclass(kw_only=True)
class KeylessSigner:
    """Signs as the identity of a token, with services and roots of one sigstore; asks them when it first signs.

    Without a token, a browser asks then who signs.
    """

    config: ClientTrustConfig
    environment: Mapping[str, str] = field(repr=False)
    token: IdentityToken | None = field(repr=False)

    @cached_property
    def proof(self) -> IdentityProof:
        """What proves what this signs: whom the certificate names is known only when it is there."""
        from sigstore.verify import Verifier  # noqa: PLC0415 - an extra

        with self._asking("give a certificate"):
            certificate = self._signer._signing_cert()  # noqa: SLF001 - no other way to it without signing
            verifier = Verifier(trusted_root=self.config.trusted_root)
            return IdentityProof(signer=identity_in(certificate), verifier=verifier)

    def sign(self, payload: bytes) -> bytes:
        """Return the bundle of a statement: envelope, certificate and log entry; raises RegistryError."""
        from sigstore.dsse import Statement  # noqa: PLC0415

        with self._asking("sign"):
            return self._signer.sign_dsse(Statement(payload)).to_json().encode()

    @cached_property
    def _signer(self) -> Signer:
        """A key in memory and a certificate for it; a token that ended while an image was pushed is renewed."""
        from sigstore.sign import Signer, SigningContext  # noqa: PLC0415

        if self.token is None or not self.token.in_validity_period():
            self.token = given_token(self.environment) or _login(self.config)
        return Signer(self.token, SigningContext.from_trust_config(self.config))

    @contextlib.contextmanager
    def _asking(self, what: str) -> Iterator[None]:
        """Turn whatever the library raises into one sentence that does not hold the token."""
        try:
            yield
        except (RegistryError, UsageError):
            raise
        except Exception as error:  # noqa: BLE001 - the library raises errors of many kinds
            said = str(error) or str(error.__cause__ or type(error).__name__)
            raise RegistryError(
                f"sigstore does not {what}: {' '.join(said.replace(str(self.token), '…').split())}",
                remedy="publish again: what the registry has does not travel again",
            ) from None


def open_keyless(trust_config: Path | None, environment: Mapping[str, str]) -> KeylessSigner:
    """Return the signer of whoever runs this, by the public sigstore or the one that a client trust config names.

    Nobody is asked to log in before it signs. Raises UsageError where nothing could give a token,
    InvalidDocumentError, RegistryError.
    """
    config = load_trust_config(trust_config)
    return KeylessSigner(config=config, environment=environment, token=given_token(environment))


def given_token(environment: Mapping[str, str]) -> IdentityToken | None:
    """Return the token in SIGSTORE_ID_TOKEN, else the one that the machine gives; None where a browser can ask for one.

    No token is part of a message. Raises UsageError.
    """
    from sigstore.oidc import IdentityToken, detect_credential  # noqa: PLC0415 - an extra

    raw = environment.get(TOKEN)
    with _naming(TOKEN if raw else "this machine"):
        raw = raw or detect_credential()
        if raw:
            return IdentityToken(raw)
    if sys.stdin.isatty():
        return None
    raise UsageError("nothing here says who signs: there is no identity token", remedy=_GET_A_TOKEN)


def _login(config: ClientTrustConfig) -> IdentityToken:
    """Return the token of whom a browser asks; raises UsageError."""
    from sigstore.oidc import Issuer  # noqa: PLC0415 - an extra

    with _naming("the browser's login"):
        return Issuer(config.signing_config.get_oidc_url()).identity_token()


@contextlib.contextmanager
def _naming(place: str) -> Iterator[None]:
    """Name the place that gives no token."""
    from sigstore.errors import Error  # noqa: PLC0415 - an extra
    from sigstore.oidc import IssuerError  # noqa: PLC0415

    try:
        yield
    except (Error, IssuerError, OSError) as error:
        said = str(error) or type(error).__name__
        raise UsageError(f"{place} gives no identity token: {said}", remedy=_GET_A_TOKEN) from None
