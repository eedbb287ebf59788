"""Codes that are NaN: all results of their rows are, and no others, whoever finds out about them.

Most decoders leave them to a scale that packing makes NaN (`MmaLayout.code`). Others see them
themselves: where the scales of a row have no NaN that lasts, where Inf is a code as well, and where
codes are operands as they are.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import wgmma_layers
from gemm_data import call_of, weight_of
from gemm_matrix import Case
from gemm_oracle import Reference, poisoned
from gemm_runs import layer_of

from humming.configs import GemmKind, TuningConfig
from humming.formats.number import Specials
from humming_sm75_sm89.layout import layout_of
from humming_sm75_sm89.tuning import MmaTuning
from humming_sm90.stream_tuning import StreamTuning
from humming_sm90.wide_tuning import WideTuning

pytestmark = pytest.mark.compile

TURING, AMPERE, ADA, HOPPER = "nvidia-t4", "nvidia-a100", "nvidia-l40s", "nvidia-h100"
DENSE, INDEXED, CONTIGUOUS, MASKED = tuple(GemmKind)
MMA, WIDE = MmaTuning(warps_k=2, stages=2), WideTuning(tokens=64, stages=3)
STREAM = StreamTuning(groups_k=2, tokens=16, stages=3)
#: Device, weight, activation, kind, tuning, and whether decoders are spared the NaN.
CASES = (
    (AMPERE, "e4m3fn-channel-f32", "bf16", DENSE, MMA, True),
    (TURING, "e4m3fn-tensor-f32", "f16", CONTIGUOUS, MMA, True),
    (AMPERE, "e4m3fn-g64-f16", "f16", INDEXED, MMA, True),
    (AMPERE, "e4m3fn-b128x128-f32", "bf16", MASKED, MMA, True),
    (AMPERE, "e4m3fn-g64-bf16", "bf16", DENSE, replace(MMA, folds=True), True),
    (AMPERE, "e4m3fnuz-g128-bf16-channel", "bf16", DENSE, MMA, True),
    (AMPERE, "e4m3fn-g32-e8m0", "bf16", DENSE, MMA, False),
    (AMPERE, "e5m2-channel-f32", "bf16", DENSE, MMA, False),
    (ADA, "e4m3fn-channel-f32", "e4m3fn-token-f32", DENSE, MMA, False),
    (HOPPER, "e4m3fn-channel-f32", "bf16", DENSE, STREAM, True),
    (HOPPER, "e4m3fn-b128x128-f32", "bf16", INDEXED, WIDE, True),
    (HOPPER, "e4m3fn-g128-bf16", "bf16", CONTIGUOUS, WIDE, True),
    (HOPPER, "e4m3fn-g128-bf16", "bf16", DENSE, replace(WIDE, folds=True), True),
    (HOPPER, "e4m3fn-channel-f32", "e4m3fn-token-f32", DENSE, WIDE, False),
)
#: Rows and columns of such codes, of experts by turns: the first and last of all, and two in one
#: row. If two codes are NaN, these take turns as well.
PLACES = ((0, 0), (69, 391), (33, 5), (33, 200))


@pytest.mark.parametrize(
    ("device", "scheme", "x", "kind", "tuning", "spared"), CASES, ids=lambda value: str(value)
)
def test_rows_with_nan_are_nan_and_others_as_without(
    device: str, scheme: str, x: str, kind: GemmKind, tuning: TuningConfig, spared: bool
) -> None:
    activation = {"activation": x, "dtype": "bf16"} if "-" in x else {"dtype": x}
    case = Case(source=device, weight=scheme, n=70, k=392, kind=kind, **activation)
    clean = weight_of(case, "cpu")
    code = clean.scheme.code
    layout = layout_of(wgmma_layers.config_of(case), case.profile)
    assert (layout.code != code) is spared
    assert layout.code.specials is (Specials.NONE if spared else code.specials)

    codes = clean.packed.clone()
    nans = (0x80,) if code.specials is Specials.FNUZ else (0x7F, 0xFF)
    spoilt = torch.zeros(max(case.experts, 1), case.n, dtype=torch.bool)
    for number, (row, column) in enumerate(PLACES):
        expert = number % spoilt.shape[0]
        codes.view(spoilt.shape[0], case.n, -1)[expert, row, column] = nans[number % len(nans)]
        spoilt[expert, row] = True
    weight = clean.replace(packed=codes)
    assert weight.dequantize().isnan().any(-1).view_as(spoilt).equal(spoilt)

    call = call_of(case, clean, 20, "cpu")
    results = []
    for one in (clean, weight):
        if device == HOPPER:
            layer = wgmma_layers.layer_of(case, one, tuning)
        else:
            layer = layer_of(case, one, f"sim:{device}", tuning)
        with poisoned():
            results.append(layer(call.x, **call.routing))
    without, found = results
    expected = Reference(weight, case.activations)(call.x, **call.routing).isnan()
    assert expected.any()
    assert not expected.all(-1).any()
    assert found.isnan().equal(expected)
    assert found.masked_fill(expected, 0).equal(without.masked_fill(expected, 0))
