"""Builds the wheel with nvcc for the architectures in TORCH_CUDA_ARCH_LIST; same sources and tools, same bytes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

sys.path.insert(0, str(Path(__file__).parent))

from nvcc import ARCHITECTURES, compile_command, link_command, toolkit


class CompileKernels(build_ext):
    """Turns the `.cu` sources of the one extension into a plain shared library."""

    def get_ext_filename(self, fullname: str) -> str:
        """Name the library for the C ABI that it has, not for one Python."""
        return fullname.replace(".", "/") + ".so"

    def build_extension(self, ext: Extension) -> None:
        """Compile and link, always: the architectures are no part of setuptools' own idea of what changed."""
        home = toolkit(os.environ)
        target = Path(self.get_ext_fullpath(ext.name))
        objects = [Path(self.build_temp, Path(source).name).with_suffix(".o") for source in ext.sources]
        for folder in (target.parent, Path(self.build_temp)):
            folder.mkdir(parents=True, exist_ok=True)
        for source, compiled in zip(ext.sources, objects, strict=True):
            run(compile_command(home, source, compiled, os.environ.get(ARCHITECTURES, "")))
        run(link_command(home, objects, target))


class PlainWheel(bdist_wheel):
    """Tags the wheel for any Python 3: the library has no Python ABI."""

    def get_tag(self) -> tuple[str, str, str]:
        """Return the wheel's tag, such as `py3-none-linux_x86_64`."""
        return "py3", "none", super().get_tag()[2]


def run(command: list[str]) -> None:
    """Show a command and run it; it shows its own errors."""
    sys.stdout.write(" ".join(command) + "\n")
    sys.stdout.flush()
    if subprocess.run(command, check=False).returncode != 0:
        raise SystemExit(f"{command[0]} failed")


os.umask(0o022)
setup(
    ext_modules=[Extension("nvfp4_kernels.libnvfp4", ["csrc/nvfp4.cu"], depends=["csrc/nvfp4_format.h"])],
    cmdclass={"build_ext": CompileKernels, "bdist_wheel": PlainWheel},
)
