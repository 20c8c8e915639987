"""sglang's HTTP interface as the probe uses it: input_ids in, tokens and the margins of their log-probabilities out."""

from __future__ import annotations

import http.client
import json
import math
import urllib.error
import urllib.request
from typing import Any

INFO_PATHS = ("/server_info", "/get_server_info")  # the first since 0.5.14, the second before
BODY_SHOWN = 400
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class HttpRefusedError(Exception):
    """The server answered with an error, or with something that is no answer."""


class NoAnswerError(OSError):
    """The server took the request and did not answer in time."""


class Client:
    """A server on this machine's own address."""

    def __init__(self, port: int) -> None:
        self._base = f"http://127.0.0.1:{port}"

    def server_info(self, timeout: float) -> dict[str, Any] | None:
        """Return what the server says of itself, or None while it does not answer; never asks /health.

        /health and /health_generate decode one token, and any answer of a scheduler counts as health.
        """
        for path in INFO_PATHS:
            try:
                answer = self._ask(path, None, timeout)
            except (OSError, HttpRefusedError):
                continue
            if isinstance(answer, dict):
                return answer
        return None

    def generate(self, prompt: list[int], count: int, timeout: float) -> dict[str, Any]:
        """Decode `count` tokens greedily; return tokens and margins. Raises HttpRefusedError or OSError."""
        answer = self._ask(
            "/generate",
            {
                "input_ids": prompt,
                "sampling_params": {"temperature": 0.0, "max_new_tokens": count, "ignore_eos": True},
                "return_logprob": True,
                "top_logprobs_num": 2,
                "logprob_start_len": -1,
                "stream": False,
            },
            timeout,
        )
        try:
            return observation(answer)
        except (KeyError, TypeError, IndexError, ValueError) as error:
            raise HttpRefusedError(
                f"/generate: not the answer that sglang gives: {json.dumps(answer)[:BODY_SHOWN]}"
            ) from error

    def _ask(self, path: str, body: dict[str, Any] | None, timeout: float) -> Any:
        request = urllib.request.Request(  # noqa: S310 - our own address
            self._base + path,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        try:
            with _OPENER.open(request, timeout=timeout) as response:
                text = response.read()
        except urllib.error.HTTPError as error:
            said = error.read(BODY_SHOWN).decode(errors="replace")
            raise HttpRefusedError(f"{path}: HTTP {error.code}: {said}") from None
        except http.client.HTTPException as error:
            raise HttpRefusedError(f"{path}: no HTTP: {error!r}") from None
        except OSError as error:
            if isinstance(getattr(error, "reason", error), TimeoutError):
                raise NoAnswerError(f"{path}: no answer within {timeout:.0f} s") from None
            raise
        try:
            return json.loads(text)
        except ValueError:
            said = text[:BODY_SHOWN].decode(errors="replace")
            raise HttpRefusedError(f"{path}: no JSON: {said}") from None


def observation(answer: dict[str, Any]) -> dict[str, Any]:
    """Return the tokens of an answer and, for each, how far its log-probability is before the next one's.

    sglang gives (log-probability, token, text) per token, and per token a list of the best of these. A difference of
    log-probabilities is a difference of logits. None stands for a value that is not finite.
    """
    meta = answer["meta_info"]
    tokens = [int(entry[1]) for entry in meta["output_token_logprobs"]]
    return {"tokens": tokens, "margins": [_margin(best) for best in meta["output_top_logprobs"]]}


def _margin(best: list[list[Any]]) -> float | None:
    first, second = best[0][0], best[1][0]
    if first is None or second is None or not (math.isfinite(first) and math.isfinite(second)):
        return None
    return float(first - second)
