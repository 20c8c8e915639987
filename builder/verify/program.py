"""The check `program`: the recipe's own command, with the server's options, runs to its end inside the image."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from builder.build.environment import CACHE
from builder.engine import ContainerRun
from builder.recipe.options import server_options
from builder.verify.inside import ProbeAnswer, tail_of, with_log
from builder.verify.verdict import Check

if TYPE_CHECKING:
    from collections.abc import Callable

    from builder.recipe.model import Serve, Smoke
    from builder.verify.place import InImage

NAME: Literal["program"] = "program"


def program_check(
    place: InImage,
    *,
    smoke: Smoke,
    serve: Serve | None,
    on_line: Callable[[str], None] | None = None,
) -> Check:
    """Run `smoke.program` with the options and variables of `serve`; passed if it ends with exit code 0.

    It has no network, a read-only root and the place's memory; what it proves is what its author made it prove.
    """
    options = tuple(server_options(serve.args)) if serve else ()
    ended = place.engine.run(
        ContainerRun(
            image=place.image,
            command=(*smoke.program, *options),
            environment={"PYTHONDONTWRITEBYTECODE": "1", "HOME": "/tmp", **(serve.env if serve else {})},  # noqa: S108
            tmpfs=("/tmp", CACHE),  # noqa: S108 - inside the container
            memory=place.memory,
            timeout=float(smoke.timeout),
            read_only_root=True,
        ),
        on_line,
    )
    answer = ProbeAnswer(report=None, exit=ended, tail=tail_of(ended))
    passed = ended.code == 0 and not ended.timed_out
    last = f": {answer.tail[-1]}" if answer.tail else ""
    check = Check(
        name=NAME,
        level=NAME,
        outcome="passed" if passed else "failed",
        summary=f"{smoke.program[0]} {answer.ending}{last}",
        figures={"exit_code": ended.code, "seconds": round(ended.seconds, 1)},
        evidence=() if passed else answer.tail,
    )
    return with_log(check, answer, place.store)
