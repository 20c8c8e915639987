from __future__ import annotations

import functools
import shutil
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from builder.document import sha256_bytes
from builder.errors import ResolveError
from builder.lock.debian import (
    DebGoneError,
    chosen_packages,
    fetch_debs,
    resolve_debian,
)
from builder.lock.debian_archive import (
    Mirrors,
    find_mirrors,
    mirrors_of_apt,
    mirrors_of_mmdebstrap,
    read_release,
    stanzas_of,
    suites_of,
)
from builder.lock.model import DebianLock, DebianRelease
from builder.lock.question import BASE_PACKAGES, TOOLCHAIN_PACKAGES
from builder.process import MissingProgramError
from builder.settings import settings_from
from builder.store import Store

if TYPE_CHECKING:
    from collections.abc import Iterator

    from builder.settings import Settings

CASE = Path(__file__).parents[1] / "cases" / "debian-archive"
KEYRING = CASE / "keyring.gpg"
RELEASE = CASE / "debian" / "dists" / "trixie" / "InRelease"

needs_gpgv = pytest.mark.skipif(shutil.which("gpgv") is None, reason="gpgv is not installed")
needs_mmdebstrap = pytest.mark.skipif(
    None in (shutil.which("gpgv"), shutil.which("mmdebstrap")), reason="mmdebstrap or gpgv is not installed"
)


class Handler(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """A copy of the tiny archive that a test may damage."""
    return Path(shutil.copytree(CASE, tmp_path / "archive"))


@pytest.fixture
def settings(archive: Path, tmp_path: Path) -> Iterator[Settings]:
    handler = functools.partial(Handler, directory=str(archive))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        url = f"http://127.0.0.1:{server.server_address[1]}"
        yield settings_from(
            {
                "ENVBUILD_STORE": str(tmp_path / "store"),
                "ENVBUILD_DEBIAN_MIRROR": f"{url}/debian/",
                "ENVBUILD_DEBIAN_SECURITY_MIRROR": f"{url}/debian-security",
            }
        )
        server.shutdown()
        thread.join()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def resolve(settings: Settings, store: Store, base: tuple[str, ...], toolchain: tuple[str, ...] = ()) -> DebianLock:
    return resolve_debian("trixie", base, toolchain, store, settings, keyring=KEYRING)


@needs_mmdebstrap
def test_the_newest_versions_of_all_three_suites_are_locked(settings: Settings, store: Store) -> None:
    lock = resolve(settings, store, ("python3",), ("gcc",))
    assert [(deb.name, deb.version, deb.archive) for deb in lock.base] == [
        ("apt", "3.0", "debian"),
        ("base-files", "13", "debian"),
        ("libtiny", "1.1", "debian"),
        ("mawk", "1.3", "debian"),
        ("python3", "3.13.5-1+deb13u1", "debian-security"),
    ]
    assert [(deb.name, deb.version) for deb in lock.toolchain] == [("gcc", "4:14.2.0-1"), ("gcc-14", "14.2.0-19")]
    python = lock.base[-1]
    assert python.filename == "pool/updates/main/p/python3/python3_3.13.5-1+deb13u1_amd64.deb"
    assert python.sha256 == sha256_bytes((CASE / "debian-security" / python.filename).read_bytes())


@needs_mmdebstrap
def test_a_store_may_have_spaces_and_quotes_in_its_path(settings: Settings, store: Store, tmp_path: Path) -> None:
    other = Store(tmp_path / "a 'store' [of] (mine) & \N{LATIN SMALL LETTER U WITH DIAERESIS}")
    assert resolve(settings, other, ("python3",), ("gcc",)) == resolve(settings, store, ("python3",), ("gcc",))


@needs_mmdebstrap
def test_the_lock_names_the_signed_releases_and_no_mirror(settings: Settings, store: Store) -> None:
    lock = resolve(settings, store, ("python3",))
    assert [(release.suite, release.date) for release in lock.releases] == [
        ("trixie", "2025-09-06T10:00:00Z"),
        ("trixie-updates", "2025-09-07T08:15:00Z"),
        ("trixie-security", "2025-09-08T21:30:59Z"),
    ]
    assert lock.epoch == 1757367059
    assert "127.0.0.1" not in lock.model_dump_json()
    assert lock.toolchain == ()


@needs_mmdebstrap
def test_the_same_wishes_in_another_order_give_the_same_lock(settings: Settings, store: Store) -> None:
    first = resolve(settings, store, ("python3", "extra"), ("gcc", "gcc-14"))
    assert resolve(settings, store, ("extra", "python3", "extra"), ("gcc-14", "gcc")) == first


@needs_mmdebstrap
def test_the_toolchain_takes_the_base_as_it_is(settings: Settings, store: Store) -> None:
    with_gawk = resolve(settings, store, ("gawk",), ("gcc",))
    without = resolve(settings, store, (), ("gcc",))
    assert "gawk" in [deb.name for deb in with_gawk.base]
    assert [deb.name for deb in with_gawk.toolchain] == [deb.name for deb in without.toolchain] == ["gcc", "gcc-14"]


@needs_gpgv
@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("pyhton3", "did you mean python3"),
        ("awk", "awk is a virtual package; name one that provides it: gawk, mawk"),
        ("zzzzzz", "apt-cache search"),
    ],
)
def test_an_unknown_package_is_named_with_its_neighbours(
    name: str, remedy: str, settings: Settings, store: Store
) -> None:
    with pytest.raises(ResolveError, match=f"trixie has no package '{name}'") as caught:
        resolve(settings, store, ("python3", name))
    assert remedy in caught.value.remedy


@needs_mmdebstrap
@pytest.mark.parametrize("stage", ["base", "toolchain"])
def test_a_package_that_cannot_be_installed_shows_the_lines_of_apt(
    stage: str, settings: Settings, store: Store
) -> None:
    with pytest.raises(ResolveError, match=r"cannot resolve the Debian packages .*broken") as caught:
        resolve(settings, store, ("broken",) if stage == "base" else (), ("broken",) if stage == "toolchain" else ())
    assert any("nowhere" in line for line in caught.value.evidence)


@needs_gpgv
def test_an_index_that_is_not_the_signed_one_is_refused(archive: Path, settings: Settings, store: Store) -> None:
    index = archive / "debian/dists/trixie-updates/main/binary-amd64/Packages.xz"
    index.write_bytes(index.read_bytes()[:-1] + b"x")
    with pytest.raises(ResolveError, match="package index of trixie-updates: the server sent other bytes"):
        resolve(settings, store, ("python3",))


@needs_gpgv
def test_a_suite_that_the_mirror_does_not_have_is_named(archive: Path, settings: Settings, store: Store) -> None:
    shutil.rmtree(archive / "debian-security")
    with pytest.raises(ResolveError, match="the Debian mirror does not give trixie-security: no such file") as caught:
        resolve(settings, store, ("python3",))
    assert "ENVBUILD_DEBIAN_SECURITY_MIRROR" in caught.value.remedy


@needs_mmdebstrap
def test_every_locked_package_comes_into_the_store(settings: Settings, store: Store) -> None:
    lock = resolve(settings, store, ("python3",), ("gcc",))
    fetch_debs(lock.base + lock.toolchain, store, settings)
    for deb in lock.base + lock.toolchain:
        assert store.path(deb.sha256).read_bytes() == (CASE / deb.archive / deb.filename).read_bytes()


@needs_mmdebstrap
def test_a_superseded_package_has_its_own_error_unless_the_store_has_it(
    archive: Path, settings: Settings, store: Store
) -> None:
    lock = resolve(settings, store, ("python3",))
    gone = next(deb for deb in lock.base if deb.name == "libtiny")
    data = (archive / "debian" / gone.filename).read_bytes()
    (archive / "debian" / gone.filename).unlink()
    with pytest.raises(DebGoneError, match=r"the locked package libtiny 1\.1 is no longer on the mirror") as caught:
        fetch_debs(lock.base, store, settings)
    assert f"sha256 {gone.sha256}" in caught.value.evidence
    store.add_bytes(data)
    fetch_debs(lock.base, store, settings)


@needs_gpgv
def test_a_good_signature_gives_date_and_index() -> None:
    signed = read_release(RELEASE.read_bytes(), "debian", "trixie", "here", KEYRING)
    index = next((RELEASE.parent / "main/binary-amd64/by-hash/SHA256").iterdir())
    assert signed.release == DebianRelease(
        archive="debian", suite="trixie", date="2025-09-06T10:00:00Z", packages_sha256=index.name
    )
    assert signed.index_size == index.stat().st_size
    assert signed.by_hash


@needs_gpgv
@pytest.mark.parametrize(
    "signed",
    [
        pytest.param(RELEASE.read_bytes().replace(b"06 Sep", b"07 Sep"), id="changed"),
        pytest.param(RELEASE.read_bytes().split(b"-----BEGIN PGP SIGNATURE")[0], id="cut"),
        pytest.param(b"Codename: trixie\n", id="unsigned"),
        pytest.param(b"", id="empty"),
    ],
)
def test_a_release_without_a_good_signature_is_refused(signed: bytes) -> None:
    with pytest.raises(ResolveError, match="the signature of here is not good") as caught:
        read_release(signed, "debian", "trixie", "here", KEYRING)
    assert caught.value.evidence


@needs_gpgv
def test_a_release_that_another_key_signed_is_refused(tmp_path: Path) -> None:
    empty = tmp_path / "empty.gpg"
    empty.write_bytes(b"")
    with pytest.raises(ResolveError, match="is not good"):
        read_release(RELEASE.read_bytes(), "debian", "trixie", "here", empty)


@needs_gpgv
def test_the_release_of_another_suite_is_refused() -> None:
    with pytest.raises(ResolveError, match="here is the Release file of trixie, not of bookworm"):
        read_release(RELEASE.read_bytes(), "debian", "bookworm", "here", KEYRING)


@needs_gpgv
def test_text_around_the_signed_part_is_not_read() -> None:
    signed = b"Codename: bookworm\n" + RELEASE.read_bytes() + b"Date: Mon, 01 Jan 2035 00:00:00 UTC\n"
    assert read_release(signed, "debian", "trixie", "here", KEYRING).release.date == "2025-09-06T10:00:00Z"


def test_missing_keys_of_debian_are_named_with_their_package(tmp_path: Path) -> None:
    with pytest.raises(ResolveError, match=r"none\.gpg is missing") as caught:
        read_release(RELEASE.read_bytes(), "debian", "trixie", "here", tmp_path / "none.gpg")
    assert "apt-get install debian-archive-keyring" in caught.value.remedy


def test_a_missing_program_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/none")
    with pytest.raises(MissingProgramError, match="gpgv") as caught:
        read_release(RELEASE.read_bytes(), "debian", "trixie", "here", KEYRING)
    assert "apt-get install gpgv" in caught.value.remedy
    assert caught.value.exit_code == 6


def test_the_mirrors_of_apt_are_those_of_the_component_main() -> None:
    text = """
'http://other.example/linux/debian/dists/trixie/InRelease' other.example_linux_debian_dists_trixie_InRelease 0
'http://other.example/linux/debian/dists/trixie/stable/binary-amd64/Packages.xz' x 0
'http://deb.example/debian/dists/trixie/InRelease' deb.example_debian_dists_trixie_InRelease 0
'http://deb.example/debian/dists/trixie/main/binary-amd64/Packages.xz' deb.example_debian_x 0
'http://deb.example/debian/dists/trixie-updates/main/binary-amd64/Packages.xz' deb.example_debian_x 0
'https://sec.example/debian-security/dists/trixie-security/main/binary-all/Packages.xz' sec.example_x 0
'https://late.example/debian/dists/trixie-backports/main/binary-all/Packages.xz' late.example_x 0
"""
    assert mirrors_of_apt(text) == {
        "debian": "http://deb.example/debian",
        "debian-security": "https://sec.example/debian-security",
    }
    assert mirrors_of_apt("'mirror+file:/etc/apt/mirrors/debian.list/dists/trixie/main/binary-amd64/x' x 0") == {}


def test_the_mirrors_of_mmdebstrap_are_read_from_what_it_prints() -> None:
    text = """
I: running apt-get update...
Get:1 http://deb.example/debian stable InRelease [140 kB]
Hit:2 http://sec.example/debian-security stable-security InRelease
Get:3 http://deb.example/debian stable-updates InRelease [47.3 kB]
Get:4 http://deb.example/debian stable/main amd64 Packages [9679 kB]
"""
    assert mirrors_of_mmdebstrap(text) == {
        "debian": "http://deb.example/debian",
        "debian-security": "http://sec.example/debian-security",
    }


def test_the_users_own_mirrors_need_no_other_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/none")
    settings = settings_from(
        {
            "ENVBUILD_DEBIAN_MIRROR": "http://deb.example/debian/",
            "ENVBUILD_DEBIAN_SECURITY_MIRROR": "http://sec.example/debian-security",
        }
    )
    mirrors = find_mirrors(settings)
    assert mirrors == Mirrors(debian="http://deb.example/debian", security="http://sec.example/debian-security")
    assert mirrors.url("debian-security", "pool/x.deb") == "http://sec.example/debian-security/pool/x.deb"


def test_only_packages_that_apt_installs_are_read_from_its_simulation() -> None:
    text = """
The following NEW packages will be installed:
Remv old (1.0 now)
Inst libc6 (2.41-12+deb13u5 Debian:13.8/stable [amd64]) []
Inst libc6 (2.41-12+deb13u5 Debian:13.8/stable [amd64])
Inst gcc [4:12.2.0-3] (4:14.2.0-1 Debian:13.8/stable [amd64])
Conf libc6 (2.41-12+deb13u5 Debian:13.8/stable [amd64])
"""
    assert list(chosen_packages(text).items()) == [("gcc", "4:14.2.0-1"), ("libc6", "2.41-12+deb13u5")]


def test_two_versions_of_a_package_are_kept_apart() -> None:
    stanzas = stanzas_of("Package: a\nVersion: 1\n\nPackage: b\nVersion: 1\n\nPackage: a\nVersion: 2\n")
    assert stanzas == {
        "a": ("Package: a\nVersion: 1\n", "Package: a\nVersion: 2\n"),
        "b": ("Package: b\nVersion: 1\n",),
    }


def test_a_release_is_its_suite_its_updates_and_its_security_updates() -> None:
    assert suites_of("bookworm") == (
        ("debian", "bookworm"),
        ("debian", "bookworm-updates"),
        ("debian-security", "bookworm-security"),
    )


def test_the_default_packages_are_sorted_so_that_a_lock_does_not_depend_on_their_order() -> None:
    assert list(BASE_PACKAGES) == sorted(BASE_PACKAGES)
    assert list(TOOLCHAIN_PACKAGES) == sorted(TOOLCHAIN_PACKAGES)
