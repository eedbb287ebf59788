"""ldmatrix, stmatrix and movmatrix (PTX ISA 9.0, 9.7.14.5.15 to 9.7.14.5.17)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from humming_sim.isa.builder import Builder
from humming_sim.isa.counting import count_rows
from humming_sim.isa.mma import need_whole_warps, read_fragment
from humming_sim.isa.registry import Modifiers, instruction
from humming_sim.isa.spaces import SHARED, WINDOW
from humming_sim.machine.code import Step
from humming_sim.machine.frame import Frame
from humming_sim.matrices.moves import LOADS, STORES, Move, load, store, transpose
from humming_sim.ptx.model import Instruction


def _move(
    item: Instruction, b: Builder, table: dict[tuple[str, str, bool], Move]
) -> tuple[Move, int, bool]:
    """The form of an ldmatrix or stmatrix, how many matrices, and whether addresses are generic."""
    modifiers = Modifiers(item, item.words[0])
    modifiers.one_of("sync")
    modifiers.one_of("aligned")
    shape = modifiers.one_of(*sorted({key[0] for key in table}))
    count = int(modifiers.one_of("x1", "x2", "x4")[1])
    transposed = modifiers.flag("trans")
    generic = not modifiers.one_of("shared", "shared::cta", default="")
    formats = ".".join(modifiers.rest())
    move = table.get((shape, formats, transposed))
    if move is None:
        way = "with" if transposed else "without"
        raise b.unsupported(f".{shape} of .{formats} {way} .trans is not simulated")
    if count not in move.counts:
        raise b.wrong(f".{shape} has no .x{count}")
    return move, count, generic


def _row_frame(
    frame: Frame, addresses: npt.NDArray[np.int64], rows: int, generic: bool
) -> tuple[Frame, npt.NDArray[np.int64]]:
    """The threads whose addresses count, and those addresses within shared memory."""
    if generic:
        addresses = addresses - SHARED
        outside = (addresses < 0) | (addresses >= WINDOW)
        if outside.any():
            index = int(np.argmax(outside))
            frame.machine.report(
                frame, "bounds", "the generic address lies outside of shared memory", index=index,
                address=int(addresses[index]) + SHARED,
            )  # fmt: skip
    if rows == 32:
        return frame, addresses
    threads = frame.threads()
    first = threads % 32 < rows
    return frame.of(threads[first]), addresses[first]


def _load_rows(frame: Frame, where: npt.NDArray[np.int64], move: Move) -> npt.NDArray[np.uint8]:
    """Bytes [n, row_bytes] of memory rows; padding need not have been written and reads as zero."""
    shared = frame.machine.shared
    if not move.padding:
        row = np.ascontiguousarray(shared.load(frame, where, move.row_bytes))
        return row.view(np.uint8).reshape(-1, move.row_bytes)
    shared.locate(frame, where, move.row_bytes)
    octets = np.zeros((frame.n, move.row_bytes), np.uint8)
    for start in range(0, move.row_bytes - move.padding, 4):
        word = np.ascontiguousarray(shared.load(frame, where + start, 4))
        octets[:, start : start + 4] = word.view(np.uint8).reshape(-1, 4)
    return octets


@instruction("ldmatrix", manual="9.7.14.5.15 ldmatrix", together="warp")
def compile_ldmatrix(item: Instruction, b: Builder) -> Step:
    """Rows of matrices in shared memory to fragments."""
    move, count, generic = _move(item, b, LOADS)
    target, source = b.operands(2)
    address = b.address(source)
    registers = move.registers * count
    writes = b.write_group(target, "b32", registers)
    rows, width = move.rows * count, move.row_bytes
    tally = count_rows(b)

    def step(frame: Frame) -> None:
        need_whole_warps(frame)
        part, where = _row_frame(frame, address(frame), rows, generic)
        if tally is not None:
            tally(part, where)
        octets = _load_rows(part, where, move).reshape(-1, rows, width)
        fragments = load(move, octets).reshape(-1, registers)
        for register, write in enumerate(writes):
            write(frame, fragments[:, register])

    return step


@instruction("stmatrix", manual="9.7.14.5.16 stmatrix", together="warp")
def compile_stmatrix(item: Instruction, b: Builder) -> Step:
    """Fragments to rows of matrices in shared memory."""
    move, count, generic = _move(item, b, STORES)
    target, source = b.operands(2)
    address = b.address(target)
    read = read_fragment(b, source, move.registers * count)
    rows, width = move.rows * count, move.row_bytes
    tally = count_rows(b)

    def step(frame: Frame) -> None:
        need_whole_warps(frame)
        part, where = _row_frame(frame, address(frame), rows, generic)
        if tally is not None:
            tally(part, where)
        octets = store(move, read(frame))
        frame.machine.shared.store(part, where, octets.view(f"V{width}").reshape(-1))

    return step


@instruction("movmatrix", manual="9.7.14.5.17 movmatrix", together="warp")
def compile_movmatrix(item: Instruction, b: Builder) -> Step:
    """The transpose of an 8x8 matrix in registers."""
    modifiers = Modifiers(item, "movmatrix")
    for word in ("sync", "aligned", "m8n8", "trans", "b16"):
        modifiers.one_of(word)
    modifiers.done()
    target, source = b.operands(2)
    read, write = read_fragment(b, source, 1), b.write(target, "b32")

    def step(frame: Frame) -> None:
        need_whole_warps(frame)
        write(frame, transpose(read(frame)).reshape(-1))

    return step
