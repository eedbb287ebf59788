"""What a compiling function asks for: operands as functions of the frame."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from humming_sim.errors import PtxError, UnsupportedInstruction
from humming_sim.isa.types import DTYPES, constant, width_of
from humming_sim.machine.code import Step
from humming_sim.machine.frame import Frame
from humming_sim.machine.machine import Machine
from humming_sim.ptx.model import (
    Address,
    Group,
    Immediate,
    Instruction,
    Operand,
    Register,
    Sink,
    Special,
    Symbol,
)

__all__ = ["Builder", "Environment", "Reader", "Traffic", "Writer"]

#: A value per thread [n], or one scalar for all.
Reader = Callable[[Frame], Any]
#: Stores a value per thread, or one for all.
Writer = Callable[[Frame, Any], None]


@dataclass
class Environment:
    """What names mean in this launch.

    Attributes:
        symbols: address of each variable and parameter: one number, or per thread.
        specials: special registers: one number, a value per thread, or a function of the frame.
        parameters: the parameter bank.
        local: local memory, [threads, bytes].
    """

    symbols: dict[str, int | npt.NDArray[np.int64]]
    specials: dict[str, Any]
    parameters: npt.NDArray[np.uint8]
    local: npt.NDArray[np.uint8]


@dataclass
class Traffic:
    """Which registers an instruction reads and writes, and copies from which to which."""

    reads: set[int] = field(default_factory=set)
    writes: set[int] = field(default_factory=set)
    copies: dict[int, int] = field(default_factory=dict)

    def registers(self) -> set[int]:
        """All of them."""
        return {*self.reads, *self.writes, *self.copies, *self.copies.values()}


class Builder:
    """Gives operands of the instruction being compiled.

    Attributes:
        machine: the machine compiled for; closures may keep it.
        environment: what names mean.
        item: the instruction being compiled.
        next: for turning points, the block after this one.
        traffic: what the instruction does with registers, as its function asks for them.
    """

    def __init__(
        self, machine: Machine, environment: Environment, defined: dict[int, npt.NDArray[np.bool_]]
    ) -> None:
        self.machine = machine
        self.environment = environment
        self.item = Instruction("", (), None, 0, "")
        self.next = 0
        self.traffic = Traffic()
        self._defined = defined
        self._blocks: Callable[[str], int] = lambda label: 0

    def start(self, item: Instruction, following: int, blocks: Callable[[str], int]) -> None:
        """Turn to the next instruction."""
        self.item, self.next, self._blocks = item, following, blocks
        self.traffic = Traffic()

    # --------------------------------------------------------------------------- refusals

    def unsupported(self, reason: str) -> UnsupportedInstruction:
        """An exception to raise: legal PTX that is not simulated."""
        return UnsupportedInstruction(reason, self.item.line, self.item.text)

    def wrong(self, reason: str) -> PtxError:
        """An exception to raise: PTX that is not legal."""
        return PtxError(reason, self.item.line, self.item.text)

    def operands(self, *counts: int) -> tuple[Operand, ...]:
        """The operands, if there are as many as one of `counts`."""
        found = self.item.operands
        if len(found) not in counts:
            raise self.wrong(f"{len(found)} operands; expected {' or '.join(map(str, counts))}")
        return found

    # ---------------------------------------------------------------------------- reading

    def read(self, operand: Operand, type_: str, check: bool = True) -> Reader:
        """The operand as values of a PTX type (NumPy type: isa.types.DTYPES).

        A register wider than the type gives its low bits.

        Args:
            check: whether reading a register that nothing wrote is a fault.
        """
        if isinstance(operand, Register):
            return self._read_register(operand, type_, check)
        if isinstance(operand, Immediate):
            value = constant(operand, type_)
            return lambda frame: value
        if isinstance(operand, Symbol):
            return self._read_symbol(operand, type_)
        if isinstance(operand, Special):
            return self._read_special(operand, type_)
        raise self.wrong(f"an operand of type .{type_} cannot be {type(operand).__name__.lower()}")

    def read_group(self, operand: Operand, type_: str, count: int | None = None) -> list[Reader]:
        """The members of ``{a, b}``, or a single operand, as a list of readers."""
        items = operand.items if isinstance(operand, Group) else (operand,)
        if count is not None and len(items) != count:
            raise self.wrong(f"{len(items)} members in a group; expected {count}")
        return [self.read(item, type_) for item in items]

    def _read_register(self, operand: Register, type_: str, check: bool) -> Reader:
        array, kept, wanted = self._register(operand), width_of(operand.type), width_of(type_)
        self.traffic.reads.add(operand.index) if check else None
        if wanted > kept:
            raise self.wrong(f"{operand.name} has {kept} bits where .{type_} is expected")
        if type_ == "pred":
            read: Reader = (
                (lambda f: ~array[f.sel]) if operand.negated else (lambda f: array[f.sel])
            )
        elif wanted == kept == 128:
            read = lambda f: array[f.sel]  # noqa: E731
        elif wanted == kept:
            view = array.view(DTYPES[type_])
            read = lambda f: view[f.sel]  # noqa: E731
        else:
            low, dtype = np.dtype(f"u{wanted // 8}"), DTYPES[type_]
            read = lambda f: array[f.sel].astype(low).view(dtype)  # noqa: E731
        if operand.index in self.machine.holds.row:
            read = self._used(operand, read)
        if check and operand.index in self._defined:
            return self._checked(operand, read)
        return read

    def _used(self, operand: Register, access: Callable[..., Any]) -> Callable[..., Any]:
        """An access to a register that asynchronous operations also use."""
        holds = self.machine.holds

        def used(frame: Frame, *value: Any) -> Any:
            holds.use(frame, operand.index, operand.name)
            return access(frame, *value)

        return used

    def _checked(self, operand: Register, read: Reader) -> Reader:
        defined, name = self._defined[operand.index], operand.name

        def checked(frame: Frame) -> Any:
            there = defined[frame.sel]
            if not there.all():
                frame.machine.report(
                    frame,
                    "uninitialised",
                    f"register {name} is read and nothing wrote it",
                    index=int(np.argmin(there)),
                )
            return read(frame)

        return checked

    def _read_symbol(self, operand: Symbol, type_: str) -> Reader:
        address = self.environment.symbols.get(operand.name)
        if address is None:
            raise self.wrong(f"{operand.name} is declared nowhere")
        dtype = np.dtype(DTYPES[type_])
        values = np.asarray(address) + operand.offset
        if values.ndim == 0:
            value = values.astype(dtype)[()]
            return lambda frame: value
        array = values.astype(dtype)
        return lambda frame: array[frame.sel]

    def _read_special(self, operand: Special, type_: str) -> Reader:
        value = self.environment.specials.get(operand.name)
        if value is None:
            raise self.unsupported(f"special register {operand.name} is not simulated")
        dtype = np.dtype(DTYPES[type_])
        if callable(value):
            return lambda frame: np.asarray(value(frame)).astype(dtype)
        array = np.asarray(value).astype(dtype)
        if array.ndim == 0:
            scalar = array[()]
            return lambda frame: scalar
        return lambda frame: array[frame.sel]

    # ---------------------------------------------------------------------------- writing

    def write(self, operand: Operand, type_: str) -> Writer:
        """A function that stores values of a PTX type in a register, or drops them for ``_``.

        In a wider register, signed types are sign-extended and others zero-extended.
        """
        if isinstance(operand, Sink):
            return lambda frame, value: None
        if not isinstance(operand, Register):
            raise self.wrong("the result needs a register")
        array, kept, given = self._register(operand), width_of(operand.type), width_of(type_)
        self.traffic.writes.add(operand.index)
        if given > kept:
            raise self.wrong(f"{operand.name} has {kept} bits where .{type_} is written")
        if type_ == "pred" or kept == 128:
            target = array
        elif given == kept:
            target = array.view(DTYPES[type_])
        elif type_[0] == "s":
            target = array.view(f"i{kept // 8}")
        else:
            bits = np.dtype(f"u{given // 8}")
            return self._marking(
                operand, lambda f, value: array.__setitem__(f.sel, np.asarray(value).view(bits))
            )
        return self._marking(operand, lambda f, value: target.__setitem__(f.sel, value))

    def write_group(self, operand: Operand, type_: str, count: int | None = None) -> list[Writer]:
        """The members of ``{a, b}``, or a single operand, as a list of writers."""
        items = operand.items if isinstance(operand, Group) else (operand,)
        if count is not None and len(items) != count:
            raise self.wrong(f"{len(items)} members in a group; expected {count}")
        return [self.write(item, type_) for item in items]

    def _marking(self, operand: Register, write: Writer) -> Writer:
        if operand.index in self.machine.holds.row:
            write = self._used(operand, write)
        defined = self._defined.get(operand.index)
        if defined is None:
            return write

        def marked(frame: Frame, value: Any) -> None:
            write(frame, value)
            defined[frame.sel] = True

        return marked

    def copy(self, target: Operand, source: Operand, type_: str) -> Step:
        """A move: copying what nothing wrote is no fault, using the copy is."""
        read, write = self.read(source, type_, check=False), self.write(target, type_)
        if not isinstance(source, Register) or not isinstance(target, Register):
            return lambda frame: write(frame, read(frame))
        self.traffic.writes.discard(target.index)
        self.traffic.copies[target.index] = source.index
        known, out = self._defined.get(source.index), self._defined.get(target.index)
        if known is None or out is None:
            return lambda frame: write(frame, read(frame))

        def step(frame: Frame) -> None:
            write(frame, read(frame))
            out[frame.sel] = known[frame.sel]

        return step

    def watched(self, register: int) -> npt.NDArray[np.bool_] | None:
        """Which threads have written a register, if that is being watched."""
        return self._defined.get(register)

    def _register(self, operand: Register) -> npt.NDArray[Any]:
        return self.machine.registers[operand.index]

    # --------------------------------------------------------------------------- addresses

    def address(self, operand: Operand) -> Reader:
        """The address that ``[base + offset]`` names, as int64 [n] (never a scalar)."""
        if not isinstance(operand, Address):
            raise self.wrong("an address in brackets is expected")
        base, offset = operand.base, np.int64(operand.offset)
        if isinstance(base, Register):
            type_ = "u64" if width_of(base.type) == 64 else "u32"
            read = self.read(base, type_)
            if type_ == "u64":
                return lambda f: read(f).view(np.int64) + offset
            return lambda f: read(f).astype(np.int64) + offset
        read = self.read(base, "s64")
        return lambda f: f.expand(read(f)) + offset

    def label(self, operand: Operand) -> int:
        """The block that a label names."""
        if not isinstance(operand, Symbol):
            raise self.wrong("a label is expected")
        return self._blocks(operand.name)

    def table(self, operand: Operand) -> list[int]:
        """The blocks of a ``.branchtargets`` list."""
        name = operand.name if isinstance(operand, Symbol) else ""
        if name not in self.machine.kernel.tables:
            raise self.wrong("the name of a .branchtargets list is expected")
        return [self._blocks(label) for label in self.machine.kernel.tables[name]]
