"""mma.sync: every shape and type of SM90 and before."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from silicon.case import EXACT, Array, Case, Check, Memory, Output, Within
from silicon.elements import WIDTHS, codes, decode, magnitudes, pack, unpack
from silicon.text import kernel, pointers, thread_index

LANES = np.arange(32)
GROUP, QUAD = LANES // 4, LANES % 4
RANDOM_KINDS = ("moderate", "wide", "cancel", "every", "special")
WHY = "PTX ISA 9.0, 9.7.14: the order and the width of the additions are unspecified"


@dataclass(frozen=True)
class Shape:
    """An mma shape with the width of its A and B elements."""

    m: int
    n: int
    k: int
    width: int

    def registers(self, rows: int) -> int:
        """Registers per lane of an operand with `rows` rows of k elements."""
        return max(1, rows * self.k * self.width // (32 * max(32, self.width)))

    @property
    def name(self) -> str:
        return f"m{self.m}n{self.n}k{self.k}"


def operand_matrix(registers: Array, shape: Shape, rows: int, format: str) -> Array:
    """[warps, rows, k] numbers of an A (rows m) or B (rows n) fragment [warps, 32, registers]."""
    fields = decode(unpack(registers, shape.width), format)
    per = max(1, 32 // shape.width)
    warps, _, total = fields.shape
    result = np.zeros((warps, rows, shape.k))
    index = np.arange(total)
    register, within = index // per, index % per
    high = register % 2 if rows == 16 else 0 * register
    step = register // 2 if rows == 16 else register
    row = GROUP[:, None] + 8 * high
    column = QUAD[:, None] * per + within + 4 * per * step
    result[:, row, column] = fields
    return result


def accumulator_matrix(values: Array, m: int) -> Array:
    """[warps, m, 8] from per-lane numbers [warps, 32, m / 4]; two columns a lane."""
    index = np.arange(m // 4)
    result = np.zeros((values.shape[0], m, 8))
    row = GROUP[:, None] + 8 * (index // 2)
    result[:, row, 2 * QUAD[:, None] + index % 2] = values
    return result


def accumulator_lanes(matrix: Array, m: int) -> Array:
    """The inverse of `accumulator_matrix`."""
    index = np.arange(m // 4)
    return matrix[:, GROUP[:, None] + 8 * (index // 2), 2 * QUAD[:, None] + index % 2]


def accumulator_numbers(registers: Array, format: str) -> Array:
    """float64 numbers of an accumulator's registers."""
    if format == "f32":
        return registers.view(np.float32).astype(np.float64)
    if format == "f64":
        return registers.view(np.float64)
    return decode(unpack(registers, 16), "f16")


def product_bounds(
    a: Array, b: Array, c: Array, formats: tuple[str, str], error: float
) -> tuple[Array, Array]:
    """A B^T + C and `error` times the sum of magnitudes."""
    with np.errstate(invalid="ignore"):
        exact = np.einsum("wmk,wnk->wmn", a, b) + c
        sizes = [magnitudes(m, format) for m, format in zip((a, b), formats, strict=True)]
        size = np.einsum("wmk,wnk->wmn", *sizes) + np.abs(c)
    return exact, size * error


def _bounds(
    shape: Shape, formats: tuple[str, str], accumulator: str, data: Sequence[Array], error: float
) -> tuple[Array, Array]:
    a = operand_matrix(data[0], shape, shape.m, formats[0])
    b = operand_matrix(data[1], shape, shape.n, formats[1])
    c = accumulator_matrix(accumulator_numbers(data[2], accumulator), shape.m)
    exact, allowed = product_bounds(a, b, c, formats, error)
    if accumulator == "f16":
        allowed = allowed + 2.0**-24
    return (
        accumulator_lanes(exact, shape.m).ravel(),
        accumulator_lanes(allowed, shape.m).ravel(),
    )


@dataclass(frozen=True)
class Group:
    """Instructions of one shape that read the same registers."""

    name: str
    shape: Shape
    instructions: tuple[tuple[str, tuple[str, str]], ...]  # text, formats of A and B
    accumulator: str
    target: str
    version: str = "7.0"
    warps: int = 3


def _accumulator(format: str, kind: str, seed: int, lanes: int, count: int) -> Array:
    if format == "s32":
        return codes("int32", kind, seed, lanes * count).astype(np.uint32).reshape(-1, 32, count)
    if format == "f64":
        return codes("f64", kind, seed, lanes * count).reshape(-1, 32, count)
    if format == "f32":
        spread = "integers" if kind == "integers" else kind
        return codes("f32", spread, seed, lanes * count).astype(np.uint32).reshape(-1, 32, count)
    return pack(codes("f16", kind, seed, lanes * count).reshape(-1, 32, count), 16)


def fragments(group: Group, kind: str) -> list[Array]:
    """A, B and C registers, [warps, 32, registers] each."""
    if kind == "every" and group.accumulator == "f16":
        kind = "low"  # sums stay finite
    shape, lanes = group.shape, 32 * group.warps
    result = []
    for position, rows in enumerate((shape.m, shape.n)):
        format = group.instructions[0][1][position]
        count = shape.registers(rows) * max(1, 32 // shape.width)
        elements = codes(format, kind, 900 + position + shape.k, lanes * count)
        result.append(pack(elements.reshape(group.warps, 32, count), shape.width))
    result.append(
        _accumulator(group.accumulator, kind, 950 + shape.k, lanes, shape.m * shape.n // 32)
    )
    return result


def _vector(prefix: str, count: int) -> str:
    return "{" + ", ".join(f"%{prefix}{i}" for i in range(count)) + "}"


def _load(prefix: str, pointer: int, count: int, width: int) -> str:
    size = width // 8
    lines = [f"mad.wide.u32 %g, %me, {size * count}, %p{pointer};"]
    lines += [f"ld.global.b{width} %{prefix}{i}, [%g+{size * i}];" for i in range(count)]
    return "\n".join(lines)


def program(group: Group, counts: tuple[int, int, int], width: int, wide: int) -> str:
    """A kernel that runs each instruction on its lane's registers."""
    lines = [pointers(4), thread_index(), ".reg .b64 %g;"]
    for prefix, count, bits in zip("abc", counts, (width, width, wide), strict=True):
        lines.append(f".reg .b{bits} %{prefix}<{count}>;")
    lines.append(f".reg .b{wide} %d<{counts[2]}>;")
    for i, (prefix, bits) in enumerate(zip("abc", (width, width, wide), strict=True)):
        lines.append(_load(prefix, i + 1, counts[i], bits))
    size = wide // 8
    registers = ", ".join(_vector(r, n) for r, n in zip("dabc", (counts[2], *counts), strict=True))
    lines.append(f"mad.wide.u32 %g, %me, {size * counts[2]}, %p0;")
    offset = 0
    for text, _ in group.instructions:
        lines.append(f"{text} {registers};")
        lines += [f"st.global.b{wide} [%g+{offset + size * i}], %d{i};" for i in range(counts[2])]
        offset += size * counts[2] * 32 * group.warps
    return kernel("\n".join(lines), ["u64"] * 4, target=group.target, version=group.version)


ERRORS = {"f32": 2.0**-20, "f16": 2.0**-9, "f64": 2.0**-50}


def case(group: Group, kind: str) -> Case:
    """One group over one kind of data: exact for integers, bounded for random floats."""
    data = fragments(group, kind)
    wide = 64 if group.accumulator == "f64" else 32
    width = 64 if group.shape.width == 64 else 32
    counts = (data[0].shape[2], data[1].shape[2], data[2].shape[2])
    number = {"f16": "uint16", "f64": "uint64"}.get(group.accumulator, "uint32")
    size = data[2].nbytes
    outputs = []
    for i, (text, formats) in enumerate(group.instructions):
        check: Check = EXACT
        if kind != "integers" and group.accumulator != "s32":
            compute = partial(
                _bounds, group.shape, formats, group.accumulator, data, ERRORS[group.accumulator]
            )
            check = Within(group.accumulator, compute, WHY)
        count = size // np.dtype(number).itemsize
        outputs.append(Output(text, 0, i * size, number, count, check))
    return Case(
        name=f"mma/{group.name}_{kind}",
        ptx=program(group, counts, width, wide),
        arguments=(Memory(np.zeros(size * len(outputs), np.uint8)), *[Memory(d) for d in data]),
        outputs=tuple(outputs),
        block=(32 * group.warps, 1, 1),
    )


def float_groups() -> list[Group]:
    """f16, bf16, tf32, f64 and the two 8-bit floats."""
    groups = []
    table = [
        ("f16", "f32", 8, "sm_75"), ("f16", "f16", 8, "sm_75"), ("f16", "f32", 16, "sm_80"),
        ("f16", "f16", 16, "sm_80"), ("bf16", "f32", 8, "sm_80"), ("bf16", "f32", 16, "sm_80"),
        ("tf32", "f32", 4, "sm_80"), ("tf32", "f32", 8, "sm_80"),
        ("f64", "f64", 4, "sm_90"), ("f64", "f64", 8, "sm_90"), ("f64", "f64", 16, "sm_90"),
    ]  # fmt: skip
    for format, accumulator, k, target in table:
        shape = Shape(16, 8, k, WIDTHS[format])
        tail = f"{accumulator}.{format}.{format}.{accumulator}"
        text = f"mma.sync.aligned.{shape.name}.row.col.{tail}"
        name = f"{shape.name}_{format}_{accumulator}"
        version = "7.8" if target == "sm_90" else "7.0"
        groups.append(Group(name, shape, ((text, (format, format)),), accumulator, target, version))
    text = "mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64"
    instruction = ((text, ("f64", "f64")),)
    groups.append(Group("m8n8k4_f64", Shape(8, 8, 4, 64), instruction, "f64", "sm_80"))
    for accumulator, k in itertools.product(("f32", "f16"), (16, 32)):
        for a, b in itertools.product(("e4m3", "e5m2"), repeat=2):
            text = f"mma.sync.aligned.m16n8k{k}.row.col.{accumulator}.{a}.{b}.{accumulator}"
            name = f"m16n8k{k}_{a}_{b}_{accumulator}"
            shape = Shape(16, 8, k, 8)
            groups.append(Group(name, shape, ((text, (a, b)),), accumulator, "sm_89", "8.7"))
    return groups


def integer_groups() -> list[Group]:
    """8, 4 and 1 bits; all signs, saturating or not."""
    groups = []
    table = [(8, 8, 16, 8, "sm_75"), (16, 8, 16, 8, "sm_80"), (16, 8, 32, 8, "sm_80")]
    table += [(8, 8, 32, 4, "sm_75"), (16, 8, 32, 4, "sm_80"), (16, 8, 64, 4, "sm_80")]
    for m, n, k, width, target in table:
        shape = Shape(m, n, k, width)
        instructions = []
        for a, b, sat in itertools.product("su", "su", ("", ".satfinite")):
            formats = (f"{a}{width}", f"{b}{width}")
            text = f"mma.sync.aligned.{shape.name}.row.col{sat}.s32.{formats[0]}.{formats[1]}.s32"
            instructions.append((text, formats))
        name = f"{shape.name}_int{width}"
        groups.append(Group(name, shape, tuple(instructions), "s32", target))
    for m, n, k, name in ((8, 8, 128, "xor"), (16, 8, 128, "xor"), (16, 8, 256, "xor")):
        shape = Shape(m, n, k, 1)
        instructions = [
            (f"mma.sync.aligned.{shape.name}.row.col.s32.b1.b1.s32.{name}.popc", ("b1", "b1"))
            for name in ("xor", "and")
        ]
        groups.append(Group(f"{shape.name}_b1", shape, tuple(instructions), "s32", "sm_80", "7.1"))
    return groups


def volta() -> list[Case]:
    """m8n8k4 of f16: four products per warp, every layout and accumulator."""
    cases = []
    for accumulator in ("f32", "f16"):
        instructions = [
            (
                f"mma.sync.aligned.m8n8k4.{la}.{lb}.{accumulator}.f16.f16.{accumulator}",
                ("f16", "f16"),
            )
            for la, lb in itertools.product(("row", "col"), repeat=2)
        ]
        group = Group("", Shape(8, 8, 4, 16), tuple(instructions), accumulator, "sm_75")
        count = 8 if accumulator == "f32" else 4
        ab = [
            pack(codes("f16", "integers", seed, 96 * 4).reshape(3, 32, 4), 16)
            for seed in (971, 972)
        ]
        c = codes(accumulator, "integers", 973, 96 * 8).reshape(3, 32, 8)
        c = pack(c, 16) if accumulator == "f16" else c.astype(np.uint32)
        dtype = "uint32"
        outputs = tuple(
            Output(text, 0, i * c.nbytes, dtype, c.size) for i, (text, _) in enumerate(instructions)
        )
        cases.append(
            Case(
                name=f"mma/m8n8k4_f16_{accumulator}_integers",
                ptx=program(group, (2, 2, count), 32, 32),
                arguments=(
                    Memory(np.zeros(c.size * 4, np.uint32)),
                    *[Memory(x) for x in (*ab, c)],
                ),
                outputs=outputs,
                block=(96, 1, 1),
            )
        )
    return cases


def cases() -> list[Case]:
    """The family."""
    result = [case(group, "integers") for group in integer_groups()]
    for group in float_groups():
        result.append(case(group, "integers"))
        result += [case(group, kind) for kind in RANDOM_KINDS]
        if "tf32" in group.name:
            result.append(case(group, "raw"))
    return result + volta()
