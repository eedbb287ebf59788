"""Tensor copies: ranks, types, swizzles, borders, strides, multicast, stores and reductions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from silicon.case import Array, Bytes, Case, Map, Memory, Output
from silicon.elements import codes
from silicon.text import kernel
from silicon.values import noise

SIZES = {"uint8": 1, "uint16": 2, "uint32": 4, "int32": 4, "uint64": 8, "int64": 8}
SIZES |= {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}
SIZES |= {"float32_ftz": 4, "tfloat32": 4, "tfloat32_ftz": 4}
THREADS = 64
FILL = 0xA5A5A5A5

START = """
.reg .b64 %out, %in, %map, %g;
.reg .b32 %me, %tile, %bar, %at, %v, %c<5>;
.reg .pred %first, %ready, %more;
ld.param.u64 %out, [p0];
cvta.to.global.u64 %out, %out;
mov.u32 %me, %tid.x;
setp.eq.u32 %first, %me, 0;
mov.u32 %tile, tile;
"""
BARRIER = """
mov.u32 %bar, bar;
@%first mbarrier.init.shared::cta.b64 [%bar], 1;
@%first fence.mbarrier_init.release.cluster;
"""


def words(label: str, size: int, statement: str) -> str:
    """A loop in which the threads visit `size` bytes of the tile, a word (%at) at a time."""
    return f"""
shl.b32 %at, %me, 2;
{label}:
setp.lt.u32 %more, %at, {size};
@!%more bra {label}_END;
{statement}
add.u32 %at, %at, {4 * THREADS};
bra {label};
{label}_END:
"""


def aligned(place: Iterable[int], unit: int) -> tuple[int, ...]:
    """The place with its innermost coordinate rounded down to `unit`.

    A tensor copy whose first coordinate is no multiple of 16 bytes is an illegal instruction.
    """
    first, *rest = place
    return first // unit * unit, *rest


def coordinates(values: Sequence[int]) -> tuple[str, str]:
    """Statements that set registers, and the operand that lists them."""
    moves = "".join(f"mov.b32 %c{i}, {value};\n" for i, value in enumerate(values))
    return moves, "{" + ", ".join(f"%c{i}" for i in range(len(values))) + "}"


def wait(index: int) -> str:
    """Spins until the phase `index` of the barrier completes."""
    label = f"WAIT_{index}"
    return (
        f"{label}: mbarrier.try_wait.parity.shared::cta.b64 %ready, [%bar], {index % 2};\n"
        f"@!%ready bra {label};\n"
    )


@dataclass(frozen=True)
class Tensor:
    """A tensor in global memory and the box that copies of it move."""

    element: str
    dims: tuple[int, ...]
    box: tuple[int, ...]
    pad: int = 16  # bytes between rows beyond the row itself
    swizzle: str = "none"
    fill: str = "zero"
    steps: tuple[int, ...] = ()

    @property
    def strides(self) -> tuple[int, ...]:
        row = (self.dims[0] * SIZES[self.element] + 15) // 16 * 16 + self.pad
        strides = []
        for dim in self.dims[1:]:
            strides.append(row)
            row = row * dim + self.pad
        return tuple(strides)

    @property
    def bytes(self) -> int:
        """Bytes of global memory, the last row's padding too."""
        if len(self.dims) == 1:
            return self.dims[0] * SIZES[self.element] + self.pad
        return self.strides[-1] * self.dims[-1] + self.pad

    @property
    def box_bytes(self) -> int:
        steps = self.steps or (1,) * len(self.box)
        counts = [-(-size // step) for size, step in zip(self.box, steps, strict=True)]
        return math.prod(counts) * SIZES[self.element]

    @property
    def tile_bytes(self) -> int:
        """Bytes of shared memory: a swizzled tile has a span for each row, however narrow."""
        span = int(self.swizzle) if self.swizzle != "none" else self.box[0] * SIZES[self.element]
        return self.box_bytes // (self.box[0] * SIZES[self.element]) * span

    def map(self, memory: int) -> Map:
        """The tensor map argument over a memory argument."""
        return Map(
            memory,
            self.element,
            self.dims,
            self.strides,
            self.box,
            self.steps,
            self.swizzle,
            self.fill,
        )


def load(name: str, tensor: Tensor, places: Sequence[tuple[int, ...]], cta: bool = False) -> Case:
    """Loads the box at each place into a tile of marked bytes; the tiles are the output."""
    size, rank = tensor.tile_bytes, len(tensor.dims)
    space = "shared::cta" if cta else "shared::cluster"
    lines = [f".shared .align 1024 .b8 tile[{size}];\n.shared .align 8 .b64 bar;", START, BARRIER]
    lines.append("mov.u64 %map, p1; cvta.param.u64 %map, %map; bar.sync 0;")
    lines.append("@%first prefetch.tensormap [%map];")
    outputs = []
    dtype = f"uint{8 * SIZES[tensor.element]}"
    for i, place in enumerate(places):
        moves, listed = coordinates(place)
        mark = f"add.u32 %v, %tile, %at; st.shared.b32 [%v], {FILL:#x};"
        lines += [
            words(f"MARK_{i}", size, mark),
            "fence.proxy.async.shared::cta; bar.sync 0;",
            moves,
        ]
        lines.append(
            f"@%first mbarrier.arrive.expect_tx.shared::cta.b64 _, [%bar], {tensor.box_bytes};"
        )
        lines.append(
            f"@%first cp.async.bulk.tensor.{rank}d.{space}.global.tile"
            ".mbarrier::complete_tx::bytes "
            f"[%tile], [%map, {listed}], [%bar];"
        )
        lines.append(wait(i))
        copy = "add.u32 %v, %tile, %at; ld.shared.b32 %v, [%v]; cvt.u64.u32 %g, %at; "
        copy += f"add.s64 %g, %out, %g; st.global.b32 [%g+{i * size}], %v;"
        lines += [words(f"OUT_{i}", size, copy), "bar.sync 0;"]
        count = size // SIZES[tensor.element]
        outputs.append(Output(f"at {place}", 0, i * size, dtype, count))
    version = "8.6" if cta else "8.0"
    return Case(
        name=f"tma/{name}",
        ptx=kernel("\n".join(lines), ["u64", "map", "u64"], target="sm_90", version=version),
        arguments=(
            Memory(np.zeros(size * len(places), np.uint8)),
            tensor.map(2),
            Memory(contents(tensor)),
        ),
        outputs=tuple(outputs),
        block=(THREADS, 1, 1),
    )


def contents(tensor: Tensor) -> Array:
    """Random finite elements; the padding gets random bytes."""
    data: Bytes = noise(1301, tensor.bytes, 8)
    formats = {"float16": "f16", "bfloat16": "bf16", "float64": "f64"}
    format = formats.get(tensor.element, "f32" if "float" in tensor.element else "")
    if format:
        size = SIZES[tensor.element]
        numbers = codes(format, "moderate", 1303, tensor.bytes // size).astype(f"uint{8 * size}")
        numbers[1::11] &= np.array((1 << (8 * size - 1)) | 0x7F, numbers.dtype)  # denormals
        data[: numbers.nbytes] = numbers.view(np.uint8)
    return data


def ranks() -> list[Case]:
    """One to five dimensions; boxes inside, across every border and outside."""
    shapes = [
        ((100,), (32,)),
        ((40, 13), (16, 8)),
        ((20, 9, 7), (8, 4, 3)),
        ((12, 5, 4, 6), (4, 3, 2, 2)),
    ]
    shapes.append(((8, 5, 3, 4, 5), (4, 2, 2, 2, 2)))
    cases = []
    for dims, box in shapes:
        places = [(0,) * len(dims), aligned(range(6, 6 - len(dims), -1), 4)]
        for axis, (dim, width) in enumerate(zip(dims, box, strict=True)):
            for start in (-2, dim - width // 2 - 1, dim + 5, -width - 1):
                place = [start if i == axis else 1 for i in range(len(dims))]
                places.append(aligned(place, 4))
        places.append(aligned([dim - 1 for dim in dims], 4))
        cases.append(load(f"rank_{len(dims)}", Tensor("int32", dims, box), places))
    return cases


def elements() -> list[Case]:
    """Every element type, with both fills where the type has NaN."""
    cases = []
    for element, size in SIZES.items():
        fills = ("zero", "nan") if "float" in element else ("zero",)
        for fill in fills:
            tensor = Tensor(element, (80 // size, 9), (32 // size, 4), fill=fill)
            places = [(0, 0), (64 // size, 6), (-16 // size, -1), (16 // size, 20)]
            cases.append(load(f"element_{element}_{fill}", tensor, places))
    return cases


def swizzles() -> list[Case]:
    """Every swizzle; inner boxes of the whole span, of half of it, and of several types."""
    cases = []
    for swizzle, span in (("32", 32), ("64", 64), ("128", 128)):
        for element in ("uint8", "float16", "uint32"):
            size = SIZES[element]
            tensor = Tensor(element, (160 // size, 40), (span // size, 24), swizzle=swizzle)
            cases.append(load(f"swizzle_{swizzle}_{element}", tensor, [(0, 0), (32 // size, 3)]))
        half = Tensor("uint16", (80, 40), (span // 4, 16), swizzle=swizzle)
        cases.append(load(f"swizzle_{swizzle}_half", half, [(0, 0), (8, 3), (8, 30)]))
        deep = Tensor("uint16", (70, 7, 5), (span // 2, 3, 3), swizzle=swizzle)
        cases.append(load(f"swizzle_{swizzle}_rank_3", deep, [(0, 0, 0), (-8, 5, 1)]))
    cta = Tensor("uint16", (64, 20), (64, 8), swizzle="128")
    cases.append(load("shared_cta", cta, [(0, 0), (8, 15)], cta=True))
    odd = Tensor("uint16", (37, 9), (16, 4))
    cases.append(load("odd_row", odd, [(0, 0), (24, 6), (32, 2), (-8, 0)]))
    stepped = Tensor("uint32", (24, 30), (8, 12), steps=(1, 3))
    cases.append(load("steps_2", stepped, [(0, 0), (4, 5), (20, 25)]))
    stepped = Tensor("uint32", (24, 13, 9), (8, 6, 5), steps=(1, 2, 3))
    cases.append(load("steps_3", stepped, [(0, 0, 0), (4, 5, 4)]))
    return cases


def hinted() -> Case:
    """A load with a cache policy after a prefetch of its box."""
    tensor = Tensor("uint32", (24, 30), (8, 12))
    case = load("hints", tensor, [(4, 5)])
    policy = ".reg .b64 %policy; createpolicy.fractional.L2::evict_first.b64 %policy, 1.0;\n"
    policy += "@%first cp.async.bulk.prefetch.tensor.2d.L2.global.tile [%map, {%c0, %c1}];\n"
    mark, first, second = "@%first cp.async.bulk.tensor", "complete_tx::bytes", "[%bar];"
    before, after = case.ptx.split(mark)
    after = after.replace(first, first + ".L2::cache_hint").replace(second, "[%bar], %policy;", 1)
    return replace(case, ptx=before + policy + mark + after)


def store(
    name: str,
    tensor: Tensor,
    places: Sequence[tuple[int, ...]],
    verb: str,
    kind: str,
    values: Array,
) -> Case:
    """Stores or reduces the tile at each place; the whole tensor is the output."""
    size, rank = tensor.tile_bytes, len(tensor.dims)
    lines = [f".shared .align 1024 .b8 tile[{size}];", START]
    lines.append("mov.u64 %map, p1; cvta.param.u64 %map, %map;")
    lines.append("ld.param.u64 %in, [p2]; cvta.to.global.u64 %in, %in;")
    for i, place in enumerate(places):
        moves, listed = coordinates(place)
        copy = f"cvt.u64.u32 %g, %at; add.s64 %g, %in, %g; ld.global.b32 %v, [%g+{i * size}]; "
        copy += "add.u32 %c0, %tile, %at; st.shared.b32 [%c0], %v;"
        lines += [words(f"IN_{i}", size, copy), "fence.proxy.async.shared::cta; bar.sync 0;", moves]
        lines.append(
            f"@%first {verb}.{rank}d.global.shared::cta{kind}.tile.bulk_group "
            f"[%map, {listed}], [%tile];"
        )
        lines.append("@%first cp.async.bulk.commit_group;\n@%first cp.async.bulk.wait_group 0;")
        lines.append("bar.sync 0;")
    dtype = f"uint{8 * SIZES[tensor.element]}"
    start = contents(tensor)
    count = tensor.bytes // SIZES[tensor.element]
    return Case(
        name=f"tma/{name}",
        ptx=kernel("\n".join(lines), ["u64", "map", "u64"], target="sm_90", version="8.0"),
        arguments=(Memory(start), tensor.map(0), Memory(values)),
        outputs=(Output("tensor", 0, 0, dtype, count),),
        block=(THREADS, 1, 1),
    )


def stores() -> list[Case]:
    """Stores of every rank and swizzle; bytes outside the tensor stay.

    A negative coordinate of a store is an illegal instruction on the H200.
    """
    shapes = [
        ((100,), (32,)),
        ((40, 13), (16, 8)),
        ((20, 9, 7), (8, 4, 3)),
        ((12, 5, 4, 6), (4, 3, 2, 2)),
    ]
    shapes.append(((8, 5, 3, 4, 5), (4, 2, 2, 2, 2)))
    verb, cases = "cp.async.bulk.tensor", []
    for dims, box in shapes:
        tensor = Tensor("int32", dims, box)
        ends = [d - b // 2 - 1 for d, b in zip(dims, box, strict=True)]
        places = [aligned(place, 4) for place in ([4, 1, 1, 1, 1][: len(dims)], ends)]
        places.append(aligned([dim + 4 for dim in dims], 4))
        values = noise(1311, 3 * tensor.box_bytes, 8)
        cases.append(store(f"store_rank_{len(dims)}", tensor, places, verb, "", values))
    for swizzle, span in (("32", 32), ("64", 64), ("128", 128)):
        tensor = Tensor("uint16", (80, 30), (span // 2, 16), swizzle=swizzle)
        values = noise(1313, 2 * tensor.tile_bytes, 8)
        cases.append(store(f"store_{swizzle}", tensor, [(8, 2), (64, 20)], verb, "", values))
        half = Tensor("uint16", (80, 30), (span // 4, 16), swizzle=swizzle)
        cases.append(store(f"store_{swizzle}_half", half, [(8, 2), (64, 20)], verb, "", values))
    odd = Tensor("uint16", (37, 9), (16, 4))
    values = noise(1315, 2 * odd.tile_bytes, 8)
    cases.append(store("store_odd_row", odd, [(8, 1), (32, 6)], verb, "", values))
    return cases


REDUCTIONS = {
    "uint32": ("add", "min", "max", "inc", "dec", "and", "or", "xor"),
    "int32": ("add", "min", "max", "and", "or", "xor"),
    "uint64": ("add", "min", "max", "and", "or", "xor"),
    "int64": ("min", "max"),  # the others are illegal instructions on the H200
    "float16": ("add", "min", "max"),
    "bfloat16": ("add", "min", "max"),
    "float32": ("add",),
    "float64": ("add",),
    "float32_ftz": ("add",),
    "tfloat32": ("add",),
}


def reductions() -> list[Case]:
    """cp.reduce.async.bulk.tensor: every operation that each element type has."""
    cases = []
    for element, names in REDUCTIONS.items():
        size = SIZES[element]
        tensor = Tensor(element, (80 // size, 9), (32 // size, 4))
        values = contents(Tensor(element, (2 * tensor.box_bytes // size,), (1,)))
        values = np.roll(values, size)[: 2 * tensor.box_bytes].copy()
        for name in names:
            places = [(16 // size, 1), (64 // size, 6)]
            label = f"reduce_{name}_{element}"
            verb = "cp.reduce.async.bulk.tensor"
            cases.append(store(label, tensor, places, verb, f".{name}", values))
    return cases


def cases() -> list[Case]:
    """Most of the family; the cluster's copies are in `cluster_cases`."""
    return [*ranks(), *elements(), *swizzles(), hinted(), *stores(), *reductions()]
