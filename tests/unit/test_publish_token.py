"""A key that never leaves its token signs as others do; the token is SoftHSM's."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pkcs11
import pytest
from pkcs11.util.ec import encode_named_curve_parameters

from builder.errors import InvalidDocumentError, UsageError
from builder.publish.keys import load_secret_key

if TYPE_CHECKING:
    from collections.abc import Iterator

UTIL = shutil.which("softhsm2-util")
PLACES = ("/usr/lib/softhsm/libsofthsm2.so", "/usr/lib64/pkcs11/libsofthsm2.so")
MODULE = next((place for place in PLACES if Path(place).is_file()), None)
PIN = "s3cret-pin"

pytestmark = pytest.mark.skipif(UTIL is None or MODULE is None, reason="softhsm2 is not installed: run `make setup`")


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URI of a P-256 key in a new token."""
    folder = tmp_path_factory.mktemp("softhsm")
    (folder / "tokens").mkdir()
    (folder / "conf").write_text(f"directories.tokendir = {folder / 'tokens'}\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOFTHSM2_CONF", str(folder / "conf"))
        line = ["--init-token", "--free", "--label", "my token", "--pin", PIN, "--so-pin", PIN]
        subprocess.run([str(UTIL), "--module", str(MODULE), *line], check=True, capture_output=True)
        with pkcs11.lib(str(MODULE)).get_token(token_label="my token").open(rw=True, user_pin=PIN) as session:
            for label, curve in (("signing", "secp256r1"), ("long", "secp384r1")):
                parameters = session.create_domain_parameters(
                    pkcs11.KeyType.EC,
                    {pkcs11.Attribute.EC_PARAMS: encode_named_curve_parameters(curve)},
                    local=True,
                )
                parameters.generate_keypair(store=True, label=label)
        yield f"pkcs11:token=my%20token;object=signing?module-path={MODULE}"


def test_what_a_token_signs_its_public_key_proves(uri: str) -> None:
    signer = load_secret_key(uri, {"ENVBUILD_KEY_PASSWORD": PIN})
    assert signer.public.proves(signer.sign(b"data"), b"data")
    assert not signer.public.proves(signer.sign(b"data"), b"date")


def test_the_pin_may_be_in_a_file(uri: str, tmp_path: Path) -> None:
    (tmp_path / "pin").write_text(f"{PIN}\n")
    signer = load_secret_key(f"{uri}&pin-source=file:{tmp_path / 'pin'}", {})
    assert signer.public.proves(signer.sign(b"data"), b"data")


def test_a_file_without_a_pin_is_named(uri: str, tmp_path: Path) -> None:
    (tmp_path / "pin").write_bytes(b"\xff")
    with pytest.raises(UsageError, match=f"the PIN cannot be read from {tmp_path}/pin: it is not UTF-8 text"):
        load_secret_key(f"{uri}&pin-source=file:{tmp_path / 'pin'}", {})
    with pytest.raises(UsageError, match=f"the PIN cannot be read from {tmp_path}: Is a directory"):
        load_secret_key(f"{uri}&pin-source=file:{tmp_path}", {})


@pytest.mark.parametrize(
    ("old", "new", "pin", "sentence"),
    [
        ("", "", "wr0ng-s3cret", r"'my token' does not give the key 'signing': PinIncorrect"),
        ("object=signing", "object=other", PIN, "does not give the key 'other': NoSuchKey"),
        ("my%20token", "other", PIN, "the token 'other' does not give"),
        (str(MODULE), "/no/such.so", PIN, "cannot open shared object"),
        ("object=signing", "object=long", PIN, "'long' of the token is no ECDSA P-256 key"),
    ],
)
def test_a_token_that_does_not_sign_is_named_and_the_pin_is_not(
    uri: str, old: str, new: str, pin: str, sentence: str
) -> None:
    with pytest.raises(InvalidDocumentError, match=sentence) as caught:
        load_secret_key(uri.replace(old, new), {"ENVBUILD_KEY_PASSWORD": pin})
    assert pin not in f"{caught.value.message} {caught.value.remedy}"
