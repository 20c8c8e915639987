"""The engine against a real Docker: containers, builds, loading, and nothing left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import uuid
from concurrent.futures import CancelledError, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import docker
import pytest

from builder.dockerd.capture import HEAD_BYTES, TAIL_BYTES
from builder.dockerd.client import connect
from builder.engine import ContainerRun, ImageBuild, Mount, NoGpuError
from builder.errors import BuildFailedError, EngineError
from builder.giveup import GIVEN_UP
from builder.settings import settings_from
from tests.tiny_image import tiny_archive

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from builder.dockerd.client import DockerEngine

pytestmark = pytest.mark.docker

ROOT = Path(__file__).parents[2]
PATIENCE = 60.0


def shell(image: str, script: str, *arguments: str, **options: object) -> ContainerRun:
    return ContainerRun(image=image, command=("sh", "-c", script, "sh", *arguments), **options)  # type: ignore[arg-type]


def until(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + PATIENCE
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    return condition()


def containers_with(marker: str) -> list[str]:
    with docker.APIClient(base_url=os.environ.get("DOCKER_HOST"), version="auto") as client:
        return [found["Id"] for found in client.containers(all=True) if marker in found["Command"]]


def runs_inside(marker: str) -> bool:
    """Say whether a shell with the marker in its command runs anywhere on this machine, containers included."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if marker.encode() in command and command.split(b"\0")[0] in {b"sh", b"/bin/sh"}:
            return True
    return False


@pytest.fixture
def tag(engine: DockerEngine) -> Iterator[str]:
    name = f"envbuild-test/{uuid.uuid4().hex[:12]}:1"
    yield name
    engine.remove_image(name)


def test_the_engine_tells_its_version_and_its_root(engine: DockerEngine) -> None:
    facts = engine.facts()
    assert facts.version[:1].isdigit()
    assert facts.cpus >= 1
    assert facts.memory > 1 << 28
    assert Path(facts.root).is_absolute()


def test_an_image_that_is_not_local_has_no_id_and_is_not_pulled(engine: DockerEngine, tiny_image: str) -> None:
    assert engine.image_id("envbuild-test/never-made:1") is None
    assert str(engine.image_id(tiny_image)).startswith("sha256:")


def test_a_program_answers_with_its_exit_code_and_both_streams(engine: DockerEngine, tiny_image: str) -> None:
    lines: list[str] = []
    ended = engine.run(shell(tiny_image, "echo out; echo one >&2; echo two >&2; exit 7"), lines.append)
    assert (ended.code, ended.stdout, ended.stderr) == (7, b"out\n", b"one\ntwo\n")
    assert lines == ["one", "two"]
    assert not ended.oom_killed
    assert not ended.timed_out


def test_a_program_sees_its_environment_workdir_user_and_arguments(engine: DockerEngine, tiny_image: str) -> None:
    script = 'echo "$1" "$SEEN" "$PWD"; id -u'
    job = shell(tiny_image, script, "a b; c", environment={"SEEN": "yes"}, workdir="/bin", user="65534:65534")
    assert engine.run(job).stdout == b"a b; c yes /bin\n65534\n"


def test_a_container_has_no_network_but_loopback(engine: DockerEngine, tiny_image: str) -> None:
    assert engine.run(shell(tiny_image, "ls /sys/class/net")).stdout == b"lo\n"


def test_a_mount_is_read_only_unless_asked_otherwise(engine: DockerEngine, tiny_image: str, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "recipe").write_text("wish")
    (tmp_path / "out").mkdir()
    mounts = (
        Mount(source=tmp_path / "in", target="/in"),
        Mount(source=tmp_path / "out", target="/out", read_only=False),
    )
    ended = engine.run(shell(tiny_image, "cp /in/recipe /out/copy; touch /in/new", mounts=mounts))
    assert ended.code != 0
    assert b"Read-only file system" in ended.stderr
    assert (tmp_path / "out" / "copy").read_text() == "wish"


def test_a_missing_mount_source_is_named_before_anything_starts(
    engine: DockerEngine, tiny_image: str, tmp_path: Path
) -> None:
    job = shell(tiny_image, "true", mounts=(Mount(source=tmp_path / "gone", target="/gone"),))
    with pytest.raises(EngineError, match=f"cannot mount {tmp_path}/gone at /gone"):
        engine.run(job)


def test_a_read_only_root_leaves_only_the_tmpfs_to_write_and_execute(engine: DockerEngine, tiny_image: str) -> None:
    script = "touch /x && echo root; cp /bin/id /job/id && /job/id -u"
    ended = engine.run(shell(tiny_image, script, read_only_root=True, tmpfs=("/job",), user="1000:1000"))
    assert (ended.code, ended.stdout) == (0, b"1000\n")


def test_a_program_beyond_its_memory_is_reported_as_killed_by_the_limit(engine: DockerEngine, tiny_image: str) -> None:
    ended = engine.run(shell(tiny_image, "a=x; while :; do a=$a$a; done", memory=32 << 20, timeout=PATIENCE))
    assert (ended.code, ended.oom_killed, ended.timed_out) == (137, True, False)


def test_a_child_beyond_the_memory_is_seen_although_the_program_ends_otherwise(
    engine: DockerEngine, tiny_image: str
) -> None:
    script = "sh -c 'a=x; while :; do a=$a$a; done'; exit 5"
    ended = engine.run(shell(tiny_image, script, memory=32 << 20, timeout=PATIENCE))
    assert (ended.code, ended.oom_killed) == (5, True)


def test_the_memory_limit_includes_swap_and_processes_are_limited(engine: DockerEngine, tiny_image: str) -> None:
    script = "cat /sys/fs/cgroup/memory.max || cat /sys/fs/cgroup/memory/memory.limit_in_bytes"
    assert engine.run(shell(tiny_image, script, memory=64 << 20)).stdout == b"%d\n" % (64 << 20)
    script = "cat /sys/fs/cgroup/pids.max || cat /sys/fs/cgroup/pids/pids.max"
    assert engine.run(shell(tiny_image, script)).stdout == b"16384\n"


def test_a_program_that_does_not_end_is_stopped_and_removed(engine: DockerEngine, tiny_image: str) -> None:
    marker = uuid.uuid4().hex
    ended = engine.run(shell(tiny_image, "trap '' TERM; echo up; while :; do sleep 1; done", marker, timeout=3.0))
    assert (ended.timed_out, ended.code, ended.stdout) == (True, 137, b"up\n")
    assert containers_with(marker) == []


def test_a_flood_of_output_keeps_its_head_and_tail(engine: DockerEngine, tiny_image: str) -> None:
    flood = 4 * (HEAD_BYTES + TAIL_BYTES)
    script = 'echo first; head -c "$1" /dev/zero; echo; echo \'{"last": 1}\''
    ended = engine.run(shell(tiny_image, script, str(flood)))
    assert ended.stdout.startswith(b"first\n\0")
    assert ended.stdout.endswith(b'\0\n{"last": 1}\n')
    assert b"bytes left out" in ended.stdout
    assert len(ended.stdout) < HEAD_BYTES + TAIL_BYTES + 100


def test_output_is_waited_for_although_the_program_closes_it_early(engine: DockerEngine, tiny_image: str) -> None:
    assert engine.run(shell(tiny_image, "exec >&- 2>&-; sleep 1; exit 3")).code == 3


def test_an_image_that_is_missing_is_named_and_not_pulled(engine: DockerEngine) -> None:
    with pytest.raises(BuildFailedError, match="the image envbuild-test/never-made:1 is not on the engine"):
        engine.run(shell("envbuild-test/never-made:1", "true"))


@pytest.mark.parametrize("program", ["no-such-program", "/bin/none", "/bin"])
def test_a_program_that_cannot_start_is_named_and_leaves_no_container(
    engine: DockerEngine, tiny_image: str, program: str
) -> None:
    marker = uuid.uuid4().hex
    with pytest.raises(BuildFailedError, match=f"'{program}' cannot start in the image {tiny_image}") as caught:
        engine.run(ContainerRun(image=tiny_image, command=(program, marker)))
    assert program in "".join(caught.value.evidence)
    assert containers_with(marker) == []


def test_a_failing_observer_does_not_leave_the_container_behind(engine: DockerEngine, tiny_image: str) -> None:
    marker = uuid.uuid4().hex

    def fail(line: str) -> None:
        raise RuntimeError(line)

    with pytest.raises(RuntimeError, match="spoken"):
        engine.run(shell(tiny_image, "echo spoken >&2; sleep 1000", marker), fail)
    assert containers_with(marker) == []


def in_another_process(body: str) -> subprocess.Popen[bytes]:
    head = """
        from pathlib import Path
        from builder.dockerd.client import connect
        from builder.engine import ContainerRun, ImageBuild
        from builder.settings import settings_from
        engine = connect(settings_from())
    """
    script = textwrap.dedent(head) + textwrap.dedent(body)
    return subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stderr=subprocess.PIPE)


def test_an_interrupt_removes_the_container(tiny_image: str) -> None:
    marker = uuid.uuid4().hex
    command = ("sh", "-c", f": {marker}; sleep 1000; :")
    child = in_another_process(f"engine.run(ContainerRun(image={tiny_image!r}, command={command!r}))")
    assert until(lambda: runs_inside(marker))
    child.send_signal(signal.SIGINT)
    _, errors = child.communicate(timeout=PATIENCE)
    assert errors.rstrip().endswith(b"KeyboardInterrupt")
    assert containers_with(marker) == []
    assert not runs_inside(marker)


def test_a_container_whose_work_is_given_up_is_removed(engine: DockerEngine, tiny_image: str) -> None:
    marker, given_up = uuid.uuid4().hex, threading.Event()
    with ThreadPoolExecutor(initializer=GIVEN_UP.set, initargs=(given_up,)) as pool:
        running = pool.submit(engine.run, shell(tiny_image, f": {marker}; sleep 1000; :"))
        assert until(lambda: runs_inside(marker))
        given_up.set()
        assert isinstance(running.exception(PATIENCE), CancelledError)
    assert containers_with(marker) == []
    assert not runs_inside(marker)


def test_the_next_connection_removes_what_a_killed_one_left_running(tiny_image: str) -> None:
    marker = uuid.uuid4().hex[:8]
    command = ("sh", "-c", f": {marker}; sleep 1000; :")
    child = in_another_process(f"engine.run(ContainerRun(image={tiny_image!r}, command={command!r}))")
    assert until(lambda: runs_inside(marker))
    connect(settings_from())
    assert len(containers_with(marker)) == 1, "a running owner keeps its container"
    child.kill()
    child.communicate()
    assert len(containers_with(marker)) == 1
    connect(settings_from())
    assert containers_with(marker) == []


def test_a_layer_that_the_engine_has_may_be_missing_in_an_archive(
    engine: DockerEngine, tiny_image: str, tag: str
) -> None:
    before = engine.chain_ids()
    assert before
    whole = b"".join(tiny_archive(tag, extra={"note": b"second layer"}))
    partial = b"".join(tiny_archive(tag, extra={"note": b"second layer"}, leave_out_layers=1))
    assert len(partial) < len(whole) / 10
    engine.load([partial])
    assert len(engine.chain_ids() - before) == 1
    assert engine.run(ContainerRun(image=tag, command=("cat", "/note"))).stdout == b"second layer"


def test_an_archive_that_is_none_is_refused_in_words(engine: DockerEngine) -> None:
    with pytest.raises(BuildFailedError, match="could not load an image") as caught:
        engine.load([b"no tar at all" * 1000])
    assert caught.value.evidence


def test_a_source_that_fails_while_loading_is_not_blamed_on_the_engine(engine: DockerEngine, tmp_path: Path) -> None:
    def pieces() -> Iterator[bytes]:
        yield bytes(512)
        yield (tmp_path / "gone").read_bytes()

    with pytest.raises(FileNotFoundError, match="gone"):
        engine.load(pieces())


def build(image: str, steps: str, tag: str, context: Path, **arguments: str) -> ImageBuild:
    return ImageBuild(dockerfile=f"FROM {image}\n{steps}\n", context=context, tag=tag, arguments=arguments)


def test_a_build_returns_its_image_and_shows_steps_and_lines_live(
    engine: DockerEngine, tiny_image: str, tag: str, tmp_path: Path
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file").write_text("content")
    (tmp_path / "link").symlink_to("folder/file")
    lines: list[str] = []
    steps = 'ARG WORD\nCOPY . /context\nRUN echo "said $WORD" && cat /context/link > /copied'
    image_id = engine.build(build(tiny_image, steps, tag, tmp_path, WORD="hello"), lines.append)
    assert image_id == engine.image_id(tag)
    assert engine.run(ContainerRun(image=tag, command=("cat", "/copied"))).stdout == b"content"
    assert "said hello" in lines
    assert any("COPY . /context" in line for line in lines)


def test_a_build_step_has_no_network(engine: DockerEngine, tiny_image: str, tag: str, tmp_path: Path) -> None:
    lines: list[str] = []
    engine.build(build(tiny_image, f"RUN : {tag}; ls /sys/class/net | cat", tag, tmp_path), lines.append)
    assert lines[lines.index("lo") - 1].endswith("cat")
    assert not any(line.startswith("eth") for line in lines)


def test_a_failed_step_is_named_with_its_code_and_its_last_lines(
    engine: DockerEngine, tiny_image: str, tag: str, tmp_path: Path
) -> None:
    steps = "RUN true\nRUN i=0; while [ $i -lt 30 ]; do i=$((i+1)); echo line $i; done; exit 9"
    with pytest.raises(BuildFailedError, match=r"the step \[3/3\] RUN i=0; .* failed with exit code 9") as caught:
        engine.build(build(tiny_image, steps, tag, tmp_path))
    assert caught.value.evidence == tuple(f"line {number}" for number in range(11, 31))


def test_a_killed_step_is_named_as_out_of_memory(
    engine: DockerEngine, tiny_image: str, tag: str, tmp_path: Path
) -> None:
    steps = "RUN sh -c 'kill -KILL $$'; exit $?"
    with pytest.raises(BuildFailedError, match=r"was killed \(exit code 137\): out of memory"):
        engine.build(build(tiny_image, steps, tag, tmp_path))


def test_a_dockerfile_that_is_none_is_refused_with_its_line(
    engine: DockerEngine, tiny_image: str, tag: str, tmp_path: Path
) -> None:
    with pytest.raises(BuildFailedError, match=f"building {tag} failed") as caught:
        engine.build(build(tiny_image, "RUNN x", tag, tmp_path))
    assert "line 2: unknown instruction: RUNN" in caught.value.evidence[0]


def test_a_base_image_that_is_not_local_is_named_at_once(engine: DockerEngine, tag: str, tmp_path: Path) -> None:
    with pytest.raises(BuildFailedError, match="starts from envbuild-test/never-made:1, which is not on the engine"):
        engine.build(build("envbuild-test/never-made:1", "", tag, tmp_path))


def test_an_interrupt_cancels_the_build(engine: DockerEngine, tiny_image: str, tag: str, tmp_path: Path) -> None:
    marker = uuid.uuid4().hex
    dockerfile = f"FROM {tiny_image}\nRUN : {marker}; sleep 1000; :\n"
    child = in_another_process(
        f"engine.build(ImageBuild(dockerfile={dockerfile!r}, context=Path({str(tmp_path)!r}), tag={tag!r}))"
    )
    assert until(lambda: runs_inside(marker))
    child.send_signal(signal.SIGINT)
    _, errors = child.communicate(timeout=PATIENCE)
    assert errors.rstrip().endswith(b"KeyboardInterrupt")
    assert until(lambda: not runs_inside(marker))
    assert engine.image_id(tag) is None


def test_a_failing_observer_cancels_the_build(engine: DockerEngine, tiny_image: str, tag: str, tmp_path: Path) -> None:
    marker = uuid.uuid4().hex

    def fail(line: str) -> None:
        if line == "spoken":
            raise RuntimeError(line)

    with pytest.raises(RuntimeError, match="spoken") as caught:
        engine.build(build(tiny_image, f"RUN : {marker}; echo spoken; sleep 1000; :", tag, tmp_path), fail)
    assert until(lambda: not runs_inside(marker))
    assert caught.traceback, "the failure is still held, so only closing the connection can have ended the build"


def test_a_container_that_wants_gpus_of_an_engine_without_them_is_told_so(
    engine: DockerEngine, tiny_image: str
) -> None:
    if Path("/dev/nvidiactl").exists():
        pytest.skip("this machine has an NVIDIA driver")
    with pytest.raises(NoGpuError, match="cannot give a container a GPU"):
        engine.run(shell(tiny_image, "true", gpus=1))
