"""`envbuild lock` as a process that is interrupted, killed or fails at several points: the old lock stays as it was."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import builder
from builder.process import run
from tests.package_index import PackageIndex, serve

if TYPE_CHECKING:
    from collections.abc import Iterator

RECIPE = """\
version: 1
name: x
target: {gpu: h200}
base: {debian: trixie, packages: [lib-VERSION]}
python: "3.13"
stack: {foo: "VERSION"}
"""
# The command line with another resolver of Debian, and a point where it stops for good: it makes MARKER there.
PROGRAM = """
import sys, time
from pathlib import Path
from builder import cli
from builder.lock import resolve, stage, writing
from builder.process import run
from tests.workshop import DEBIAN

point, marker = sys.argv.pop(1), Path(sys.argv.pop(1))

def hang():
    marker.touch()
    time.sleep(600)

def resolve_debian(*_):
    if point == "a program of a thread":
        run(["sh", "-c", 'echo $$ > "$1.new" && mv "$1.new" "$1" && exec sleep 600', "sh", str(marker)])
    if point == "a thread that waits":
        hang()
    return DEBIAN

def exchange(*arguments, real=writing.exchange):
    if point == "before the exchange":
        hang()
    done = real(*arguments)
    if point == "after the exchange":
        hang()
    return done

def write_atomic(path, data, real=writing.write_atomic):
    if point == "a full disk" and path.name == "lock.yaml":
        raise OSError(28, "No space left on device")
    if point == "between two files" and path.name == "lock.yaml":
        hang()
    real(path, data)

resolve.resolve_debian, writing.exchange, writing.write_atomic = resolve_debian, exchange, write_atomic
cli.main()
"""
POINTS = ("a program of a thread", "a thread that waits", "between two files", "before the exchange")


@dataclass(frozen=True, kw_only=True)
class World:
    """A project whose lock is stale, and the index that its recipe is locked from."""

    root: Path
    index: PackageIndex

    @property
    def marker(self) -> Path:
        return self.root / "marker"

    @property
    def lock(self) -> Path:
        return self.root / "lockfiles" / "x"

    def state(self) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in self.lock.iterdir()}

    def wish(self, version: str) -> None:
        (self.root / "recipes").mkdir(exist_ok=True)
        (self.root / "recipes" / "x.yaml").write_text(RECIPE.replace("VERSION", version), encoding="utf-8")

    def left_overs(self) -> list[str]:
        folders = (self.root / "lockfiles", self.root / "store" / "tmp")
        return [path.name for folder in folders for path in folder.iterdir() if path != self.lock]

    def command(self, point: str) -> tuple[list[str], dict[str, str]]:
        environment = {
            "PYTHONPATH": str(Path(builder.__file__).parents[1]),
            "ENVBUILD_STORE": str(self.root / "store"),
            "ENVBUILD_INDEX_URL": self.index.url,
            "UV_CACHE_DIR": str(self.root / "uv"),
            "UV_HTTP_RETRIES": "0",
        }
        recipe = str(self.root / "recipes" / "x.yaml")
        return [sys.executable, "-c", PROGRAM, point, str(self.marker), "lock", recipe], environment

    def run(self, point: str = "nowhere", **environment: str) -> tuple[int, str]:
        command, own = self.command(point)
        ended = run(command, environment=own | environment)
        return ended.code, ended.stderr.decode()

    @contextmanager
    def running(self, point: str, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
        command, own = self.command(point)
        process = subprocess.Popen(command, env=os.environ | own | environment, stderr=subprocess.PIPE)
        with process:
            try:
                yield process
            finally:
                process.kill()


@pytest.fixture(scope="module")
def index() -> Iterator[PackageIndex]:
    index = PackageIndex()
    index.add("pip", "25.0")
    for version in ("1.0", "2.0"):
        index.add("foo", version)
    with serve(index) as served:
        yield served


@pytest.fixture(scope="module")
def locked(index: PackageIndex, tmp_path_factory: pytest.TempPathFactory) -> World:
    made = World(root=tmp_path_factory.mktemp("locked"), index=index)
    made.wish("1.0")
    assert made.run()[0] == 0
    assert {*made.state()} == {"lock.yaml", "pylock.toml", "pylock.toolchain.toml"}
    (made.lock / "verdict.json").write_text("{}")
    made.wish("2.0")
    return made


@pytest.fixture
def world(locked: World, tmp_path: Path) -> World:
    shutil.copytree(locked.root, tmp_path, dirs_exist_ok=True)
    return World(root=tmp_path, index=locked.index)


def wait_for(path: Path, process: subprocess.Popen[bytes]) -> None:
    while not path.exists():
        assert process.poll() is None, process.stderr.read().decode() if process.stderr else ""
        time.sleep(0.01)


def is_gone(pid: int) -> bool:
    for _ in range(500):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.01)
    return False


@pytest.mark.parametrize(
    ("point", "number"),
    [*((point, signal.SIGINT) for point in POINTS), (POINTS[0], signal.SIGTERM), (POINTS[0], signal.SIGHUP)],
)
def test_an_interrupt_ends_it_at_once_and_leaves_nothing(world: World, point: str, number: signal.Signals) -> None:
    before = world.state()
    with world.running(point) as process:
        wait_for(world.marker, process)
        process.send_signal(number)
        assert process.wait(20) == 130
    assert world.state() == before
    if point != "a thread that waits":  # it cannot be told; its scratch folder goes with the next command
        assert world.left_overs() == []
    if point == "a program of a thread":
        assert is_gone(int(world.marker.read_text()))


@pytest.mark.parametrize("point", POINTS)
def test_a_kill_leaves_the_old_lock_and_the_next_run_tidies_up(world: World, point: str) -> None:
    before = world.state()
    with world.running(point) as process:
        wait_for(world.marker, process)
        process.kill()
        assert process.wait(20) == -signal.SIGKILL
    assert world.state() == before
    assert world.run()[0] == 0
    assert world.left_overs() == []
    assert world.state()["verdict.json"] == b"{}"
    if point == "a program of a thread":
        os.kill(int(world.marker.read_text()), signal.SIGKILL)


def test_a_kill_after_the_exchange_leaves_the_new_lock(world: World) -> None:
    before = world.state()
    with world.running("after the exchange") as process:
        wait_for(world.marker, process)
        process.kill()
    after = world.state()
    assert after != before
    assert world.run() == (0, "  = lock: current\n")
    assert world.state() == after


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_uv_waiting_for_a_silent_index_ends_with_it(world: World, number: signal.Signals) -> None:
    before = world.state()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/simple/"
        with world.running("nowhere", ENVBUILD_INDEX_URL=url) as process:
            near, _ = silent.accept()
            process.send_signal(number)
            assert process.wait(20) == (130 if number != signal.SIGKILL else -number)
            near.close()
    assert world.state() == before
    if number != signal.SIGKILL:
        assert world.left_overs() == []


def test_an_index_that_cannot_be_reached_changes_nothing(world: World) -> None:
    before = world.state()
    with socket.create_server(("127.0.0.1", 0)) as closed:
        url = f"http://127.0.0.1:{closed.getsockname()[1]}/simple/"
    code, said = world.run(ENVBUILD_INDEX_URL=url)
    assert (code, world.state(), world.left_overs()) == (6, before, [])
    assert "error: uv could not resolve the pins" in said


def test_a_file_with_another_hash_than_the_index_says_changes_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = world.state()
    world.index.as_json = False  # pages without sizes, so the files themselves are fetched
    monkeypatch.setattr(PackageIndex, "_fragment", lambda *_: f"#sha256={'0' * 64}")
    code, said = world.run()
    assert (code, world.state(), world.left_overs()) == (6, before, [])
    assert f"the lock says {'0' * 64}" in said


def test_a_full_disk_changes_nothing_and_is_one_sentence(world: World) -> None:
    before = world.state()
    code, said = world.run("a full disk")
    assert (code, world.state(), world.left_overs()) == (7, before, [])
    assert (
        f"error: the lock in {world.lock} cannot be written: No space left on device; what was there is whole" in said
    )


def test_pins_that_exclude_each_other_change_nothing(world: World) -> None:
    before = world.state()
    world.wish("3.0")
    code, said = world.run()
    assert (code, world.state(), world.left_overs()) == (6, before, [])
    assert "foo==3.0" in said


def test_another_machine_locks_to_the_same_bytes(world: World, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Another store and cache, another place of the project, another home, time zone, language, mask and folder."""
    assert world.run()[0] == 0
    other = World(root=tmp_path_factory.mktemp("an other"), index=world.index)
    other.wish("2.0")
    command, own = other.command("nowhere")
    home = str(tmp_path_factory.mktemp("home"))
    strange = {"HOME": home, "TZ": "Asia/Tokyo", "LC_ALL": "C", "UV_INDEX_STRATEGY": "unsafe-best-match"}
    ended = run(["sh", "-c", 'umask 077; exec "$@"', "sh", *command], environment=own | strange, cwd=Path(home))
    assert ended.code == 0, ended.text
    assert other.state() == {name: data for name, data in world.state().items() if name != "verdict.json"}
    assert {path.stat().st_mode & 0o777 for path in other.lock.iterdir()} == {0o644}
