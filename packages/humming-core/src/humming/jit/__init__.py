"""Source text to machine code: templates, headers, compilers, and the cache of what they made.

It knows CUDA and nothing of quantization, backends or devices: it takes plain values. Nothing here
needs a GPU or a driver.
"""

from humming.jit.cache import Cache, Key, default_folder
from humming.jit.compile import chosen_compiler, compile_many, compile_program
from humming.jit.headers import HeaderRoots
from humming.jit.library import KernelLibrary
from humming.jit.nvcc import Nvcc
from humming.jit.nvrtc import Nvrtc
from humming.jit.program import Binary, Program, ProgramCompiler, Refusal, Usage
from humming.jit.render import Renderer

__all__ = [
    "Binary",
    "Cache",
    "HeaderRoots",
    "KernelLibrary",
    "Key",
    "Nvcc",
    "Nvrtc",
    "Program",
    "ProgramCompiler",
    "Refusal",
    "Renderer",
    "Usage",
    "chosen_compiler",
    "compile_many",
    "compile_program",
    "default_folder",
]
