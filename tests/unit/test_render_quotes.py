from __future__ import annotations

import pytest

from builder.build.environment import one_line
from builder.build.render import quoted


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("plain", '"plain"'),
        ("$HOME", '"\\$HOME"'),
        ('a "b" \\', '"a \\"b\\" \\\\"'),
        ("été", '"été"'),
    ],
)
def test_a_text_in_a_dockerfile_is_read_as_it_is(text: str, line: str) -> None:
    assert quoted(text) == line


def test_a_text_with_line_breaks_cannot_become_an_instruction() -> None:
    assert one_line("a stack\nRUN rm -rf /\n") == "a stack RUN rm -rf /"
