"""tcgen05.mma of every kind, layout and operand place against plain arithmetic."""

from __future__ import annotations

import numpy as np
import pytest
from tcgen05_cases import Case
from tcgen05_ptx import assemble, assembler

BLOCK16 = {"scale": ".block16", "block": 16}
BLOCK32 = {"scale": ".block32", "block": 32, "scale_type": "ue8m0"}

CASES = {
    # kinds and types
    "f16": Case("f16", "f16", "f16"),
    "bf16": Case("f16", "bf16", "bf16", n=64),
    "f16 to f16": Case("f16", "f16", "f16", d="f16", n=16),
    "tf32": Case("tf32", "tf32", "tf32"),
    "i8": Case("i8", "s8", "u8", d="s32"),
    "i8 unsigned": Case("i8", "u8", "u8", d="s32", n=8),
    "e4m3 x e5m2": Case("f8f6f4", "e4m3", "e5m2"),
    "e2m1 x e3m2": Case("f8f6f4", "e2m1", "e3m2"),
    "e2m3 x e2m1 to f16": Case("f8f6f4", "e2m3", "e2m1", d="f16"),
    "e3m4 x e4m3": Case("f8f6f4", "e3m4", "e4m3"),
    "mxf8f6f4 e5m2 x e2m1": Case("mxf8f6f4", "e5m2", "e2m1", **BLOCK32, ids=(1, 3)),
    "mxf8f6f4 e3m2 x e3m4 1X": Case(
        "mxf8f6f4", "e3m2", "e3m4", scale=".scale_vec::1X", block=32, scale_type="ue8m0", n=160,
    ),
    "mxf8f6f4 without a word": Case(
        "mxf8f6f4", "e4m3", "e4m3", block=32, scale_type="ue8m0", ids=(2, 0)
    ),
    "mxf4": Case("mxf4", "e2m1", "e2m1", **BLOCK32, ids=(0, 2)),
    "mxf4 2X": Case(
        "mxf4", "e2m1", "e2m1", scale=".scale_vec::2X", block=32, scale_type="ue8m0", ids=(2, 0)
    ),
    "nvfp4": Case("mxf4nvf4", "e2m1", "e2m1", **BLOCK16, scale_type="ue4m3", n=256),
    "nvfp4 4X": Case(
        "mxf4nvf4", "e2m1", "e2m1", scale=".scale_vec::4X", block=16, scale_type="ue4m3"
    ),
    "nvfp4 block 16 ue8m0": Case("mxf4nvf4", "e2m1", "e2m1", **BLOCK16, scale_type="ue8m0"),
    "nvfp4 block 32": Case("mxf4nvf4", "e2m1", "e2m1", **BLOCK32, ids=(2, 2)),
    "e0m3 x e2m1": Case("mxf4nvf4", "e0m3", "e2m1", **BLOCK16, scale_type="ue4m3"),
    "e2m1 x e0m3": Case("mxf4nvf4", "e2m1", "e0m3", **BLOCK16, scale_type="ue8m0"),
    "mxf4 K 96": Case("mxf4", "e2m1", "e2m1", **BLOCK32, long_k=True, ids=(3, 2), n=144,
                      a_layout=("none", "K"), b_layout=("none", "K"), target="sm_103a"),
    "nvfp4 K 96": Case("mxf4nvf4", "e2m1", "e2m1", **BLOCK16, scale_type="ue4m3", long_k=True,
                       ids=(2, 0), target="sm_103a", n=48),
    # layouts of D
    "M 64": Case("f16", "f16", "f16", m=64),
    "M 64 at lane 16": Case("f16", "f16", "f16", m=64, lane=16),
    "ws 128": Case("f16", "f16", "f16", ws=True, n=64),
    "ws 64": Case("f16", "f16", "f16", m=64, ws=True, n=64),
    "ws 32": Case("f8f6f4", "e4m3", "e4m3", m=32, ws=True, n=128),
    "pair 128": Case("f16", "f16", "f16", group=2),
    "pair 256": Case("f16", "bf16", "bf16", m=256, group=2, n=64),
    "pair 256 i8": Case("i8", "s8", "s8", m=256, group=2, n=32, d="s32"),
    "pair 128 scaled": Case("mxf8f6f4", "e4m3", "e5m2", group=2, n=256, **BLOCK32, ids=(3, 1)),
    "pair 256 scaled": Case("mxf8f6f4", "e2m3", "e4m3", m=256, group=2, n=192, **BLOCK32),
    "pair 256 nvfp4": Case("mxf4nvf4", "e2m1", "e2m1", m=256, group=2, n=64, **BLOCK16,
                           scale_type="ue4m3"),
    "pair 256 nvfp4 K 96": Case("mxf4nvf4", "e2m1", "e2m1", m=256, group=2, n=256, **BLOCK16,
                                scale_type="ue4m3", long_k=True, target="sm_103a", ids=(0, 2)),
    # layouts of A and B
    "no swizzle": Case("f16", "f16", "f16", a_layout=("none", "K"), b_layout=("none", "K")),
    "32B and 64B": Case("f8f6f4", "e4m3", "e4m3", a_layout=("32B", "K"), b_layout=("64B", "K")),
    "MN-major": Case("f16", "f16", "f16", a_layout=("128B", "MN"), b_layout=("64B", "MN")),
    "MN-major without swizzle": Case("f16", "f16", "f16", a_layout=("none", "MN"),
                                     b_layout=("32B", "MN")),
    "MN-major 8 bits": Case("i8", "s8", "s8", d="s32", a_layout=("64B", "MN"),
                            b_layout=("32B", "MN")),
    "MN-major e2m1": Case("f8f6f4", "e2m1", "e2m3", a_layout=("128B", "MN"),
                          b_layout=("32B", "MN")),
    "MN-major tf32": Case("tf32", "tf32", "tf32", a_layout=("128B_32B", "MN"),
                          b_layout=("128B_32B", "MN")),
    # A in tensor memory
    "A in tensor memory": Case("f16", "f16", "f16", a_in_tensor=True),
    "A in tensor memory tf32": Case("tf32", "tf32", "tf32", a_in_tensor=True),
    "A in tensor memory e2m1": Case("f8f6f4", "e2m1", "e4m3", a_in_tensor=True),
    "A in tensor memory e3m2": Case("f8f6f4", "e3m2", "e5m2", a_in_tensor=True, m=64, lane=16),
    "A in tensor memory i8": Case("i8", "u8", "s8", d="s32", a_in_tensor=True),
    "A in tensor memory nvfp4": Case("mxf4nvf4", "e0m3", "e0m3", **BLOCK16, scale_type="ue4m3",
                                     a_in_tensor=True),
    "A in tensor memory ws 32": Case("f16", "f16", "f16", m=32, ws=True, n=64, a_in_tensor=True),
    "A in tensor memory pair 128": Case("f16", "f16", "f16", group=2, a_in_tensor=True),
    # flags
    "negated A": Case("f16", "f16", "f16", negate=(True, False)),
    "negated B": Case("mxf4", "e2m1", "e2m1", **BLOCK32, negate=(False, True)),
    "without C": Case("f16", "f16", "f16", accumulate=False),
    "scaled C": Case("tf32", "tf32", "tf32", extra=", 3", halvings=3),
    "scaled C of f16": Case("f16", "f16", "f16", d="f16", extra=", 1", halvings=1),
    "collector": Case("f16", "f16", "f16", modifiers=".collector::a::fill"),
    "collector ws": Case("f16", "f16", "f16", ws=True, n=64, modifiers=".collector::b2::lastuse"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_d_is_the_product_in_the_layout_of_the_manual(name):
    case = CASES[name]
    before, after = case.run()
    np.testing.assert_array_equal(after, case.expected(before))


@pytest.mark.parametrize("seed", [None, 4])
@pytest.mark.parametrize("name", ["f16", "pair 128"])
def test_ctas_and_pairs_of_a_grid_do_not_mix(name, seed):
    case = CASES[name]
    shared, tensor, wide = case.images()
    words = [case.instruction_bits()]
    after = case.kernel().run(shared, tensor, words, wide, clusters=3, seed=seed)
    np.testing.assert_array_equal(after, np.tile(case.expected(tensor), (3, 1, 1)))


@pytest.mark.parametrize(("name", "parts"), [("e2m1", ("v2",)), ("e3m2", ("v2", "b32"))])
def test_padding_of_narrow_elements_need_not_be_written(name, parts):
    case = Case("f8f6f4", name, name)
    whole = "st.shared.v4.b32 [%r9], {%r5, %r6, %r7, %r8};"
    pieces = {"v2": "st.shared.v2.b32 [%r9], {%r5, %r6};", "b32": "st.shared.b32 [%r9+8], %r7;"}
    text = case.kernel().text().replace(whole, "\n".join(pieces[part] for part in parts))
    shared, tensor, wide = case.images()
    after = case.kernel().run(shared, tensor, [case.instruction_bits()], wide, text=text)
    np.testing.assert_array_equal(after, case.expected(tensor))


@pytest.mark.skipif(assembler() is None, reason="no ptxas here")
@pytest.mark.parametrize("name", ["f16", "i8", "nvfp4 4X", "pair 128 scaled", "scaled C",
                                  "A in tensor memory", "collector ws"])  # fmt: skip
def test_ptxas_takes_the_kernels(name):
    case = CASES[name]
    assert assemble(case.kernel().text(), case.target) == ""
