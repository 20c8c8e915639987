"""How long `envbuild lock` takes from an empty store, against bare `uv pip compile` of the same requirements."""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

from byte_code import write_byte_code
from uv import find_uv_bin

from builder.lock.requirements import requirements_of, separate_compiler, toolchain_requirements
from builder.lock.sources import declared_projects
from builder.lock.stage import locked_recipe
from builder.recipe.source import RecipeFile, read_recipe
from builder.settings import settings_from
from builder.store import Store

GOAL = 1.5
PROJECT = Path(__file__).parents[1]
RESULT = Path(__file__).parent / "results" / "lock.json"


def wishes(source: RecipeFile) -> list[tuple[str, ...]]:
    """Return the requirements of each set of wheels that the lock of a recipe resolves."""
    settings = settings_from()
    store = Store(settings.store)
    projects = declared_projects(source, locked_recipe(source), store, settings)
    sets = (requirements_of, toolchain_requirements, separate_compiler)
    return [lines for lines in (asked(source.recipe, projects) for asked in sets) if lines]


def bare(lines: tuple[str, ...], source: RecipeFile, folder: Path, environment: dict[str, str]) -> None:
    """Resolve one set of requirements with uv alone, hashes included."""
    (folder / "requirements.in").write_text("\n".join(lines), encoding="utf-8")
    overrides = [f"{name}=={override.version}\n" for name, override in source.recipe.overrides.items()]
    (folder / "overrides.txt").write_text("".join(overrides), encoding="utf-8")
    command = [find_uv_bin(), "pip", "compile", "requirements.in", "--no-config", "--quiet", "--generate-hashes"]
    command += ["--overrides", "overrides.txt", "--only-binary", ":all:", "--python", sys.executable]
    command += ["--python-version", source.recipe.python, "--python-platform", "x86_64-manylinux_2_36"]
    command += ["--format", "pylock.toml", "--output-file", "pylock.toml"]
    command += ["--exclude-newer", f"{source.recipe.as_of}T23:59:59Z"] if source.recipe.as_of else []
    subprocess.run(command, cwd=folder, check=True, env=environment)


def own(source: RecipeFile, folder: Path, environment: dict[str, str]) -> None:
    """Lock the recipe in a copy of the project without locks."""
    shutil.copytree(PROJECT / "recipes", folder / "recipes")
    recipe = folder / source.path.relative_to(PROJECT)
    program = [sys.executable, "-c", "from builder.cli import main; main()", "lock", str(recipe)]
    subprocess.run(program, check=True, env=environment | {"ENVBUILD_STORE": str(folder / "store")})


def seconds_of(source: RecipeFile, kind: str, sets: list[tuple[str, ...]]) -> float:
    """Run one of both with empty caches and return its seconds."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        environment = {**os.environ, "UV_CACHE_DIR": str(folder / "uv")}
        start = time.perf_counter()
        if kind == "own":
            own(source, folder, environment)
        else:
            for lines in sets:
                bare(lines, source, folder, environment)
        return time.perf_counter() - start


def main() -> None:
    """Measure, print the ratio and write the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--recipe", type=Path, default=PROJECT / "recipes" / "sm120-glm5-cu130.yaml")
    parser.add_argument("--runs", type=int, default=3)
    arguments = parser.parse_args()
    source = read_recipe(arguments.recipe.resolve())
    sets = wishes(source)
    with tempfile.TemporaryDirectory() as name:
        write_byte_code(Path(name))
        turns = [[seconds_of(source, kind, sets) for kind in ("bare", "own")] for _ in range(arguments.runs)]
    peer, mine = (min(seconds) for seconds in zip(*turns, strict=True))
    ratio = round(mine / peer, 2)
    record = {
        "name": "lock",
        "compared": f"{source.recipe.name}, empty store: {mine:.1f} s with Debian and sources, against {peer:.1f} s",
        "peer": f"uv pip compile, {len(sets)} times",
        "peer_version": f"uv {version('uv')}",
        "ratio": ratio,
        "goal": f"at most {GOAL} times uv alone",
        "met": ratio <= GOAL,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
    }
    RESULT.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    sys.stdout.write(f"ratio {ratio} ({mine:.1f} s against {peer:.1f} s)\n")


if __name__ == "__main__":
    main()
