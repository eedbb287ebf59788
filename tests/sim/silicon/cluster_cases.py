"""Clusters: distributed shared memory, remote mbarriers, st.async, multicast, tensormap.replace."""

from __future__ import annotations

import numpy as np

from silicon.async_cases import TILE
from silicon.case import Case, Map, Memory, Output
from silicon.text import kernel, pointers, thread_index
from silicon.tma_cases import BARRIER, START, THREADS, Tensor, contents, coordinates, wait, words
from silicon.values import noise

SYNC = "barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;"
REMOTE = """
.shared .align 16 .b32 cells[256];
.reg .b32 %rank, %peer, %cells, %far, %x, %y, %n; .reg .b64 %g, %wide; .reg .pred %p;
mov.u32 %rank, %cluster_ctarank;
mov.u32 %n, %tid.x;
mov.u32 %cells, cells;
mad.lo.u32 %cells, %n, 4, %cells;
mad.wide.u32 %g, %me, 4, %p1;
ld.global.b32 %x, [%g];
st.shared.b32 [%cells], %x;
st.shared.b32 [%cells+512], %n;
add.u32 %peer, %rank, 1;
and.b32 %peer, %peer, 3;
"""


def remote_memory() -> Case:
    """mapa, remote loads, stores and atomics, getctarank, generic addresses."""
    count = 128 * 4
    body = f"""
{pointers(2)}
{thread_index()}
{REMOTE}
{SYNC}
mapa.shared::cluster.u32 %far, %cells, %peer;
ld.shared::cluster.b32 %y, [%far];
mad.wide.u32 %g, %me, 4, %p0;
st.global.b32 [%g], %y;
getctarank.shared::cluster.u32 %y, %far;
st.global.b32 [%g+{4 * count}], %y;
xor.b32 %y, %n, 5;
st.shared::cluster.b32 [%far+512], %y;
{SYNC}
ld.shared.b32 %y, [%cells+512];
st.global.b32 [%g+{8 * count}], %y;
atom.shared::cluster.add.u32 %y, [%far], 7;
st.global.b32 [%g+{12 * count}], %y;
{SYNC}
red.shared::cluster.xor.b32 [%far+512], 0xff00;
{SYNC}
cvta.shared.u64 %wide, 0;
mov.u64 %wide, cells;
cvta.shared.u64 %wide, %wide;
mad.wide.u32 %wide, %n, 4, %wide;
mapa.u64 %wide, %wide, %peer;
ld.b32 %y, [%wide];
ld.b32 %x, [%wide+512];
xor.b32 %y, %y, %x;
isspacep.shared::cluster %p, %wide;
@!%p mov.b32 %y, 0;
isspacep.shared::cta %p, %wide;
@%p mov.b32 %y, 1;
st.global.b32 [%g+{16 * count}], %y;
{SYNC}
""".replace("cvta.shared.u64 %wide, 0;\n", "")
    labels = ("ld.shared::cluster", "getctarank", "st.shared::cluster", "atom: old", "generic")
    return Case(
        name="cluster/remote_memory",
        ptx=kernel(body, ["u64"] * 2, target="sm_90", version="8.0"),
        arguments=(Memory(np.zeros(5 * count, np.uint32)), Memory(noise(1501, count, 32))),
        outputs=tuple(
            Output(text, 0, 4 * count * i, "uint32", count) for i, text in enumerate(labels)
        ),
        block=(128, 1, 1),
        grid=(4, 1, 1),
        cluster=(4, 1, 1),
    )


def async_stores() -> Case:
    """st.async of every width to the next CTA, counted by its mbarrier."""
    threads = 32
    bytes_each = 4 + 8 + 8 + 16 + 16
    weak = "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes"
    body = f"""
.shared .align 16 .b8 tile[2048];
.shared .align 8 .b64 bar;
.reg .b32 %far, %farbar, %tile, %bar, %rank, %peer, %n, %v<4>; .reg .b64 %g, %w<2>;
.reg .pred %first, %ready;
{pointers(2)}
{thread_index()}
mov.u32 %n, %tid.x; setp.eq.u32 %first, %n, 0; mov.u32 %tile, tile; mov.u32 %bar, bar;
mov.u32 %rank, %cluster_ctarank; xor.b32 %peer, %rank, 1;
@%first mbarrier.init.shared::cta.b64 [%bar], 1;
@%first fence.mbarrier_init.release.cluster;
@%first mbarrier.arrive.expect_tx.shared::cta.b64 _, [%bar], {bytes_each * threads};
{SYNC}
mad.wide.u32 %g, %me, 16, %p1;
ld.global.v4.b32 {{%v0, %v1, %v2, %v3}}, [%g];
ld.global.v2.b64 {{%w0, %w1}}, [%g];
mapa.shared::cluster.u32 %far, %tile, %peer;
mapa.shared::cluster.u32 %farbar, %bar, %peer;
mad.lo.u32 %far, %n, 16, %far;
st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [%far], %v3, [%farbar];
{weak}.b64 [%far+8], %w1, [%farbar];
{weak}.v2.b32 [%far+512], {{%v1, %v2}}, [%farbar];
{weak}.v4.b32 [%far+1024], {{%v0, %v1, %v2, %v3}}, [%farbar];
{weak}.v2.b64 [%far+1536], {{%w1, %w0}}, [%farbar];
{wait(0).replace("try_wait.parity", "try_wait.parity.acquire.cluster")}
mad.lo.u32 %tile, %n, 16, %tile; mad.wide.u32 %g, %me, 48, %p0;
ld.shared.b32 %v0, [%tile]; st.global.b32 [%g], %v0;
ld.shared.b64 %w0, [%tile+8]; st.global.b64 [%g+8], %w0;
ld.shared.b64 %w0, [%tile+512]; st.global.b64 [%g+16], %w0;
ld.shared.v2.b64 {{%w0, %w1}}, [%tile+1024]; xor.b64 %w0, %w0, %w1; st.global.b64 [%g+24], %w0;
ld.shared.v2.b64 {{%w0, %w1}}, [%tile+1536]; st.global.v2.b64 [%g+32], {{%w0, %w1}};
{SYNC}
"""
    return Case(
        name="cluster/st_async",
        ptx=kernel(body, ["u64"] * 2, target="sm_90", version="8.1"),
        arguments=(Memory(np.zeros(64 * 6, np.uint64)), Memory(noise(1503, 128))),
        outputs=(Output("st.async", 0, 0, "uint64", 64 * 6),),
        block=(threads, 1, 1),
        grid=(2, 1, 1),
        cluster=(2, 1, 1),
    )


def remote_barriers() -> Case:
    """CTAs 1 to 3 hand words to CTA 0 through its mbarrier; unaligned cluster barriers."""
    body = f"""
.shared .align 16 .b32 cells[128];
.shared .align 8 .b64 bar;
.reg .b32 %rank, %bar, %cells, %far, %farbar, %x, %n; .reg .b64 %g, %state;
.reg .pred %first, %ready, %home;
{pointers(2)}
{thread_index()}
mov.u32 %n, %tid.x; setp.eq.u32 %first, %n, 0; mov.u32 %bar, bar; mov.u32 %cells, cells;
mov.u32 %rank, %cluster_ctarank; setp.eq.u32 %home, %rank, 0;
@%first mbarrier.init.shared::cta.b64 [%bar], 97;
@%first fence.mbarrier_init.release.cluster;
barrier.cluster.arrive.release; barrier.cluster.wait.acquire;
mad.wide.u32 %g, %me, 4, %p1;
ld.global.b32 %x, [%g];
mapa.shared::cluster.u32 %farbar, %bar, 0;
mapa.shared::cluster.u32 %far, %cells, 0;
shl.b32 %cells, %me, 2;
add.u32 %far, %far, %cells;
@%home bra WAIT_HERE;
st.shared::cluster.b32 [%far], %x;
mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%farbar];
bra DONE;
WAIT_HERE:
st.shared::cluster.b32 [%far], %x;
@%first mbarrier.arrive.release.cluster.shared::cta.b64 %state, [%bar];
bar.sync 0;
{wait(0).replace("try_wait.parity", "try_wait.parity.acquire.cluster")}
mov.u32 %cells, cells; mad.lo.u32 %cells, %n, 16, %cells;
.reg .b32 %v<4>;
ld.shared.v4.b32 {{%v0, %v1, %v2, %v3}}, [%cells];
mad.wide.u32 %g, %n, 16, %p0;
st.global.v4.b32 [%g], {{%v0, %v1, %v2, %v3}};
DONE:
barrier.cluster.arrive.relaxed; barrier.cluster.wait;
"""
    return Case(
        name="cluster/remote_barriers",
        ptx=kernel(body, ["u64"] * 2, target="sm_90", version="8.0"),
        arguments=(Memory(np.zeros(128, np.uint32)), Memory(noise(1509, 128, 32))),
        outputs=(Output("words", 0, 0, "uint32", 128),),
        block=(32, 1, 1),
        grid=(4, 1, 1),
        cluster=(4, 1, 1),
    )


RED_ASYNC: tuple[str, ...] = (
    "add.u32",
    "add.s32",
    "add.u64",
    "min.u32",
    "min.s32",
    "max.u32",
    "max.s32",
    "inc.u32",
)
RED_ASYNC += ("dec.u32", "and.b32", "or.b32", "xor.b32")


def async_reductions() -> Case:
    """red.async to the next CTA's shared memory, one thread per cell."""
    threads, lines = 32, [".shared .align 16 .b64 cells[384];\n.shared .align 8 .b64 bar;"]
    lines += [pointers(2), thread_index(), ".reg .pred %first, %ready; .reg .b64 %g, %w, %u;"]
    lines.append(".reg .b32 %cells, %bar, %far, %farbar, %n, %x, %rank;")
    lines.append(
        "mov.u32 %n, %tid.x; setp.eq.u32 %first, %n, 0; mov.u32 %cells, cells; mov.u32 %bar, bar;"
    )
    lines.append("mad.wide.u32 %g, %me, 8, %p1; ld.global.b64 %w, [%g]; cvt.u32.u64 %x, %w;")
    lines.append("mad.lo.u32 %cells, %n, 8, %cells; ld.global.b64 %u, [%g+512];")
    lines += [f"st.shared.b64 [%cells+{256 * i}], %u;" for i in range(len(RED_ASYNC))]
    size = sum(8 if name.endswith("64") else 4 for name in RED_ASYNC) * threads
    lines.append("@%first mbarrier.init.shared::cta.b64 [%bar], 1;")
    lines.append("@%first fence.mbarrier_init.release.cluster;")
    lines.append(f"@%first mbarrier.arrive.expect_tx.shared::cta.b64 _, [%bar], {size};")
    lines.append(SYNC)
    lines.append("mov.u32 %rank, %cluster_ctarank; xor.b32 %rank, %rank, 1;")
    lines.append(
        "mapa.shared::cluster.u32 %far, %cells, %rank; mapa.shared::cluster.u32 "
        "%farbar, %bar, %rank;"
    )
    for i, name in enumerate(RED_ASYNC):
        value = "%w" if name.endswith("64") else "%x"
        text = f"red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.{name}"
        lines.append(f"{text} [%far+{256 * i}], {value}, [%farbar];")
    lines.append(wait(0).replace("try_wait.parity", "try_wait.parity.acquire.cluster"))
    outputs = []
    for i, name in enumerate(RED_ASYNC):
        lines.append(f"ld.shared.b64 %w, [%cells+{256 * i}]; mad.wide.u32 %g, %me, 8, %p0;")
        lines.append(f"st.global.b64 [%g+{512 * i}], %w;")
        outputs.append(Output(f"red.async.{name}", 0, 512 * i, "uint64", 64))
    lines.append(SYNC)
    return Case(
        name="cluster/red_async",
        ptx=kernel("\n".join(lines), ["u64"] * 2, target="sm_90", version="8.1"),
        arguments=(Memory(np.zeros(64 * len(outputs), np.uint64)), Memory(noise(1505, 128))),
        outputs=tuple(outputs),
        block=(threads, 1, 1),
        grid=(2, 1, 1),
        cluster=(2, 1, 1),
    )


def shared_bulk() -> Case:
    """Bulk copy and reductions from shared memory to another CTA's."""
    kinds = ("add.u32", "min.s32", "max.u32", "inc.u32", "dec.u32", "and.b32", "xor.b32", "add.u64")
    lines = [
        ".shared .align 128 .b8 there[2304];\n.shared .align 8 .b64 bar;",
        pointers(2),
        thread_index(),
        TILE,
    ]
    lines.append(".reg .pred %first, %ready; .reg .b32 %bar, %far, %farbar, %rank, %there;")
    lines.append("mov.u32 %n, %tid.x; setp.eq.u32 %first, %n, 0; mov.u32 %there, there;")
    lines += [BARRIER, "mov.u32 %me, %n; mov.u32 %rank, %cluster_ctarank;"]
    lines.append("mul.wide.u32 %src, %rank, 512; add.s64 %src, %src, %p1;")
    fill = "cvt.u64.u32 %g, %at; add.s64 %g, %src, %g; ld.global.b32 %n, [%g]; "
    fill += "add.u32 %v, %tile, %at; st.shared.b32 [%v], %n;"
    lines.append(words("FILL", 256, fill))
    start = "and.b32 %n, %at, 255; cvt.u64.u32 %g, %n; add.s64 %g, %src, %g; "
    start += "ld.global.b32 %n, [%g+256]; add.u32 %v, %there, %at; st.shared.b32 [%v], %n;"
    lines.append(words("THERE", 2304, start))
    lines.append(
        f"@%first mbarrier.arrive.expect_tx.shared::cta.b64 _, [%bar], {256 * (1 + len(kinds))};"
    )
    lines.append("fence.proxy.async.shared::cta;")
    lines += [SYNC, "xor.b32 %v, %rank, 1;"]
    lines.append(
        "mapa.shared::cluster.u32 %far, %there, %v; mapa.shared::cluster.u32 %farbar, %bar, %v;"
    )
    for i, kind in enumerate(("", *kinds)):
        verb = "cp.reduce.async.bulk" if kind else "cp.async.bulk"
        tail = f".{kind}" if kind else ""
        lines.append(f"add.u32 %v, %far, {256 * i};")
        lines.append(
            "@%first "
            f"{verb}.shared::cluster.shared::cta.mbarrier::complete_tx::bytes{tail} "
            "[%v], [%tile], 256, [%farbar];"
        )
    lines.append(wait(0).replace("try_wait.parity", "try_wait.parity.acquire.cluster"))
    copy = "add.u32 %v, %there, %at; ld.shared.b32 %n, [%v]; mad.lo.u32 %v, %rank, 2304, %at; "
    copy += "cvt.u64.u32 %g, %v; add.s64 %g, %p0, %g; st.global.b32 [%g], %n;"
    lines += [words("OUT", 2304, copy), SYNC]
    outputs = [
        Output(f"CTA {rank} {kind or 'copy'}", 0, 2304 * rank + 256 * i, "uint32", 64)
        for rank in (0, 1)
        for i, kind in enumerate(("", *kinds))
    ]
    return Case(
        name="cluster/shared_bulk",
        ptx=kernel("\n".join(lines), ["u64"] * 2, target="sm_90", version="8.0"),
        arguments=(Memory(np.zeros(2 * 2304, np.uint8)), Memory(noise(1507, 128))),
        outputs=tuple(outputs),
        block=(THREADS, 1, 1),
        grid=(2, 1, 1),
        cluster=(2, 1, 1),
    )


def multicast() -> Case:
    """A tensor and a bulk copy, each sent to the CTAs of a mask, at the same offsets."""
    tensor = Tensor("uint32", (24, 20), (8, 8))
    size = tensor.box_bytes
    moves, listed = coordinates((4, 14))
    lines = [f".shared .align 128 .b8 tile[{2 * size}];\n.shared .align 8 .b64 bar;", START]
    lines.append(".reg .b32 %rank, %to; .reg .b16 %mask; .reg .pred %sends, %wanted;")
    lines.append("ld.param.u64 %in, [p2]; cvta.to.global.u64 %in, %in;")
    lines += [
        BARRIER,
        "mov.u64 %map, p1; cvta.param.u64 %map, %map; mov.u32 %rank, %cluster_ctarank;",
    ]
    mark = "add.u32 %v, %tile, %at; st.shared.b32 [%v], 0xA5A5A5A5;"
    lines += [words("MARK", 2 * size, mark), "fence.proxy.async.shared::cta;"]
    # CTAs 0, 1 and 3 get the tensor's box from CTA 1; CTAs 2 and 3 get plain bytes from CTA 2.
    lines.append("mov.u32 %v, 0; setp.ne.u32 %wanted, %rank, 2; selp.b32 %c0, 256, 0, %wanted;")
    lines.append(
        "setp.ge.u32 %wanted, %rank, 2; selp.b32 %c1, 64, 0, %wanted; add.u32 %v, %c0, %c1;"
    )
    lines.append("@%first mbarrier.arrive.expect_tx.shared::cta.b64 _, [%bar], %v;")
    lines += [SYNC, moves, "setp.eq.and.u32 %sends, %rank, 1, %first; mov.u16 %mask, 11;"]
    verb = "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
    lines.append(f"@%sends {verb}.multicast::cluster [%tile], [%map, {listed}], [%bar], %mask;")
    lines.append("setp.eq.and.u32 %sends, %rank, 2, %first; mov.u16 %mask, 12;")
    verb = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
    lines.append(f"add.u32 %to, %tile, {size}; @%sends {verb} [%to], [%in], 64, [%bar], %mask;")
    lines.append(wait(0))
    copy = (
        f"add.u32 %v, %tile, %at; ld.shared.b32 %to, [%v]; mad.lo.u32 %v, %rank, {2 * size}, %at; "
    )
    copy += "cvt.u64.u32 %g, %v; add.s64 %g, %out, %g; st.global.b32 [%g], %to;"
    lines += [words("OUT", 2 * size, copy), SYNC]
    return Case(
        name="cluster/multicast",
        ptx=kernel("\n".join(lines), ["u64", "map", "u64"], target="sm_90a", version="8.0"),
        arguments=(Memory(np.zeros(8 * size, np.uint8)), tensor.map(2), Memory(contents(tensor))),
        outputs=tuple(
            Output(f"CTA {rank}", 0, 2 * size * rank, "uint32", size // 2) for rank in range(4)
        ),
        block=(THREADS, 1, 1),
        grid=(4, 1, 1),
        cluster=(4, 1, 1),
    )


def replaced_map() -> Case:
    """tensormap.replace in shared memory, published with cp_fenceproxy, then used."""
    tensor = Tensor("uint32", (24, 20), (8, 8))
    size = 4 * 4 * 6
    changes = (
        ("global_address", "b64", "%in"),
        ("rank", "b32", "1"),
        ("global_dim", "b32", "0, 17"),
        ("global_dim", "b32", "1, 9"),
        ("global_stride", "b64", "0, 80"),
        ("box_dim", "b32", "0, 4"),
        ("box_dim", "b32", "1, 6"),
        ("element_stride", "b32", "1, 1"),
        ("elemtype", "b32", "2"),
        ("swizzle_mode", "b32", "0"),
        ("fill_mode", "b32", "0"),
    )
    lines = [
        (
            ".shared .align 128 .b8 desc[128];\n.shared .align 128 .b8 "
            f"tile[{size}];\n.shared .align 8 .b64 bar;"
        ),
        START,
    ]
    lines.append(".reg .b32 %desc, %x; .reg .b64 %new; mov.u32 %desc, desc;")
    lines.append("ld.param.u64 %in, [p2]; cvta.to.global.u64 %in, %in;")
    lines.append(
        "ld.param.u64 %new, [p3]; cvta.to.global.u64 %new, %new; mov.u64 %map, p1; "
        "cvta.param.u64 %map, %map;"
    )
    copy = (
        "cvt.u64.u32 %g, %at; add.s64 %g, %map, %g; ld.b32 %x, [%g]; add.u32 %v, "
        "%desc, %at; st.shared.b32 [%v], %x;"
    )
    lines += [words("COPY", 128, copy), BARRIER, "bar.sync 0;"]
    for field, kind, value in changes:
        text = f"tensormap.replace.tile.{field}.shared::cta.b1024.{kind} [%desc], {value};"
        lines.append(f"@%first {text}")
    lines.append("bar.sync 0; setp.lt.u32 %more, %me, 32;")
    lines.append(
        "@%more "
        "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned "
        "[%new], [%desc], 128;"
    )
    lines.append("cvta.global.u64 %new, %new;")
    lines.append(
        "fence.proxy.tensormap::generic.acquire.gpu [%new], 128; "
        "fence.proxy.async.shared::cta; bar.sync 0;"
    )
    moves, listed = coordinates((16, 5))
    lines += [moves, f"@%first mbarrier.arrive.expect_tx.shared::cta.b64 _, [%bar], {size};"]
    verb = "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
    lines.append(f"@%first {verb} [%tile], [%new, {listed}], [%bar];")
    lines.append(wait(0))
    copy = (
        "add.u32 %v, %tile, %at; ld.shared.b32 %v, [%v]; cvt.u64.u32 %g, %at; "
        "add.s64 %g, %out, %g; st.global.b32 [%g], %v;"
    )
    lines.append(words("OUT", size, copy))
    return Case(
        name="cluster/tensormap_replace",
        ptx=kernel("\n".join(lines), ["u64", "map", "u64", "u64"], target="sm_90a", version="8.5"),
        arguments=(
            Memory(np.zeros(size, np.uint8)),
            Map(2, "float32", tensor.dims, tensor.strides, tensor.box, (1, 2), "32", "nan", 0),
            Memory(contents(tensor)),
            Memory(np.zeros(16, np.uint64)),
        ),
        outputs=(Output("box", 0, 0, "uint32", size // 4),),
        block=(THREADS, 1, 1),
    )


REGISTER_MOVES = """
.reg .b32 %x; .reg .b64 %g; .reg .pred %p;
griddepcontrol.wait;
setp.ge.u32 %p, %me, 128;
@%p bra CONSUMER;
setmaxnreg.dec.sync.aligned.u32 40;
mov.u32 %x, 11;
bra JOIN;
CONSUMER:
setmaxnreg.inc.sync.aligned.u32 208;
mov.u32 %x, 22;
JOIN:
nanosleep.u32 20;
griddepcontrol.launch_dependents;
add.u32 %x, %x, %me;
mad.wide.u32 %g, %me, 4, %p0;
st.global.b32 [%g], %x;
"""


def register_moves() -> Case:
    """setmaxnreg, griddepcontrol and nanosleep change nothing that a thread can see."""
    body = "\n".join([pointers(1), thread_index(), REGISTER_MOVES])
    text = kernel(body, ["u64"], target="sm_90a", version="8.0")
    return Case(
        name="cluster/setmaxnreg",
        ptx=text.replace("p0)\n{", "p0)\n.maxntid 256, 1, 1\n.maxnreg 128\n{"),
        arguments=(Memory(np.zeros(256, np.uint32)),),
        outputs=(Output("sums", 0, 0, "uint32", 256),),
        block=(256, 1, 1),
    )


def cases() -> list[Case]:
    """The family."""
    return [
        remote_memory(),
        remote_barriers(),
        async_stores(),
        async_reductions(),
        shared_bulk(),
        multicast(),
        replaced_map(),
        register_moves(),
    ]
