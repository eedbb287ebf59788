"""The kernel that lays out codes gives what torch gives, to the bit."""

from __future__ import annotations

from functools import cache
from typing import Any

import core_oracle as oracle
import numpy as np
import numpy.typing as npt
import pytest
import torch
from repack_cases import KINDS, Case, case, ordered, program

import humming_sim
from humming.errors import ConfigError
from humming.jit import Program, compile_program
from humming.weight import CanonicalWeight
from humming_sm75_sm89.repack import repack_spec

pytestmark = pytest.mark.compile

POISON = -0x21524111


def moved(weight: CanonicalWeight, shift: int = 0) -> CanonicalWeight:
    """The same weight with codes `shift` behind a multiple of 512; there torch's begin on a GPU."""
    memory = torch.empty(weight.packed.numel() + 1024, dtype=torch.uint8)
    start = -memory.data_ptr() % 512 + shift
    packed = memory[start : start + weight.packed.numel()].view(weight.packed.shape)
    return weight.replace(packed=packed.copy_(weight.packed))


@cache
def ptx_of(program: Program) -> str:
    return compile_program(program).data.decode()


def launch(
    found: Case, shift: int = 0, **options: Any
) -> tuple[npt.NDArray[np.int32], humming_sim.Report]:
    """What the kernel makes of codes that begin `shift` into a buffer, and the report."""
    spec = found.spec
    out = np.full(spec.out_shape, POISON, dtype=np.int32)
    codes = found.weight.packed.contiguous().numpy().reshape(-1)
    memory = np.concatenate([np.full(shift, 0xEE, dtype=np.uint8), codes])
    packed = humming_sim.Struct(bytes(8), at={0: (memory, shift)})
    given = {"packed": packed, "out": out, **spec.values}
    arguments = [given[arg.name] for arg in spec.kernel.args]
    arguments = [0 if value is None else value for value in arguments]
    ptx, shape = ptx_of(program(spec)), spec.shape
    report = humming_sim.launch(
        ptx, spec.kernel.entry, shape.grid, shape.block, arguments, **options
    )
    return out, report


def check(weight: CanonicalWeight, operand: int | str, how: str, shift: int = 0) -> None:
    """The whole packed weight is the same; by the kernel that the name says."""
    found = case(moved(weight, shift), operand)
    assert found.spec.kernel.name.endswith(how)
    expected = found.expected().tensors
    out, _ = launch(found, shift)
    assert np.array_equal(out, expected[found.spec.name].numpy())
    assert {found.spec.name, *found.spec.beside} == expected.keys()
    assert all(torch.equal(t, expected[name]) for name, t in found.spec.beside.items())


#: Codes of each width are read in each way, and go to operands of each width in one at least.
READ = {
    how: [(bits, unit) for bits, unit in KINDS if unit == 2 or (bits + unit // 4) % 3 == place]
    for place, how in enumerate(("wide", "any", "order"))
}


def test_each_width_meets_each_way_and_each_operand() -> None:
    read = {(*kind, how) for how, kinds in READ.items() for kind in kinds}
    assert {(bits, how) for bits, _, how in read} == {(b, how) for b in range(1, 9) for how in READ}
    assert {(unit, how) for _, unit, how in read} == {(u, how) for u in (2, 4, 8) for how in READ}
    assert {(bits, unit) for bits, unit, _ in read} == set(KINDS)


@pytest.mark.parametrize(("bits", "unit"), READ["wide"])
def test_rows_of_sixteen_bytes(bits: int, unit: int) -> None:
    # One share of 512 columns is full and one is not; 64 rows, and 6 more.
    check(oracle.random_weight(f"s{bits}-channel-f32", 70, 640, seed=bits), unit, "wide")


@pytest.mark.parametrize(("bits", "unit"), READ["any"])
def test_rows_of_any_length(bits: int, unit: int) -> None:
    # Three shares, of which the middle one is read without looking for the ends of rows.
    check(oracle.random_weight(f"s{bits}-channel-f32", 64, 1061, seed=bits), unit, "any")


@pytest.mark.parametrize(("bits", "unit"), READ["order"])
def test_columns_in_another_order(bits: int, unit: int) -> None:
    check(ordered(bits, 34, 150, experts=2), unit, "order")


@pytest.mark.parametrize(("operand", "how"), [
    ("bf16", "wide"), ("bf16", "order"), ("f16", "wide"), ("f16", "any"), ("e4m3fn", "any"),
    ("e4m3fn", "order"),
])  # fmt: skip
def test_codes_with_a_placement(operand: str, how: str) -> None:
    k = {"wide": 640, "any": 1061, "order": 300}[how]
    if how == "order":
        weight = oracle.random_weight("e2m1-g32-f16", 70, 2 * k, act_order=True).columns(0, k)
    else:
        weight = oracle.random_weight("e2m1-g32-f16", 70, k)
    assert case(weight, operand).layout.planes.placement is not None
    check(weight, operand, how)


@pytest.mark.parametrize("shift", [1, 2, 3, 8])
@pytest.mark.parametrize(("bits", "k"), [(4, 1152), (3, 1061)])
def test_codes_at_any_address(bits: int, k: int, shift: int) -> None:
    check(oracle.random_weight(f"s{bits}-channel-f32", 64, k), 4, "any", shift)


@pytest.mark.parametrize(("n", "k"), [(1, 1), (64, 128), (65, 129), (8, 32), (130, 2241)])
@pytest.mark.parametrize("experts", [0, 3])
def test_shapes(n: int, k: int, experts: int) -> None:
    how = "wide" if k == 128 else "any"
    check(oracle.random_weight("u5-channel-f32", n, k, experts, seed=n), 2, how)


def test_what_lies_behind_the_last_code_does_not_matter() -> None:
    weight = oracle.random_weight("s3-channel-f32", 64, 1061)
    dirty = weight.packed.clone()
    dirty[:, -1] |= 0x80  # 1061 * 3 = 397 * 8 + 7
    out, _ = launch(case(moved(weight.replace(packed=dirty))))
    assert np.array_equal(out, case(weight).expected().tensors["weight"].numpy())


@pytest.mark.parametrize("k", [1152, 1061])
def test_any_order_of_the_warps_gives_the_same(k: int) -> None:
    found = case(moved(oracle.random_weight("s5-channel-f32", 64, k)))
    expected = found.expected().tensors["weight"].numpy()
    for seed in range(2):
        out, _ = launch(found, seed=seed)
        assert np.array_equal(out, expected)


@pytest.mark.parametrize("bits", [3, 4, 8])
def test_memory_is_read_and_written_in_whole_pieces(bits: int) -> None:
    found = case(moved(oracle.random_weight(f"s{bits}-channel-f32", 64, 512)))
    _, report = launch(found, count=True)
    for space in ("global", "shared"):
        accesses = [a for a in report.accesses.values() if a.space == space]
        used, best = sum(a.used for a in accesses), sum(a.best for a in accesses)
        # In shared memory a little more, for the words between the rows.
        assert 0 < best <= used <= best * (1 if space == "global" else 1.05)


def test_a_weight_that_is_not_contiguous_is_taken_as_its_copy() -> None:
    whole = oracle.random_weight("s4-channel-f32", 64, 1280)
    part = whole.columns(0, 640)
    assert not part.packed.is_contiguous()
    found = case(part)
    assert found.spec.kernel.name.endswith("wide")
    out, _ = launch(found)
    assert np.array_equal(out, found.expected().tensors["weight"].numpy())


def test_the_weight_of_another_layer_is_refused() -> None:
    found = case(oracle.random_weight("s4-channel-f32", 64, 640))
    with pytest.raises(ConfigError, match=r"^n="):
        repack_spec(found.weight.rows(0, 32), found.layer, found.layout, "sm_80")


def test_what_32_bits_do_not_count_has_no_kernel() -> None:
    k = 2**28
    row = torch.zeros(1, 1, dtype=torch.uint8).expand(1, k)
    weight = oracle.random_weight("s8-channel-f32", 1, 1).replace(k=k, packed=row)
    with pytest.raises(AssertionError, match="there is a kernel"):
        case(weight)


@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_86", "sm_87", "sm_89", "sm_90", "sm_120"])
def test_no_kernel_spills(arch: str) -> None:
    # sm_86, sm_87 and sm_89 have the instructions of sm_80, and one kernel each by turns.
    alike = ("sm_86", "sm_87", "sm_89")
    some = slice(alike.index(arch), None, len(alike)) if arch in alike else slice(None)
    for weight, unit, how in (
        (oracle.random_weight("s8-channel-f32", 64, 640), 2, "wide"),
        (oracle.random_weight("s8-channel-f32", 64, 1061), 2, "any"),
        (ordered(7, 64, 150), 4, "order"),
    )[some]:
        spec = case(moved(weight), unit, arch).spec
        assert spec.kernel.name.endswith(how)
        (usage,) = compile_program(program(spec, "cubin")).usage
        assert (usage.spill_stores, usage.spill_loads, usage.stack) == (0, 0, 0)
