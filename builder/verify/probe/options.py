"""Whether the installed server knows the options that the recipe gives it: its own parser is asked."""

from __future__ import annotations

import json
from typing import Any

from builder.verify.probe.imports import run_python, tail_of

ANNOUNCEMENT = "envbuild options "
PARSE = f"""
import argparse, json, sys
from sglang.srt.server_args import ServerArgs

class Refused(Exception):
    pass

class Parser(argparse.ArgumentParser):
    def error(self, message):
        raise Refused(message)

parser, refused, arguments = Parser(), [], sys.argv[1:]
ServerArgs.add_cli_args(parser)
unknown = []
try:
    _, unknown = parser.parse_known_args(arguments)
except Refused as error:
    refused.append(str(error))
known = sorted(option for action in parser._actions for option in action.option_strings)
print("\\n{ANNOUNCEMENT}" + json.dumps({{"unknown": unknown, "refused": refused, "known": known}}))
"""


def parse_options(serve: dict[str, Any], timeout: float, variables: dict[str, str]) -> dict[str, Any]:
    """Return the options that the server does not know, and what it refuses; `error` if it could not be asked."""
    answer: dict[str, Any] = {"engine": serve["engine"], "unknown": [], "refused": [], "known": [], "error": None}
    error, out, err = run_python(["-c", PARSE, *serve["arguments"]], timeout, {**serve["env"], **variables})
    lines = [line for line in out.decode(errors="replace").splitlines() if line.startswith(ANNOUNCEMENT)]
    if error is not None or not lines:
        return {**answer, "error": error or "it printed no answer", "tail": tail_of(err)}
    return {**answer, "tail": [], **json.loads(lines[-1].removeprefix(ANNOUNCEMENT))}
