"""cp.async, bulk copies and reductions of one CTA, and mbarriers."""

from __future__ import annotations

import numpy as np

from silicon.atomic_cases import width_of
from silicon.case import Case, Memory, Output
from silicon.elements import codes
from silicon.text import kernel, pointers, thread_index
from silicon.tma_cases import BARRIER, THREADS, wait, words
from silicon.values import noise

TILE = """
.shared .align 128 .b8 tile[2048];
.reg .b32 %tile, %at, %v, %n, %to; .reg .b64 %g, %src; .reg .pred %p, %more;
mov.u32 %tile, tile;
mad.lo.u32 %to, %me, 16, %tile;
mad.wide.u32 %src, %me, 16, %p1;
"""


def _marked(index: int, statements: str, size: int = 1024) -> str:
    """Marks the tile, runs the statements, writes the tile to its part of the output."""
    mark = "add.u32 %v, %tile, %at; st.shared.b32 [%v], 0xA5A5A5A5;"
    copy = "add.u32 %v, %tile, %at; ld.shared.b32 %v, [%v]; cvt.u64.u32 %g, %at; "
    copy += f"add.s64 %g, %p0, %g; st.global.b32 [%g+{index * size}], %v;"
    middle = f"bar.sync 0;\n{statements}\nbar.sync 0;"
    return (
        words(f"MARK_{index}", size, mark)
        + middle
        + words(f"OUT_{index}", size, copy)
        + "bar.sync 0;"
    )


def _copies() -> list[tuple[str, str]]:
    """Labels and statements; each ends with the data in place."""
    done = "cp.async.commit_group; cp.async.wait_group 0;"
    sizes = ".reg .b32 %s{0}; and.b32 %s{0}, %me, {1}; "
    result = []
    for kind, size in (("ca", 4), ("ca", 8), ("ca", 16), ("cg", 16)):
        text = f"cp.async.{kind}.shared.global [%to], [%src], {size}; {done}"
        result.append((f"cp.async.{kind} {size}", text))
        text = (
            sizes.format(0, size - 1)
            + f"cp.async.{kind}.shared.global [%to], [%src], {size}, %s0; {done}"
        )
        result.append((f"cp.async.{kind} {size} src-size 0..{size - 1}", text))
        text = f"cp.async.{kind}.shared.global [%to], [%src], {size}, {size}; {done}"
        result.append((f"cp.async.{kind} {size} src-size {size}", text))
        odd = "and.b32 %v, %me, 1; setp.ne.u32 %p, %v, 0; "
        text = odd + f"cp.async.{kind}.shared.global [%to], [%src], {size}, %p; {done}"
        result.append((f"cp.async.{kind} {size} ignore-src", text))
        text = (
            odd
            + f"@%p cp.async.{kind}.shared.global [%to+0], [%src+16], {size}; cp.async.wait_all;"
        )
        result.append((f"cp.async.{kind} {size} predicated, wait_all", text))
    chain = "cp.async.cg.shared.global.L2::128B [%to], [%src], 16; cp.async.commit_group; "
    chain += "cp.async.ca.shared.global.L2::256B [%to+0], [%src+16], 4; cp.async.commit_group; "
    chain += "cp.async.commit_group; cp.async.wait_group 1; cp.async.wait_group 0;"
    result.append(("cp.async twice in order of groups", chain.replace("[%to+0]", "[%to+4]")))
    return result


def copies() -> Case:
    """Every cp.async; source sizes shorter than the copy fill with zeros."""
    table = _copies()
    lines = [pointers(2), thread_index(), TILE]
    outputs = []
    for i, (label, text) in enumerate(table):
        lines.append(_marked(i, "{ " + text + " }"))
        outputs.append(Output(label, 0, 1024 * i, "uint32", 256))
    return Case(
        name="async/cp_async",
        ptx=kernel("\n".join(lines), ["u64"] * 2, target="sm_80", version="7.5"),
        arguments=(Memory(np.zeros(256 * len(table), np.uint32)), Memory(noise(1401, 256))),
        outputs=tuple(outputs),
        block=(THREADS, 1, 1),
    )


def copy_arrivals() -> Case:
    """cp.async.mbarrier.arrive, with and without .noinc, lets the data through."""
    lines = [pointers(2), thread_index(), TILE, ".shared .align 8 .b64 bar;"]
    lines.append(
        ".reg .pred %first, %ready; .reg .b32 %bar; .reg .b64 %state; setp.eq.u32 %first, %me, 0;"
    )
    lines.append(
        BARRIER.replace("[%bar], 1;", f"[%bar], {THREADS};").replace(
            "@%first fence.mbarrier_init.release.cluster;", "bar.sync 0;"
        )
    )
    spin = (
        "SPIN_{0}: mbarrier.test_wait.parity.shared::cta.b64 %ready, [%bar], "
        "{0};\n@!%ready bra SPIN_{0};"
    )
    first = (
        "cp.async.ca.shared.global [%to], [%src], 16; "
        "cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%bar];"
    )
    second = (
        "cp.async.ca.shared.global [%to], [%src+16], 8; "
        "cp.async.mbarrier.arrive.shared::cta.b64 [%bar]; "
        "mbarrier.arrive.shared::cta.b64 %state, [%bar];"
    )
    for i, text in enumerate((first, second)):
        lines.append(_marked(i, text + "\n" + spin.format(i)))
    labels = ("noinc", "increment and decrement")
    return Case(
        name="async/cp_async_mbarrier",
        ptx=kernel("\n".join(lines), ["u64"] * 2, target="sm_80", version="7.8"),
        arguments=(Memory(np.zeros(512, np.uint32)), Memory(noise(1403, 256))),
        outputs=tuple(Output(text, 0, 1024 * i, "uint32", 256) for i, text in enumerate(labels)),
        block=(THREADS, 1, 1),
    )


def bulk() -> Case:
    """Bulk copies to shared memory and back, of several sizes."""
    lines = [pointers(2), thread_index(), TILE, ".shared .align 8 .b64 bar;"]
    lines.append(".reg .pred %first, %ready; .reg .b32 %bar; setp.eq.u32 %first, %me, 0;")
    lines += [BARRIER, "fence.proxy.async.shared::cta; bar.sync 0;"]
    outputs = []
    for i, (space, size, shift) in enumerate(
        (("cluster", 16, 32), ("cluster", 1024, 0), ("cta", 528, 64))
    ):
        text = (
            "fence.proxy.async.shared::cta; bar.sync 0;\n"
            f"@%first mbarrier.arrive.expect_tx.shared::cta.b64 _, [%bar], {size};\n"
            f"add.u32 %v, %tile, {shift}; add.s64 %g, %p1, {16 * i};\n"
            "@%first cp.async.bulk.prefetch.L2.global [%g], 16;\n"
            f"@%first cp.async.bulk.shared::{space}.global.mbarrier::complete_tx::bytes "
            f"[%v], [%g], {size}, [%bar];\n" + wait(i)
        )
        lines.append(_marked(i, text))
        outputs.append(Output(f"shared::{space} <- global {size}", 0, 1024 * i, "uint32", 256))
    fill = (
        "cvt.u64.u32 %g, %at; add.s64 %g, %p1, %g; ld.global.b32 %n, [%g]; add.u32 "
        "%v, %tile, %at; st.shared.b32 [%v], %n;"
    )
    lines += [words("FILL", 1024, fill), "fence.proxy.async.shared::cta; bar.sync 0;"]
    for i, (size, shift) in enumerate(((1024, 0), (48, 16)), start=3):
        lines.append(f"add.u32 %v, %tile, {shift}; add.s64 %g, %p0, {1024 * i + 2 * shift};")
        lines.append(f"@%first cp.async.bulk.global.shared::cta.bulk_group [%g], [%v], {size};")
        lines.append("@%first cp.async.bulk.commit_group;")
        outputs.append(Output(f"global <- shared {size}", 0, 1024 * i, "uint32", 256))
    lines.append("@%first cp.async.bulk.wait_group.read 1; @%first cp.async.bulk.wait_group 0;")
    return Case(
        name="async/bulk",
        ptx=kernel("\n".join(lines), ["u64"] * 2, target="sm_90", version="8.6"),
        arguments=(Memory(np.zeros(1280, np.uint32)), Memory(noise(1405, 256))),
        outputs=tuple(outputs),
        block=(THREADS, 1, 1),
    )


BULK_REDUCTIONS = {
    "u32": ("add", "min", "max", "inc", "dec"),
    "s32": ("add", "min", "max"),
    "b32": ("and", "or", "xor"),
    "u64": ("add", "min", "max"),
    "s64": ("min", "max"),
    "b64": ("and", "or", "xor"),
    "f32": ("add",),
    "f64": ("add",),
    "f16": ("add.noftz", "min", "max"),
    "bf16": ("add.noftz", "min", "max"),
}


def bulk_reductions() -> list[Case]:
    """cp.reduce.async.bulk from shared to global memory."""
    cases = []
    for kind, names in BULK_REDUCTIONS.items():
        size, width = 256, width_of(kind)
        lines = [
            pointers(2),
            thread_index(),
            TILE,
            ".reg .pred %first; setp.eq.u32 %first, %me, 0;",
        ]
        fill = (
            "cvt.u64.u32 %g, %at; add.s64 %g, %p1, %g; ld.global.b32 %n, [%g]; add.u32 "
            "%v, %tile, %at; st.shared.b32 [%v], %n;"
        )
        lines += [words("FILL", size, fill), "fence.proxy.async.shared::cta; bar.sync 0;"]
        outputs = []
        for i, name in enumerate(names):
            lines.append(f"add.s64 %g, %p0, {size * i};")
            text = f"cp.reduce.async.bulk.global.shared::cta.bulk_group.{name}.{kind}"
            lines.append(f"@%first {text} [%g], [%tile], {size};")
            outputs.append(Output(text, 0, size * i, f"uint{width}", size * 8 // width))
        lines.append("@%first cp.async.bulk.commit_group; @%first cp.async.bulk.wait_group 0;")
        count = size * 8 // width
        if kind[0] == "f" or kind == "bf16":
            start = codes(kind, "wide", 1407, count * len(names)).astype(f"uint{width}")
            values = codes(kind, "wide", 1409, count).astype(f"uint{width}")
        else:
            start, values = noise(1407, count * len(names), width), noise(1409, count, width)
            start[::4] >>= start.dtype.type(width - 8)
            values[::4] >>= values.dtype.type(width - 8)
        cases.append(
            Case(
                name=f"async/bulk_reduce_{kind}",
                ptx=kernel("\n".join(lines), ["u64"] * 2, target="sm_90", version="8.0"),
                arguments=(Memory(start), Memory(values)),
                outputs=tuple(outputs),
                block=(THREADS, 1, 1),
            )
        )
    return cases


ARRIVE = "mbarrier.arrive.shared::cta.b64 %s{0}, [%bar];"
MBARRIER_STEPS = (
    ("init 3", "mbarrier.init.shared::cta.b64 [%bar], 3;"),
    ("arrive", ARRIVE.format(0)),
    ("arrive 1", "mbarrier.arrive.shared::cta.b64 %s1, [%bar], 1;"),
    ("arrive completes", ARRIVE.format(2)),
    ("expect_tx 40", "mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%bar], 40;"),
    ("arrive 2", "mbarrier.arrive.release.cta.shared::cta.b64 %s3, [%bar], 2;"),
    ("complete_tx 24", "mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%bar], 24;"),
    ("arrive, bytes missing", ARRIVE.format(4)),
    ("complete_tx 16", "mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%bar], 16;"),
    ("arrive_drop", "mbarrier.arrive_drop.shared::cta.b64 %s5, [%bar];"),
    ("arrive", ARRIVE.format(6)),
    ("arrive completes three", ARRIVE.format(7)),
    ("arrive of two", ARRIVE.format(8)),
    ("arrive completes two", ARRIVE.format(9)),
    ("arrive.expect_tx 8", "mbarrier.arrive.expect_tx.shared::cta.b64 %s10, [%bar], 8;"),
    ("complete_tx before", "mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%bar], 8;"),
    ("arrive completes", ARRIVE.format(11)),
    ("noComplete", "mbarrier.arrive.noComplete.shared::cta.b64 %s12, [%bar], 1;"),
    ("arrive completes", ARRIVE.format(13)),
    (
        "inval, init 1",
        "mbarrier.inval.shared::cta.b64 [%bar]; mbarrier.init.shared::cta.b64 [%bar], 1;",
    ),
    ("arrive completes", ARRIVE.format(14)),
)


def mbarriers() -> Case:
    """One thread steps a barrier; after each step both parities and the last state are tested."""
    lines = [pointers(1), ".shared .align 8 .b64 bar; .reg .b32 %bar, %x, %y; .reg .b64 %s<16>;"]
    lines.append(".reg .pred %q; mov.u32 %bar, bar;")
    for i, (_, text) in enumerate(MBARRIER_STEPS):
        lines.append(text)
        lines.append("mov.u32 %x, 0;")
        for parity in (0, 1):
            for j, name in enumerate(("test_wait", "try_wait")):
                call = f"mbarrier.{name}.parity.shared::cta.b64 %q, [%bar], {parity}"
                call += ", 20;" if name == "try_wait" else ";"
                lines.append(
                    f"{call} selp.b32 %y, {1 << (2 * parity + j)}, 0, %q; or.b32 %x, %x, %y;"
                )
        if "%s" in text:
            state = text.split("%s")[1].split(",")[0]
            lines.append(f"mbarrier.test_wait.shared::cta.b64 %q, [%bar], %s{state};")
            lines.append("selp.b32 %y, 16, 0, %q; or.b32 %x, %x, %y;")
        lines.append(f"st.global.b32 [%p0+{4 * i}], %x;")
    return Case(
        name="async/mbarrier",
        ptx=kernel("\n".join(lines), ["u64"], target="sm_90", version="8.0"),
        arguments=(Memory(np.zeros(len(MBARRIER_STEPS), np.uint32)),),
        outputs=tuple(
            Output(f"{i}: {label}", 0, 4 * i, "uint32", 1)
            for i, (label, _) in enumerate(MBARRIER_STEPS)
        ),
        block=(1, 1, 1),
    )


def cases() -> list[Case]:
    """The family."""
    return [copies(), copy_arrivals(), bulk(), *bulk_reductions(), mbarriers()]
