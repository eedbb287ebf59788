"""What PTX text says, as data: modules, kernels, instructions and operands."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Union

__all__ = [
    "BITS",
    "Address",
    "Group",
    "Immediate",
    "Instruction",
    "Kernel",
    "Module",
    "Operand",
    "Pair",
    "Parameter",
    "Register",
    "Sink",
    "Special",
    "Symbol",
    "Variable",
]

#: Width of each fundamental type (PTX ISA 9.0, 5.2).
BITS = {
    "pred": 1,
    **{f"{kind}{bits}": bits for kind in "bsu" for bits in (8, 16, 32, 64)},
    "b128": 128,
    "f16": 16,
    "bf16": 16,
    "f16x2": 32,
    "bf16x2": 32,
    "f32": 32,
    "f64": 64,
}


@dataclass(frozen=True)
class Register:
    """A register by its number in the kernel; `negated` is PTX's ``!%p``."""

    index: int
    type: str
    name: str
    negated: bool = False


@dataclass(frozen=True)
class Immediate:
    """A literal. `kind` is "int", "f32" or "f64"; floats are kept as their bits."""

    value: int
    kind: str = "int"


@dataclass(frozen=True)
class Symbol:
    """The address of a variable or parameter plus bytes, or the name of a label or function."""

    name: str
    offset: int = 0


@dataclass(frozen=True)
class Special:
    """A special register, "%tid.x"."""

    name: str


@dataclass(frozen=True)
class Sink:
    """``_``: a result that is not wanted."""


@dataclass(frozen=True)
class Group:
    """``{a, b, ...}``."""

    items: tuple[Operand, ...]


@dataclass(frozen=True)
class Pair:
    """``a|b``: two results."""

    first: Operand
    second: Operand


@dataclass(frozen=True)
class Address:
    """``[base + offset]``, or ``[base, extras...]`` of tensor instructions."""

    base: Operand
    offset: int = 0
    extras: tuple[Operand, ...] = ()


Operand = Union[Register, Immediate, Symbol, Special, Sink, Group, Pair, Address]  # noqa: UP007


@dataclass(frozen=True)
class Instruction:
    """One instruction.

    Attributes:
        opcode: as written, "ld.global.v4.b32".
        operands: in order.
        guard: the predicate register it is under, or None.
        line: line of the PTX text, 1-based.
        text: as written, on one line.
        words: the opcode at its dots, "kind::f16" and "shared::cta" kept whole.
    """

    opcode: str
    operands: tuple[Operand, ...]
    guard: Register | None
    line: int
    text: str
    words: tuple[str, ...] = ()


@dataclass(frozen=True)
class Parameter:
    """Where a kernel parameter lies in the parameter space, in bytes."""

    name: str
    type: str
    offset: int
    size: int
    align: int


@dataclass(frozen=True)
class Variable:
    """A variable in "shared", "local", "global" or "const" space; `data` holds initial bytes.

    `links` are (offset, symbol, addend): places of `data` that hold a symbol's address.
    """

    name: str
    space: str
    offset: int
    size: int
    align: int
    data: bytes = b""
    links: tuple[tuple[int, str, int], ...] = ()


@dataclass
class Kernel:
    """One ``.entry`` with its registers, code and limits.

    Attributes:
        registers: type of each register; an instruction names it by its index.
        labels: label to index of the instruction that follows it.
        tables: ``.branchtargets`` lists by label.
        shared, local: variables by name; offsets start at 0 in each space.
        dynamic: name and alignment of the ``.extern .shared`` array, if any.
        directives: performance directives, "maxntid": (128, 1, 1) and so on.
        suspects: registers that some path may read unwritten; None until it was compiled once.
    """

    name: str
    parameters: dict[str, Parameter] = field(default_factory=dict)
    parameter_bytes: int = 0
    registers: list[str] = field(default_factory=list)
    register_names: list[str] = field(default_factory=list)
    instructions: list[Instruction] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)
    tables: dict[str, tuple[str, ...]] = field(default_factory=dict)
    shared: dict[str, Variable] = field(default_factory=dict)
    shared_bytes: int = 0
    local: dict[str, Variable] = field(default_factory=dict)
    local_bytes: int = 0
    dynamic: dict[str, int] = field(default_factory=dict)
    directives: dict[str, tuple[int, ...]] = field(default_factory=dict)
    suspects: set[int] | None = field(default=None, compare=False)


@dataclass
class Module:
    """A translation unit: ISA version, target, kernels, and module-wide variables."""

    version: tuple[int, int]
    target: str
    kernels: dict[str, Kernel] = field(default_factory=dict)
    variables: dict[str, Variable] = field(default_factory=dict)
