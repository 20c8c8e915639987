"""The script that compiles wheels in the base image: a wheel's byte code and its failure depend on no other wheel."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from builder.build import compile_inside, compile_installed

if TYPE_CHECKING:
    from collections.abc import Mapping

SOURCES = {
    f"m{n}.py": f"def first_{n}(shared_name):\n    return shared_name.some_{n}, 'constant_{n}'\n" for n in range(5)
}
OTHER = {f"o{n}.py": source for n, source in enumerate(SOURCES.values())}
DRIVER = """
import os, sys
sys.path.insert(0, sys.argv[1])
import compile_inside as script
from pathlib import Path
script.WHEELS, script.JOBS, script.RESULTS = (Path(name).absolute() for name in ("wheels", "jobs", "results"))
script.PART = 2
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: int(sys.argv[2])])
compiled = script.byte_code
def byte_code(source, path):
    if b"kill" in source:
        os.kill(os.getpid(), 9)
    return compiled(source, path)
script.byte_code = byte_code
sys.exit(script.compile_all(sys.argv[3:]))
"""


def compile_all(
    folder: Path, wheels: Mapping[str, Mapping[str, str]], *, cores: int = 64
) -> tuple[int, list[str], dict[str, bytes]]:
    """Compile wheels as in the container; return the exit code, what was said, and the results."""
    for name in ("wheels", "jobs", "results"):
        (folder / name).mkdir(parents=True)
    for wheel, sources in wheels.items():
        with zipfile.ZipFile(folder / "wheels" / wheel, "w") as archive:
            for name, source in sources.items():
                archive.writestr(name, source)
        (folder / "jobs" / wheel).write_text(json.dumps([(name, f"/opt/{name}") for name in sources]))
    script = str(Path(compile_inside.__file__).parent)
    command = [sys.executable, "-S", "-c", DRIVER, script, str(cores), *wheels]
    ended = subprocess.run(
        command, cwd=folder, capture_output=True, check=False, env={**os.environ, "PYTHONHASHSEED": "0"}
    )
    results = {result.name: result.read_bytes() for result in (folder / "results").iterdir()}
    return ended.returncode, ended.stderr.decode().splitlines(), results


@pytest.mark.parametrize("cores", [1, 64])
def test_byte_code_is_the_same_alone_and_after_other_wheels(tmp_path: Path, cores: int) -> None:
    _, _, alone = compile_all(tmp_path / "alone", {"one": SOURCES})
    others = {f"other{number}": OTHER | {f"p{number}{n}.py": "" for n in range(9)} for number in range(3)}
    code, said, among = compile_all(tmp_path / "among", {"one": SOURCES, **others}, cores=cores)
    assert code == 0
    assert sorted(said) == [f"compiled {wheel}" for wheel in ("one", *others)]
    assert among["one"] == alone["one"]
    with zipfile.ZipFile(tmp_path / "among" / "results" / "one") as archive:
        assert archive.namelist() == [f"/opt/{name}" for name in SOURCES]


def test_a_process_that_is_killed_fails_its_own_wheel(tmp_path: Path) -> None:
    code, said, results = compile_all(tmp_path / "work", {"good": SOURCES, "bad": SOURCES | {"x.py": "kill"}}, cores=2)
    assert code == 1
    assert sorted(said) == ["compiled good", "failed bad"]
    assert "good" in results
    assert "bad" not in results


@pytest.mark.parametrize("name", ["jobs", "results"])
def test_what_an_earlier_try_left_is_refused_and_never_read(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in ("wheels", "jobs", "results"):
        monkeypatch.setattr(compile_installed, place.upper(), tmp_path / place)
    (tmp_path / name).mkdir()
    (tmp_path / name / "mine-1.0-py3-none-any.whl.0.part").write_bytes(b"of an earlier try")
    with pytest.raises(FileExistsError, match=f"/{name}'$"):
        compile_installed.compile_installed(tmp_path, str(tmp_path), str(tmp_path))
