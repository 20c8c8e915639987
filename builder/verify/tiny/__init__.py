"""A tiny GLM-5-NVFP4 whose weights compute a known integer program: the checkpoint, its reference, its answers."""
