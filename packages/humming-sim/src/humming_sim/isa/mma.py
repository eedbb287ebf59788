"""mma.sync and mma.sp: one warp multiplies matrices that lie in its registers.

PTX ISA 9.0, 9.7.14.5 (mma), 9.7.14.6 (mma.sp), 9.7.14.3 (block scaling). What a product computes,
rounding included, is told in :mod:`humming_sim.matrices.products`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from humming_sim.device import target_parts
from humming_sim.errors import UnsupportedInstruction
from humming_sim.isa.builder import Builder, Reader
from humming_sim.isa.mma_forms import Form, parse
from humming_sim.isa.registry import instruction
from humming_sim.machine.code import Step
from humming_sim.machine.frame import Frame
from humming_sim.machine.geometry import WARP
from humming_sim.matrices import scales, sparse
from humming_sim.matrices.accumulation import hardware_accumulation
from humming_sim.matrices.fragments import (
    FragmentMap,
    a_map,
    accumulator_map,
    b_map,
    quad_pair_maps,
)
from humming_sim.matrices.products import Operand, Product, multiply, operand
from humming_sim.ptx.model import Group, Immediate, Instruction
from humming_sim.ptx.model import Operand as Argument

__all__ = ["accumulator_bits", "by_warp", "need_whole_warps", "product_of", "read_fragment"]

#: Widths of accumulator elements.
_WIDTHS = {"f16": 16, "f32": 32, "s32": 32, "f64": 64}
#: Reads one operand of a product.
_ReadOperand = Callable[[Frame], Operand]


def accumulator_bits(type_: str) -> int:
    """Width of an accumulator element."""
    return _WIDTHS[type_]


def need_whole_warps(frame: Frame) -> None:
    """Lanes that don't take part in an .aligned instruction are a fault.

    With whole warps, values [n] are [W, 32] in another shape.

    Raises:
        SimulationFault: if there are such lanes.
        UnsupportedInstruction: if there are, and the check is off.
    """
    sel = frame.sel
    if isinstance(sel, slice) and sel.start % WARP == 0 and sel.stop % WARP == 0:
        return
    if not frame.warps().full:
        message = "all 32 lanes of a warp execute a matrix instruction together"
        frame.machine.report(frame, "convergence", message)
        raise UnsupportedInstruction(message)


def by_warp(frame: Frame, values: Any) -> npt.NDArray[Any]:
    """A scalar or [n] of whole warps as [W, 32]."""
    return frame.expand(values).reshape(-1, WARP)


def read_fragment(
    b: Builder, argument: Argument, registers: int, bits: int = 32
) -> Callable[[Frame], npt.NDArray[Any]]:
    """A function that gives a fragment [W, 32, R] of whole warps."""
    readers = b.read_group(argument, f"b{bits}", registers)
    dtype = np.dtype(f"u{bits // 8}")

    def read(frame: Frame) -> npt.NDArray[Any]:
        words = np.empty((frame.n, registers), dtype)
        for register, reader in enumerate(readers):
            words[:, register] = reader(frame)
        return words.reshape(-1, WARP, registers)

    return read


def product_of(  # budget: a product's fields, and where it runs
    b: Builder,
    types: tuple[str, str, str],
    k: int,
    name: str,
    *,
    operation: str = "",
    saturate: bool = False,
    rounding: str = "rn",
    scaled: bool = False,
) -> Product:
    """The product of an instruction on the machine being compiled for.

    Args:
        types: of D, A and C.
        k: its depth.
        name: "mma" or "wgmma".
    """
    d, a, c = types
    accumulation = None
    if b.machine.options.accumulation == "hardware" and d in ("f16", "f32"):
        capability, _ = target_parts(b.machine.options.arch or b.machine.target)
        accumulation = hardware_accumulation(capability, name, a, k, scaled)
    return Product(d, c, operation, saturate, rounding, accumulation)


@instruction("mma", manual="9.7.14.5.14 mma, 9.7.14.6.3 mma.sp", together="warp")
def compile_mma(item: Instruction, b: Builder) -> Step:
    """D = A * B + C over fragments in registers."""
    form = parse(item)
    count = 4 + 2 * bool(form.sparse) + 4 * bool(form.scales)
    d, a, second, c, *more = b.operands(count)
    maps = _maps(form)
    read_a = _reader(b, a, maps[0], form.types[1], form.width)
    read_b = _reader(b, second, maps[1], form.types[2], form.width)
    if form.sparse:
        read_a = _sparse(b, form, read_a, more[0], more[1])
    if form.scales:
        read_a = _scaled(b, form, "a", read_a, (more[-4], more[-3]))
        read_b = _scaled(b, form, "b", read_b, (more[-2], more[-1]))
    read_c = read_fragment(b, c, maps[2].registers, _register_bits(maps[2]))
    count = maps[3].registers
    writes = b.write_group(d, f"b{_register_bits(maps[3])}", count)
    product = product_of(
        b, (form.types[0], form.types[1], form.types[3]), form.shape[2], "mma",
        operation=form.operation, saturate=form.saturate, rounding=form.rounding,
        scaled=bool(form.scales),
    )  # fmt: skip
    into_c, into_d = maps[2].matrices, maps[3].fragments

    def step(frame: Frame) -> None:
        need_whole_warps(frame)
        left, right = read_a(frame), read_b(frame)
        results = into_d(multiply(product, left, right, into_c(read_c(frame))))
        results = results.reshape(-1, count)
        for register, write in enumerate(writes):
            write(frame, results[:, register])

    return step


def _register_bits(mapping: FragmentMap) -> int:
    return 64 if mapping.bits == 64 else 32


def _maps(form: Form) -> tuple[FragmentMap, FragmentMap, FragmentMap, FragmentMap]:
    """Fragment maps of A (stored elements), B, C and D."""
    m, n, k = form.shape
    d, c = _WIDTHS[form.types[0]], _WIDTHS[form.types[3]]
    if form.shape == (8, 8, 4) and form.width == 16:
        a, b, of_c = quad_pair_maps(*form.layouts, c)
        return a, b, of_c, quad_pair_maps(*form.layouts, d)[2]
    stored = k // 2 if form.sparse else k
    of_a, of_b = a_map(m, stored, form.width), b_map(k, n, form.width)
    return of_a, of_b, accumulator_map(m, n, c), accumulator_map(m, n, d)


def _reader(
    b: Builder, argument: Argument, mapping: FragmentMap, type_: str, width: int
) -> _ReadOperand:
    read = read_fragment(b, argument, mapping.registers, _register_bits(mapping))
    return lambda frame: operand(mapping.matrices(read(frame)), type_, width)


# ----------------------------------------------------------------------------------------- sparse


def _sparse(
    b: Builder, form: Form, stored: _ReadOperand, metadata: Argument, selector: Argument
) -> _ReadOperand:
    """A dense A from its stored elements and operands e and f."""
    spec = sparse.sparsity(form.shape[2], form.width)
    if not isinstance(selector, Immediate):
        raise b.wrong("the sparsity selector is a constant")
    number = selector.value
    for message in sparse.lint_selector(spec, number):
        raise b.wrong(message)
    (words,) = b.read_group(metadata, "b32", 1)
    ordered = form.sparse == "sp::ordered_metadata"

    def read(frame: Frame) -> Operand:
        elements = stored(frame)
        word = by_warp(frame, words(frame))
        bad = sparse.unusable_chunks(spec, word, number, ordered)
        if bad.any():
            warp, row, chunk = (int(i) for i in np.argwhere(bad)[0])
            frame.machine.report(
                frame, "numeric",
                f"the sparsity metadata of row {row}, chunk {chunk} names no two different "
                f"{'ascending ' * ordered}places",
                index=32 * warp,
            )  # fmt: skip
        dense = sparse.expand(spec, elements.values, word, number)
        return Operand(dense, elements.number_format)

    return read


# ----------------------------------------------------------------------------------------- scales


def _scaled(
    b: Builder, form: Form, name: str, plain: _ReadOperand, arguments: tuple[Argument, Argument]
) -> _ReadOperand:
    """An operand with its block scales: words, and the selector {byte-id, thread-id}."""
    (words,) = b.read_group(arguments[0], "b32", 1)
    selector = arguments[1]
    if not isinstance(selector, Group) or len(selector.items) != 2:
        raise b.wrong(f"operand {{byte-id-{name}, thread-id-{name}}} is a pair")
    ids = [_selector(b, item) for item in selector.items]
    pick = scales.scale_a if name == "a" else scales.scale_b
    count, axis = form.scales, 2 if name == "a" else 1
    each = form.shape[2] // count

    def read(frame: Frame) -> Operand:
        elements = plain(frame)
        byte, thread = (_uniform(frame, read_id) for read_id in ids)
        for first, lane in {*zip(byte.tolist(), thread.tolist(), strict=True)}:
            for message in scales.lint_selector(count, first, lane, name):
                frame.machine.report(frame, "numeric", message)
        found = pick(by_warp(frame, words(frame)), byte, thread, count, form.scale_type)
        every = np.repeat(found, each, axis=axis)
        return Operand(elements.values, elements.number_format, every, form.scale_type)

    return read


def _selector(b: Builder, item: Argument) -> Reader:
    return b.read(item, "b16")


def _uniform(frame: Frame, read: Reader) -> npt.NDArray[np.int64]:
    """One number per warp, [W]; reports lanes of a warp that differ."""
    values = by_warp(frame, read(frame)).astype(np.int64)
    if (values != values[:, :1]).any():
        frame.machine.report(
            frame, "convergence", "the lanes of a warp give different scale selectors"
        )
    return values[:, 0]
