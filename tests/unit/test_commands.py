"""The command line as a shell sees it: arguments in, exit code and text out."""

from __future__ import annotations

import errno
import json
import os
import pty
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click
import pytest

import builder
from builder.cli import COMMANDS, _hang_up, cli, command_path, run
from builder.commands.reference import REFERENCE_PATH, command_reference
from builder.console import Console
from builder.errors import EngineError, ExitCode, ResolveError, UsageError
from builder.machine import examine_machine
from builder.preflight.doctor import engine_disk
from builder.process import run as run_program
from builder.recipe.generated import GeneratedFile, stale_generated
from builder.settings import settings_from
from builder.store import Store
from builder.tools import Tools
from builder.verify.alone import smoke_reference
from tests.fakes import FACTS, FakeEngine

if TYPE_CHECKING:
    from collections.abc import Callable

    from builder.engine import EngineFacts
    from builder.process import Completed

PROJECT = Path(builder.__file__).parents[1]
QUICKSTART = "recipes/quickstart.yaml"
RECIPE = """\
version: 1
name: {gpu}
target: {{gpu: {gpu}}}
base: {{debian: trixie}}
python: "3.13"
stack: {{a: "1"}}
"""
SLOW = ("docker", "requests", "jinja2", "isal", "installer", "numpy", "pypi_simple", "rich", "builder.download")


@pytest.fixture(autouse=True)
def _in_project(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(PROJECT)
    monkeypatch.setenv("ENVBUILD_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere.sock")


def in_a_process(*arguments: str) -> tuple[int, str, set[str]]:
    """Run a command in a Python of its own; return its exit code, its output, and the modules that it has imported."""
    program = (
        "import sys\nfrom builder.cli import run\ncode = run(sys.argv[1:])\n"
        "print('\\n' + ' '.join(sys.modules))\nsys.exit(code)\n"
    )
    ended = run_program([sys.executable, "-c", program, *arguments], environment={"PYTHONPATH": str(PROJECT)})
    output, _, modules = ended.stdout.decode().rstrip().rpartition("\n")
    return ended.code, output, set(modules.split())


WAITING = """
import sys, time
from builder import cli
@cli.cli.command()
def wait():
    sys.stderr.write("ready\\n")
    sys.stderr.flush()
    time.sleep(60)
sys.argv = ["envbuild", "wait"]
cli.main()
"""


def test_a_terminal_that_is_closed_ends_a_command_as_ctrl_c_does() -> None:
    process, terminal = pty.fork()
    if process == 0:
        os.environ["PYTHONPATH"] = str(PROJECT)
        os.execv(sys.executable, [sys.executable, "-c", WAITING])
    seen = b""
    while b"ready" not in seen:
        seen += os.read(terminal, 1024)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == ExitCode.INTERRUPTED


@pytest.mark.parametrize("command", ["--help", "schema", "status --json", "diagnose --explain disk-full"])
def test_a_command_that_nobody_reads_ends_in_silence(command: str) -> None:
    program = "import sys; from builder.cli import main; sys.argv = ['envbuild', *sys.argv[1:]]; main()"
    ours, theirs = os.pipe()
    os.close(ours)
    try:
        ended = subprocess.run(
            [sys.executable, "-c", program, *command.split()],
            stdout=theirs,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(PROJECT)},
            check=False,
        )
    finally:
        os.close(theirs)
    assert (ended.returncode, ended.stderr) == (ExitCode.UNHEARD, b"")


def test_a_command_that_fails_beside_broken_findings_says_both(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENVBUILD_INDEX_URL", "nonsense")
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes" / "x.yaml").write_text(RECIPE.format(gpu="rtx-5090"))
    (tmp_path / "findings").mkdir()
    (tmp_path / "findings" / "own.yaml").write_text("findings: [")
    assert run(["lock", "--json", str(tmp_path / "recipes" / "x.yaml")]) == ResolveError.exit_code
    said = capsys.readouterr()
    assert "own.yaml:2:1: did not find expected node content" in said.err
    assert json.loads(said.out)["error"]["exit_code"] == ResolveError.exit_code


def test_diagnose_reads_the_findings_of_the_recipes_own_project(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "recipes").mkdir()
    recipe = tmp_path / "recipes" / "x.yaml"
    recipe.write_text(RECIPE.format(gpu="rtx-5090"))
    (tmp_path / "findings").mkdir()
    (tmp_path / "findings" / "own.yaml").write_text(
        "classes: {frobnicator-jammed: {title: the frobnicator jammed, about: it jams when it runs fast}}\n"
        "findings: [{name: frobnicator-jammed, class: frobnicator-jammed, cause: it jammed, confidence: 0.9,\n"
        "  all: [{lines: ['frobnicator jammed']}], remedy: run it slower}]\n"
    )
    (tmp_path / "log").write_text("RuntimeError: frobnicator jammed\n")
    assert run(["diagnose", "--recipe", str(recipe), str(tmp_path / "log")]) == ExitCode.DONE
    assert "frobnicator-jammed" in capsys.readouterr().out


def test_check_imports_nothing_that_it_does_not_need() -> None:
    code, _, modules = in_a_process("check", QUICKSTART, "--json")
    assert code == ExitCode.DONE
    assert "builder.lock.lockfile" in modules
    assert not modules.intersection(SLOW)


def test_the_road_imports_what_reads_logs_only_for_a_log() -> None:
    program = "import sys, builder.pipeline; print(*sys.modules)"
    ended = run_program([sys.executable, "-c", program], environment={"PYTHONPATH": str(PROJECT)})
    modules = set(ended.stdout.decode().split())
    assert "builder.diagnose.observe" in modules
    assert "numpy" not in modules


def test_help_imports_no_stage_of_the_road() -> None:
    code, output, modules = in_a_process("--help")
    assert code == ExitCode.DONE
    assert "Commands:" in output
    assert not modules.intersection((*SLOW, "pydantic", "yaml"))


def test_every_command_says_in_its_help_what_it_does() -> None:
    assert [command.name for command in COMMANDS if not command.help] == []
    assert {command.name for command in COMMANDS} == set(cli.commands)


def test_the_reference_page_is_what_the_commands_say() -> None:
    assert stale_generated([GeneratedFile(path=REFERENCE_PATH, text=command_reference(cli))], PROJECT) == ()


def test_the_reference_page_has_every_command_and_every_option() -> None:
    page = command_reference(cli)
    for command in COMMANDS:
        assert f"\n## envbuild {command.name}\n" in page
        section = page.split(f"\n## envbuild {command.name}\n")[1].split("\n## ")[0]
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                assert f"`{', '.join(parameter.opts)}" in section


def test_a_changed_command_makes_the_page_stale(tmp_path: Path) -> None:
    page = GeneratedFile(path=REFERENCE_PATH, text=command_reference(cli))
    assert stale_generated([page], tmp_path) == (REFERENCE_PATH,)
    (tmp_path / REFERENCE_PATH).parent.mkdir(parents=True)
    (tmp_path / REFERENCE_PATH).write_text(page.text.replace("--update-all", "--all"), encoding="utf-8")
    assert stale_generated([page], tmp_path) == (REFERENCE_PATH,)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["nonsense"], 2),
        (["completion", "tcsh"], 2),
        (["lock", QUICKSTART, "--check", "--update", "numpy"], 2),
        (["lock", QUICKSTART, "--update-all", "--update", "numpy"], 2),
        (["lock", QUICKSTART, "--update", "nmupy"], 2),
        (["explain", QUICKSTART, "nmupy"], 2),
        (["explain", "recipes/nowhere.yaml", "numpy"], 2),
        (["diff", "recipes/nowhere.yaml", QUICKSTART], 2),
        (["diff", QUICKSTART, "no/image:here"], 9),
        (["status", "--sizes"], 2),
        (["status", QUICKSTART, "--sizes"], 2),
        (["status", "--target", "rtx-5091"], 2),
        (["smoke", QUICKSTART, "--target", "rtx-5091"], 2),
        (["smoke", QUICKSTART, "--level", "statik"], 2),
        (["lock", QUICKSTART, "--check"], 0),
        (["diff", QUICKSTART, "lockfiles/quickstart"], 0),
    ],
)
def test_every_way_to_ask_ends_with_its_own_exit_code(
    arguments: list[str], code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == code
    if code:
        assert capsys.readouterr().err.strip()


def test_a_path_that_is_no_text_is_refused_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / os.fsdecode(b"p\xff") / "recipes"
    folder.mkdir(parents=True)
    (folder / "x.yaml").write_text(RECIPE.format(gpu="h200"), encoding="utf-8")
    monkeypatch.chdir(folder.parent)
    assert run(["lock", "recipes/x.yaml", "--json"]) == 2
    said = json.loads(capsys.readouterr().out)["error"]
    assert "has bytes that are not UTF-8" in said["message"]
    assert run(["check", "recipes/x.yaml"]) == 0


def test_a_failure_is_a_document_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", QUICKSTART, "nmupy", "--json"]) == 2
    said = json.loads(capsys.readouterr().out)["error"]
    assert (said["exit_code"], said["remedy"]) == (2, "did you mean numpy, sympy?")


def test_a_comparison_is_a_document(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["diff", QUICKSTART, "lockfiles/broken-unknown-model", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert {"kind": "changed", "name": "transformers"}.items() <= next(
        change for change in said["packages"] if change["name"] == "transformers"
    ).items()


def test_status_shows_the_recipes_of_one_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "recipes").mkdir()
    for gpu in ("h200", "rtx-5090"):
        (tmp_path / "recipes" / f"{gpu}.yaml").write_text(RECIPE.format(gpu=gpu), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert run(["status", "--target", "h200", "--json"]) == 0
    assert [row["recipe"] for row in json.loads(capsys.readouterr().out)] == ["h200"]
    assert run(["status", "--json"]) == 0
    assert [row["recipe"] for row in json.loads(capsys.readouterr().out)] == ["h200", "rtx-5090"]


@pytest.fixture
def completed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., list[str]]:
    def complete(*words: str) -> list[str]:
        monkeypatch.setenv("COMP_WORDS", " ".join(("envbuild", *words)))
        monkeypatch.setenv("COMP_CWORD", str(len(words)))
        monkeypatch.setenv("_ENVBUILD_COMPLETE", "bash_complete")
        with pytest.raises(SystemExit) as ended:
            run([])
        assert ended.value.code == 0
        return capsys.readouterr().out.split()

    return complete


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (("expl",), ["plain,explain"]),
        (("check", "recipes/qu"), [f"plain,{QUICKSTART}"]),
        (("diff", QUICKSTART, "recipes/qu"), [f"plain,{QUICKSTART}"]),
        (("explain", QUICKSTART, "tokeni"), ["plain,tokenizers"]),
        (("lock", QUICKSTART, "--update", "tokeni"), ["plain,tokenizers"]),
        (("explain", "recipes/nowhere.yaml", "tokeni"), []),
        (("lock", "--update", "tokeni"), []),
        (("status", "--target", "rtx-pro-6000-m"), ["plain,rtx-pro-6000-max-q"]),
        (("check", "elsewhere/x"), ["file,elsewhere/x"]),
        (("wheels", "recipes/qu"), [f"plain,{QUICKSTART}"]),
        (("search", "recipes/qu"), [f"plain,{QUICKSTART}"]),
        (("publish", "recipes/qu"), [f"plain,{QUICKSTART}"]),
        (("bisect", "recipes/qu"), [f"plain,{QUICKSTART}"]),
        (("bisect", "recipes/sm120-glm5.yaml", "sgl"), ["plain,sglang"]),
        (("diagnose", "--explain", "toolchain-too-old-f"), ["plain,toolchain-too-old-for-architecture"]),
        (("matrix", "run", "--cell", "no-such"), []),
        (("matrix", "run", "nowhere.yaml", "--cell", ""), []),
        (("report", "--mark"), ["plain,--markdown"]),
        (("verify", "--max"), ["plain,--max-age"]),
        (("promote", "--move"), ["plain,--move-back"]),
    ],
)
def test_a_shell_completes_commands_recipes_packages_and_gpus(
    words: tuple[str, ...], found: list[str], completed: Callable[..., list[str]]
) -> None:
    assert completed(*words) == found


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_each_shell_calls_envbuild_back(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert f"_ENVBUILD_COMPLETE={shell}_complete" in script
    assert "envbuild" in script


def test_diagnose_reads_a_log_and_gives_one_document(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "server.log"
    log.write_text("nvcc fatal   : Unsupported gpu architecture 'compute_120'\n", encoding="utf-8")
    assert run(["diagnose", "--json", str(log)]) == 0
    cause = json.loads(capsys.readouterr().out)["causes"][0]
    assert cause["class"] == "toolchain-too-old-for-architecture"
    assert cause["evidence"][0]["line"] == 1


def test_diagnose_without_a_log_asks_for_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["diagnose"]) == 2
    assert "which log?" in capsys.readouterr().err


def test_a_broken_recipe_is_a_row_and_hides_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes/a.yaml").write_text(RECIPE.format(gpu="h200"), encoding="utf-8")
    (tmp_path / "recipes/b.yaml").write_text("version: 2\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert run(["status", "--json"]) == 3
    rows = json.loads(capsys.readouterr().out)
    assert [(row["recipe"], row["result"]) for row in rows] == [("h200", "none"), ("b", "invalid")]
    assert "recipes/b.yaml:1:" in rows[1]["stale"]


def test_an_argument_that_is_missing_is_one_sentence_and_one_document(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["check", "--json"]) == 2
    seen = capsys.readouterr()
    assert json.loads(seen.out)["error"]["exit_code"] == 2
    assert "Missing argument 'RECIPE'" in seen.err
    assert "→ see `envbuild check --help`" in seen.err


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for folder in ("recipes", "lockfiles"):
        shutil.copytree(PROJECT / folder, tmp_path / folder)
    (tmp_path / "dockerfiles").write_text("a file", encoding="utf-8")
    assert run(["render", str(tmp_path / QUICKSTART)]) == 2
    assert f"{tmp_path / 'dockerfiles'}" in capsys.readouterr().err


def test_an_address_of_an_engine_that_is_none_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DOCKER_HOST", "tcp://:::")
    monkeypatch.setattr("builder.machine.reach_findings", lambda *_: ())
    assert run(["doctor"]) == 9
    assert "DOCKER_HOST=tcp://::: is no address" in capsys.readouterr().out


def test_closed_standard_streams_are_no_crash() -> None:
    program = [sys.executable, "-c", "from builder.cli import main; main()"]
    for arguments in ("status >&-", "gc <&- >&-", "diagnose - <&-"):
        ended = run_program(["sh", "-c", f'"$@" {arguments}', "sh", *program], cwd=PROJECT)
        assert "Traceback" not in ended.text
        assert ended.code in {0, 3}, ended.text


def smoked(*arguments: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    code = run(["smoke", *arguments])
    return code, capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "what is to be proven?"),
        (("image:1", "--python", sys.executable), "--python belongs to --here"),
        (("--here", "image:1"), "--here proves no image: image:1"),
        (("image:1", "--level", "static"), "--level static needs a recipe"),
        (("--here", "--target", "h200"), "--target is for a recipe's image"),
        (("--here", "--level", "target-decode"), "is not one of"),
    ],
)
def test_smoke_says_what_does_not_go_together(
    arguments: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, said = smoked(*arguments, capsys=capsys)
    assert code == 2
    assert words in said


def test_an_interpreter_without_torch_leaves_the_stack_unverified_and_the_verdict_in_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "verdict.json"
    code, said = smoked("--here", "--python", sys.executable, "--out", str(out), capsys=capsys)
    assert code == ExitCode.UNVERIFIED
    assert "unverified: cpu-decode: there is no torch" in said
    verdict = json.loads(out.read_text())
    assert (verdict["recipe"], verdict["image_id"], verdict["result"]) == ("here", "none", "unverified")


def test_the_interpreter_is_looked_for_on_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    code, said = smoked("--here", capsys=capsys)
    assert code == 2
    assert "no Python on the PATH has torch: there is none" in said


ENVBUILD = [sys.executable, "-c", "from builder.__main__ import main; main()"]


def as_a_process(*arguments: str, cwd: Path = PROJECT, **environment: str) -> Completed:
    """Run the whole program, as a shell does."""
    return run_program([*ENVBUILD, *arguments], cwd=cwd, environment={"PYTHONPATH": str(PROJECT), **environment})


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        (["bisect", "a"], "envbuild bisect"),
        (["diagnose"], "envbuild diagnose"),
        (["lock", QUICKSTART, "--check", "--update-all"], "envbuild lock"),
        (["matrix", "run", "--nonsense"], "envbuild matrix run"),
        (["nonsense"], "envbuild"),
        (["-v", "schema", "--write", "--check"], "envbuild schema"),
    ],
)
def test_a_wrong_line_points_to_the_help_of_its_own_command(
    arguments: list[str], command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == 2
    said = capsys.readouterr().err
    assert f"→ see `{command} --help`" in said or arguments == ["diagnose"]
    assert command_path(arguments) == command


@pytest.mark.parametrize("arguments", [[], ["matrix"]])
def test_a_line_that_asks_for_nothing_gets_the_help(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == 2
    said = capsys.readouterr()
    assert said.err.startswith("Usage: envbuild")
    assert said.out == ""


@pytest.mark.parametrize("encoding", ["latin-1", "ascii"])
def test_a_terminal_that_knows_few_characters_gets_the_same_answer(encoding: str, tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text("nvcc fatal   : Unsupported gpu architecture 'compute_120' → 日本\n", encoding="utf-8")
    ended = as_a_process("diagnose", str(log), PYTHONIOENCODING=encoding)
    assert ended.code == 0, ended.text
    assert "toolchain-too-old-for-architecture" in ended.text
    assert "compute_120' ? ??" in ended.text


def test_nobody_who_reads_on_is_no_crash() -> None:
    line = '"$@" status | head -1; echo "code ${PIPESTATUS[0]}"'
    ended = run_program(["bash", "-c", line, "bash", *ENVBUILD], cwd=PROJECT, environment={"PYTHONPATH": str(PROJECT)})
    assert "Traceback" not in ended.text
    assert ended.stdout.splitlines()[-1] in {b"code 0", b"code 141"}  # the pipe may hold the whole table
    closed = run_program(
        ["bash", "-c", '"$@" check recipes/nowhere.yaml 2> >(true); echo "code $?"', "bash", *ENVBUILD],
        cwd=PROJECT,
        environment={"PYTHONPATH": str(PROJECT)},
    )
    assert closed.stdout in {b"code 2\n", b"code 141\n"}


def test_an_interruption_while_the_program_is_loaded_ends_it_quietly() -> None:
    program = (
        "import os, signal, sys\n"
        "from builder import __main__ as begin\n"
        "class Slow:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'builder.cli':\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Slow())\n"
        "begin.main()\n"
    )
    ended = run_program([sys.executable, "-c", program], environment={"PYTHONPATH": str(PROJECT)})
    assert (ended.code, ended.text) == (130, "interrupted\n")


def test_an_interruption_is_a_document_like_every_other_end(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("builder.status.statuses_of", interrupt)
    assert run(["status", "--json"]) == 130
    said = json.loads(capsys.readouterr().out)["error"]
    assert {*said} == {"exit_code", "message", "remedy", "evidence"}
    assert said["remedy"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["smoke", QUICKSTART, "--out", "{}/file/verdict.json"],
        ["matrix", "run", "--output", "{}/file/report.json"],
        ["matrix", "github", "--output", "{}/file/out"],
        ["matrix", "github", "--report", "{}/file/out"],
        ["report", "matrix.yaml", "--html", "{}/file/page.html"],
        ["report", "matrix.yaml", "--markdown", "{}/file/page.md"],
        ["report", "matrix.yaml", "--junit", "{}/file/page.xml"],
        ["wheels", QUICKSTART, "--export", "{}/file/wheels"],
        ["wheels", QUICKSTART, "--index", "{}/file/wheels"],
        ["export", QUICKSTART, "--context", "{}/file/x"],
        ["export", QUICKSTART, "--wheels", "{}/file/x"],
        ["export", QUICKSTART, "--kit", "{}/file/x"],
        ["export", QUICKSTART, "--oci", "{}/file/x.tar"],
        ["export", QUICKSTART, "--apptainer", "{}/file/x.def"],
    ],
)
def test_a_place_that_cannot_be_written_is_refused_before_any_work(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    assert run([each.format(tmp_path) for each in arguments]) == 2
    said = capsys.readouterr().err
    assert f"cannot be written: {tmp_path}/file is no folder" in said
    assert not (tmp_path / "store").exists()


def test_a_lock_that_cannot_be_written_is_refused_before_it_is_resolved(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes" / "x.yaml").write_text(RECIPE.format(gpu="h200"), encoding="utf-8")
    (tmp_path / "lockfiles").symlink_to("nowhere")
    assert run(["lock", str(tmp_path / "recipes" / "x.yaml")]) == 2
    said = capsys.readouterr().err
    assert f"lockfiles/h200 cannot be written: {tmp_path}/lockfiles is no folder" in said
    assert "resolve" not in said


@pytest.mark.parametrize("disk", [True, False])
def test_a_full_disk_is_a_failed_build_and_a_bad_place_a_wrong_line(
    disk: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC if disk else errno.EACCES, "no", "/place")

    monkeypatch.setattr("builder.status.statuses_of", refuse)
    assert run(["status"]) == (7 if disk else 2)
    assert "error: /place cannot be used: no" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "option", "value"),
    [
        *((command, "--minutes", value) for command in ("search", "bisect") for value in ("nan", "inf", "-1", "0")),
        *((command, "--builds", value) for command in ("search", "bisect") for value in ("nan", "1.5", "-1", "0")),
        *(("smoke", "--timeout", value) for value in ("nan", "inf", "-1", "0", "1e300")),
        *(("wheels", "--jobs", value) for value in ("nan", "inf", "-1", "0", "9" * 30)),
        *(("wheels", "--memory", value) for value in ("nan", "inf", "-1g", "0g", "8", "9" * 30 + "g")),
    ],
)
def test_a_number_that_cannot_be_meant_is_refused(
    command: str, option: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([command, QUICKSTART, option, value]) == 2
    assert option in capsys.readouterr().err


def test_a_class_is_explained_without_a_log(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["diagnose", "--explain", "unknown", "server.log"]) == 2
    assert "--explain reads no log" in capsys.readouterr().err
    assert run(["diagnose", "--explain", "unknown"]) == 0


@pytest.mark.parametrize("option", ["--write", "--check"])
def test_generated_files_belong_to_a_checkout(
    option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["schema", option]) == 2
    assert f"{tmp_path} is none" in capsys.readouterr().err
    assert [*tmp_path.iterdir()] == []
    assert run(["schema"]) == 0


@pytest.mark.parametrize(
    ("containerd", "free", "severity", "remedy"),
    [
        (False, 13 << 30, "ok", ""),
        (False, 11 << 30, "warning", "a full stack needs about 12.0 GiB"),
        (True, 13 << 30, "warning", "a full stack needs about 24.0 GiB"),
        (True, 25 << 30, "ok", ""),
    ],
)
def test_an_engines_disk_must_hold_the_image_of_a_full_stack(
    containerd: bool, free: int, severity: str, remedy: str
) -> None:
    found = engine_disk(Path("/var/lib/docker"), free, containerd=containerd)
    assert found.severity == severity
    assert found.sentence == f"{free >> 30}.0 GiB of disk free for the engine's images, in /var/lib/docker"
    assert remedy in found.remedy


@pytest.mark.parametrize(("host", "root", "seen"), [("here", "/dev/shm", 1), ("far", "/dev/shm", 0), ("here", "", 0)])
def test_the_doctor_looks_at_the_engines_disk_where_it_is_another_one_of_this_machine(
    host: str, root: str, seen: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("builder.machine.reach_findings", lambda *_: ())
    monkeypatch.setattr("platform.node", lambda: "here")
    facts = replace(FACTS, host=host, root=root or str(tmp_path), containerd=True)
    findings = examine_machine(None, settings_from({"ENVBUILD_STORE": str(tmp_path / "store")}), lambda: facts)
    assert [finding.rule for finding in findings].count("engine-disk") == seen
    [engine] = [finding.sentence for finding in findings if finding.rule == "engine"]
    assert ": the containerd image store, 2 cores" in engine


@pytest.mark.parametrize(
    ("kind", "severity", "said"),
    [
        ("new", "ok", "is made by the first build"),
        ("file", "error", "store is no folder"),
        ("below a file", "error", "file is no folder"),
        ("wrong inside", "error", "store/locks is no folder"),
        ("dangling", "error", "store is no folder"),
    ],
)
def test_the_doctor_looks_whether_the_store_can_be_used(
    kind: str, severity: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "store"
    if kind == "file":
        place.touch()
    elif kind == "below a file":
        (tmp_path / "file").touch()
        place = tmp_path / "file" / "store"
    elif kind == "wrong inside":
        place.mkdir()
        (place / "locks").touch()
    elif kind == "dangling":
        place.symlink_to("nowhere")
    monkeypatch.setattr("builder.machine.reach_findings", lambda *_: ())

    def engine() -> EngineFacts:
        raise EngineError("none here")

    findings = examine_machine(None, settings_from({"ENVBUILD_STORE": str(place)}), engine)
    (found,) = (finding for finding in findings if finding.rule == "store")
    assert (found.severity, found.sentence.endswith(said)) == (severity, True), found.sentence


@pytest.mark.skipif(os.geteuid() != 0, reason="root alone can become somebody who may not write")
def test_a_store_that_may_not_be_written_is_a_problem(tmp_path: Path) -> None:
    place = tmp_path / "store"
    place.mkdir(mode=0o555)
    program = (
        "import os, sys\n"
        "from builder import machine\n"
        "from builder.settings import settings_from\n"
        "os.setuid(65534)\n"
        "found = machine._store(settings_from({'ENVBUILD_STORE': sys.argv[1]}))\n"
        "print(found.severity, found.sentence)\n"
    )
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o755)
    ended = run_program([sys.executable, "-c", program, str(place)], environment={"PYTHONPATH": str(PROJECT)})
    assert ended.text == f"error {place} cannot be written: {place} does not allow it\n"


FIELDS = {
    "path": "  x: {path: ../nowhere}\n",
    "patches": "  x:\n    version: '1'\n    patches: [no.patch]\n    build: {}\n",
}


@pytest.mark.parametrize("command", ["check", "lock"])
@pytest.mark.parametrize("field", FIELDS)
def test_what_a_recipe_names_beside_itself_is_looked_for_before_any_work(
    command: str, field: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "recipes" / "x.yaml"
    path.parent.mkdir()
    head = RECIPE.format(gpu="h200").replace('stack: {a: "1"}\n', "cuda: '13.0'\nstack:\n")
    path.write_text(head + FIELDS[field], encoding="utf-8")
    assert run([command, str(path)]) == 3
    said = capsys.readouterr().err
    line = 1 + next(number for number, text in enumerate(path.read_text().splitlines()) if f"{field}:" in text)
    assert f"error: {path}:{line}:" in said
    assert f" stack.x.{field}: " in said
    assert "No such file or directory" in said


@pytest.mark.parametrize("command", ["check", "lock", "make"])
def test_two_recipes_do_not_share_a_lock_by_having_one_name(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "recipes" / "deep"
    folder.mkdir(parents=True)
    first, second = folder.parent / "first.yaml", folder / "second.yaml"
    for path in (first, second):
        path.write_text(RECIPE.format(gpu="h200"), encoding="utf-8")
    assert run([command, str(second)]) == 3
    assert f"{second}:2:1: name: {first} has the same name" in capsys.readouterr().err
    first.write_text(RECIPE.format(gpu="h200").replace("name: h200", "name: h200-first"), encoding="utf-8")
    (folder / "link.yaml").symlink_to(second)
    assert run(["check", str(second)]) == 0


@pytest.mark.parametrize("line", ["status > /dev/full", "status --json > /dev/full", "check nowhere 2> /dev/full"])
def test_output_to_a_full_disk_is_no_crash(line: str) -> None:
    ended = run_program(
        ["sh", "-c", f'"$@" {line}', "sh", *ENVBUILD], cwd=PROJECT, environment={"PYTHONPATH": str(PROJECT)}
    )
    assert "Traceback" not in ended.text
    assert ended.code == 7


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("ENVBUILD_REGISTRY_MIRRORS", "junk"),
        ("ENVBUILD_REGISTRY_MIRRORS", "docker.io="),
        ("ENVBUILD_SHARE_PUSH", "yes"),
        ("ENVBUILD_PRIORITY", "x"),
        ("ENVBUILD_JOBS", "nan"),
    ],
)
def test_a_setting_that_means_nothing_is_refused_and_not_passed_over(variable: str, value: str) -> None:
    with pytest.raises(UsageError, match=variable):
        settings_from({variable: value})


def test_without_a_home_in_the_environment_the_system_knows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.getuid", lambda: 0)
    assert settings_from({}).store == Path("/root/.cache/envbuild")
    monkeypatch.setattr("os.getuid", lambda: 4_000_000)
    assert settings_from({}).store == Path("/.cache/envbuild")


def test_a_report_that_is_none_says_what_makes_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.json").write_text("{}")
    assert run(["report", str(tmp_path / "x.json")]) == 3
    assert "→ give what `envbuild matrix run --output FILE` wrote" in capsys.readouterr().err


def test_a_recipe_that_is_named_and_is_not_there_is_a_wrong_line_for_every_command(
    capsys: pytest.CaptureFixture[str],
) -> None:
    commands = ("make", "check", "lock", "render", "wheels", "build", "search", "shell", "status", "doctor")
    codes = {command: run([command, "recipes/nowhere.yaml"]) for command in commands}
    assert set(codes.values()) == {2}, codes
    assert capsys.readouterr().err.count("error: recipes/nowhere.yaml: no such recipe") == len(commands)


def test_an_interpreter_that_says_nothing_is_bad_whatever_its_empty_log_tells(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, said = smoked("--here", "--python", "/bin/true", capsys=capsys)
    assert code == ExitCode.BAD
    assert "the probe ended without a report" in said
    assert "error" not in said


@pytest.mark.parametrize("program", ["/bin/true", "/bin/sh"])
def test_an_interpreter_that_is_none_compiles_nothing(program: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["wheels", QUICKSTART, "--here", program]) == UsageError.exit_code
    assert f"--here: {program} cannot say what packages it has" in capsys.readouterr().err


def test_an_interpreter_that_is_not_there_compiles_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["wheels", QUICKSTART, "--here", "/nope"]) == 2
    assert "--here: there is no program /nope" in capsys.readouterr().err


def test_an_image_that_is_not_there_is_wrong_usage(tmp_path: Path) -> None:
    tools = Tools(settings=settings_from({}), store=Store(tmp_path), console=Console(), connect=FakeEngine)
    with pytest.raises(UsageError, match="the engine has no image nope:latest") as caught:
        smoke_reference("nope:latest", ("cpu-decode",), tools, timeout=1.0)
    assert "docker pull nope:latest" in caught.value.remedy


def test_a_terminal_that_goes_is_told_twice_and_ends_the_clean_up_not_at_all() -> None:
    before = signal.getsignal(signal.SIGHUP)
    try:
        with pytest.raises(KeyboardInterrupt):
            _hang_up(signal.SIGHUP, None)
        os.kill(os.getpid(), signal.SIGHUP)  # would end this process
    finally:
        signal.signal(signal.SIGHUP, before)
