from __future__ import annotations

import tomllib

import pytest
from packaging.pylock import Pylock

from builder.errors import InvalidDocumentError
from builder.lock.model import LockedWheel
from builder.lock.pylock import read_pylock, write_pylock

TORCH = LockedWheel(
    name="torch",
    version="2.11.0+cu130",
    filename="torch-2.11.0+cu130-cp313-cp313-manylinux_2_28_x86_64.whl",
    sha256="ab" * 32,
    size=899_750_000,
)
ATTRS = LockedWheel(
    name="attrs", version="25.4.0", filename="attrs-25.4.0-py3-none-any.whl", sha256="cd" * 32, size=67_615
)


def test_what_is_written_is_read_back_by_name() -> None:
    content = write_pylock([TORCH, ATTRS], python="3.13")
    assert read_pylock(content, "pylock.toml") == (ATTRS, TORCH)


def test_the_order_of_the_wheels_does_not_change_the_bytes() -> None:
    assert write_pylock([TORCH, ATTRS], python="3.13") == write_pylock([ATTRS, TORCH], python="3.13")


def test_the_file_conforms_to_pep_751() -> None:
    content = write_pylock([TORCH, ATTRS], python="3.13")
    lock = Pylock.from_dict(tomllib.loads(content.decode()))
    assert content.endswith(b"\n")
    assert str(lock.requires_python) == "==3.13.*"
    attrs, torch = lock.packages
    assert torch.wheels is not None
    assert (torch.name, str(torch.version)) == ("torch", "2.11.0+cu130")
    assert torch.wheels[0].path == f"wheels/{TORCH.filename}"
    assert torch.wheels[0].hashes == {"sha256": "ab" * 32}
    assert torch.wheels[0].size == 899_750_000
    assert attrs.sdist is None


def test_the_file_names_no_address() -> None:
    content = write_pylock([TORCH, ATTRS], python="3.13")
    assert b"://" not in content
    assert b"index" not in content


def test_a_lock_without_packages_is_a_file_too() -> None:
    content = write_pylock([], python="3.12")
    assert read_pylock(content, "pylock.toml") == ()
    assert Pylock.from_dict(tomllib.loads(content.decode())).packages == []


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("lock-version = ", "lock-version ", r"Expected '='"),
        ('"1.0"', '"2.0"', "lock-version"),
        ('created-by = "envbuild"', 'created-by = "uv"', "created-by"),
        ("ab" * 32, "ab" * 31, r"packages\.1\.wheels\.0\.hashes\.sha256"),
        ("size = 67615", 'size = "67615"', r"packages\.0\.wheels\.0\.size"),
        ('path = "wheels/attrs', 'path = "elsewhere/attrs', "attrs: path is 'elsewhere/attrs"),
        ('path = "wheels/attrs', 'url = "x", path = "wheels/attrs', r"packages\.0\.wheels\.0\.url"),
        ("attrs-25.4.0-py3-none-any.whl", "../attrs.whl", "attrs: path is 'wheels/../attrs.whl'"),
        ('name = "torch"', 'name = "torch"\nmarker = "os_name"', r"packages\.1\.marker"),
    ],
)
def test_a_changed_file_is_refused_at_its_place(old: str, new: str, said: str) -> None:
    content = write_pylock([TORCH, ATTRS], python="3.13").decode()
    assert old in content
    with pytest.raises(InvalidDocumentError, match=rf"^locks/pylock.toml: .*{said}"):
        read_pylock(content.replace(old, new).encode(), "locks/pylock.toml")


def test_a_package_with_two_wheels_is_no_lock_for_one_target() -> None:
    content = write_pylock([ATTRS], python="3.13").decode()
    wheel = content[content.index("{ name") : content.rindex("]")]
    with pytest.raises(InvalidDocumentError, match=r"packages\.0\.wheels"):
        read_pylock(content.replace(wheel, f"{wheel}, {wheel}").encode(), "pylock.toml")
