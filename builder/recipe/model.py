"""The recipe as frozen values: what a person wishes, before anything is resolved."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from builder.document import Document

DebianSuite = Literal["bookworm", "trixie"]
CheckName = Literal["static", "dry-run", "cpu-decode", "gpu-decode", "target-decode"]

Name = Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9._-]*[a-z0-9])?$", max_length=80)]
Version = Annotated[str, Field(pattern=r"^[0-9]+(\.[0-9]+)*([a-z]+[0-9]*)?(\.?(post|dev)[0-9]+)?(\+[a-z0-9.]+)?$")]
MinorVersion = Annotated[str, Field(pattern=r"^[0-9]+\.[0-9]+$")]
Capability = Annotated[str, Field(pattern=r"^[0-9]+\.[0-9][af]?$")]
Digest = Annotated[str, Field(pattern=r"^[a-z0-9.:/_-]+@sha256:[0-9a-f]{64}$")]
Commit = Annotated[str, Field(pattern=r"^[0-9a-f]{40}([0-9a-f]{24})?$")]
Sentence = Annotated[str, Field(min_length=8)]


class Target(Document):
    """The GPU that the stack is for: an id of the target table, and how many of them."""

    gpu: Name
    count: Annotated[int, Field(ge=1)] = 1


class Host(Document):
    """What the recipe asks of the machine that runs the image."""

    driver: Annotated[str, Field(pattern=r"^[0-9]+\.[0-9]+(\.[0-9]+)?$")]


class Base(Document):
    """The root of the image: a Debian suite bootstrapped from the mirror, or an image by digest."""

    debian: DebianSuite | None = None
    packages: tuple[Name, ...] = ()
    image: Digest | None = None

    @model_validator(mode="after")
    def _exactly_one(self) -> Base:
        if (self.debian is None) == (self.image is None):
            raise ValueError("give either `debian` (a suite) or `image` (a reference by digest)")
        if self.image is not None and self.packages:
            raise ValueError("`packages` belongs to a `debian` base; an `image` base is taken as it is")
        return self


class Index(Document):
    """A package index besides the default one, and the packages that come from it and from nowhere else."""

    url: str
    packages: Annotated[tuple[str, ...], Field(min_length=1)]


class Fix(Document):
    """A change that the git source must contain: proven by an ancestor commit or by text in a file."""

    id: str
    commit: Commit | None = None
    file: str | None = None
    contains: str | None = None


class BuildSettings(Document):
    """How a package is compiled, where the target and the package's own data do not say it already."""

    archs: tuple[Capability, ...] = ()
    requires: tuple[str, ...] = ()
    env: dict[str, str] = {}


def _short_form(value: Any) -> Any:  # noqa: ANN401 - what YAML gives
    return {"version": value} if isinstance(value, str) else value


class Package(Document):
    """One pin of the stack: a released version, a git commit, or a folder beside the recipe."""

    version: Version | None = None
    git: str | None = None
    commit: Commit | None = None
    subdirectory: str | None = None
    patches: tuple[str, ...] = ()
    fixes: tuple[Fix, ...] = ()
    path: str | None = None
    extras: tuple[Name, ...] = ()
    build: BuildSettings | None = None

    @model_validator(mode="after")
    def _one_source(self) -> Package:
        sources = [name for name in ("version", "git", "path") if getattr(self, name) is not None]
        if len(sources) != 1:
            given = " and ".join(f"`{name}`" for name in sources) or "none"
            raise ValueError(f"give exactly one of `version`, `git` and `path` (given: {given})")
        if (self.git is None) != (self.commit is None):
            raise ValueError("`git` and `commit` go together: a commit by its full hash, never a branch or tag")
        if self.git is None and (self.subdirectory or self.fixes):
            raise ValueError("`subdirectory` and `fixes` belong to a `git` source")
        if self.patches and self.build is None:
            raise ValueError("`patches` change the source, so the package needs a `build` section")
        return self


class Override(Document):
    """A requirement of some package overruled, and why."""

    version: Version
    reason: Sentence


class Serve(Document):
    """How the recipe's server is started."""

    engine: Literal["sglang", "vllm", "transformers"]
    model: str | None = None
    args: dict[str, str | int | float | bool] = {}
    env: dict[str, str] = {}


class Smoke(Document):
    """The proof: which tiny model, and the checks that must pass for `good`."""

    model: Literal["glm5-nvfp4"] = "glm5-nvfp4"
    require: Annotated[tuple[CheckName, ...], Field(min_length=1)] = ("static", "cpu-decode")
    memory: Annotated[str, Field(pattern=r"^[0-9]+[mg]$")] = "4g"
    timeout: Annotated[int, Field(ge=10)] = 600


def _not_empty(value: dict[str, Package]) -> dict[str, Package]:
    if not value:
        raise ValueError("a stack needs at least one package")
    return value


class Recipe(Document):
    """A whole inference stack as a person wishes it."""

    version: Literal[1]
    name: Name
    description: str = ""
    target: Target
    host: Host | None = None
    base: Base
    python: MinorVersion
    cuda: MinorVersion | None = None
    as_of: Annotated[str, Field(alias="as-of", pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$")] | None = None
    indexes: dict[Name, Index] = {}
    stack: Annotated[
        dict[Name, Annotated[Package, BeforeValidator(_short_form)]],
        AfterValidator(_not_empty),
    ]
    overrides: dict[Name, Override] = {}
    serve: Serve | None = None
    smoke: Smoke = Smoke()
    waive: dict[str, Sentence] = {}
