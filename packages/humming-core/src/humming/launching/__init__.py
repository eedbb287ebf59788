"""Loading and launching through the CUDA driver: the runtime "cuda".

A kernel is loaded once per device, its arguments are packed once per layer, and a launch changes a
few of them: some microseconds of Python, without a synchronization, an allocation or a compiler.
"""

from humming.launching.arguments import KINDS, ArgumentBlock
from humming.launching.chain import CudaChain
from humming.launching.driver import Driver, cuda_driver
from humming.launching.kernel import CudaKernel
from humming.launching.launch import CudaLaunch, describe
from humming.launching.runtime import CudaRuntime
from humming.launching.tensor_maps import ELEMENTS, SWIZZLES, MapEncoder, problems

__all__ = [
    "ELEMENTS",
    "KINDS",
    "SWIZZLES",
    "ArgumentBlock",
    "CudaChain",
    "CudaKernel",
    "CudaLaunch",
    "CudaRuntime",
    "Driver",
    "MapEncoder",
    "cuda_driver",
    "describe",
    "problems",
]
