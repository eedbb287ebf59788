"""Every decoder of the headers: which there are, their kernels, and what they must give."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

import humming
import humming_sim
from humming.formats.number import NumberFormat
from humming.formats.operands import OPERANDS, operand_exponent
from humming.formats.scheme import Zero
from humming.formats.table import all_formats, number_format
from humming.jit import HeaderRoots, Program, compile_program
from humming.layouts import GROUP, PlaneLayout, plane_layout

HEADERS = HeaderRoots({"humming": Path(humming.__file__).parent / "include" / "humming"})
KERNELS = Path(__file__).resolve().parents[1] / "compile" / "kernels"

LANES = 256
#: Units that are tested where the layout is not the question: more than any plane has in a word.
SOME_UNITS = 20


@dataclass(frozen=True)
class Case:
    """Codes of one format to one operand format."""

    code: NumberFormat
    target: NumberFormat
    zero: Zero = Zero.NONE

    def __str__(self) -> str:
        return f"{self.code}{'+' * bool(self.zero.value)}{self.zero.value}-{self.target}"

    @property
    def entry(self) -> str:
        return str(self).replace("+", "_").replace("-", "_to_")

    @property
    def exponent(self) -> int | None:
        return operand_exponent(self.code, self.target, self.zero)

    @property
    def layout(self) -> PlaneLayout:
        return plane_layout(self.code, self.target)

    @property
    def family(self) -> str:
        """The cases of a family share a program."""
        kind = "signed" if self.code.signed else f"unsigned{self.zero.value}"
        narrow = "narrow" if self.code.bits < 7 else "wide"
        return f"{kind if self.code.is_integer else narrow}-{self.target}"

    @property
    def units(self) -> int:
        """How many units of the group are decoded: all for one family of each width and unit."""
        every = GROUP // self.layout.unit
        return every if self.family.startswith("unsigned-") else min(every, SOME_UNITS)

    @property
    def arch(self) -> str:
        """A virtual architecture that has the instructions which decoding takes."""
        return "compute_80" if self.target.name == "bf16" else "compute_75"

    @property
    def decoder(self) -> str:
        zero = f"humming::Zero::k{self.zero.name.capitalize()}"
        return f"humming::Decoder<{self.code.cxx}, {self.target.cxx}, {zero}>"

    @property
    def kernel(self) -> str:
        return (
            f'extern "C" __global__ void {self.entry}(KERNEL_PARAMETERS) {{\n'
            f"  decode<{self.decoder}, {self.units}>(words, zeros, operands, exponent);\n}}\n"
        )

    def offsets(self, zeros: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
        """What is subtracted from the codes of each lane."""
        unsigned = self.code.is_integer and not self.code.signed
        midpoint = 1 << (self.code.bits - 1) if unsigned and self.zero is Zero.NONE else 0
        return zeros if self.zero is Zero.INTEGER else np.full_like(zeros, midpoint)


def _code_formats() -> list[NumberFormat]:
    rows = [f for f in all_formats() if f.bits <= 8 and (f.signed or f.is_integer)]
    generic = [f"e{x}m{y}" for x in range(1, 7) for y in range(1, 7) if 1 + x + y <= 8]
    return list(dict.fromkeys([*rows, *map(number_format, generic)]))


def _zeros_of(code: NumberFormat) -> tuple[Zero, ...]:
    """Those that change what is decoded."""
    return tuple(Zero) if code.is_integer and not code.signed else (Zero.NONE,)


#: Every code format with every operand format that is not narrower.
ALL_CASES = [
    Case(code, target, zero)
    for target in OPERANDS
    for code in _code_formats()
    for zero in _zeros_of(code)
    if code.bits <= target.bits
]
CASES = [case for case in ALL_CASES if case.exponent is not None]
REFUSED = [case for case in ALL_CASES if case.exponent is None]


def program(name: str, cases: Sequence[Case], arch: str, kind: str = "ptx") -> Program:
    """A program with a kernel for each case."""
    source = (KERNELS / "decode.cu").read_text(encoding="utf-8")
    source += "\n".join(case.kernel for case in cases)
    headers = HEADERS.closure(source, name)
    return Program(name=name, source=source, arch=arch, kind=kind, headers=headers)  # type: ignore[arg-type]


def families() -> dict[str, list[Case]]:
    """The cases by :attr:`Case.family`."""
    found: dict[str, list[Case]] = {}
    for case in CASES:
        found.setdefault(case.family, []).append(case)
    return found


def ptx_of(cases: Sequence[Case]) -> str:
    """All kernels of some cases in one module."""
    return compile_program(program("decode", cases, cases[0].arch)).data.decode()


@cache
def _all_codes(bits: int) -> npt.NDArray[np.uint8]:
    """[LANES, GROUP]: in random order, every code at every place of the group."""
    places = np.tile(np.arange(LANES), (GROUP, 1))
    shuffled = np.random.default_rng(bits).permuted(places, axis=1)
    return np.ascontiguousarray(shuffled.T % (1 << bits)).astype(np.uint8)


@dataclass(frozen=True)
class Decoded:
    """What a kernel made of codes.

    Attributes:
        numbers: the operands that it gave.
        values: what they shall be worth.
        exponent: the power of two that makes values of numbers, as the kernel has it.
        report: of the simulator.
    """

    numbers: npt.NDArray[np.float64]
    values: npt.NDArray[np.float64]
    exponent: int
    report: humming_sim.Report


def run(case: Case, ptx: str) -> Decoded:
    """Decode every code at every place of a group."""
    codes = _all_codes(case.code.bits)
    # An odd step: with each code at each place, each zero point meets each code.
    zeros = (np.arange(LANES) * 37 % (1 << case.code.bits)).astype(np.int32)
    words = case.layout.pack(torch.from_numpy(codes)).numpy()
    operands = np.zeros((LANES, case.units), dtype=np.uint32)
    exponent = np.zeros(1, dtype=np.int32)
    arguments = [words, zeros, operands, exponent]
    report = humming_sim.launch(ptx, case.entry, LANES // 32, 32, arguments, count=True)
    codes = codes[:, : case.units * case.layout.unit]
    return Decoded(
        numbers=case.target.decode(split_operands(operands, case.target.bits)),
        values=case.code.decode(codes) - case.offsets(zeros)[:, None] * 1.0,
        exponent=int(exponent[0]),
        report=report,
    )


def split_operands(operands: npt.NDArray[np.uint32], bits: int) -> npt.NDArray[np.uint32]:
    """The numbers of registers as codes, from the low end up."""
    shifts = np.arange(0, 32, bits, dtype=np.uint32)
    parts = (operands[..., None] >> shifts) & np.uint32((1 << bits) - 1)
    return parts.reshape(*operands.shape[:-1], -1)
