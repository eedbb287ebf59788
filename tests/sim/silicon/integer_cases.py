"""Integer arithmetic, logic, shifts, bit fields and carry chains."""

from __future__ import annotations

from silicon.case import Case
from silicon.text import Op, elementwise, flag
from silicon.values import integers, noise

SIGNED_AND_NOT = ("s", "u")


def _op(label: str, width: int) -> Op:
    """An instruction on %a, %b: the label is the instruction."""
    return Op(label, width, f"{label} %d, %a, %b;")


def _one(label: str, width: int) -> Op:
    return Op(label, width, f"{label} %d, %a;")


def _three(label: str, width: int) -> Op:
    return Op(label, width, f"{label} %d, %a, %b, %c;")


def arithmetic(width: int) -> Case:
    """The plain operations of one width."""
    ops = []
    for sign in SIGNED_AND_NOT:
        kind = f"{sign}{width}"
        ops += [_op(f"{name}.{kind}", width) for name in ("add", "sub", "min", "max", "mul.lo")]
        ops += [_op(f"mul.hi.{kind}", width), _three(f"mad.lo.{kind}", width)]
        ops += [_three(f"mad.hi.{kind}", width), _three(f"sad.{kind}", width)]
        if width < 64:
            ops.append(_op(f"mul.wide.{kind}", 2 * width))
            ops.append(
                Op(
                    f"mad.wide.{kind}",
                    2 * width,
                    f".reg .b{2 * width} %w; cvt.s{2 * width}.s{width} %w, %c; "
                    f"mad.wide.{kind} %d, %a, %b, %w;",
                )
            )
        for name in ("div", "rem"):
            body = f".reg .b{width} %n; or.b{width} %n, %b, 1; {name}.{kind} %d, %a, %n;"
            ops.append(Op(f"{name}.{kind} by b|1", width, body))
    ops += [_one(f"{name}.s{width}", width) for name in ("abs", "neg")]
    a, b, c = integers(width, 3, width)
    return elementwise(f"integer/arithmetic_{width}", {"a": a, "b": b, "c": c}, ops)


def word_arithmetic() -> Case:
    """What only 32 bits have: saturation, 24-bit products, dot products."""
    ops = [_op(f"{name}.sat.s32", 32) for name in ("add", "sub")]
    ops.append(_three("mad.hi.sat.s32", 32))
    for sign in SIGNED_AND_NOT:
        for half in ("lo", "hi"):
            ops.append(_op(f"mul24.{half}.{sign}32", 32))
            ops.append(_three(f"mad24.{half}.{sign}32", 32))
        for other in SIGNED_AND_NOT:
            ops.append(_three(f"dp4a.{sign}32.{other}32", 32))
            ops += [_three(f"dp2a.{half}.{sign}32.{other}32", 32) for half in ("lo", "hi")]
    ops.append(_three("mad24.hi.sat.s32", 32))
    a, b, c = integers(101, 3, 32)
    return elementwise("integer/word_arithmetic", {"a": a, "b": b, "c": c}, ops)


def packed_arithmetic() -> Case:
    """The 16-bit pairs and .relu forms of SM90."""
    ops = []
    for sign in SIGNED_AND_NOT:
        ops += [_op(f"{name}.{sign}16x2", 32) for name in ("add", "min", "max")]
    ops += [_op(f"{name}.relu.{kind}", 32) for name in ("min", "max") for kind in ("s16x2", "s32")]
    a, b = integers(103, 2, 32)
    packed, low = integers(105, 2, 16)
    a[1::3] = packed[1::3].astype("uint32") << 16 | low[1::3]
    b[1::4] = low[1::4].astype("uint32") << 16 | packed[1::4]
    return elementwise(
        "integer/packed_arithmetic", {"a": a, "b": b}, ops, target="sm_90", version="8.0"
    )


def carries() -> Case:
    """Carry chains of 32 and 64 bits: both words of a sum, a difference, a product."""
    ops = []
    for kind, width in (("u32", 32), ("s32", 32), ("u64", 64), ("s64", 64)):
        temp = f".reg .b{width} %l, %z; mov.b{width} %z, 0;"
        low = {"add": "add.cc", "sub": "sub.cc"}
        for name, first in low.items():
            chain = f"{temp} {first}.{kind} %l, %a, %b; {name}c"
            ops.append(Op(f"{name}c.{kind} after {first}", width, f"{chain}.{kind} %d, %b, %c;"))
            more = f"{chain}.cc.{kind} %l, %b, %c; {name}c.{kind} %d, %l, %z;"
            ops.append(Op(f"{name}c.{kind} after {name}c.cc", width, more))
        for half in ("lo", "hi"):
            chain = f"{temp} mad.{half}.cc.{kind} %l, %a, %b, %c; addc.{kind} %d, %l, %z;"
            ops.append(Op(f"addc.{kind} after mad.{half}.cc", width, chain))
            chain = f"{temp} add.cc.{kind} %l, %a, %b; madc.{half}.{kind} %d, %a, %b, %c;"
            ops.append(Op(f"madc.{half}.{kind} after add.cc", width, chain))
            chain = (
                f"{temp} add.cc.{kind} %l, %a, %b; madc.{half}.cc.{kind} %l, %a, %b, %c; "
                f"addc.{kind} %d, %z, %z;"
            )
            ops.append(Op(f"addc.{kind} after madc.{half}.cc", width, chain))
    a, b, c = integers(107, 3, 64)
    wide = {"a": a, "b": b, "c": c}
    narrow = "".join(f"cvt.u32.u64 %n{r}, %{r}; " for r in "abc")
    ops = [
        op
        if op.width == 64
        else Op(
            op.label,
            32,
            ".reg .b32 %na, %nb, %nc; "
            + narrow
            + op.body.replace("%a", "%na").replace("%b", "%nb").replace("%c", "%nc"),
        )
        for op in ops
    ]
    return elementwise("integer/carries", wide, ops)


def logic(width: int) -> Case:
    """Bitwise operations and shifts of one width; shift counts beyond it too."""
    ops = [_op(f"{name}.b{width}", width) for name in ("and", "or", "xor")]
    ops += [_one(f"{name}.b{width}", width) for name in ("not", "cnot")]
    for kind in ("shl.b", "shr.b", "shr.u", "shr.s"):
        ops.append(Op(f"{kind}{width}", width, f"{kind}{width} %d, %a, %n;"))
        masked = f".reg .b32 %m; and.b32 %m, %n, {width - 1}; {kind}{width} %d, %a, %m;"
        ops.append(Op(f"{kind}{width} by count % width", width, masked))
    ops.append(Op(f"shl.b{width} 3", width, f"shl.b{width} %d, %a, 3;"))
    a, b = integers(109 + width, 2, width)
    n = integers(111 + width, 1, 32)[0]
    n[::2] %= 80
    return elementwise(f"integer/logic_{width}", {"a": a, "b": b, "n": n}, ops)


def bits(width: int) -> Case:
    """Counting, finding and reversing bits; bit fields."""
    ops = [_one(f"{name}.b{width}", 32) for name in ("popc", "clz")]
    ops.append(_one(f"brev.b{width}", width))
    for sign in SIGNED_AND_NOT:
        kind = f"{sign}{width}"
        ops += [_one(f"bfind.{kind}", 32), _one(f"bfind.shiftamt.{kind}", 32)]
        ops.append(Op(f"bfe.{kind}", width, f"bfe.{kind} %d, %a, %n, %m;"))
        ops.append(Op(f"bfe.{kind} 3 5", width, f"bfe.{kind} %d, %a, 3, 5;"))
    ops.append(Op(f"bfi.b{width}", width, f"bfi.b{width} %d, %a, %b, %n, %m;"))
    a, b = integers(113 + width, 2, width)
    n, m = (values & 255 for values in integers(115 + width, 2, 32))  # the manual's range
    n[1::2] %= 70
    m[1::2] %= 70
    return elementwise(f"integer/bits_{width}", {"a": a, "b": b, "n": n, "m": m}, ops)


def word_bits() -> Case:
    """Funnel shifts, byte permutes, bit masks, sign extension, n-th set bits."""
    ops = [_op(f"{name}.{mode}.b32", 32) for name in ("bmsk",) for mode in ("clamp", "wrap")]
    for mode in ("clamp", "wrap"):
        ops += [_three(f"shf.{side}.{mode}.b32", 32) for side in ("l", "r")]
        ops += [_op(f"szext.{mode}.{sign}32", 32) for sign in SIGNED_AND_NOT]
    ops.append(_three("prmt.b32", 32))
    ops += [_three(f"prmt.b32.{mode}", 32) for mode in ("f4e", "b4e", "rc8", "ecl", "ecr", "rc16")]
    ops += [
        Op(f"prmt.b32 0x{s:x}", 32, f"prmt.b32 %d, %a, %b, {s};") for s in (0x3210, 0x7531, 0xB8FC)
    ]
    offset = ".reg .b32 %o; and.b32 %o, %c, 63; sub.s32 %o, %o, 32; fns.b32 %d, %a, %m, %o;"
    ops.append(Op("fns.b32", 32, ".reg .b32 %m; and.b32 %m, %b, 31;" + offset))
    a, b, c = integers(117, 3, 32, 512)
    b[1::3] %= 40
    c[1::2] %= 70
    return elementwise("integer/word_bits", {"a": a, "b": b, "c": c}, ops, version="7.6")


def lop3() -> Case:
    """All 256 three-input functions."""
    ops = [Op(f"lop3.b32 {lut}", 32, f"lop3.b32 %d, %a, %b, %c, {lut};") for lut in range(256)]
    a, b, c = (noise(seed, 32, 32) for seed in (119, 120, 121))
    a[0], b[0], c[0] = 0xF0F0F0F0, 0xCCCCCCCC, 0xAAAAAAAA
    return elementwise("integer/lop3", {"a": a, "b": b, "c": c}, ops)


def lop3_predicates() -> Case:
    """lop3 with a Boolean operation on a predicate."""
    ops = []
    for name in ("or", "and"):
        for lut in (0x80, 0x01, 0x96, 0xFE):
            body = (
                ".reg .pred %q, %r; .reg .b32 %t, %s; setp.gt.s32 %q, %a, %b; "
                f"lop3.{name}.b32 %t|%r, %a, %b, %c, {lut}, %q; "
                "selp.b32 %s, 0x40000000, 0, %r; and.b32 %t, %t, 0x3fffffff; or.b32 %d, %t, %s;"
            )
            ops.append(Op(f"lop3.{name}.b32 {lut}", 32, body))
    a, b, c = integers(123, 3, 32)
    return elementwise("integer/lop3_predicates", {"a": a, "b": b, "c": c}, ops, version="8.2")


def comparisons(width: int) -> Case:
    """setp with every operator and Boolean combination, set, selp and predicate logic."""
    ops = []
    operators = {"s": ("eq", "ne", "lt", "le", "gt", "ge"), "b": ("eq", "ne")}
    operators["u"] = (*operators["s"], "lo", "ls", "hi", "hs")
    for sign, names in operators.items():
        for name in names:
            text = f"setp.{name}.{sign}{width}"
            ops.append(Op(text, 32, flag(f"{text} %q, %a, %b;")))
    for join in ("and", "or", "xor"):
        text = f"setp.le.{join}.u{width}"
        test = f"setp.gt.s{width} %s, %b, %c; {text} %q|%r, %a, %b, !%s;"
        both = f"{test} selp.b32 %u, 1, 0, %q; selp.b32 %v, 2, 0, %r; or.b32 %d, %u, %v;"
        ops.append(Op(text, 32, f".reg .pred %q, %r, %s; .reg .b32 %u, %v; {both}"))
        logic = f".reg .pred %r, %s; setp.gt.s{width} %r, %b, %c; setp.lt.u{width} %s, %a, %c; "
        logic += f"{join}.pred %r, %r, %s; not.pred %q, %r;"
        ops.append(Op(f"{join}.pred, not.pred", 32, flag(logic)))
    for kind in ("u32", "s32", "f32"):
        ops.append(_op(f"set.lt.{kind}.s{width}", 32))
    choose = f".reg .pred %q; setp.lt.s{width} %q, %a, %b; selp.b{width} %d, %a, %c, %q;"
    ops.append(Op(f"selp.b{width}", width, choose))
    a, b, c = integers(129 + width, 3, width)
    b[::5] = a[::5]
    return elementwise(f"integer/compare_{width}", {"a": a, "b": b, "c": c}, ops)


def packing() -> Case:
    """cvt.pack, and moves that join and split registers."""
    ops = [_op(f"cvt.pack.sat.{kind}.s32", 32) for kind in ("u16", "s16")]
    ops += [
        _three(f"cvt.pack.sat.{kind}.s32.b32", 32) for kind in ("u8", "s8", "u4", "s4", "u2", "s2")
    ]
    ops.append(Op("mov.b64 {a,b}", 64, "mov.b64 %d, {%a, %b};"))
    split = ".reg .b64 %w; .reg .b32 %x, %y; mov.b64 %w, {%a, %b}; mov.b64 {%x, %y}, %w; "
    ops.append(Op("mov.b64 split", 32, split + "xor.b32 %d, %x, %c;"))
    halves = ".reg .b16 %x, %y; mov.b32 {%x, %y}, %a; mov.b32 %d, {%y, %x};"
    ops.append(Op("mov.b32 swap halves", 32, halves))
    quarters = (
        ".reg .b16 %w<4>; .reg .b64 %v; mov.b64 %v, {%a, %b}; "
        "mov.b64 {%w0, %w1, %w2, %w3}, %v; mov.b64 %d, {%w3, %w1, %w2, %w0};"
    )
    ops.append(Op("mov.b64 reorder quarters", 64, quarters))
    a, b, c = integers(125, 3, 32)
    a[1::2] = noise(127, 256, 8)[1::2]
    b[1::3] = noise(128, 256, 4)[1::3]
    return elementwise("integer/packing", {"a": a, "b": b, "c": c}, ops)


def cases() -> list[Case]:
    """The family."""
    return [
        *[arithmetic(width) for width in (16, 32, 64)],
        word_arithmetic(),
        packed_arithmetic(),
        carries(),
        *[logic(width) for width in (16, 32, 64)],
        *[bits(width) for width in (32, 64)],
        *[comparisons(width) for width in (16, 32, 64)],
        word_bits(),
        lop3(),
        lop3_predicates(),
        packing(),
    ]
