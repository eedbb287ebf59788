"""What one micro-kernel is: PTX text, arguments, and the outputs to compare."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Bytes: TypeAlias = npt.NDArray[np.uint8]
Array: TypeAlias = npt.NDArray[Any]


@dataclass(frozen=True)
class Memory:
    """A pointer argument: global memory that starts as `data` (any dtype, kept as bytes)."""

    data: Array

    def start(self) -> Bytes:
        """The initial bytes, a fresh copy."""
        return np.frombuffer(np.ascontiguousarray(self.data).tobytes(), np.uint8).copy()

    def describe(self) -> bytes:
        return b"memory" + self.start().tobytes()


@dataclass(frozen=True)
class Scalar:
    """A value argument of the given NumPy dtype."""

    value: int
    dtype: str = "uint32"

    def array(self) -> Array:
        return np.array([self.value], self.dtype)

    def describe(self) -> bytes:
        return f"scalar {self.value} {self.dtype}".encode()


@dataclass(frozen=True)
class Map:
    """A tensor map argument over the memory of another argument (by its position).

    `dims` and `box` are in elements, fastest first; `strides` in bytes, one fewer than dims.
    """

    memory: int
    element: str
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    steps: tuple[int, ...] = ()
    swizzle: str = "none"
    fill: str = "zero"
    offset: int = 0

    def element_strides(self) -> tuple[int, ...]:
        return self.steps or (1,) * len(self.dims)

    def describe(self) -> bytes:
        return repr(self).encode()


Argument: TypeAlias = "Memory | Scalar | Map"


@dataclass(frozen=True)
class Exact:
    """Every bit equal."""


@dataclass(frozen=True)
class SameNumber:
    """Bits equal, except that any NaN of the format equals any other."""

    format: str


@dataclass(frozen=True)
class Within:
    """Both results lie within `allowed` of `reference`; `bounds()` gives the two as float64.

    Where the reference is not finite, the two must be the same number.
    """

    format: str
    bounds: Callable[[], tuple[Array, Array]]
    why: str


Check: TypeAlias = "Exact | SameNumber | Within"
EXACT = Exact()


@dataclass(frozen=True)
class Output:
    """A stretch of a memory argument after the run, and how it is compared."""

    label: str
    argument: int
    offset: int
    dtype: str
    count: int
    check: Check = EXACT

    def read(self, memory: Bytes) -> Array:
        """The output's elements out of its argument's bytes."""
        size = self.count * np.dtype(self.dtype).itemsize
        return memory[self.offset : self.offset + size].view(self.dtype)


@dataclass(frozen=True)
class Case:
    """One launch. The name is `family/what`; outputs name stretches of memory arguments.

    `hidden` memories follow the arguments in number, but the kernel doesn't take them: tensor maps
    and outputs name them.
    """

    name: str
    ptx: str
    arguments: tuple[Argument, ...]
    outputs: tuple[Output, ...]
    block: tuple[int, int, int]
    grid: tuple[int, int, int] = (1, 1, 1)
    cluster: tuple[int, int, int] = (1, 1, 1)
    shared: int = 0
    entry: str = field(default="kernel")
    hidden: tuple[Memory, ...] = ()

    @property
    def family(self) -> str:
        return self.name.split("/")[0]

    def digest(self) -> str:
        """Names the PTX and everything that it was given; a recording holds for one digest."""
        state = hashlib.sha256(self.ptx.encode())
        state.update(repr((self.grid, self.block, self.cluster, self.shared)).encode())
        for argument in (*self.arguments, *self.hidden):
            state.update(argument.describe())
        return state.hexdigest()

    def output_bytes(self, memories: dict[int, Bytes]) -> Bytes:
        """The outputs one after the other, as they are recorded."""
        parts = [
            np.ascontiguousarray(output.read(memories[output.argument])).view(np.uint8)
            for output in self.outputs
        ]
        return np.concatenate(parts)
