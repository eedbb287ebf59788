"""Atomic operations of every type; each address has one thread, so results are determined."""

from __future__ import annotations

import numpy as np

from silicon.case import EXACT, Array, Case, Memory, Output
from silicon.float_cases import F64, operands
from silicon.text import kernel, pointers, thread_index
from silicon.values import integers, noise

COUNT = 128
# instruction without space: operand type, operand count (0: compare and swap)
INTEGER_OPS = {
    "b32": ("and", "or", "xor", "exch", "cas"),
    "u32": ("add", "inc", "dec", "min", "max"),
    "s32": ("add", "min", "max"),
    "b64": ("and", "or", "xor", "exch", "cas"),
    "u64": ("add", "min", "max"),
    "s64": ("min", "max"),
    "b16": ("cas",),
}
FLOAT_OPS = {
    "f32": ("add",),
    "f64": ("add",),
    "f16": ("add.noftz",),
    "f16x2": ("add.noftz",),
    "bf16": ("add.noftz",),
    "bf16x2": ("add.noftz",),
}
# Vector forms exist in global memory only.
VECTOR_OPS = {
    "f32": (("v2", "v4"), ("add",)),
    "f16x2": (("v2", "v4"), ("add.noftz", "min.noftz", "max.noftz")),
    "bf16x2": (("v2", "v4"), ("add.noftz", "min.noftz", "max.noftz")),
    "f16": (("v2", "v4", "v8"), ("add.noftz", "min.noftz", "max.noftz")),
    "bf16": (("v2", "v4", "v8"), ("add.noftz", "min.noftz", "max.noftz")),
}


def width_of(kind: str) -> int:
    """Bits of a type's element."""
    return 32 if kind.endswith("x2") else int(kind.replace("bf", "f")[1:])


class Builder:
    """Collects instructions that update a cell of %a's values and their results."""

    def __init__(self, kind: str, space: str) -> None:
        self.width = width_of(kind)
        self.kind, self.space = kind, space
        self.lines: list[str] = []
        self.outputs: list[Output] = []

    def slot(self, label: str) -> int:
        """Room for one word per thread in the output memory; returns its offset."""
        offset = len(self.outputs) * COUNT * 8
        check = F64 if self.kind == "f64" else EXACT
        self.outputs.append(Output(label, 0, offset, f"uint{self.width}", COUNT, check))
        return offset

    def update(self, name: str, returns: bool) -> None:
        """The cell holds %a; `name` applies %b (%b and %c for cas)."""
        verb = "atom" if returns else "red"
        text = f"{verb}.{self.space}.{name}.{self.kind}"
        size = self.width // 8
        cell = "%cell"
        if self.space == "global":
            cell = f"%o{size}+{self.slot(f'{text}: memory')}"
        self.lines.append(f"st.{self.space}.b{self.width} [{cell}], %a;")
        values = "%b, %c" if name.endswith("cas") else "%b"
        if returns:
            self.lines.append(f"{text} %d, [{cell}], {values};")
            self.lines.append(
                f"st.global.b{self.width} [%o{size}+{self.slot(f'{text}: old')}], %d;"
            )
        else:
            self.lines.append(f"{text} [{cell}], {values};")
        if self.space != "global":
            self.lines.append(f"ld.shared.b{self.width} %d, [{cell}];")
            offset = self.slot(f"{text}: memory")
            self.lines.append(f"st.global.b{self.width} [%o{size}+{offset}], %d;")


def inputs_of(kind: str) -> tuple[Array, Array, Array]:
    """Cell, operand and swap values; a third of the comparisons succeed."""
    if kind in FLOAT_OPS:
        arrays = operands(kind, 601, COUNT)
        return arrays["a"], arrays["b"], arrays["c"]
    a, b, c = integers(603, 3, width_of(kind), COUNT)
    if kind.startswith("b"):
        b[::3] = a[::3]
    b[1::9] = a[1::9] + b.dtype.type(1)
    return a, b, c


def scalar(kind: str, space: str) -> Case:
    """atom and red of one type in one space."""
    builder = Builder(kind, space)
    names = INTEGER_OPS.get(kind) or FLOAT_OPS[kind]
    for name in names:
        builder.update(name, True)
        if not name.endswith(("cas", "exch")):
            builder.update(name, False)
    size = builder.width // 8
    lines = [pointers(4), thread_index(), f".shared .align 8 .b8 cells[{8 * COUNT}];"]
    lines += [f".reg .b64 %at, %o{size}; .reg .b32 %cell; .reg .b{builder.width} %a, %b, %c, %d;"]
    lines += [f"mad.wide.u32 %o{size}, %me, {size}, %p0; mov.u32 %cell, cells;"]
    lines += [f"mad.lo.u32 %cell, %me, {size}, %cell;"]
    for i, register in enumerate("abc", start=1):
        lines.append(
            f"mad.wide.u32 %at, %me, {size}, %p{i}; ld.global.b{8 * size} %{register}, [%at];"
        )
    needs_sm90 = kind in ("f16", "bf16", "bf16x2")
    target, version = ("sm_90", "7.8") if needs_sm90 else ("sm_75", "7.0")
    text = kernel("\n".join(lines + builder.lines), ["u64"] * 4, target=target, version=version)
    memories = [Memory(values) for values in inputs_of(kind)]
    return Case(
        name=f"atomic/{space}_{kind}",
        ptx=text,
        arguments=(Memory(np.zeros(len(builder.outputs) * COUNT, np.uint64)), *memories),
        outputs=tuple(builder.outputs),
        block=(COUNT, 1, 1),
    )


def vectors(kind: str) -> Case:
    """Vector atom and red of SM90; thread i has cells of up to 16 bytes."""
    lines = [pointers(3), thread_index(), ".reg .b64 %at, %out, %cell;"]
    width = width_of(kind)
    register = 32 if kind == "f32" or kind.endswith("x2") else 16
    lines += [f".reg .b{register} %b<8>, %d<8>;"]
    outputs, arguments = [], operands(kind, 607, 8 * 64)
    widths, names = VECTOR_OPS[kind]
    offset = 0
    for vector in widths:
        count = int(vector[1:])
        size = count * width // 8
        listed = {r: "{" + ", ".join(f"%{r}{i}" for i in range(count)) + "}" for r in "bd"}
        lines.append(f"mad.wide.u32 %at, %me, {size}, %p2;")
        lines += [f"ld.global.b{width} %b{i}, [%at+{i * width // 8}];" for i in range(count)]
        for name in names:
            for verb in ("atom", "red"):
                text = f"{verb}.global.{name.split('.')[0]}.noftz.{vector}.{kind}"
                text = text.replace(".noftz", ".noftz" if "noftz" in name else "")
                result = f"{listed['d']}, " if verb == "atom" else ""
                lines.append(
                    f"mad.wide.u32 %cell, %me, {size}, %p1; add.s64 %cell, %cell, {offset};"
                )
                lines.append(f"{text} {result}[%cell], {listed['b']};")
                room = 64 * size
                outputs.append(Output(f"{text}: memory", 1, offset, f"uint{width}", 64 * count))
                if verb == "atom":
                    lines.append(
                        f"mad.wide.u32 %out, %me, {size}, %p0; add.s64 %out, %out, {offset};"
                    )
                    lines += [
                        f"st.global.b{width} [%out+{i * width // 8}], %d{i};" for i in range(count)
                    ]
                    outputs.append(Output(f"{text}: old", 0, offset, f"uint{width}", 64 * count))
                offset += room
    start = np.resize(arguments["a"], offset // (width // 8))
    text = kernel("\n".join(lines), ["u64"] * 3, target="sm_90", version="8.1")
    return Case(
        name=f"atomic/vector_{kind}",
        ptx=text,
        arguments=(Memory(np.zeros(offset, np.uint8)), Memory(start), Memory(arguments["b"])),
        outputs=tuple(outputs),
        block=(64, 1, 1),
    )


CONTENDED = """
.shared .align 8 .b32 tally[4];
.reg .b32 %x, %at, %n; .reg .b64 %in;
.reg .pred %first;
mad.wide.u32 %in, %me, 4, %p1;
ld.global.b32 %x, [%in];
mov.u32 %at, tally;
mov.u32 %n, %tid.x;
setp.eq.u32 %first, %n, 0;
@%first st.shared.v4.b32 [%at], {0, 0, 0, 0};
bar.sync 0;
red.shared.add.u32 [%at], %x;
red.shared.max.s32 [%at+4], %x;
red.shared.xor.b32 [%at+8], %x;
atom.shared.inc.u32 %n, [%at+12], 40;
red.relaxed.gpu.global.add.u32 [%p0], %x;
red.release.sys.global.or.b32 [%p0+4], %x;
atom.acq_rel.gpu.global.min.s32 %n, [%p0+8], %x;
atom.global.gpu.relaxed.add.u64 %in, [%p0+16], 3;
bar.sync 0;
mov.u32 %x, %ctaid.x;
mad.wide.u32 %in, %x, 16, %p0;
.reg .b32 %v<4>;
@%first ld.shared.v4.b32 {%v0, %v1, %v2, %v3}, [%at];
@%first st.global.v4.b32 [%in+32], {%v0, %v1, %v2, %v3};
"""


def contended() -> Case:
    """Many threads on one address: the totals are determined."""
    text = CONTENDED.replace("atom.global.gpu.relaxed.add", "atom.relaxed.gpu.global.add")
    body = "\n".join([pointers(2), thread_index(), text])
    return Case(
        name="atomic/contended",
        ptx=kernel(body, ["u64"] * 2, target="sm_75", version="7.0"),
        arguments=(Memory(np.zeros(24, np.uint32)), Memory(noise(609, 512, 32))),
        outputs=(Output("totals", 0, 0, "uint32", 24),),
        block=(128, 1, 1),
        grid=(4, 1, 1),
    )


WIDE = """
.reg .b64 %at, %out, %l, %h; .reg .b128 %a, %b, %d;
mad.wide.u32 %at, %me, 16, %p1;
mad.wide.u32 %out, %me, 16, %p0;
ld.global.v2.b64 {%l, %h}, [%at];
mov.b128 %a, {%l, %h};
ld.global.v2.b64 {%l, %h}, [%at+16];
mov.b128 %b, {%l, %h};
atom.global.exch.b128 %d, [%out], %a;
mov.b128 {%l, %h}, %d;
st.global.v2.b64 [%out+1024], {%l, %h};
atom.global.cas.b128 %d, [%out], %b, %a;
mov.b128 {%l, %h}, %d;
st.global.v2.b64 [%out+2048], {%l, %h};
atom.global.cas.b128 %d, [%out], %a, %b;
mov.b128 {%l, %h}, %d;
st.global.v2.b64 [%out+3072], {%l, %h};
"""


def wide() -> Case:
    """128-bit exchange and compare-and-swap."""
    body = "\n".join([pointers(2), thread_index(), WIDE])
    start = np.concatenate([noise(611, 128), np.zeros(384, np.uint64)])
    labels = ("memory", "exch: old", "cas fails: old", "cas: old")
    return Case(
        name="atomic/wide",
        ptx=kernel(body, ["u64"] * 2, target="sm_90", version="8.4"),
        arguments=(Memory(start), Memory(noise(613, 130))),
        outputs=tuple(Output(text, 0, 1024 * i, "uint64", 128) for i, text in enumerate(labels)),
        block=(64, 1, 1),
    )


def cases() -> list[Case]:
    """The family."""
    return [
        *[scalar(kind, space) for space in ("global", "shared") for kind in INTEGER_OPS],
        *[scalar(kind, space) for space in ("global", "shared") for kind in FLOAT_OPS],
        *[vectors(kind) for kind in VECTOR_OPS],
        contended(),
        wide(),
    ]
