"""Fetching by file name and sha256 alone, through the index that the user's own settings name."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import pytest

from builder.download import Patience, Progress
from builder.errors import ResolveError
from builder.lock.index import configured_index, find_file, index_endpoint, index_of, with_credentials
from builder.lock.model import LockedWheel
from builder.lock.wheels import fetch_wheels
from builder.recipe.model import Index
from builder.settings import Settings, settings_from
from builder.store import Store
from tests.package_index import PackageIndex, serve

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

HASTY = Patience(attempts=2, pause=0.0, silence=5.0)


@pytest.fixture
def index() -> Iterator[PackageIndex]:
    with serve(PackageIndex()) as served:
        yield served


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def settings_for(url: str) -> Settings:
    return settings_from({"ENVBUILD_INDEX_URL": url})


def publish(index: PackageIndex, name: str, version: str = "1.0") -> LockedWheel:
    data = index.add(name, version)
    return LockedWheel(
        name=name,
        version=version,
        filename=f"{name}-{version}-py3-none-any.whl",
        sha256=hashlib.sha256(data).hexdigest(),
        size=len(data),
    )


def fetch(wheel: LockedWheel, index: PackageIndex, store: Store) -> None:
    fetch_wheels([wheel], store, settings_for(index.url), patience=HASTY)


@pytest.mark.parametrize("as_json", [True, False])
def test_wheels_come_into_the_store_from_either_kind_of_index(as_json: bool, index: PackageIndex, store: Store) -> None:
    index.as_json = as_json
    wheels = [publish(index, "app"), publish(index, "lib"), publish(index, "lib", "2.0")]
    seen: list[Progress] = []
    fetch_wheels(wheels, store, settings_for(index.url), seen.append, patience=HASTY)
    for wheel in wheels:
        assert store.path(wheel.sha256).read_bytes() == index.files[wheel.name][wheel.filename]
    assert (seen[-1].files_done, seen[-1].done) == (3, sum(wheel.size for wheel in wheels))


def test_what_is_in_the_store_is_neither_looked_up_nor_fetched(index: PackageIndex, store: Store) -> None:
    wheel = publish(index, "app")
    fetch(wheel, index, store)
    index.asked.clear()
    fetch(wheel, index, store)
    assert index.asked == []


def test_an_index_without_hashes_is_believed_only_after_the_bytes_are_proven(index: PackageIndex, store: Store) -> None:
    index.hashes = False
    wheel = publish(index, "app")
    fetch(wheel, index, store)
    assert store.has(wheel.sha256)
    other = publish(index, "lib")
    index.files["lib"][other.filename] = b"x" * other.size
    with pytest.raises(ResolveError, match="other bytes than the locked ones"):
        fetch(other, index, store)


def test_the_password_of_an_index_opens_its_files_too(index: PackageIndex, store: Store) -> None:
    index.password = "s3cret"
    wheel = publish(index, "app")
    fetch_wheels([wheel], store, settings_for(index.closed_url), patience=HASTY)
    assert store.has(wheel.sha256)


def test_a_refused_password_is_not_shown(index: PackageIndex, store: Store) -> None:
    index.password = "s3cret"
    wheel = publish(index, "app")
    wrong = index.closed_url.replace("s3cret", "wr0ng")
    with pytest.raises(ResolveError, match="cannot be asked for app") as caught:
        fetch_wheels([wheel], store, settings_for(wrong), patience=HASTY)
    shown = "\n".join((str(caught.value), caught.value.remedy, *caught.value.evidence))
    assert "HTTP 401" in shown
    assert "wr0ng" not in shown


def test_an_unreachable_index_names_the_setting(index: PackageIndex, store: Store) -> None:
    wheel = publish(index, "app")
    with pytest.raises(
        ResolveError, match=r"the package index http://127\.0\.0\.1:9/simple/ cannot be asked"
    ) as caught:
        fetch_wheels([wheel], store, settings_for("http://127.0.0.1:9/simple/"), patience=HASTY)
    assert caught.value.exit_code == 6
    assert "ENVBUILD_INDEX_URL" in caught.value.remedy


def test_a_project_or_a_file_that_is_gone_is_named(index: PackageIndex, store: Store) -> None:
    wheel = publish(index, "app")
    index.files["app"].clear()
    with pytest.raises(ResolveError, match=r"does not have app-1\.0-py3-none-any\.whl"):
        fetch(wheel, index, store)
    del index.files["app"]
    with pytest.raises(ResolveError, match="has no project app"):
        fetch(wheel, index, store)


def test_another_file_under_the_locked_name_is_refused_before_it_is_fetched(index: PackageIndex, store: Store) -> None:
    wheel = publish(index, "app")
    index.add("app", "1.0", "evil")
    with pytest.raises(ResolveError, match=r"has another file under the name app-1\.0") as caught:
        fetch(wheel, index, store)
    assert caught.value.evidence[0] == f"locked sha256 {wheel.sha256}"
    assert index.asked == ["/simple/app/"]


def test_a_page_that_is_none_is_refused(index: PackageIndex, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = publish(index, "app")
    monkeypatch.setattr(index, "page", lambda _: ("application/json", b"[1]"))
    with pytest.raises(ResolveError, match="is not a page of a package index"):
        fetch(wheel, index, store)


def test_a_package_of_the_recipes_index_is_looked_for_nowhere_else(index: PackageIndex, store: Store) -> None:
    with serve(PackageIndex()) as more:
        wheel = publish(more, "app")
        publish(index, "app")
        indexes = {"more": Index(url=more.url, packages=("App",))}
        fetch_wheels([wheel], store, settings_for(index.url), indexes=indexes, patience=HASTY)
        assert store.has(wheel.sha256)
        assert index.asked == []
        assert index_of("lib", indexes) is None


def test_a_file_that_is_not_listed_has_no_place(index: PackageIndex) -> None:
    publish(index, "app")
    assert find_file("app", "app-9-py3-none-any.whl", index.url, settings_for(index.url)) is None


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://m.example/f/a.whl", "https://u:p@m.example/f/a.whl"),
        ("https://x:y@m.example/f/a.whl", "https://x:y@m.example/f/a.whl"),
        ("https://files.example/a.whl", "https://files.example/a.whl"),
        ("http://m.example/f/a.whl", "http://m.example/f/a.whl"),
    ],
)
def test_a_password_goes_to_its_own_host_only(url: str, expected: str) -> None:
    assert with_credentials(url, "https://u:p@m.example/simple/") == expected


def test_the_users_index_is_that_of_the_environment_then_of_uv_then_of_pip(tmp_path: Path) -> None:
    environment = {"HOME": str(tmp_path), "PIP_CONFIG_FILE": str(tmp_path / "pip.conf")}
    unset, by_setting = settings_from({}), settings_for("https://env.example/simple")
    assert configured_index(unset, {"HOME": str(tmp_path), "PIP_CONFIG_FILE": "/dev/null"}) is None
    (tmp_path / "pip.conf").write_text("[global]\nindex-url = https://pip.example/simple\n", encoding="utf-8")
    assert configured_index(unset, environment) == "https://pip.example/simple"
    config = tmp_path / ".config" / "uv" / "uv.toml"
    config.parent.mkdir(parents=True)
    config.write_text('index-url = "https://uv.example/simple"\n', encoding="utf-8")
    assert configured_index(unset, environment) == "https://uv.example/simple"
    config.write_text(
        '[[index]]\nurl = "https://extra.example"\n[[index]]\nurl = "https://d.example"\ndefault = true\n'
    )
    assert configured_index(unset, environment) == "https://d.example"
    assert configured_index(by_setting, environment) == "https://env.example/simple"
    assert index_endpoint(by_setting) == "https://env.example/simple"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("uv.toml", "index-url = "),
        ("uv.toml", "\udcff"),
        ("uv.toml", "index = 5"),
        ("uv.toml", "pip = 5"),
        ("uv.toml", "index = [{default = true}]"),
        ("pip.conf", "no section"),
        ("pip.conf", "\udcff"),
    ],
)
def test_a_broken_configuration_file_is_named(name: str, text: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(text.encode(errors="surrogateescape"))
    variable = "UV_CONFIG_FILE" if name == "uv.toml" else "PIP_CONFIG_FILE"
    with pytest.raises(ResolveError, match=name):
        configured_index(settings_from({}), {"HOME": str(tmp_path / "home"), variable: str(path)})
