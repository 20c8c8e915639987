from __future__ import annotations

import io
import tarfile
from typing import TYPE_CHECKING, Any

import pytest

from builder.build.base import (
    RootFilesystem,
    base_key,
    bootstrap_base,
    bootstrap_command,
    debs_folder,
    write_without_devices,
)
from builder.errors import BuildFailedError
from builder.lock.model import DebianLock, DebianRelease, LockedDeb
from builder.process import MissingProgramError
from builder.store import Store

if TYPE_CHECKING:
    from pathlib import Path


def deb(name: str, version: str, sha256: str = "a" * 64) -> LockedDeb:
    return LockedDeb(
        name=name,
        version=version,
        architecture="amd64",
        archive="debian",
        filename=f"pool/main/{name}.deb",
        sha256=sha256,
        size=3,
    )


def lock(**changes: Any) -> DebianLock:
    release = DebianRelease(archive="debian", suite="trixie", date="2025-09-06T10:00:00Z", packages_sha256="b" * 64)
    fields: dict[str, Any] = {
        "suite": "trixie",
        "releases": (release,),
        "base": (deb("bash", "5.2", "1" * 64), deb("dash", "0.5", "2" * 64)),
    }
    return DebianLock(**{**fields, **changes})


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def test_the_key_changes_with_a_package_and_with_the_clock() -> None:
    other_deb = lock(base=(deb("bash", "5.2", "1" * 64), deb("dash", "0.5", "3" * 64)))
    later = DebianRelease(archive="debian", suite="trixie", date="2025-09-06T10:00:01Z", packages_sha256="b" * 64)
    keys = {base_key(lock()), base_key(other_deb), base_key(lock(releases=(later,)))}
    assert len(keys) == 3


def test_the_key_does_not_change_with_the_toolchain() -> None:
    assert base_key(lock(toolchain=(deb("gcc", "14"),))) == base_key(lock())


def test_a_base_that_the_store_has_is_not_made_again(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/none")
    kept = RootFilesystem(sha256=store.add_bytes(b"tar"), size=3)
    store.keep_result("base", base_key(lock()), {"sha256": kept.sha256, "size": kept.size})
    assert bootstrap_base(lock(), store) == kept
    store.path(kept.sha256).unlink()
    with pytest.raises(MissingProgramError, match="mmdebstrap"):
        bootstrap_base(lock(), store)


def test_a_package_that_was_never_fetched_is_named(store: Store) -> None:
    with pytest.raises(BuildFailedError, match=r"bash 5\.2 is not in the store"):
        debs_folder(lock().base, store, store.root / "debs")


def test_packages_get_the_names_that_apt_gives_them(store: Store, tmp_path: Path) -> None:
    packages = (
        deb("gcc", "4:14.2.0-1", store.add_bytes(b"gcc")),
        deb("libstdc++6", "14.2.0-19", store.add_bytes(b"std")),
    )
    paths = debs_folder(packages, store, tmp_path / "debs")
    assert [path.name for path in paths] == ["gcc_4%3a14.2.0-1_amd64.deb", "libstdc++6_14.2.0-19_amd64.deb"]
    assert [path.read_bytes() for path in paths] == [b"gcc", b"std"]
    assert paths[0].samefile(store.path(packages[0].sha256))


def test_a_package_that_lies_there_already_is_replaced_and_the_store_is_not_written(
    store: Store, tmp_path: Path
) -> None:
    first, second = (deb("gcc", "14", store.add_bytes(data)) for data in (b"old", b"new"))
    debs_folder([first], store, tmp_path)
    (path,) = debs_folder([second], store, tmp_path)
    assert path.read_bytes() == b"new"
    assert store.path(first.sha256).read_bytes() == b"old"


def test_the_command_installs_every_locked_package_in_an_environment_of_its_own(tmp_path: Path) -> None:
    command = bootstrap_command(lock(), mode="root", repository=tmp_path / "debs", output=tmp_path / "out.tar")
    assert command[:2] == ("env", "-i")
    assert "--include=bash,dash" in command
    assert f"SOURCE_DATE_EPOCH={lock().epoch}" in command
    assert command[-3:] == ("", str(tmp_path / "out.tar"), f"deb [trusted=yes] copy://{tmp_path}/debs ./")


def test_device_nodes_are_left_out_and_all_else_is_kept_in_order(tmp_path: Path) -> None:
    source, target = tmp_path / "source.tar", tmp_path / "target.tar"
    with tarfile.open(source, "w", format=tarfile.PAX_FORMAT) as archive:
        _add(archive, "./", tarfile.DIRTYPE)
        _add(archive, "./dev", tarfile.DIRTYPE)
        _add(archive, "./dev/null", tarfile.CHRTYPE)
        _add(archive, "./devices", data=b"kept")
        _add(archive, "./bin", tarfile.SYMTYPE, link="usr/bin")
        _add(archive, "./usr/bin/ping", data=b"ping", pax={"SCHILY.xattr.security.capability": "cap"})
        _add(archive, "./usr/bin/ping6", tarfile.LNKTYPE, link="./usr/bin/ping")
    write_without_devices(source, target)
    with tarfile.open(target) as archive:
        members = archive.getmembers()
        assert [member.name for member in members] == [".", "./devices", "./bin", "./usr/bin/ping", "./usr/bin/ping6"]
        data = archive.extractfile("./devices")
        assert data is not None
        assert data.read() == b"kept"
        assert [member.linkname for member in members] == ["", "", "usr/bin", "", "./usr/bin/ping"]
        assert members[3].pax_headers == {"SCHILY.xattr.security.capability": "cap"}
        assert {(member.mtime, member.uid, member.mode) for member in members} == {(1700000000, 42, 0o751)}


def _add(
    archive: tarfile.TarFile,
    name: str,
    kind: bytes = tarfile.REGTYPE,
    *,
    data: bytes = b"",
    link: str = "",
    pax: dict[str, str] | None = None,
) -> None:
    member = tarfile.TarInfo(name)
    member.type, member.linkname, member.size, member.pax_headers = kind, link, len(data), pax or {}
    member.mtime, member.uid, member.mode = 1700000000, 42, 0o751
    archive.addfile(member, io.BytesIO(data))
