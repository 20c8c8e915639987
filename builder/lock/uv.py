"""Running uv: a question about requirements in, its `pylock.toml` out, or its explanation of why there is none."""

from __future__ import annotations

import json
import os
import re
import sys
from dataclasses import dataclass
from datetime import date, timedelta
from typing import TYPE_CHECKING

from uv import find_uv_bin

from builder import process
from builder.document import key_of
from builder.download import remedy_for, shown
from builder.errors import ResolveError
from builder.lock.conflict import ROOT, UnsatisfiableError, find_conflict
from builder.lock.index import INDEX_REMEDY, configured_index

if TYPE_CHECKING:
    from collections.abc import Mapping

    from builder.lock.target import Target
    from builder.process import Completed
    from builder.recipe.model import Index
    from builder.settings import Settings
    from builder.store import Store

# What may pass from the caller's environment to uv: how it reaches the network and where it keeps its cache. Every
# other variable of uv's could change the answer.
PASSED = frozenset(
    {
        "UV_CACHE_DIR",
        "UV_CONCURRENT_DOWNLOADS",
        "UV_HTTP_CONNECT_TIMEOUT",
        "UV_HTTP_RETRIES",
        "UV_HTTP_TIMEOUT",
        "UV_INSECURE_HOST",
        "UV_KEYRING_PROVIDER",
        "UV_NATIVE_TLS",
        "UV_OFFLINE",
        "UV_REQUEST_TIMEOUT",
        "UV_SYSTEM_CERTS",
    }
)
CREDENTIALS = re.compile(r"UV_INDEX_.+_(USERNAME|PASSWORD)")
ANSWER = "pylock.toml"
ABSENT = re.compile(r"not found in the package registry|there (?:is|are) no versions? of")
# How uv frames and begins the statements of its explanations; all other lines continue the one before.
FRAME = re.compile(r"^[\s│]*([\N{MULTIPLICATION SIGN}╰├][─▶\s]*|error: |cause: |Caused by: )?(.*?)\s*$")
STARTS = ("Because ", "And ", "hint: ")
UNSATISFIABLE = 1  # uv's exit code for a fault in what it was asked, against 2 for a fault on the way


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """What uv is asked.

    `as_of` (an ISO date, that day included) hides newer files; `excluded` packages are never looked for; a direct
    requirement that an index of `indexes` lists comes from that index alone.
    """

    requirements: tuple[str, ...]
    target: Target
    overrides: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()
    indexes: Mapping[str, Index]
    as_of: str | None = None


def ask_uv(question: Question, previous: bytes, store: Store, settings: Settings) -> bytes:
    """Return the `pylock.toml` that answers a question; versions of the `previous` file are kept where they can be.

    Raise ResolveError with uv's own explanation if there is no answer. No configuration file of uv counts, and no
    variable of its but those that say how to reach the network: the answer depends on the question and the index.
    """
    with store.scratch() as folder:
        (folder / ANSWER).write_bytes(previous)
        for name, text in uv_files(question).items():
            (folder / name).write_text(text, encoding="utf-8")
        ended = process.run(
            uv_command(question),
            cwd=folder,
            environment=_environment(settings),
            without=[name for name in os.environ if name.startswith("UV_") and not _may_pass(name)],
        )
        if ended.code != 0:
            raise _failure(ended, question, store, settings)
        return (folder / ANSWER).read_bytes()


def uv_command(question: Question) -> tuple[str, ...]:
    """Return the command line that answers a question in a folder that holds the files of `uv_files`."""
    newest = ("--exclude-newer", end_of_day(question.as_of)) if question.as_of else ()
    return (
        find_uv_bin(), "pip", "compile", "pyproject.toml",
        "--no-config", "--quiet", "--color", "never", "--no-header",
        "--python", sys.executable, "--no-python-downloads",
        "--python-version", question.target.python,
        "--python-platform", question.target.uv_platform,
        "--only-binary", ":all:",
        "--overrides", "overrides.txt",
        "--excludes", "excludes.txt",
        *newest,
        "--format", "pylock.toml", "--generate-hashes", "--output-file", ANSWER,
    )  # fmt: skip


def uv_files(question: Question) -> dict[str, str]:
    """Return the files that carry a question to uv, by name."""
    return {
        "pyproject.toml": _project(question),
        "overrides.txt": "".join(f"{line}\n" for line in question.overrides),
        "excludes.txt": "".join(f"{line}\n" for line in question.excluded),
    }


def end_of_day(day: str) -> str:
    """Return the moment (RFC 3339, UTC) after an ISO date: uv itself would end the day in the machine's time zone."""
    return f"{date.fromisoformat(day) + timedelta(days=1)}T00:00:00Z"


def explanation(stderr: str) -> tuple[str, ...]:
    """Return what uv says of a failure: one sentence or cause a line, without frames, wrapping and passwords."""
    lines: list[str] = []
    for line in re.sub(r"://[^/@\s]+@", "://", stderr).splitlines():
        mark, words = FRAME.findall(line)[0]
        if not words or words.startswith("No solution found"):
            continue
        if mark or not lines or words.startswith(STARTS):
            lines.append(words)
        else:
            lines[-1] += f" {words}"
    return tuple(lines)


def _project(question: Question) -> str:
    requirements = "".join(f"    {json.dumps(line)},\n" for line in question.requirements)
    head = (
        f'[project]\nname = "{ROOT}"\nversion = "0"\nrequires-python = ">={question.target.python}"\n'
        f"dependencies = [\n{requirements}]\n"
    )
    indexes = "".join(
        f"\n[[tool.uv.index]]\nname = {json.dumps(name)}\nurl = {json.dumps(index.url)}\nexplicit = true\n"
        for name, index in sorted(question.indexes.items())
    )
    sources = "".join(
        f"{json.dumps(package)} = {{ index = {json.dumps(name)} }}\n"
        for name, index in sorted(question.indexes.items())
        for package in index.packages
    )
    return head + indexes + (f"\n[tool.uv.sources]\n{sources}" if sources else "")


def _environment(settings: Settings) -> dict[str, str]:
    index = configured_index(settings)
    return {
        **({"UV_DEFAULT_INDEX": index} if index else {}),
        **({"SSL_CERT_FILE": str(settings.ca_bundle)} if settings.ca_bundle else {}),
    }


def _may_pass(name: str) -> bool:
    return name in PASSED or CREDENTIALS.fullmatch(name) is not None


def _failure(ended: Completed, question: Question, store: Store, settings: Settings) -> ResolveError:
    said = explanation(ended.stderr.decode(errors="replace"))
    if ended.code != UNSATISFIABLE:
        return ResolveError(
            "uv could not resolve the pins", remedy=remedy_for("".join(said), INDEX_REMEDY), evidence=said
        )
    conflict = find_conflict(said)
    with store.log(f"resolve-{key_of(question.requirements)[:16]}.log") as log:
        log.write("".join(f"{line}\n" for line in said).encode())
    lines = conflict.lines if conflict else said
    remedy = "change one of the pins named here, or overrule a requirement in `overrides` and say why"
    if any(ABSENT.search(line) for line in lines):  # a wrong index looks like this, too
        index = configured_index(settings)
        asked = f" ({shown(index)} was asked)" if index else ""
        remedy = f"correct the name or the version; if they are right, {INDEX_REMEDY}{asked}"
    return UnsatisfiableError(
        f"no set of wheels satisfies the pins for {question.target}",
        remedy=f"{remedy}; uv's whole proof is in {log.name}" if conflict else remedy,
        evidence=lines,
        conflict=conflict,
    )
