"""How a GEMM kernel of the skeleton in core is launched: CTAs, shared memory, workspace.

All of it follows from how the kernel is cut, whatever it multiplies with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Protocol

from humming.backend import LaunchShape, Problem
from humming.configs import ComputeConfig, GemmKind, LayerConfig
from humming.errors import ConfigError
from humming.profiles import DeviceProfile
from humming.scheduling import Partition, Schedule, Split, ceil_div, max_row_tiles
from humming_sm75_sm89.tuning import COUNTER_BYTES

__all__ = [
    "FEW_CHOICES",
    "FEW_EXPERTS",
    "Cut",
    "launch_of",
    "routing_bytes",
    "splits_of",
    "tile_count",
    "workspace_of",
]

#: Choices that a warp sorts, and experts that it can tell apart; twins of ``FewChoices``.
FEW_CHOICES, FEW_EXPERTS = 32, 1 << 16

#: SMs of a device whose profile does not say.
_SOME_SMS = 64
_SPLITS = (2, 3, 4, 6, 8)


class Cut(Protocol):
    """What a tuning says about a kernel of the skeleton; `MmaTuning` explains the terms."""

    @property
    def warps_k(self) -> int:
        """Teams, which take turns in K."""
        ...

    @property
    def ctas(self) -> int:
        """That an SM shall have room for."""
        ...

    @property
    def folds(self) -> bool:
        """Whether scales are multiplied into operands."""
        ...

    @property
    def splits(self) -> int:
        """Parts of K of a tile, each for another CTA."""
        ...

    @property
    def raster(self) -> int:
        """Tiles across a band."""
        ...

    @property
    def partition(self) -> Partition:
        """How K is cut among CTAs."""
        ...

    @property
    def threads(self) -> int:
        """Of a CTA."""
        ...

    @property
    def tile_n(self) -> int:
        """Rows of weights of a tile."""
        ...

    @property
    def tile_m(self) -> int:
        """Tokens of a tile."""
        ...

    @property
    def partial_bytes(self) -> int:
        """One CTA's part of a tile in the workspace."""
        ...

    def shared_bytes(self, activation_bits: int, output_bits: int, *, experts: bool = False) -> int:
        """Dynamic shared memory without the table of experts."""
        ...


def routing_bytes(experts: int) -> int:
    """Shared memory behind all else of a layer of experts: what is known of groups, or choices."""
    return 4 * (max(experts, FEW_CHOICES) + 1) if experts else 0


def tile_count(kind: GemmKind, layer: LayerConfig, problem: Problem, tuning: Cut) -> int:
    """The most tiles that a call can have."""
    rows = max_row_tiles(kind, problem.m, tuning.tile_m, max(layer.experts, 1))
    return rows * ceil_div(layer.n, tuning.tile_n)


def _ctas(profile: DeviceProfile, kind: GemmKind, tiles: int, tuning: Cut) -> int:
    """CTAs of a launch: one per item of a dense problem, else as many as the device holds."""
    resident = (profile.limits.sm_count or _SOME_SMS) * tuning.ctas
    if tuning.partition.split is Split.STREAM_K:
        return resident
    items = tiles * tuning.partition.splits
    return items if kind is GemmKind.DENSE else min(items, resident)


def launch_of(
    profile: DeviceProfile, compute: ComputeConfig, tuning: Cut, shared_bytes: int
) -> Callable[[Problem, LayerConfig], LaunchShape]:
    """The launch shape of a problem; the same object for the same problem."""

    @lru_cache(maxsize=4096)
    def shape(problem: Problem, layer: LayerConfig) -> LaunchShape:
        tiles = tile_count(compute.gemm, layer, problem, tuning)
        return LaunchShape(
            grid=(_ctas(profile, compute.gemm, tiles, tuning), 1, 1),
            block=(tuning.threads, 1, 1),
            shared_bytes=shared_bytes + routing_bytes(layer.experts),
        )

    return shape


def workspace_of(
    profile: DeviceProfile, compute: ComputeConfig, tuning: Cut
) -> Callable[[Problem, LayerConfig], int]:
    """The workspace of a problem, in bytes.

    Raises:
        ConfigError: when it is called: more tiles are shared than there are counters.
    """

    def nbytes(problem: Problem, layer: LayerConfig) -> int:
        tiles = tile_count(compute.gemm, layer, problem, tuning)
        ctas = _ctas(profile, compute.gemm, tiles, tuning)
        if compute.gemm is not GemmKind.DENSE and tuning.partition.split is Split.STREAM_K:
            # How many tiles there are is known on the device alone: a CTA has two parts at most.
            return COUNTER_BYTES + 2 * ctas * tuning.partial_bytes
        schedule = Schedule(
            tiles=tiles,
            # Stored columns may be more than the inputs; more parts than splits there are not.
            steps=max(ceil_div(layer.k, 128), tuning.splits),
            ctas=ctas,
            partition=tuning.partition,
        )
        counters, slots, *_ = schedule.workspace(1, 1)
        if counters * 4 > COUNTER_BYTES:
            allowed = f"no parts of K with more than {COUNTER_BYTES // 4} tiles"
            raise ConfigError("tuning", f"{tuning}, with {tiles} tiles", allowed)
        return COUNTER_BYTES + slots * tuning.partial_bytes if slots else 0

    return nbytes


def splits_of(
    profile: DeviceProfile,
    layer: LayerConfig,
    compute: ComputeConfig,
    problem: Problem,
    tuning: Cut,
) -> Iterator[int]:
    """Ways to cut K among CTAs: whole tiles, and parts as long as they find an SM each."""
    yield 1
    if compute.gemm is not GemmKind.DENSE or compute.batch_invariant:
        return
    tiles = tile_count(compute.gemm, layer, problem, tuning)
    resident = (profile.limits.sm_count or 1) * tuning.ctas
    units = ceil_div(layer.k, 128)
    for splits in _SPLITS:
        enough = units >= 2 * splits * tuning.warps_k
        if enough and tiles * splits <= resident and tiles * 4 <= COUNTER_BYTES:
            yield splits
