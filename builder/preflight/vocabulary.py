"""The facts that rules speak of: a closed list of names, each with its kind and its meaning."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

Kind = Literal["version", "text", "texts", "number", "bytes", "flag"]
FactValue = str | int | float | bool | tuple[str, ...]
Facts = dict[str, FactValue]


class FactSpec(NamedTuple):
    """What a fact is: its kind, and its meaning for the reference page."""

    kind: Kind
    meaning: str


VOCABULARY: Mapping[str, FactSpec] = {
    "target.gpu": FactSpec("text", "the target GPU's id"),
    "target.arch": FactSpec("text", "the target's architecture as compilers name it, such as sm_120"),
    "target.capability": FactSpec("version", "the target's compute capability"),
    "target.sm12": FactSpec("flag", "whether the target is of the SM12x family"),
    "target.rtx": FactSpec("flag", "whether the target is a workstation or consumer card"),
    "target.count": FactSpec("number", "how many GPUs the recipe is for"),
    "target.interconnect": FactSpec("text", "how the GPUs of one machine are joined: pcie, nvlink or none"),
    "target.first-driver": FactSpec("version", "the first driver that can know the target"),
    "python": FactSpec("version", "the recipe's Python"),
    "cuda": FactSpec("version", "the toolkit that compiles"),
    "cuda.newest-known": FactSpec("version", "the newest toolkit that the tables know"),
    "archs.first-nvcc": FactSpec("version", "the first nvcc that can compile for all wanted architectures"),
    "archs.newest": FactSpec("text", "the wanted architecture that asks for that nvcc"),
    "archs.without-target": FactSpec("texts", "compiled packages whose `archs` leave the target out"),
    "compiled": FactSpec("texts", "packages that are compiled here"),
    "compiled.needs-nvcc": FactSpec("texts", "packages of the stack that only nvcc can compile"),
    "compile.threads": FactSpec("number", "the most compiler threads that a package's settings allow"),
    "compile.memory": FactSpec("bytes", "what those threads need"),
    "gcc": FactSpec("version", "the base's (or lock's) gcc"),
    "gcc.first-refused": FactSpec("version", "the first gcc that the toolkit refuses"),
    "base.python": FactSpec("version", "the Python of the Debian suite"),
    "base.glibc": FactSpec("version", "the base's glibc"),
    "base.compat": FactSpec("flag", "whether the image puts a forward-compatible libcuda in the way of the host's"),
    "wheels.glibc": FactSpec("version", "the newest glibc that a wheel needs"),
    "wheels.glibc-of": FactSpec("text", "the wheel that needs it"),
    "image.toolkit": FactSpec("version", "`cuda-toolkit` in the stack, named with its extra `nvcc`"),
    "image.lacks": FactSpec("texts", "what a bootstrapped image lacks to compile kernels at run time"),
    "driver.asked": FactSpec("version", "the recipe's `host.driver`"),
    "driver.asked-cuda": FactSpec("version", "the newest toolkit that this driver is native to"),
    "driver.cuda": FactSpec("version", "the newest CUDA of torch, the runtime's wheel and the image's own compiler"),
    "driver.floor": FactSpec("version", "the oldest driver for the major of that CUDA"),
    "torch.version": FactSpec("version", "torch"),
    "torch.cuda": FactSpec("version", "the CUDA that torch was built with"),
    "torch.variant": FactSpec("text", "torch's build, such as cu130"),
    "torch.default-index": FactSpec("flag", "whether torch comes from the default index"),
    "torch.sm120": FactSpec("flag", "whether that build carries code for SM120"),
    "torch.better-variant": FactSpec("text", "a build of the same torch for the toolkit's CUDA major and the target"),
    "torch.overridden": FactSpec("flag", "whether `overrides` names torch"),
    "torch.newest-known": FactSpec("version", "the newest series of torch that the tables know"),
    "transformers.version": FactSpec("version", "transformers"),
    "transformers.overridden": FactSpec("flag", "whether `overrides` names transformers"),
    "overrides.against-stack": FactSpec("texts", "overrides that contradict the stack's own pin"),
    "sglang.version": FactSpec("version", "sglang, also from a known commit"),
    "sglang.unknown-commit": FactSpec("text", "a commit of sglang that no table names"),
    "sglang.proves-smem-fix": FactSpec("flag", "whether `fixes` makes the lock prove sglang#14311"),
    "sglang.newest-known": FactSpec("version", "the newest release of sglang that the tables know"),
    "sglang.pin-torch": FactSpec("version", "the torch that sglang pins"),
    "sglang.pin-transformers": FactSpec("version", "the transformers that sglang pins"),
    "sglang.pin-flashinfer": FactSpec("version", "the FlashInfer that sglang pins"),
    "sglang.pin-kernel": FactSpec("version", "the kernel package that sglang pins"),
    "kernel.name": FactSpec("text", "the kernel package's name"),
    "kernel.version": FactSpec("version", "the kernel package"),
    "kernel.cuda": FactSpec("version", "the CUDA major of the kernel package's wheel"),
    "kernel.torch": FactSpec("version", "the torch that the kernel package was built against"),
    "flashinfer.version": FactSpec("version", "flashinfer-python"),
    "flashinfer.others": FactSpec("texts", "FlashInfer's companion packages of another version"),
    "flashinfer.jit-cache": FactSpec("flag", "whether FlashInfer's kernels come compiled, as flashinfer-jit-cache"),
    "flash-attn.version": FactSpec("version", "flash-attn"),
    "flash-attn-4.version": FactSpec("version", "flash-attn-4, which other packages may ask for"),
    "flash-attn.has-wheel": FactSpec("flag", "whether the project publishes a wheel for this torch, CUDA and Python"),
    "flash-attn.built": FactSpec("flag", "whether the recipe builds flash-attn or names an index for it"),
    "cublas.version": FactSpec("version", "nvidia-cublas"),
    "model.type": FactSpec("text", "the model type that is served or smoke-tested"),
    "serve.engine": FactSpec("text", "the server"),
    "serve.model-type": FactSpec("text", "the model type that is served"),
    "serve.quantization": FactSpec("text", "the weights' quantization, such as nvfp4"),
    "serve.excludes-shared-experts": FactSpec("flag", "whether the checkpoint leaves the shared experts unquantized"),
    "serve.attention": FactSpec("text", "the attention backend"),
    "serve.kv-dtype": FactSpec("text", "the KV cache's dtype; `auto` if nothing is said"),
    "serve.dsa-backends": FactSpec("texts", "the sparse-attention backends that are asked for"),
    "serve.fp4-backend": FactSpec("text", "the FP4 GEMM backend"),
    "serve.moe-runner": FactSpec("text", "the backend of the experts; `auto` if nothing is said"),
    "serve.deep-gemm": FactSpec("flag", "whether DeepGEMM may be used"),
    "serve.fuses-shared-experts": FactSpec("flag", "whether shared experts may be fused into the routed ones"),
    "serve.custom-all-reduce": FactSpec("flag", "whether the custom all-reduce may be used"),
    "serve.tp": FactSpec("number", "tensor parallelism"),
    "serve.mem-fraction": FactSpec("number", "the part of GPU memory for weights and KV cache"),
    "serve.graph-max-bs": FactSpec("number", "the largest batch that is captured as a CUDA graph"),
    "serve.shm": FactSpec("bytes", "the container's /dev/shm"),
    "serve.ipc": FactSpec("text", "the container's IPC namespace"),
    "serve.require-cuda": FactSpec("version", "the CUDA that NVIDIA_REQUIRE_CUDA asks of the driver"),
    "serve.fixed-caches": FactSpec("texts", "JIT cache variables that point at a fixed folder"),
    "memory.weights": FactSpec("bytes", "weights on each GPU"),
    "memory.static": FactSpec("bytes", "the budget for weights and KV cache on each GPU"),
    "memory.headroom": FactSpec("bytes", "what is left on each GPU for activations and graphs"),
    "memory.kv-tokens": FactSpec("number", "how many tokens the KV cache holds"),
    "memory.least-headroom": FactSpec("bytes", "the least headroom that is known to be enough"),
    "disk.need": FactSpec("bytes", "disk that wheels, layers and the image need"),
    "machine.driver": FactSpec("version", "this machine's driver"),
    "machine.memory": FactSpec("bytes", "this machine's memory"),
    "machine.disk-free": FactSpec("bytes", "free disk at the store"),
    "machine.shm": FactSpec("bytes", "this machine's /dev/shm"),
    "machine.gpus": FactSpec("number", "this machine's GPUs that are the target"),
    "machine.other-gpus": FactSpec("texts", "this machine's GPUs that are not the target"),
    "waive.unknown": FactSpec("texts", "waived rules that do not exist"),
    "waive.unused": FactSpec("texts", "waived rules that found nothing"),
}
