"""Where the files of a wheel go, and which wheels are refused."""

from __future__ import annotations

import csv
import io
import re
import stat
import zipfile
from typing import TYPE_CHECKING

import pytest

from builder.build.compile_installed import sources_of
from builder.build.tarlayer import Member
from builder.build.venv import Venv
from builder.build.wheelfile import read_layout, record_of
from builder.errors import BuildFailedError
from tests.wheels import EXECUTABLE, REGULAR, make_wheel, member, record_line

if TYPE_CHECKING:
    from pathlib import Path

    from builder.build.tarlayer import File
    from builder.build.wheelfile import WheelLayout

VENV = Venv(python="3.13")
SITE = "/opt/env/lib/python3.13/site-packages"


def by_path(layout: WheelLayout) -> dict[str, File]:
    return {file.path: file for file in layout.files}


def test_the_schemes_of_a_wheel_go_where_pip_puts_them(tmp_path: Path) -> None:
    wheel = make_wheel(
        tmp_path,
        "Foo_Bar",
        {
            "foo/__init__.py": b"",
            "Foo_Bar-1.0.data/platlib/foo/native.so": b"elf",
            "Foo_Bar-1.0.data/data/share/foo.txt": b"data",
            "Foo_Bar-1.0.data/headers/foo.h": b"header",
            "Foo_Bar-1.0.data/scripts/tool": b"\x7fELF",
        },
    )
    assert [path for path in by_path(read_layout(wheel, VENV)) if "dist-info" not in path] == [
        "/opt/env/bin/tool",
        "/opt/env/include/site/python3.13/Foo_Bar/foo.h",
        f"{SITE}/foo/__init__.py",
        f"{SITE}/foo/native.so",
        "/opt/env/share/foo.txt",
    ]


def test_the_data_folder_is_found_however_it_spells_the_name(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, "foo_bar", {"Foo.Bar-1.0.data/data/share/x": b"x"})
    assert "/opt/env/share/x" in by_path(read_layout(wheel, VENV))


def test_only_executable_files_and_scripts_are_executable(tmp_path: Path) -> None:
    files = [(member("foo/run", EXECUTABLE), b""), (member("foo/text", REGULAR), b""), (member("foo/odd", 0o755), b"")]
    wheel = make_wheel(tmp_path, "foo", [*files, (member("foo-1.0.data/scripts/tool", REGULAR), b"binary")])
    modes = {path: file.mode for path, file in by_path(read_layout(wheel, VENV)).items() if "dist-info" not in path}
    assert modes == {
        "/opt/env/bin/tool": 0o755,
        f"{SITE}/foo/odd": 0o644,
        f"{SITE}/foo/run": 0o755,
        f"{SITE}/foo/text": 0o644,
    }


def test_an_entry_point_becomes_a_script_of_the_environment(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, "foo", {}, entry_points="[console_scripts]\nfoo = foo.cli:main.run\n")
    script = by_path(read_layout(wheel, VENV))["/opt/env/bin/foo"]
    assert isinstance(script.content, bytes)
    assert script.content.startswith(b"#!/opt/env/bin/python\n")
    assert b"from foo.cli import main\n" in script.content
    assert b"sys.exit(main.run())" in script.content
    assert script.mode == 0o755


def test_a_python_script_gets_the_interpreter_of_the_environment(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, "foo", {"foo-1.0.data/scripts/tool": b"#!python -E\nprint()\n"})
    assert by_path(read_layout(wheel, VENV))["/opt/env/bin/tool"].content == b"#!/opt/env/bin/python\nprint()\n"


def test_contents_are_not_read_before_the_layer_is_written(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, "foo", {"foo/__init__.py": b"x = 1\n"})
    content = by_path(read_layout(wheel, VENV))[f"{SITE}/foo/__init__.py"].content
    assert isinstance(content, Member)
    assert (content.archive, content.name) == (wheel.path, "foo/__init__.py")
    assert content.hash == record_line("x", b"x = 1\n").split(",")[1]


def test_byte_code_in_a_wheel_is_left_out(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, "foo", {"foo/a.py": b"", "foo/__pycache__/a.cpython-313.pyc": b"evil"})
    assert not [path for path in by_path(read_layout(wheel, VENV)) if "__pycache__" in path]


def test_the_build_backend_that_a_wheel_carries_by_mistake_is_left_out(tmp_path: Path) -> None:
    layout = read_layout(make_wheel(tmp_path, "foo", {"foo/build_backend.py": b"", "build_backend.py": b"x"}), VENV)
    assert [path for path in by_path(layout) if path.endswith("build_backend.py")] == [f"{SITE}/foo/build_backend.py"]
    assert layout.left_out == ("build_backend.py",)


def test_the_signature_of_the_old_record_is_left_out(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, "foo", {"a.py": b"", "foo-1.0.dist-info/RECORD.jws": b"{}"})
    assert not [path for path in by_path(read_layout(wheel, VENV)) if "RECORD" in path]


def test_record_lists_every_file_with_its_hash_and_byte_code_without(tmp_path: Path) -> None:
    layout = read_layout(make_wheel(tmp_path, "foo", {"foo.py": b"1"}, entry_points="[gui_scripts]\nf = foo:m\n"), VENV)
    record = record_of(layout, VENV, [f"{SITE}/__pycache__/foo.cpython-313.pyc"])
    assert record.path == f"{SITE}/foo-1.0.dist-info/RECORD"
    assert isinstance(record.content, bytes)
    rows = {row[0]: row[1:] for row in csv.reader(io.StringIO(record.content.decode()))}
    assert list(rows) == sorted(rows)
    assert rows["foo.py"] == ["sha256=a4ayc_80_OGda4BO_1o_V0etpOqiLx1JwB5S3beHW0s", "1"]
    assert rows["__pycache__/foo.cpython-313.pyc"] == ["", ""]
    assert rows["foo-1.0.dist-info/RECORD"] == ["", ""]
    assert rows["../../../bin/f"][0].startswith("sha256=")
    assert rows["foo-1.0.dist-info/INSTALLER"][1] == "9"


def test_only_importable_python_files_get_byte_code(tmp_path: Path) -> None:
    files = {"foo/a.py": b"", "foo/a.pyi": b"", "foo-1.0.data/scripts/b.py": b"", "foo-1.0.data/data/share/c.py": b""}
    sources = read_layout(make_wheel(tmp_path, "foo", files), VENV).sources(VENV)
    assert [file.path for file in sources] == [f"{SITE}/foo/a.py"]


def test_the_dockerfile_compiles_what_comes_with_byte_code_and_that_is_no_packages_tests(tmp_path: Path) -> None:
    installed = ["foo/a.py", "foo/latest/b.py", "foo/tests.py", "foo/test/c.py", "foo/testing/d.py"]
    left = ["foo/tests/__init__.py", "foo/tests/deep/e.py", "tests/f.py", "foo/a.pyi", "build_backend.py"]
    other = ["foo-1.0.data/purelib/bar/g.py", "foo-1.0.data/platlib/bar/tests/h.py", "foo-1.0.data/data/tests/i.py"]
    layout = read_layout(make_wheel(tmp_path, "foo", dict.fromkeys([*installed, *left, *other], b"")), VENV)
    sources = [(file.content.name, file.path) for file in layout.sources(VENV) if isinstance(file.content, Member)]
    assert sources == sources_of(layout.wheel.path, VENV.prefix, VENV.site_packages)
    assert {name for name, _ in sources} == {*installed, "foo-1.0.data/purelib/bar/g.py"}
    assert f"{SITE}/foo/tests/deep/e.py" in {file.path for file in layout.files}


@pytest.mark.parametrize(
    ("info", "problem"),
    [
        (member("/etc/passwd"), "is an absolute path"),
        (member("foo/../../x"), "leaves the wheel's folder"),
        (member(".."), "leaves the wheel's folder"),
        (member("foo//x"), "is not a plain path"),
        (member("./x"), "is not a plain path"),
        (member(""), "is not a plain path"),
        (member("x" * 256), "is not a plain path"),
        (member("foo\\..\\x"), "has a backslash or a control character"),
        (member("foo\nbar"), "has a backslash or a control character"),
        (member("foo/link", stat.S_IFLNK | 0o777), "is a symbolic link or a device"),
        (member("foo/null", stat.S_IFCHR | 0o666), "is a symbolic link or a device"),
        (member("foo/sudo", stat.S_IFREG | stat.S_ISUID | 0o755), "has the setuid or setgid bit"),
        (member("foo/sudo", stat.S_IFREG | stat.S_ISGID | 0o755), "has the setuid or setgid bit"),
        (member("../up/"), "leaves the wheel's folder"),
    ],
)
def test_a_hostile_name_or_mode_is_refused(tmp_path: Path, info: zipfile.ZipInfo, problem: str) -> None:
    wheel = make_wheel(tmp_path, "foo", [(info, b"")])
    with pytest.raises(BuildFailedError, match=problem) as caught:
        read_layout(wheel, VENV)
    assert caught.value.message.startswith("foo-1.0-py3-none-any.whl: ")
    assert "who made it" in caught.value.remedy


def test_names_that_differ_in_case_only_are_refused(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, "foo", {"foo/Mod.py": b"1", "foo/mod.py": b"2"})
    with pytest.raises(BuildFailedError, match=r"'foo/mod.py' differs from 'foo/Mod.py' in case only"):
        read_layout(wheel, VENV)


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_name_that_comes_twice_is_refused(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, "foo", [(member("foo.py"), b"1"), (member("foo.py"), b"2")])
    with pytest.raises(BuildFailedError, match=r"'foo.py' comes twice"):
        read_layout(wheel, VENV)


@pytest.mark.parametrize(
    "name", ["foo-1.0.data/scripts/python", "foo-1.0.data/data/pyvenv.cfg", "foo-1.0.data/data/bin/python3.13"]
)
def test_the_files_of_the_environment_cannot_be_replaced(tmp_path: Path, name: str) -> None:
    with pytest.raises(BuildFailedError, match="belongs to the environment, not to a wheel"):
        read_layout(make_wheel(tmp_path, "foo", {name: b"evil"}), VENV)


@pytest.mark.parametrize("files", [{"a": b"", "a/b": b""}, {"foo-1.0.data/data/bin/python/x": b""}])
def test_a_path_cannot_be_a_file_and_a_folder(tmp_path: Path, files: dict[str, bytes]) -> None:
    with pytest.raises(BuildFailedError, match="is both a file and a folder"):
        read_layout(make_wheel(tmp_path, "foo", files), VENV)


def test_a_path_that_linux_cannot_have_is_refused(tmp_path: Path) -> None:
    deep = "/".join(["d" * 200] * 20)
    room = 4095 - len(f"{SITE}/{deep}/.py")
    assert read_layout(make_wheel(tmp_path, "foo", {f"{deep}/{'a' * room}.py": b""}), VENV).size
    with pytest.raises(BuildFailedError, match=f"{SITE}/d+… is a longer path than Linux has"):
        read_layout(make_wheel(tmp_path, "foo", {f"{deep}/{'a' * (room + 1)}.py": b""}), VENV)


def test_a_wheel_without_metadata_names_what_is_missing(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, "foo", {})
    with zipfile.ZipFile(wheel.path, "w") as archive:
        archive.writestr("foo-1.0.dist-info/RECORD", "foo-1.0.dist-info/RECORD,,\n")
    with pytest.raises(BuildFailedError, match=r"is not a valid wheel: There is no item named 'foo-1\.0\.dist-info/"):
        read_layout(wheel, VENV)


def test_two_schemes_cannot_mean_one_file(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, "foo", {"a.py": b"1", "foo-1.0.data/purelib/a.py": b"2"})
    with pytest.raises(BuildFailedError, match=f"two files of it want to be {SITE}/a.py"):
        read_layout(wheel, VENV)


def test_a_script_and_an_entry_point_cannot_mean_one_file(tmp_path: Path) -> None:
    files = {"foo-1.0.data/scripts/tool": b"#!python\n"}
    wheel = make_wheel(tmp_path, "foo", files, entry_points="[console_scripts]\ntool = foo:main\n")
    with pytest.raises(BuildFailedError, match=r"two files of it want to be /opt/env/bin/tool"):
        read_layout(wheel, VENV)


@pytest.mark.parametrize("name", ["foo-1.0.data", "foo-1.0.data/x", "foo-1.0.data/scripts", "foo-1.0.data/other/x"])
def test_a_file_of_the_data_folder_that_no_scheme_has_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(BuildFailedError) as caught:
        read_layout(make_wheel(tmp_path, "foo", {name: b""}), VENV)
    assert caught.value.message == (
        f"foo-1.0-py3-none-any.whl is not a valid wheel: {name} is not inside the folder of an install scheme"
    )


@pytest.mark.parametrize(
    ("entry_points", "text"),
    [
        ("[console_scripts]\n../../etc/x = foo:main\n", "asks for a script called '../../etc/x'"),
        ("[console_scripts]\npython = foo:main\n", "belongs to the environment"),
        ("[console_scripts]\nfoo = foo\n", "a script of entry_points.txt is not of the form MODULE:OBJECT"),
        ("foo\n", "is not a valid wheel"),
    ],
)
def test_a_bad_entry_point_is_refused(tmp_path: Path, entry_points: str, text: str) -> None:
    with pytest.raises(BuildFailedError, match=text):
        read_layout(make_wheel(tmp_path, "foo", {}, entry_points=entry_points), VENV)


def test_a_file_that_record_does_not_list_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BuildFailedError, match=r"foo.py is not mentioned in RECORD"):
        read_layout(make_wheel(tmp_path, "foo", {"foo.py": b""}, record="foo-1.0.dist-info/RECORD,,\n"), VENV)


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        (",0\n", ",\n", "hash / size of foo.py is not included in RECORD"),
        (",0\n", ",many\n", "entry in RECORD file for foo.py is invalid: `size` cannot be non-integer"),
        ("sha256=", "", "entry in RECORD file for foo.py is invalid: `hash` does not follow the required format"),
        ("RECORD,,", "RECORD,sha256=x,1", "RECORD file incorrectly contains hash / size"),
        ("foo-1.0.dist-info/RECORD,,\n", "", "foo-1.0.dist-info/RECORD is not mentioned in RECORD"),
        ("RECORD,,\n", "RECORD,,\nfoo-1.0.dist-info/RECORD.jws,sha256=x,1\n", "RECORD.jws is incorrectly contained"),
        (",0\n", ",0,more\n", "Unable to retrieve `RECORD`"),
    ],
)
def test_a_record_that_does_not_fit_is_refused(tmp_path: Path, old: str, new: str, text: str) -> None:
    files = {"foo.py": b"", "foo-1.0.dist-info/RECORD.jws": b""}
    with zipfile.ZipFile(make_wheel(tmp_path, "foo", files).path) as archive:
        record = archive.read("foo-1.0.dist-info/RECORD").decode()
    assert old in record
    with pytest.raises(BuildFailedError, match=re.escape(text)):
        read_layout(make_wheel(tmp_path, "foo", files, record=record.replace(old, new)), VENV)


def test_a_record_with_sizes_of_an_uncommon_form_is_taken(tmp_path: Path) -> None:
    with zipfile.ZipFile(make_wheel(tmp_path, "foo", {"foo.py": b""}).path) as archive:
        record = archive.read("foo-1.0.dist-info/RECORD").decode()
    odd = make_wheel(tmp_path, "foo", {"foo.py": b""}, record=record.replace(",0\n", ", +0\n"))
    assert f"{SITE}/foo.py" in by_path(read_layout(odd, VENV))


@pytest.mark.parametrize("algorithm", ["md5", "sha1"])
def test_a_weak_hash_is_refused(tmp_path: Path, algorithm: str) -> None:
    wheel = make_wheel(tmp_path, "foo", {"foo.py": b""})
    with zipfile.ZipFile(wheel.path) as archive:
        record = archive.read("foo-1.0.dist-info/RECORD").decode()
    weak = record.replace(record_line("foo.py", b""), record_line("foo.py", b"", algorithm))
    with pytest.raises(BuildFailedError, match=r"no strong hash of foo.py"):
        read_layout(make_wheel(tmp_path, "foo", {"foo.py": b""}, record=weak), VENV)


def test_a_wheel_of_another_format_is_refused(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, "foo", {})
    with zipfile.ZipFile(wheel.path) as archive:
        contents = {info.filename: archive.read(info) for info in archive.infolist()}
    with zipfile.ZipFile(wheel.path, "w") as archive:
        for name, data in contents.items():
            archive.writestr(name, data.replace(b"Wheel-Version: 1", b"Wheel-Version: 2"))
    with pytest.raises(BuildFailedError, match=r"its Wheel-Version is 2.0, and only 1.x is known"):
        read_layout(wheel, VENV)


def test_a_wheel_of_another_project_is_refused(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, "foo", {"bar-1.0.dist-info/METADATA": b""})
    with pytest.raises(BuildFailedError, match=r"exactly one \.dist-info"):
        read_layout(wheel, VENV)


def test_a_wheel_that_ends_too_early_is_refused(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, "foo", {})
    with zipfile.ZipFile(wheel.path, "a") as archive:
        info = archive.getinfo("foo-1.0.dist-info/WHEEL")
        info.compress_type, info.compress_size, info.file_size = zipfile.ZIP_STORED, 10_000, 10_000
        archive.comment = b"the index is written anew"
    with pytest.raises(BuildFailedError, match=r"foo-1.0-py3-none-any.whl is not a valid wheel: EOFError"):
        read_layout(wheel, VENV)


def test_a_file_that_is_no_zip_is_refused(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, "foo", {})
    wheel.path.write_bytes(b"<html>not found</html>")
    with pytest.raises(
        BuildFailedError, match=r"foo-1.0-py3-none-any.whl is not a valid wheel: File is not a zip file"
    ):
        read_layout(wheel, VENV)
