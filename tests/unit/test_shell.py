from __future__ import annotations

import pytest

from builder.process import MissingProgramError, become
from builder.recipe.model import Recipe, Serve
from builder.shell import shell_command

RECIPE = Recipe.model_validate(
    {
        "version": 1,
        "name": "small",
        "target": {"gpu": "rtx-pro-6000"},
        "base": {"debian": "trixie"},
        "python": "3.13",
        "stack": {"torch": "2.9.1"},
    }
)
START = ("docker", "run", "--rm", "--interactive")


def test_without_a_command_it_is_a_shell_on_the_persons_terminal_with_all_gpus() -> None:
    line = shell_command("sha256:1", RECIPE, (), terminal=True, gpu=True)
    assert line == (*START, "--tty", "--gpus", "all", "--entrypoint", "", "sha256:1", "/bin/bash")


def test_a_command_gets_its_own_options_and_no_terminal_where_there_is_none() -> None:
    line = shell_command("sha256:1", RECIPE, ("python", "-c", "print(1)"), terminal=False, gpu=False)
    assert line == (*START, "--entrypoint", "", "sha256:1", "python", "-c", "print(1)")


def test_shared_memory_is_as_the_recipe_serves() -> None:
    recipe = RECIPE.model_copy(
        update={"serve": Serve.model_validate({"engine": "sglang", "shm-size": "32g", "ipc": "host"})}
    )
    line = shell_command("sha256:1", recipe, ("sh",), terminal=False, gpu=False)
    assert line == (*START, "--shm-size", "32g", "--ipc", "host", "--entrypoint", "", "sha256:1", "sh")


def test_without_a_docker_client_the_error_gives_the_line_to_run() -> None:
    with pytest.raises(MissingProgramError, match="'no-such-docker' is not installed") as raised:
        become(("no-such-docker", "run", "a b"))
    assert raised.value.remedy.endswith("no-such-docker run 'a b'")
