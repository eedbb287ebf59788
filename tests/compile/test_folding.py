"""Codes multiplied by their scale as they are decoded: rounded once, whatever the scale."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from decode_cases import CASES, HEADERS, LANES, Case, split_operands

import humming_sim
from humming.formats.number import NumberFormat
from humming.formats.scheme import Zero
from humming.formats.table import number_format
from humming.formats.tensors import decode, encode
from humming.jit import Program, compile_program
from humming_sm75_sm89.folding import LARGEST, SMALLEST
from humming_sm75_sm89.powers import LARGEST_POWER, SMALLEST_POWER

pytestmark = pytest.mark.compile

Array = npt.NDArray[np.float64]

BF16 = [case for case in CASES if case.target.name == "bf16" and case.zero is not Zero.FLOAT]
#: One of each way to fold, for scales of 8 bits.
SOME = [case for case in BF16 if str(case) in ("e2m1-bf16", "e3m2-bf16", "u4-bf16", "u8+z-bf16")]
SOURCE = Path(__file__).parent / "kernels" / "folding.cu"
#: Every power of two that is allowed, and mantissas that make products of all lengths.
_RANGE = (int(np.log2(SMALLEST)), int(np.log2(LARGEST)))
E2M1, E4M3FN, E8M0 = map(number_format, ("e2m1", "e4m3fn", "e8m0"))
FP4 = Case(E2M1, number_format("bf16"))


def bf16_scales() -> npt.NDArray[np.uint32]:
    """One per lane: both ends of the range, and both signs."""
    generator = np.random.default_rng(5)
    exponents = generator.integers(_RANGE[0], _RANGE[1], LANES)
    scales = np.ldexp(1 + generator.integers(0, 128, LANES) / 128, exponents)
    scales[:2] = SMALLEST, LARGEST
    scales[2:LANES:3] *= -1
    scales[3] = 0
    return scales.astype(np.float32).view(np.uint32) >> 16


def normal_scales() -> npt.NDArray[np.uint8]:
    """All that are positive in e4m3fn, as codes of e5m3."""
    positive = torch.arange(1, 0x7F, dtype=torch.uint8)
    values = decode(positive, number_format("e4m3fn"))
    codes = encode(values, number_format("e5m3"))
    assert torch.equal(decode(codes, number_format("e5m3")), values)
    assert int(codes.min()) >= 1 << 3, "normal"
    return codes.numpy()[np.arange(LANES) % len(codes)]


#: Scales of lanes by format: all that are folded, of those with 8 bits.
SCALES = {
    "bf16": bf16_scales(),
    "e8m0": 127 + _RANGE[0] + np.arange(LANES) % (_RANGE[1] - _RANGE[0] + 1),
    "e4m3fn": np.arange(LANES) % 0x7F,
    "e5m3": normal_scales(),
}


def pairs(scales: npt.NDArray[np.integer]) -> npt.NDArray[np.uint32]:
    """Each lane's scale as one of two halves: the first in lanes 0, 2, 4, .. The other is any."""
    half = np.arange(LANES) % 2 * 16
    others = np.roll(scales, 7).astype(np.uint32) << (16 - half).astype(np.uint32)
    return scales.astype(np.uint32) << half.astype(np.uint32) | others


def bf16(values: Array) -> Array:
    """Rounded to bf16; what is given has fewer bits than float32."""
    exact = torch.from_numpy(values).to(torch.float32)
    assert torch.equal(exact.double().nan_to_num(), torch.from_numpy(values).nan_to_num())
    return exact.to(torch.bfloat16).double().numpy()


def run(
    case: Case, scale: NumberFormat, scales: npt.NDArray[np.integer], codes: npt.NDArray[np.uint8]
) -> tuple[Array, Array, int]:
    """Folded products, what they shall be, and the power of two between them."""
    folder = case.decoder.replace("humming::Decoder", "humming::FoldingDecoder")
    folder = f"{folder.removesuffix('>')}, {scale.cxx}>"
    source = SOURCE.read_text(encoding="utf-8")
    source += (
        f'extern "C" __global__ void folded(KERNEL_PARAMETERS) {{ fold<{folder}>(ARGUMENTS); }}'
    )
    program = Program(
        name="folding",
        source=source,
        arch="compute_80",
        kind="ptx",
        headers=HEADERS.closure(source, "folding"),
    )
    ptx = compile_program(program).data.decode()
    zeros = (np.arange(LANES) * 37 % (1 << case.code.bits)).astype(np.int32)
    words = case.layout.pack(torch.from_numpy(codes)).numpy()
    operands = np.zeros((LANES, 128 // case.layout.unit), dtype=np.uint32)
    exponent = np.zeros(1, dtype=np.int32)
    given = [words, zeros, pairs(scales), operands, exponent]
    humming_sim.launch(ptx, "folded", LANES // 32, 32, given)
    values = case.code.decode(codes) - case.offsets(zeros)[:, None] * 1.0
    found = case.target.decode(split_operands(operands, case.target.bits))
    with np.errstate(invalid="ignore"):  # infinity times 0
        products = values * scale.decode(scales.astype(np.uint32))[:, None]
    return found, products, int(exponent[0])


def all_codes(bits: int) -> npt.NDArray[np.uint8]:
    """[lanes, 128]: up to 7 bits each lane has every code."""
    codes = np.arange(LANES)[:, None] * 7 + np.arange(128)[None] * 3
    return (codes % (1 << bits)).astype(np.uint8)


@pytest.mark.parametrize(
    ("case", "scale"),
    [(case, "bf16") for case in BF16]
    + [(c, s) for c in SOME for s in ("e8m0", "e4m3fn")]
    + [(FP4, "e5m3")],
    ids=str,
)
def test_products_with_a_scale_are_rounded_once(case: Case, scale: str) -> None:
    codes = all_codes(case.code.bits)
    found, exact, exponent = run(case, number_format(scale), SCALES[scale], codes)
    # Rounding knows no exponents, as long as there are all bits.
    wanted = np.ldexp(bf16(exact), -exponent)
    wrong = (found != wanted) & ~(np.isnan(found) & np.isnan(wanted))
    assert not wrong.any(), (found[wrong][:4], wanted[wrong][:4])


def test_there_are_some_of_each_kind() -> None:
    assert len(SOME) == 4


def test_e2m1_times_powers_of_two_is_e4m3fn_exactly() -> None:
    count = LARGEST_POWER - SMALLEST_POWER + 1
    scales = E8M0.bias + SMALLEST_POWER + np.arange(LANES) % count
    found, exact, exponent = run(Case(E2M1, E4M3FN), E8M0, scales, all_codes(4))
    assert np.array_equal(np.ldexp(found, exponent), exact)
    assert np.abs(exact).max() == 6 * 2.0**LARGEST_POWER
    assert np.array_equal(np.signbit(found), np.signbit(exact))


@pytest.mark.parametrize(
    ("case", "scale"),
    [(Case(E2M1, E4M3FN), "e8m0"), (SOME[0], "e8m0"), (FP4, "e8m0"), (FP4, "e5m3")],
    ids=str,
)
def test_padding_stays_zero(case: Case, scale: str) -> None:
    none = np.zeros(LANES, int), np.zeros((LANES, 128), np.uint8)
    found, _, _ = run(case, number_format(scale), *none)
    assert not found.any()
