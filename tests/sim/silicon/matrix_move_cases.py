"""ldmatrix, stmatrix and movmatrix: which lane's register holds which element."""

from __future__ import annotations

import itertools

import numpy as np

from silicon.case import Case, Memory, Output
from silicon.text import kernel, pointers, thread_index
from silicon.values import noise

ROWS = 128  # rows of 16 bytes in shared memory
FILL = """
.shared .align 128 .b8 tile[2048];
.reg .b32 %base, %x, %row, %at; .reg .b64 %g, %o; .reg .b32 %r<4>;
mov.u32 %base, tile;
mov.u32 %x, %laneid;
"""
COPY_IN = """
mad.wide.u32 %g, %x, 64, %p1;
mad.lo.u32 %at, %x, 64, %base;
"""


def _copy_in() -> str:
    lines = [COPY_IN]
    for i in range(4):
        lines.append(f"ld.global.v4.b32 {{%r0, %r1, %r2, %r3}}, [%g+{16 * i}];")
        lines.append(f"st.shared.v4.b32 [%at+{16 * i}], {{%r0, %r1, %r2, %r3}};")
    return "\n".join(lines) + "\nbar.warp.sync 0xffffffff;"


def _names(count: int) -> str:
    return "{" + ", ".join(f"%r{i}" for i in range(count)) + "}"


def loads() -> Case:
    """Every ldmatrix; lane i names row order[i], a permutation with no pattern."""
    lines = [pointers(3), thread_index(), FILL, _copy_in()]
    lines += ["mad.wide.u32 %g, %x, 4, %p2; ld.global.b32 %row, [%g];"]
    lines += ["mad.lo.u32 %at, %row, 16, %base;"]
    outputs, offset = [], 0
    for count, trans in itertools.product((1, 2, 4), ("", ".trans")):
        text = f"ldmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16"
        lines.append(f"{text} {_names(count)}, [%at];")
        lines.append(f"mad.wide.u32 %o, %x, {4 * count}, %p0;")
        kind = f".v{count}" if count > 1 else ""
        names = _names(count) if count > 1 else "%r0"
        lines.append(f"st.global{kind}.b32 [%o+{offset}], {names};")
        outputs.append(Output(text, 0, offset, "uint32", 32 * count))
        offset += 128 * count
    order = np.argsort(noise(801, ROWS))[:32].astype(np.uint32)
    return Case(
        name="matrix_move/ldmatrix",
        ptx=kernel("\n".join(lines), ["u64"] * 3, target="sm_75", version="7.0"),
        arguments=(Memory(np.zeros(offset, np.uint8)), Memory(noise(803, 256)), Memory(order)),
        outputs=tuple(outputs),
        block=(32, 1, 1),
    )


def stores() -> Case:
    """Every stmatrix; the whole tile is the output, its untouched bytes too."""
    lines = [pointers(4), thread_index(), FILL]
    lines += ["mad.wide.u32 %g, %x, 4, %p2; ld.global.b32 %row, [%g]; .reg .b32 %to, %v<4>;"]
    lines += ["mad.lo.u32 %to, %row, 16, %base; mad.wide.u32 %g, %x, 16, %p3;"]
    lines += ["ld.global.v4.b32 {%v0, %v1, %v2, %v3}, [%g];"]
    outputs = []
    for i, (count, trans) in enumerate(itertools.product((1, 2, 4), ("", ".trans"))):
        text = f"stmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16"
        lines.append(_copy_in())
        lines.append(f"{text} [%to], {_names(count).replace('%r', '%v')};")
        lines.append("bar.warp.sync 0xffffffff; mad.wide.u32 %o, %x, 64, %p0;")
        for j in range(4):
            lines.append(f"ld.shared.v4.b32 {{%r0, %r1, %r2, %r3}}, [%at+{16 * j}];")
            lines.append(f"st.global.v4.b32 [%o+{2048 * i + 16 * j}], {{%r0, %r1, %r2, %r3}};")
        lines.append("bar.warp.sync 0xffffffff;")
        outputs.append(Output(text, 0, 2048 * i, "uint16", 1024))
    order = np.argsort(noise(805, ROWS))[:32].astype(np.uint32)
    memories = (Memory(np.full(256, 0xEE, np.uint64)), Memory(order), Memory(noise(807, 64)))
    return Case(
        name="matrix_move/stmatrix",
        ptx=kernel("\n".join(lines), ["u64"] * 4, target="sm_90", version="7.8"),
        arguments=(Memory(np.zeros(2048 * 6, np.uint8)), *memories),
        outputs=tuple(outputs),
        block=(32, 1, 1),
    )


def moves() -> Case:
    """movmatrix transposes an 8 x 8 matrix in registers."""
    lines = [pointers(2), thread_index(), ".reg .b64 %g; .reg .b32 %v, %d;"]
    lines += ["mad.wide.u32 %g, %me, 4, %p1; ld.global.b32 %v, [%g];"]
    lines += ["movmatrix.sync.aligned.m8n8.trans.b16 %d, %v;"]
    lines += ["mad.wide.u32 %g, %me, 4, %p0; st.global.b32 [%g], %d;"]
    return Case(
        name="matrix_move/movmatrix",
        ptx=kernel("\n".join(lines), ["u64"] * 2, target="sm_75", version="7.8"),
        arguments=(Memory(np.zeros(64, np.uint32)), Memory(noise(809, 64, 32))),
        outputs=(Output("movmatrix", 0, 0, "uint32", 64),),
        block=(64, 1, 1),
    )


def cases() -> list[Case]:
    """The family."""
    return [loads(), stores(), moves()]
