"""mma.sp and wgmma.mma_async.sp: half of A's elements, placed by metadata."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np

from silicon.case import Array, Case, Memory, Output
from silicon.elements import WIDTHS, codes, pack
from silicon.text import kernel, pointers, thread_index
from silicon.values import noise
from silicon.wgmma_cases import Step, descriptor, make

# Two rising indices in 0..3, low one first.
NIBBLES = np.array([0b0100, 0b1000, 0b1100, 0b1001, 0b1101, 0b1110], np.uint32)
# One of two elements, each as wide as two indices.
WIDE_NIBBLES = np.array([0b0100, 0b1110], np.uint32)
WARPS = 2


def metadata(seed: int, count: int, format: str) -> Array:
    """`count` words of valid indices."""
    table = WIDE_NIBBLES if format == "tf32" else NIBBLES
    nibbles = table[noise(seed, count * 8) % np.uint64(len(table))].reshape(count, 8)
    return np.bitwise_or.reduce(nibbles << np.arange(0, 32, 4, dtype=np.uint32), axis=1)


def _vector(prefix: str, count: int) -> str:
    return "{" + ", ".join(f"%{prefix}{i}" for i in range(count)) + "}"


def warp_case(a: str, b: str, accumulator: str, k: int, selectors: int) -> Case:
    """One shape and type of mma.sp with every selector, small integers (or any integer code)."""
    width = WIDTHS[a]
    counts = {"a": k * width // 128, "b": k * width // 128, "c": 4}
    counts["c"] = 2 if accumulator == "f16" else 4
    lanes = 32 * WARPS
    data = {
        name: pack(codes(format, "integers", seed, lanes * counts[name] * 32 // width), width)
        for name, format, seed in (("a", a, 1601), ("b", b, 1603))
    }
    if accumulator == "f16":
        data["c"] = pack(codes("f16", "integers", 1605, lanes * 4), 16)
    else:
        kind = "f32" if accumulator == "f32" else "int32"
        data["c"] = codes(kind, "integers", 1605, lanes * 4).astype(np.uint32)
    lines = [pointers(5), thread_index(), ".reg .b64 %g; .reg .b32 %meta;"]
    for i, name in enumerate("abc", start=1):
        count = counts[name]
        lines.append(f".reg .b32 %{name}<{count}>; mad.wide.u32 %g, %me, {4 * count}, %p{i};")
        lines += [f"ld.global.b32 %{name}{j}, [%g+{4 * j}];" for j in range(count)]
    lines.append("mad.wide.u32 %g, %me, 4, %p4; ld.global.b32 %meta, [%g];")
    count = counts["c"]
    lines.append(f".reg .b32 %d<{count}>; mad.wide.u32 %g, %me, {4 * count}, %p0;")
    number = "uint16" if accumulator == "f16" else "uint32"
    size, outputs = 4 * count * lanes, []
    kinds = f"{accumulator}.{a}.{b}.{accumulator}"
    text = f"mma.sp::ordered_metadata.sync.aligned.m16n8k{k}.row.col.{kinds}"
    registers = ", ".join(_vector(r, counts["c" if r == "d" else r]) for r in "dabc")
    for selector in range(selectors):
        lines.append(f"{text} {registers}, %meta, {selector};")
        offset = selector * size
        lines += [f"st.global.b32 [%g+{offset + 4 * j}], %d{j};" for j in range(count)]
        label = f"{text} {selector}"
        outputs.append(Output(label, 0, offset, number, size // np.dtype(number).itemsize))
    memories = [Memory(data[name]) for name in "abc"]
    memories.append(Memory(metadata(1607, lanes, a)))
    target = "sm_89" if a.startswith("e") else "sm_80"
    return Case(
        name=f"sparse/m16n8k{k}_{a}_{b}_{accumulator}",
        ptx=kernel("\n".join(lines), ["u64"] * 5, target=target, version="8.7"),
        arguments=(Memory(np.zeros(size * selectors, np.uint8)), *memories),
        outputs=tuple(outputs),
        block=(lanes, 1, 1),
    )


def warps() -> list[Case]:
    """Every shape and type."""
    cases = []
    table = [("f16", "f32", 16, 4), ("f16", "f32", 32, 2), ("f16", "f16", 16, 4)]
    table += [("f16", "f16", 32, 2), ("bf16", "f32", 16, 4), ("bf16", "f32", 32, 2)]
    table += [("tf32", "f32", 8, 4), ("tf32", "f32", 16, 2)]
    cases += [warp_case(format, format, d, k, count) for format, d, k, count in table]
    for a, b in itertools.product("su", repeat=2):
        cases += [warp_case(f"{a}8", f"{b}8", "s32", k, count) for k, count in ((32, 2), (64, 1))]
        cases += [warp_case(f"{a}4", f"{b}4", "s32", k, count) for k, count in ((64, 2), (128, 1))]
    for a, b in itertools.product(("e4m3", "e5m2"), repeat=2):
        cases.append(warp_case(a, b, "f32", 64, 1))
    return cases


def warpgroups() -> list[Case]:
    """wgmma.mma_async.sp with A in shared memory and in registers."""
    cases = []
    table = [("f16", 32, "f32", 2), ("bf16", 32, "f32", 2), ("tf32", 16, "f32", 2)]
    table += [("e4m3", 64, "f32", 1), ("s8", 64, "s32", 1)]
    for format, k, accumulator, selectors in table:
        name = f"warpgroup_{format}"
        program = make(name, 32, accumulator, (format, format), 1620 + k, 8192)
        program.metadata = metadata(1621 + k, 128, format)
        kinds = f"{accumulator}.{format}.{format}"
        text = f"wgmma.mma_async.sp.sync.aligned.m64n32k{k}.{kinds}"
        tail = {32: ", 1, 1, 0, 0", 64: "" if format == "s8" else ", 1, 1", 16: ", 1, 1"}[k]
        b = descriptor(8192, 16, 1024, "128")
        for selector in range(selectors):
            middle = f" %meta, {selector},"
            a = descriptor(0, 16, 256, "32")
            label = f"selector {selector}"
            program.steps.append(Step(label, text, b, a, tail, middle=middle))
            short = tail[:-3] if k == 32 else tail
            label += " registers"
            program.steps.append(Step(label, text, b, None, short, middle=middle))
        cases.append(replace(program.case(), name=f"sparse/{name}"))
    return cases


def cases() -> list[Case]:
    """The family."""
    return [*warps(), *warpgroups()]
