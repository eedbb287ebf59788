"""Pieces of PTX text that the cases share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from silicon.case import EXACT, Array, Case, Check, Memory, Output

BLOCK = 128


@dataclass(frozen=True)
class Op:
    """One instruction under test: `body` computes %d (of `width` bits) from the inputs."""

    label: str
    width: int
    body: str
    check: Check = EXACT


def header(target: str, version: str) -> str:
    """The lines that start a module."""
    return f".version {version}\n.target {target}\n.address_size 64\n"


def parameters(kinds: Sequence[str]) -> str:
    """A parameter list; kinds are "u64", "u32" ... or "map" for a tensor map. Names p0, p1 ..."""
    maps = ".param .align 64 .b8 p{}[128]"
    lines = [
        maps.format(i) if kind == "map" else f".param .{kind} p{i}" for i, kind in enumerate(kinds)
    ]
    return ",\n  ".join(lines)


def pointers(count: int) -> str:
    """Declares %p0 ... and loads them as global addresses."""
    lines = [f".reg .b64 %p<{count}>;"]
    for i in range(count):
        lines.append(f"ld.param.u64 %p{i}, [p{i}];")
        lines.append(f"cvta.to.global.u64 %p{i}, %p{i};")
    return "\n".join(lines)


def thread_index() -> str:
    """%me: the thread's number in the launch, one-dimensional."""
    return (
        ".reg .b32 %me, %cta, %size;\n"
        "mov.u32 %me, %tid.x;\nmov.u32 %cta, %ctaid.x;\nmov.u32 %size, %ntid.x;\n"
        "mad.lo.s32 %me, %cta, %size, %me;"
    )


def kernel(body: str, kinds: Sequence[str], *, target: str, version: str, extra: str = "") -> str:
    """A module with one kernel named `kernel`; `extra` goes between header and kernel."""
    entry = f".visible .entry kernel(\n  {parameters(kinds)})\n{{\n{body}\nret;\n}}\n"
    return header(target, version) + extra + entry


def elementwise(
    name: str,
    inputs: Mapping[str, Array],
    ops: Sequence[Op],
    *,
    target: str = "sm_75",
    version: str = "7.0",
) -> Case:
    """A kernel in which thread i applies every op to element i of the inputs."""
    count = len(next(iter(inputs.values())))
    lines = [pointers(len(inputs) + 1), thread_index(), ".reg .b64 %at, %o1, %o2, %o4, %o8;"]
    for size in (1, 2, 4, 8):
        lines.append(f"mad.wide.u32 %o{size}, %me, {size}, %p0;")
    for position, (register, values) in enumerate(inputs.items(), start=1):
        width = values.dtype.itemsize * 8
        lines.append(f".reg .b{max(width, 16)} %{register};")
        lines.append(f"mad.wide.u32 %at, %me, {width // 8}, %p{position};")
        lines.append(f"ld.global.{'u8' if width == 8 else f'b{width}'} %{register}, [%at];")
    outputs, offset = [], 0
    for op in ops:
        size = op.width // 8
        lines.append(f"{{ .reg .b{max(op.width, 16)} %d;\n{op.body}")
        lines.append(
            f"st.global.{'u8' if size == 1 else f'b{op.width}'} [%o{size}+{offset}], %d; }}"
        )
        outputs.append(Output(op.label, 0, offset, f"uint{op.width}", count, op.check))
        offset += (size * count + 15) // 16 * 16
    block = min(BLOCK, count)
    arguments = (Memory(np.zeros(offset, np.uint8)), *[Memory(v) for v in inputs.values()])
    return Case(
        name=name,
        ptx=kernel("\n".join(lines), ["u64"] * len(arguments), target=target, version=version),
        arguments=arguments,
        outputs=tuple(outputs),
        block=(block, 1, 1),
        grid=(count // block, 1, 1),
    )


def flag(test: str) -> str:
    """Stores a predicate that `test` sets in %q as 0 or 1 in a 32-bit %d."""
    return f".reg .pred %q; {test} selp.b32 %d, 1, 0, %q;"
