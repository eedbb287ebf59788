"""Codes multiplied by their scale as they are decoded: rounded once, whatever the scale."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from decode_cases import CASES, HEADERS, LANES, Case, split_operands

import humming_sim
from humming.formats.scheme import Zero
from humming.jit import Program, compile_program
from humming_sm75_sm89.folding import LARGEST, SMALLEST

pytestmark = pytest.mark.compile

BF16 = [case for case in CASES if case.target.name == "bf16" and case.zero is not Zero.FLOAT]
SOURCE = Path(__file__).parent / "kernels" / "folding.cu"
#: Every power of two that is allowed, and mantissas that make products of all lengths.
_RANGE = (int(np.log2(SMALLEST)), int(np.log2(LARGEST)))


def scales_of_lanes() -> npt.NDArray[np.float32]:
    """bf16 numbers, one per lane: both ends of the range, and both signs."""
    generator = np.random.default_rng(5)
    exponents = generator.integers(_RANGE[0], _RANGE[1], LANES)
    scales = np.ldexp(1 + generator.integers(0, 128, LANES) / 128, exponents)
    scales[:2] = SMALLEST, LARGEST
    scales[2:LANES:3] *= -1
    scales[3] = 0
    return scales.astype(np.float32)


def bf16(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Rounded to bf16; what is given has fewer bits than float32."""
    exact = torch.from_numpy(values).to(torch.float32)
    assert torch.equal(exact.double().nan_to_num(), torch.from_numpy(values).nan_to_num())
    return exact.to(torch.bfloat16).double().numpy()


def run(case: Case) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64], int]:
    """Folded products, what they shall be, and the power of two between them."""
    folder = case.decoder.replace("humming::Decoder", "humming::FoldingDecoder")
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
    bits = case.code.bits
    codes = np.arange(LANES)[:, None] * 7 + np.arange(128)[None] * 3
    codes = (codes % (1 << bits)).astype(np.uint8)
    zeros = (np.arange(LANES) * 37 % (1 << bits)).astype(np.int32)
    scales = scales_of_lanes()
    words = case.layout.pack(torch.from_numpy(codes)).numpy()
    operands = np.zeros((LANES, 64), dtype=np.uint32)
    exponent = np.zeros(1, dtype=np.int32)
    humming_sim.launch(ptx, "folded", LANES // 32, 32, [words, zeros, scales, operands, exponent])
    values = case.code.decode(codes) - case.offsets(zeros)[:, None] * 1.0
    found = case.target.decode(split_operands(operands, 16))
    with np.errstate(invalid="ignore"):  # infinity times 0
        products = values * scales[:, None].astype(np.float64)
    return found, products, int(exponent[0])


@pytest.mark.parametrize("case", BF16, ids=str)
def test_products_with_a_scale_are_rounded_once(case: Case) -> None:
    found, exact, exponent = run(case)
    # Rounding knows no exponents, as long as there are all bits.
    wanted = np.ldexp(bf16(exact), -exponent)
    wrong = (found != wanted) & ~(np.isnan(found) & np.isnan(wanted))
    assert not wrong.any(), (found[wrong][:4], wanted[wrong][:4])
