"""The engines of a matrix: connected by address or context, asked for their host, known to live or not."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from builder.dockerd.client import DEFAULT_ADDRESS, connect
from builder.dockerd.reach import place_of
from builder.errors import EngineError, UsageError
from builder.matrix.schedule import Seat
from builder.preflight.host import host_facts

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from builder.engine import Engine, EngineFacts
    from builder.settings import Settings


@dataclass(frozen=True, kw_only=True, slots=True)
class Crew:
    """The engines that answered, by the names that the user gave them."""

    seats: tuple[Seat, ...]
    settings: Settings

    def is_alive(self, seat: Seat) -> bool:
        """Whether the engine of a seat still answers."""
        try:
            connect_to(seat.name, self.settings).facts()
        except EngineError:
            return False
        return True


def engine_names(wanted: Sequence[str], settings: Settings) -> tuple[str, ...]:
    """Return the engines to use: those that are named, else the one of the machine's settings."""
    if len(set(wanted)) < len(wanted):
        raise UsageError("--engine: the same engine is named twice", remedy="name each engine once")
    return tuple(wanted) or (settings.engine_host or DEFAULT_ADDRESS,)


def connect_to(name: str, settings: Settings) -> Engine:
    """Connect to an engine by its address or the name of its context; raise EngineError with a remedy."""
    return connect(replace(settings, engine_host=name))


def gpus_of(name: str, facts: EngineFacts, settings: Settings) -> tuple[str, ...]:
    """Return the GPUs that cells may have on an engine: those of the settings, else what it or its machine says.

    Only of this machine is the driver asked.
    """
    if settings.gpus or facts.gpus:
        return settings.gpus or facts.gpus
    if not place_of(name, settings).address.startswith("unix://"):
        return ()
    return tuple(map(str, range(len(host_facts(settings.store).gpus))))


def gather_crew(names: Sequence[str], settings: Settings, warn: Callable[[str], None]) -> Crew:
    """Connect to all engines; one that does not answer is left out with a warning. Raise EngineError if none does."""
    seats = []
    first: EngineError | None = None
    for name in names:
        try:
            facts = connect_to(name, settings).facts()
        except EngineError as error:
            first = first or error
            warn(f"the engine {name} is left out: {error.message}")
            continue
        gpus = gpus_of(name, facts, settings)
        seats.append(Seat(name=name, host=facts.host or name, cores=facts.cpus, memory=facts.memory, gpus=gpus))
    if not seats:
        raise first or EngineError("no engine is named")
    return Crew(seats=tuple(seats), settings=settings)
