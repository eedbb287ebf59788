"""Every GGUF storage type becomes its scheme, and its values equal gguf's own to the last bit."""

from __future__ import annotations

from pathlib import Path

import gguf_files
import numpy as np
import numpy.typing as npt
import pytest
import torch
from gguf import quants
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from humming.checkpoints.gguf_blocks import BLOCK_TYPES
from humming.errors import CheckpointError, HummingError
from humming.weight import CanonicalWeight

SCHEMES = {
    "Q4_0": "u4-g32-f16",
    "Q4_1": "u4+zf-g32-f16",
    "Q5_0": "u5-g32-f16",
    "Q5_1": "u5+zf-g32-f16",
    "Q8_0": "s8-g32-f16",
    "Q2_K": "u2+zf-g16-f32",
    "Q3_K": "u3-g16-f32",
    "Q4_K": "u4+zf-g32-f32",
    "Q5_K": "u5+zf-g32-f32",
    "Q6_K": "u6-g16-f32",
    "TQ1_0": "s2-g256-f16",
    "TQ2_0": "s2-g256-f16",
    "MXFP4": "e2m1-g32-e8m0",
    "NVFP4": "e2m1-g16-e4m3fn",
}
#: gguf can quantize to these, not only read them.
QUANTIZERS = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "TQ1_0", "TQ2_0", "MXFP4"]
#: ggml's table of E2M1 values has no -0, the format has.
NO_MINUS_ZERO = {"MXFP4", "NVFP4"}


def assert_same_bits(
    found: torch.Tensor, expected: npt.NDArray[np.float32], kind: str = ""
) -> None:
    """Equal bit patterns; any NaN is as good as another, and -0 is 0 where ggml has no -0."""
    ours = found.numpy()
    assert ours.dtype == expected.dtype == np.float32
    assert ours.shape == expected.shape
    same = ours.view(np.uint32) == expected.view(np.uint32)
    same |= np.isnan(ours) & np.isnan(expected)
    if kind in NO_MINUS_ZERO:
        same |= (ours == 0) & (expected == 0)
    assert same.all(), f"{kind}: {(~same).sum()} of {same.size} differ"


def theirs(kind: str, raw: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    with np.errstate(all="ignore"):
        return quants.dequantize(raw, GGMLQuantizationType[kind])


def through_file(tmp_path: Path, kind: str, raw: npt.NDArray[np.uint8]) -> CanonicalWeight:
    path = gguf_files.write_gguf(tmp_path / "one.gguf", {"blk.0.attn_q.weight": (kind, raw)})
    return gguf_files.load(path, "blk.0.attn_q")


def test_every_supported_type_is_tested() -> None:
    assert set(BLOCK_TYPES) == set(SCHEMES) == set(gguf_files.F16_FIELDS)


@pytest.mark.parametrize("kind", SCHEMES)
def test_block_sizes_are_those_of_gguf(kind: str) -> None:
    assert BLOCK_TYPES[kind].nbytes == GGML_QUANT_SIZES[GGMLQuantizationType[kind]][1]


@pytest.mark.parametrize("kind", SCHEMES)
def test_random_blocks_equal_gguf_dequantization(kind: str, tmp_path: Path) -> None:
    raw = gguf_files.random_blocks(kind, (37, 768), np.random.default_rng(len(kind)))
    weight = through_file(tmp_path, kind, raw)
    assert str(weight.scheme) == SCHEMES[kind]
    assert weight.shape == (37, 768)
    expected = theirs(kind, raw)
    assert len(np.unique(expected)) > 100
    assert_same_bits(weight.dequantize(torch.float32), expected, kind)


@pytest.mark.parametrize("kind", SCHEMES)
def test_any_f16_scale_is_kept(kind: str, tmp_path: Path) -> None:
    """Random bits as scales: subnormal, infinite, NaN and negative ones."""
    raw = gguf_files.random_blocks(kind, (300, 512), np.random.default_rng(5), tame=False)
    expected = theirs(kind, raw)
    if gguf_files.F16_FIELDS[kind]:
        assert np.isnan(expected).any()
    assert_same_bits(through_file(tmp_path, kind, raw).dequantize(torch.float32), expected, kind)


@pytest.mark.parametrize("kind", QUANTIZERS)
def test_what_gguf_quantized_reads_as_gguf_reads_it(kind: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(11)
    values = rng.standard_normal((23, 512)) * 2.0 ** rng.integers(-8, 8, (23, 512 // 32)).repeat(
        32, 1
    )
    raw = quants.quantize(values.astype(np.float32), GGMLQuantizationType[kind])
    weight = through_file(tmp_path, kind, raw)
    assert_same_bits(weight.dequantize(torch.float32), theirs(kind, raw), kind)
    error = np.abs(weight.dequantize(torch.float64).numpy() - values).max(1)
    assert (error < np.abs(values).max(1)).all()  # the same rows in the same order


@pytest.mark.parametrize("kind", SCHEMES)
def test_float32_is_the_one_rounding_of_float64(kind: str, tmp_path: Path) -> None:
    raw = gguf_files.random_blocks(kind, (9, 256), np.random.default_rng(3))
    weight = through_file(tmp_path, kind, raw)
    exact = weight.dequantize(torch.float64)
    assert torch.equal(exact.to(torch.float32), weight.dequantize(torch.float32))


@pytest.mark.parametrize("kind", ["Q4_0", "Q8_0", "Q4_K", "Q6_K", "MXFP4", "NVFP4"])
def test_experts_are_stacked_matrices(kind: str, tmp_path: Path) -> None:
    raw = gguf_files.random_blocks(kind, (5, 7, 512), np.random.default_rng(8))
    path = gguf_files.write_gguf(tmp_path / "e.gguf", {"blk.3.ffn_gate_exps.weight": (kind, raw)})
    weight = gguf_files.load(path, "blk.3.ffn_gate_exps")
    assert (weight.experts, weight.n, weight.k) == (5, 7, 512)
    assert_same_bits(weight.dequantize(torch.float32), theirs(kind, raw), kind)


def test_rows_decoded_in_several_steps_keep_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("humming.checkpoints.gguf._CODES_AT_ONCE", 1000)
    raw = gguf_files.random_blocks("Q5_K", (3, 11, 512), np.random.default_rng(2))
    path = gguf_files.write_gguf(tmp_path / "e.gguf", {"a.weight": ("Q5_K", raw)})
    found = gguf_files.load(path, "a").dequantize(torch.float32)
    assert_same_bits(found, theirs("Q5_K", raw))


def test_mxfp4_zeros_keep_their_sign(tmp_path: Path) -> None:
    raw = np.zeros((1, 17), np.uint8)
    raw[0, 0], raw[0, 1:] = 127, 0x80  # codes 0 in the first half of the block, 8 in the second
    found = through_file(tmp_path, "MXFP4", raw).dequantize(torch.float32)
    assert found.signbit().tolist() == [[False] * 16 + [True] * 16]
    assert not found.any()


def test_mxfp4_scale_255_is_nan_as_ocp_says(tmp_path: Path) -> None:
    raw = np.full((2, 17), 0x11, np.uint8)
    raw[:, 0] = 255, 0  # ggml reads 255 as 2^128
    found = through_file(tmp_path, "MXFP4", raw).dequantize(torch.float32)
    assert found[0].isnan().all()
    assert (found[1] == 0.5 * 2.0**-127).all()


def test_nvfp4_scale_without_meaning_is_refused(tmp_path: Path) -> None:
    raw = gguf_files.random_blocks("NVFP4", (2, 64), np.random.default_rng(1))
    raw[1, 2] = 0x7F
    with pytest.raises(
        CheckpointError, match=r"attn_q\.weight.*NVFP4 scale 0x7f, expected at most"
    ):
        through_file(tmp_path, "NVFP4", raw)


def test_tq2_0_code_3_is_refused(tmp_path: Path) -> None:
    raw = gguf_files.random_blocks("TQ2_0", (2, 256), np.random.default_rng(1))
    raw[0, 63] = 0xC0
    with pytest.raises(CheckpointError, match=r"attn_q\.weight.*TQ2_0 code 3, expected 0, 1 or 2"):
        through_file(tmp_path, "TQ2_0", raw)


@pytest.mark.parametrize("kind", sorted(k.name for k in GGML_QUANT_SIZES))
def test_no_type_of_gguf_is_misread(kind: str, tmp_path: Path) -> None:
    """A type is decoded, plain, or refused by name; the file opens in any case."""
    block, size = GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
    entries = [gguf_files.entry("x.weight", [block, 3], GGMLQuantizationType[kind])]
    path = tmp_path / "x.gguf"
    path.write_bytes(gguf_files.by_hand(entries, data=bytes(3 * size)))
    source, _, plans = gguf_files.opened(path)
    assert str(source.store.info("x.weight")) == f"{kind} [3, {block}]"
    assert ("x" in plans) == (kind in SCHEMES)
    if kind in ("F32", "F16", "BF16", "F64", "I8", "I16", "I32", "I64"):
        assert tuple(source.store.get("x.weight").shape) == (3, block)
    else:
        with pytest.raises(HummingError, match=rf"'x\.weight': {kind} \[3, {block}\] is"):
            source.store.get("x.weight")
