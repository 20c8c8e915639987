"""CUDA kernels that write and read NVFP4; importing loads the library, and needs neither a GPU nor a driver."""

from nvfp4_kernels.library import Nvfp4Error, dequantize_raw, quantize_raw, version
from nvfp4_kernels.tensors import dequantize, global_scale_of, quantize

__all__ = ["Nvfp4Error", "dequantize", "dequantize_raw", "global_scale_of", "quantize", "quantize_raw", "version"]
