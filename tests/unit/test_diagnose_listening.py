"""What a log repeats is soon passed over, and nothing else is lost by it."""

from __future__ import annotations

import io

from builder.diagnose import diagnose
from builder.diagnose.knowledge import built_in
from builder.diagnose.listening import OFTEN, SAME_SHAPE, Listener


def _tried(listener: Listener, block: bytes) -> list[str]:
    return [source for _, sources in listener.candidates(block) for source in sources]


def test_patterns_move_away_from_a_line_that_holds_their_anchor_again_and_again() -> None:
    listener = Listener(built_in().patterns)
    flood = b"the static assertion of module %d holds, unsupported by architects\n"
    lines = b"".join(flood % number for number in range(OFTEN))
    before = sum(1 for _ in listener._sieve.candidates(lines))
    _tried(listener, lines)
    _tried(listener, b"\n")
    after = sum(1 for _ in listener._sieve.candidates(lines))
    assert before == OFTEN
    assert after == 0
    assert "static assertion failed" in _tried(listener, b"x.cuh(3): error: static assertion failed with 3\n")


def test_a_pattern_that_moved_is_still_found() -> None:
    flood = b"".join(
        b"Indexing.cu:1515: block: [%d,0,0], thread: [1,0,0] Assertion `srcIndex < srcSelectDimSize` failed.\n" % number
        for number in range(30_000)
    )
    last = b"RuntimeError: Assertion error (csrc/apis/attention.hpp:219): Unsupported architecture\n"
    kinds = [cause.kind for cause in diagnose(io.BytesIO(flood + last)).causes]
    assert kinds == ["index-out-of-bounds", "kernel-lacks-architecture"]


def test_lines_that_differ_only_in_digits_are_passed_over_after_many() -> None:
    listener = Listener(built_in().patterns)
    lines = b"".join(b"torch: 2.%d.1\n" % number for number in range(2 * SAME_SHAPE))
    assert len(_tried(listener, lines)) == SAME_SHAPE


def test_a_pattern_that_has_said_enough_is_silent_until_it_is_asked_again() -> None:
    listener = Listener(built_in().patterns)
    line = b"GatedRepoError here\n"
    assert _tried(listener, line) == ["gatedrepoerror"]
    listener.enough("gatedrepoerror")
    assert _tried(listener, line) == []
    listener.again(["gatedrepoerror"])
    assert _tried(listener, line) == ["gatedrepoerror"]
