"""Products that are measured: number formats by the names of the peers, sizes, kinds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import humming
from humming.backend import Problem
from humming.configs import GemmKind, LayerConfig

__all__ = [
    "BLOCKS",
    "FORMATS",
    "MOE_MS",
    "MS",
    "Block",
    "Format",
    "Work",
    "block_of",
    "shape_of",
    "works_of_block",
]


class Format(NamedTuple):
    """A weight and what it is multiplied with; "" is bf16 as it is."""

    weight: str
    activation: str = ""


#: The names under which peers' results lie; those after the blank line have none there.
FORMATS = {
    "w2a16_int2_g128": Format("u2-g128-bf16"),
    "w3a16_int3_g128": Format("u3-g128-bf16"),
    "w4a16_int4_g128": Format("u4-g128-bf16"),
    "w4a16_mxfp4": Format("e2m1-g32-e8m0"),
    "w4a16_nvfp4": Format("nvfp4"),
    "w8a16_int8_ch": Format("s8-channel-f32"),
    "w8a16_fp8_ch": Format("e4m3fn-channel-f32"),
    "w4a8_int4g128_fp8token": Format("u4-g128-bf16", "e4m3fn-token-f32"),
    "w4a8_int4g128_int8token": Format("u4-g128-bf16", "s8-token-f32"),
    "w4a8_mxfp4_fp8token": Format("e2m1-g32-e8m0", "e4m3fn-token-f32"),
    "w8a8_fp8_block128": Format("e4m3fn-b128x128-f32", "e4m3fn-g128-f32"),
    "w8a8_fp8_ch_token": Format("e4m3fn-channel-f32", "e4m3fn-token-f32"),
    "w8a8_int8_ch_token": Format("s8-channel-f32", "s8-token-f32"),

    "w4a16_int4_zero_g128": Format("u4+z-g128-bf16"),
    "w4a8_int4ch_fp8token": Format("u4-channel-bf16", "e4m3fn-token-f32"),
    "w4a8_int4ch_int8token": Format("u4-channel-bf16", "s8-token-f32"),
}  # fmt: skip
#: Rows of dense products, and tokens of experts'.
MS = tuple(1 << power for power in range(14))
MOE_MS = (1, 8, 64, 256, 1024, 4096, 8192)


class Block(NamedTuple):
    """Experts of a model."""

    experts: int
    top_k: int
    hidden: int
    inter: int


BLOCKS = {
    "deepseek-v3": Block(256, 8, 7168, 2048),
    "qwen3": Block(128, 8, 2048, 768),
    "gpt-oss": Block(32, 4, 2880, 2880),
}


def block_of(text: str) -> Block:
    """By name, or EXPERTS,TOP_K,HIDDEN,INTERMEDIATE; raises ValueError for anything else."""
    if text in BLOCKS:
        return BLOCKS[text]
    experts, top_k, hidden, inter = map(int, text.split(","))
    return Block(experts, top_k, hidden, inter)


def shape_of(text: str) -> tuple[int, int]:
    """N,K; raises ValueError for anything else."""
    n, k = map(int, text.split(","))
    return n, k


@dataclass(frozen=True)
class Work:
    """One product: which numbers, of which sizes, and how rows find their weight.

    Attributes:
        fmt: a key of FORMATS.
        n: rows of the weight.
        k: columns.
        kind: how.
        experts: 0 if dense.
        top_k: choices of a token; 1 if dense.
        down: indexed: every choice has a row of activations of its own.
    """

    fmt: str
    n: int
    k: int
    kind: GemmKind = GemmKind.DENSE
    experts: int = 0
    top_k: int = 1
    down: bool = False

    def problem(self, tokens: int) -> Problem:
        """Its sizes for so many tokens."""
        rows = tokens * self.top_k
        if self.kind is GemmKind.INDEXED and not self.down:
            return Problem(m=rows, top_k=self.top_k)
        return Problem(m=rows)

    @property
    def layer(self) -> LayerConfig:
        """The numbers."""
        weight, activation = FORMATS[self.fmt]
        return LayerConfig(
            n=self.n,
            k=self.k,
            experts=self.experts,
            weight=humming.WeightScheme.parse(weight),
            activation=humming.ActivationScheme.parse(activation or "bf16"),
            output=humming.number_format("bf16"),
        )

    @property
    def facts(self) -> dict[str, object]:
        """What a row says of it."""
        found: dict[str, object] = {"fmt": self.fmt, "n": self.n, "k": self.k}
        if self.experts:
            found |= {"experts": self.experts, "topk": self.top_k}
        return found


def works_of_block(fmt: str, kind: GemmKind, block: Block) -> tuple[Work, Work]:
    """The products before and behind the activation function of a block."""
    up = Work(fmt, 2 * block.inter, block.hidden, kind, block.experts, block.top_k)
    down = Work(fmt, block.hidden, block.inter, kind, block.experts, block.top_k, down=True)
    return up, down
