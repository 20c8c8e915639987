"""Recipe's Debian packages -> DebianLock: exact versions and hashes of the base and of the toolchain on top of it."""

from __future__ import annotations

import difflib
import lzma
import re
from typing import TYPE_CHECKING
from urllib.parse import quote

from builder.download import Download, NotFoundError, fetch_all
from builder.errors import ResolveError
from builder.lock.debian_archive import (
    ARCHITECTURE,
    KEYRING,
    fetch_indexes,
    fetch_releases,
    find_mirrors,
    stanzas_of,
)
from builder.lock.model import DebianLock, LockedDeb
from builder.process import run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from builder.download import Progress
    from builder.lock.debian_archive import Archive, SignedRelease
    from builder.process import Completed
    from builder.settings import Settings
    from builder.store import Store

_DEPENDS = re.compile(r"^(?:Pre-)?Depends: (.*)$", re.MULTILINE)
_PROVIDES = re.compile(r"^Provides: (.*)$", re.MULTILINE)
_NAMES = re.compile(r"(?:^|[,|]) *([a-z0-9][a-z0-9+.-]+)")

_APT_FOLDERS = (
    "etc/apt/apt.conf.d",
    "etc/apt/preferences.d",
    "etc/apt/sources.list.d",
    "etc/apt/trusted.gpg.d",
    "var/cache/apt/archives/partial",
    "var/lib/apt/lists/partial",
    "var/lib/dpkg",
)


class DebGoneError(ResolveError):
    """A locked .deb was superseded: the mirror has dropped it, and the store never had it."""


class Catalogue:
    """All packages of a suite: the paragraphs of its indexes by name, with the archive that has them."""

    def __init__(self, indexes: Iterable[tuple[Archive, str]]) -> None:
        self._indexes = [(archive, stanzas_of(text)) for archive, text in indexes]

    def stanza(self, name: str, version: str) -> tuple[Archive, str]:
        """Return where exactly this version is, and its paragraph."""
        for archive, stanzas in self._indexes:
            for stanza in stanzas.get(name, ()):
                if f"\nVersion: {version}\n" in stanza:
                    return archive, stanza
        raise ResolveError(f"apt chose {name} {version}, which no signed index names")

    def smallest_system(self) -> tuple[str, ...]:
        """Return what the smallest system is made of: Debian's essential and required packages, and apt.

        Debian policy 3.8 and 2.5; the same set as mmdebstrap's variant `minbase`.
        """
        fields = ("\nEssential: yes\n", "\nPriority: required\n")
        found = {
            name
            for _, stanzas in self._indexes
            for name, texts in stanzas.items()
            if any(field in f"{texts[0]}\n" for field in fields)
        }
        return tuple(sorted({*found, "apt"}))

    def reachable(self, names: Iterable[str]) -> str:
        """Return an index of all that these packages could ever bring: every alternative, every provider, all the way.

        A tenth of the suite at most, so apt answers in a tenth of the time, and answers the same: it installs nothing
        that no chain of dependencies leads to.
        """
        providers, found, waiting = self._providers(), dict[str, list[str]](), [*names]
        while waiting:
            name = waiting.pop()
            if name not in found:
                found[name] = [text for _, stanzas in self._indexes for text in stanzas.get(name, ())]
                waiting += providers.get(name, ())
                waiting += [other for text in found[name] for other in _dependencies(text)]
        return "\n".join(text for name in sorted(found) for text in found[name])

    def _providers(self) -> dict[str, list[str]]:
        """Return who provides each virtual package."""
        found: dict[str, list[str]] = {}
        for _, stanzas in self._indexes:
            for own, texts in stanzas.items():
                for line in (line for text in texts if "\nProvides: " in text for line in _PROVIDES.findall(text)):
                    for name in _NAMES.findall(line):
                        found.setdefault(name, []).append(own)
        return found

    def require(self, names: Iterable[str], suite: str) -> None:
        """Refuse a name that is not a package, and name the nearest ones."""
        for name in names:
            if not any(name in stanzas for _, stanzas in self._indexes):
                raise ResolveError(f"{suite} has no package {name!r}", remedy=self._advice(name))

    def _advice(self, name: str) -> str:
        providers = {*self._providers().get(name, ())}
        if providers:
            return f"{name} is a virtual package; name one that provides it: {', '.join(sorted(providers)[:5])}"
        known = {own for _, stanzas in self._indexes for own in stanzas}
        near = difflib.get_close_matches(name, sorted(known), n=3)
        return f"did you mean {', '.join(near)}?" if near else "look the name up with `apt-cache search`"


def resolve_debian(
    suite: str,
    base_packages: Iterable[str],
    toolchain_packages: Iterable[str],
    store: Store,
    settings: Settings,
    *,
    keyring: Path = KEYRING,
    on_progress: Callable[[Progress], None] | None = None,
) -> DebianLock:
    """Choose the newest packages of a suite with its updates and security updates, and all that they depend on.

    The base holds `minbase` (Debian's essential and required packages) and `base_packages`; the toolchain holds
    what `toolchain_packages` add to that base. Recommended packages are left out. No mirror is named in the result.
    """
    base_names, toolchain_names = sorted(set(base_packages)), sorted(set(toolchain_packages))
    mirrors = find_mirrors(settings)
    releases = fetch_releases(suite, mirrors, settings, keyring)
    fetch_indexes(releases, mirrors, store, settings, on_progress)
    catalogue = Catalogue((signed.release.archive, _index(signed, store)) for signed in releases)
    catalogue.require((*base_names, *toolchain_names), suite)
    with store.scratch() as scratch:
        system = catalogue.smallest_system()
        apt = _Apt(scratch, catalogue.reachable((*system, *base_names, *toolchain_names)))
        base = apt.installed((*system, *base_names), ())
        status = [catalogue.stanza(name, version)[1] for name, version in base.items()]
        toolchain = apt.installed(toolchain_names, status) if toolchain_names else {}
    return DebianLock(
        suite=suite,
        architecture=ARCHITECTURE,
        releases=tuple(signed.release for signed in releases),
        base=_locked(base, catalogue),
        toolchain=_locked(toolchain, catalogue),
    )


def fetch_debs(
    packages: Iterable[LockedDeb],
    store: Store,
    settings: Settings,
    on_progress: Callable[[Progress], None] | None = None,
) -> None:
    """Bring every locked .deb into the store; raise DebGoneError for one that was superseded and is nowhere."""
    missing = [deb for deb in packages if not store.has(deb.sha256)]
    if not missing:
        return
    mirrors = find_mirrors(settings)
    by_url = {mirrors.url(deb.archive, deb.filename): deb for deb in missing}
    downloads = [
        Download(url=url, sha256=deb.sha256, size=deb.size, label=f"{deb.name} {deb.version}")
        for url, deb in by_url.items()
    ]
    try:
        fetch_all(downloads, store, settings, on_progress)
    except NotFoundError as error:
        deb = by_url[error.url]
        raise DebGoneError(
            f"the locked package {deb.name} {deb.version} is no longer on the mirror, and the store does not have it",
            remedy="run `envbuild lock --update debian RECIPE`, or take the file from another machine's store",
            evidence=(error.message, f"sha256 {deb.sha256}"),
        ) from error


def chosen_packages(simulation: str) -> dict[str, str]:
    """Read names and versions out of the `Inst NAME (VERSION …)` lines of a simulated apt, sorted by name."""
    lines = re.findall(r"^Inst (\S+) (?:\[[^\]]*\] )?\((\S+) ", simulation, re.MULTILINE)
    return dict(sorted(lines))


def _index(signed: SignedRelease, store: Store) -> str:
    return lzma.decompress(store.sound(signed.release.packages_sha256).read_bytes()).decode()


class _Apt:
    """An apt of its own: no privileges, no machine, only the index that it is given, which was checked before."""

    def __init__(self, root: Path, index: str) -> None:
        for folder in _APT_FOLDERS:
            (root / folder).mkdir(parents=True)
        (root / "mirror").mkdir()
        (root / "mirror/Packages").write_text(index)
        self._status = root / "var/lib/dpkg/status"
        (root / "etc/apt/sources.list").write_text(f"deb [trusted=yes] file:{quote(str(root))}/mirror ./\n")
        configuration = root / "apt.conf"
        configuration.write_text(
            f'Dir "{root}/";\nDir::State::status "{self._status}";\n'
            f'APT::Architecture "{ARCHITECTURE}";\nAPT::Architectures {{ "{ARCHITECTURE}"; }};\n'
            'APT::Install-Recommends "false";\nAPT::Sandbox::User "root";\nAcquire::Languages "none";\n'
        )
        self._environment = {"APT_CONFIG": str(configuration), "LC_ALL": "C.UTF-8"}
        self._status.touch()
        _answer_of(run(["apt-get", "update"], environment=self._environment), ())

    def installed(self, names: Iterable[str], present: Iterable[str]) -> dict[str, str]:
        """Return what apt would install for some packages where exactly the paragraphs `present` are installed."""
        self._status.write_text("\n".join(_installed(stanza) for stanza in present))
        wanted = tuple(names)
        command = ["apt-get", "install", "--simulate", *wanted]
        return _answer_of(run(command, environment=self._environment), wanted)


def _dependencies(stanza: str) -> list[str]:
    """Return every package that a paragraph may need, each alternative of each dependency (Debian policy 7.1)."""
    return [name for line in _DEPENDS.findall(stanza) for name in _NAMES.findall(line)]


def _installed(stanza: str) -> str:
    name, rest = stanza.split("\n", 1)
    return f"{name}\nStatus: install ok installed\n{rest}"


def _answer_of(answer: Completed, names: tuple[str, ...]) -> dict[str, str]:
    if answer.code != 0:
        lines = [line for line in answer.text.splitlines() if line.strip()]
        raise ResolveError(
            f"apt cannot resolve the Debian packages {', '.join(names)}" if names else "apt cannot read its sources",
            remedy="the lines say which dependency fails; a mirror in the middle of an update fails like this too",
            evidence=tuple(lines[-12:]),
        )
    return chosen_packages(answer.text)


def _locked(chosen: Mapping[str, str], catalogue: Catalogue) -> tuple[LockedDeb, ...]:
    return tuple(_locked_deb(name, *catalogue.stanza(name, version)) for name, version in chosen.items())


def _locked_deb(name: str, archive: Archive, stanza: str) -> LockedDeb:
    fields = dict(re.findall(r"^([A-Za-z0-9-]+): (.*)$", stanza, re.MULTILINE))
    return LockedDeb(
        name=name,
        version=fields["Version"],
        architecture=fields["Architecture"],
        archive=archive,
        filename=fields["Filename"],
        sha256=fields["SHA256"],
        size=int(fields["Size"]),
    )
