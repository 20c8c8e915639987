"""Every way to end badly: one class per exit code, the advice inside the class."""

from __future__ import annotations

from errno import EDQUOT, EIO, ENOSPC
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from pathlib import Path


class EnvbuildError(Exception):
    """A failure that a person can act on. `remedy` is one sentence; `evidence` are lines that prove the cause.

    `log` is the whole log of the program that failed, where one was kept. Errors that `tell` come from programs whose
    words a diagnosis may understand.
    """

    exit_code: ClassVar[int] = 1
    tells: ClassVar[bool] = False
    default_remedy: ClassVar[str] = ""

    def __init__(
        self, message: str, *, remedy: str | None = None, evidence: tuple[str, ...] = (), log: Path | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = self.default_remedy if remedy is None else remedy
        self.evidence = evidence
        self.log = log


class UsageError(EnvbuildError):
    """The command line or the environment names something that does not exist, or that cannot be read or written.

    Without a remedy, the command line points to the help of the command.
    """

    exit_code = 2


class InvalidDocumentError(EnvbuildError):
    """A recipe or another document is not valid; the message is `file:line:column: path: what is wrong`."""

    exit_code = 3


class PreflightRefusedError(EnvbuildError):
    """A rule refuses the recipe before anything is built."""

    exit_code = 4


class StaleLockError(EnvbuildError):
    """The lock is missing or answers another question than the recipe asks."""

    exit_code = 5
    default_remedy = "run `envbuild lock RECIPE` and commit the result"


class ResolveError(EnvbuildError):
    """The pins cannot be satisfied together, or a locked file cannot be fetched."""

    exit_code = 6
    tells = True


class BuildFailedError(EnvbuildError):
    """A compile, a Dockerfile step or an assembly failed."""

    exit_code = 7
    tells = True


class EngineError(EnvbuildError):
    """The Docker engine cannot be used."""

    exit_code = 9
    tells = True


class NotVerifiedError(EnvbuildError):
    """An image is not proven good, or its proof does not hold: it is neither published nor promoted."""

    exit_code = 10
    default_remedy = "prove the image: envbuild make RECIPE"


class RegistryError(EnvbuildError):
    """The registry, or sigstore beside it, refused or could not be reached."""

    exit_code = 11


class InterruptionError(EnvbuildError):
    """A person, or the system, has stopped the command."""

    exit_code = 130
    default_remedy = "what was finished is kept, the same command goes on from here"


def unwritten(error: OSError, message: str, *, remedy: str) -> EnvbuildError:
    """Return the failure to use a place that a person or the environment names.

    A UsageError, for the place was not well chosen, unless the disk itself is full or broken.
    """
    kind = BuildFailedError if error.errno in {ENOSPC, EDQUOT, EIO} else UsageError
    return kind(message, remedy=remedy)


class ExitCode:
    """Exit codes that are answers, not errors."""

    DONE: ClassVar[int] = 0
    CRASH: ClassVar[int] = 1
    BAD: ClassVar[int] = 8
    UNVERIFIED: ClassVar[int] = 12
    INTERRUPTED: ClassVar[int] = 130
    UNHEARD: ClassVar[int] = 141  # as the shell says of a program that SIGPIPE ended
