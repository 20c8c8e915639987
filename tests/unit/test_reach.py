"""The doctor's look at the servers that a recipe would ask: each answers, or is named with what to set."""

from __future__ import annotations

import json
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

import pytest

from builder.lock.reach import reach_findings
from builder.recipe.model import Recipe
from builder.settings import settings_from
from tests.fake_registry import FakeRegistry, running
from tests.package_index import PackageIndex, serve

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def mirror(tmp_path: Path) -> Iterator[str]:
    """A Debian mirror that has trixie, and of bookworm nothing."""
    for name in ("trixie", "trixie-security"):
        (tmp_path / "dists" / name).mkdir(parents=True)
        (tmp_path / "dists" / name / "InRelease").write_text("signed")
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(tmp_path))) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


@pytest.fixture
def index() -> Iterator[PackageIndex]:
    made = PackageIndex(password="s3cret-pass")
    made.add("pip", "25.0")
    made.add("torch", "2.9.1")
    with serve(made) as served:
        yield served


def recipe(base: dict[str, str], **more: object) -> Recipe:
    plain = {"version": 1, "name": "x", "target": {"gpu": "h200"}, "base": base, "python": "3.13", "stack": {"a": "1"}}
    return Recipe.from_json(json.dumps(plain | more), source="test")


def examined(wished: Recipe | None, **environment: str) -> dict[str, tuple[str, str, str]]:
    found = reach_findings(wished, settings_from(environment))
    return {each.rule: (each.severity, each.sentence, each.remedy) for each in found}


def test_servers_that_answer_are_ok(index: PackageIndex, mirror: str, tmp_path: Path) -> None:
    found = examined(
        recipe({"debian": "trixie"}, indexes={"own": {"url": "http://127.0.0.1:9/", "packages": ["Torch"]}}),
        ENVBUILD_INDEX_URL=index.closed_url,
        ENVBUILD_INDEX_OWN_URL=index.closed_url,
        ENVBUILD_DEBIAN_MIRROR=mirror,
        ENVBUILD_DEBIAN_SECURITY_MIRROR=mirror,
        DOCKER_CONFIG=str(tmp_path),
    )
    assert found == {
        "package-index": ("ok", f"{index.url} answers", ""),
        "debian-mirror": ("ok", f"{mirror} and {mirror} have trixie", ""),
        "index own": ("ok", f"{index.url} has Torch", ""),
    }


def test_servers_that_do_not_are_warnings_with_the_setting_to_change(mirror: str, tmp_path: Path) -> None:
    closed = "http://127.0.0.1:9/simple/"
    found = examined(
        recipe({"debian": "bookworm"}, indexes={"own": {"url": closed, "packages": ["torch"]}}),
        ENVBUILD_INDEX_URL=closed,
        ENVBUILD_DEBIAN_MIRROR=mirror,
        ENVBUILD_DEBIAN_SECURITY_MIRROR=mirror,
        DOCKER_CONFIG=str(tmp_path),
    )
    assert {rule: severity for rule, (severity, _, _) in found.items()} == dict.fromkeys(found, "warning")
    assert "cannot be asked for pip; " in found["package-index"][1]
    assert "ENVBUILD_INDEX_URL" in found["package-index"][2]
    assert f"{mirror}/dists/bookworm/InRelease" in found["debian-mirror"][1]
    assert "ENVBUILD_DEBIAN_MIRROR" in found["debian-mirror"][2]
    assert "ENVBUILD_INDEX_OWN_URL" in found["index own"][2]


def test_registries_of_a_base_image_and_of_a_share_are_asked(index: PackageIndex, tmp_path: Path) -> None:
    with running(FakeRegistry()) as registry:
        manifest = b'{"schemaVersion": 2}'
        registry.manifests.setdefault("vendor/base", {})["1"] = ("application/vnd.oci.image.manifest.v1+json", manifest)
        settings = {
            "ENVBUILD_INDEX_URL": index.closed_url,
            "ENVBUILD_SHARE": f"{registry.host}/shared",
            "DOCKER_CONFIG": str(tmp_path),
        }
        found = examined(recipe({"image": f"{registry.host}/vendor/base:1"}), **settings)
        assert "debian-mirror" not in found
        assert found["base-image"] == ("ok", f"{registry.host}/vendor/base:1 is there", "")
        assert found["share"] == ("ok", f"{registry.host}/shared answers", "")
        missing = examined(recipe({"image": f"{registry.host}/vendor/base:2"}), **settings)["base-image"]
    assert missing[:2] == ("warning", f"{registry.host} has no {registry.host}/vendor/base:2")
