"""What the benchmark of images builds: copies of a recipe that differ in one pin, with their locks and wheels."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from builder.build.assembly import find_image
from builder.build.stage import find_plan, gather_materials
from builder.build.wheels import built_wheel
from builder.build.wheelstage import wheel_jobs
from builder.lock.stage import lock_recipe, locked_recipe
from builder.matrix.variant import edited
from builder.recipe.source import read_recipe
from builder.recipe.workspace import workspace_of

if TYPE_CHECKING:
    from builder.build.assembly import ImagePlan
    from builder.build.image import Image
    from builder.lock.model import Lock
    from builder.matrix.strategy import Choice
    from builder.recipe.source import RecipeFile
    from builder.store import Store
    from builder.tools import Tools

PROJECT = Path(__file__).parents[1]
MARK = "envbuild-benchmark"
PINS = ("5.24.0", "5.23.0", "5.22.0", "5.21.0")  # of transformers: the quickstart's four recipes
OTHER = "5.4.0"  # of transformers: what a project recipe's pin becomes: those from PyPI alone keep all others
QUICKSTART = """\
version: 1
name: quickstart
target: {gpu: rtx-pro-6000}
base: {debian: trixie, packages: [less]}
python: "3.13"
as-of: 2026-11-25
stack: {torch: "2.11.0", transformers: "5.24.0"}
smoke: {require: [static]}
"""


@dataclass(frozen=True, kw_only=True)
class Stack:
    """A recipe in a project made for the benchmark, and the releases of transformers that its copies there have.

    The first copy has the recipe's own release, and its lock where the recipe has a committed one.
    """

    source: RecipeFile
    pins: tuple[str, ...]

    @property
    def folder(self) -> Path:
        """The project's folder."""
        return workspace_of(self.source).root

    def recipe(self, copy: int | str) -> Path:
        """Where a copy is, by its number or name."""
        return self.source.folder / f"{MARK}-{copy}.yaml"

    def reference(self, copy: int | str) -> str:
        """The tag of the image of a copy."""
        return f"envbuild/{MARK}-{copy}:latest"

    def read(self, copy: int | str) -> tuple[RecipeFile, Lock]:
        """Return a copy and its lock."""
        source = read_recipe(self.recipe(copy))
        return source, locked_recipe(source)

    def plan(self, number: int, store: Store) -> ImagePlan:
        """Return what the image of a copy is made of."""
        plan = find_plan(*self.read(number), store)
        return plan or sys.exit(f"the wheels of {self.recipe(number)} are not in the store")

    def image(self, number: int, store: Store) -> Image:
        """Return the image of a copy that was built."""
        image = find_image(self.plan(number, store), store)
        return image or sys.exit(f"the image of {self.recipe(number)} is not in the store")

    def write(self, copy: int | str, edits: dict[str, Choice]) -> None:
        """Write a copy with other values at dotted paths; where it has no lock, its lock begins as the first copy's."""
        recipe = edited(self.source, {"name": f"{MARK}-{copy}", **edits}).recipe
        self.recipe(copy).write_text(json.dumps(recipe.to_plain()), encoding="utf-8")
        locks = self.folder / "lockfiles"
        first = locks / (f"{MARK}-0" if copy != 0 else self.source.recipe.name)
        if first.is_dir():
            shutil.copytree(first, locks / f"{MARK}-{copy}")


def quickstart_in(folder: Path) -> Stack:
    """Return the quickstart's packages, without what it compiles, as a stack in an empty folder."""
    path = folder / "recipes" / "quickstart.yaml"
    path.parent.mkdir()
    path.write_text(QUICKSTART, encoding="utf-8")
    return Stack(source=read_recipe(path), pins=PINS)


def project_stack(recipe: Path, folder: Path) -> Stack:
    """Return a recipe of this project as a stack in an empty folder, with its committed lock.

    Ends the process with a sentence for a recipe elsewhere, without a lock, or that does not pin transformers.
    """
    if not recipe.resolve().is_relative_to(PROJECT / "recipes"):
        sys.exit(f"{recipe}: not a recipe of this project: it must be in {PROJECT / 'recipes'}")
    own = read_recipe(recipe.resolve())
    pin = own.recipe.stack.get("transformers")
    if pin is None or pin.version is None:
        sys.exit(f"{recipe}: its stack names no release of transformers, which is what the benchmark changes")
    if not workspace_of(own).lock.is_dir():
        sys.exit(f"{recipe}: it has no committed lock")
    shutil.copytree(PROJECT / "recipes", folder / "recipes")
    shutil.copytree(workspace_of(own).lock, folder / "lockfiles" / own.recipe.name)
    source = read_recipe(folder / own.path.relative_to(PROJECT))
    return Stack(source=source, pins=(pin.version, OTHER))


def prepare(stack: Stack, copies: int, tools: Tools) -> None:
    """Write so many copies, lock those that need it, and fetch all that their images are made of.

    Ends the process where something must be compiled first, or where the pin changes more than its own wheel.
    """
    for number, pin in enumerate(stack.pins[:copies]):
        stack.write(number, pin_edits(pin) if number else {})
        if number or not (stack.folder / "lockfiles" / f"{MARK}-{number}").is_dir():
            lock_recipe(read_recipe(stack.recipe(number)), tools)
        gather(stack, number, tools)
        if number:
            refuse_more(stack.plan(0, tools.store), stack.plan(number, tools.store))


def refuse_more(first: ImagePlan, other: ImagePlan) -> None:
    """End the process where two images differ in other wheels than transformers', or not in that."""
    names = sorted({wheel.name for wheel in {*first.wheels} ^ {*other.wheels}})
    if names != ["transformers"]:
        sys.exit(f"the other release of transformers changes {', '.join(names) or 'nothing'}: choose another")


def pin_edits(release: str) -> dict[str, Choice]:
    """Return the edits that change the pin, also where another package (sglang) asks for the release it had."""
    return {"stack.transformers.version": release, "overrides.transformers": release}


def gather(stack: Stack, copy: int | str, tools: Tools) -> None:
    """Fetch what the image of a copy is made of; end the process where something must be compiled first."""
    source, locked = stack.read(copy)
    missing = [job.name for job in wheel_jobs(source, locked, tools.store) if built_wheel(job, tools.store) is None]
    if missing:
        recipe = stack.source.path.relative_to(stack.folder)
        sys.exit(f"{', '.join(missing)}: not in the store {tools.store.root}: run `envbuild wheels {recipe}` first")
    gather_materials(source, locked, tools)
