"""Loads and stores: widths, vectors, extensions, cache operators, every state space."""

from __future__ import annotations

import itertools

import numpy as np

from silicon.case import Case, Memory, Output, Scalar
from silicon.text import kernel, pointers, thread_index
from silicon.values import noise

THREADS = 64
CACHES_LOAD = (".ca", ".cg", ".cs", ".lu", ".cv", ".volatile", ".relaxed.gpu", ".acquire.sys")
CACHES_STORE = (".wb", ".cg", ".cs", ".wt", ".volatile", ".relaxed.cta", ".release.gpu")
HINTS = (
    ".nc",
    ".nc.L1::no_allocate.L2::128B",
    ".L1::evict_last.L2::64B",
    ".nc.L1::evict_first.L2::256B",
)


class Program:
    """Statements, and where each statement's results land in the output memory."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.outputs: list[Output] = []
        self.offset = 0

    def add(self, label: str, size: int, statements: str) -> None:
        """`statements` write `size` bytes per thread at [%o]; each gets its own scope."""
        self.lines.append(
            f"{{ .reg .b64 %o; mad.wide.u32 %o, %me, {size}, %p0; "
            f"add.s64 %o, %o, {self.offset};\n{statements} }}"
        )
        dtype = f"uint{8 * min(size, 8)}"
        count = THREADS * max(size // 8, 1)
        self.outputs.append(Output(label, 0, self.offset, dtype, count))
        self.offset += THREADS * size

    def case(self, name: str, first: str, arguments: tuple[object, ...], **options: str) -> Case:
        """The kernel; further arguments follow the output memory."""
        kinds = ["u64"] + ["u64" if isinstance(a, Memory) else "u32" for a in arguments]
        body = [pointers(1 + sum(isinstance(a, Memory) for a in arguments)), thread_index(), first]
        extra = options.pop("extra", "")
        target, version = options.get("target", "sm_75"), options.get("version", "7.4")
        text = kernel(
            "\n".join(body + self.lines), kinds, target=target, version=version, extra=extra
        )
        return Case(
            name=f"memory/{name}",
            ptx=text,
            arguments=(Memory(np.zeros(self.offset, np.uint8)), *arguments),  # type: ignore[arg-type]
            outputs=tuple(self.outputs),
            block=(THREADS // 2, 1, 1),
            grid=(2, 1, 1),
        )


def _registers(prefix: str, count: int) -> str:
    return "{" + ", ".join(f"%{prefix}{i}" for i in range(count)) + "}"


def vectors() -> Case:
    """Every width and vector of global loads and stores, and sign or zero extension."""
    program = Program()
    for width, count in itertools.product((8, 16, 32, 64), (1, 2, 4)):
        if width * count > 128:
            continue
        size, kind = width * count // 8, f".v{count}" if count > 1 else ""
        names = _registers("r", count) if count > 1 else "%r0"
        text = (
            f".reg .b{max(width, 16)} %r<{count}>; .reg .b64 %i; "
            f"mad.wide.u32 %i, %me, {size}, %p1; "
            f"ld.global{kind}.b{width} {names}, [%i]; st.global{kind}.b{width} [%o], {names};"
        )
        program.add(f"ld, st {kind}.b{width}", size, text)
        if count > 1:
            swapped = names.strip("{}").split(", ")[::-1]
            text = text.replace(f"[%o], {names}", "[%o], {" + ", ".join(swapped) + "}")
            program.add(f"ld, st {kind}.b{width} reversed", size, text)
    for kind, target in itertools.product(("s8", "u8", "s16", "u16", "b8", "s32", "u32"), (32, 64)):
        if kind == "b8" or int(kind[1:]) >= target:
            continue
        text = (
            f".reg .b{target} %r; .reg .b64 %i; mad.wide.u32 %i, %me, 4, %p1; "
            f"ld.global.{kind} %r, [%i+{4 - int(kind[1:]) // 8}]; st.global.b{target} [%o], %r;"
        )
        program.add(f"ld.{kind} into {target} bits", target // 8, text)
    text = (
        ".reg .b16 %r<2>; .reg .b64 %i; mad.wide.u32 %i, %me, 2, %p1; "
        "ld.global.v2.s8 {%r0, %r1}, [%i]; st.global.v2.b16 [%o], {%r0, %r1};"
    )
    program.add("ld.v2.s8 into 16 bits", 4, text)
    return program.case("vectors", "", (Memory(noise(701, 256)),))


def caches() -> Case:
    """Cache operators, orderings and hints leave the data alone."""
    program = Program()
    for load, store in zip(CACHES_LOAD, (*CACHES_STORE, ".wb"), strict=True):
        text = (
            ".reg .b32 %r; .reg .b64 %i; mad.wide.u32 %i, %me, 4, %p1; "
            f"ld{load}.global.b32 %r, [%i]; st{store}.global.b32 [%o], %r;"
        )
        if not load.startswith((".volatile", ".relaxed", ".acquire")):
            text = text.replace(f"ld{load}.global", f"ld.global{load}")
        if not store.startswith((".volatile", ".relaxed", ".release")):
            text = text.replace(f"st{store}.global", f"st.global{store}")
        program.add(f"ld{load}, st{store}", 4, text)
    for hint in HINTS:
        names = _registers("r", 4)
        text = (
            ".reg .b32 %r<4>; .reg .b64 %i; mad.wide.u32 %i, %me, 16, %p1; "
            f"ld.global{hint}.v4.b32 {names}, [%i]; st.global.L1::no_allocate.v4.b32 [%o], {names};"
        )
        program.add(f"ld{hint}.v4", 16, text)
    text = (
        ".reg .b64 %i, %policy; .reg .b32 %r; mad.wide.u32 %i, %me, 4, %p1; "
        "createpolicy.fractional.L2::evict_last.b64 %policy, 1.0; "
        "prefetch.global.L2 [%i]; prefetch.global.L1 [%i]; "
        "ld.global.L2::cache_hint.b32 %r, [%i], %policy; "
        "st.global.L2::cache_hint.b32 [%o], %r, %policy; fence.acq_rel.gpu; membar.cta;"
    )
    program.add("cache_hint", 4, text)
    return program.case("caches", "", (Memory(noise(703, 256)),), target="sm_80")


DECLARED = """
.const .align 8 .b32 primes[8] = {2, 3, 5, 7, 11, 13, 17, 19};
.const .align 4 .f32 halves[2] = {0f3F000000, 0f40200000};
.const .align 2 .u16 words[4] = {1, 0xFFFF, 3};
.const .b8 letters[4] = {65, 66, 67, 255};
.global .align 8 .b64 wide[2] = {0x0123456789ABCDEF, 7};
.global .align 4 .b32 counter[64];
"""
SPACES = """
.shared .align 16 .b8 tile[1024];
.shared .align 4 .b32 more[64];
.local .align 16 .b8 stack[128];
.reg .b32 %x, %y, %n, %s; .reg .b64 %g, %l, %wide; .reg .b16 %h;
mov.u32 %n, %tid.x;
"""


# What each test of a state space does; white space counts as one blank.
SPACE_TESTS = (
    (
        "const array",
        4,
        """
        and.b32 %x, %n, 7; mul.wide.u32 %g, %x, 4; mov.u64 %l, primes; add.s64 %l, %l, %g;
        ld.const.b32 %y, [%l]; st.global.b32 [%o], %y;
        """,
    ),
    (
        "const float",
        4,
        """
        ld.const.b32 %y, [halves+4]; st.global.b32 [%o], %y;
        """,
    ),
    (
        "const u16, u8",
        4,
        """
        ld.const.u16 %x, [words+2]; ld.const.s8 %y, [letters+3]; add.u32 %x, %x, %y;
        st.global.b32 [%o], %x;
        """,
    ),
    (
        "const tail",
        4,
        """
        ld.const.u16 %x, [words+6]; st.global.b32 [%o], %x;
        """,
    ),
    (
        "module variable",
        8,
        """
        ld.global.b64 %g, [wide]; st.global.b64 [%o], %g;
        """,
    ),
    (
        "zero module variable",
        4,
        """
        mul.wide.u32 %g, %me, 4; mov.u64 %l, counter; add.s64 %l, %l, %g; ld.global.b32 %x,
        [%l]; add.u32 %x, %x, %me; st.global.b32 [%l], %x; ld.global.b32 %y, [%l];
        st.global.b32 [%o], %y;
        """,
    ),
    (
        "shared",
        16,
        """
        mov.u32 %s, tile; mad.lo.u32 %s, %n, 16, %s; mad.wide.u32 %g, %me, 16, %p1; .reg
        .b32 %v<4>; ld.global.v4.b32 {%v0, %v1, %v2, %v3}, [%g]; st.shared.v4.b32 [%s],
        {%v0, %v1, %v2, %v3}; bar.sync 0; mov.u32 %s, tile; xor.b32 %x, %n, 9; mad.lo.u32
        %s, %x, 16, %s; ld.shared.v2.b64 {%g, %l}, [%s]; st.global.v2.b64 [%o], {%l, %g};
        """,
    ),
    (
        "shared bytes",
        4,
        """
        mov.u32 %s, more; mad.lo.u32 %s, %n, 4, %s; st.shared.b8 [%s], %n; st.shared.u16
        [%s+2], %n; mul.lo.u32 %x, %n, 3; st.shared.b8 [%s+1], %x; ld.shared.b32 %y, [%s];
        st.global.b32 [%o], %y;
        """,
    ),
    (
        "local",
        4,
        """
        mov.u32 %x, 0; FILL: mov.u64 %l, stack; mul.wide.u32 %g, %x, 4; add.s64 %l, %l, %g;
        mad.lo.u32 %y, %x, %n, 3; st.local.b32 [%l], %y; add.u32 %x, %x, 1; .reg .pred %q;
        setp.lt.u32 %q, %x, 32; @%q bra FILL; and.b32 %x, %n, 31; mul.wide.u32 %g, %x, 4;
        mov.u64 %l, stack; add.s64 %l, %l, %g; ld.local.b32 %y, [%l]; st.global.b32 [%o],
        %y;
        """,
    ),
    (
        "generic",
        4,
        """
        mov.u64 %l, more; cvta.shared.u64 %l, %l; mad.wide.u32 %g, %n, 4, %l; st.b32 [%g],
        %n; ld.b32 %x, [%g]; cvta.global.u64 %l, %p1; mad.wide.u32 %l, %me, 4, %l; ld.b32
        %y, [%l]; xor.b32 %y, %y, %x; st.global.b32 [%o], %y;
        """,
    ),
    (
        "isspacep",
        4,
        """
        .reg .pred %a<4>; mov.u64 %l, tile; cvta.shared.u64 %l, %l; isspacep.shared %a0, %l;
        isspacep.global %a1, %l; mov.u64 %g, stack; cvta.local.u64 %g, %g; isspacep.local
        %a2, %g; cvta.global.u64 %wide, %p1; isspacep.global %a3, %wide; selp.b32 %x, 1, 0,
        %a0; selp.b32 %y, 2, 0, %a1; or.b32 %x, %x, %y; selp.b32 %y, 4, 0, %a2; or.b32 %x,
        %x, %y; selp.b32 %y, 8, 0, %a3; or.b32 %x, %x, %y; st.global.b32 [%o], %x;
        """,
    ),
    (
        "parameters",
        4,
        """
        ld.param.u32 %x, [p2]; ld.param.u16 %y, [p2+2]; mad.lo.u32 %x, %x, %n, %y;
        ld.param.s8 %y, [p3+1]; add.s32 %x, %x, %y; st.global.b32 [%o], %x;
        """,
    ),
)


def spaces() -> Case:
    """const, module variables, shared, local, generic addresses and parameters."""
    program = Program()
    for label, size, text in SPACE_TESTS:
        program.add(label, size, " ".join(text.split()))
    arguments = (Memory(noise(705, 256)), Scalar(0x8765FEDC), Scalar(0x12349A78))
    return program.case("spaces", SPACES, arguments, extra=DECLARED)


FENCES: tuple[str, ...] = (
    "fence.sc.cta",
    "fence.acq_rel.cta",
    "fence.acq_rel.cluster",
    "fence.sc.gpu",
)
FENCES += (
    "fence.acq_rel.sys",
    "fence.proxy.alias",
    "fence.proxy.async",
    "fence.proxy.async.global",
)
FENCES += ("fence.proxy.async.shared::cta", "membar.gl", "membar.sys", "membar.cta")
FENCES += ("fence.mbarrier_init.release.cluster",)


def fences() -> Case:
    """Every fence leaves the data alone."""
    program = Program()
    for fence in FENCES:
        text = (
            ".reg .b32 %r; .reg .b64 %i; mad.wide.u32 %i, %me, 4, %p1; "
            f"ld.global.b32 %r, [%i]; st.global.b32 [%o], %r; {fence}; "
            "ld.global.b32 %r, [%o]; add.u32 %r, %r, 1; st.global.b32 [%o], %r;"
        )
        program.add(fence, 4, text)
    arguments = (Memory(noise(709, 256)),)
    return program.case("fences", "", arguments, target="sm_90", version="8.0")


def dynamic_shared() -> Case:
    """The launch's shared memory starts after the static one."""
    body = "\n".join([
        pointers(2),
        thread_index(),
        ".shared .align 4 .b32 fixed[32]; .reg .b32 %s, %d, %x, %y; .reg .b64 %g;",
        ("mov.u32 %s, fixed; mad.lo.u32 %s, %me, 4, %s; mov.u32 %d, dynamic; "
"mad.lo.u32 %d, %me, 8, %d;"),
        "mad.wide.u32 %g, %me, 8, %p1; ld.global.v2.b32 {%x, %y}, [%g];",
        "st.shared.b32 [%s], %y; st.shared.v2.b32 [%d], {%x, %y}; bar.sync 0;",
        "xor.b32 %x, %me, 21; mov.u32 %d, dynamic; mad.lo.u32 %d, %x, 8, %d;",
        "ld.shared.b32 %x, [%d+4]; ld.shared.b32 %y, [%s]; mad.wide.u32 %g, %me, 8, %p0;",
        "st.global.v2.b32 [%g], {%x, %y};",
    ])  # fmt: skip
    extra = ".extern .shared .align 16 .b8 dynamic[];\n"
    return Case(
        name="memory/dynamic_shared",
        ptx=kernel(body, ["u64"] * 2, target="sm_75", version="7.0", extra=extra),
        arguments=(Memory(np.zeros(64, np.uint32)), Memory(noise(707, 64, 32))),
        outputs=(Output("swapped", 0, 0, "uint32", 64),),
        block=(32, 1, 1),
        shared=256,
    )


def cases() -> list[Case]:
    """The family."""
    return [vectors(), caches(), fences(), spaces(), dynamic_shared()]
