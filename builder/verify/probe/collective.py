"""Two or more processes, one GPU each, agree on a sum: what NCCL must do before any model is spread over GPUs.

python3 -m builder.verify.probe.collective RANK RANKS PORT BACKEND
"""

# ruff: noqa: PLC0415 - importing the stack is a part of what is probed

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import time
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

ADDRESS = "127.0.0.1"
TAIL_BYTES = 4000
_LOOK_EVERY = 0.1


class CollectiveError(Exception):
    """The processes did not agree on a sum, or not in time."""


def prove_collective(ranks: int, backend: str, timeout: float) -> None:
    """Run one process for each rank; raise CollectiveError unless all end well within `timeout` seconds."""
    with socket.socket() as probe:
        probe.bind((ADDRESS, 0))
        port = probe.getsockname()[1]
    module = [sys.executable, "-m", "builder.verify.probe.collective"]
    with contextlib.ExitStack() as stack:
        logs = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(ranks)]
        workers = [
            subprocess.Popen([*module, str(rank), str(ranks), str(port), backend], stdout=log, stderr=log)
            for rank, log in enumerate(logs)
        ]
        try:
            _await_all(workers, logs, backend, timeout)
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()


def _await_all(workers: list[subprocess.Popen[bytes]], logs: Sequence[IO[bytes]], backend: str, timeout: float) -> None:
    deadline = time.monotonic() + timeout
    while any(worker.poll() is None for worker in workers) and time.monotonic() < deadline:
        if any(worker.poll() for worker in workers):
            break
        time.sleep(_LOOK_EVERY)
    for rank, (worker, log) in enumerate(zip(workers, logs, strict=True)):
        code = worker.poll()
        if code:
            log.seek(0)
            said = log.read()[-TAIL_BYTES:].decode(errors="replace").strip()
            raise CollectiveError(f"{backend} all-reduce: rank {rank} ended with exit code {code}: {said}")
    if any(worker.poll() is None for worker in workers):
        raise CollectiveError(f"{backend} all-reduce of {len(workers)} ranks: no answer within {timeout:.0f} s")


def main(arguments: list[str]) -> None:
    """Be one rank: add up 1 to `ranks` over all of them, a million times at once."""
    import torch
    import torch.distributed as together

    rank, ranks, port = (int(argument) for argument in arguments[:3])
    backend = arguments[3]
    for variable in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):  # a container without network has nothing else
        os.environ.setdefault(variable, "lo")
    device = torch.device("cuda", rank) if backend == "nccl" else torch.device("cpu")
    if backend == "nccl":
        torch.cuda.set_device(device)
    together.init_process_group(backend, init_method=f"tcp://{ADDRESS}:{port}", rank=rank, world_size=ranks)
    numbers = torch.full((1 << 20,), float(rank + 1), device=device)
    together.all_reduce(numbers)
    wanted = ranks * (ranks + 1) / 2
    if not bool((numbers == wanted).all()):
        sys.stderr.write(f"the sum is {numbers.unique().tolist()[:4]}, not {wanted}\n")
        sys.exit(1)
    together.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1:])
