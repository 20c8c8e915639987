from __future__ import annotations

import json

import pytest

from builder.errors import ResolveError
from builder.lock.choice import chosen_wheels
from builder.lock.model import LockedImage, LockedLayer
from builder.lock.target import Target, target_of
from builder.recipe.model import Recipe

DIGEST = f"sha256:{'0' * 64}"
TRIXIE = Target(python="3.13", glibc=41)
BOOKWORM = Target(python="3.11", glibc=36)


def recipe(base: dict[str, str]) -> Recipe:
    plain = {"version": 1, "name": "x", "target": {"gpu": "h200"}, "base": base, "python": "3.13", "stack": {"a": "1"}}
    return Recipe.from_json(json.dumps(plain), source="test")


def answer(*wheels: str, marker: str = "") -> bytes:
    listed = ", ".join(f'{{ url = "https://x/{name}", size = 1, hashes = {{ sha256 = "00" }} }}' for name in wheels)
    condition = f'marker = "{marker}"\n' if marker else ""
    return f'[[packages]]\nname = "a"\nversion = "1"\n{condition}wheels = [{listed}]\n'.encode()


def choose(*wheels: str, target: Target = TRIXIE) -> str:
    return chosen_wheels(answer(*wheels), target)[0].filename


def test_each_debian_suite_is_known_by_its_glibc() -> None:
    assert target_of(recipe({"debian": "trixie"}), None) == TRIXIE
    assert target_of(recipe({"debian": "bookworm"}), None).glibc == 36


def test_the_glibc_of_a_base_image_is_known_once_it_is_locked() -> None:
    wished = recipe({"image": "example.org/base@sha256:" + "0" * 64})
    with pytest.raises(ResolveError, match=r"base\.image"):
        target_of(wished, None)
    layer = LockedLayer(digest=DIGEST, size=1, diff_id=DIGEST, unpacked=1, media_type="application/x-tar")
    base = LockedImage(
        image="example.org/base",
        digest=DIGEST,
        created="2026-01-01T00:00:00+00:00",
        layers=(layer,),
        python="/usr/bin/python3.13",
        glibc=39,
    )
    assert target_of(wished, base) == Target(python="3.13", glibc=39)


def test_uv_resolves_for_the_newest_platform_that_it_knows() -> None:
    assert TRIXIE.uv_platform == "x86_64-manylinux_2_40"
    assert BOOKWORM.uv_platform == "x86_64-manylinux_2_36"
    assert Target(python="3.12", glibc=30).uv_platform == "x86_64-manylinux_2_28"


def test_markers_are_those_of_the_target_and_not_of_this_machine() -> None:
    assert TRIXIE.applies("python_version == '3.13' and sys_platform == 'linux' and platform_machine == 'x86_64'")
    assert BOOKWORM.applies("python_full_version < '3.11.1'")
    assert not TRIXIE.applies("sys_platform == 'win32' or platform_python_implementation == 'PyPy'")


def test_a_package_whose_marker_does_not_apply_is_dropped() -> None:
    wheels = answer("a-1-py3-none-any.whl", marker="sys_platform == 'darwin'")
    assert chosen_wheels(wheels, TRIXIE) == ()


def test_the_compiled_wheel_of_this_python_is_better_than_the_stable_abi_and_that_than_pure_python() -> None:
    pure, stable, own = (
        "a-1-py3-none-any.whl",
        "a-1-cp39-abi3-manylinux_2_17_x86_64.whl",
        "a-1-cp313-cp313-manylinux2014_x86_64.whl",
    )
    assert choose(pure, stable, own) == own
    assert choose(own, stable, pure) == own
    assert choose(stable, pure) == stable


def test_the_newest_glibc_that_the_image_has_is_the_best() -> None:
    old, fitting, too_new = (
        "a-1-cp311-cp311-manylinux_2_17_x86_64.whl",
        "a-1-cp311-cp311-manylinux_2_36_x86_64.whl",
        "a-1-cp311-cp311-manylinux_2_37_x86_64.whl",
    )
    assert choose(old, fitting, too_new, target=BOOKWORM) == fitting


def test_of_two_builds_of_one_wheel_the_higher_number_is_taken() -> None:
    assert choose("a-1-10-py3-none-any.whl", "a-1-9-py3-none-any.whl", "a-1-py3-none-any.whl") == (
        "a-1-10-py3-none-any.whl"
    )


def test_the_name_of_a_local_version_is_read_from_its_escaped_address() -> None:
    assert choose("a-1%2Bcu130-cp313-cp313-linux_x86_64.whl") == "a-1+cu130-cp313-cp313-linux_x86_64.whl"


@pytest.mark.parametrize(
    "wheel",
    [
        "a-1-cp312-cp312-manylinux_2_17_x86_64.whl",
        "a-1-cp313-cp313t-manylinux_2_17_x86_64.whl",
        "a-1-cp313-cp313-manylinux_2_17_aarch64.whl",
        "a-1-cp313-cp313-musllinux_1_2_x86_64.whl",
        "a-1-cp313-cp313-manylinux_2_42_x86_64.whl",
        "a-1.whl",
    ],
)
def test_a_wheel_for_another_machine_is_never_taken(wheel: str) -> None:
    with pytest.raises(ResolveError, match=r"a 1 has no wheel for Python 3\.13 on Linux x86_64 with glibc 2\.41"):
        choose(wheel)


def test_a_file_without_sha256_cannot_be_locked() -> None:
    with pytest.raises(ResolveError, match=r"gives no sha256 for a-1-py3-none-any\.whl"):
        chosen_wheels(answer("a-1-py3-none-any.whl").replace(b"sha256", b"md5"), TRIXIE)
