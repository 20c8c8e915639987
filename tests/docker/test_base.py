"""The real Debian archive: a base bootstraps to the same bytes twice, holds nothing of this machine, and compiles."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import tarfile
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from builder.build.base import RootFilesystem, base_key, bootstrap_base, debs_folder
from builder.engine import ContainerRun, Mount
from builder.lock.debian import fetch_debs, resolve_debian
from builder.lock.debian_archive import find_mirrors
from builder.lock.question import BASE_PACKAGES, TOOLCHAIN_PACKAGES
from builder.settings import settings_from
from builder.store import Store

if TYPE_CHECKING:
    from collections.abc import Iterator

    from builder.dockerd.client import DockerEngine
    from builder.lock.model import DebianLock

pytestmark = pytest.mark.network

SETTINGS = settings_from()
TAG = "envbuild-test/base:1"
APT_LISTS = Path("/var/lib/apt/lists")

PROGRAM = """
#include <Python.h>
#include <iostream>
int main() { Py_Initialize(); std::cout << PY_VERSION << " " << (Py_IsInitialized() ? "runs" : "fails") << std::endl; }
"""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return Store(tmp_path_factory.mktemp("store"))


@pytest.fixture(scope="module")
def lock(store: Store) -> DebianLock:
    lock = resolve_debian("trixie", BASE_PACKAGES, TOOLCHAIN_PACKAGES, store, SETTINGS)
    fetch_debs(lock.base + lock.toolchain, store, SETTINGS)
    return lock


@pytest.fixture(scope="module")
def base(lock: DebianLock, store: Store) -> RootFilesystem:
    return bootstrap_base(lock, store)


@pytest.fixture(scope="module")
def image(base: RootFilesystem, store: Store, engine: DockerEngine) -> Iterator[str]:
    engine.load(_archive(base, store))
    yield TAG
    engine.remove_image(TAG)


def test_a_lock_of_today_is_the_same_twice_and_names_no_mirror(lock: DebianLock, store: Store) -> None:
    assert resolve_debian("trixie", BASE_PACKAGES, TOOLCHAIN_PACKAGES, store, SETTINGS) == lock
    mirrors = find_mirrors(SETTINGS)
    text = lock.model_dump_json()
    assert mirrors.debian not in text
    assert mirrors.security not in text
    assert {"libc6", "python3", "libstdc++6", "libgomp1"} <= {deb.name for deb in lock.base}
    assert {"gcc", "g++", "libc6-dev", "python3-dev", "ccache"} <= {deb.name for deb in lock.toolchain}
    assert not {deb.name for deb in lock.base} & {deb.name for deb in lock.toolchain}


def test_another_time_zone_mask_and_temporary_folder_give_the_same_bytes(
    lock: DebianLock, base: RootFilesystem, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {
        "TZ": "Asia/Tokyo",
        "LC_ALL": "C",
        "HOME": str(tmp_path),
        "PYTHONDONTWRITEBYTECODE": "1",
        "SOURCE_DATE_EPOCH": "1",
    }.items():
        monkeypatch.setenv(name, value)
    lists = _listing(APT_LISTS)
    other = Store(tmp_path / "other")  # mmdebstrap works inside the store
    for deb in lock.base:
        other.add_bytes(store.path(deb.sha256).read_bytes())
    mask = os.umask(0o077)
    try:
        assert bootstrap_base(lock, other) == base
    finally:
        os.umask(mask)
    assert base.sha256 == hashlib.sha256(store.path(base.sha256).read_bytes()).hexdigest()
    assert store.result("base", base_key(lock)) == {"sha256": base.sha256, "size": base.size}
    assert _listing(APT_LISTS) == lists, "bootstrapping changed this machine's own apt"


def test_nothing_of_this_machine_is_in_the_base(lock: DebianLock, base: RootFilesystem, store: Store) -> None:
    mirrors = find_mirrors(SETTINGS)
    hosts = {mirrors.debian.encode(), mirrors.security.encode(), str(store.root).encode()}
    with tarfile.open(store.path(base.sha256)) as archive:
        files = {member.name: member for member in archive}
        assert not {"./dev", "./etc/hostname", "./etc/resolv.conf", "./etc/apt/sources.list"} & files.keys()
        assert files["./etc/machine-id"].size == 0
        assert max(member.mtime for member in files.values()) == lock.epoch
        logs = (
            "./var/log/",
            "./var/lib/apt/lists/",
            "./var/cache/apt/",
            "./tmp/",
            "./run/",
            "./etc/apt/sources.list.d/",
        )
        assert [name for name, member in files.items() if name.startswith(logs) and member.isfile()] == []
        assert [name for name in files if name.startswith(("./usr/share/man/", "./usr/share/locale/"))] == []
        assert "./usr/share/doc/bash/copyright" in files
        documents = [name for name, member in files.items() if member.isreg() and name.startswith("./usr/share/doc/")]
        assert {Path(name).name for name in documents} == {"copyright"}
        texts = {name: archive.extractfile(member) for name, member in files.items() if member.isreg()}
        etc = {name: file.read() for name, file in texts.items() if file and name.startswith(("./etc/", "./var/"))}
    assert etc["./etc/debian_version"].startswith(b"13")
    assert [name for name, data in etc.items() if any(host in data for host in hosts)] == []
    assert [name for name, data in etc.items() if socket.gethostname().encode() in data.split()] == []


@pytest.mark.docker
def test_the_base_holds_exactly_the_locked_packages(lock: DebianLock, image: str, engine: DockerEngine) -> None:
    query = ContainerRun(
        image=image, command=("dpkg-query", "-W", "-f", r"${Package} ${Version} ${db:Status-Abbrev}\n")
    )
    seen = engine.run(query)
    assert seen.code == 0
    assert sorted(seen.stdout.decode().splitlines()) == sorted(f"{deb.name} {deb.version} ii " for deb in lock.base)


@pytest.mark.docker
def test_the_toolchain_installs_without_network_and_compiles(
    lock: DebianLock, store: Store, image: str, engine: DockerEngine, tmp_path: Path
) -> None:
    debs_folder(lock.toolchain, store, tmp_path / "debs")
    (tmp_path / "program.cc").write_text(PROGRAM)
    script = (
        "set -e; dpkg --install /job/debs/*.deb >/tmp/log 2>&1 || { tail -n 20 /tmp/log >&2; exit 1; };"
        "dpkg --audit >&2;"
        "ccache g++ /job/program.cc -o /tmp/program $(python3-config --includes --ldflags --embed); /tmp/program"
    )
    seen = engine.run(
        ContainerRun(
            image=image,
            command=("sh", "-c", script),
            environment={"DEBIAN_FRONTEND": "noninteractive"},
            mounts=(Mount(source=tmp_path, target="/job"),),
        )
    )
    assert (seen.code, seen.stderr) == (0, b"")
    python = next(deb.version for deb in lock.base if deb.name.startswith("libpython3.13-minimal"))
    assert seen.stdout.decode() == f"{python.split('-')[0]} runs\n"


def _listing(folder: Path) -> list[tuple[str, int]]:
    return sorted((path.name, path.stat().st_mtime_ns) for path in folder.glob("*_*"))


def _archive(base: RootFilesystem, store: Store) -> Iterator[bytes]:
    """Yield a docker-archive whose only layer is the base."""
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{base.sha256}"]},
    }
    manifest = [{"Config": "config.json", "RepoTags": [TAG], "Layers": ["base.tar"]}]
    buffer = BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, value in (("manifest.json", manifest), ("config.json", config)):
            data = json.dumps(value).encode()
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, BytesIO(data))
        archive.add(store.path(base.sha256), "base.tar")
    yield buffer.getvalue()
