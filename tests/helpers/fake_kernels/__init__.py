"""A backend whose kernel is a few lines: a thread per element, anything that core can bind.

It proves what core does with a backend's kernels, and nothing about fast ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch

from humming.backend import (
    Arg,
    Evidence,
    KernelBackend,
    KernelSpec,
    LaunchShape,
    PackedWeight,
    Problem,
    RepackSpec,
)
from humming.configs import ComputeConfig, GemmKind, LayerConfig, TuningConfig
from humming.errors import ConfigError
from humming.formats.number import NumberFormat
from humming.formats.scheme import Zero
from humming.formats.tensors import decode
from humming.profiles import DeviceProfile
from humming.scheduling import ceil_div, max_row_tiles
from humming.validity import layer_why_not
from humming.weight import CanonicalWeight

ARGS = tuple(
    Arg(name, kind)
    for kind, names in (
        ("ptr", "x"),
        ("i64", "x_stride"),
        ("ptr", "x_scales x_groups order weight table scales zeros bias out workspace"),
        ("i32", "m n k experts top_k"),
        ("ptr", "groups slots row_tiles"),
    )
    for name in names.split()
)

#: One for each element of a result that is computed in parts.
COUNTERS = 4096


@dataclass(frozen=True, kw_only=True)
class FakeTuning(TuningConfig):
    """Threads of a block, parts of K, rows of a tile."""

    threads: int = 64
    splits: int = 1
    row_tile: int = 4

    def __post_init__(self) -> None:
        if self.threads % 32:
            raise ConfigError("threads", self.threads, "a multiple of 32")


@dataclass(frozen=True)
class GemmContext:
    name: str
    activation: NumberFormat
    kind: GemmKind
    has_scales: bool
    group: int
    output: NumberFormat
    bf16: bool
    splits: int
    row_tile: int
    counters: int


@dataclass(frozen=True)
class UnpackContext:
    bits: int


class FakeBackend(KernelBackend):
    """Refuses what its kernel does not read."""

    name = "fake"
    tunings: ClassVar[Mapping[str, type[TuningConfig]]] = {"fake": FakeTuning}
    #: What it was asked to pack, in order; a test clears it.
    packed: ClassVar[list[LayerConfig]] = []
    #: Whether codes are laid out by a kernel.
    repacks: ClassVar[bool] = True

    @classmethod
    def refuse_device(cls, profile: DeviceProfile) -> str | None:
        return None if "mma" in profile.mma else "the fake needs mma"

    @classmethod
    def evidence(cls, profile: DeviceProfile) -> Evidence:
        return Evidence.SIMULATED

    def refuse(self, layer: LayerConfig, compute: ComputeConfig) -> str | None:
        if layer.weight.zero is Zero.FLOAT:
            return "the fake has no float zero points"
        if layer.activation.format.name not in ("f16", "bf16", "s8", "s4", "e4m3fn"):
            return f"the fake does not read {layer.activation.format}"
        return layer_why_not(layer, compute, self.profile)

    def layout(self, layer: LayerConfig) -> str:
        return "fake/plain/v1"

    def pack(self, weight: CanonicalWeight, layer: LayerConfig) -> PackedWeight:
        type(self).packed.append(layer)
        codes = {"weight": weight.codes().to(torch.int32).reshape(-1, weight.n, weight.k)}
        return PackedWeight("fake/plain/v1", {**codes, **beside(weight)})

    def repack(self, weight: CanonicalWeight, layer: LayerConfig) -> RepackSpec | None:
        if not self.repacks:
            return None
        total = max(weight.experts, 1) * weight.n * weight.k
        bits = weight.scheme.code.bits
        args = (("packed", "ptr"), ("out", "ptr"), ("k", "i32"), ("row_bytes", "i32"))
        shape = LaunchShape(grid=(ceil_div(total, 64), 1, 1), block=(64, 1, 1))
        return RepackSpec(
            kernel=KernelSpec(
                name="fake.unpack",
                template="fake_kernels/unpack.cu.j2",
                context=UnpackContext(bits),
                arch=self.profile.target.arch,
                args=(*(Arg(*arg) for arg in args), Arg("total", "i32")),
                launch=lambda problem, layer: shape,
                entry="unpack",
            ),
            values={"k": weight.k, "row_bytes": weight.packed.shape[-1], "total": total},
            shape=shape,
            name="weight",
            out_shape=(max(weight.experts, 1), weight.n, weight.k),
            beside=beside(weight),
        )

    def candidates(
        self, layer: LayerConfig, compute: ComputeConfig, problem: Problem
    ) -> Iterable[TuningConfig]:
        for splits in (1,) if compute.batch_invariant else (1, 2):
            for threads in (32, 64):
                yield FakeTuning(threads=threads, splits=splits)

    def cost(
        self, layer: LayerConfig, compute: ComputeConfig, problem: Problem, tuning: TuningConfig
    ) -> float:
        """Two parts for few rows, and larger blocks for more than sixteen."""
        assert isinstance(tuning, FakeTuning)
        wanted = FakeTuning(threads=64 if problem.m > 16 else 32, splits=2 if problem.m <= 4 else 1)
        return 1.0 + abs(tuning.threads - wanted.threads) + 100 * (tuning.splits != wanted.splits)

    def kernel(
        self, layer: LayerConfig, compute: ComputeConfig, tuning: TuningConfig
    ) -> KernelSpec:
        assert isinstance(tuning, FakeTuning)
        kind, output = compute.gemm, layer.output

        def rows(problem: Problem, layer: LayerConfig) -> int:
            if kind is GemmKind.INDEXED:
                experts = layer.experts
                return max_row_tiles(kind, problem.m, tuning.row_tile, experts) * tuning.row_tile
            return problem.m * (layer.experts if kind is GemmKind.GROUPED_MASKED else 1)

        def launch(problem: Problem, layer: LayerConfig) -> LaunchShape:
            blocks = ceil_div(rows(problem, layer) * layer.n, tuning.threads)
            return LaunchShape(grid=(blocks, tuning.splits, 1), block=(tuning.threads, 1, 1))

        def workspace(problem: Problem, layer: LayerConfig) -> int:
            if tuning.splits == 1:
                return 0
            slots = launch(problem, layer).grid[0] * tuning.threads
            assert slots <= COUNTERS, "a test of small products"
            return 4 * (COUNTERS + slots * tuning.splits)

        name = f"fake.gemm.{kind.value}.{layer.activation}_{output}_{tuning.splits}"
        return KernelSpec(
            name=name,
            template="fake_kernels/gemm.cu.j2",
            context=GemmContext(
                name,
                layer.activation.format,
                kind,
                layer.activation.is_quantized,
                layer.activation.group_size,
                output,
                output.name == "bf16",
                tuning.splits,
                tuning.row_tile,
                COUNTERS,
            ),
            arch=self.profile.target.arch,
            args=ARGS,
            launch=launch,
            row_tile=tuning.row_tile,
            workspace=workspace,
        )


def beside(weight: CanonicalWeight) -> dict[str, torch.Tensor]:
    """All packed tensors but the codes."""
    codes = torch.arange(1 << weight.scheme.code.bits, dtype=torch.uint8, device=weight.device)
    table = decode(codes, weight.scheme.code) - weight.scheme.midpoint
    shape = (-1, weight.n, weight.k)
    scale = _spread(weight, decode(weight.scales, weight.scheme.scale))
    if weight.second is not None:
        scale = scale * weight.second
    tensors = {"table": table, "scales": scale.expand(*weight.shape).reshape(shape).contiguous()}
    if weight.zeros is not None:
        zeros = _spread(weight, weight.zeros.float())
        tensors["zeros"] = zeros.expand(*weight.shape).reshape(shape).contiguous()
    if weight.bias is not None:
        tensors["bias"] = weight.bias.float().reshape(-1, weight.n).contiguous()
    if weight.permutation is not None:
        tensors["order"] = weight.permutation.reshape(-1, weight.k).contiguous()
    return tensors


def _spread(weight: CanonicalWeight, blocks: torch.Tensor) -> torch.Tensor:
    """A value per block to a value per element."""
    bn, bk = weight.scheme.granularity.n, weight.scheme.granularity.k
    rows = (torch.arange(weight.n) + weight.offset[0]) // bn if bn else torch.zeros(weight.n).long()
    columns = torch.arange(weight.k) + weight.offset[1]
    columns = columns // bk if bk else torch.zeros(weight.k).long()
    rows, columns = rows.to(blocks.device), columns.to(blocks.device)
    return blocks.index_select(-2, rows).index_select(-1, columns)
