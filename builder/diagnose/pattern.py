"""The small pattern language of the knowledge: literals, gaps, alternatives and typed holes, matched in linear time."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import resources

ANCHOR = 7
WORD = 4
MAX_ALTERNATIVES = 96

_HOLES = {
    "int": r"\d{1,18}",
    "num": r"\d{1,18}(?:\.\d{1,9})?",
    "hex": r"0x[0-9a-f]{1,16}",
    "word": r"[\w.+-]{1,80}",
    "path": r"[^\s'\",;]{1,240}",
    "text": r"[^'\"]{1,240}",
    "version": r"\d{1,6}(?:\.\d{1,6}){1,3}(?:(?:a|b|rc|\.post|\.dev)\d{1,4})?(?:\+[a-z0-9.]{1,24})?",
    "edge": r"\b",
}
_TOKEN = re.compile(r"\\(?P<escaped>.)|\{(?:(?P<name>[a-z_]+):)?(?P<hole>[a-z]+)\}|<(?P<choice>[^<>]*)>|(?P<gap>\*)")
_QUOTES = str.maketrans({0x2018: "'", 0x2019: "'", 0x60: "'", 0x201C: '"', 0x201D: '"', 0xA0: " ", 0xD7: "x"})
_ANCHORABLE = re.compile(r"[\n!#-&(-_a-z{-~ ]{7,}")


class PatternError(ValueError):
    """A pattern of the knowledge cannot be used; the message says why."""


def fold(text: str) -> str:
    """Return text as patterns see it: lower case, plain quotes, single spaces."""
    return " ".join(text.translate(_QUOTES).lower().split())


@dataclass(frozen=True, slots=True)
class _Piece:
    """A run without gaps: a plain string, or an expression where it has holes."""

    text: str
    regex: re.Pattern[str] | None

    def find(self, text: str, start: int) -> tuple[int, dict[str, str]] | None:
        if self.regex is None:
            at = text.find(self.text, start)
            return None if at < 0 else (at + len(self.text), {})
        found = self.regex.search(text, start)
        return None if found is None else (found.end(), found.groupdict())


@dataclass(frozen=True, slots=True)
class _Sequence:
    """One expansion of a pattern: pieces that follow each other, anything between them."""

    pieces: tuple[_Piece, ...]
    anchors: tuple[str, ...]

    def match(self, text: str) -> dict[str, str] | None:
        captures: dict[str, str] = {}
        start = 0
        for piece in self.pieces:
            found = piece.find(text, start)
            if found is None:
                return None
            start, values = found
            captures.update(values)
        return captures


class Pattern:
    r"""A compiled pattern.

    `*` is a gap, `<a|b|>` a choice, `{int}` or `{name:int}` a hole (int num hex word path text version edge), `^` and
    `$` the ends of the line, `\` takes the next character as it is. Leftmost pieces are taken first and a hole is
    bounded, so the time is linear in the length of the line.
    """

    def __init__(self, source: str) -> None:
        self.source = source
        self._sequences = tuple(_sequence(text) for text in _expand(source))

    def match(self, text: str) -> dict[str, str] | None:
        """Return the named holes if the folded line `text` matches, else None."""
        for sequence in self._sequences:
            found = sequence.match(text)
            if found is not None:
                return found
        return None

    @cached_property
    def anchors(self) -> frozenset[bytes]:
        """Bytes (7 each, lower case, a newline at a line's end) of which every line that matches holds one."""
        return frozenset(windows[0].encode() for windows in self._windows)

    def anchors_avoiding(self, common: str) -> frozenset[bytes]:
        """Return other anchors that `common` does not hold, as far as there are any."""
        chosen = (next((w for w in windows if w not in common), windows[0]) for windows in self._windows)
        return frozenset(window.encode() for window in chosen)

    @cached_property
    def _windows(self) -> tuple[tuple[str, ...], ...]:
        """For each spelling all possible anchors, the best first; raises PatternError where there is none."""
        return tuple(self._windows_of(sequence) for sequence in self._sequences)

    def _windows_of(self, sequence: _Sequence) -> tuple[str, ...]:
        windows = {text[at : at + ANCHOR] for text in sequence.anchors for at in range(len(text) - ANCHOR + 1)}
        if not windows:
            raise PatternError(f"{self.source!r}: needs {ANCHOR} literal characters in a row (without quotes)")
        return tuple(sorted(windows, key=_commonness))

    @cached_property
    def pieces(self) -> tuple[str, ...]:
        """The regular expressions inside, for the check that none of them can run away."""
        found = (piece.regex for sequence in self._sequences for piece in sequence.pieces)
        return tuple(regex.pattern for regex in found if regex is not None)

    @cached_property
    def literals(self) -> tuple[bytes, ...]:
        """For each spelling the longest bytes that a line must contain, in lower case."""
        return tuple(max(sequence.anchors, key=len).encode() for sequence in self._sequences)


@cache
def pattern_of(source: str) -> Pattern:
    """Return the compiled pattern of a source; raise PatternError if it cannot be used."""
    pattern = Pattern(source)
    _ = pattern.anchors
    return pattern


@cache
def _ordinary(width: int) -> Counter[str]:
    """Return how often each run of `width` characters is in lines as healthy servers and builds write them."""
    text = (resources.files("builder.diagnose") / "knowledge" / "ordinary.txt").read_text("utf-8").lower()
    return Counter(text[at : at + width] for at in range(len(text) - width + 1))


@cache
def _commonness(window: str) -> tuple[bool, bool, int, str]:
    """Rank a window: in no ordinary line, without spaces (of which there may be two), of words that are rare there."""
    words = sum(_ordinary(WORD)[window[at : at + WORD]] for at in range(ANCHOR - WORD + 1))
    return _ordinary(ANCHOR)[window] > 0, " " in window, words, window


def _expand(source: str) -> list[str]:
    """Return every spelling of a pattern, one per combination of its choices."""
    parts: list[list[str]] = []
    end = 0
    for token in _TOKEN.finditer(source):
        if token["choice"] is None:
            continue
        parts += [[source[end : token.start()]], token["choice"].split("|")]
        end = token.end()
    parts.append([source[end:]])
    spellings = [
        "".join(combination) for combination in itertools.islice(itertools.product(*parts), MAX_ALTERNATIVES + 1)
    ]
    if len(spellings) > MAX_ALTERNATIVES:
        raise PatternError(f"{source!r}: more than {MAX_ALTERNATIVES} combinations of choices")
    return spellings


def _sequence(text: str) -> _Sequence:
    runs: list[list[tuple[str, str]]] = [[]]
    end = 0
    body = text.translate(_QUOTES)
    for token in _TOKEN.finditer(body):
        _literal(runs[-1], body[end : token.start()])
        if token["gap"]:
            runs.append([])
        elif token["escaped"]:
            _literal(runs[-1], token["escaped"])
        elif token["hole"]:
            runs[-1].append(("hole", _hole(text, token["hole"], token["name"])))
        end = token.end()
    _literal(runs[-1], body[end:])
    _line_ends(runs)
    kept = [run for run in runs if run]
    return _Sequence(tuple(_piece(run) for run in kept), tuple(a for run in kept for a in _anchors(run)))


def _hole(source: str, kind: str, name: str | None) -> str:
    if kind not in _HOLES:
        raise PatternError(f"{source!r}: no hole is called {kind!r} (there are {', '.join(_HOLES)})")
    return f"(?P<{name}>{_HOLES[kind]})" if name else _HOLES[kind]


def _literal(run: list[tuple[str, str]], text: str) -> None:
    """Add literal text to a run, joined to the literal before it."""
    folded = re.sub(r"\s+", " ", text.lower())
    if not folded:
        return
    if run and run[-1][0] == "text":
        run[-1] = ("text", run[-1][1] + folded)
    else:
        run.append(("text", folded))


def _line_ends(runs: list[list[tuple[str, str]]]) -> None:
    first, last = runs[0], runs[-1]
    if first and first[0][0] == "text" and first[0][1].startswith("^"):
        first[0] = ("text", first[0][1][1:])
        first.insert(0, ("start", r"\A"))
    if last and last[-1][0] == "text" and last[-1][1].endswith("$"):
        last[-1] = ("text", last[-1][1][:-1])
        last.append(("end", r"\Z"))


def _piece(run: list[tuple[str, str]]) -> _Piece:
    if len(run) == 1 and run[0][0] == "text":
        return _Piece(run[0][1], None)
    regex = "".join(re.escape(text) if kind == "text" else text for kind, text in run)
    return _Piece(regex, re.compile(regex))


def _anchors(run: list[tuple[str, str]]) -> list[str]:
    """Return the literal stretches of a run that raw bytes must contain, with a newline where the line must end."""
    joined = "".join({"text": text, "end": "\n"}.get(kind, "\0") for kind, text in run)
    return [found for part in joined.split("\0") for found in _ANCHORABLE.findall(part)]
