"""Does the rendered Dockerfile describe the image? Both are walked path by path and held against each other."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.engine import ContainerRun, Mount
from builder.errors import BuildFailedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from builder.engine import Engine, ImageFacts
    from builder.store import Store

SCRIPT = Path(__file__).with_name("walk_inside.py")
SHOWN = 20
OWN_LABELS = frozenset({"envbuild.built"})  # on everything that envbuild lets the engine build
FIELDS = ("kind", "mode", "owner", "group", "content", "extended attributes")


@dataclass(frozen=True, kw_only=True, slots=True)
class Tolerated:
    """A difference that is no fault: the end of the path, what may differ there, and why."""

    ending: str
    what: str
    why: str


TOLERATED = (
    Tolerated(ending=".dist-info/INSTALLER", what="content", why="names the program that installed: pip or envbuild"),
    Tolerated(ending=".dist-info/REQUESTED", what="only from the Dockerfile", why="pip's note that a person asked"),
)
"""Besides these, the rows of a RECORD are compared in one order, without those of INSTALLER, REQUESTED, RECORD and byte
code, which pip does not list when it does not compile; the byte code itself must be the same bytes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Tree:
    """An image from inside, by path (kind, mode, owner, group, content, extended attributes), and its config.

    The config is variables (`$NAME`), labels (`label NAME`), and how the image runs.
    """

    files: Mapping[str, list[Any]]
    config: Mapping[str, object]


def image_tree(image: str, interpreter: str, *, engine: Engine, store: Store) -> Tree:
    """Walk an image with its own Python, as root; raise BuildFailedError if that does not run."""
    with store.scratch() as folder:
        ended = engine.run(
            ContainerRun(
                image=image,
                command=(interpreter, "-S", "/walk/walk.py", "/walk/out/tree"),
                mounts=(
                    Mount(source=SCRIPT, target="/walk/walk.py"),
                    Mount(source=folder, target="/walk/out", read_only=False),
                ),
                user="0:0",
                read_only_root=False,
            )
        )
        if ended.code != 0:
            evidence = tuple(ended.stderr.decode(errors="replace").splitlines()[-SHOWN:])
            raise BuildFailedError(f"{image} cannot be walked with {interpreter}", evidence=evidence)
        with (folder / "tree").open(encoding="utf-8", errors="surrogateescape") as lines:
            variables = json.loads(next(lines))
            return Tree(
                files=dict(json.loads(line) for line in lines), config=_config(variables, engine.image_facts(image))
            )


def _config(variables: Mapping[str, str], facts: ImageFacts | None) -> dict[str, object]:
    labels = {name: value for name, value in facts.labels.items() if name not in OWN_LABELS} if facts else {}
    return {
        **{f"${name}": value for name, value in variables.items() if name != "HOSTNAME"},
        **{f"label {name}": value for name, value in labels.items()},
        **(facts.run if facts else {}),
    }


def differences(dockerfile: Tree, assembled: Tree) -> tuple[str, ...]:
    """Return one line for each way in which two trees differ that is not tolerated."""
    return (*_settings(dockerfile, assembled), *_paths(dockerfile, assembled))


def _paths(dockerfile: Tree, assembled: Tree) -> Iterator[str]:
    for path in sorted({*dockerfile.files, *assembled.files}):
        one, other = dockerfile.files.get(path), assembled.files.get(path)
        if one is None or other is None:
            changed = ["only from the Dockerfile" if other is None else "only in the assembled image"]
        else:
            changed = [name for name, left, right in zip(FIELDS, one, other, strict=True) if left != right]
        for what in changed:
            if not any(path.endswith(allowed.ending) and what == allowed.what for allowed in TOLERATED):
                yield f"{path}: {what}{_values(what, one, other)}"


def _values(what: str, one: list[Any] | None, other: list[Any] | None) -> str:
    if one is None or other is None:
        return ""
    left, right = one[FIELDS.index(what)], other[FIELDS.index(what)]
    shown = oct if what in {"kind", "mode"} else str
    return f" ({shown(left)} from the Dockerfile, {shown(right)} in the assembled image)"


def _settings(dockerfile: Tree, assembled: Tree) -> Iterator[str]:
    for name in sorted({*dockerfile.config, *assembled.config}):
        one, other = dockerfile.config.get(name), assembled.config.get(name)
        if one != other:
            yield f"{name}: {one!r} from the Dockerfile, {other!r} in the assembled image"


def refuse_differences(found: tuple[str, ...], name: str, say: Callable[[str], None]) -> None:
    """Raise BuildFailedError, with the first differences, if there are any; all of them are said."""
    if not found:
        return
    for line in found[SHOWN:]:
        say(f"  | {line}")
    raise BuildFailedError(
        f"the Dockerfile of {name} does not build the assembled image: {len(found)} differences",
        remedy="this is a fault of envbuild's template or of its assembler; please report it with these lines",
        evidence=found[:SHOWN],
    )
