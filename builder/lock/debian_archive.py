"""The Debian archive: which mirrors, which signed Release files, which packages they name."""

from __future__ import annotations

import platform
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from builder.download import Download, DownloadError, fetch_all, get_bytes, remedy_for, shown
from builder.errors import ResolveError
from builder.lock.model import DebianRelease
from builder.process import run

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from builder.download import Progress
    from builder.settings import Settings
    from builder.store import Store

Archive = Literal["debian", "debian-security"]

KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
ARCHITECTURE = "amd64"
INDEX = f"main/binary-{ARCHITECTURE}/Packages.xz"
SET_A_MIRROR = "set ENVBUILD_DEBIAN_MIRROR and ENVBUILD_DEBIAN_SECURITY_MIRROR to a mirror that this machine reaches"


@dataclass(frozen=True, kw_only=True, slots=True)
class Mirrors:
    """Base URLs of the two archives, without a slash at the end."""

    debian: str
    security: str

    def url(self, archive: Archive, path: str) -> str:
        """Return the address of a file of an archive."""
        base = self.debian if archive == "debian" else self.security
        return f"{base}/{path}"


@dataclass(frozen=True, kw_only=True, slots=True)
class SignedRelease:
    """A Release file whose signature was checked: its signed text, what the lock keeps of it, its package index's size.

    `by_hash` says whether the mirror serves an index under its sha256, which never changes between two requests.
    """

    text: str
    release: DebianRelease
    index_size: int
    by_hash: bool


def suites_of(suite: str) -> tuple[tuple[Archive, str], ...]:
    """Return the archives and suites that make up a Debian release: itself, its updates, its security updates."""
    return ("debian", suite), ("debian", f"{suite}-updates"), ("debian-security", f"{suite}-security")


def find_mirrors(settings: Settings) -> Mirrors:
    """Return the user's mirrors, else those of this machine's apt if it runs Debian, else those of mmdebstrap."""
    found: dict[Archive, str] = {}
    given: dict[Archive, str | None] = {
        "debian": settings.debian_mirror,
        "debian-security": settings.debian_security_mirror,
    }
    found.update({archive: url.rstrip("/") for archive, url in given.items() if url})
    if len(found) < 2 and _is_debian():
        apt = run(["apt-get", "update", "--print-uris"])
        found = {**mirrors_of_apt(apt.text), **found}
    if len(found) < 2:
        trial = run(["mmdebstrap", "--simulate", "--verbose", "--mode=chrootless", "--variant=custom", "stable", "-"])
        found = {**mirrors_of_mmdebstrap(trial.text), **found}
    if len(found) < 2:
        raise ResolveError("no Debian mirror is known on this machine", remedy=SET_A_MIRROR)
    return Mirrors(debian=found["debian"], security=found["debian-security"])


def mirrors_of_apt(text: str) -> dict[Archive, str]:
    """Read the mirrors out of `apt-get update --print-uris`: apt itself understands all its source formats."""
    found: dict[Archive, str] = {}
    for base, suite in re.findall(r"'(https?://[^' ]+?)/+dists/([^' ]+?)/main/binary-", text):
        archive: Archive = "debian-security" if suite.endswith(("-security", "/updates")) else "debian"
        found.setdefault(archive, base)
    return found


def mirrors_of_mmdebstrap(text: str) -> dict[Archive, str]:
    """Read the mirrors out of the `Get:1 URL SUITE InRelease` lines of a simulated mmdebstrap."""
    found: dict[Archive, str] = {}
    for base, suite in re.findall(r"^(?:Get|Hit|Ign|Err):\d+ (https?://\S+) (\S+) InRelease", text, re.MULTILINE):
        archive: Archive = "debian-security" if suite.endswith("-security") else "debian"
        found.setdefault(archive, base.rstrip("/"))
    return found


def fetch_releases(
    suite: str, mirrors: Mirrors, settings: Settings, keyring: Path = KEYRING
) -> tuple[SignedRelease, ...]:
    """Fetch the Release files of a suite and check their signatures."""

    def fetch(source: tuple[Archive, str]) -> SignedRelease:
        archive, name = source
        url = mirrors.url(archive, f"dists/{name}/InRelease")
        try:
            return read_release(get_bytes(url, settings), archive, name, shown(url), keyring)
        except DownloadError as error:
            raise ResolveError(
                f"the Debian mirror does not give {name}: {error.message}",
                remedy=remedy_for(error.message, SET_A_MIRROR),
                evidence=error.evidence,
            ) from error

    with ThreadPoolExecutor(3) as pool:
        return tuple(pool.map(fetch, suites_of(suite)))


def read_release(signed: bytes, archive: Archive, suite: str, place: str, keyring: Path = KEYRING) -> SignedRelease:
    """Check a clear-signed Release file against Debian's keys and read it; `place` names it in an error."""
    text = _verified(signed, place, keyring)
    fields = dict(re.findall(r"^([A-Za-z-]+): (.*)$", text, re.MULTILINE))
    if fields.get("Codename") != suite:
        raise ResolveError(f"{place} is the Release file of {fields.get('Codename')}, not of {suite}")
    sums = text.partition("\nSHA256:")[2]
    index = re.search(rf"^ ([0-9a-f]{{64}}) +(\d+) {re.escape(INDEX)}$", sums, re.MULTILINE)
    if index is None or "Date" not in fields:
        raise ResolveError(f"{place} names no {INDEX} or has no date")
    date = parsedate_to_datetime(fields["Date"]).astimezone(UTC)
    return SignedRelease(
        text=text,
        release=DebianRelease(
            archive=archive, suite=suite, date=f"{date:%Y-%m-%dT%H:%M:%SZ}", packages_sha256=index[1]
        ),
        index_size=int(index[2]),
        by_hash=fields.get("Acquire-By-Hash") == "yes",
    )


def fetch_indexes(
    releases: tuple[SignedRelease, ...],
    mirrors: Mirrors,
    store: Store,
    settings: Settings,
    on_progress: Callable[[Progress], None] | None,
) -> None:
    """Bring the package indexes that the Release files vouch for into the store."""
    fetch_all([_index_download(signed, mirrors) for signed in releases], store, settings, on_progress)


def stanzas_of(index: str) -> Mapping[str, tuple[str, ...]]:
    """Return the paragraphs of a Packages index by package name, each with its newline."""
    found: dict[str, tuple[str, ...]] = {}
    for stanza in index.split("\n\n"):
        if stanza.startswith("Package: "):
            name = stanza[len("Package: ") : stanza.index("\n")]
            found[name] = (*found.get(name, ()), stanza.rstrip("\n") + "\n")
    return found


def _index_download(signed: SignedRelease, mirrors: Mirrors) -> Download:
    release = signed.release
    sha256 = release.packages_sha256
    path = str(Path(INDEX).parent / "by-hash" / "SHA256" / sha256) if signed.by_hash else INDEX
    return Download(
        url=mirrors.url(release.archive, f"dists/{release.suite}/{path}"),
        sha256=sha256,
        size=signed.index_size,
        label=f"package index of {release.suite}",
    )


def _verified(signed: bytes, place: str, keyring: Path) -> str:
    if not keyring.is_file():
        raise ResolveError(
            f"Debian's keys are not installed: {keyring} is missing",
            remedy="install them, on Debian or Ubuntu: apt-get install debian-archive-keyring",
        )
    answer = run(["gpgv", "--keyring", str(keyring), "--output", "-"], stdin=signed)
    if answer.code != 0:
        raise ResolveError(
            f"the signature of {place} is not good",
            remedy="the mirror is damaged or not Debian's, or debian-archive-keyring is too old for this suite",
            evidence=tuple(answer.stderr.decode(errors="replace").splitlines()[-6:]),
        )
    return answer.stdout.decode()


def _is_debian() -> bool:
    try:
        return platform.freedesktop_os_release().get("ID") == "debian"
    except OSError:
        return False
