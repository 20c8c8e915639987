"""A container from its creation to its removal, and the removal of those whose owner was killed."""

from __future__ import annotations

import contextlib
import os
import select
import time
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from docker.errors import APIError, DockerException, ImageNotFound
from docker.types import LogConfig, Mount

from builder.dockerd.capture import STDERR, BoundedLog, Frames, Lines
from builder.dockerd.devices import gpu_requests
from builder.dockerd.faults import engine_errors, said
from builder.dockerd.owner import is_dead, is_local, own_name
from builder.engine import Exit, NoGpuError
from builder.errors import BuildFailedError, EngineError
from builder.giveup import keep_on

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from docker import APIClient

    from builder.engine import ContainerRun

LABEL = "envbuild"
OWNER_LABEL = "envbuild.owner"
PIDS_LIMIT = 16384
NO_GPU_DRIVER = "could not select device driver"  # dockerd, all versions, without the NVIDIA container toolkit
REMOVE_SECONDS = 30.0  # how long an engine that hangs keeps whoever has pressed Ctrl-C
KILLED = 137  # 128 + SIGKILL
FOREIGN_LEFTOVER_SECONDS = 86400.0

_READ_BYTES = 1 << 16
_LOOK_SECONDS = 0.1  # between two looks at whether the work is given up
_TMPFS = "rw,exec,nosuid,nodev,mode=1777"  # exec: compilers and JITs load what they write there
_OOM_LOOKS = 5


@dataclass(slots=True)
class _Output:
    """What is kept of both streams, and the lines of standard error as they come."""

    lines: Lines | None
    stdout: BoundedLog = field(default_factory=BoundedLog)
    stderr: BoundedLog = field(default_factory=BoundedLog)
    frames: Frames = field(default_factory=Frames)

    def feed(self, data: bytes) -> None:
        for stream, payload in self.frames.feed(data):
            if stream != STDERR:
                self.stdout.add(payload)
                continue
            self.stderr.add(payload)
            if self.lines is not None:
                self.lines.feed(payload)

    def close(self) -> None:
        if self.lines is not None:
            self.lines.close()


def run_container(
    client: APIClient,
    job: ContainerRun,
    on_line: Callable[[str], None] | None = None,
    *,
    address: str,
    gpus: tuple[str, ...] = (),
) -> Exit:
    """Run a container to its end or its deadline and remove it, whatever happens to the caller meanwhile.

    `gpus` are the only GPUs that it may see (empty: any).
    """
    name = f"envbuild-{uuid.uuid4().hex[:16]}"
    output = _Output(Lines(on_line) if on_line is not None else None)
    try:
        _create(client, job, name, address, gpus)
        with _attached(client, name, address) as descriptor:
            _start(client, job, name, address)
            start = time.monotonic()
            deadline = start + job.timeout
            for data in _read_until(descriptor, deadline, address):
                output.feed(data)
        output.close()
        state = _state_at_end(client, name, deadline, address)
        return Exit(
            code=KILLED if state is None else state["ExitCode"],
            stdout=output.stdout.value(),
            stderr=output.stderr.value(),
            oom_killed=state is not None and state["OOMKilled"],
            timed_out=state is None,
            seconds=time.monotonic() - start,
        )
    finally:
        remove(client, name)


def _create(client: APIClient, job: ContainerRun, name: str, address: str, gpus: tuple[str, ...]) -> None:
    for mount in job.mounts:
        if not mount.source.exists():
            raise EngineError(f"cannot mount {mount.source} at {mount.target}: it does not exist", remedy="")
    with engine_errors(address):
        try:
            client.create_container(
                job.image,
                list(job.command),
                name=name,
                environment=dict(job.environment),
                user=job.user,
                working_dir=job.workdir,
                labels={LABEL: "1", OWNER_LABEL: own_name()},
                host_config=_host_config(client, job, gpus),
                use_config_proxy=False,
            )
        except ImageNotFound:
            raise BuildFailedError(
                f"the image {job.image} is not on the engine at {address}",
                remedy="build or load it first; it is never pulled",
            ) from None


def _host_config(client: APIClient, job: ContainerRun, gpus: tuple[str, ...]) -> dict[str, Any]:
    return client.create_host_config(
        network_mode="none",
        mem_limit=job.memory,
        memswap_limit=job.memory,
        cpu_shares=job.cpu_shares,
        pids_limit=PIDS_LIMIT,
        shm_size=job.shared_memory,
        device_requests=gpu_requests(job.gpus, gpus),
        read_only=job.read_only_root,
        tmpfs=dict.fromkeys(job.tmpfs, _TMPFS),
        mounts=[
            Mount(mount.target, str(mount.source.absolute()), type="bind", read_only=mount.read_only)
            for mount in job.mounts
        ],
        security_opt=["no-new-privileges"],
        log_config=LogConfig(type="none"),  # the attached stream has it all; a log file could fill the engine's disk
    )


@contextlib.contextmanager
def _attached(client: APIClient, name: str, address: str) -> Iterator[int]:
    """Give the descriptor of the container's output; attached before the start, so nothing is missed."""
    with engine_errors(address):
        response = client.post(
            f"{client.base_url}/v{client.api_version}/containers/{name}/attach",
            params={"stdout": 1, "stderr": 1, "stream": 1},
            headers={"Connection": "Upgrade", "Upgrade": "tcp"},
            stream=True,
            timeout=client.timeout,
        )
    with contextlib.closing(response):
        if not response.ok:
            raise EngineError(f"the engine at {address} refused to attach to a container: {response.text}")
        yield response.raw.fileno()


def _start(client: APIClient, job: ContainerRun, name: str, address: str) -> None:
    with engine_errors(address):
        try:
            client.start(name)
        except APIError as error:
            if job.gpus and NO_GPU_DRIVER in said(error):
                raise NoGpuError(f"the engine at {address} cannot give a container a GPU: {said(error)}") from None
            if not error.is_client_error():
                raise
            raise BuildFailedError(
                f"the command {job.command[0] if job.command else ''!r} cannot start in the image {job.image}",
                remedy="the image must hold the program, executable, and the user that runs it",
                evidence=tuple(said(error).splitlines()),
            ) from None


def _read_until(descriptor: int, deadline: float, address: str) -> Iterator[bytes]:
    """Yield what the container writes until it closes its output or the deadline is over.

    Raises CancelledError when the work of this thread is given up.
    """
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    while (left := deadline - time.monotonic()) > 0:
        keep_on()
        if not poll.poll(min(left, _LOOK_SECONDS) * 1000):
            continue
        with engine_errors(address):
            data = os.read(descriptor, _READ_BYTES)
        if not data:
            return
        yield data


def _state_at_end(client: APIClient, name: str, deadline: float, address: str) -> dict[str, Any] | None:
    """Return the engine's `State` of the ended container, or None where it still runs at the deadline."""
    pause = 0.01
    state = _state(client, name, address)
    while state["Running"]:
        if time.monotonic() > deadline:
            return None
        keep_on(pause)
        pause = min(2 * pause, 0.5)
        state = _state(client, name, address)
    for _ in range(_OOM_LOOKS):  # under cgroup v2 the engine can hear of the kill after the exit
        if state["OOMKilled"] or state["ExitCode"] != KILLED:
            break
        time.sleep(0.1)
        state = _state(client, name, address)
    return state


def _state(client: APIClient, name: str, address: str) -> dict[str, Any]:
    with engine_errors(address):
        state: dict[str, Any] = client.inspect_container(name)["State"]
        return state


def remove(client: APIClient, name: str) -> None:
    """Remove a container, running or not, if the engine does it soon."""
    # What cannot be removed now has an owner that will end: the next connection removes it.
    address = f"{client.base_url}/v{client.api_version}/containers/{name}"
    with contextlib.suppress(DockerException, OSError):
        client.delete(address, params={"force": "1", "v": "1"}, timeout=REMOVE_SECONDS)


def remove_leftovers(client: APIClient, *, address: str) -> tuple[str, ...]:
    """Remove the containers whose envbuild was killed, running or not, and return their names."""
    with engine_errors(address):
        found = client.containers(all=True, filters={"label": [f"{LABEL}=1", OWNER_LABEL]})
    names = tuple(
        str(container["Names"][0]).lstrip("/")
        for container in found
        if is_leftover(
            container["Labels"][OWNER_LABEL],
            running=container["State"] == "running",
            age=time.time() - container["Created"],
        )
    )
    for name in names:
        remove(client, name)
    return names


def is_leftover(owner: str, *, running: bool, age: float) -> bool:
    """Say whether nobody waits for a container any more; `age` is in seconds.

    The pid of an owner in another boot or pid namespace says nothing here: only what has long stopped is left over.
    """
    if is_local(owner):
        return is_dead(owner)
    return not running and age > FOREIGN_LEFTOVER_SECONDS
