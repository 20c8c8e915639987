"""The static checks: the real probe in a small virtual environment, and the sentence for each thing that is wrong."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
import venv
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import builder
from builder.engine import ContainerRun, Exit
from builder.fatbin import needed_code
from builder.recipe.model import Serve
from builder.recipe.targets import find_target
from builder.store import Store
from builder.verify.known import Known
from builder.verify.place import FOLDER, InImage
from builder.verify.probe.files import Distribution, RecordedFile, SeenFile, facts_of, recall
from builder.verify.static import static_checks
from tests.fakes import FakeEngine
from tests.wheels import record_line

if TYPE_CHECKING:
    from builder.verify.verdict import Check

FATBINS = Path(__file__).parents[1] / "cases" / "fatbin"


class Environment:
    """A virtual environment that plays the image: `install` unpacks, `check` runs the static checks in it."""

    def __init__(self, folder: Path, store: Store | None = None) -> None:
        self.folder = folder
        self.store = store or Store(folder / "store")
        self.locked: dict[str, str] = {}
        venv.create(folder / "venv", symlinks=True)
        self.site = next((folder / "venv" / "lib").glob("python3*/site-packages"))

    def install(
        self,
        name: str,
        files: dict[str, bytes],
        *,
        locked: str | None = "1.0",
        site: Path | None = None,
        requires: tuple[str, ...] = (),
        algorithm: str = "sha256",
    ) -> None:
        """Install version 1.0 of a distribution and write a version of it into the lock."""
        place, info = site or self.site, f"{name}-1.0.dist-info"
        metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n"
        metadata += "".join(f"Requires-Dist: {requirement}\n" for requirement in requires)
        files = {**files, f"{info}/METADATA": metadata.encode()}
        record = "".join(record_line(path, data, algorithm) for path, data in files.items())
        record += f"{info}/RECORD,,\n"
        for path, data in {**files, f"{info}/RECORD": record.encode()}.items():
            (place / path).parent.mkdir(parents=True, exist_ok=True)
            (place / path).write_bytes(data)
        if locked is not None:
            self.locked[name] = locked

    def check(self, **changes: Any) -> dict[str, Check]:
        """Return the checks by name, for a 12.0 GPU."""
        self.engine = FakeEngine(answer=self._run)
        asked: dict[str, Any] = {
            "target": find_target("rtx-pro-6000"),
            "locked": tuple(self.locked.items()),
            "built": (),
            "stack": (),
            "timeout": 60.0,
        }
        place = InImage(engine=self.engine, store=self.store, image="sha256:1", memory=1 << 30)
        return {check.name: check for check in static_checks(place, **{**asked, **changes})}

    def _run(self, job: ContainerRun) -> Exit:
        seen = self.folder / "mounted"
        for mount in job.mounts:
            place = seen / mount.target.lstrip("/")
            place.parent.mkdir(parents=True, exist_ok=True)
            place.unlink(missing_ok=True)
            place.symlink_to(mount.source)
        python, *arguments = (f"{seen}{FOLDER}" if part == FOLDER else part for part in job.command)
        done = subprocess.run(
            [str(self.folder / "venv" / "bin" / python), *arguments],
            env={**os.environ, "PYTHONPATH": str(Path(builder.__file__).parents[1])},
            cwd=self.folder,
            capture_output=True,
            check=False,
        )
        self.last = Exit(code=done.returncode, stdout=done.stdout, stderr=done.stderr)
        return self.last


@pytest.fixture(scope="session")
def players(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A store that keeps the compiled libraries of the pretended GPU from test to test."""
    return Store(tmp_path_factory.mktemp("players"))


@pytest.fixture
def environment(tmp_path: Path, players: Store) -> Environment:
    return Environment(tmp_path, players)


def fatbin(name: str) -> bytes:
    return (FATBINS / f"{name}.so").read_bytes()


def test_a_good_stack_passes_with_its_figures(environment: Environment) -> None:
    environment.install("torch", {"torch/__init__.py": b"", "torch/lib/libtorch_cuda.so": fatbin("mixed")})
    environment.install(
        "my_kernels", {"my_kernels/__init__.py": b"import torch\n", "my_kernels/k.so": fatbin("sm_120a")}
    )
    checks = environment.check(built=("my-kernels",), stack=("torch", "my-kernels"))
    assert [(check.name, check.outcome) for check in checks.values()] == [
        ("static.installed", "passed"),
        ("static.requirements", "passed"),
        ("static.links", "passed"),
        ("static.device-code", "passed"),
        ("static.imports", "passed"),
    ]
    assert checks["static.installed"].figures == {
        "distributions": 2,
        "files": 8,
        "overlaid": 0,
        "recalled": 0,
        "megabytes": 0,
        "outside": 0,
        "problems": 0,
    }
    assert checks["static.device-code"].summary == "2 of 2 libraries with device code run on rtx-pro-6000 (12.0)"
    assert checks["static.device-code"].evidence == (
        "my_kernels/k.so: 1 sm_120a",
        "torch/lib/libtorch_cuda.so: 1 sm_90a, 1 sm_100f, 1 sm_120f, 1 compute_120f",
    )
    assert checks["static.imports"].figures == {"packages": 2, "modules": 2, "failed": 0}


def test_the_probe_gets_its_request_read_only_and_the_limits(environment: Environment) -> None:
    environment.check()
    (job,) = environment.engine.runs
    assert (job.memory, job.timeout, job.read_only_root) == (1 << 30, 60.0, True)
    assert all(mount.read_only for mount in job.mounts)


def installed_but(environment: Environment, change: str) -> str:
    """Install two distributions with one thing wrong, and return the summary of the failed check."""
    environment.install("a", {"a.py": b"x = 1\n"}, locked="1.1" if change == "version" else "1.0")
    environment.install("b", {"b.py": b"y = 1\n"}, locked=None if change == "extra" else "1.0")
    if change == "missing":
        environment.locked["c"] = "2.0"
    if change == "edited":
        (environment.site / "a.py").write_bytes(b"x = 2\n")
    if change == "removed":
        (environment.site / "a.py").unlink()
    if change == "no RECORD":
        (environment.site / "a-1.0.dist-info" / "RECORD").unlink()
    if change == "twice":
        (environment.site / "a-0.9.dist-info").mkdir()
        (environment.site / "a-0.9.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: a\nVersion: 0.9\n")
        (environment.site / "a-0.9.dist-info" / "RECORD").touch()
    check = environment.check()["static.installed"]
    assert check.outcome == "failed"
    assert check.figures["problems"] == 1
    return check.summary


@pytest.mark.parametrize(
    ("change", "summary"),
    [
        ("version", "a 1.0 is installed, 1.1 is locked"),
        ("extra", "b 1.0 is installed and not locked"),
        ("missing", "c 2.0 is locked and not installed"),
        ("edited", "a 1.0: a.py: not the bytes that its wheel recorded"),
        ("removed", "a 1.0: a.py: missing"),
        ("no RECORD", "a 1.0: no RECORD: nothing proves its files"),
        ("twice", "a is installed in several versions: 0.9, 1.0"),
    ],
)
def test_each_difference_from_the_lock_is_named(environment: Environment, change: str, summary: str) -> None:
    assert installed_but(environment, change) == summary


@pytest.mark.parametrize("algorithm", ["sha256", "sha384", "sha512"])
def test_every_strong_hash_of_a_record_is_compared(environment: Environment, algorithm: str) -> None:
    environment.install("a", {"a.py": b"x = 1\n"}, algorithm=algorithm)
    assert environment.check()["static.installed"].outcome == "passed"
    (environment.site / "a.py").write_bytes(b"x = 2\n")
    assert environment.check()["static.installed"].summary == "a 1.0: a.py: not the bytes that its wheel recorded"


def test_two_records_may_have_hashes_of_two_kinds(environment: Environment) -> None:
    environment.install("base", {"a.py": b"x = 1\n"})
    environment.install("upper", {"a.py": b"x = 2\n"}, requires=("base",), algorithm="sha512")
    installed = environment.check()["static.installed"]
    assert (installed.outcome, installed.figures["overlaid"]) == ("passed", 1)


@pytest.mark.parametrize(
    ("path", "outcome"),
    [
        ("base-1.0.dist-info/extra.txt", "failed"),
        ("other/_vendor/base-1.0.dist-info/METADATA", "passed"),
        ("upper-1.0.dist-info/extra.txt", "passed"),
    ],
)
def test_what_a_wheel_says_of_itself_no_other_may_change(environment: Environment, path: str, outcome: str) -> None:
    environment.install("base", {path: b"1"})
    environment.install("upper", {path: b"2"}, requires=("base",))
    assert environment.check()["static.installed"].outcome == outcome


def test_a_file_may_be_that_of_a_distribution_which_requires_its_own(environment: Environment) -> None:
    script = "../../../bin/tool"
    environment.install("base", {"k.so": fatbin("sm_90a"), "a.py": b"x = 1\n", script: b"1"})
    environment.install("between", {}, requires=("base; python_version >= '3'",))
    environment.install("upper", {"k.so": fatbin("sm_120a"), "a.py": b"x = 2\n", script: b"2"}, requires=("between",))
    checks = environment.check()
    installed = checks["static.installed"]
    assert installed.outcome == "passed"
    assert (installed.figures["overlaid"], installed.figures["problems"]) == (3, 0)
    assert installed.summary.endswith("those that the wheels recorded, but for 3 in whose place a dependent's lie")
    assert installed.evidence == ("notice: 3 files of base are those of upper, which requires it",)
    assert checks["static.device-code"].summary == "1 of 1 libraries with device code run on rtx-pro-6000 (12.0)"


@pytest.mark.parametrize(
    "requires",
    [
        {},
        {"upper": "base; sys_platform == 'win32'"},
        {"upper": "base; extra == 'more'"},
        {"upper": "base", "base": "upper"},
        {"base": "upper"},
    ],
)
def test_a_file_may_not_be_that_of_any_other_distribution(environment: Environment, requires: dict[str, str]) -> None:
    for name, data in (("base", b"x = 1\n"), ("upper", b"x = 2\n")):
        environment.install(name, {"a.py": data}, requires=tuple(filter(None, [requires.get(name)])))
    installed = environment.check()["static.installed"]
    assert (installed.outcome, installed.figures["problems"]) == ("failed", 1)
    assert installed.summary == (
        "base 1.0: a.py: not the bytes that its wheel recorded, but those of upper, which may not lie over it"
    )


def test_an_extra_counts_where_the_recipe_asks_for_it(environment: Environment) -> None:
    environment.install("base", {"a.py": b"x = 1\n"})
    environment.install("upper", {"a.py": b"x = 2\n"}, requires=("base; extra == 'more'",))
    assert environment.check(asked=("upper[more]",))["static.installed"].figures["overlaid"] == 1


def test_a_file_that_agrees_with_neither_record_is_named_with_both(environment: Environment) -> None:
    environment.install("base", {"a.py": b"x = 1\n"})
    environment.install("upper", {"a.py": b"x = 2\n"}, requires=("base",))
    (environment.site / "a.py").write_bytes(b"x = 3\n")
    assert environment.check()["static.installed"].evidence == (
        "base 1.0: a.py: not the bytes that its wheel recorded",
        "upper 1.0: a.py: not the bytes that its wheel recorded",
    )


def test_the_lower_file_in_the_place_of_the_upper_one_is_named(environment: Environment) -> None:
    environment.install("upper", {"a.py": b"x = 2\n"}, requires=("base",))
    environment.install("base", {"a.py": b"x = 1\n"})
    assert environment.check()["static.installed"].summary == (
        "upper 1.0: a.py: not the bytes that its wheel recorded, but those of base, which may not lie over it"
    )


def test_what_a_wheel_says_of_itself_is_nobody_elses(environment: Environment) -> None:
    environment.install("base", {"base-1.0.dist-info/top_level.txt": b"base\n"})
    environment.install("upper", {"base-1.0.dist-info/top_level.txt": b"upper\n"}, requires=("base",))
    summary = environment.check()["static.installed"].summary
    assert summary.endswith("but those of upper, which may not lie over it")


def test_versions_that_are_spelled_differently_are_equal(environment: Environment) -> None:
    environment.install("a", {"a.py": b""}, locked="1.0.0")
    assert environment.check()["static.installed"].outcome == "passed"


def test_distributions_of_the_base_are_counted_and_not_judged(environment: Environment, tmp_path: Path) -> None:
    base = tmp_path / "dist-packages"
    environment.install("a", {"a.py": b""})
    environment.install("a", {"a.py": b"other"}, site=base)
    environment.install("base-tool", {"base_tool.py": b""}, locked=None, site=base)
    (environment.site / "base.pth").write_text(f"{base}\n")
    check = environment.check()["static.installed"]
    assert (check.outcome, check.figures["distributions"], check.figures["outside"]) == ("passed", 1, 2)


def test_a_compiled_package_without_code_for_the_target_fails(environment: Environment) -> None:
    environment.install("nvfp4-kernels", {"nvfp4_kernels/libnvfp4.so": fatbin("sm_90a")})
    check = environment.check(built=("nvfp4_kernels",))["static.device-code"]
    assert check.outcome == "failed"
    assert check.summary == (
        "nvfp4_kernels/libnvfp4.so carries sm_90a only; "
        "the target rtx-pro-6000 (12.0) needs sm_120, sm_120a/f or PTX <= 12.0"
    )
    assert check.evidence == (check.summary, "nvfp4_kernels/libnvfp4.so: 1 sm_90a")


def test_a_compiled_package_needs_one_library_that_runs_not_all(environment: Environment) -> None:
    environment.install("kernels", {"kernels/old.so": fatbin("sm_90a"), "kernels/new.so": fatbin("sm_120")})
    check = environment.check(built=("kernels",))["static.device-code"]
    assert (check.outcome, check.figures["without"]) == ("passed", 1)
    assert check.evidence[0] == "warning: kernels/old.so carries sm_90a only"


def test_a_library_of_others_without_code_for_the_target_is_a_warning(environment: Environment) -> None:
    environment.install(
        "vendor", {"vendor/lib/libx.so.2": fatbin("sm_100f"), "vendor/lib/libjit.so": fatbin("compute_90")}
    )
    check = environment.check()["static.device-code"]
    assert (check.outcome, check.summary) == ("passed", "1 of 2 libraries with device code run on rtx-pro-6000 (12.0)")
    assert check.figures == {"libraries": 2, "machine-code": 0, "ptx-only": 1, "without": 1, "trapping": 0}
    assert check.evidence == (
        "warning: vendor/lib/libx.so.2 carries sm_100f only",
        "warning: vendor/lib/libjit.so carries compute_90 only: its PTX is compiled at first use",
    )


def test_the_cubins_of_a_package_are_one_line(environment: Environment) -> None:
    ptx = b".version 8.7\n.target sm_%s\n.address_size 64\n"
    files = {f"cubins/{index}.ptx": ptx % arch for index, arch in enumerate((b"100a", b"100a", b"103a"))}
    environment.install("cubins", files)
    check = environment.check()["static.device-code"]
    assert (check.outcome, check.figures["without"]) == ("passed", 1)
    assert check.evidence == ("warning: cubins/ (3 cubins and PTX files) carries compute_100a, compute_103a only",)
    environment.install("more", {"more/k.ptx": ptx % b"90"})
    assert environment.check(driver_cuda="12.8")["static.device-code"].figures["ptx-only"] == 1
    assert environment.check(driver_cuda="12.7")["static.device-code"].figures["ptx-only"] == 0


def test_torch_must_carry_its_kernels_for_the_target(environment: Environment) -> None:
    environment.install(
        "torch", {"torch/lib/libtorch_cuda.so": fatbin("sm_90a"), "torch/lib/libx.so": fatbin("sm_120")}
    )
    assert environment.check()["static.device-code"].summary.startswith(
        "torch/lib/libtorch_cuda.so carries sm_90a only; "
    )


def test_torch_without_cuda_is_no_stack_for_a_gpu(environment: Environment) -> None:
    environment.install("torch", {"torch/__init__.py": b""})
    check = environment.check()["static.device-code"]
    assert (check.outcome, check.summary) == ("failed", "torch is a build without CUDA: it has no libtorch_cuda.so")


def test_ptx_that_is_newer_than_the_driver_is_no_code(environment: Environment) -> None:
    environment.install("kernels", {"kernels/k.so": fatbin("compute_90")})
    assert environment.check(built=("kernels",), driver_cuda="13.1")["static.device-code"].outcome == "passed"
    assert environment.check(built=("kernels",), driver_cuda="13.0")["static.device-code"].outcome == "failed"


def test_a_damaged_library_of_a_compiled_package_is_named(environment: Environment) -> None:
    environment.install("kernels", {"kernels/k.so": fatbin("sm_120")[:9000]})
    summary = environment.check(built=("kernels",))["static.device-code"].summary
    assert summary.startswith("kernels/k.so cannot be read (")


@pytest.mark.parametrize(
    ("capability", "text"),
    [
        ("8.9", "sm_80 to sm_89 or PTX <= 8.9"),
        ("9.0", "sm_90, sm_90a or PTX <= 9.0"),
        ("12.1", "sm_120 to sm_121, sm_121a/f or PTX <= 12.1"),
    ],
)
def test_the_needed_code_is_that_of_the_generation(capability: str, text: str) -> None:
    assert needed_code(capability) == text


@pytest.mark.parametrize(
    ("code", "summary"),
    [
        (b"raise ImportError('undefined symbol: x')\n", "import a: ImportError: undefined symbol: x"),
        (b"import os\nos.abort()\n", "import a: ended by SIGABRT"),
        (b"import os\nos._exit(3)\n", "import a: exit code 3"),
        (b"import time\ntime.sleep(60)\n", "import a: not done after 1 s"),
    ],
)
def test_each_way_that_an_import_fails_is_named(environment: Environment, code: bytes, summary: str) -> None:
    environment.install("a", {"a.py": code})
    check = environment.check(stack=("a",), timeout=4.0)["static.imports"]
    assert (check.outcome, check.summary) == ("failed", summary)


def test_the_module_that_fails_is_named_among_those_of_its_distribution(environment: Environment) -> None:
    files = {"a.py": b"print('ready')\n", "extra/__init__.py": b"import absent\n", "_private.py": b"boom\n"}
    environment.install("a", {**files, "tests/__init__.py": b"boom\n", "data/x.txt": b"", "space/sub/__init__.py": b""})
    check = environment.check(stack=("a",))["static.imports"]
    assert check.summary == "import extra: ModuleNotFoundError: No module named 'absent'"
    assert check.figures == {"packages": 1, "modules": 2, "failed": 1}


def test_an_import_that_only_a_driver_could_cure_is_skipped_and_not_passed(environment: Environment) -> None:
    message = "libcuda.so.1: cannot open shared object file: No such file or directory"
    environment.install("a", {"a.py": f"raise ImportError({message!r})\n".encode()})
    environment.install("b", {"b.py": b"1 / 0\n"})
    check = environment.check(stack=("a",))["static.imports"]
    assert (check.outcome, message in check.summary) == ("skipped", True)
    check = environment.check(stack=("a", "b"))["static.imports"]
    assert (check.outcome, check.summary) == ("failed", "import b: ZeroDivisionError: division by zero (and 1 more)")


ASKS_THE_DRIVER = """
import ctypes
code = ctypes.CDLL("libcuda.so.1").cuInit(0)
assert code == {code}, f"cuInit answers {{code}}"
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_packages_are_imported_with_a_drivers_library_and_on_a_pretended_gpu(environment: Environment) -> None:
    environment.install("a", {"a.py": ASKS_THE_DRIVER.format(code=0).encode()})
    check = environment.check(stack=("a",))["static.imports"]
    assert (check.outcome, check.summary) == ("passed", "all 1 modules of 1 direct packages import")
    assert check.evidence == ("notice: only on a GPU: import a: AssertionError: cuInit answers 100",)
    environment.install("b", {"b.py": ASKS_THE_DRIVER.format(code=100).encode()})
    assert environment.check(stack=("a", "b"))["static.imports"].summary == (
        "import b on a pretended NVIDIA RTX PRO 6000 Blackwell Workstation Edition: AssertionError: cuInit answers 0"
    )


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_what_the_server_imports_must_import_on_the_pretended_gpu_with_the_recipes_variables(
    environment: Environment,
) -> None:
    scheduler = ASKS_THE_DRIVER.format(code=0).encode() + b"import os\nassert 'HOME_OF_CUDA' in os.environ, 'no home'\n"
    files = {"sglang/__init__.py": b"", "sglang/launch_server.py": b"", "sglang/srt/managers/scheduler.py": scheduler}
    environment.install("sglang", files)
    check = environment.check(stack=("sglang",), serve=Serve(engine="sglang"))["static.imports"]
    card = "NVIDIA RTX PRO 6000 Blackwell Workstation Edition"
    assert check.outcome == "failed"
    assert check.summary == f"import sglang.srt.managers.scheduler on a pretended {card}: AssertionError: no home"
    serve = Serve(engine="sglang", env={"HOME_OF_CUDA": "/"})
    check = environment.check(stack=("sglang",), serve=serve)["static.imports"]
    assert (check.outcome, check.summary) == (
        "passed",
        "all 1 modules of 1 direct packages import, and the server's own on a pretended GPU",
    )


KNOWN = "sglang knows all options of `serve`"
SERVER_ARGS = b"""
class ServerArgs:
    @staticmethod
    def add_cli_args(parser):
        parser.add_argument("--model-path", required=True)
        parser.add_argument("--tp", type=int)
        parser.add_argument("--kv-cache-dtype", choices=["auto", "bf16"])
        parser.add_argument("--trust-remote-code", action="store_true")
"""


@pytest.mark.parametrize(
    ("args", "outcome", "summary"),
    [
        ({"tp": 8, "trust-remote-code": True}, "passed", "sglang knows all options of `serve`"),
        (
            {"tp": 8, "trust-remote-code": False, "kv-cache-dtype": "bf16"},
            "passed",
            "sglang knows all options of `serve`",
        ),
        ({"kv-cache-dtyp": "bf16", "tp": 8}, "passed", "sglang knows all options of `serve`"),
        (
            {"kv-cash-dtype": "bf16"},
            "failed",
            "this sglang does not know --kv-cash-dtype (did you mean --kv-cache-dtype?)",
        ),
        ({"zzz": True}, "failed", "this sglang does not know --zzz"),
        (
            {"kv-cache-dtype": "fp7"},
            "failed",
            "this sglang refuses: argument --kv-cache-dtype: invalid choice: 'fp7' (choose from 'auto', 'bf16')",
        ),
        ({"tp": "many"}, "failed", "this sglang refuses: argument --tp: invalid int value: 'many'"),
    ],
)
def test_the_servers_own_parser_judges_the_options(
    environment: Environment, args: dict[str, Any], outcome: str, summary: str
) -> None:
    environment.install("sglang", {"sglang/srt/server_args.py": SERVER_ARGS})
    check = environment.check(serve=Serve(engine="sglang", model="m", args=args))["static.serve"]
    assert check.outcome == outcome
    assert check.summary.replace("(choose from auto, bf16)", "(choose from 'auto', 'bf16')") == summary


def test_a_server_that_cannot_be_asked_proves_nothing(environment: Environment) -> None:
    check = environment.check(serve=Serve(engine="sglang"))["static.serve"]
    assert (check.outcome, check.summary) == (
        "skipped",
        "sglang could not be asked for its options: ModuleNotFoundError: No module named 'sglang'",
    )


def test_without_a_server_there_is_no_check_of_it(environment: Environment) -> None:
    assert "static.serve" not in environment.check()
    assert "static.serve" not in environment.check(serve=Serve(engine="transformers"))


def test_a_direct_package_that_is_not_installed_cannot_be_imported(environment: Environment) -> None:
    environment.install("a", {"a.py": b""})
    assert environment.check(stack=("a", "b"))["static.imports"].summary == "import b: not installed"


def test_modules_are_imported_as_a_user_imports_them(environment: Environment) -> None:
    environment.install("a", {"a.py": b"import sys\nassert 'builder' not in sys.modules\nimport builder\n"})
    assert environment.check(stack=("a",))["static.imports"].summary == (
        "import a: ModuleNotFoundError: No module named 'builder'"
    )


def test_without_a_report_all_are_skipped(tmp_path: Path) -> None:
    ended = Exit(code=127, stderr=b"python3: not found\n")
    checks = static_checks(
        InImage(engine=FakeEngine(answer=lambda _job: ended), store=Store(tmp_path), image="sha256:1", memory=1 << 30),
        target=find_target("rtx-pro-6000"),
        locked=(),
        built=(),
        stack=(),
        timeout=60.0,
    )
    assert {(check.outcome, check.summary, check.evidence) for check in checks} == {
        ("skipped", "the probe gave no report: exit code 127", ("python3: not found",))
    }
    assert len(checks) == 5


def test_the_probe_needs_only_the_standard_library() -> None:
    code = "import sys, builder.verify.probe.static; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-S", "-c", code], capture_output=True, text=True, check=True, cwd=FATBINS.parents[2]
    )
    foreign = {name.split(".")[0] for name in done.stdout.split()} - sys.stdlib_module_names
    assert foreign - {"__main__"} == {"builder"}
    ours = {name for name in done.stdout.split() if name.startswith("builder")}
    assert ours <= {
        "builder",
        "builder.elf",
        "builder.fatbin",
        "builder.verify",
        *(
            f"builder.verify.probe{name}"
            for name in ("", ".static", ".files", ".imports", ".linking", ".loader", ".options", ".pretence", ".traps")
        ),
    }


# Layers that were seen before

LAYER, OTHER_LAYER = f"sha256:{'1' * 64}", f"sha256:{'2' * 64}"


@pytest.fixture
def seen(environment: Environment) -> Environment:
    """An image whose layer of `torch` was looked at before, in a store of its own."""
    environment.store = Store(environment.folder / "own-store")
    environment.install("torch", {"torch/__init__.py": b"V = 1\n", "torch/lib/libtorch_cuda.so": fatbin("mixed")})
    environment.check(places={"torch": LAYER})
    return environment


def swap(environment: Environment, data: bytes) -> None:
    """Write other bytes into a file of torch."""
    (environment.site / "torch" / "__init__.py").write_bytes(data)


def test_a_layer_that_was_seen_before_is_not_read_again_and_gives_the_same_checks(seen: Environment) -> None:
    first, again = seen.check(places={"torch": OTHER_LAYER}), seen.check(places={"torch": LAYER})
    assert (first["static.installed"].figures["recalled"], again["static.installed"].figures["recalled"]) == (0, 4)
    assert b"reading 0 files of 0 distributions; of 1 all is known" in seen.last.stderr

    def told(checks: dict[str, Check]) -> list[Check]:
        return [check.model_copy(update={"figures": {**check.figures, "recalled": None}}) for check in checks.values()]

    assert told(again) == told(first)


def test_facts_of_thousands_of_cubins_leave_room_in_the_report(environment: Environment) -> None:
    cubins = {f"cubins/{'of_a_long_name_' * 8}{number}.cubin": fatbin("sm_120a") for number in range(300)}
    environment.install("cubins", {**cubins, "cubins/k.so": fatbin("sm_120a")})
    environment.check()
    report = json.loads(environment.last.stdout.splitlines()[-1])
    assert len(report["facts"]["cubins"]) < 100 * len(cubins)


@pytest.mark.parametrize(("unread", "kept"), [(0, True), (1, False)])
def test_what_this_image_could_not_unpack_is_looked_at_in_every_image(tmp_path: Path, unread: int, kept: bool) -> None:
    file = RecordedFile("torch", tmp_path, "k.so", None)
    one = Distribution(name="torch", version="1.0", folder=tmp_path, recorded=(file,), digest="0")
    seen = SeenFile(file=file, is_elf=True, library={"codes": {}, "unread": unread})
    assert (facts_of(one, [seen]) is not None) == kept


def packed(text: bytes) -> str:
    """Return a text as facts are packed."""
    return base64.b64encode(zlib.compress(text)).decode()


@pytest.mark.parametrize(
    "facts",
    [
        "damaged",
        "é",
        packed(b"\xff"),
        packed(b"{"),
        packed(b"[]"),
        packed(b'{"record": "0"}'),
        packed(b'{"record": "0", "files": []}'),
        packed(b'{"record": "0", "files": {"a.py": [true]}}'),
        packed(b'{"record": "0", "files": {"a.py": null}}'),
        packed(b'{"record": "0", "files": {"a.py": [true, false, null]}}')[:-8],
    ],
)
def test_facts_that_cannot_be_read_are_none(tmp_path: Path, facts: str) -> None:
    (tmp_path / "a.py").touch()
    file = RecordedFile("torch", tmp_path, "a.py", None)
    one = Distribution(name="torch", version="1.0", folder=tmp_path, recorded=(file,), digest="0")
    assert recall(one, facts) is None
    assert recall(one, packed(b'{"record": "0", "files": {}}')) == [SeenFile(file=file, recalled=True)]


def test_a_layer_whose_facts_are_damaged_is_read_again(seen: Environment) -> None:
    known = Known(store=seen.store, places={"torch": LAYER})
    record = seen.store.result("read", LAYER.removeprefix("sha256:")) or {}
    [gpu] = record["gpus"]
    known.keep({"torch": "damaged"}, gpu)
    figures = [seen.check(places={"torch": LAYER})["static.installed"].figures["recalled"] for _ in range(2)]
    assert figures == [0, 4]


@pytest.mark.parametrize("data", [b"V = 10\n", b""])
def test_a_file_of_another_size_is_found_in_a_layer_that_was_seen_before(seen: Environment, data: bytes) -> None:
    swap(seen, data)
    check = seen.check(places={"torch": LAYER})["static.installed"]
    assert check.summary == "torch 1.0: torch/__init__.py: not the bytes that its wheel recorded"


def test_a_missing_file_is_found_in_a_layer_that_was_seen_before(seen: Environment) -> None:
    (seen.site / "torch" / "lib" / "libtorch_cuda.so").unlink()
    check = seen.check(places={"torch": LAYER})["static.installed"]
    assert check.summary == "torch 1.0: torch/lib/libtorch_cuda.so: missing"


@pytest.mark.parametrize(
    "changes",
    [
        {"places": {"torch": OTHER_LAYER}},
        {"places": {}},
        {"places": {"torch": LAYER}, "again": True},
        {"places": {"torch": LAYER}, "target": find_target("h200")},
        {"places": {"torch": LAYER}, "driver_cuda": "13.0"},
    ],
    ids=["another layer", "no known layer", "asked for again", "another GPU", "another driver"],
)
def test_every_byte_is_read_of(seen: Environment, changes: dict[str, Any]) -> None:
    swap(seen, b"V = 2\n")
    check = seen.check(**changes)["static.installed"]
    assert check.summary == "torch 1.0: torch/__init__.py: not the bytes that its wheel recorded"


def test_another_record_in_a_layer_is_read(seen: Environment) -> None:
    seen.install("torch", {"torch/__init__.py": b"V = 2\n", "torch/lib/libtorch_cuda.so": fatbin("mixed")})
    swap(seen, b"V = 3\n")
    assert seen.check(places={"torch": LAYER})["static.installed"].outcome == "failed"


def test_what_was_not_as_recorded_is_read_in_every_image(seen: Environment) -> None:
    swap(seen, b"V = 2\n")
    summaries = [seen.check(places={"torch": OTHER_LAYER})["static.installed"].summary for _ in range(2)]
    assert summaries == ["torch 1.0: torch/__init__.py: not the bytes that its wheel recorded"] * 2


def test_what_another_distribution_lies_over_is_read_in_every_image(environment: Environment) -> None:
    places = {"base": LAYER, "upper": OTHER_LAYER}
    environment.install("base", {"a.py": b"x = 1\n"})
    environment.install("upper", {"a.py": b"x = 2\n"}, requires=("base",))
    seen = [environment.check(places=places)["static.installed"].figures for _ in range(2)]
    assert [(figures["overlaid"], figures["recalled"]) for figures in seen] == [(1, 0), (1, 3)]
    (environment.site / "a.py").write_bytes(b"x = 3\n")
    check = environment.check(places=places)["static.installed"]
    assert check.summary == "base 1.0: a.py: not the bytes that its wheel recorded"


def test_what_other_checks_saw_counts_for_nothing(seen: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("builder.verify.known.suite_digest", lambda: "other")
    assert seen.check(places={"torch": LAYER})["static.installed"].figures["recalled"] == 0
