"""uv itself answers, asked for handmade wheels from an index on this machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from builder.errors import InvalidDocumentError, ResolveError
from builder.lock.project import local_projects
from builder.lock.pylock import write_pylock
from builder.lock.python import refuse_contradictions, resolve_python, resolve_wheels
from builder.lock.requirements import absent_packages, requirements_of, toolchain_requirements
from builder.lock.target import Target
from builder.lock.uv import Question, end_of_day, explanation, uv_command, uv_files
from builder.recipe.model import Index, Recipe
from builder.recipe.source import RecipeFile
from builder.settings import Settings, settings_from
from builder.store import Store
from tests.package_index import PackageIndex, serve, wheel_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from builder.lock.model import LockedWheel

TRIXIE = Target(python="3.13", glibc=41)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)


@pytest.fixture
def index() -> Iterator[PackageIndex]:
    index = PackageIndex()
    index.add("app", "1.0", "lib<3", "other; sys_platform == 'linux'", "winlib; sys_platform == 'win32'")
    index.add("lib", "1.0")
    index.add("lib", "2.0", uploaded="2026-06-01T12:00:00Z")
    index.add("lib", "3.0", uploaded="2026-07-01T12:00:00Z")
    index.add("other", "1.0")
    with serve(index) as served:
        yield served


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def settings_for(index: PackageIndex, url: str | None = None) -> Settings:
    return settings_from({"ENVBUILD_INDEX_URL": url or index.url})


def versions(wheels: tuple[LockedWheel, ...]) -> dict[str, str]:
    return {wheel.name: wheel.version for wheel in wheels}


def resolve(index: PackageIndex, store: Store, *requirements: str, **more: Any) -> dict[str, str]:
    return versions(
        resolve_python(requirements, target=TRIXIE, store=store, settings=settings_for(index), **more),
    )


def resolve_stack(wished: Recipe, folder: Path, store: Store, settings: Settings) -> tuple[LockedWheel, ...]:
    return resolve_wheels(
        wished,
        requirements_of(wished, local_projects(RecipeFile(path=folder / "r.yaml", recipe=wished))),
        store,
        settings,
    )


def recipe(stack: dict[str, Any], **fields: Any) -> Recipe:
    plain = {"version": 1, "name": "x", "target": {"gpu": "h200"}, "base": {"debian": "trixie"}, "python": "3.13"}
    return Recipe.from_json(json.dumps({**plain, "stack": stack, **fields}), source="test")


def test_the_newest_fitting_versions_are_locked_for_the_target_alone(index: PackageIndex, store: Store) -> None:
    assert resolve(index, store, "app==1.0") == {"app": "1.0", "lib": "2.0", "other": "1.0"}


def test_two_runs_and_two_kinds_of_index_give_the_same_bytes(index: PackageIndex, store: Store) -> None:
    def lock() -> bytes:
        settings = settings_for(index)
        return write_pylock(resolve_python(["app==1.0"], target=TRIXIE, store=store, settings=settings), python="3.13")

    first = lock()
    index.as_json = False  # an index that says neither sizes nor dates
    assert lock() == first
    assert lock() == first
    assert str(len(index.files["app"]["app-1.0-py3-none-any.whl"])).encode() in first
    assert b"127.0.0.1" not in first


def test_an_index_that_needs_a_password_is_asked_with_it(index: PackageIndex, store: Store) -> None:
    index.password = "s3cret"
    index.as_json = False
    settings = settings_for(index, index.closed_url)
    wheels = resolve_python(["lib"], target=TRIXIE, store=store, settings=settings)
    assert versions(wheels) == {"lib": "3.0"}
    assert b"s3cret" not in write_pylock(wheels, python="3.13")


def test_nothing_asked_is_nothing_locked_and_no_index_is_needed(index: PackageIndex, store: Store) -> None:
    assert resolve(index, store) == {}
    assert index.asked == []


def test_versions_of_the_lock_before_are_kept_where_they_can_be(index: PackageIndex, store: Store) -> None:
    settings = settings_for(index)
    old = resolve_python(["lib==1.0", "other"], target=TRIXIE, store=store, settings=settings)
    assert resolve(index, store, "app", preferred=old)["lib"] == "1.0"
    assert resolve(index, store, "app", "lib>1", preferred=old)["lib"] == "2.0"


def test_files_that_came_after_the_day_of_the_question_do_not_count(index: PackageIndex, store: Store) -> None:
    assert resolve(index, store, "app", as_of="2026-05-31")["lib"] == "1.0"
    assert resolve(index, store, "app", as_of="2026-06-01")["lib"] == "2.0"
    assert end_of_day("2026-12-31") == "2027-01-01T00:00:00Z"
    assert end_of_day("0001-01-01") == "0001-01-02T00:00:00Z"


def test_an_override_replaces_a_cap(index: PackageIndex, store: Store) -> None:
    assert resolve(index, store, "app", overrides=["lib==3.0"])["lib"] == "3.0"


def test_an_override_is_no_matter_of_the_compiler_that_cuda_asks_for(index: PackageIndex, store: Store) -> None:
    wished = recipe({"app": "1.0"}, overrides={"lib": {"version": "1.0", "reason": "the cap is too strict"}})
    asked = (wished, ("lib",), store, settings_for(index))
    assert versions(resolve_wheels(*asked)) == {"lib": "1.0"}
    assert versions(resolve_wheels(*asked, overruled=False)) == {"lib": "3.0"}


def test_a_package_that_is_left_out_is_not_looked_for(index: PackageIndex, store: Store) -> None:
    wished = recipe({"app": "1.0"}, overrides={"lib": {"absent": True, "reason": "nothing calls it"}})
    asked = (wished, ("app==1.0",), store, settings_for(index))
    assert versions(resolve_wheels(*asked, absent=absent_packages(wished))) == {"app": "1.0", "other": "1.0"}
    assert not any("/lib/" in path for path in index.asked)


@pytest.mark.parametrize("pin", ["3.0", {"path": "."}])
def test_a_package_of_the_stack_cannot_be_left_out(tmp_path: Path, pin: Any) -> None:
    wished = recipe({"some-lib": pin}, overrides={"some_lib": {"absent": True, "reason": "nothing calls it"}})
    source = RecipeFile(path=tmp_path / "r.yaml", recipe=wished, places={("overrides", "some_lib"): (9, 3)})
    with pytest.raises(
        InvalidDocumentError, match=r"r\.yaml:9:3: overrides\.some_lib: absent contradicts stack\.some-lib$"
    ):
        refuse_contradictions(source)


@pytest.mark.parametrize("answer", [{}, {"version": "1.0", "absent": True}])
def test_an_override_gives_a_version_or_leaves_the_package_out(answer: dict[str, Any]) -> None:
    with pytest.raises(InvalidDocumentError, match=r"give either `version` or `absent: true`"):
        recipe({"app": "1.0"}, overrides={"lib": {"reason": "nothing calls it", **answer}})


@pytest.mark.parametrize("metadata", [True, False])
def test_an_extra_that_a_wheel_does_not_have_is_refused(
    metadata: bool, index: PackageIndex, store: Store, tmp_path: Path
) -> None:
    index.metadata = metadata
    index.add("lib", "3.0", "turbo; extra == 'all_Fast'")
    index.add("turbo", "7")

    def locked(*extras: str) -> dict[str, str]:
        stack = {"lib": {"version": "3.0", "extras": list(extras)}}
        return versions(resolve_stack(recipe(stack), tmp_path, store, settings_for(index)))

    assert locked("all-fast") == {"lib": "3.0", "turbo": "7"}
    with pytest.raises(ResolveError, match=r"^lib 3\.0 has no extra 'all-fats'$") as caught:
        locked("all-fast", "all-fats")
    assert caught.value.remedy == "did you mean all-fast?"
    with pytest.raises(ResolveError, match="has no extra 'x'") as caught:
        locked("x")
    assert caught.value.remedy == "it has all-fast"


def test_an_override_keeps_the_extras_of_the_stack(index: PackageIndex, store: Store, tmp_path: Path) -> None:
    stack = {"app": "1.0", "lib": {"version": "3.0", "extras": ["fast"]}}
    cap = {"lib": {"version": "3.0", "reason": "the cap is too strict"}}
    index.add("lib", "3.0", "turbo; extra == 'fast'")
    index.add("turbo", "7")
    wheels = resolve_stack(recipe(stack, overrides=cap), tmp_path, store, settings_for(index))
    assert versions(wheels) == {"app": "1.0", "lib": "3.0", "other": "1.0", "turbo": "7"}


@pytest.mark.parametrize("metadata", [True, False])
def test_an_override_keeps_the_extras_that_others_ask_for(metadata: bool, index: PackageIndex, store: Store) -> None:
    index.metadata = metadata
    index.add("user", "1.0", "lib[fast]<3; sys_platform == 'linux'", "lib[slow]; python_version < '3'")
    index.add("turbo", "7", "lib[spark]; extra == 'nitro'", "lib[slow]; extra == 'brake'")
    index.files["lib"]["lib-3.0-py3-none-any.whl"] = wheel_bytes(
        "lib", "3.0", ("turbo[nitro]; extra == 'fast'", "snail; extra == 'slow'", "flint; extra == 'spark'")
    )
    index.add("flint", "5")
    locked = resolve(index, store, "user", overrides=["lib==3.0"])
    assert locked == {"flint": "5", "lib": "3.0", "turbo": "7", "user": "1.0"}


def test_an_override_that_contradicts_the_stack_is_refused_at_its_line(tmp_path: Path) -> None:
    wished = recipe({"some-lib": "3.0"}, overrides={"some_lib": {"version": "2.0", "reason": "the cap is too strict"}})
    source = RecipeFile(path=tmp_path / "r.yaml", recipe=wished, places={("overrides", "some_lib"): (9, 3)})
    with pytest.raises(
        InvalidDocumentError, match=r"r\.yaml:9:3: overrides\.some_lib: 2\.0 contradicts stack\.some-lib: 3\.0"
    ):
        refuse_contradictions(source)


def test_a_package_that_is_built_here_comes_from_no_index(index: PackageIndex, store: Store) -> None:
    assert resolve(index, store, "app", excluded=["lib"]) == {"app": "1.0", "other": "1.0"}
    assert not any("/lib/" in path for path in index.asked)


def test_a_local_package_that_others_need_is_not_looked_for(index: PackageIndex, store: Store, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "mine"\nversion = "1"\n', encoding="utf-8")
    index.add("user", "1.0", "mine", "lib")
    wished = recipe({"mine": {"path": "."}, "user": "1.0"})
    assert versions(resolve_stack(wished, tmp_path, store, settings_for(index))) == {"lib": "3.0", "user": "1.0"}


def test_the_toolchain_of_a_local_package_is_resolved_too(index: PackageIndex, store: Store, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["lib<3"]\n[project]\nname = "mine"\nversion = "1"\n', encoding="utf-8"
    )
    index.add("build", "1.0", "pyproject-hooks")
    index.add("pyproject-hooks", "1.2", tag="py3-none-any")
    index.add("pip", "26.0")
    wished = recipe({"mine": {"path": "."}})
    lines = toolchain_requirements(wished, local_projects(RecipeFile(path=tmp_path / "r.yaml", recipe=wished)))
    wheels = resolve_wheels(wished, lines, store, settings_for(index))
    assert versions(wheels) == {"build": "1.0", "lib": "2.0", "pip": "26.0", "pyproject-hooks": "1.2"}


def test_a_package_of_another_index_comes_from_there_and_nothing_else_does(index: PackageIndex, store: Store) -> None:
    with serve(PackageIndex()) as more:
        more.add("lib", "2.0+cu130")
        more.add("other", "9.0")
        indexes = {"more": Index(url=more.url, packages=("lib",))}
        assert resolve(index, store, "app", "lib==2.0+cu130", indexes=indexes) == {
            "app": "1.0",
            "lib": "2.0+cu130",
            "other": "1.0",
        }


def test_a_package_tied_to_an_index_that_only_others_need_is_refused(index: PackageIndex, store: Store) -> None:
    indexes = {"more": Index(url=index.url, packages=("other",))}
    with pytest.raises(ResolveError, match=r"indexes\.more: other is needed, but only by other packages") as caught:
        resolve(index, store, "app", indexes=indexes)
    assert "pin other in `stack`" in caught.value.remedy


def test_pins_that_exclude_each_other_are_explained_by_two_chains(index: PackageIndex, store: Store) -> None:
    with pytest.raises(ResolveError, match=r"no set of wheels satisfies the pins for Python 3\.13") as caught:
        resolve(index, store, "app==1.0", "lib==3.0")
    assert caught.value.exit_code == 6
    assert sorted(caught.value.evidence[:2]) == ["app==1.0 needs lib<3", "lib==3.0 is asked for"]
    assert caught.value.evidence[2:] in {
        ("no version of lib is both ==3.0 and <3",),
        ("no version of lib is both <3 and ==3.0",),
    }


def test_the_whole_proof_of_uv_is_kept_in_a_log_that_the_remedy_names(index: PackageIndex, store: Store) -> None:
    with pytest.raises(ResolveError) as caught:
        resolve(index, store, "app==1.0", "lib==3.0")
    log = Path(caught.value.remedy.rpartition(" ")[2])
    assert log.parent == store.root / "logs"
    assert "your requirements are unsatisfiable." in log.read_text(encoding="utf-8")


def test_a_package_that_has_only_sources_is_not_built_in_secret(index: PackageIndex, store: Store) -> None:
    index.files["lib"] = {"lib-1.0.tar.gz": b""}
    index.uploaded["lib-1.0.tar.gz"] = "2026-01-01T00:00:00Z"
    with pytest.raises(ResolveError) as caught:
        resolve(index, store, "lib")
    assert caught.value.evidence[0] == "lib is asked for"
    assert any("no usable wheels" in line for line in caught.value.evidence)


def test_an_index_that_does_not_answer_is_named_without_its_password(store: Store) -> None:
    settings = settings_from({"ENVBUILD_INDEX_URL": "http://user:s3cret@127.0.0.1:9/simple/"})
    with pytest.raises(ResolveError, match="uv could not resolve the pins") as caught:
        resolve_python(["lib"], target=TRIXIE, store=store, settings=settings)
    shown = "\n".join((caught.value.message, caught.value.remedy, *caught.value.evidence))
    assert "http://127.0.0.1:9/simple/lib/" in shown
    assert "ENVBUILD_INDEX_URL" in shown
    assert "s3cret" not in shown


def test_no_variable_and_no_file_of_uv_changes_the_answer(
    index: PackageIndex, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "caps.txt").write_text("lib<2\n", encoding="utf-8")
    monkeypatch.setenv("UV_CONSTRAINT", str(tmp_path / "caps.txt"))
    monkeypatch.setenv("UV_RESOLUTION", "lowest")
    (tmp_path / ".config" / "uv").mkdir(parents=True)
    (tmp_path / ".config" / "uv" / "uv.toml").write_text('resolution = "lowest"\n[pip]\nno-deps = true\n')
    assert resolve(index, store, "app") == {"app": "1.0", "lib": "2.0", "other": "1.0"}


def test_the_command_says_all_that_is_not_in_the_files() -> None:
    question = Question(requirements=("app",), target=TRIXIE, indexes={}, as_of="2026-11-25")
    command = uv_command(question)
    assert command[command.index("--python-platform") + 1] == "x86_64-manylinux_2_40"
    assert command[command.index("--exclude-newer") + 1] == "2026-11-26T00:00:00Z"
    assert {"--no-config", "--generate-hashes", "--no-python-downloads"} < set(command)
    assert "--exclude-newer" not in uv_command(Question(requirements=("app",), target=TRIXIE, indexes={}))


def test_a_requirement_with_quotes_reaches_uv_unchanged() -> None:
    line = "app[x] ; python_version < \"4\" and os_name != 'nt'"
    project = uv_files(Question(requirements=(line,), target=TRIXIE, indexes={}))["pyproject.toml"]
    assert "app[x] ; python_version < \\\"4\\\" and os_name != 'nt'" in project


def test_frames_and_wrapping_are_taken_off_an_explanation() -> None:
    framed = (
        "  \N{MULTIPLICATION SIGN} No solution found when resolving dependencies:\n"
        "  ╰─▶ Because app==1.0 depends on lib<3 and this-recipe depends on\n"
        "      lib==3.0, so app==1.0 cannot be used.\n"
        "      And because this-recipe depends on app==1.0, your requirements are\n"
        "      unsatisfiable.\n"
        "\n"
        "      hint: see https://user:secret@example.org/simple\n"
    )
    plain = (
        "error: No solution found when resolving dependencies\n"
        "  cause: Because app==1.0 depends on lib<3 and this-recipe depends on lib==3.0, so app==1.0 cannot be used.\n"
        "         And because this-recipe depends on app==1.0, your requirements are unsatisfiable.\n"
        "\n"
        "hint: see https://user:secret@example.org/simple\n"
    )
    expected = (
        "Because app==1.0 depends on lib<3 and this-recipe depends on lib==3.0, so app==1.0 cannot be used.",
        "And because this-recipe depends on app==1.0, your requirements are unsatisfiable.",
        "hint: see https://example.org/simple",
    )
    assert explanation(framed) == expected
    assert explanation(plain) == expected


def test_each_cause_of_a_failure_is_a_line() -> None:
    assert explanation("error: Failed to fetch: `x`\n  Caused by: client error\n  Caused by: refused\n") == (
        "Failed to fetch: `x`",
        "client error",
        "refused",
    )
