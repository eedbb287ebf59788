"""Forms of wgmma.mma_async whose A operand, the weights, is in registers."""

from __future__ import annotations

from dataclasses import dataclass

from humming.configs import LayerConfig
from humming_sm75_sm89.layout import MmaLayout

__all__ = ["INSTRUCTIONS", "Instruction", "instruction_of"]


@dataclass(frozen=True)
class Instruction:
    """A form of it.

    Attributes:
        types: of sums, weights and activations, as PTX spells them.
        k: of an MMA.
        sum: type of a sum in C++.
        constraint: of a sum in inline assembly.
        immediates: behind its operands: signs of both, and whether B is transposed.
    """

    types: str
    k: int
    sum: str
    constraint: str
    immediates: str


def _floats(weight: str, x: str, k: int, immediates: str) -> Instruction:
    return Instruction(f"f32.{weight}.{x}", k, "float", "f", immediates)


_PTX = {"e4m3fn": "e4m3", "e5m2": "e5m2"}

#: By the formats of decoded weights and activations.
INSTRUCTIONS = {
    **{(name, name): _floats(name, name, 16, ", 1, 1, 0") for name in ("f16", "bf16")},
    **{(a, b): _floats(_PTX[a], _PTX[b], 32, ", 1, 1") for a in _PTX for b in _PTX},
    ("s8", "s8"): Instruction("s32.s8.s8", 32, "humming::i32", "r", ""),
}


def instruction_of(layer: LayerConfig, layout: MmaLayout) -> Instruction | None:
    """What multiplies such weights and activations; None if nothing does."""
    return INSTRUCTIONS.get((layout.target.name, layer.activation.format.name))
