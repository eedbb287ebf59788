"""Families of layers: each has one packed form, and pipelines of kernels that read it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

from humming.backend import KernelSpec, PackedWeight, Problem, RepackSpec
from humming.configs import ComputeConfig, LayerConfig, TuningConfig
from humming.errors import ConfigError
from humming.profiles import DeviceProfile
from humming.weight import CanonicalWeight
from humming_sm75_sm89 import candidates as mma_candidates
from humming_sm75_sm89 import kernel as mma_kernel
from humming_sm75_sm89.backend import Sm75Sm89Backend
from humming_sm75_sm89.layout import MmaLayout
from humming_sm75_sm89.layout import layout_of as mma_layout_of
from humming_sm75_sm89.tuning import MmaTuning
from humming_sm90 import (
    candidates,
    cost,
    kernel,
    stream_candidates,
    stream_cost,
    stream_kernel,
    wide_candidates,
    wide_kernel,
)
from humming_sm90.layout import (
    WgmmaLayout,
    are_of_one_width,
    are_scaled_by_steps,
    layout_of,
    refuse_layout,
)
from humming_sm90.packing import fitted, pack_weight
from humming_sm90.stream_tuning import StreamTuning
from humming_sm90.tuning import WgmmaTuning
from humming_sm90.wide_tuning import WideTuning

__all__ = ["FAMILIES", "Family", "Narrow", "Pipeline", "SameWidth"]

Layout = TypeVar("Layout")
Tuning = TypeVar("Tuning", bound=TuningConfig)


@dataclass(frozen=True)
class Pipeline(Generic[Layout, Tuning]):
    """Kernels that are cut by one kind of tuning.

    Attributes:
        tuning: that kind.
        proposals: tunings worth considering for a problem.
        microseconds: estimated time with one of them.
        spec: the kernel with it.
    """

    tuning: type[Tuning]
    proposals: Callable[
        [DeviceProfile, LayerConfig, ComputeConfig, Layout, Problem], Iterable[Tuning]
    ]
    microseconds: Callable[
        [DeviceProfile, LayerConfig, ComputeConfig, Layout, Problem, Tuning], float
    ]
    spec: Callable[[DeviceProfile, LayerConfig, ComputeConfig, Layout, Tuning], KernelSpec]


class Family(ABC, Generic[Layout]):
    """What the backend asks about a layer, by how its weight is packed.

    Attributes:
        pipelines: by name.
    """

    pipelines: ClassVar[Mapping[str, Pipeline[Any, Any]]]

    def __init__(self, profile: DeviceProfile) -> None:
        self.profile = profile

    @classmethod
    @abstractmethod
    def has(cls, layer: LayerConfig) -> bool:
        """Whether a layer is of this family: its formats alone decide, which `fit` keeps."""

    @abstractmethod
    def refuse(self, layer: LayerConfig, compute: ComputeConfig) -> str | None:
        """A sentence for what no pipeline multiplies."""

    @abstractmethod
    def fit(
        self, weight: CanonicalWeight, layer: LayerConfig
    ) -> tuple[CanonicalWeight, LayerConfig]:
        """See :meth:`KernelBackend.fit`."""

    @abstractmethod
    def layout(self, layer: LayerConfig) -> Layout:
        """The packed form; ``str()`` is its id."""

    @abstractmethod
    def pack(self, weight: CanonicalWeight, layer: LayerConfig) -> PackedWeight:
        """See :meth:`KernelBackend.pack`."""

    def repack(self, weight: CanonicalWeight, layer: LayerConfig) -> RepackSpec | None:
        """See :meth:`KernelBackend.repack`."""
        return None

    def applies_function(self, layer: LayerConfig) -> bool:
        """See :meth:`KernelBackend.applies_function`."""
        return False

    def candidates(
        self, layer: LayerConfig, compute: ComputeConfig, problem: Problem
    ) -> Iterator[TuningConfig]:
        """The proposals of all pipelines."""
        layout = self.layout(layer)
        for pipeline in self.pipelines.values():
            yield from pipeline.proposals(self.profile, layer, compute, layout, problem)

    def cost(
        self, layer: LayerConfig, compute: ComputeConfig, problem: Problem, tuning: TuningConfig
    ) -> float:
        """By the model of the tuning's pipeline."""
        pipeline, layout = self._pipeline(tuning), self.layout(layer)
        return pipeline.microseconds(self.profile, layer, compute, layout, problem, tuning)

    def kernel(
        self, layer: LayerConfig, compute: ComputeConfig, tuning: TuningConfig
    ) -> KernelSpec:
        """Of the tuning's pipeline."""
        pipeline = self._pipeline(tuning)
        return pipeline.spec(self.profile, layer, compute, self.layout(layer), tuning)

    def _pipeline(self, tuning: TuningConfig) -> Pipeline[Layout, Any]:
        for pipeline in self.pipelines.values():
            if type(tuning) is pipeline.tuning:
                return pipeline
        names = " or ".join(pipeline.tuning.__name__ for pipeline in self.pipelines.values())
        raise ConfigError("tuning", tuning, f"a {names} for such a layer")


class SameWidth(Family[WgmmaLayout]):
    """Weights that are operands as they are stored, with scales of groups on either side.

    Both come from shared memory, tokens as the M side of the MMA: so a thread needs two of their
    scales, where kernels with weights as the M side would need one for each sum.
    """

    pipelines: ClassVar[Mapping[str, Pipeline[Any, Any]]] = {
        "wgmma": Pipeline(WgmmaTuning, candidates.proposals, cost.microseconds, kernel.gemm_spec)
    }

    @classmethod
    def has(cls, layer: LayerConfig) -> bool:
        """Codes and activations of one kind, 8 bits both, and scales every 128 of K."""
        return are_of_one_width(layer) and are_scaled_by_steps(layer)

    def refuse(self, layer: LayerConfig, compute: ComputeConfig) -> str | None:
        """A sentence for groups and orders that TMA does not copy."""
        return refuse_layout(layer)

    def fit(
        self, weight: CanonicalWeight, layer: LayerConfig
    ) -> tuple[CanonicalWeight, LayerConfig]:
        """See :func:`humming_sm90.packing.fitted`."""
        return fitted(weight, layer)

    def layout(self, layer: LayerConfig) -> WgmmaLayout:
        """See :class:`humming_sm90.layout.WgmmaLayout`."""
        return layout_of(layer)

    def pack(self, weight: CanonicalWeight, layer: LayerConfig) -> PackedWeight:
        """See :func:`humming_sm90.packing.pack_weight`."""
        return pack_weight(weight, layer, layout_of(layer))


class Narrow(Family[MmaLayout]):
    """Weights that come from registers, where most are decoded, in the order of MMAs.

    One packed form serves mma.sync and wgmma, any M.
    """

    pipelines: ClassVar[Mapping[str, Pipeline[Any, Any]]] = {
        "mma": Pipeline(
            MmaTuning, mma_candidates.proposals, stream_cost.mma_microseconds, mma_kernel.gemm_spec
        ),
        "stream": Pipeline(
            StreamTuning,
            stream_candidates.proposals,
            stream_cost.microseconds,
            stream_kernel.stream_spec,
        ),
        "wide": Pipeline(
            WideTuning,
            wide_candidates.proposals,
            wide_candidates.microseconds,
            wide_kernel.wide_spec,
        ),
    }

    def __init__(self, profile: DeviceProfile) -> None:
        super().__init__(profile)
        self._mma = Sm75Sm89Backend(profile)

    @classmethod
    def has(cls, layer: LayerConfig) -> bool:
        """All others."""
        return not SameWidth.has(layer)

    def refuse(self, layer: LayerConfig, compute: ComputeConfig) -> str | None:
        """What mma.sync does not multiply, no other pipeline does."""
        return self._mma.refuse_device(self.profile) or self._mma.refuse(layer, compute)

    def fit(
        self, weight: CanonicalWeight, layer: LayerConfig
    ) -> tuple[CanonicalWeight, LayerConfig]:
        """See :func:`humming_sm75_sm89.order.fitted`."""
        return self._mma.fit(weight, layer)

    def layout(self, layer: LayerConfig) -> MmaLayout:
        """See :class:`humming_sm75_sm89.layout.MmaLayout`."""
        return mma_layout_of(layer, self.profile)

    def pack(self, weight: CanonicalWeight, layer: LayerConfig) -> PackedWeight:
        """See :func:`humming_sm75_sm89.packing.pack_weight`."""
        return self._mma.pack(weight, layer)

    def repack(self, weight: CanonicalWeight, layer: LayerConfig) -> RepackSpec | None:
        """See :func:`humming_sm75_sm89.repack.repack_spec`."""
        return self._mma.repack(weight, layer)

    def applies_function(self, layer: LayerConfig) -> bool:
        """In all pipelines a thread has results of weights that are 8 rows apart."""
        return True


#: Every layer is of exactly one of them.
FAMILIES: tuple[type[Family[Any]], ...] = (SameWidth, Narrow)
