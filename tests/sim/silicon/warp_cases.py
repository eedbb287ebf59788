"""Instructions in which the lanes of a warp exchange data, and divergent control flow."""

from __future__ import annotations

import itertools

import numpy as np

from silicon.case import Array, Case, Memory, Output
from silicon.text import Op, elementwise, flag, kernel, pointers, thread_index
from silicon.values import integers, noise, small_integers

ALL = "0xffffffff"
HALVES = ".reg .pred %low; .reg .b32 %lane; mov.u32 %lane, %laneid; setp.lt.u32 %low, %lane, 16; "


def _with_flag(text: str, value: str) -> str:
    """Runs `text`, which sets %q and `value`; %d is the value with %q in bit 31."""
    return (
        f".reg .pred %q; .reg .b32 %f; {text} selp.b32 %f, 0x80000000, 0, %q; "
        f"and.b32 %d, {value}, 0x7fffffff; or.b32 %d, %d, %f;"
    )


def shuffles() -> Case:
    """Every mode, clamp and segment; lane operands uniform and not."""
    ops = []
    clamps = (0x1F, 0x00, 0x0F, 0x1807, 0x1000, 0x1C03, 0x181F)
    for mode, clamp in itertools.product(("up", "down", "bfly", "idx"), clamps):
        for source in ("1", "5", "%n"):
            name = f"shfl.sync.{mode}.b32 {source} {clamp:#x}"
            text = f"shfl.sync.{mode}.b32 %x|%q, %a, {source}, {clamp}, {ALL};"
            ops.append(Op(name, 32, ".reg .b32 %x; " + _with_flag(text, "%x")))
        name = f"shfl.sync.{mode}.b32 %n %c"
        text = f"shfl.sync.{mode}.b32 %x|%q, %a, %n, %c, {ALL};"
        ops.append(Op(name, 32, ".reg .b32 %x; " + _with_flag(text, "%x")))
    half = (
        HALVES + "@%low shfl.sync.bfly.b32 %d, %a, 3, 0x1f, 0xffff; "
        "@!%low shfl.sync.down.b32 %d, %a, 2, 0x1f, 0xffff0000;"
    )
    ops.append(Op("shfl.sync in halves", 32, half))
    lanes = np.arange(64, dtype=np.uint32)
    n = (noise(503, 64, 5) | np.where(lanes > 50, 32, 0)).astype(np.uint32)
    c = np.where(lanes < 32, 0x1F, 0x181F).astype(np.uint32)
    return elementwise("warp/shuffles", {"a": noise(501, 64, 32), "n": n, "c": c}, ops)


def votes() -> Case:
    """vote, match, redux, elect and activemask over whole and half warps."""
    ops = [Op("activemask.b32", 32, "activemask.b32 %d;")]
    test = ".reg .pred %t; setp.gt.s32 %t, %a, {limit}; "
    for mode, limit in itertools.product(("all", "any", "uni"), (-9, 0, 3, 9)):
        text = f"vote.sync.{mode}.pred %q, %t, {ALL};"
        ops.append(Op(f"vote.sync.{mode} > {limit}", 32, test.format(limit=limit) + flag(text)))
    ballot = f"vote.sync.ballot.b32 %d, %t, {ALL};"
    ops.append(Op("vote.sync.ballot", 32, test.format(limit=0) + ballot))
    ops.append(Op("vote.sync.ballot !p", 32, test.format(limit=0) + ballot.replace("%t", "!%t")))
    half = (
        HALVES
        + test.format(limit=0)
        + (
            "@%low vote.sync.ballot.b32 %d, %t, 0xffff; @!%low vote.sync.ballot.b32 %d, "
            "%t, 0xffff0000;"
        )
    )
    ops.append(Op("vote.sync.ballot in halves", 32, half))
    ops.append(Op("match.any.sync.b32", 32, f"match.any.sync.b32 %d, %a, {ALL};"))
    ops.append(Op("match.any.sync.b64", 32, f"match.any.sync.b64 %d, %w, {ALL};"))
    for name, register in (("b32", "%a"), ("b32", "%s"), ("b64", "%w"), ("b64", "%v")):
        text = f".reg .b32 %x; .reg .pred %q; match.all.sync.{name} %x|%q, {register}, {ALL}; "
        ops.append(Op(f"match.all.sync.{name} {register}", 32, text + "selp.b32 %d, %x, 7, %q;"))
    inputs: dict[str, Array] = {"a": small_integers(505, 64, -4, 4).astype(np.int32).view("uint32")}
    inputs["s"] = np.repeat(noise(507, 2, 32), 32)
    inputs["w"] = noise(509, 64, 1).astype(np.uint64) << np.uint64(40)
    inputs["v"] = np.full(64, 1 << 40, np.uint64)
    return elementwise("warp/votes", inputs, ops)


def reductions() -> Case:
    """redux.sync and elect.sync."""
    ops = []
    for kind, names in (
        ("s32", ("add", "min", "max")),
        ("u32", ("add", "min", "max")),
        ("b32", ("and", "or", "xor")),
    ):
        for name in names:
            ops.append(
                Op(f"redux.sync.{name}.{kind}", 32, f"redux.sync.{name}.{kind} %d, %a, {ALL};")
            )
            half = f"@%low redux.sync.{name}.{kind} %d, %a, 0xffff; "
            half += f"@!%low redux.sync.{name}.{kind} %d, %a, 0xffff0000;"
            ops.append(Op(f"redux.sync.{name}.{kind} in halves", 32, HALVES + half))
    for mask in (ALL, "0xff00"):
        text = (
            ".reg .b32 %x; .reg .pred %q, %in; .reg .b32 %l; mov.u32 %l, %laneid; mov.b32 %d, 77; "
        )
        guard = f"shr.u32 %x, {mask}, %l; and.b32 %x, %x, 1; setp.ne.u32 %in, %x, 0; "
        elect = (
            f"@%in elect.sync %x|%q, {mask}; @%in selp.b32 %d, 1000, 0, %q; @%in add.u32 "
            "%d, %d, %x;"
        )
        ops.append(Op(f"elect.sync {mask}", 32, text + guard + elect))
    a = noise(511, 96, 32)
    a[32:64] = small_integers(513, 32, -20, 20).astype(np.int32).view(np.uint32)
    return elementwise("warp/reductions", {"a": a}, ops, target="sm_90", version="8.0")


def _loop_body() -> str:
    """Collatz steps with nested branches: lanes leave at different times."""
    return """
.reg .pred %odd, %done, %big;
.reg .b32 %x, %steps, %peak, %t, %limit;
ld.global.b32 %x, [%in];
mov.u32 %steps, 0; mov.u32 %peak, %x; mov.u32 %limit, 200;
LOOP:
setp.le.u32 %done, %x, 1;
@%done bra EXIT_LOOP;
setp.ge.u32 %done, %steps, %limit;
@%done bra EXIT_LOOP;
and.b32 %t, %x, 1;
setp.ne.u32 %odd, %t, 0;
@%odd bra ODD;
shr.u32 %x, %x, 1;
bra.uni JOIN;
ODD:
mad.lo.u32 %x, %x, 3, 1;
setp.gt.u32 %big, %x, 1000;
@!%big bra JOIN;
max.u32 %peak, %peak, %x;
@%big add.u32 %limit, %limit, 1;
JOIN:
add.u32 %steps, %steps, 1;
bra.uni LOOP;
EXIT_LOOP:
bar.sync 0;
mad.lo.u32 %steps, %steps, 65536, %limit;
st.global.b32 [%out], %steps;
st.global.b32 [%out+1024], %peak;
"""


def _switch_body() -> str:
    """A jump table, early exits, and a rejoin through bar.warp.sync."""
    return """
.reg .pred %p;
.reg .b32 %x, %i, %y;
ld.global.b32 %x, [%in];
and.b32 %i, %x, 7;
mov.u32 %y, 5;
st.global.b32 [%out], %y;
setp.eq.u32 %p, %i, 5;
@%p exit;
setp.gt.u32 %p, %i, 3;
@%p bra LAST;
TABLE: .branchtargets FIRST, SECOND, THIRD, FOURTH;
brx.idx %i, TABLE;
FIRST: add.u32 %y, %x, 100; bra LAST;
SECOND: mul.lo.u32 %y, %x, 3; bra LAST;
THIRD: not.b32 %y, %x;
FOURTH: xor.b32 %y, %y, %x;
LAST:
mov.u32 %i, %tid.x;
st.global.b32 [%out], %y;
setp.eq.u32 %p, %i, 40;
@%p ret;
st.global.b32 [%out+1024], %i;
"""


def _call_body() -> str:
    """A device function called from divergent code."""
    return """
.reg .pred %p;
.reg .b32 %x, %y;
ld.global.b32 %x, [%in];
mov.u32 %y, %x;
and.b32 %y, %y, 1;
setp.ne.u32 %p, %y, 0;
mov.u32 %y, 9;
@!%p bra AFTER;
{
.param .b32 first; .param .b32 result;
st.param.b32 [first], %x;
call.uni (result), mix, (first);
ld.param.b32 %y, [result];
}
AFTER:
st.global.b32 [%out], %y;
st.global.b32 [%out+1024], %x;
"""


MIX = """
.func (.param .b32 result) mix (.param .b32 first)
{
.reg .b32 %v, %w;
ld.param.b32 %v, [first];
mad.lo.u32 %w, %v, %v, 12345;
st.param.b32 [result], %w;
ret;
}
"""


def divergence(name: str, body: str, extra: str = "") -> Case:
    """256 threads run the body on their input; it writes one or two words each."""
    lines = [pointers(2), thread_index(), ".reg .b64 %in, %out;"]
    lines += ["mad.wide.u32 %out, %me, 4, %p0;", "mad.wide.u32 %in, %me, 4, %p1;", body]
    values = (noise(521, 256, 32) % np.uint32(5000)).astype(np.uint32)
    return Case(
        name=f"warp/{name}",
        ptx=kernel("\n".join(lines), ["u64"] * 2, target="sm_75", version="7.0", extra=extra),
        arguments=(Memory(np.zeros(512, np.uint32)), Memory(values)),
        outputs=(Output("first", 0, 0, "uint32", 256), Output("second", 0, 1024, "uint32", 256)),
        block=(128, 1, 1),
        grid=(2, 1, 1),
    )


BARRIERS = """
.shared .b32 words[128];
.reg .b64 %in, %out;
.reg .b32 %x, %y, %at, %n, %base, %other;
.reg .pred %p, %q, %half;
mad.wide.u32 %out, %me, 4, %p0;
mad.wide.u32 %in, %me, 4, %p1;
ld.global.b32 %x, [%in];
mov.u32 %base, words;
mad.lo.u32 %at, %me, 4, %base;
st.shared.b32 [%at], %x;
barrier.sync 0;
xor.b32 %other, %me, 37;
mad.lo.u32 %other, %other, 4, %base;
ld.shared.b32 %y, [%other];
st.global.b32 [%out], %y;
setp.gt.s32 %p, %x, 0;
barrier.red.popc.u32 %n, 1, %p;
st.global.b32 [%out+512], %n;
barrier.red.and.pred %q, 2, 128, %p;
selp.b32 %n, 1, 0, %q;
barrier.red.or.pred %q, 3, !%p;
selp.b32 %y, 2, 0, %q;
or.b32 %n, %n, %y;
st.global.b32 [%out+1024], %n;
setp.lt.u32 %half, %me, 64;
@%half bra PRODUCER;
barrier.sync 5, 128;
ld.shared.b32 %y, [%at+-256];
st.global.b32 [%out+1536], %y;
bra DONE;
PRODUCER:
add.u32 %x, %x, 17;
st.shared.b32 [%at], %x;
barrier.arrive 5, 128;
barrier.sync 6, 64;
ld.shared.b32 %y, [%base+128];
st.global.b32 [%out+1536], %y;
DONE:
bar.warp.sync 0xffffffff;
"""


def barriers() -> Case:
    """CTA barriers: whole, reducing, arrive and sync, and one of half the warps."""
    body = "\n".join([pointers(2), thread_index(), BARRIERS])
    values = integers(523, 1, 32, 128)[0]
    labels = ("exchanged", "popc", "and, or", "handed over")
    return Case(
        name="warp/barriers",
        ptx=kernel(body, ["u64"] * 2, target="sm_75", version="7.0"),
        arguments=(Memory(np.zeros(512, np.uint32)), Memory(values)),
        outputs=tuple(Output(text, 0, 512 * i, "uint32", 128) for i, text in enumerate(labels)),
        block=(128, 1, 1),
    )


REGISTERS: tuple[str, ...] = (
    "tid.x",
    "tid.y",
    "tid.z",
    "ntid.x",
    "ntid.y",
    "ntid.z",
    "ctaid.x",
    "ctaid.y",
)
REGISTERS += ("ctaid.z", "nctaid.x", "nctaid.y", "nctaid.z", "laneid", "lanemask_eq", "lanemask_lt")
REGISTERS += ("lanemask_le", "lanemask_gt", "lanemask_ge", "cluster_ctaid.x", "cluster_ctaid.y")
REGISTERS += ("cluster_nctaid.x", "cluster_nctaid.y", "cluster_ctarank", "cluster_nctarank")
REGISTERS += ("clusterid.x", "clusterid.y", "nclusterid.x", "nclusterid.y", "dynamic_smem_size")


def special_registers() -> Case:
    """Every special register whose value a launch fixes, in a 3-D launch of clusters."""
    lines = [pointers(1), ".reg .b32 %me, %x, %y, %n; .reg .b64 %o;"]
    lines.append("mov.u32 %x, %tid.z; mov.u32 %n, %ntid.y; mov.u32 %y, %tid.y;")
    lines.append("mad.lo.u32 %me, %x, %n, %y; mov.u32 %n, %ntid.x; mov.u32 %x, %tid.x;")
    lines.append("mad.lo.u32 %me, %me, %n, %x;")
    lines.append("mov.u32 %x, %ctaid.z; mov.u32 %n, %nctaid.y; mov.u32 %y, %ctaid.y;")
    lines.append("mad.lo.u32 %x, %x, %n, %y; mov.u32 %n, %nctaid.x; mov.u32 %y, %ctaid.x;")
    lines.append("mad.lo.u32 %x, %x, %n, %y; mad.lo.u32 %me, %x, 60, %me;")
    lines.append("mad.wide.u32 %o, %me, 4, %p0;")
    count = 60 * 24
    outputs = []
    for i, name in enumerate(REGISTERS):
        lines.append(f"mov.u32 %x, %{name}; st.global.b32 [%o+{4 * count * i}], %x;")
        outputs.append(Output(f"%{name}", 0, 4 * count * i, "uint32", count))
    lines.append(".reg .pred %e; mov.pred %e, %is_explicit_cluster; selp.b32 %x, 1, 0, %e;")
    lines.append(f"st.global.b32 [%o+{4 * count * len(REGISTERS)}], %x;")
    outputs.append(Output("%is_explicit_cluster", 0, 4 * count * len(REGISTERS), "uint32", count))
    return Case(
        name="warp/special_registers",
        ptx=kernel("\n".join(lines), ["u64"], target="sm_90", version="7.8"),
        arguments=(Memory(np.zeros(count * len(outputs), np.uint32)),),
        outputs=tuple(outputs),
        block=(5, 4, 3),
        grid=(4, 2, 3),
        cluster=(2, 2, 1),
        shared=96,
    )


def cases() -> list[Case]:
    """The family."""
    return [
        shuffles(),
        votes(),
        reductions(),
        divergence("loops", _loop_body()),
        divergence("switch", _switch_body()),
        divergence("calls", _call_body(), MIX),
        barriers(),
        special_registers(),
    ]
