"""Where the virtual environment of an image lies, and the few files that make it one."""

from __future__ import annotations

import posixpath
from dataclasses import dataclass

PREFIX = "/opt/env"
DEFAULT_HOME = "/usr/bin"  # Debian's


@dataclass(frozen=True, kw_only=True, slots=True)
class Venv:
    """The virtual environment at `prefix`, made of the base image's own Python (`python`: its minor version, `3.13`).

    `home` is the folder of the base's interpreter. `cuda` is the major version of the CUDA compiler among the packages,
    if there is one, and `libraries` are those of its libraries that linkers look for by a name that the wheels lack.
    Paths are absolute in the image; `archived` turns one into its name in a layer.
    """

    python: str
    prefix: str = PREFIX
    home: str = DEFAULT_HOME
    cuda: str | None = None
    libraries: tuple[str, ...] = ()

    @property
    def base_interpreter(self) -> str:
        """The interpreter of the base image that the environment uses."""
        return f"{self.home}/python{self.python}"

    @property
    def interpreter(self) -> str:
        """The interpreter that scripts of the environment name in their first line."""
        return f"{self.prefix}/bin/python"

    @property
    def site_packages(self) -> str:
        """Where packages are imported from."""
        return f"{self.prefix}/lib/python{self.python}/site-packages"

    @property
    def toolkit(self) -> str:
        """The folder of the CUDA compiler, as CUDA_HOME names it."""
        return f"{self.site_packages}/nvidia/cu{self.cuda}"

    @property
    def toolkit_links(self) -> dict[str, str]:
        """The symbolic links that make the wheels of a CUDA compiler one toolkit, and what they point to."""
        if self.cuda is None:
            return {}
        named = {f"{self.toolkit}/lib/lib{name}.so": f"lib{name}.so.{self.cuda}" for name in self.libraries}
        return {f"{self.toolkit}/lib64": "lib", **named}

    @property
    def cache_tag(self) -> str:
        """The tag in the names of CPython's byte code files (PEP 3147)."""
        return f"cpython-{self.python.replace('.', '')}"

    def scheme(self, name: str, distribution: str) -> str:
        """Return the folder of an install scheme of the wheel format, as pip lays it out in a virtual environment."""
        match name:
            case "purelib" | "platlib":
                return self.site_packages
            case "scripts":
                return f"{self.prefix}/bin"
            case "headers":
                return f"{self.prefix}/include/site/python{self.python}/{distribution}"
            case "data":
                return self.prefix
            case _:
                raise ValueError(f"no install scheme is called {name!r}")

    def byte_code(self, source: str) -> str:
        """Return where the byte code of a source file lies."""
        folder, name = posixpath.split(source)
        return f"{folder}/__pycache__/{name.removesuffix('.py')}.{self.cache_tag}.pyc"

    @property
    def settings(self) -> bytes:
        """The text of `pyvenv.cfg`: `home` is what makes the interpreter look beside it for site-packages."""
        return f"home = {posixpath.dirname(self.base_interpreter)}\ninclude-system-site-packages = false\n".encode()

    @property
    def links(self) -> dict[str, str]:
        """The symbolic links of the environment, and what they point to."""
        names = ("python", "python3", f"python{self.python}")
        return {f"{self.prefix}/bin/{name}": self.base_interpreter for name in names} | self.toolkit_links

    @property
    def identity(self) -> dict[str, str]:
        """What of the environment changes the bytes of layers."""
        home = {} if self.home == DEFAULT_HOME else {"home": self.home}
        return {"python": self.python, "prefix": self.prefix, **home}

    @property
    def own_files(self) -> frozenset[str]:
        """The paths that belong to the environment itself, which no wheel may replace."""
        return frozenset({f"{self.prefix}/pyvenv.cfg", *self.links})


def archived(path: str) -> str:
    """Return the name in a layer of an absolute path in the image."""
    return path.removeprefix("/")
