"""What the image says of itself: its environment variables and labels, from the recipe and the lock."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from builder.build.venv import PREFIX, Venv
from builder.lock.examine import facts_of
from builder.lock.model import LockedGit
from builder.preflight.pins import driver_floor, needed_cuda, runtime_cuda

if TYPE_CHECKING:
    from builder.lock.model import Lock
    from builder.recipe.model import Recipe

CACHE = "/var/cache/envbuild"
LOCK_LABEL = "dev.envbuild.lock"
# Every just-in-time compiler of the field keeps its results here; none of them keys its cache by the whole stack,
# so the folder carries the lock's digest and a mounted cache can never serve another stack. SGLang sets DeepGEMM's
# variable to its own (deep_gemm_wrapper/compile_utils.py), so both name one folder.
JIT_CACHES = {
    "CUDA_CACHE_PATH": "cuda",
    "CUTE_DSL_CACHE_DIR": "cute-dsl",
    "DG_JIT_CACHE_DIR": "deep-gemm",
    "FLASHINFER_WORKSPACE_BASE": "flashinfer",
    "SGLANG_DG_CACHE_DIR": "deep-gemm",
    "TILELANG_CACHE_DIR": "tilelang",
    "TORCHINDUCTOR_CACHE_DIR": "torchinductor",
    "TORCH_EXTENSIONS_DIR": "torch-extensions",
    "TRITON_CACHE_DIR": "triton",
    "TVM_FFI_CACHE_DIR": "tvm-ffi",
    "XDG_CACHE_HOME": "xdg",
}
# The wheels whose libraries a just-in-time compiler links, and the names that linkers look for: the wheels lack them.
LINKED = {
    "nvidia-cublas": ("cublas", "cublasLt"),
    "nvidia-cuda-nvrtc": ("nvrtc",),
    "nvidia-cuda-runtime": ("cudart",),
}
# Checkpoints are no results of a compiler: they stay where people mount them, though XDG_CACHE_HOME moves.
CHECKPOINTS = "/root/.cache/huggingface"


def image_venv(recipe: Recipe, lock: Lock) -> Venv:
    """Return the virtual environment of the image, with the CUDA compiler that the recipe puts into its stack."""
    compiler, home = recipe.image_compiler, lock.interpreter_folder
    if compiler is None:
        return Venv(python=recipe.python, home=home)
    libraries = tuple(name for wheel in lock.wheels for name in LINKED.get(wheel.name, ()))
    return Venv(python=recipe.python, home=home, cuda=compiler.partition(".")[0], libraries=libraries)


def _compiler_variables(venv: Venv) -> dict[str, str]:
    """Return where the image's CUDA compiler is, and where what it links finds its libraries again (ld(1))."""
    return {"CUDA_HOME": venv.toolkit, "LD_RUN_PATH": f"{venv.toolkit}/lib"} if venv.cuda else {}


def image_environment(recipe: Recipe, lock: Lock) -> dict[str, str]:
    """Return the environment variables of the image, sorted by name."""
    cache = f"{CACHE}/{lock.digest[:16]}"
    required, venv = _required_driver(recipe, lock), image_venv(recipe, lock)
    inherited = lock.file.base.environment if lock.file.base else {}
    path = inherited.get("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
    variables = {
        "HF_HOME": CHECKPOINTS,
        **inherited,
        **_compiler_variables(venv),
        "LANG": "C.UTF-8",
        "NVIDIA_DRIVER_CAPABILITIES": "compute,utility",
        "NVIDIA_VISIBLE_DEVICES": "all",
        "PATH": f"{PREFIX}/bin:{path}",
        "VIRTUAL_ENV": PREFIX,
        **{name: f"{cache}/{folder}" for name, folder in JIT_CACHES.items()},
        **({"NVIDIA_REQUIRE_CUDA": required} if required else {}),
    }
    return dict(sorted(variables.items()))


def _required_driver(recipe: Recipe, lock: Lock) -> str:
    """Return what NVIDIA's container toolkit holds the host's driver against before it starts a container.

    A comma means "and". A driver runs every CUDA of its own major version (CUDA compatibility guide), so the minor
    version of the stack's runtime, or of the image's compiler, asks for nothing.
    """
    cuda = needed_cuda([_runtime_cuda(lock)], recipe)
    conditions = [f"cuda>={cuda.partition('.')[0]}.0"] if cuda else []
    conditions += [f"driver>={recipe.host.driver}"] if recipe.host else []
    return ",".join(conditions)


def _driver_floor(recipe: Recipe, lock: Lock) -> str | None:
    """Return the oldest driver that the stack may meet: the recipe's word, else what its runtime and compiler need."""
    return recipe.host.driver if recipe.host else driver_floor(needed_cuda([_runtime_cuda(lock)], recipe))


def _runtime_cuda(lock: Lock) -> str | None:
    return runtime_cuda(facts_of(lock).versions)


def one_line(text: str) -> str:
    """Return a text without line breaks and with single spaces, as a Dockerfile can hold it."""
    return " ".join(text.split())


def image_labels(recipe: Recipe, lock: Lock) -> dict[str, str]:
    """Return the labels of the image, sorted by name: title, clock, recipe, lock, target, driver, the stack's versions.

    Of what is compiled here that is the version of the sdist or the commit; a folder beside the recipe has none.
    """
    labels = {
        **(lock.file.base.labels if lock.file.base else {}),
        "dev.envbuild.cuda": _runtime_cuda(lock),
        "dev.envbuild.driver": _driver_floor(recipe, lock),
        LOCK_LABEL: lock.digest,
        "dev.envbuild.recipe": recipe.name,
        "dev.envbuild.target": recipe.target.gpu,
        "org.opencontainers.image.created": datetime.fromtimestamp(lock.epoch, UTC).isoformat(),
        "org.opencontainers.image.description": one_line(recipe.description),
        "org.opencontainers.image.title": recipe.name,
        "org.opencontainers.image.version": lock.digest[:16],
        **{f"dev.envbuild.stack.{name}": version for name, version in _stack(recipe, lock).items()},
    }
    return {name: value for name, value in sorted(labels.items()) if value}


def _stack(recipe: Recipe, lock: Lock) -> dict[str, str]:
    """Return the versions of the recipe's own packages, as far as the lock knows them."""
    wheels = {wheel.name: wheel.version for wheel in lock.wheels if wheel.name in recipe.stack}
    sources = lock.sources.items()
    return wheels | {name: s.commit if isinstance(s, LockedGit) else s.version for name, s in sources}
