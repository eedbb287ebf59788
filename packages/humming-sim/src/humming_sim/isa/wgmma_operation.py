"""One wgmma.mma_async in flight: where its operands lie, and the computation when it completes."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from humming_sim.isa.builder import Builder
from humming_sim.isa.mma import accumulator_bits, product_of
from humming_sim.isa.wgmma_forms import Form
from humming_sim.machine.frame import Frame
from humming_sim.machine.geometry import WARP
from humming_sim.machine.shared_memory import RANK_SHIFT
from humming_sim.matrices.fragments import FragmentMap, a_map, accumulator_map
from humming_sim.matrices.operands import (
    UNIT,
    canonical_addresses,
    decode_wgmma_descriptor,
    elements,
)
from humming_sim.matrices.products import Operand, Product, multiply, operand
from humming_sim.matrices.sparse import Sparsity, expand, sparsity
from humming_sim.ptx.model import Group, Register
from humming_sim.ptx.model import Operand as Argument

__all__ = ["Operation", "Plan", "make_plan"]

_M = 64
_ROWS = 16  # of D that one warp has
_WARPGROUP = 4

Bits = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class Plan:
    """What all executions of one instruction share.

    Attributes:
        form: the instruction.
        product: what it computes.
        negate, majors: of A and B.
        k_bytes: bytes of a K-major row of A and B.
        d, a: numbers of the registers of D, and of A or none.
        rows: their rows in Holds.
        watched: (which threads wrote it, name, whether it is read without scale-d) of each.
        d_map, a_map: fragments of one warp.
        sparsity, selector: where metadata lies, for a sparse A.
    """

    form: Form
    product: Product
    negate: tuple[bool, bool]
    majors: tuple[str, str]
    k_bytes: tuple[int, int]
    d: tuple[int, ...]
    a: tuple[int, ...]
    rows: npt.NDArray[np.intp]
    watched: list[tuple[npt.NDArray[np.bool_], str, bool]]
    d_map: FragmentMap
    a_map: FragmentMap
    sparsity: Sparsity | None
    selector: int


def make_plan(
    b: Builder,
    form: Form,
    arguments: tuple[Argument, Argument],
    signs: tuple[bool, bool, str, str],
    selector: int,
) -> Plan:
    """The plan of an instruction with operands `arguments` (D, A); `signs` has majors too.

    Raises:
        PtxError: if a fragment has the wrong number of registers.
    """
    d, a, _ = form.types
    bits = accumulator_bits(d)
    stored = form.k // 2 if form.sparse else form.k
    d_map, map_of_a = accumulator_map(_ROWS, form.n, bits), a_map(_ROWS, stored, form.width)
    d_registers = _registers(b, arguments[0], d_map.registers)
    a_registers: list[Register] = []
    if isinstance(arguments[1], Group):
        a_registers = _registers(b, arguments[1], map_of_a.registers)
    both = [(r, False) for r in d_registers] + [(r, True) for r in a_registers]
    watched = [(b.watched(r.index), r.name, always) for r, always in both]
    holds = b.machine.holds
    return Plan(
        form=form,
        product=product_of(
            b, (d, a, d), form.k, "wgmma", operation=form.operation, saturate=form.saturate
        ),
        negate=signs[:2],
        majors=signs[2:],
        k_bytes=(stored * form.width // 8, form.k * form.width // 8),
        d=tuple(r.index for r in d_registers),
        a=tuple(r.index for r in a_registers),
        rows=np.array([holds.row[r.index] for r, _ in both], np.intp),
        watched=[(array, name, always) for array, name, always in watched if array is not None],
        d_map=d_map,
        a_map=map_of_a,
        sparsity=sparsity(form.k, form.width) if form.sparse else None,
        selector=selector,
    )


def _registers(b: Builder, argument: Argument, count: int) -> list[Register]:
    items = argument.items if isinstance(argument, Group) else (argument,)
    found = [item for item in items if isinstance(item, Register)]
    if len(found) != count or len(items) != count:
        raise b.wrong(f"a fragment of {len(items)} registers; expected {count}")
    return found


class Operation:
    """One issue of an instruction by whole warps.

    Attributes:
        plan, frame: what, and by whom.
        keep: which warps add to D instead of overwriting it, [W].
        warps: numbers of the warps in the machine, [W].
        descriptors: of A (None if in registers) and B, [W] each.
        metadata: of a sparse A, [W, 32].
        number, queue: given when it is issued.
        done: whether it has completed.
    """

    def __init__(self, plan: Plan, frame: Frame, keep: npt.NDArray[np.bool_]) -> None:
        self.plan, self.frame, self.keep = plan, frame, keep
        self.warps = frame.warps().ids
        self.descriptors: tuple[npt.NDArray[np.uint64] | None, npt.NDArray[np.uint64]]
        self.metadata: npt.NDArray[np.uint32] | None = None
        self.number = 0
        self.queue: Hashable = None
        self.done = False
        self._flat: list[npt.NDArray[np.int64] | None] = [None, None]
        self._together = False

    def look(self) -> None:
        """Check at the time of issue what will be read, and note where it lies.

        What an asynchronous unit reads must be there when it may begin, not when it happens to end.
        """
        machine = self.frame.machine
        self._together = self._whole_warpgroups()
        step = _WARPGROUP if self._together else 1
        ctas = machine.cta_of[self.warps[::step] * WARP]
        for position, rows in enumerate((_M, self.plan.form.n)):
            values = self.descriptors[position]
            if values is None:
                continue
            flat = self._locate(values[::step], ctas, rows, position)
            machine.shared.need_written(self.frame, flat // UNIT, UNIT)
            machine.shared.check_proxy(self.frame, flat)
            self._flat[position] = flat

    def _whole_warpgroups(self) -> bool:
        """Whether all warps of every warpgroup are here; reports descriptors that differ in one."""
        machine = self.frame.machine
        ids = self.warps
        if len(ids) % _WARPGROUP or machine.geometry.warps % _WARPGROUP:
            return False
        four = ids.reshape(-1, _WARPGROUP)
        if not ((four[:, 0] % _WARPGROUP == 0) & (four[:, 3] - four[:, 0] == 3)).all():
            return False
        for values in self.descriptors:
            groups = None if values is None else values.reshape(-1, _WARPGROUP)
            if groups is not None and (groups != groups[:, :1]).any():
                machine.report(
                    self.frame, "descriptor", "the warps of a warpgroup give different descriptors"
                )
                return False
        return True

    def _locate(
        self, values: npt.NDArray[np.uint64], ctas: npt.NDArray[np.intp], rows: int, position: int
    ) -> npt.NDArray[np.int64]:
        """Offsets of all 16-byte units of operands, [G, lines, units]."""
        plan, machine = self.plan, self.frame.machine
        k = plan.k_bytes[position] * 8 // plan.form.width
        size = machine.geometry.cluster_size
        base = (ctas % size << RANK_SHIFT).astype(np.int64)
        decoded = [decode_wgmma_descriptor(v, plan.majors[position]) for v in values.tolist()]
        starts = np.array([start for start, _ in decoded], np.int64)
        layouts = {layout for _, layout in decoded}
        if len(layouts) == 1:
            addresses = canonical_addresses(starts, layouts.pop(), rows, k, plan.form.width)
        else:
            addresses = np.stack(
                [canonical_addresses(s, layout, rows, k, plan.form.width) for s, layout in decoded]
            )
        addresses = addresses + base[:, None, None]
        return machine.shared.locate_from(self.frame, ctas[:, None, None], addresses, UNIT)

    # ------------------------------------------------------------------------------- computation

    def run(self) -> None:
        """Read everything, compute, write D."""
        self.done = True
        plan = self.plan
        a, b = self._a(), self._b()
        m = _M if self._together else _ROWS
        start = self._accumulators()
        result = multiply(plan.product, a, b, start.reshape(-1, m, plan.form.n))
        fragments = plan.d_map.fragments(result.reshape(-1, _ROWS, plan.form.n))
        registers = self.frame.machine.registers
        for position, index in enumerate(plan.d):
            target = registers[index].view(np.uint32)
            target[self.frame.sel] = fragments[:, :, position].reshape(-1)
        self.frame.machine.progress += 1

    def _accumulators(self) -> Bits:
        """Element bits of D before, [W, 16, n]."""
        plan = self.plan
        kind = np.uint16 if plan.d_map.bits == 16 else np.uint32
        shape = (len(self.warps), _ROWS, plan.form.n)
        if not self.keep.any():
            return np.zeros(shape, kind)
        values = plan.d_map.matrices(self._fragments(plan.d))
        return values if self.keep.all() else np.where(self.keep[:, None, None], values, kind(0))

    def _fragments(self, indices: tuple[int, ...]) -> npt.NDArray[np.uint32]:
        """Registers as [W, 32, R]."""
        registers, sel = self.frame.machine.registers, self.frame.sel
        parts = [registers[index].view(np.uint32)[sel] for index in indices]
        return np.stack(parts, -1).reshape(-1, WARP, len(indices))

    def _a(self) -> Operand:
        """A of each group (64 rows) or warp (16)."""
        plan = self.plan
        type_ = plan.form.types[1]
        if plan.a:
            bits = plan.a_map.matrices(self._fragments(plan.a))
        else:
            bits = self._memory(0)
            if not self._together:
                mine = self.warps % self.frame.machine.geometry.warps % _WARPGROUP
                bits = bits.reshape(len(bits), _WARPGROUP, _ROWS, -1)[np.arange(len(bits)), mine]
        found = operand(
            bits.reshape(len(self.warps), _ROWS, -1), type_, plan.form.width, plan.negate[0]
        )
        values = found.values
        if plan.sparsity is not None and self.metadata is not None:
            values = expand(plan.sparsity, values, self.metadata, plan.selector)
        rows = _M if self._together else _ROWS
        return Operand(values.reshape(-1, rows, values.shape[-1]), type_)

    def _b(self) -> Operand:
        """B of each group or warp, [G, k, n]."""
        plan = self.plan
        bits = np.swapaxes(self._memory(1), 1, 2)
        return operand(bits, plan.form.types[2], plan.form.width, plan.negate[1])

    def _memory(self, position: int) -> Bits:
        """Element bits of an operand in shared memory, [G, rows, k]."""
        flat = self._flat[position]
        if flat is None:
            raise ValueError("an operand in registers is not in memory")
        raw = self.frame.machine.shared.read_async(self.frame, flat, UNIT)
        octets = np.ascontiguousarray(raw).view(np.uint8).reshape(*flat.shape, UNIT)
        return elements(octets, self.plan.form.width, self.plan.majors[position])
