"""GPTQ checkpoints: files of AutoGPTQ and GPTQModel, and layers packed from the description."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from int_packers import IntLayer, gptq_tensors, int32, planar, random_layer, stream
from memory_checkpoint import FIXTURES, fixture_expected, fixture_loader, memory_loader

from humming.checkpoints.gptq import GptqLoader
from humming.errors import CheckpointError
from humming.packing import pack
from humming.weight import CanonicalWeight

CASES = sorted(path.parent.name for path in FIXTURES.glob("gptq/*/config.json"))


def config(bits: int, group: int, **more: Any) -> dict[str, Any]:
    return {"quant_method": "gptq", "bits": bits, "group_size": group, "sym": False, **more}


def read(tensors: dict[str, torch.Tensor], settings: dict[str, Any]) -> CanonicalWeight:
    """The one layer of a checkpoint, which must be read as it was planned."""
    loader = memory_loader(GptqLoader, tensors, settings)
    (plan,) = loader.plan()
    assert loader.store.read == []  # type: ignore[attr-defined]
    assert set(plan.tensors) == set(tensors)
    weight = loader.load(plan)
    assert (weight.scheme, weight.n, weight.k) == (plan.scheme, plan.n, plan.k)
    assert (weight.bias is not None) == plan.bias
    return weight


def check(weight: CanonicalWeight, layer: IntLayer) -> None:
    assert torch.equal(weight.dequantize(torch.float64), layer.values)
    assert weight.scales.dtype == layer.scales.dtype
    if weight.bias is not None:
        assert layer.bias is not None
        assert torch.equal(weight.bias, layer.bias)


# -- files of real tools ----------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
def test_reads_what_the_tool_that_wrote_it_reads(case: str) -> None:
    loader = fixture_loader(GptqLoader, f"gptq/{case}")
    expected = fixture_expected(f"gptq/{case}")["layer.weight"]
    (plan,) = loader.plan()
    weight = loader.load(plan)
    # The tools round the exact product to float16 once.
    assert torch.equal(weight.dequantize(torch.float64).to(expected.dtype), expected)
    assert plan.act_order == case.endswith("order") == (weight.permutation is not None)
    assert ("+z" in str(plan.scheme)) != case.endswith("sym")


def test_there_are_fixtures_of_both_tools_and_all_formats() -> None:
    assert {name.rpartition("_")[0] for name in CASES} >= {
        "autogptq", "autogptq_4", "gptqmodel_v1", "gptqmodel_v2", "gptqmodel_p",
    }  # fmt: skip


# -- packed words -----------------------------------------------------------------------------

GOLDEN = {
    ("gptq_v2", 2): "39393939 39393939",
    ("gptq_v2", 3): "F19D50F1 50F19D50 9D50F19D",
    ("gptq_v2", 4): "4FA50B61 C72D83E9 4FA50B61 C72D83E9",
    ("gptq_v2", 8): "100B0601 241F1A15 38332E29 4C47423D 605B5651 746F6A65 88837E79 9C97928D",
    ("gptq_p", 3): "39393939 39393939 D2D2D2D2",
    ("gptq_p", 5): "4FA50B61 C72D83E9 4FA50B61 C72D83E9 E3871C78",
    ("gptq_p", 6): "4FA50B61 C72D83E9 4FA50B61 C72D83E9 03FA9540 540FEA95",
    ("gptq_p", 7): "4FA50B61 C72D83E9 4FA50B61 C72D83E9 03FA9540 540FEA95 03FFE000",
}


@pytest.mark.parametrize(("form", "bits"), GOLDEN)
def test_golden_words_hold_their_codes(form: str, bits: int) -> None:
    values = [(5 * i + 1) % (1 << bits) for i in range(32)]
    words = [int(word, 16) for word in GOLDEN[form, bits].split()]
    assert words == (planar if form == "gptq_p" else stream)(values, bits)
    tensors = {
        "layer.qweight": int32([words] * 32).t().contiguous(),
        "layer.scales": torch.ones(1, 32, dtype=torch.float16),
    }
    weight = read(tensors, config(bits, -1, sym=True, checkpoint_format=form))
    assert weight.codes().tolist() == [values] * 32


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("form", ["gptq", "gptq_v2", "gptq_p"])
@pytest.mark.parametrize("group", [64, 32, -1])
def test_every_width_and_format_dequantizes_exactly(bits: int, form: str, group: int) -> None:
    layer = random_layer(64, 128, group, bits, lowest_zero=0)
    offset = int(form == "gptq")
    if offset and bits != 3:
        layer.zeros = np.maximum(layer.zeros, 1)  # so that no borrow is left to the writer
    tensors = gptq_tensors(layer, offset=offset, is_planar=form == "gptq_p")
    check(read(tensors, config(bits, group, checkpoint_format=form)), layer)


@pytest.mark.parametrize("bits", [5, 6, 7])
@pytest.mark.parametrize("form", [None, "gptq", "gptq_p"])
def test_five_six_and_seven_bits_are_planar_whatever_the_label(bits: int, form: str) -> None:
    layer = random_layer(32, 96, 32, bits)
    tensors = gptq_tensors(layer, is_planar=True)
    check(read(tensors, config(bits, 32, checkpoint_format=form)), layer)


@pytest.mark.parametrize(("bits", "n", "k"), [(4, 40, 100), (3, 41, 100), (2, 17, 50), (8, 5, 99)])
def test_sizes_that_fill_no_word_and_no_group(bits: int, n: int, k: int) -> None:
    layer = random_layer(n, k, 32, bits)
    weight = read(gptq_tensors(layer), config(bits, 32, checkpoint_format="gptq_v2"))
    check(weight, layer)
    assert weight.scales.shape == (n, -(-k // 32))


def test_three_bit_rows_take_ceil_of_three_words_per_32() -> None:
    layer = random_layer(32, 4096, 128, 3)
    tensors = gptq_tensors(layer, g_idx=False, offset=0)
    assert tensors["layer.qweight"].shape == (384, 32)
    weight = read(tensors, config(3, 128, checkpoint_format="gptq_v2"))
    assert torch.equal(weight.codes(), torch.from_numpy(layer.codes.astype(np.uint8)))


@pytest.mark.parametrize("k", [44, 45])  # the last word ends within, also within a byte
def test_junk_after_the_last_code_is_dropped(k: int) -> None:
    layer = random_layer(16, k, 16, 4)
    tensors = gptq_tensors(layer)
    tensors["layer.qweight"][-1] |= -(1 << (4 * (k % 8)))
    weight = read(tensors, config(4, 16, checkpoint_format="gptq_v2"))
    check(weight, layer)
    assert torch.equal(weight.packed, pack(weight.codes(), 4))


def test_planar_codes_of_one_plane_need_no_multiples_of_32() -> None:
    layer = random_layer(20, 44, 16, 4)
    check(read(gptq_tensors(layer), config(4, 16, checkpoint_format="gptq_p")), layer)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_scales_keep_their_dtype(dtype: torch.dtype) -> None:
    layer = random_layer(32, 64, 32, 4, dtype=dtype)
    check(read(gptq_tensors(layer), config(4, 32, checkpoint_format="gptq_v2")), layer)


@given(st.data())
def test_any_shape_reads_back(data: st.DataObject) -> None:
    bits = data.draw(st.sampled_from([2, 3, 4, 8]))
    n, k = data.draw(st.integers(1, 20)), data.draw(st.integers(2, 70))
    group = data.draw(st.sampled_from([-1, 1, 8, 16, 33, 128]))
    layer = random_layer(n, k, group, bits, seed=data.draw(st.integers(0, 99)))
    layer.groups = np.random.default_rng(k).permutation(layer.groups)
    settings = config(bits, group, checkpoint_format="gptq_v2", desc_act=True)
    if len(set(layer.groups.tolist())) == layer.scales.shape[1]:
        check(read(gptq_tensors(layer), settings), layer)


# -- zero points ------------------------------------------------------------------------------


def with_zero_words(bits: int, words: list[int], n: int) -> dict[str, torch.Tensor]:
    """A layer [n, 32] of one group with these words as its zero points."""
    layer = random_layer(n, 32, 32, bits)
    tensors = gptq_tensors(layer, bias=False)
    return {**tensors, "layer.qzeros": int32([words])}


@pytest.mark.parametrize(
    ("word", "zeros"),
    [
        (0x3333332F, [0, 4, 4, 4, 4, 4, 4, 4]),  # a borrow, as GPTQModel leaves it
        (0x3333333F, [0, 5, 4, 4, 4, 4, 4, 4]),  # no borrow: read as if there were one
        (0x76543210, [1, 2, 3, 4, 5, 6, 7, 8]),
        (0xF7777777, [8, 8, 8, 8, 8, 8, 8, 0]),  # the last carry is dropped
    ],
)
def test_v1_adds_one_to_each_field_of_the_word_at_once(word: int, zeros: list[int]) -> None:
    weight = read(with_zero_words(4, [word], 8), config(4, 32))
    assert weight.zeros is not None
    assert weight.zeros.flatten().tolist() == zeros


def test_v1_carries_stay_in_their_word() -> None:
    weight = read(with_zero_words(4, [0xFFFFFFFF, 0x33333333], 16), config(4, 32))
    assert weight.zeros is not None
    assert weight.zeros.flatten().tolist() == [0] + [1] * 7 + [4] * 8


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_v1_undoes_a_writer_that_borrows(bits: int) -> None:
    layer = random_layer(64, 128, 32, bits)  # zero points from 0 up
    tensors = gptq_tensors(layer)
    ones = sum(1 << i for i in range(0, 32, bits))
    stored = (tensors["layer.qzeros"].long() - ones) & 0xFFFFFFFF
    tensors["layer.qzeros"] = int32(stored.numpy())
    check(read(tensors, config(bits, 32)), layer)


def test_v1_three_bit_fields_wrap_one_by_one() -> None:
    layer = random_layer(64, 64, 32, 3)
    check(read(gptq_tensors(layer, offset=1), config(3, 32)), layer)


def test_v1_warns_of_an_ambiguous_zero_point(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "humming.checkpoints")
    read(with_zero_words(4, [0x3333332E], 8), config(4, 32))
    assert caplog.records == []
    read(with_zero_words(4, [0x3333332F], 8), config(4, 32))
    (record,) = caplog.records
    assert "layer.qzeros stores 15" in record.getMessage()


def test_v2_has_nothing_to_warn_of(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "humming.checkpoints")
    weight = read(with_zero_words(4, [0xF0F0F0F0], 8), config(4, 32, checkpoint_format="gptq_v2"))
    assert weight.zeros is not None
    assert weight.zeros.flatten().tolist() == [0, 15] * 4
    assert caplog.records == []


V1_SYM = {
    2: [0x55555555],
    3: [0xDB6DB6DB, 0xB6DB6DB6, 0x6DB6DB6D],
    4: [0x77777777],
    8: [0x7F7F7F7F],
}
V2_SYM = {
    2: [0xAAAAAAAA],
    3: [0x24924924, 0x49249249, 0x92492492],
    4: [0x88888888],
    8: [0x80808080],
}


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_symmetric_zero_points_mean_the_same_however_stored(
    bits: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "humming.checkpoints")
    layer = random_layer(96, 64, 64, bits, sym=True)
    plain = gptq_tensors(layer, qzeros=False)
    width = -(-layer.codes.shape[0] * bits // 32)

    def read_with(words: list[int] | None, form: str) -> CanonicalWeight:
        tensors = dict(plain)
        if words is not None:
            tensors["layer.qzeros"] = int32([(words * width)[:width]])
        return read(tensors, config(bits, 64, sym=True, checkpoint_format=form))

    right = [(None, "gptq"), (V1_SYM[bits], "gptq"), (V2_SYM[bits], "gptq_v2")]
    for words, form in right:
        weight = read_with(words, form)
        check(weight, layer)
        assert weight.zeros is None
        assert str(weight.scheme) == f"u{bits}-g64-f16"
    assert caplog.records == []
    check(read_with(V2_SYM[bits], "gptq"), layer)  # vllm#38966: v2 labelled v1
    (record,) = caplog.records
    middle = 1 << (bits - 1)
    assert f"every stored zero point is {middle}, not {middle - 1}" in record.getMessage()
    check(read_with(V1_SYM[bits], "gptq_v2"), layer)


def test_symmetric_three_bits_of_old_gptqmodel_are_known(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "humming.checkpoints")
    layer = random_layer(32, 32, 32, 3, sym=True)
    tensors = gptq_tensors(layer)
    # Its constants, subtracted word by word from 32 zero points of 4.
    wrong = (0x24924924, 0x92492492, 0x49249249)
    stored = [(a - b) & 0xFFFFFFFF for a, b in zip(V2_SYM[3], wrong, strict=True)]
    tensors["layer.qzeros"] = int32([stored])
    settings = config(3, 32, sym=True, meta={"quantizer": ["gptqmodel:2.1.0"]})
    check(read(tensors, settings), layer)
    assert "before 6.1" in caplog.text


@pytest.mark.parametrize("form", ["gptq", "gptq_v2"])
def test_zero_points_that_contradict_sym_are_refused(form: str) -> None:
    layer = random_layer(32, 64, 32, 4)
    tensors = gptq_tensors(layer, offset=0)
    with pytest.raises(CheckpointError, match=r"layer.qzeros.*sym is true.*8.*0 to 15 are stored"):
        read(tensors, config(4, 32, sym=True, checkpoint_format=form))
    tensors["layer.qzeros"][:] = 0x66666666
    with pytest.raises(CheckpointError, match="6 to 6 are stored"):
        read(tensors, config(4, 32, sym=True, checkpoint_format=form))


def test_without_sym_zero_points_are_read_or_taken_to_be_the_middle() -> None:
    settings = config(4, 32, checkpoint_format="gptq_v2")
    del settings["sym"]
    layer = random_layer(32, 64, 32, 4)
    check(read(gptq_tensors(layer), settings), layer)
    layer = random_layer(32, 64, 32, 4, sym=True)
    check(read(gptq_tensors(layer, qzeros=False), settings), layer)


def test_unpacked_zero_points_are_refused_by_name() -> None:
    layer = random_layer(32, 64, 32, 4)
    tensors = gptq_tensors(layer)
    tensors["layer.qzeros"] = torch.zeros(2, 32, dtype=torch.int32)
    for sym in (True, False):
        with pytest.raises(CheckpointError, match=r"'layer.qzeros': found unpacked zero points"):
            read(tensors, config(4, 32, sym=sym))


@pytest.mark.parametrize("quantizer", ["gptqmodel:2.1.0", ["optimum:1.2", "GPTQModel:6.0.3"]])
def test_damaged_three_bit_zero_points_of_old_gptqmodel_are_refused(quantizer: Any) -> None:
    tensors = gptq_tensors(random_layer(32, 32, 32, 3), offset=1)
    settings = config(3, 32, meta={"quantizer": quantizer})
    with pytest.raises(CheckpointError, match=r"GPTQModel before 6\.1"):
        read(tensors, settings)
    read(tensors, {**settings, "checkpoint_format": "gptq_v2"})
    read(tensors, {**settings, "meta": {"quantizer": ["gptqmodel:6.1.0"]}})


# -- act-order --------------------------------------------------------------------------------


def shuffled(n: int, k: int, group: int, bits: int = 4) -> IntLayer:
    layer = random_layer(n, k, group, bits)
    layer.groups = np.random.default_rng(k).permutation(layer.groups)
    return layer


def test_act_order_becomes_a_permutation_with_groups_in_order() -> None:
    layer = shuffled(24, 128, 32)
    weight = read(gptq_tensors(layer), config(4, 32, desc_act=True, checkpoint_format="gptq_v2"))
    check(weight, layer)
    assert weight.permutation is not None
    assert weight.permutation.tolist() == np.argsort(layer.groups, kind="stable").tolist()
    assert weight.group_index is None


def test_a_partial_last_group_stays_the_last_under_act_order() -> None:
    layer = shuffled(8, 100, 32)
    weight = read(gptq_tensors(layer), config(4, 32, desc_act=True, checkpoint_format="gptq_v2"))
    check(weight, layer)
    assert weight.group_index is None


def test_uneven_groups_keep_an_index() -> None:
    layer = random_layer(8, 64, 16, 4)
    layer.groups = np.array([0] * 20 + [3] * 10 + [1] * 14 + [2] * 20)
    weight = read(gptq_tensors(layer), config(4, 16, desc_act=True, checkpoint_format="gptq_v2"))
    check(weight, layer)
    assert weight.group_index is not None
    assert weight.group_index.tolist() == sorted(layer.groups.tolist())


def test_uneven_groups_in_order_need_no_permutation() -> None:
    layer = random_layer(8, 64, 16, 4)
    layer.groups = np.array([0] * 20 + [1] * 10 + [2] * 14 + [3] * 20)
    weight = read(gptq_tensors(layer), config(4, 16, desc_act=True, checkpoint_format="gptq_v2"))
    check(weight, layer)
    assert weight.permutation is None


@pytest.mark.parametrize("desc_act", [True, False])
def test_a_trivial_g_idx_leaves_no_permutation(desc_act: bool) -> None:
    layer = random_layer(8, 64, 16, 4)
    settings = config(4, 16, desc_act=desc_act, checkpoint_format="gptq_v2")
    weight = read(gptq_tensors(layer), settings)
    check(weight, layer)
    assert weight.permutation is None
    assert weight.group_index is None


def test_an_all_zero_g_idx_counts_only_without_desc_act() -> None:
    layer = random_layer(8, 64, 16, 4)
    tensors = gptq_tensors(layer)
    tensors["layer.g_idx"] = torch.zeros(64, dtype=torch.int32)
    check(read(tensors, config(4, 16, checkpoint_format="gptq_v2")), layer)
    with pytest.raises(CheckpointError, match=r"layer.g_idx.*every input is in group 0 of 4"):
        read(tensors, config(4, 16, desc_act=True))


def test_a_g_idx_that_desc_act_denies_is_followed_and_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    layer = shuffled(8, 64, 16)
    check(read(gptq_tensors(layer), config(4, 16, checkpoint_format="gptq_v2")), layer)
    assert "layer.g_idx reorders groups although desc_act is false" in caplog.text


@pytest.mark.parametrize(("index", "found"), [(4, "0 to 4"), (-1, "-1 to 3")])
def test_a_g_idx_out_of_range_is_refused(index: int, found: str) -> None:
    tensors = gptq_tensors(random_layer(8, 64, 16, 4))
    tensors["layer.g_idx"][5] = index
    with pytest.raises(CheckpointError, match=f"'layer.g_idx': groups {found}, expected 0 to 3"):
        read(tensors, config(4, 16, desc_act=True))
