"""The contract that a backend signs, and what loads and launches the binaries it describes.

A backend *decides*: it refuses or accepts, lays out weights, proposes tunings and describes
kernels. It is given a :class:`DeviceProfile` and returns data; it never looks for a GPU,
compiles, caches or launches.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, ClassVar, Protocol, runtime_checkable

from humming.configs import ComputeConfig, LayerConfig, TuningConfig
from humming.profiles import DeviceIdentity, DeviceProfile

if TYPE_CHECKING:
    import torch

    from humming.weight import CanonicalWeight

__all__ = [
    "API_VERSION",
    "Backend",
    "Compiler",
    "EagerBackend",
    "Evidence",
    "KernelBackend",
    "KernelSpec",
    "LaunchShape",
    "PreparedLaunch",
    "Problem",
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
    """The sizes of one call that are not known before it: rows, and rows per expert."""

    m: int
    top_k: int = 1
    expert_rows: int = 0


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


class KernelBackend(Backend):
    """A backend that describes kernels, which core renders, compiles, caches and launches."""

    tuning_type: ClassVar[type[TuningConfig]] = TuningConfig

    @abstractmethod
    def layout(self, layer: LayerConfig) -> object:
        """The weight layout that the kernels of this layer read; it carries an id."""

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


@dataclass(frozen=True, kw_only=True)
class KernelSpec:
    """One kernel as data: what to render, what for, and how to launch it.

    Attributes:
        name: stable and for people, ``"BACKEND.gemm.bf16_u4_g128"``.
        template: path of a Jinja template inside a backend package.
        context: frozen dataclass whose fields are the template's variables.
        arch: target architecture as the compiler spells it.
        args: ordered argument kinds: "ptr", "i32", "u32", "i64", "u64", "f32", "f64", "map".
        launch: sizes of a call to its launch shape.
    """

    name: str
    template: str
    context: object
    arch: str
    args: tuple[str, ...]
    launch: Callable[[Problem], LaunchShape]


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


@runtime_checkable
class Runtime(Protocol):
    """What loads and launches a binary: the CUDA driver, a vendor's driver, or a simulator.

    ``select_backend(device="NAME:DEVICE")`` asks the runtime called NAME.
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
