"""The reader of ELF files and fat binaries, on small libraries that nvcc 13.1 made (tests/cases/fatbin/Makefile)."""

from __future__ import annotations

import contextlib
import struct
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from builder.elf import Linkage, MalformedBinaryError, linkage
from builder.fatbin import MAGIC, DeviceCode, bare_code, device_code, runs_on

CASES = Path(__file__).parents[1] / "cases" / "fatbin"


def case(name: str) -> Path:
    return CASES / f"{name}.so"


def code(label: str, isa: tuple[int, int] | None = None) -> DeviceCode:
    """A value for a label such as `sm_120a`."""
    kind, number = label.split("_")
    suffix = number.lstrip("0123456789")
    assert suffix in {"", "a", "f"}
    arch = int(number.removesuffix(suffix))
    return DeviceCode(kind="sass" if kind == "sm" else "ptx", arch=arch, suffix=suffix, isa=isa)  # type: ignore[arg-type]


def changed(tmp_path: Path, name: str, old: bytes, new: bytes) -> Path:
    """A copy of a case with some of its bytes replaced by as many others."""
    data = case(name).read_bytes()
    assert old in data
    path = tmp_path / f"{name}.so"
    path.write_bytes(data.replace(old, new.ljust(len(old), b"\0")))
    return path


@pytest.mark.parametrize("name", ["sm_90a", "sm_100f", "sm_120", "sm_120a", "sm_120f", "compute_90", "compute_120a"])
def test_one_architecture_is_read_with_its_suffix(name: str) -> None:
    codes = device_code(case(name))
    assert codes is not None
    assert [found.label for found in codes] == [name]


def test_several_architectures_are_read_in_file_order_with_sizes() -> None:
    assert device_code(case("mixed")) == (
        DeviceCode(kind="sass", arch=90, suffix="a", size=3704),
        DeviceCode(kind="sass", arch=100, suffix="f", size=5336),
        DeviceCode(kind="sass", arch=120, suffix="f", size=5336),
        DeviceCode(kind="ptx", arch=120, suffix="f", size=351, compressed=True, isa=(9, 1)),
    )


def test_fat_binaries_between_other_data_are_found(tmp_path: Path) -> None:
    moved = changed(tmp_path, "mixed", b"\0.nv_fatbin\0", b"\0.ldata")
    assert device_code(moved) == device_code(case("mixed"))


def test_the_whole_file_is_searched_when_the_library_registers_fat_binaries_from_nowhere(tmp_path: Path) -> None:
    moved = changed(tmp_path, "mixed", b"\0.nv_fatbin\0", b"\0.elsewhere")
    assert device_code(moved) == device_code(case("mixed"))


def test_a_library_without_cuda_has_no_place_for_device_code(tmp_path: Path) -> None:
    moved = changed(tmp_path, "sm_120", b"\0.nv_fatbin\0", b"\0.text2")
    moved.write_bytes(moved.read_bytes().replace(b".nvFatBinSegment", b".data2".ljust(16, b"\0")))
    assert device_code(moved) is None


@pytest.mark.parametrize(
    ("labels", "capability", "expected"),
    [
        (["sm_120"], "12.0", "sass"),
        (["sm_120"], "12.1", "sass"),
        (["sm_121"], "12.0", None),
        (["sm_90"], "12.0", None),
        (["sm_86"], "8.9", "sass"),
        (["sm_89"], "8.6", None),
        (["sm_120a"], "12.0", "sass"),
        (["sm_120a"], "12.1", None),
        (["sm_120f"], "12.0", "sass"),
        (["sm_120f"], "12.1", "sass"),
        (["sm_121f"], "12.0", None),
        (["sm_100f"], "12.0", None),
        (["sm_100f"], "10.3", "sass"),
        (["compute_90"], "12.0", "ptx"),
        (["compute_120"], "9.0", None),
        (["compute_90a"], "12.0", None),
        (["compute_120a"], "12.0", "ptx"),
        (["compute_120a"], "12.1", None),
        (["compute_120f"], "12.1", "ptx"),
        (["compute_100f"], "12.0", None),
        (["compute_90", "sm_120"], "12.0", "sass"),
        ([], "12.0", None),
    ],
)
def test_code_runs_where_the_loading_rules_say(labels: list[str], capability: str, expected: str | None) -> None:
    assert runs_on([code(label) for label in labels], capability) == expected


@pytest.mark.parametrize(
    ("isa", "driver_cuda", "expected"),
    [
        ((9, 1), "13.1", "ptx"),
        ((9, 1), "13.0", None),
        ((8, 7), "12.8", "ptx"),
        ((8, 8), "12.8", None),
        ((8, 5), "12.5", "ptx"),
    ],
)
def test_a_driver_compiles_no_ptx_newer_than_itself(
    isa: tuple[int, int], driver_cuda: str, expected: str | None
) -> None:
    assert runs_on([code("compute_90", isa)], "12.0", driver_cuda) == expected


def test_machine_code_does_not_ask_for_a_newer_driver() -> None:
    assert runs_on([code("sm_120")], "12.0", "12.8") == "sass"


@pytest.mark.parametrize(("capability", "driver"), [("12.0a", None), ("sm_120", None), ("12.0", "13")])
def test_a_capability_or_driver_that_is_none_is_refused(capability: str, driver: str | None) -> None:
    with pytest.raises(ValueError, match="not a"):
        runs_on([], capability, driver)


def cubin(arch: int, abi: int) -> bytes:
    """The header of a cubin of ABI 7 (up to CUDA 12) or 8."""
    flags = 0x6000002 | arch << 8 if abi == 8 else 0x500500 | arch
    return b"\x7fELF\x02\x01\x01\x41" + bytes([abi]) + bytes(7) + struct.pack("<HHI24xI12x", 2, 190, 1, flags)


@pytest.mark.parametrize(("arch", "abi"), [(120, 8), (100, 8), (90, 7), (86, 7)])
def test_a_bare_cubin_tells_its_architecture(tmp_path: Path, arch: int, abi: int) -> None:
    path = tmp_path / "k.cubin"
    path.write_bytes(cubin(arch, abi))
    assert bare_code(path) == DeviceCode(kind="sass", arch=arch, size=64)


@pytest.mark.parametrize(("target", "label"), [("sm_90a, debug", "compute_90a"), ("sm_120", "compute_120")])
def test_a_ptx_file_tells_its_target_and_the_version_of_its_language(tmp_path: Path, target: str, label: str) -> None:
    path = tmp_path / "k.ptx"
    path.write_text(f"//\n// made by hand\n.version 8.7\n.target {target}\n.address_size 64\n")
    found = bare_code(path)
    assert found is not None
    assert (found.label, found.isa) == (label, (8, 7))


def test_another_file_is_no_bare_device_code(tmp_path: Path) -> None:
    (tmp_path / "notes.ptx").write_text("a presentation")
    assert bare_code(tmp_path / "notes.ptx") is None
    assert bare_code(Path(sys.executable).resolve()) is None


def test_the_dynamic_section_is_read() -> None:
    assert linkage(case("sm_120")) == Linkage(
        soname="libsm_120.so", needed=("libc.so.6",), runpath=("$ORIGIN/../nvidia/cu13/lib",)
    )


def test_the_running_python_needs_the_c_library() -> None:
    assert "libc.so.6" in linkage(Path(sys.executable).resolve()).needed


def tiny_elf(*, entry_size: int = 64, dynamic_link: int = 0, names: bytes = b"names\0") -> bytes:
    """An ELF file of two sections, its names (0) and a dynamic section (1) that needs the library `names`."""
    header = b"\x7fELF\x02\x01".ljust(40, b"\0") + struct.pack("<Q10xHHH", 64, entry_size, 2, 0)
    name_offset, dynamic_offset = 64 + 2 * 64 + 32, 64 + 2 * 64
    sections = struct.pack("<IIQQQQIIQQ", 0, 3, 0, 0, name_offset, len(names), 0, 0, 0, 0)
    sections += struct.pack("<IIQQQQIIQQ", 0, 6, 0, 0, dynamic_offset, 32, dynamic_link, 0, 0, 0)
    return header + sections + struct.pack("<qQqQ", 1, 0, 0, 0) + names


def test_a_tiny_elf_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "lib.so"
    path.write_bytes(tiny_elf())
    assert linkage(path) == Linkage(needed=("names",))


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (tiny_elf(entry_size=8), "a section header of 8 bytes"),
        (tiny_elf(dynamic_link=2), "no string table"),
        (tiny_elf(names=b"names"), "a zero-terminated text"),
        (tiny_elf(names=b"names\0more")[:-2], "ends after the file's"),
        (tiny_elf()[:100], "64 bytes expected, the file has 100"),
    ],
)
def test_a_malformed_elf_file_is_one_clear_error(tmp_path: Path, data: bytes, problem: str) -> None:
    path = tmp_path / "lib.so"
    path.write_bytes(data)
    with pytest.raises(MalformedBinaryError, match=rf"lib\.so: offset 0x[0-9a-f]+: .*{problem}"):
        linkage(path)


@pytest.mark.parametrize("data", [b"", b"\x7fELF", b"INPUT(libc.so.6)\n", b"\x7fELF\x01\x01" + bytes(60)])
def test_another_file_is_named_as_no_elf_file(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "lib.so"
    path.write_bytes(data)
    with pytest.raises(MalformedBinaryError, match=r"lib\.so: not a 64-bit"):
        device_code(path)


def test_a_fat_binary_longer_than_its_section_is_an_error(tmp_path: Path) -> None:
    start = MAGIC + struct.pack("<HH", 1, 16)
    size = case("sm_120").read_bytes().split(start)[1][:8]
    grown = changed(tmp_path, "sm_120", start + size, start + struct.pack("<Q", 1 << 40))
    with pytest.raises(MalformedBinaryError, match="a fat binary of 1099511627776 bytes"):
        device_code(grown)


def test_a_fat_binary_of_another_version_is_not_taken_for_an_empty_one(tmp_path: Path) -> None:
    newer = changed(tmp_path, "sm_120", MAGIC + struct.pack("<HH", 1, 16), MAGIC + struct.pack("<HH", 2, 16))
    with pytest.raises(MalformedBinaryError, match="unknown version 2"):
        device_code(newer)


def test_an_entry_without_a_header_does_not_loop(tmp_path: Path) -> None:
    entry = case("sm_120").read_bytes().split(MAGIC)[1][12:32]
    broken = changed(tmp_path, "sm_120", entry, bytes(len(entry)))
    with pytest.raises(MalformedBinaryError, match="an entry of 0"):
        device_code(broken)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    name=st.sampled_from(["sm_90a", "compute_90"]),
    keep=st.floats(0, 1),
    edits=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.binary(min_size=1, max_size=8)), max_size=4),
)
@example(name="sm_90a", keep=0.01, edits=[])
def test_a_damaged_file_gives_an_answer_or_one_kind_of_error(
    tmp_path: Path, name: str, keep: float, edits: list[tuple[float, bytes]]
) -> None:
    data = bytearray(case(name).read_bytes())
    for place, new in edits:
        start = int(place * len(data))
        data[start : start + len(new)] = new
    path = tmp_path / "damaged.so"
    path.write_bytes(data[: int(keep * len(data))])
    for read in (device_code, linkage):
        with contextlib.suppress(MalformedBinaryError):
            read(path)
