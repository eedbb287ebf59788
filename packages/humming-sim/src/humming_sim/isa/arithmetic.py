"""Opcodes that integers and floating-point types share: each goes to the family of its type."""

from __future__ import annotations

from humming_sim.isa import floating, integer, minmax
from humming_sim.isa.builder import Builder
from humming_sim.isa.registry import instruction
from humming_sim.machine.code import Step
from humming_sim.ptx.model import Instruction

_FLOATS = frozenset(("f16", "bf16", "f32", "f64", "f16x2", "bf16x2", "f32x2"))


def _is_float(item: Instruction) -> bool:
    return item.words[-1] in _FLOATS


@instruction("add", "sub", manual="9.7.1.1-2, 9.7.3.3-4, 9.7.4.1-2, 9.7.5.1-2 add, sub")
def compile_sum(item: Instruction, b: Builder) -> Step:
    """Sums and differences."""
    return floating.compile_binary(item, b) if _is_float(item) else integer.compile_sum(item, b)


@instruction("mul", manual="9.7.1.3, 9.7.3.5, 9.7.4.3 mul")
def compile_product(item: Instruction, b: Builder) -> Step:
    """Products."""
    return floating.compile_binary(item, b) if _is_float(item) else integer.compile_mul(item, b)


@instruction("mad", "fma", manual="9.7.1.4, 9.7.3.6-7, 9.7.4.4, 9.7.5.3 mad, fma")
def compile_fused(item: Instruction, b: Builder) -> Step:
    """Products plus a third operand."""
    return floating.compile_fma(item, b) if _is_float(item) else integer.compile_mad(item, b)


@instruction("div", manual="9.7.1.8, 9.7.3.8 div")
def compile_quotient(item: Instruction, b: Builder) -> Step:
    """Quotients."""
    return floating.compile_div(item, b) if _is_float(item) else integer.compile_div(item, b)


@instruction("abs", "neg", manual="9.7.1.10-11, 9.7.3.9-10, 9.7.4.5-6 abs, neg")
def compile_sign(item: Instruction, b: Builder) -> Step:
    """Absolute values and negations."""
    return floating.compile_sign(item, b) if _is_float(item) else integer.compile_sign(item, b)


@instruction("min", "max", manual="9.7.1.12-13, 9.7.3.11-12, 9.7.4.7-8 min, max")
def compile_extreme(item: Instruction, b: Builder) -> Step:
    """The smaller or larger of two or three."""
    return minmax.compile_float(item, b) if _is_float(item) else minmax.compile_integer(item, b)
