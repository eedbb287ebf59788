"""humming.quantize_input on simulated devices: the numbers of the reference, to the bit."""

from __future__ import annotations

import pytest
import torch
from gemm_oracle import poisoned
from quantize_cases import sample, stored_of

from humming import ActivationScheme, Gating, GemmKind, quantize_input, route
from humming.activations import QuantizedActivation, hadamard, quantize_rows

pytestmark = pytest.mark.compile

A100, H100 = "sim:nvidia-a100", "sim:nvidia-h100"
#: Every format that the issue of input quantization names, in every form of scales.
SCHEMES = (
    "e4m3fn-token-f32", "e5m2-token-f32", "s8-token-f32", "s4-token-f32", "e2m1-g16-e4m3fn-token",
    "e0m3-g16-e4m3fn-token", "e3m4-token-f32", "s8-tensor-f32-static", "e4m3fn-tensor-f32-static",
    "e2m1-g16-e4m3fn-tensor-static", "e2m1-g32-e8m0", "e4m3fn-g128-f32", "s8-g64-f32",
    "e3m2-g32-e8m0", "e2m3-g32-e8m0", "e4m3fn-token-e8m0",
)  # fmt: skip
RELU = Gating.of("reglu")  # whose kernel and reference agree to the bit


def same(found: QuantizedActivation, wanted: QuantizedActivation, *, nans: bool = False) -> None:
    """Everything is equal; with `nans` in rows whose numbers are numbers."""
    assert found.invalid is not None
    assert wanted.invalid is not None
    fine = ~wanted.invalid.any(dim=1) if nans else slice(None)
    for name in ("codes", "scales", "second"):
        mine, theirs = getattr(found, name), getattr(wanted, name)
        assert (mine is None) == (theirs is None), name
        if mine is None:
            continue
        assert (mine.dtype, mine.shape) == (theirs.dtype, theirs.shape), name
        rows = slice(None) if mine.shape[0] == 1 else fine
        assert torch.equal(mine[rows], theirs[rows]), name
    assert torch.equal(found.dequantize()[fine], wanted.dequantize()[fine])
    if nans and found.invalid.stride(1) == 0:  # by the kernel
        assert found.dequantize()[~fine].isnan().all()


@pytest.mark.parametrize("text", SCHEMES)
def test_every_format_is_that_of_the_reference(text: str) -> None:
    scheme, place = ActivationScheme.parse(text), SCHEMES.index(text)
    dtype = (torch.bfloat16, torch.float16, torch.float32)[place % 3]
    x = sample(scheme, dtype, 72, seed=place)
    x = torch.where(x.isinf(), 3, x)  # whose scale is NaN as well
    scale = stored_of(scheme)
    with poisoned():
        found = quantize_input(x, text, input_scale=scale, device=(A100, H100)[place % 2])
    same(found, quantize_input(x, scheme, input_scale=scale), nans=True)
    same(quantize_input(x, scheme, input_scale=scale), quantize_rows(x, scheme, scale), nans=True)


def test_a_function_and_a_transform_before() -> None:
    x = torch.randn(5, 128, dtype=torch.bfloat16)
    found = quantize_input(x, "int8", gating=RELU, hadamard=32, device=H100)
    scheme = ActivationScheme.parse("int8")
    same(found, quantize_rows(hadamard(RELU(x), 32), scheme))
    same(quantize_input(x, scheme, gating="reglu", hadamard=32), found)
    near = quantize_input(x, "int8", gating="swiglu", device=H100).dequantize()
    wanted = quantize_input(x, "int8", gating="swiglu").dequantize()
    assert (near - wanted).norm() < 1e-2 * wanted.norm()


@pytest.mark.parametrize("text", ["s8-token-f32", "e2m1-g16-e4m3fn-token", "e2m1-g32-e8m0"])
def test_chosen_rows(text: str) -> None:
    x = torch.randn(6, 64, dtype=torch.bfloat16)
    x[5] = torch.nan  # nobody's
    rows = torch.tensor([3, 3, 2**31 + 1, 0, -1, 6, 4])
    ids = torch.tensor([[0, 2], [-1, 1], [1, 2]], dtype=torch.int32)
    counts = torch.tensor([2, 0, 1])
    cases = (
        (x, {"rows": rows}, [0, 1, 3, 6], x[rows.clamp(0, 5)]),
        (x, {"expert_ids": ids, "experts": 2}, [0, 3, 4], x),
        (x, {"expert_ids": ids.long(), "experts": 2}, [0, 3, 4], x),
        (x.view(3, 2, 64), {"expert_counts": counts}, [0, 1, 4], x),
    )
    for y, options, some, source in cases:
        with poisoned():
            found = quantize_input(y, text, device=A100, **options)
        same(found, quantize_input(y, text, **options))
        same(found, quantize_rows(_only(source, some), ActivationScheme.parse(text)))


def _only(x: torch.Tensor, some: list[int]) -> torch.Tensor:
    """The same rows, all others zero."""
    out = torch.zeros_like(x)
    out[some] = x[some]
    return out


def test_rows_in_the_order_of_experts() -> None:
    x = torch.randn(4, 32, dtype=torch.float16)
    routes = route(torch.tensor([[1, 0], [2, -1], [0, 1], [2, 2]]), 3, GemmKind.GROUPED_CONTIGUOUS)
    found = quantize_input(x, "int8", rows=routes.sources, device=A100)
    same(found, quantize_rows(routes.gather(x), ActivationScheme.parse("int8")))


def test_a_stored_scale_of_each_row() -> None:
    x, scale = torch.randn(5, 64, dtype=torch.bfloat16), torch.rand(5) / 50 + 0.01
    text = "s8-tensor-f32-static"
    found = quantize_input(x, text, input_scale=scale, device=A100)
    assert torch.equal(found.scales, scale.unsqueeze(1))
    same(found, quantize_input(x, text, input_scale=scale))


def test_rows_with_gaps_and_what_no_kernel_has() -> None:
    x = torch.randn(3, 96, dtype=torch.float32)
    same(
        quantize_input(x[:, 16:80], "fp8", device=H100), quantize_input(x[:, 16:80].clone(), "fp8")
    )
    for text, block in (("s8-tensor-f32", 0), ("s8-g24-f32", 32)):
        found = quantize_input(x, text, hadamard=block, device=A100)
        same(found, quantize_input(x, text, hadamard=block))
