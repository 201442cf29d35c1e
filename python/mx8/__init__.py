"""mx8: MXFP8 training kernels on CPU and CUDA.

mx8.lib     the C library through ctypes: contexts, structs, errors
mx8.ops     the operator table
mx8.torch   the same kernels as PyTorch custom operators (needs torch; imported on demand)
"""

from __future__ import annotations

from .lib import Error, InvalidArgument, OutOfMemory, Unsupported, get_version

__all__ = ["Error", "InvalidArgument", "OutOfMemory", "Unsupported", "get_version"]
__version__ = "0.1.0"
