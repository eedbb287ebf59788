"""Bit packing of the standard form, and of the words that checkpoints hold."""

from __future__ import annotations

import core_oracle as oracle
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from humming.checkpoints.words import (
    AWQ_ORDER,
    dense_words,
    padded_words,
    unpack_words,
    words_as_bytes,
)
from humming.errors import CheckpointError, ConfigError
from humming.packing import pack, packed_bytes, unpack

# Golden words of checkpoints.md d.12: v_i = (5 i + 1) mod 2^b for i = 0 ... 31.
DENSE = {
    1: "55555555",
    2: "39393939 39393939",
    3: "F19D50F1 50F19D50 9D50F19D",
    4: "4FA50B61 C72D83E9 4FA50B61 C72D83E9",
    5: "F5582CC1 DC4DC927 6ED161C5 D9A3D450 E5E4D40F",
    6: "9540B181 3BA991F6 3070BDE3 A581B591 3FB9D2FA 71748D20",
    7: "5202C301 29487CD1 13D70CD7 EB51991E BF565C16 00FF79E9 385C90D1",
    8: "100B0601 241F1A15 38332E29 4C47423D 605B5651 746F6A65 88837E79 9C97928D",
}
PADDED = DENSE | {
    3: "319D50F1 03C67543 150F19D5 00000027",
    5: "35582CC1 3137249F 2D161C5D 28F5141B 24D40FD9 00000397",
    6: "1540B181 2EA647DA 070BDE33 206D644C 39D2FAA5 123480FE 00000717",
    7: "0202C301 0487CD15 070CD729 0991E13D 0C16EB51 0E9BF565 0100FF79 0385C90D",
}
PLANAR = {b: DENSE[b] for b in (2, 4, 8)} | {
    3: "39393939 39393939 D2D2D2D2",
    5: "4FA50B61 C72D83E9 4FA50B61 C72D83E9 E3871C78",
    6: "4FA50B61 C72D83E9 4FA50B61 C72D83E9 03FA9540 540FEA95",
    7: "4FA50B61 C72D83E9 4FA50B61 C72D83E9 03FA9540 540FEA95 03FFE000",
}
GOLDEN = [
    (layout, bits, text)
    for layout, table in (("dense", DENSE), ("padded", PADDED), ("planar", PLANAR))
    for bits, text in table.items()
]


def words(text: str) -> torch.Tensor:
    numbers = np.array([int(word, 16) for word in text.split()], dtype=np.uint32)
    return torch.from_numpy(numbers.view(np.int32))


def golden_codes(bits: int) -> torch.Tensor:
    return torch.tensor([(5 * i + 1) % (1 << bits) for i in range(32)], dtype=torch.uint8)


@st.composite
def code_tensors(draw) -> tuple[np.ndarray, int]:
    bits = draw(st.integers(1, 8))
    lead = draw(st.lists(st.integers(0, 3), max_size=2))
    shape = (*lead, draw(st.integers(0, 67)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    return rng.integers(0, 1 << bits, shape).astype(np.uint8), bits


@given(code_tensors())
def test_pack_writes_one_little_endian_bit_stream_per_row(case):
    codes, bits = case
    packed = pack(torch.from_numpy(codes), bits)
    count = codes.shape[-1]
    assert packed.shape == (*codes.shape[:-1], packed_bytes(count, bits))
    flat = packed.reshape(-1, packed.shape[-1]) if packed.numel() else []
    rows = codes.reshape(-1, count) if codes.size else []
    for row, found in zip(rows, flat, strict=True):
        assert bytes(found.tolist()) == oracle.write_bits((int(c) for c in row), bits)


@given(code_tensors())
def test_unpack_inverts_pack(case):
    codes, bits = case
    packed = pack(torch.from_numpy(codes), bits)
    assert np.array_equal(unpack(packed, bits, codes.shape[-1]).numpy(), codes)


@given(st.integers(1, 8), st.integers(0, 50), st.integers(0, 2**32))
def test_unpack_reads_the_bit_stream_and_ignores_bits_past_the_end(bits, count, seed):
    rng = np.random.default_rng(seed)
    data = rng.integers(0, 256, (2, packed_bytes(count, bits))).astype(np.uint8)
    found = unpack(torch.from_numpy(data), bits, count)
    assert [row.tolist() for row in found] == [
        oracle.read_bits(row.tobytes(), bits, count) for row in data
    ]


@pytest.mark.parametrize("bits", range(1, 9))
def test_strided_codes_are_packed_as_they_read(bits):
    codes = torch.randint(0, 1 << bits, (11, 6), dtype=torch.uint8).t()
    assert torch.equal(pack(codes, bits), pack(codes.contiguous(), bits))
    wide = pack(codes.contiguous(), bits).repeat_interleave(2, dim=1)[:, ::2]
    assert torch.equal(unpack(wide, bits, 11), codes)


@pytest.mark.parametrize("bits", [0, 9, -1, 16])
def test_widths_other_than_1_to_8_are_refused(bits):
    with pytest.raises(ConfigError, match="1 to 8"):
        pack(torch.zeros(2, 8, dtype=torch.uint8), bits)
    with pytest.raises(ConfigError, match="1 to 8"):
        unpack(torch.zeros(2, 8, dtype=torch.uint8), bits, 8)


@pytest.mark.parametrize("bits", range(1, 8))
def test_a_code_that_does_not_fit_is_refused(bits):
    codes = torch.zeros(3, 9, dtype=torch.uint8)
    codes[2, 8] = 1 << bits
    with pytest.raises(ConfigError, match=rf"codes below 2\^{bits}"):
        pack(codes, bits)


def test_other_dtypes_and_lengths_are_refused():
    with pytest.raises(ConfigError, match="a uint8 tensor"):
        pack(torch.zeros(2, 8, dtype=torch.int32), 4)
    with pytest.raises(ConfigError, match="a uint8 tensor"):
        unpack(torch.zeros(2, 8, dtype=torch.int32), 4, 16)
    for count in (14, 17, 100):
        with pytest.raises(ConfigError, match=f"rows of {(count + 1) // 2} bytes"):
            unpack(torch.zeros(2, 8, dtype=torch.uint8), 4, count)


# -- words of checkpoints ----------------------------------------------------------------------


@pytest.mark.parametrize(("layout", "bits", "text"), GOLDEN)
def test_golden_words_hold_the_golden_codes(layout, bits, text):
    assert torch.equal(unpack_words(words(text), bits, 32, layout), golden_codes(bits))


@pytest.mark.parametrize("bits", DENSE)
def test_our_own_stream_is_the_dense_words(bits):
    packed = pack(golden_codes(bits), bits)
    assert torch.equal(packed, words_as_bytes(words(DENSE[bits])))


def test_awq_order_is_that_of_the_golden_word():
    nibbles = unpack_words(words("75316420"), 4, 8).tolist()
    columns = [0] * 8
    for nibble, column in enumerate(AWQ_ORDER):
        columns[column] = nibbles[nibble]
    assert columns == list(range(8))


def reference_words(codes: list[int], bits: int, layout: str) -> list[int]:
    """Words written one field at a time, as the three layouts are described."""
    if layout == "dense":
        stream = oracle.write_bits(codes, bits)
        stream += bytes(-len(stream) % 4)
        return [int.from_bytes(stream[i : i + 4], "little") for i in range(0, len(stream), 4)]
    if layout == "padded":
        per_word = 32 // bits
        chunks = [codes[i : i + per_word] for i in range(0, len(codes), per_word)]
        return [sum(c << (bits * i) for i, c in enumerate(chunk)) for chunk in chunks]
    out = []
    planes = {3: (2, 1), 5: (4, 1), 6: (4, 2), 7: (4, 2, 1)}.get(bits, (bits,))
    for start in range(0, len(codes), 32):
        shift = 0
        for width in planes:
            fields = [(c >> shift) & ((1 << width) - 1) for c in codes[start : start + 32]]
            out += reference_words(fields, width, "dense")
            shift += width
    return out


@given(st.sampled_from(["dense", "padded", "planar"]), st.integers(1, 8), st.integers(0, 100),
       st.integers(0, 2**32))  # fmt: skip
def test_unpack_words_inverts_a_field_by_field_writer(layout, bits, count, seed):
    count = count // 32 * 32 if layout == "planar" else count
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 1 << bits, (2, 3, count))
    rows = [reference_words([int(c) for c in row], bits, layout) for row in codes.reshape(6, -1)]
    packed = np.array(rows, dtype=np.uint32).reshape(2, 3, -1).view(np.int32)
    sizes = padded_words if layout == "padded" else dense_words
    assert packed.shape[-1] == sizes(count, bits)
    found = unpack_words(torch.from_numpy(packed), bits, count, layout)
    assert np.array_equal(found.numpy(), codes)


def test_dense_and_padded_words_are_told_apart_by_their_number():
    assert (dense_words(4096, 3), padded_words(4096, 3)) == (384, 410)
    assert (dense_words(100, 5), padded_words(100, 5)) == (16, 17)


@pytest.mark.parametrize(
    ("layout", "bits", "count", "have", "message"),
    [
        ("dense", 4, 32, 5, "found 5 words for 32 codes of 4 bits, expected 4"),
        ("dense", 3, 4096, 410, "expected 384"),
        ("padded", 3, 4096, 384, "expected 410"),
        ("planar", 3, 64, 5, "expected 6"),
        ("planar", 4, 40, 5, "a multiple of 32 codes, found 40"),
        ("strange", 4, 32, 4, "unknown packing 'strange'"),
    ],
)
def test_words_of_another_number_or_layout_are_refused(layout, bits, count, have, message):
    with pytest.raises(CheckpointError, match=message):
        unpack_words(torch.zeros(2, have, dtype=torch.int32), bits, count, layout)


@pytest.mark.parametrize("layout", ["dense", "padded", "planar"])
def test_words_of_another_dtype_are_refused(layout):
    with pytest.raises(CheckpointError, match=r"int32 words, found torch\.int64"):
        unpack_words(torch.zeros(2, 4, dtype=torch.int64), 4, 32, layout)


def test_bytes_of_strided_words_are_in_reading_order():
    strided = torch.arange(6, dtype=torch.int32).view(3, 2).t()
    assert words_as_bytes(strided)[0].tolist() == [0, 0, 0, 0, 2, 0, 0, 0, 4, 0, 0, 0]
