"""An engine behind ssh does all that one on this machine does: facts, loading an image, a container's live output."""

from __future__ import annotations

import os
import sys
import uuid
from typing import TYPE_CHECKING

import pytest

from builder.engine import ContainerRun
from builder.matrix.engines import connect_to
from builder.settings import settings_from
from tests.tiny_image import tiny_archive

if TYPE_CHECKING:
    from pathlib import Path

    from builder.dockerd.client import DockerEngine

pytestmark = pytest.mark.docker

DIAL = f"""\
#!{sys.executable}
import os, select, socket, sys
assert sys.argv[-4:] == ["builder", "docker", "system", "dial-stdio"], sys.argv
engine = socket.socket(socket.AF_UNIX)
engine.connect("/var/run/docker.sock")
while True:
    for ready in select.select([0, engine], [], [])[0]:
        piece = os.read(0, 65536) if ready == 0 else engine.recv(65536)
        if not piece:
            sys.exit()
        if ready == 0:
            engine.sendall(piece)
        else:
            os.write(1, piece)
"""


def test_an_engine_behind_ssh_loads_an_image_and_tells_a_containers_lines_as_they_come(
    engine: DockerEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ssh").write_text(DIAL)
    (tmp_path / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    far = connect_to("ssh://builder", settings_from({}))
    assert far.facts() == engine.facts()
    name = f"envbuild-test/far:{uuid.uuid4().hex[:12]}"
    far.load(tiny_archive(name))
    lines: list[str] = []
    try:
        job = ContainerRun(image=name, command=("/bin/sh", "-c", "echo one >&2; echo two; exit 3"))
        ended = far.run(job, lines.append)
    finally:
        far.remove_image(name)
    assert (ended.code, ended.stdout, lines) == (3, b"two\n", ["one"])
    assert engine.image_id(name) is None
