"""What runs in the toolchain: copies, continues, puts a cache before the compilers, measures."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from builder.build import compile_source

FRONTEND = """
import os, pathlib, sys
out = pathlib.Path(sys.argv[sys.argv.index("--outdir") + 1])
held = bytearray(64 << 20)
held[::4096] = b"x" * len(held[::4096])
print("the build speaks")
(out / "a-1-py3-none-any.whl").write_bytes(b"wheel")
pathlib.Path("left.o").touch()
sys.exit(int(os.environ.get("CODE", "0")))
"""
SCRIPT = Path(compile_source.__file__)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    (folder / "package").mkdir(parents=True)
    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "run.sh").chmod(0o555)
    (folder / "package" / "link").symlink_to("../run.sh")
    (tmp_path / "python" / "build").mkdir(parents=True)
    (tmp_path / "python" / "build" / "__main__.py").write_text(FRONTEND)
    return folder


def compiled(tmp_path: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "work").mkdir(exist_ok=True)
    return subprocess.run(
        [sys.executable, str(SCRIPT), str(tmp_path / "source"), str(tmp_path / "work"), "package"],
        env={**os.environ, "PYTHONPATH": str(tmp_path / "python"), **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_finished_build_leaves_the_wheel_and_its_measures_and_nothing_else(tmp_path: Path, source: Path) -> None:
    ended = compiled(tmp_path)
    assert (ended.returncode, ended.stdout) == (0, ""), ended.stderr
    assert "the build speaks" in ended.stderr
    assert sorted(path.name for path in (tmp_path / "work").iterdir()) == ["output"]
    assert sorted(path.name for path in (tmp_path / "work/output").iterdir()) == [
        "a-1-py3-none-any.whl",
        "measures.json",
    ]
    measures = json.loads((tmp_path / "work/output/measures.json").read_text())
    assert measures["unit_memory"] > 64 << 20
    assert measures["cache_hits"] == measures["cache_misses"] == 0
    assert not (source / "package" / "left.o").exists()


def test_a_failed_build_keeps_its_tree_and_says_its_code(tmp_path: Path, source: Path) -> None:
    assert compiled(tmp_path, CODE="3").returncode == 3
    tree = tmp_path / "work" / "source"
    assert (tree / "package" / "left.o").exists()
    assert (tree / "run.sh").stat().st_mode & 0o777 == 0o755
    assert (tree / "package" / "link").readlink() == Path("../run.sh")


def test_only_a_tree_that_ninja_knows_is_continued(tmp_path: Path, source: Path) -> None:
    compiled(tmp_path, CODE="3")
    tree = tmp_path / "work" / "source"
    (tree / "half.o").touch()
    assert "going on" not in compiled(tmp_path, CODE="3").stderr
    assert not (tree / "half.o").exists()
    (tree / "package" / ".ninja_log").touch()
    (tree / "half.o").touch()
    assert "going on with the object files" in compiled(tmp_path, CODE="3").stderr
    assert (tree / "half.o").exists()


def test_a_copy_that_was_cut_short_is_made_again(tmp_path: Path, source: Path) -> None:
    (tmp_path / "work" / "copy" / "package").mkdir(parents=True)
    (tmp_path / "work" / "copy" / "stale").touch()
    assert compiled(tmp_path, CODE="3").returncode == 3
    assert not (tmp_path / "work" / "source" / "stale").exists()


def test_nvcc_goes_through_the_cache_by_its_path_and_calls_the_plain_host_compiler(tmp_path: Path) -> None:
    home, programs = tmp_path / "cuda", tmp_path / "bin"
    (home / "bin").mkdir(parents=True)
    (home / "include").mkdir()
    programs.mkdir()
    for name, text in (("nvcc", 'echo "real nvcc $*, PATH=$PATH"'), ("ptxas", "true")):
        (home / "bin" / name).write_text(f"#!/bin/sh\n{text}\n")
        (home / "bin" / name).chmod(0o755)
    (programs / "ccache").write_text('#!/bin/sh\necho "ccache $*"\nexec "$@"\n')
    (programs / "ccache").chmod(0o755)
    environment = {"PATH": f"{programs}:/usr/bin:/bin", "CUDA_HOME": str(home), "CCACHE_DIR": str(tmp_path)}
    work = tmp_path / "work"
    work.mkdir()
    found = compile_source.cached_compilers(work, environment)
    shown = subprocess.run(
        [f"{found['CUDA_HOME']}/bin/nvcc", "-c", "a b.cu"], capture_output=True, text=True, check=True
    )
    assert shown.stdout.splitlines() == [
        f"ccache {home}/bin/nvcc -c a b.cu",
        f"real nvcc -c a b.cu, PATH={environment['PATH']}",
    ]
    assert (Path(found["CUDA_HOME"]) / "include").resolve() == home / "include"
    assert f"{found['CUDA_HOME']}/bin" in found["PATH"].split(":")


def test_without_ccache_or_a_folder_for_it_the_compilers_are_the_plain_ones(tmp_path: Path) -> None:
    assert compile_source.cached_compilers(tmp_path, {"PATH": str(tmp_path), "CCACHE_DIR": "/x"}) == {}
    assert compile_source.cached_compilers(tmp_path, {"PATH": os.environ["PATH"]}) == {}


def test_hits_and_misses_are_counted_as_ccache_logs_them(tmp_path: Path) -> None:
    log = tmp_path / "ccache.log"
    lines = ("# a.cu", "cache_miss", "local_storage_write", "# b.cu", "direct_cache_hit")
    log.write_text("\n".join((*lines, "# c.c", "preprocessed_cache_hit", "# -V", "no_input_file")))
    found = compile_source.measures(7, log)
    assert (found["cache_hits"], found["cache_misses"], found["peak_memory"]) == (2, 1, 7)


def test_memory_is_that_of_a_process_and_its_descendants_alone() -> None:
    parents = {2: 1, 3: 2, 4: 3, 9: 1}
    assert compile_source.ancestors(4, parents) == {1, 2, 3}
    assert compile_source.held_by(os.getpid()) > 1 << 20
