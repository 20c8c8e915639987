"""Git as a source: exactly one commit into a bare repository in the store, its files from raw objects, no checkout."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Literal

from builder import process
from builder.document import key_of
from builder.download import shown
from builder.errors import ResolveError
from builder.lock.model import LockedSubmodule
from builder.lock.tree import SourceFile, checked_tree

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from builder.process import Completed
    from builder.settings import Settings
    from builder.store import Store

# What a caller of envbuild, such as a git hook, may have set and must not steer our repositories.
WITHOUT = (
    "GIT_ALTERNATE_OBJECT_DIRECTORIES",
    "GIT_COMMON_DIR",
    "GIT_DIR",
    "GIT_INDEX_FILE",
    "GIT_NAMESPACE",
    "GIT_OBJECT_DIRECTORY",
    "GIT_PREFIX",
    "GIT_WORK_TREE",
)
MIRROR_REMEDY = (
    "check address and network, or name a mirror: `git config --global url.MIRROR.insteadOf START-OF-ADDRESS`"
)
# Modes of git's tree entries; all others that exist are those of plain files.
SUBMODULE = "160000"
KINDS: dict[str, Literal["executable", "link"]] = {"100755": "executable", "120000": "link"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkout:
    """A commit in a bare repository of this machine; `place` names the recipe's field in errors."""

    repository: Path
    url: str
    commit: str
    place: str

    def git(self, *arguments: str, stdin: bytes = b"") -> Completed:
        """Run git in the repository; no network is used."""
        return _git("--git-dir", str(self.repository), *arguments, stdin=stdin)

    @property
    def tree(self) -> str:
        """The hash of the commit's tree object, which covers names, modes and bytes of all its files."""
        return self.git("rev-parse", f"{self.commit}^{{tree}}").stdout.decode().strip()

    def has_ancestor(self, commit: str) -> bool:
        """Say whether another commit is in the history; a commit that the repository does not know is not."""
        return self.git("merge-base", "--is-ancestor", commit, self.commit).code == 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Export:
    """The files of a commit by name, those of its submodules among them, and which submodules these are."""

    files: dict[str, SourceFile]
    submodules: tuple[LockedSubmodule, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Entry:
    mode: str
    object: str
    path: str


def repository_of(url: str, store: Store, *, history: bool) -> Path:
    """Return where the store keeps what it fetched from an address, with or without history."""
    return store.root / "git" / f"{key_of({'url': url, 'history': history})[:32]}.git"


def fetch_commit(
    url: str, commit: str, store: Store, settings: Settings, *, place: str, history: bool = False
) -> Checkout:
    """Bring a commit, with its `history` if that is asked for, into the store; costs nothing if it is there.

    The user's own git configuration says how to reach a server (mirrors by `url.BASE.insteadOf`, proxies, credentials).
    Raise ResolveError if the repository cannot be reached or does not have the commit.
    """
    key = key_of({"url": url, "history": history})
    repository = repository_of(url, store, history=history)
    checkout = Checkout(repository=repository, url=url, commit=commit, place=place)
    with store.exclusive(f"git-{key[:32]}"):
        if checkout.git("rev-parse", "--quiet", "--verify", _kept(commit)).code != 0:
            _prepare(checkout)
            _fetch(checkout, settings, depth=() if history else ("--depth=1",))
    return checkout


def commits_between(checkout: Checkout, good: str) -> tuple[str, ...]:
    """Return the commits after `good` up to the one checked out, oldest first, along first parents.

    The repository must have its history. Raise ResolveError if `good` is not in it.
    """
    if not checkout.has_ancestor(good):
        raise ResolveError(
            f"{checkout.place}: {good} is not in the history of {checkout.commit}",
            remedy="give the older commit first: the good one must come before the bad one",
        )
    listed = checkout.git("rev-list", "--reverse", "--first-parent", f"{good}..{checkout.commit}")
    return tuple(listed.stdout.decode().split())


def export_commit(checkout: Checkout, store: Store, settings: Settings) -> Export:
    """Return the files of a commit and of its submodules, raw as they are in the objects.

    No attribute, line-end conversion or filter of any configuration counts; files of git LFS stay pointers. Raise
    ResolveError if a submodule cannot be had.
    """
    entries = _entries(checkout)
    files = _files(checkout, [entry for entry in entries if entry.mode != SUBMODULE])
    links = [entry for entry in entries if entry.mode == SUBMODULE]
    urls = _submodule_urls(checkout) if links else {}
    submodules: list[LockedSubmodule] = []
    for entry in links:
        if entry.path not in urls:
            raise ResolveError(f"{checkout.place}: the submodule {entry.path} has no address in .gitmodules", remedy="")
        url = resolved_url(checkout.url, urls[entry.path])
        place = f"{checkout.place}: submodule {entry.path}"
        inner = export_commit(fetch_commit(url, entry.object, store, settings, place=place), store, settings)
        files |= {f"{entry.path}/{name}": file for name, file in inner.files.items()}
        submodules.append(LockedSubmodule(path=entry.path, url=url, commit=entry.object))
        submodules += [each.model_copy(update={"path": f"{entry.path}/{each.path}"}) for each in inner.submodules]
    return Export(files=checked_tree(files, checkout.place), submodules=tuple(submodules))


def resolved_url(parent: str, url: str) -> str:
    """Return a submodule's address; one that begins with `./` or `../` is relative to its parent's."""
    if not url.startswith(("./", "../")):
        return url
    base = parent.rstrip("/")
    for part in PurePosixPath(url).parts:
        base = base[: max(base.rfind("/"), base.rfind(":"), 0)] if part == ".." else f"{base}/{part}"
    return base


def _kept(commit: str) -> str:
    return f"refs/envbuild/{commit}"


def _prepare(checkout: Checkout) -> None:
    """Make the repository where there is none; take away what a killed git left locked, since nobody else is here."""
    kind = "sha256" if len(checkout.commit) == 64 else "sha1"
    ended = _git("init", "--quiet", "--bare", "--template=", f"--object-format={kind}", str(checkout.repository))
    if ended.code != 0:
        raise ResolveError(
            f"{checkout.place}: git cannot make the repository {checkout.repository}",
            remedy="remove that folder, and see whether its disk is full",
            evidence=_lines(ended),
        )
    for left in checkout.repository.rglob("*.lock"):
        left.unlink()


def _git(*arguments: str, stdin: bytes = b"", environment: dict[str, str] | None = None) -> Completed:
    return process.run(
        ("git", "-c", "gc.auto=0", *arguments),
        stdin=stdin,
        environment={"GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C", **(environment or {})},
        without=WITHOUT,
    )


def _fetch(checkout: Checkout, settings: Settings, depth: tuple[str, ...]) -> None:
    """Ask for the commit alone; a server that gives out only branches and tags is asked for all of those."""
    ended = _transfer(checkout, settings, *depth, refs=(f"{checkout.commit}:{_kept(checkout.commit)}",))
    if ended.code == 0:
        return
    if "not our ref" not in ended.text:
        if _from_server(checkout, settings, "ls-remote", "--", checkout.url, "HEAD").code != 0:
            raise ResolveError(
                f"{checkout.place}: the git repository {shown(checkout.url)} cannot be reached",
                remedy=MIRROR_REMEDY,
                evidence=_lines(ended),
            )
        every = ("+refs/heads/*:refs/envbuild/heads/*", "+refs/tags/*:refs/envbuild/tags/*")
        ended = _transfer(checkout, settings, refs=every)
        if checkout.git("update-ref", _kept(checkout.commit), f"{checkout.commit}^{{commit}}").code == 0:
            return
    raise ResolveError(
        f"{checkout.place}: {shown(checkout.url)} has no commit {checkout.commit}",
        remedy="give the full hash of a commit that is on a branch or tag of that repository",
        evidence=_lines(ended),
    )


def _transfer(checkout: Checkout, settings: Settings, *options: str, refs: tuple[str, ...]) -> Completed:
    fixed = ("--quiet", "--no-tags", "--no-write-fetch-head", "--no-recurse-submodules")
    return _from_server(checkout, settings, "fetch", *fixed, *options, "--", checkout.url, *refs)


def _from_server(checkout: Checkout, settings: Settings, *command: str) -> Completed:
    patience = ("-c", "http.lowSpeedLimit=1000", "-c", "http.lowSpeedTime=60")  # bytes per second, for so many seconds
    certificates = {"GIT_SSL_CAINFO": str(settings.ca_bundle)} if settings.ca_bundle else {}
    return _git(*patience, "--git-dir", str(checkout.repository), *command, environment=certificates)


def _lines(ended: Completed) -> tuple[str, ...]:
    return tuple(re.sub(r"://[^/@\s]+@", "://", ended.text).strip().splitlines()[-5:])


def _entries(checkout: Checkout) -> tuple[_Entry, ...]:
    listed = checkout.git("ls-tree", "-r", "-z", "--full-tree", checkout.commit).stdout
    return tuple(_entry(line) for line in listed.split(b"\0") if line)


def _entry(line: bytes) -> _Entry:
    head, _, name = line.partition(b"\t")
    mode, _, oid = head.decode().split(" ")
    return _Entry(mode=mode, object=oid, path=name.decode(errors="surrogateescape"))


def _files(checkout: Checkout, entries: Sequence[_Entry]) -> dict[str, SourceFile]:
    asked = "".join(f"{entry.object}\n" for entry in entries).encode()
    blobs = _blobs(checkout.git("cat-file", "--batch", stdin=asked).stdout)
    return {
        entry.path: SourceFile(kind=KINDS.get(entry.mode, "file"), data=data)
        for entry, data in zip(entries, blobs, strict=True)
    }


def _blobs(answer: bytes) -> Iterator[bytes]:
    """Yield the objects that `git cat-file --batch` printed: a line `HASH TYPE SIZE`, the bytes, a line end."""
    start = 0
    while start < len(answer):
        end = answer.index(b"\n", start)
        size = int(answer[start:end].split(b" ")[2])
        yield answer[end + 1 : end + 1 + size]
        start = end + 1 + size + 1


def _submodule_urls(checkout: Checkout) -> dict[str, str]:
    """Return the addresses in `.gitmodules` by the submodule's path."""
    ended = checkout.git("config", "--blob", f"{checkout.commit}:.gitmodules", "-z", "--list")
    fields: dict[str, dict[str, str]] = {}
    for line in ended.stdout.decode(errors="replace").split("\0"):
        key, _, value = line.partition("\n")
        kind, _, rest = key.partition(".")
        name, _, field = rest.rpartition(".")
        if kind == "submodule":
            fields.setdefault(name, {})[field] = value
    return {entry["path"]: entry["url"] for entry in fields.values() if "path" in entry and "url" in entry}
