"""The contract that a backend signs, and what loads and launches the binaries it describes.

A backend *decides*: it refuses or accepts, lays out weights, proposes tunings and describes
kernels. It is given a :class:`DeviceProfile` and returns data; it never looks for a GPU,
compiles, caches or launches.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Protocol, runtime_checkable

from humming.configs import ComputeConfig, LayerConfig, TuningConfig
from humming.profiles import DeviceIdentity, DeviceProfile

if TYPE_CHECKING:
    import torch

    from humming.weight import CanonicalWeight

__all__ = [
    "API_VERSION",
    "Address",
    "Arg",
    "Backend",
    "Compiler",
    "EagerBackend",
    "Evidence",
    "KernelBackend",
    "KernelSpec",
    "LaunchShape",
    "Link",
    "MapOf",
    "PackedWeight",
    "PreparedLaunch",
    "Problem",
    "RepackSpec",
    "Runtime",
    "TensorMap",
]

#: Version of this contract; a backend states the one it was written for in ``Backend.api``.
API_VERSION = 1


class Evidence(str, Enum):
    """How a backend's kernels for a device were checked; what the support matrix shows."""

    MEASURED = "measured"  # ran on that hardware
    SIMULATED = "simulated"  # ran in a functional simulator of it
    COMPILED = "compiled"  # only compiled for it
    NONE = "none"  # there is nothing to check yet


@dataclass(frozen=True, kw_only=True)
class Problem:
    """The sizes of one call that are not known before it.

    Attributes:
        m: rows: of activations (dense, grouped contiguous), choices M * top_k (indexed), or rows
            that an expert has room for (grouped masked).
        top_k: indexed: choices per row of activations; 1 where each choice has a row of its own.
    """

    m: int
    top_k: int = 1


class Backend(ABC):
    """What can be said for or against a device and a layer; see the two kinds below.

    Attributes:
        name: unique among all installed backends.
        api: version of the contract it was written for.
        fallback: chosen only if no other backend accepts; for backends that run anywhere.
    """

    name: ClassVar[str]
    api: ClassVar[int] = API_VERSION
    fallback: ClassVar[bool] = False

    def __init__(self, profile: DeviceProfile) -> None:
        self.profile = profile

    def __repr__(self) -> str:
        return f"<{self.name} backend for {self.profile.title}>"

    @classmethod
    @abstractmethod
    def refuse_device(cls, profile: DeviceProfile) -> str | None:
        """None to accept the device, or a sentence that says why not."""

    @abstractmethod
    def refuse(self, layer: LayerConfig, compute: ComputeConfig) -> str | None:
        """None to accept the layer on this device, or a sentence that says why not."""

    @classmethod
    def evidence(cls, profile: DeviceProfile) -> Evidence:
        """How this backend's work on a device of this profile was checked."""
        return Evidence.NONE


class EagerBackend(Backend):
    """A backend that computes by calling torch itself instead of describing kernels."""

    @abstractmethod
    def prepare(
        self, weight: CanonicalWeight, layer: LayerConfig, compute: ComputeConfig
    ) -> Callable[..., torch.Tensor]:
        """The layer as a function: activations [M, K] (and routing) to results [M, N].

        The keyword arguments of the function are those of :func:`humming.matmul` for the
        layer's :class:`GemmKind`.
        """


@dataclass(frozen=True)
class PackedWeight:
    """A weight as the kernels of one backend read it.

    Attributes:
        layout: id of the layout, ``"BACKEND/.../v1"``; kernels of another must not read it.
        tensors: by the names of :attr:`KernelSpec.args`.
    """

    layout: str
    tensors: Mapping[str, torch.Tensor]


class KernelBackend(Backend):
    """A backend that describes kernels, which core renders, compiles, caches and launches.

    The package that holds it has its templates in ``templates/`` and its headers in
    ``include/PACKAGE/``.

    Attributes:
        tunings: kinds of tunings, by the name of the pipeline that each is for. A measured row of a
            profile says which it means, ``pipeline = "NAME"``, where there are several.
    """

    tunings: ClassVar[Mapping[str, type[TuningConfig]]] = {}

    def fit(
        self, weight: CanonicalWeight, layer: LayerConfig
    ) -> tuple[CanonicalWeight, LayerConfig]:
        """The same weight in a form that the methods below take, and the layer that it then is.

        Groups that no kernel reads as they are (cut by a tensor-parallel shard, of uneven size)
        become others here. Almost every weight comes back as it is.
        """
        return weight, layer

    @abstractmethod
    def layout(self, layer: LayerConfig) -> str:
        """Id of the layout that the kernels of this layer read."""

    @abstractmethod
    def pack(self, weight: CanonicalWeight, layer: LayerConfig) -> PackedWeight:
        """The weight in that layout, on the weight's own device, by torch alone."""

    def repack(self, weight: CanonicalWeight, layer: LayerConfig) -> RepackSpec | None:
        """A kernel that makes the codes of :meth:`pack` on the device; None to use :meth:`pack`."""
        return None

    @abstractmethod
    def candidates(
        self, layer: LayerConfig, compute: ComputeConfig, problem: Problem
    ) -> Iterable[TuningConfig]:
        """Tunings that would give a correct kernel for this problem."""

    @abstractmethod
    def cost(
        self, layer: LayerConfig, compute: ComputeConfig, problem: Problem, tuning: TuningConfig
    ) -> float:
        """Estimated microseconds; only the order matters."""

    @abstractmethod
    def kernel(
        self, layer: LayerConfig, compute: ComputeConfig, tuning: TuningConfig
    ) -> KernelSpec:
        """What to render, compile and launch."""

    def applies_function(self, layer: LayerConfig) -> bool:
        """Whether all kernels of a layer would apply its `function`, which no other method refuses.

        It depends on numbers alone: then one packed weight serves every kind of GEMM.
        """
        return False

    def compiler(self) -> Compiler | None:
        """A vendor's own compiler; None is core's NVRTC."""
        return None


@dataclass(frozen=True, kw_only=True)
class LaunchShape:
    """Grid, block and cluster in threads and blocks, and dynamic shared memory in bytes."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    cluster: tuple[int, int, int] = (1, 1, 1)
    shared_bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class TensorMap:
    """What a bulk copy must know of a tensor; dimension 0 is the innermost, without a stride.

    As an argument of a launch it stands in a pair with the tensor that it describes.

    Attributes:
        element: type of the elements, ``"bfloat16"``: a row of ``humming.launching.tensor_maps``.
        dims: size of the tensor, elements.
        strides: of dimensions 1 and up, bytes.
        box: size of what one copy moves, elements.
        swizzle: permutation in shared memory: "none", "b32", "b64", "b128" and its variants.
        fill: what lies outside of the tensor reads as: "zero", or "nan" for floats.
        l2_bytes: how much a miss brings into L2: 0, 64, 128 or 256.
    """

    element: str
    dims: tuple[int, ...]
    strides: tuple[int, ...] = ()
    box: tuple[int, ...]
    swizzle: str = "none"
    fill: str = "zero"
    l2_bytes: int = 128


#: The tensor map of a tensor: of its shape, and of the bytes from one of its rows to the next.
MapOf = Callable[[tuple[int, ...], int], TensorMap]


class Arg(NamedTuple):
    """One argument of a kernel.

    Attributes:
        name: what it is; core binds values by name.
        kind: "ptr", "i32", "u32", "i64", "u64", "f32", "f64" or "map".
    """

    name: str
    kind: str


#: A kernel's `row_tile` if it wants choices sorted by expert but not cut into tiles: then `slots`
#: are the numbers of choices [choices], and `groups` offsets [E + 1] into them, as of contiguous
#: rows. And a launch before it brings x and its scales into that order, a row for each slot.
UNTILED = 0


@dataclass(frozen=True, kw_only=True)
class KernelSpec:
    """One kernel as data: what to render, what for, and how to launch it.

    Attributes:
        name: stable and for people, ``"BACKEND.gemm.bf16_u4_g128"``; fit for a file name.
        template: path of a Jinja template in a backend package, ``"PACKAGE/gemm.cu.j2"``. If it
            calls await_earlier(), its kernel may begin early; see ``humming/overlap.cuh``.
        context: frozen dataclass whose fields are the template's variables.
        arch: target architecture as the compiler spells it.
        args: in the order of the kernel's parameters. Beside the tensors of
            :class:`PackedWeight`, these are what `humming.engine` knows; see ARGUMENTS there.
        launch: sizes of a call to its launch shape; the same object for the same shape is faster.
        row_tile: rows of a tile, for what sorts rows into tiles (indexed); or UNTILED.
        workspace: bytes of scratch memory that a call needs. Launches of a backend on one stream
            share it. It is zero before the first, and counters, in one place for all, are left so.
        entry: name of the kernel in the source.
        maps: by name of each argument of kind "map", what describes its tensor.
        packages: further packages whose templates and headers its source uses.
        sorts: choices up to which an indexed kernel needs no sorted ones; see "id_words" there.
    """

    name: str
    template: str
    context: object
    arch: str
    args: tuple[Arg, ...]
    launch: Callable[[Problem, LayerConfig], LaunchShape]
    row_tile: int = 1
    workspace: Callable[[Problem, LayerConfig], int] | None = None
    entry: str = "kernel"
    maps: Mapping[str, MapOf] = field(default_factory=dict)
    packages: tuple[str, ...] = ()
    sorts: int = 0


@dataclass(frozen=True, kw_only=True)
class RepackSpec:
    """A kernel that lays out codes on the device, with the sizes of one weight.

    Attributes:
        kernel: its arguments are "packed" (the weight's own bytes), "out", and `values` by name.
        values: of the other arguments: numbers and tensors.
        shape: of the launch.
        name: of the packed tensor that it makes.
        out_shape: int32 elements of it.
        beside: the other packed tensors, by name.
    """

    kernel: KernelSpec
    values: Mapping[str, object]
    shape: LaunchShape
    name: str
    out_shape: tuple[int, ...]
    beside: Mapping[str, torch.Tensor]


class Compiler(Protocol):
    """Source text to a binary. Core owns cache, saved sources and errors."""

    def compile(self, source: str, arch: str, include_roots: Sequence[str]) -> bytes:
        """The binary for `arch`; raises CompileError with the log."""
        ...

    def fingerprint(self) -> str:
        """Name and version, mixed into the cache key."""
        ...


class PreparedLaunch(Protocol):
    """A kernel with its arguments, packed once and launched often; safe in several threads."""

    def __call__(self, shape: LaunchShape, *changed: object) -> None:
        """Launch on the current stream with new values in the changing slots; asynchronous.

        Raises:
            ConfigError: a value does not fit its slot.
            LaunchError: the launch is refused.
        """
        ...


class Address(NamedTuple):
    """What a changing slot of a :class:`Link` gets: an address, or the map of what is there.

    Attributes:
        base: which of the addresses that each call gives.
        offset: bytes behind it.
        map: of what is there; None in a slot of kind "ptr".
    """

    base: int
    offset: int = 0
    map: TensorMap | None = None


#: A launch of a chain, which nobody else uses, its shape, and what its changing slots get.
Link = tuple[PreparedLaunch, LaunchShape, Sequence[Address]]


@runtime_checkable
class Runtime(Protocol):
    """What loads and launches a binary: the CUDA driver, a vendor's driver, or a simulator.

    ``select_backend(device="NAME:DEVICE")`` asks the runtime called NAME. An attribute `portable`
    that is true says that :meth:`load` takes PTX and no machine code. Where pointers are numbers a
    runtime may have a method `chain`: ``chain(links)(bases)`` launches all links on the current
    stream, in less time than one after another.
    """

    name: str

    def identify(self, device: str) -> DeviceIdentity | None:
        """Who `device` (an ordinal or a profile name) is, or None if there is no such one."""
        ...

    def devices(self) -> Sequence[str]:
        """What :meth:`identify` would accept here, for ``humming devices``."""
        ...

    def load(self, binary: bytes, entry: str) -> object:
        """Load a binary and return a handle of its kernel `entry`."""
        ...

    def launch(
        self, kernel: object, shape: LaunchShape, args: Sequence[object], options: Mapping[str, int]
    ) -> None:
        """Launch asynchronously on the current stream; raises LaunchError."""
        ...

    def prepare(
        self,
        kernel: object,
        kinds: Sequence[str],
        args: Sequence[object],
        options: Mapping[str, int],
        changing: Sequence[int] = (),
    ) -> PreparedLaunch:
        """Pack arguments of these kinds (see :class:`KernelSpec`) for many launches.

        Slots in `changing` get their values, in this order, at each launch; what `args` has there
        is ignored. A tensor is an argument of kind "ptr", a pair (TensorMap, tensor) one of "map".
        """
        ...
