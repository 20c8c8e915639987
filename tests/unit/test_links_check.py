"""What libraries link, on small libraries that a C compiler makes here: found as the dynamic loader finds it."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from builder.elf import open_elf
from builder.verify.probe.loader import Loader, closure, library_at
from tests.unit.test_static_check import Environment

if TYPE_CHECKING:
    from pathlib import Path

    from builder.verify.verdict import Check

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
MODULE = "void *PyInit_{name}(void) {{ return 0; }}\n"


class Workshop:
    """Compiles libraries; `library` returns the bytes, and keeps the file for others to be linked with."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()

    def library(self, name: str, source: str, *flags: str, soname: str | None = None) -> bytes:
        out, code = self.folder / name, self.folder / f"{name}.c"
        code.write_text(source)
        named = [f"-Wl,-soname,{soname or name}"]
        subprocess.run(
            ["cc", "-shared", "-fPIC", "-w", *named, "-o", out, code, *flags, f"-L{self.folder}"], check=True
        )
        return out.read_bytes()


@pytest.fixture
def workshop(tmp_path: Path) -> Workshop:
    return Workshop(tmp_path / "workshop")


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    return Environment(tmp_path)


def links(environment: Environment, **changes: object) -> Check:
    return environment.check(**changes)["static.links"]


def test_a_library_beside_the_one_that_needs_it_is_found_by_origin_and_not_without(
    environment: Environment, workshop: Workshop
) -> None:
    dep = workshop.library("libdep.so.1", "int dep(void) { return 1; }")
    uses = MODULE.format(name="a") + "int dep(void); int a(void) { return dep(); }"
    found = workshop.library("found.so", uses, "-l:libdep.so.1", "-Wl,-rpath,$ORIGIN/lib")
    lost = workshop.library("lost.so", uses.replace("PyInit_a", "PyInit_lost"), "-l:libdep.so.1")
    environment.install("a", {"a/found.so": found, "a/lib/libdep.so.1": dep})
    assert links(environment, built=("a",)).outcome == "passed"
    environment.install("b", {"b/lost.so": lost})
    check = links(environment, built=("a", "b"))
    assert check.outcome == "passed"
    assert check.evidence == ("warning: b/lost.so needs libdep.so.1, which Python code must open before it",)


def test_a_library_that_is_nowhere_fails_a_module_of_the_recipe_and_warns_of_a_plug_in(
    environment: Environment, workshop: Workshop
) -> None:
    workshop.library("libabsent.so.2", "int absent(void) { return 1; }")
    module = workshop.library(
        "m.so", MODULE.format(name="m") + "int absent(); int m() { return absent(); }", "-l:libabsent.so.2"
    )
    plugin = workshop.library("p.so", "int absent(); int p() { return absent(); }", "-l:libabsent.so.2")
    environment.install("plugins", {"plugins/p.so": plugin})
    check = links(environment, built=("plugins",))
    assert (check.outcome, check.figures["warnings"]) == ("passed", 1)
    environment.install("mine", {"mine/m.so": module})
    assert links(environment).outcome == "passed", "a library of no interest to the recipe"
    check = links(environment, built=("mine",))
    assert (check.outcome, check.summary) == ("failed", "mine/m.so needs libabsent.so.2, which is not in the image")


def test_editions_for_several_versions_are_one_line_and_none_where_one_is_whole(
    environment: Environment, workshop: Workshop
) -> None:
    files = {}
    for number in (9, 10):
        workshop.library(f"libffmpeg.so.{number}", "int decode(void) { return 1; }")
        uses = "int decode(); int d() { return decode(); }"
        files[f"codec/core{number}.so"] = workshop.library(f"core{number}.so", uses, f"-l:libffmpeg.so.{number}")
    environment.install("codec", files)
    assert links(environment).evidence == (
        "warning: codec/core10.so needs libffmpeg.so.10, which is not in the image; its 1 other editions find no more",
    )
    environment.install("whole", {"codec/core8.so": workshop.library("core8.so", "int d() { return 1; }")})
    assert len(links(environment).evidence) == 1, "an edition of another package does not count"
    environment.install("codec", {**files, "codec/core8.so": (workshop.folder / "core8.so").read_bytes()})
    assert links(environment).evidence == ()


def test_a_library_that_another_one_opens_is_searched_where_that_ones_rpath_says(
    environment: Environment, workshop: Workshop
) -> None:
    files = {"a/libs/libend.so": workshop.library("libend.so", "int end(void) { return 1; }")}
    middle = "int end(); int middle(void) { return end(); }"
    files["a/libs/libmiddle.so"] = workshop.library("libmiddle.so", middle, "-l:libend.so")
    user = MODULE.format(name="a") + "int middle(); int a() { return middle(); }"
    rpath = ("-Wl,--disable-new-dtags", "-Wl,-rpath,$ORIGIN/libs")
    files["a/a.so"] = workshop.library("a.so", user, "-l:libmiddle.so", *rpath, f"-Wl,-rpath-link,{workshop.folder}")
    environment.install("a", {name: data for name, data in files.items() if not name.endswith("a.so")})
    assert len(links(environment).evidence) == 1, "nothing leads to it"
    environment.install("a", files)
    assert links(environment).evidence == ()


def test_a_build_for_another_cuda_is_named_in_any_package(environment: Environment, workshop: Workshop) -> None:
    workshop.library("libcudart.so.12", "int cudaMalloc(void) { return 0; }")
    source = MODULE.format(name="k") + "int cudaMalloc(); int k() { return cudaMalloc(); }"
    environment.install("kernels", {"kernels/k.so": workshop.library("k.so", source, "-l:libcudart.so.12")})
    assert links(environment).summary == (
        "kernels/k.so needs libcudart.so.12, which is not in the image: it was built for CUDA 12"
    )


def test_a_build_for_another_torch_is_named_so(environment: Environment, workshop: Workshop) -> None:
    other = "void _ZN3c104cuda29c10_cuda_check_implementationEiPKcS2_ib(void) {}"
    installed = "void _ZN3c104cuda29c10_cuda_check_implementationEiPKcS2_jb(void) {}"
    workshop.library("libc10_cuda.so", other)
    source = MODULE.format(name="k") + (
        "void _ZN3c104cuda29c10_cuda_check_implementationEiPKcS2_ib(void);"
        "void k(void) { _ZN3c104cuda29c10_cuda_check_implementationEiPKcS2_ib(); }"
    )
    kernel = workshop.library("k.so", source, "-l:libc10_cuda.so")
    torch = {
        "torch/lib/libc10_cuda.so": workshop.library("libc10_cuda.so", installed),
        "torch/_C.so": workshop.library(
            "_C.so", MODULE.format(name="_C"), "-Wl,--no-as-needed", "-l:libc10_cuda.so", "-Wl,-rpath,$ORIGIN/lib"
        ),
    }
    environment.install("torch", torch)
    environment.install("kernels", {"kernels/k.so": kernel})
    check = links(environment)
    assert check.outcome == "failed"
    assert check.summary == (
        "kernels/k.so needs the symbol _ZN3c104cuda29c10_cuda_check_implementationEiPKcS2_ib, which nothing defines: "
        "it was built for another torch than 1.0"
    )


def test_a_module_may_call_torchs_c_functions_without_linking_it_if_this_torch_has_them(
    environment: Environment, workshop: Workshop
) -> None:
    defines = "void aoti_torch_get_dtype(void) {} void _ZN3c104cudaE(void) {}"
    torch = {
        "torch/lib/libtorch_cpu.so": workshop.library("libtorch_cpu.so", defines),
        "torch/_C.so": workshop.library(
            "_C.so", MODULE.format(name="_C"), "-Wl,--no-as-needed", "-l:libtorch_cpu.so", "-Wl,-rpath,$ORIGIN/lib"
        ),
    }
    environment.install("torch", torch)

    def bridge(name: str) -> bytes:
        return workshop.library("bridge.so", MODULE.format(name="b") + f"void {name}(); void b() {{ {name}(); }}")

    environment.install("bridge", {"bridge/bridge.so": bridge("aoti_torch_get_dtype")})
    check = links(environment)
    assert check.outcome == "passed"
    assert check.evidence == ("warning: bridge/bridge.so needs libtorch_cpu.so, which Python code must open before it",)
    for absent in ("aoti_torch_get_device", "_ZN3c104cudaE"):
        environment.install("bridge", {"bridge/bridge.so": bridge(absent)})
        assert links(environment).summary == f"bridge/bridge.so needs the symbol {absent}, which nothing defines"


def test_a_library_of_operators_that_torch_opens_is_judged_in_the_recipes_own_packages(
    environment: Environment, workshop: Workshop
) -> None:
    workshop.library("libtorch.so", "int given(void) { return 1; }")
    workshop.library("libcudart.so.12", "int cudaMalloc(void) { return 0; }")
    source = "int _ZN5torch7LibraryC1Ev(void); int cudaMalloc(void);"
    source += "int f(void) { return cudaMalloc() + _ZN5torch7LibraryC1Ev(); }"
    ops = workshop.library("ops.so", source, "-Wl,--no-as-needed", "-l:libtorch.so", "-l:libcudart.so.12")
    environment.install(
        "torch", {"torch/lib/libtorch.so": workshop.library("libtorch.so", "int given(void) { return 1; }")}
    )
    environment.install("ops", {"ops/ops.so": ops})
    assert links(environment).outcome == "passed"
    check = links(environment, built=("ops",))
    assert check.outcome == "failed"
    assert check.evidence[:2] == (
        "ops/ops.so needs libcudart.so.12, which is not in the image: it was built for CUDA 12",
        "ops/ops.so needs libtorch.so, which Python code must open before it",
    )
    assert check.evidence[2] == (
        "ops/ops.so needs the symbol _ZN5torch7LibraryC1Ev, which nothing defines: "
        "it was built for another torch than 1.0"
    )


def test_a_weak_symbol_may_be_undefined(environment: Environment, workshop: Workshop) -> None:
    source = (
        MODULE.format(name="w") + "__attribute__((weak)) int maybe(void); int w(void) { return maybe ? maybe() : 0; }"
    )
    environment.install("w", {"w/w.so": workshop.library("w.so", source)})
    assert links(environment, built=("w",)).outcome == "passed"


def test_symbols_of_this_python_and_of_the_c_library_are_found(environment: Environment, workshop: Workshop) -> None:
    source = (
        MODULE.format(name="p")
        + '#include <stdio.h>\nint PyLong_FromLong(long); int p(void) { puts(""); return PyLong_FromLong(1); }'
    )
    environment.install("p", {"p/p.so": workshop.library("p.so", source)})
    assert links(environment, built=("p",)).outcome == "passed"
    broken = source.replace("PyLong_FromLong", "PyLong_FromNowhere").replace("PyInit_p", "PyInit_q")
    environment.install("q", {"q/q.so": workshop.library("q.so", broken)})
    assert links(environment).summary == "q/q.so needs the symbol PyLong_FromNowhere, which nothing defines"


def test_a_version_that_the_c_library_does_not_have_is_a_floor(environment: Environment, workshop: Workshop) -> None:
    source = MODULE.format(name="g") + '#include <stdio.h>\nint g(void) { return puts(""); }'
    library = workshop.library("g.so", source)
    assert b"GLIBC_2.2.5\0" in library
    environment.install("g", {"g/g.so": library.replace(b"GLIBC_2.2.5\0", b"GLIBC_2.9.9\0")})
    assert links(environment).summary == "g/g.so needs GLIBC_2.9.9 of libc.so.6, which the image's is too old for"


def test_what_only_the_driver_brings_is_excused(environment: Environment, workshop: Workshop) -> None:
    workshop.library("libcuda.so.1", "int cuInit(void) { return 0; }")
    source = MODULE.format(name="d") + "int cuInit(void); int d(void) { return cuInit(); }"
    environment.install("d", {"d/d.so": workshop.library("d.so", source, "-l:libcuda.so.1")})
    assert links(environment, built=("d",)).outcome == "passed"
    source = source.replace("cuInit", "driver_of_mine").replace("PyInit_d", "PyInit_e")
    workshop.library("libcuda.so.1", "int driver_of_mine(void) { return 0; }")
    environment.install("e", {"e/e.so": workshop.library("e.so", source, "-l:libcuda.so.1")})
    assert links(environment).summary == "e/e.so needs the symbol driver_of_mine, which nothing defines"


def test_two_editions_of_a_cuda_library_under_one_name_are_found(environment: Environment, workshop: Workshop) -> None:
    for number, name in enumerate(("one", "two")):
        cudart = workshop.library("libcudart.so.13", f"int cudaMalloc(void) {{ return {number}; }}")
        source = MODULE.format(name=name) + "int cudaMalloc(void); int f(void) { return cudaMalloc(); }"
        module = workshop.library(f"{name}.so", source, "-l:libcudart.so.13", "-Wl,-rpath,$ORIGIN")
        environment.install(name, {f"{name}/{name}.so": module, f"{name}/libcudart.so.13": cudart})
        outcome = links(environment).outcome
        assert outcome == ("passed" if number == 0 else "failed")
    assert links(environment).summary.startswith(
        "libcudart.so.13 is there in 2 editions, and whichever is loaded first"
    )


def test_an_rpath_serves_what_a_needed_library_needs_and_a_runpath_does_not(tmp_path: Path, workshop: Workshop) -> None:
    workshop.library("libleaf.so", "int leaf(void) { return 1; }")
    workshop.library("libmid.so", "int leaf(void); int mid(void) { return leaf(); }", "-l:libleaf.so")
    root = "int mid(void); int root(void) { return mid(); }"
    for tags, missing in (("--disable-new-dtags", {}), ("--enable-new-dtags", {"libleaf.so": "libmid.so"})):
        name = f"root{tags}.so"
        workshop.library(name, root, "-l:libmid.so", f"-Wl,{tags},-rpath,$ORIGIN")
        library = library_at(workshop.folder / name)
        assert library is not None
        assert closure(Loader(cache=tmp_path / "none", search=""), [library], {})[1] == missing, tags


def test_symbols_and_versions_of_a_library_are_read(workshop: Workshop) -> None:
    (workshop.folder / "map").write_text("V1 { global: old; local: *; }; V2 { global: new; } V1;\n")
    source = "int old(void) { return 1; } int new(void) { return 2; } int hidden(void) { return 3; }"
    workshop.library("libv.so", source, f"-Wl,--version-script={workshop.folder / 'map'}")
    workshop.library("user.so", "int new(void); int use(void) { return new(); }", "-l:libv.so")
    with open_elf(workshop.folder / "libv.so") as image:
        given = image.symbols()
    assert {"old", "new"} <= given.defined
    assert "hidden" not in given.defined
    assert given.versions == {"libv.so", "V1", "V2"}
    with open_elf(workshop.folder / "user.so") as image:
        taken = image.symbols()
    assert ("libv.so", "V2") in taken.needed_versions
    assert "new" in taken.undefined
