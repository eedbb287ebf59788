"""tcgen05.mma of every kind, and .ws (PTX ISA 9.0, 9.7.16.10.9.1 and 9.7.16.10.9.3)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from humming_sim.isa.builder import Builder, Reader
from humming_sim.isa.registry import Modifiers, instruction
from humming_sim.isa.tcgen05_operands import Factors, Sources
from humming_sim.isa.tcgen05_order import ALL_QUARTERS
from humming_sim.isa.tcgen05_pipe import check_descriptor
from humming_sim.isa.tcgen05_state import TensorCores, cta_group, tensor_cores
from humming_sim.machine.code import Step
from humming_sim.machine.frame import Frame
from humming_sim.matrices.accumulation import Accumulation, hardware_accumulation
from humming_sim.ptx.model import Address, Group, Immediate, Instruction, Operand
from humming_sim.tcgen05.accumulators import Block, Layout, accumulator_layout, split_address
from humming_sim.tcgen05.forms import KINDS, MmaForm
from humming_sim.tcgen05.instruction_descriptor import InstructionDescriptor, decode, lint
from humming_sim.tcgen05.operands import storage
from humming_sim.tcgen05.product import accumulate
from humming_sim.tcgen05.zero_columns import lint_zero_columns

_SCALES = ("block16", "block32", "scale_vec::1X", "scale_vec::2X", "scale_vec::4X")
_MOST_HALVINGS = 15


@dataclass(frozen=True)
class _Operands:
    """Readers of an instruction's operands; what it doesn't have is None."""

    d: Reader
    a: Reader
    b: Reader
    descriptor: Reader
    accumulate: Reader
    scales: tuple[Reader, Reader] | None
    disabled: list[Reader]
    zero_columns: Reader | None
    halvings: int
    a_in_tensor_memory: bool


@instruction("tcgen05.mma", manual="9.7.16.10.9.1 tcgen05.mma, 9.7.16.10.9.3 tcgen05.mma.ws")
def compile_mma(item: Instruction, b: Builder) -> Step:
    """Issue a matrix product; collector hints change nothing."""
    if "sp" in item.words:
        raise b.unsupported("tcgen05.mma.sp (sparse A) is not simulated")
    cores = tensor_cores(b.machine)
    form = _form(item, b, cores.target)
    operands = _operands(item, b, form)

    def step(frame: Frame) -> None:
        values = _Values(frame, operands)
        for index in range(frame.n):
            cores.use_group(frame, form.cta_group)
            one = frame.of(frame.threads()[index : index + 1])
            product = _product(cores, form, one, values.of(index), operands)
            if product is not None:
                product.check_access(one)
                cores.submit(one, product.members, product)

    return step


def _form(item: Instruction, b: Builder, target: int) -> MmaForm:
    modifiers = Modifiers(item, "tcgen05.mma")
    ws = modifiers.flag("ws")
    group = cta_group(modifiers.one_of)
    kind = modifiers.one_of(*(f"kind::{name}" for name in KINDS))[len("kind::") :]
    scaled = modifiers.flag("block_scale")
    scale = modifiers.one_of(*_SCALES, default="") if scaled else ""
    if modifiers.flag("ashift"):
        raise b.unsupported("tcgen05.mma.ashift is not simulated")
    modifiers.drop_prefix("collector::")
    modifiers.done()
    form = MmaForm(kind, group, ws, scale.removeprefix("scale_vec::"), target)
    if scaled != form.row.scaled:
        raise b.wrong(f"kind::{kind} {'needs' if form.row.scaled else 'has no'} .block_scale")
    if form.problems():
        raise b.wrong("; ".join(form.problems()))
    return form


def _operands(item: Instruction, b: Builder, form: MmaForm) -> _Operands:
    """Match operands with what the syntax has at each place."""
    first, rest = list(item.operands[:4]), list(item.operands[4:])
    if len(first) < 4:
        raise b.wrong(f"{len(item.operands)} operands; expected at least five")
    scales = None
    if form.row.scaled:
        scales = b.address(_take(b, rest)), b.address(_take(b, rest))
    disabled: list[Reader] = []
    if rest and isinstance(rest[0], Group):
        disabled = b.read_group(rest.pop(0), "b32", 4 * form.cta_group)
    enable = b.read(_take(b, rest), "pred")
    zero = b.read(rest.pop(0), "u64") if rest and form.ws else None
    halvings = _halvings(b, rest, form)
    if rest:
        raise b.wrong(f"{len(rest)} operands too many")
    in_tensor_memory = isinstance(first[1], Address)
    return _Operands(
        d=b.address(first[0]),
        a=b.address(first[1]) if in_tensor_memory else b.read(first[1], "u64"),
        b=b.read(first[2], "u64"),
        descriptor=b.read(first[3], "u32"),
        accumulate=enable,
        scales=scales,
        disabled=disabled,
        zero_columns=zero,
        halvings=halvings,
        a_in_tensor_memory=in_tensor_memory,
    )


def _take(b: Builder, rest: list[Operand]) -> Operand:
    if not rest:
        raise b.wrong("too few operands")
    return rest.pop(0)


def _halvings(b: Builder, rest: list[Operand], form: MmaForm) -> int:
    """scale-input-d."""
    if not rest:
        return 0
    operand = rest.pop(0)
    if not isinstance(operand, Immediate) or not 0 <= operand.value <= _MOST_HALVINGS:
        raise b.wrong(f"scale-input-d is an immediate from 0 to {_MOST_HALVINGS}")
    if form.kind not in ("f16", "tf32") or form.target == 110:
        raise b.wrong(f"scale-input-d doesn't exist for kind::{form.kind} on sm_{form.target}")
    return operand.value


class _Values:
    """What the operands are for each thread of a frame."""

    def __init__(self, frame: Frame, operands: _Operands) -> None:
        scales = operands.scales or ()
        zero = [operands.zero_columns] if operands.zero_columns else []
        readers = [operands.d, operands.a, operands.b, operands.descriptor, operands.accumulate]
        self._columns = [
            frame.expand(read(frame)).tolist()
            for read in (*readers, *scales, *operands.disabled, *zero)
        ]

    def of(self, index: int) -> list[int]:
        """Those of one thread, in the order d, a, b, descriptor, accumulate, the optional ones."""
        return [int(column[index]) for column in self._columns]


def _product(
    cores: TensorCores, form: MmaForm, frame: Frame, values: list[int], operands: _Operands
) -> _Product | None:
    """The product that a thread issues; None if its descriptor is no use."""
    machine = frame.machine
    d, a, b, bits, enable = values[:5]
    rest = values[5:]
    for sentence in lint(bits, form):
        machine.report(frame, "descriptor", f"instruction descriptor {bits:#010x}: {sentence}",
                       index=0)  # fmt: skip
    descriptor = decode(bits, form)
    if (
        descriptor.m not in form.ms
        or not descriptor.n
        or ""
        in (
            descriptor.d_type,
            descriptor.a_type,
            descriptor.b_type,
        )
    ):
        return None
    rows, columns = descriptor.m // form.cta_group, descriptor.n // form.cta_group
    a_use = storage(descriptor, "a").use(rows, cores.target)
    b_use = storage(descriptor, "b").use(columns, cores.target)
    if operands.a_in_tensor_memory:
        if descriptor.transpose_a:
            machine.report(frame, "descriptor", "bit 15: A in tensor memory is K-major", index=0)
    else:
        check_descriptor(frame, 0, a, a_use, "A")
    check_descriptor(frame, 0, b, b_use, "B")
    scales = None
    if operands.scales:
        scales = (
            _scale_address(frame, rest.pop(0), descriptor.scale_a_id, "A"),
            _scale_address(frame, rest.pop(0), descriptor.scale_b_id, "B"),
        )
    disabled = [rest.pop(0) for _ in operands.disabled]
    zero = rest.pop(0) if operands.zero_columns else 0
    for sentence in lint_zero_columns(zero, descriptor.m, descriptor.max_shift) if zero else ():
        machine.report(frame, "descriptor", f"zero-column {sentence}", index=0)
    members = cores.members(frame, int(frame.ctas()[0]), form.cta_group)
    sources = Sources(a, b, scales, operands.a_in_tensor_memory, zero)
    return _Product(
        cores=cores, form=form, descriptor=descriptor, members=members, d=d, sources=sources,
        enable=bool(enable), disabled=tuple(disabled), halvings=operands.halvings,
    )  # fmt: skip


def _scale_address(frame: Frame, address: int, scale_id: int, name: str) -> int:
    """The address without its two top bits, where CUTLASS keeps the scale id as well."""
    carried = address >> 30
    if carried not in (0, scale_id):
        frame.machine.report(
            frame, "descriptor",
            f"the address of {name}'s scales carries scale id {carried} in bits 30-31 and the "
            f"instruction descriptor {scale_id}",
            index=0, space="tmem", address=address,
        )  # fmt: skip
    return address & (1 << 30) - 1


@dataclass(frozen=True)
class _Product:
    """One issued product; executed when called."""

    cores: TensorCores
    form: MmaForm
    descriptor: InstructionDescriptor
    members: tuple[int, ...]
    d: int
    sources: Sources
    enable: bool
    disabled: tuple[int, ...]
    halvings: int

    @cached_property
    def layout(self) -> Layout:
        """Where D lies."""
        return accumulator_layout(self.descriptor.m, self.descriptor.n, self.form)

    def check_access(self, frame: Frame) -> None:
        """At issue: lanes, columns, and fences to what touched them before."""
        lane, column = split_address(self.d)
        if lane not in self.layout.alignments:
            frame.machine.report(
                frame, "alignment",
                f"D begins at lane {lane}; layout {self.layout.letter} begins at "
                f"{' or '.join(map(str, self.layout.alignments))}",
                index=0, space="tmem", address=self.d,
            )  # fmt: skip
        thread = int(frame.threads()[0])
        spans = [(column, self.layout.columns)]
        spans += self.sources.spans(self.descriptor, self.layout)
        if self.sources.a_in_tensor_memory and split_address(self.sources.a)[0] != lane:
            frame.machine.report(
                frame, "alignment",
                f"A begins at lane {split_address(self.sources.a)[0]} and D at lane {lane}",
                index=0, space="tmem", address=self.sources.a,
            )  # fmt: skip
        for member in self.members:
            for first, width in spans:
                self.cores.need(frame, member, first, width)
                columns = slice(first, first + width)
                self.cores.order.access(frame, thread, member, ALL_QUARTERS, columns, True)

    def __call__(self, frame: Frame) -> None:
        factors = Factors(self.cores, frame, self.members, self.descriptor, self.sources)
        for block in self.layout.blocks:
            self._block(frame, block, factors)

    def _block(self, frame: Frame, block: Block, factors: Factors) -> None:
        """The part of D in one block."""
        cta = self.members[block.cta]
        lane, column = split_address(self.d)
        lanes = slice(lane + block.lanes.start, lane + block.lanes.stop)
        columns = slice(column, column + block.columns[1] - block.columns[0])
        keep = self._enabled(block.cta, lanes)
        index = lanes if keep is None else np.arange(lanes.start, lanes.stop)[keep][:, None]
        across = columns if keep is None else np.arange(columns.start, columns.stop)
        self.cores.need(frame, cta, columns.start, columns.stop - columns.start)
        c = self.cores.read(frame, cta, index, across) if self.enable else None
        a, b = factors.of(block, self.layout, keep)
        accumulation = self._accumulation(frame)
        cells = accumulate(a, b, c, self.descriptor, self.halvings, accumulation)
        self.cores.write(cta, index, across, cells)

    def _enabled(self, member: int, lanes: slice) -> npt.NDArray[np.bool_] | None:
        """Lanes that disable-output-lane leaves; None for all."""
        masks = self.disabled[4 * member : 4 * member + 4]
        if not any(masks):
            return None
        lane = np.arange(lanes.start, lanes.stop)
        words = np.array(masks, np.uint32)[lane // 32]
        kept: npt.NDArray[np.bool_] = (words >> (lane % 32).astype(np.uint32) & 1) == 0
        return kept

    def _accumulation(self, frame: Frame) -> Accumulation | None:
        if frame.machine.options.accumulation == "exact" or self.descriptor.d_type == "s32":
            return None
        what = self.descriptor
        return hardware_accumulation(
            self.cores.target, "tcgen05", what.a_type, what.k, bool(what.block)
        )
