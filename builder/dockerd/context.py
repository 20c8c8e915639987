"""What a Dockerfile build is made from: its folder as one reproducible tar stream, and the images that it names."""

from __future__ import annotations

import io
import re
import tarfile
from typing import TYPE_CHECKING

from builder.document import CHUNK
from builder.errors import BuildFailedError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

DOCKERFILE = "Dockerfile"
CLOCK = 315532800  # 1980-01-01, the oldest time that a zip file (so a wheel) can hold

_VARIABLE = re.compile(r"\$(?:\{(\w+)(?::-([^}]*))?\}|(\w+))")
_FROM_FLAG = re.compile(r"(?:--from=|--mount=\S*\bfrom=)([^\s,]+)")
_CONTINUED = re.compile(r"\\[ \t]*$")


def context_tar(folder: Path, dockerfile: str) -> Iterator[bytes]:
    """Yield the folder as a tar: sorted, owned by root, times and modes fixed, `dockerfile` in place of its own."""
    text = dockerfile.encode()
    yield _header(tarfile.TarInfo(DOCKERFILE), size=len(text)) + _padded(text)
    for path in sorted(folder.rglob("*"), key=lambda item: item.relative_to(folder).as_posix().encode()):
        name = path.relative_to(folder).as_posix()
        if name != DOCKERFILE:
            yield from _entry(path, name)
    yield bytes(2 * tarfile.BLOCKSIZE)


def _entry(path: Path, name: str) -> Iterator[bytes]:
    info = tarfile.TarInfo(name)
    if path.is_symlink():
        info.type, info.linkname = tarfile.SYMTYPE, str(path.readlink())
        yield _header(info)
    elif path.is_dir():
        info.type = tarfile.DIRTYPE
        yield _header(info, mode=0o755)
    elif path.is_file():
        facts = path.stat()
        yield _header(info, size=facts.st_size, mode=0o755 if facts.st_mode & 0o100 else 0o644)
        yield from _content(path, facts.st_size)
    else:
        raise BuildFailedError(f"the build context holds {path}, which is no file, folder or link")


def _content(path: Path, size: int) -> Iterator[bytes]:
    sent = 0
    with path.open("rb") as file:
        while data := file.read(CHUNK):
            sent += len(data)
            yield data
    if sent != size:
        raise BuildFailedError(f"{path} changed while it was sent to the engine")
    yield bytes(-size % tarfile.BLOCKSIZE)


def _header(info: tarfile.TarInfo, *, size: int = 0, mode: int = 0o644) -> bytes:
    info.size, info.mode, info.mtime = size, mode, CLOCK
    return info.tobuf(format=tarfile.PAX_FORMAT)


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % tarfile.BLOCKSIZE)


def named_images(dockerfile: str, arguments: Mapping[str, str]) -> tuple[str, ...]:
    """Return the images that a Dockerfile takes from outside: FROM, COPY --from and RUN --mount=from, in order."""
    values: dict[str, str] = {}
    stages = {"scratch"}
    found: list[str] = []

    def take(image: str) -> None:
        if image and image.lower() not in stages and not image.isdigit() and image not in found:
            found.append(image)

    for instruction, rest in _instructions(dockerfile):
        if instruction == "ARG" and not found and stages == {"scratch"}:
            name, _, default = rest.partition("=")
            values[name] = arguments.get(name, default.strip("\"'"))
        elif instruction == "FROM":
            words = [word for word in rest.split() if not word.startswith("--")]
            take(_substitute(words[0], values) if words else "")
            stages.update(word.lower() for word in words[2:3])
        elif instruction in {"COPY", "ADD", "RUN"}:
            for image in _FROM_FLAG.findall(rest):
                take(image)
    return tuple(found)


def _instructions(dockerfile: str) -> Iterator[tuple[str, str]]:
    logical = ""
    for line in io.StringIO(dockerfile):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        logical += _CONTINUED.sub(" ", line.rstrip("\r\n"))
        if not _CONTINUED.search(line):
            word, _, rest = logical.strip().partition(" ")
            yield word.upper(), rest.strip()
            logical = ""


def _substitute(text: str, values: Mapping[str, str]) -> str:
    def value(match: re.Match[str]) -> str:
        braced, default, bare = match.groups()
        return values.get(braced or bare) or default or ""

    return _VARIABLE.sub(value, text)
