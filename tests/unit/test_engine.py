"""The door to Docker without Docker: faults with their remedies, streams taken apart, build contexts, owners."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import socket
import struct
import subprocess
import sys
import tarfile
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from docker import APIClient
from hypothesis import example, given
from hypothesis import strategies as st

from builder.diagnose.stage import diagnose_error
from builder.dockerd import containers
from builder.dockerd.capture import LINE_BYTES, BoundedLog, Frames, Lines
from builder.dockerd.client import DockerEngine, connect
from builder.dockerd.containers import is_leftover
from builder.dockerd.context import context_tar, named_images
from builder.dockerd.faults import disk_free, engine_errors, out_of_disk
from builder.dockerd.names import id_of, name_of
from builder.dockerd.owner import is_dead, is_local, own_name
from builder.engine import ContainerRun, Engine, Exit, ImageBuild, chain_of
from builder.errors import BuildFailedError, EngineError
from builder.settings import settings_from
from tests.fakes import FakeEngine

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

ROOT = Path(__file__).parents[2]


def connect_to(path: Path) -> DockerEngine:
    return connect(settings_from({"DOCKER_HOST": f"unix://{path}"}), hello_seconds=1)


@contextlib.contextmanager
def listening(path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen(1)
        yield server


@contextlib.contextmanager
def answering(
    answers: Mapping[str, object], *, failing: list[str] | None = None, gone: Iterable[str] = ()
) -> Iterator[str]:
    """Serve what an engine answers, by the path after its version; an empty list for the rest.

    What is `failing` fails once for each time that it is named; what is `gone` has lost its content.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = re.sub(r"^/(v1\.\d+/)?|\?.*", "", self.path)
            fails = path in (failing or [])
            if failing and fails:
                failing.remove(path)
            body = json.dumps({"message": "it is gone"} if fails or path in gone else answers.get(path, [])).encode()
            self.send_response(404 if path in gone else 500 if fails else 200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"tcp://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def test_without_a_socket_the_error_says_how_to_start_the_engine(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="no engine runs: its socket does not exist") as caught:
        connect_to(tmp_path / "none.sock")
    assert "systemctl start docker" in caught.value.remedy
    assert caught.value.exit_code == 9


def test_an_engine_that_hangs_keeps_nobody_who_leaves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(containers, "REMOVE_SECONDS", 0.05)
    path = tmp_path / "d.sock"
    with (
        listening(path) as server,
        contextlib.closing(APIClient(base_url=f"unix://{path}", version="1.41", timeout=3600)) as client,
    ):
        containers.remove(client, "x")
        connection, _ = server.accept()
        with connection:
            request = connection.recv(1000)
    assert request.startswith(b"DELETE /v1.41/containers/x?force=1&v=1 HTTP/1.1")


def test_a_stale_socket_is_told_from_a_missing_one(tmp_path: Path) -> None:
    with listening(tmp_path / "d.sock"):
        pass
    with pytest.raises(EngineError, match="nothing listens") as caught:
        connect_to(tmp_path / "d.sock")
    assert "systemctl start docker" in caught.value.remedy


def test_an_engine_that_hangs_is_not_waited_for_forever(tmp_path: Path) -> None:
    with listening(tmp_path / "d.sock"), pytest.raises(EngineError, match="it does not answer in time"):
        connect_to(tmp_path / "d.sock")


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n64\r\n{",
        b"HTTP/1.1 20",
    ],
    ids=["no answer", "cut body", "cut chunk", "cut status"],
)
def test_an_engine_that_stops_in_the_middle_of_an_answer_is_said_to(tmp_path: Path, answer: bytes) -> None:
    def stop(listener: socket.socket) -> None:
        near, _ = listener.accept()
        with near:
            near.recv(65536)
            near.sendall(answer)

    address = f"unix://{tmp_path}/d.sock"
    with listening(tmp_path / "d.sock") as listener:
        thread = threading.Thread(target=stop, args=(listener,))
        thread.start()
        with (
            contextlib.closing(APIClient(base_url=address, version="1.41", timeout=20)) as client,
            pytest.raises(EngineError, match="cannot be used: it broke the connection off") as caught,
            engine_errors(address),
        ):
            client.version()
        thread.join()
    assert "docker version" in caught.value.remedy
    assert diagnose_error(caught.value, None) is None  # what a model's download says is no answer here


def test_a_socket_that_this_user_may_not_use_names_the_group(tmp_path: Path) -> None:
    root = os.geteuid() == 0
    with listening(tmp_path / "d.sock"):
        (tmp_path / "d.sock").chmod(0)
        if root:
            os.seteuid(65534)
        try:
            with pytest.raises(EngineError, match="this user may not use its socket") as caught:
                connect_to(tmp_path / "d.sock")
        finally:
            if root:
                os.seteuid(0)
    assert "usermod -aG docker" in caught.value.remedy


def test_an_engine_before_20_10_is_refused_with_its_version() -> None:
    with (
        answering({"version": {"Version": "19.03.15", "ApiVersion": "1.40"}}) as address,
        pytest.raises(EngineError, match=r"speaks the Docker API 1\.40, envbuild needs 1\.41"),
    ):
        connect(settings_from({"DOCKER_HOST": address}))


def test_an_engine_that_does_not_tell_of_its_containerd_image_store_loads_nothing() -> None:
    info = {"ServerVersion": "26.1.5", "DriverStatus": [["driver-type", "io.containerd.snapshotter.v1"]]}
    with answering({"version": {"Version": "26.1.5", "ApiVersion": "1.45"}, "info": info}) as address:
        engine = connect(settings_from({"DOCKER_HOST": address}))
        for ask in (engine.facts, lambda: engine.load([b""])):
            with pytest.raises(EngineError, match=r"Engine 26\.1\.5 at .* can use from Engine 28\.0 on") as caught:
                ask()
    assert '"containerd-snapshotter": false' in caught.value.remedy


def test_an_image_of_the_containerd_store_goes_by_the_configs_digest() -> None:
    loaded = {
        "Id": "sha256:manifest",
        "Descriptor": {"digest": "sha256:manifest", "annotations": {"dev.envbuild.config": "sha256:config"}},
    }
    pulled = {"Id": "sha256:other", "Descriptor": {"digest": "sha256:other"}}
    classic = {"Id": "sha256:old"}
    assert [id_of(image) for image in (loaded, pulled, classic)] == ["sha256:config", "sha256:other", "sha256:old"]
    assert name_of("sha256:config", [classic, pulled, loaded]) == "sha256:manifest"
    assert name_of("sha256:old", [classic, pulled, loaded]) == "sha256:old"


def test_a_list_that_fails_while_an_image_goes_is_asked_for_again() -> None:
    image = {"Id": "sha256:1", "RepoTags": ["envbuild/x:1"], "Size": 7}
    answers = {"version": {"Version": "28.5.2", "ApiVersion": "1.51"}, "images/json": [image]}
    with answering(answers, failing=["images/json"] * 2) as address:
        [found] = connect(settings_from({"DOCKER_HOST": address})).local_images()
    assert (found.image_id, found.references, found.size) == ("sha256:1", ("envbuild/x:1",), 7)
    with answering(answers, failing=["images/json"] * 9) as address:
        engine = connect(settings_from({"DOCKER_HOST": address}))
        with pytest.raises(EngineError, match="it is gone"):
            engine.local_images()


def test_an_image_that_goes_while_it_is_inspected_is_none() -> None:
    image = {"Id": "sha256:1", "RootFS": {"Layers": ["sha256:aa"]}}
    answers = {
        "version": {"Version": "28.5.2", "ApiVersion": "1.51"},
        "images/json": [{"Id": "sha256:1"}, {"Id": "sha256:2"}],
        "images/sha256:1/json": image,
    }
    with answering(answers, failing=["images/sha256:1/json"], gone=["images/sha256:2/json"]) as address:
        assert connect(settings_from({"DOCKER_HOST": address})).chain_ids() == {"sha256:aa"}


def test_an_address_of_another_kind_is_refused() -> None:
    with pytest.raises(EngineError, match="DOCKER_HOST=ftp://builder"):
        connect(settings_from({"DOCKER_HOST": "ftp://builder"}))


def test_a_failure_of_ours_passes_through_the_translation_unchanged() -> None:
    with pytest.raises(KeyError), engine_errors("unix:///x"):
        raise KeyError("ours")


def test_a_full_disk_is_seen_from_the_kernels_words_or_from_the_free_bytes(tmp_path: Path) -> None:
    free = disk_free(tmp_path)
    assert free is not None
    assert disk_free(tmp_path / "elsewhere") is None
    assert out_of_disk("write /var/lib/docker/x: no space left on device", None)
    assert out_of_disk("exit code: 1", 4096)
    assert not out_of_disk("exit code: 1", 1 << 30)
    assert not out_of_disk("exit code: 1", None)


def test_chain_ids_follow_the_image_specification() -> None:
    # printf '%s %s' sha256:aa sha256:bb | sha256sum, and the same once more with sha256:cc
    assert chain_of(["sha256:aa", "sha256:bb", "sha256:cc"]) == (
        "sha256:aa",
        "sha256:b68ad689d6d1ec110ea1c13617437ad6f3766d4b3b309f6a603a222e07a0164f",
        "sha256:ced946a3b9b1c697ead0fa9bf9ad36e03198566077f3950076f64a4760acde1b",
    )
    assert chain_of([]) == ()


def test_frames_are_whole_wherever_the_stream_is_cut() -> None:
    frames = [(1, b"out"), (2, b""), (2, b"error\n"), (1, b"x" * 70000)]
    stream = b"".join(struct.pack(">BxxxL", number, len(data)) + data for number, data in frames)
    for cut in (1, 7, 8, 9, 12, 20, 30, 60000):
        parser = Frames()
        seen = [*parser.feed(stream[:cut]), *parser.feed(stream[cut:])]
        assert seen == frames


@example(bytes(range(256)) * 2, 30)
@given(st.binary(max_size=400), st.integers(1, 50))
def test_a_bounded_log_keeps_short_output_as_it_is_and_both_ends_of_a_long_one(data: bytes, piece: int) -> None:
    log = BoundedLog(head=40, tail=60)
    for start in range(0, len(data), piece):
        log.add(data[start : start + piece])
    if len(data) <= 100:
        assert log.value() == data
    else:
        assert log.value() == data[:40] + b"\n[... %d bytes left out ...]\n" % (len(data) - 100) + data[-60:]


def test_lines_come_whole_and_bars_show_their_last_state() -> None:
    seen: list[str] = []
    lines = Lines(seen.append)
    for piece in (b"one\ntw", b"o\r\n", b"10%\r50%\r", b"100%\n", b"\xff", b"no newline"):
        lines.feed(piece)
    assert seen == ["one", "two", "100%"]
    lines.close()
    assert seen[3:] == ["\ufffdno newline"]


def test_a_line_without_end_is_handed_on_in_pieces() -> None:
    seen: list[str] = []
    Lines(seen.append).feed(b"x" * (2 * LINE_BYTES + 1))
    assert [len(line) for line in seen] == [LINE_BYTES, LINE_BYTES]


def test_a_living_process_owns_its_containers_and_an_ended_one_does_not() -> None:
    assert is_local(own_name())
    assert not is_dead(own_name())
    script = "from builder.dockerd.owner import own_name; print(own_name())"
    ended = subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True, capture_output=True, text=True)
    assert is_local(ended.stdout.strip())
    assert is_dead(ended.stdout.strip())


def test_a_pid_that_another_process_took_over_does_not_keep_a_container() -> None:
    world, _, start = own_name().rpartition("/")
    assert is_dead(f"{world}/{int(start) + 1}")


def test_containers_of_another_machine_stay_until_they_have_long_ended() -> None:
    foreign = f"other-boot/4026531836/{os.getpid()}/1"
    assert not is_leftover(foreign, running=True, age=1e9)
    assert not is_leftover(foreign, running=False, age=60)
    assert is_leftover(foreign, running=False, age=1e6)
    assert not is_leftover(own_name(), running=False, age=1e6)


@pytest.mark.parametrize(
    ("dockerfile", "expected"),
    [
        ("FROM debian:13\n", ("debian:13",)),
        ("# FROM a\nfrom --platform=linux/amd64 debian AS Base\nFROM base\n", ("debian",)),
        ("FROM scratch\nADD base.tar /\n", ()),
        ("ARG BASE=default:1\nFROM ${BASE}\nARG BASE\nFROM $BASE AS two\n", ("given:1",)),
        ("ARG NAME='tool'\nFROM envbuild/$NAME:${TAG:-2}\n", ("envbuild/tool:2",)),
        (
            "FROM a AS x\nCOPY --from=x /1 /2\nCOPY --chown=0 --from=other:1 /a /b\nCOPY --from=0 / /\n",
            ("a", "other:1"),
        ),
        (
            "FROM a\nRUN --mount=type=cache,target=/c \\\n # why\n  --mount=type=bind,from=b,target=/b \\\n  make\n",
            ("a", "b"),
        ),
        ("FROM a\nRUN echo \\\nFROM b\n", ("a",)),
    ],
)
def test_the_images_that_a_dockerfile_takes_from_outside_are_known(dockerfile: str, expected: tuple[str, ...]) -> None:
    assert named_images(dockerfile, {"BASE": "given:1"}) == expected


def context(folder: Path) -> Path:
    (folder / "debs").mkdir(parents=True)
    (folder / "debs" / "b").write_bytes(b"b" * 700)
    (folder / "a").write_bytes(b"")
    (folder / "run").write_text("#!/bin/sh\n")
    (folder / "run").chmod(0o700)
    (folder / "link").symlink_to("debs")
    (folder / "Dockerfile").write_text("FROM old\n")
    return folder


def test_a_context_is_sent_as_it_is_with_the_given_dockerfile(tmp_path: Path) -> None:
    data = b"".join(context_tar(context(tmp_path / "one"), "FROM new\n"))
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        members = {member.name: member for member in archive}
        assert list(members) == ["Dockerfile", "a", "debs", "debs/b", "link", "run"]
        assert {name: oct(member.mode) for name, member in members.items() if name in {"a", "debs", "run"}} == {
            "a": "0o644",
            "debs": "0o755",
            "run": "0o755",
        }
        assert members["link"].linkname == "debs"
        assert {member.mtime for member in members.values()} == {315532800}, "a wheel's zip holds nothing before 1980"
        texts = [archive.extractfile(name) for name in ("Dockerfile", "debs/b")]
        assert [text.read() for text in texts if text] == [b"FROM new\n", b"b" * 700]


def test_a_context_gives_the_same_bytes_whatever_the_times_and_masks_of_its_files(tmp_path: Path) -> None:
    first, second = context(tmp_path / "one"), context(tmp_path / "two")
    os.utime(second / "a", (1, 1))
    (second / "debs" / "b").chmod(0o600)
    assert b"".join(context_tar(first, "FROM x")) == b"".join(context_tar(second, "FROM x"))


def test_a_context_with_a_pipe_or_a_changing_file_is_refused(tmp_path: Path) -> None:
    growing = tmp_path / "growing" / "file"
    growing.parent.mkdir()
    growing.write_bytes(b"1")
    stream = context_tar(growing.parent, "FROM x")
    next(stream), next(stream)
    growing.write_bytes(b"12")
    with pytest.raises(BuildFailedError, match="changed while it was sent"):
        list(stream)
    os.mkfifo(tmp_path / "growing" / "pipe")
    with pytest.raises(BuildFailedError, match="pipe, which is no file, folder or link"):
        list(context_tar(growing.parent, "FROM x"))


def test_the_fake_engine_is_an_engine_and_remembers_what_it_was_asked(tmp_path: Path) -> None:
    fake = FakeEngine(answer=lambda _job: Exit(code=1, stderr=b"nvcc fatal\nagain"))
    engine: Engine = fake
    seen: list[str] = []
    assert engine.run(ContainerRun(image="x", command=("nvcc",)), seen.append).code == 1
    assert seen == ["nvcc fatal", "again"]
    assert [job.command for job in fake.runs] == [("nvcc",)]
    built = engine.build(ImageBuild(dockerfile="FROM scratch", context=tmp_path, tag="t:1"))
    assert engine.image_id("t:1") == built
    engine.load([b"a", b"b"])
    assert fake.loaded == [b"ab"]
    engine.remove_image("t:1")
    assert engine.image_id("t:1") is None


def test_a_test_that_needs_an_engine_fails_without_one_and_says_why(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "tells_its_version"]
    environment = {**os.environ, "DOCKER_HOST": f"unix://{tmp_path}/none.sock"}
    ended = subprocess.run(
        [*command, "tests/docker/test_engine.py"],
        check=False,
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 1
    assert "no engine runs: its socket does not exist" in ended.stdout
    assert "skipped" not in ended.stdout
