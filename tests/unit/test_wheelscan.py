"""The scan of a wheel's libraries, on libraries that nvcc 13.1 made and on this machine's own."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from builder.build.wheelscan import (
    ScannedCode,
    ScannedLibrary,
    WheelScan,
    _abi,
    _floors,
    idle_failure,
    scan_wheel,
)
from builder.elf import MalformedBinaryError, open_elf
from builder.store import Store
from tests.wheels import make_wheel

if TYPE_CHECKING:
    from collections.abc import Mapping

CASES = Path(__file__).parents[1] / "cases" / "fatbin"
LIBC = Path(f"/lib/{platform.machine()}-linux-gnu/libstdc++.so.6")


def case(name: str) -> bytes:
    return (CASES / f"{name}.so").read_bytes()


def scan(tmp_path: Path, files: Mapping[str, bytes]) -> WheelScan:
    store = Store(tmp_path / "store")
    made = make_wheel(tmp_path, "kernels", files)
    store.add(made.path, made.sha256)
    found = scan_wheel(store.path(made.sha256), made.filename, store)
    store.path(made.sha256).unlink()
    assert scan_wheel(store.path(made.sha256), made.filename, store) == found  # kept under the wheel's hash
    return found


def test_every_library_of_a_wheel_is_scanned_and_texts_are_not(tmp_path: Path) -> None:
    files = {"kernels/b.so": case("mixed"), "kernels/a.so": case("sm_120a"), "kernels/__init__.py": b"x = 1\n"}
    first, second = scan(tmp_path, files).libraries
    assert (first.path, first.labels, first.needed) == ("kernels/a.so", {"sm_120a": 1}, ("libc.so.6",))
    assert second.labels == {"sm_90a": 1, "sm_100f": 1, "sm_120f": 1, "compute_120f": 1}
    assert [second.runs_on(gpu) for gpu in ("12.0", "9.0", "8.0")] == ["sass", "sass", None]
    assert second.codes[-1] == ScannedCode(kind="ptx", arch=120, suffix="f", isa=(9, 1), count=1)


@pytest.mark.parametrize(
    ("name", "gpu", "usable"),
    [
        ("sm_120", "12.1", "sass"),
        ("sm_120a", "12.0", "sass"),
        ("sm_120a", "12.1", None),  # `a` runs on exactly its own architecture
        ("sm_120f", "12.1", "sass"),  # `f` on its family
        ("sm_100f", "12.0", None),
        ("compute_90", "12.0", "ptx"),
        ("compute_120a", "12.1", None),
    ],
)
def test_what_runs_on_what(tmp_path: Path, name: str, gpu: str, usable: str | None) -> None:
    (library,) = scan(tmp_path, {"kernels/k.so": case(name)}).libraries
    assert library.runs_on(gpu) == usable


def test_a_wheel_without_the_targets_code_is_an_error_that_names_library_and_remedy(tmp_path: Path) -> None:
    found = scan(tmp_path, {"kernels/k.so": case("sm_90a")})
    failure = idle_failure(found, "12.0", "RTX PRO 6000")
    assert failure is not None
    assert failure.exit_code == 7
    assert "kernels/k.so carries sm_90a only; the target RTX PRO 6000 (12.0) needs sm_120" in failure.message
    assert 'archs: ["12.0"]' in failure.remedy
    assert idle_failure(found, "9.0", "H200") is None


def test_one_library_that_runs_is_enough_and_no_device_code_is_no_failure(tmp_path: Path) -> None:
    both = scan(tmp_path, {"kernels/sm90.so": case("sm_90a"), "kernels/sm120.so": case("sm_120")})
    assert idle_failure(both, "12.0", "x") is None
    assert idle_failure(WheelScan(filename="pure.whl", libraries=()), "12.0", "x") is None


def test_a_library_that_cannot_be_read_is_said_to_be_so(tmp_path: Path) -> None:
    (library,) = scan(tmp_path, {"kernels/k.so": case("sm_120")[:200]}).libraries
    assert library.error is not None
    assert library.error.startswith("kernels/k.so: ")


def test_the_floors_are_the_newest_versions_by_number_and_private_names_say_nothing() -> None:
    names = ["GLIBC_2.4", "GLIBC_2.34", "GLIBC_2.5", "GLIBC_PRIVATE", "GLIBCXX_3.4.9", "GLIBCXX_3.4.30", "GCC_3.0"]
    assert _floors(names) == {"GLIBC": "2.34", "GLIBCXX": "3.4.30"}


def test_symbols_say_which_strings_torch_was_built_with() -> None:
    new = "_ZN3c106detail14torchCheckFailEPKcS2_jRKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"
    old = "_ZN3c106detail14torchCheckFailEPKcS2_jRKSs"
    assert [_abi([new]), _abi([old]), _abi(["_ZN2at6_zerosEl"])] == [True, False, None]


def test_a_library_of_this_machine_needs_a_glibc_that_this_machine_has() -> None:
    with open_elf(LIBC) as image:
        symbols = image.symbols()
    newest = _floors(version for file, version in symbols.needed_versions if file == "libc.so.6")["GLIBC"]
    have = tuple(map(int, platform.libc_ver()[1].split(".")))
    assert (2, 2) < tuple(map(int, newest.split("."))) <= have
    assert {"malloc", "free", "memcpy"} <= symbols.undefined
    assert "_ZNSt9exceptionD2Ev" not in symbols.undefined  # it provides that one itself


def test_version_needs_that_lead_out_of_the_file_are_malformed(tmp_path: Path) -> None:
    data = bytearray(LIBC.resolve().read_bytes())
    with open_elf(LIBC) as image:
        section = next(section for section in image.sections if section.kind == 0x6FFFFFFE)
    data[section.offset + 8 : section.offset + 12] = b"\xff\xff\xff\x7f"  # where its first name is
    (tmp_path / "l.so").write_bytes(data)
    with open_elf(tmp_path / "l.so") as image, pytest.raises(MalformedBinaryError, match="bytes expected"):
        image.symbols()


def test_scanned_values_survive_the_store() -> None:
    library = ScannedLibrary(path="k.so", codes=(ScannedCode(kind="ptx", arch=90, isa=(8, 0), count=2),))
    plain = WheelScan(filename="w.whl", libraries=(library,))
    assert WheelScan.from_json(plain.model_dump_json(), source="test") == plain
