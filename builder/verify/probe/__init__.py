"""Code that runs inside the image: the standard library and the stack under test, nothing else."""
