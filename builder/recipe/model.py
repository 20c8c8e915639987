"""The recipe as frozen values: what a person wishes, before anything is resolved."""

from __future__ import annotations

from datetime import date
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import urlsplit

from packaging import requirements
from packaging.utils import canonicalize_name
from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from builder.document import Document
from builder.errors import UsageError
from builder.recipe.options import Argument, option_name
from builder.registry.reference import parse_reference

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

DebianSuite = Literal["bookworm", "trixie"]
CheckName = Literal["static", "dry-run", "cpu-decode", "program", "gpu-decode", "target-decode"]

# The compiler's wheel for CUDA 12 holds ptxas and no nvcc (the file list of nvidia-cuda-nvcc-cu12 12.9.86 on PyPI).
FIRST_CUDA_WITH_NVCC = 13

# What each pattern below means, for the person whose text does not match it.
FORMS: dict[str, str] = {}


def _text(pattern: str, form: str) -> FieldInfo:
    FORMS[pattern] = form
    info: FieldInfo = Field(pattern=pattern)
    return info


def _says(description: str, *, alias: str | None = None, strict: bool | None = None) -> FieldInfo:
    info: FieldInfo = Field(description=description, alias=alias, strict=strict)
    return info


def _list(description: str, *, least: int = 0) -> FieldInfo:
    info: FieldInfo = Field(description=description, strict=False, min_length=least)
    return info


Name = Annotated[
    str,
    _text(
        r"^[a-z0-9]([a-z0-9._-]*[a-z0-9])?$",
        "a name: small letters, digits, `-`, `_` and `.`, with a letter or digit at both ends",
    ),
    Field(max_length=80),
]
ProjectName = Annotated[
    str,
    _text(
        r"^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$",
        "a package's name: letters, digits, `-`, `_` and `.`, with a letter or digit at both ends",
    ),
]
DebianName = Annotated[
    str,
    _text(
        r"^[a-z0-9][a-z0-9+.-]+$",
        "a Debian package: small letters, digits, `+`, `-` and `.` (Debian policy 5.6.1), such as libstdc++6",
    ),
]
Version = Annotated[
    str,
    _text(
        r"^[0-9]+(\.[0-9]+)*((a|b|rc)[0-9]+)?(\.?post[0-9]+)?(\.?dev[0-9]+)?(\+[a-z0-9]+(\.[a-z0-9]+)*)?$",
        "one exact version, such as '2.9.1' or '0.5.12.post1' (no range, no leading v)",
    ),
]
MinorVersion = Annotated[str, _text(r"^[0-9]+\.[0-9]+$", "a version of two parts, such as '3.11' or '13.1'")]
Capability = Annotated[str, _text(r"^[0-9]+\.[0-9][af]?$", "a compute capability, such as '12.0', '12.0a' or '12.0f'")]
Commit = Annotated[
    str,
    _text(r"^[0-9a-f]{40}([0-9a-f]{24})?$", "a full commit hash of 40 (or 64) hexadecimal digits, no branch or tag"),
]
Driver = Annotated[str, _text(r"^[0-9]+\.[0-9]+(\.[0-9]+)?$", "an NVIDIA driver version, such as '590.44.01'")]


def _real_day(text: str) -> str:
    try:
        date.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text} is no day of the calendar") from None
    return text


def _requirement(text: str) -> str:
    try:
        requirements.Requirement(text)
    except requirements.InvalidRequirement:
        raise ValueError(f"{text!r} is no requirement, such as 'einops' or 'torch>=2.9' (PEP 508)") from None
    return text


def _place_in_source(text: str) -> str:
    path = PurePosixPath(text)
    if path.is_absolute() or ".." in path.parts:
        raise ValueError(f"{text!r} leaves the source; give a path from its root")
    return text


def _image_reference(text: str) -> str:
    try:
        reference = parse_reference(text)
    except UsageError as error:
        raise ValueError(f"{error.message}; {error.remedy}") from None
    if not reference.tag and not reference.digest:
        raise ValueError(f"{text} names no image of that repository; add a :tag or a @sha256:… digest")
    return text


ImageReference = Annotated[str, AfterValidator(_image_reference)]
Requirement = Annotated[str, AfterValidator(_requirement)]
PlaceInSource = Annotated[str, AfterValidator(_place_in_source)]

Date = Annotated[
    str,
    _text(r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$", "a day as year-month-day, such as 2026-06-30"),
    AfterValidator(_real_day),
]
Size = Annotated[str, _text(r"^[1-9][0-9]{0,6}[mg]$", "a size in mebibytes or gibibytes, such as '512m' or '8g'")]
Variable = Annotated[
    str,
    _text(r"^[A-Za-z_][A-Za-z0-9_]*$", "a variable's name: letters, digits and `_`, with no digit at its start"),
]
Option = Annotated[
    str, _text(r"^-{0,2}[A-Za-z0-9][A-Za-z0-9_.-]*$", "an option's name: letters, digits, `-`, `_` and `.`")
]
Sentence = Annotated[str, Field(min_length=8)]


class Target(Document):
    """The GPU that the stack is for: an id of the target table, and how many of them."""

    gpu: Annotated[Name, _says("the GPU, by its id in the table of targets, such as rtx-pro-6000")]
    count: Annotated[int, Field(ge=1), _says("how many of them one machine has")] = 1


class Host(Document):
    """What the recipe asks of the machine that runs the image."""

    driver: Annotated[Driver, _says("the oldest NVIDIA driver that the stack may meet")]


class Base(Document):
    """The root of the image: a Debian suite bootstrapped from the mirror, or an image of a registry."""

    debian: Annotated[DebianSuite | None, _says("a Debian suite, bootstrapped from signed package lists")] = None
    packages: Annotated[tuple[DebianName, ...], _list("Debian packages besides the smallest system")] = ()
    image: Annotated[
        ImageReference | None,
        _says("an image of a registry by tag or digest, taken as it is; the lock holds its digest"),
    ] = None

    @model_validator(mode="after")
    def _exactly_one(self) -> Base:
        if (self.debian is None) == (self.image is None):
            raise ValueError("give either `debian` (a suite) or `image` (a reference by tag or digest)")
        if self.image is not None and self.packages:
            raise ValueError("`packages` belongs to a `debian` base; an `image` base is taken as it is")
        return self


def _without_login(address: str) -> str:
    """Refuse an address with a password, and a web address with any login: recipes and locks are committed."""
    parts = urlsplit(address)
    if parts.password is not None or (parts.scheme in {"http", "https"} and "@" in parts.netloc):
        raise ValueError("the address carries a login, which would be committed: put it into ~/.netrc instead")
    return address


def _index_address(address: str) -> str:
    if urlsplit(address).scheme not in {"http", "https", "file"}:
        raise ValueError("the address of an index begins with https://, http:// or file://")
    return _without_login(address)


class Index(Document):
    """A package index besides the default one, and the packages that come from it and from nowhere else."""

    url: Annotated[str, AfterValidator(_index_address), _says("the address of the index (PEP 503)")]
    packages: Annotated[tuple[ProjectName, ...], _list("the packages that come from it, and only from it", least=1)]


def _claimed_once(indexes: dict[str, Index]) -> dict[str, Index]:
    """Refuse a package that two indexes claim, or one twice."""
    claims: dict[str, str] = {}
    for name, index in indexes.items():
        for package in index.packages:
            plain = canonicalize_name(package)
            if plain in claims:
                raise ValueError(f"{plain} is claimed twice, by {claims[plain]} and {name}: a package has one index")
            claims[plain] = name
    return indexes


class Fix(Document):
    """A change that a fetched source must contain: proven by an ancestor commit or by text in a file."""

    id: Annotated[str, _says("what people call it, such as sglang#14311")]
    commit: Annotated[Commit | None, _says("a commit that must be in the history")] = None
    file: Annotated[PlaceInSource | None, _says("a file of the source that shows the change")] = None
    contains: Annotated[str | None, _says("the text that the file must contain")] = None

    @model_validator(mode="after")
    def _provable(self) -> Fix:
        if (self.file is None) != (self.contains is None):
            raise ValueError(
                "`file` and `contains` go together: a file of the source and the text that it must contain"
            )
        if self.commit is None and self.file is None:
            raise ValueError(
                "say what proves it: a `commit` of the history, or a `file` and the text that it `contains`"
            )
        return self


class BuildSettings(Document):
    """How a package is compiled, where the target and the package's own data do not say it already."""

    archs: Annotated[tuple[Capability, ...], _list("compute capabilities to compile for (default: the target's)")] = ()
    requires: Annotated[
        tuple[Requirement, ...], _list("packages that the compilation needs besides those it declares")
    ] = ()
    dependencies: Annotated[
        tuple[Requirement, ...] | None,
        _says("what the finished package needs, where its source leaves that to code or says it wrongly", strict=False),
    ] = None
    env: Annotated[dict[Variable, str], _says("environment variables of the compilation")] = {}


def _short_form(value: Any) -> Any:  # noqa: ANN401 - what YAML gives
    return {"version": value} if isinstance(value, str) else value


def _git_address(address: str | None) -> str | None:
    return _without_login(address) if address is not None else None


class Package(Document):
    """One pin of the stack: a released version, a git commit, or a folder beside the recipe."""

    version: Annotated[Version | None, _says("a released version")] = None
    git: Annotated[str | None, AfterValidator(_git_address), _says("the address of a git repository")] = None
    commit: Annotated[Commit | None, _says("the commit of the git repository, by its full hash")] = None
    subdirectory: Annotated[PlaceInSource | None, _says("the folder of the repository that holds the package")] = None
    patches: Annotated[tuple[str, ...], _list("patch files beside the recipe, applied in this order")] = ()
    fixes: Annotated[tuple[Fix, ...], _list("changes that the fetched source must contain")] = ()
    path: Annotated[str | None, _says("a source folder beside the recipe")] = None
    extras: Annotated[tuple[Name, ...], _list("extras of the package")] = ()
    build: Annotated[BuildSettings | None, _says("compile the package, with these settings")] = None

    @model_validator(mode="after")
    def _one_source(self) -> Package:
        sources = [name for name in ("version", "git", "path") if getattr(self, name) is not None]
        if len(sources) != 1:
            given = " and ".join(f"`{name}`" for name in sources) or "none"
            raise ValueError(f"give exactly one of `version`, `git` and `path` (given: {given})")
        if (self.git is None) != (self.commit is None):
            raise ValueError("`git` and `commit` go together: a commit by its full hash, never a branch or tag")
        if self.git is None and self.subdirectory:
            raise ValueError("`subdirectory` belongs to a `git` source")
        self._check_fixes()
        if self.patches and self.path is not None:
            raise ValueError("`patches` change a source that is fetched; edit the files of a `path` source instead")
        if self.patches and self.build is None:
            raise ValueError("`patches` change the source, so the package needs a `build` section")
        return self

    def _check_fixes(self) -> None:
        if self.fixes and self.git is None and (self.version is None or self.build is None):
            raise ValueError(
                "`fixes` are proven in a source that is fetched: `git`, or a `version` with a `build` section"
            )
        if self.git is None and any(fix.file is None for fix in self.fixes):
            raise ValueError("a released version has no history: prove its `fixes` by `file` and `contains`")

    @property
    def from_source(self) -> bool:
        """Whether the package is compiled here instead of fetched as a wheel."""
        return self.version is None or self.build is not None


class Override(Document):
    """What other packages ask of a package overruled, and why: it has one version, or it is left out."""

    version: Annotated[
        Version | None, _says("the version that is taken, whatever other packages ask for, if it is not `absent`")
    ] = None
    absent: Annotated[
        Literal[True] | None, _says("true: the image does not have the package, whatever other packages ask for")
    ] = None
    reason: Annotated[Sentence, _says("why, in a sentence")]

    @model_validator(mode="after")
    def _one_answer(self) -> Override:
        if (self.version is None) is (self.absent is None):
            raise ValueError("give either `version` or `absent: true`")
        return self

    @property
    def answer(self) -> str:
        """The version that is taken, or `absent`."""
        return self.version or "absent"

    def contradicts(self, pin: Package) -> bool:
        """Say whether the stack's pin of the package answers otherwise; one from git or a folder fits any version."""
        return self.absent is True or pin.version not in {None, self.version}


class Serve(Document):
    """How the recipe's server is started."""

    engine: Annotated[Literal["sglang", "vllm", "transformers"], _says("the program that serves the model")]
    model: Annotated[str | None, _says("the checkpoint, by its public name or its folder")] = None
    args: Annotated[
        dict[Option, Argument],
        _says("the server's options without the leading dashes; true for one that takes no value"),
    ] = {}
    env: Annotated[dict[Variable, str], _says("environment variables of the server")] = {}
    shm_size: Annotated[Size | None, _says("the container's /dev/shm, such as '8g'", alias="shm-size")] = None
    ipc: Annotated[Literal["host", "private"] | None, _says("the container's IPC namespace")] = None

    @property
    def options(self) -> dict[str, Argument]:
        """The options of `args` by the one name of each, however it is written there; of two the last counts."""
        return {option_name(written): value for written, value in self.args.items()}


class Smoke(Document):
    """The proof: which tiny model, and the checks that must pass for `good`."""

    model: Annotated[Literal["glm5-nvfp4"], _says("the tiny model that decodes")] = "glm5-nvfp4"
    require: Annotated[
        tuple[CheckName, ...],
        _list("the checks that must pass for `good`; one that cannot run makes the result unverified", least=1),
    ] = ("static", "cpu-decode")
    program: Annotated[
        tuple[str, ...],
        _list(
            "a command of your own that is run in the image, followed by the options of `serve.args` and with the "
            "variables of `serve.env`; the check `program` passes if it ends with exit code 0"
        ),
    ] = ()
    memory: Annotated[Size, _says("the memory of the smoke test's container")] = "4g"
    timeout: Annotated[int, Field(ge=10), _says("seconds until the smoke test is given up")] = 600

    @model_validator(mode="after")
    def _program_is_given(self) -> Smoke:
        if bool(self.program) != ("program" in self.require):
            raise ValueError("the check `program` in `require` and the command in `program` go together")
        return self


def _not_empty(value: dict[str, Package]) -> dict[str, Package]:
    if not value:
        raise ValueError("a stack needs at least one package")
    return value


class Recipe(Document):
    """A whole inference stack as a person wishes it."""

    version: Annotated[Literal[1], _says("the version of this format")]
    name: Annotated[Name, _says("the recipe's name, which its lock and its image bear too")]
    description: Annotated[str, _says("what the stack is for, in a sentence")] = ""
    target: Annotated[Target, _says("the GPU that the stack is for")]
    host: Annotated[Host | None, _says("what the recipe asks of the machine that runs the image")] = None
    base: Annotated[Base, _says("the root of the image")]
    python: Annotated[MinorVersion, _says("the Python of the image, such as '3.11'")]
    cuda: Annotated[MinorVersion | None, _says("the CUDA toolkit that compiles, such as '13.1'")] = None
    as_of: Annotated[Date | None, _says("take no package that is newer than this day", alias="as-of")] = None
    indexes: Annotated[
        dict[Name, Index],
        AfterValidator(_claimed_once),
        _says("package indexes besides the default one, by a name you choose"),
    ] = {}
    stack: Annotated[
        dict[Name, Annotated[Package, BeforeValidator(_short_form)]],
        AfterValidator(_not_empty),
        _says("the packages that matter, by name: a version, or a mapping that says more"),
    ]
    overrides: Annotated[dict[Name, Override], _says("requirements of packages that are overruled, by package")] = {}
    serve: Annotated[Serve | None, _says("how the server is started")] = None
    compression: Annotated[
        Literal["gzip", "zstd"],
        _says("how the image's layers are packed: gzip, or zstd (smaller, but no Engine before 23.0 can pull it)"),
    ] = "gzip"
    smoke: Annotated[Smoke, _says("the proof that makes the stack good")] = Smoke()
    waive: Annotated[dict[str, Sentence], _says("preflight rules that do not hold here, each with its reason")] = {}

    @property
    def asked_compiler(self) -> str | None:
        """The version of `cuda-toolkit` in the stack, if it is named with its extra `nvcc`."""
        named = (package for name, package in self.stack.items() if canonicalize_name(name) == "cuda-toolkit")
        return next((package.version for package in named if "nvcc" in package.extras), None)

    @property
    def image_compiler(self) -> str | None:
        """The version of the CUDA compiler that the image itself has: the one asked for, if its wheels hold an nvcc."""
        asked = self.asked_compiler
        return asked if asked and int(asked.partition(".")[0]) >= FIRST_CUDA_WITH_NVCC else None
