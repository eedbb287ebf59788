"""The kernel that sorts choices by expert gives what humming.scheduling.align_rows gives."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest
from routing_cases import CASES, POISON, Aligned, Ids, expected, layer_of, padded

import humming
import humming_sim
from humming.backend import UNTILED, KernelSpec, Problem
from humming.configs import GemmKind
from humming.errors import ConfigError, UnsupportedError
from humming.jit import Binary, HeaderRoots, Program, Renderer, compile_program
from humming.routing import MAX_EXPERTS, align_spec, aligned_sizes, route_spec

pytestmark = pytest.mark.compile

CORE = Path(humming.__file__).parent
HEADERS = HeaderRoots({"humming": CORE / "include" / "humming"})
RENDERER = Renderer({"humming": CORE / "templates"})


def build(spec: KernelSpec) -> Binary:
    source = RENDERER.render(spec.template, spec.context)
    kind = "ptx" if spec.arch.startswith("compute") else "cubin"
    headers = HEADERS.closure(source, spec.name)
    return compile_program(
        Program(name=spec.name, source=source, arch=spec.arch, headers=headers, kind=kind)
    )


@cache
def ptx(row_tile: int, wide: bool) -> str:
    return build(align_spec(row_tile, wide, "compute_75")).data.decode()


def align(ids: Ids, experts: int, row_tile: int, ctas: int = 0, seed: int | None = None) -> Aligned:
    """What the kernel writes, by as many CTAs as it asks for or `ctas`."""
    spec = align_spec(row_tile, ids.dtype == np.int64, "compute_75")
    shape = spec.launch(Problem(m=ids.size), layer_of(experts))
    grid = ctas or shape.grid[0]
    sizes = aligned_sizes(ids.size, experts, row_tile)
    slots, tile_experts = padded(sizes.slots), padded(sizes.row_tiles)
    count = np.full(1, POISON, np.int32)
    source = ids if ids.size else np.zeros(1, ids.dtype)
    arguments = [source, slots, tile_experts, count, ids.size, experts]
    code = ptx(row_tile, ids.dtype == np.int64)
    humming_sim.launch(code, spec.entry, grid, shape.block, arguments, seed=seed)
    return Aligned(slots, tile_experts, int(count[0]))


def check(ids: Ids, experts: int, row_tile: int, ctas: int = 0, seed: int | None = None) -> None:
    align(ids, experts, row_tile, ctas, seed).check(expected(ids, experts, row_tile), row_tile)


EXPERTS = (1, 8, 128, 384, 1024)
#: Choices, row tile, CTAs.
LAUNCHES = ((1, 8, 0), (70, 64, 0), (31, UNTILED, 1), (700, 128, 2))


@pytest.mark.parametrize("number", range(5), ids=lambda number: str(EXPERTS[number]))
@pytest.mark.parametrize("case", CASES)
def test_slots_are_those_of_the_reference(case: str, number: int) -> None:
    """Each case meets each launch, and each number of experts two of them."""
    rng, experts = np.random.default_rng(EXPERTS[number]), EXPERTS[number]
    for place, (choices, row_tile, ctas) in enumerate(LAUNCHES[number % 2 :: 2]):
        wide = (place + number // 2) % 2 == 0
        ids = CASES[case](rng, choices, experts).astype(np.int64 if wide else np.int32)
        check(ids, experts, row_tile, ctas)


@pytest.mark.parametrize(("choices", "ctas"), [(40, 7), (900, 2), (2500, 3), (3000, 1), (500, 16)])
@pytest.mark.parametrize("experts", [3, 384, 1024])
def test_any_number_of_ctas_gives_the_same(experts: int, choices: int, ctas: int) -> None:
    ids = CASES["random"](np.random.default_rng(choices), choices, experts).astype(np.int32)
    check(ids, experts, 16 if (experts + ctas) % 2 else UNTILED, ctas)


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("case", ["random", "remote", "one for all"])
def test_warps_in_any_order_give_the_same(case: str, seed: int) -> None:
    ids = CASES[case](np.random.default_rng(seed), 1500, 24).astype(np.int32)
    check(ids, 24, 8, ctas=2, seed=seed)


def test_without_choices_there_are_no_tiles() -> None:
    check(np.zeros(0, np.int32), 8, 16)
    check(np.zeros(0, np.int32), 8, UNTILED)


def test_an_id_of_64_bits_is_not_cut_to_32() -> None:
    ids = np.array([2**32, 1, -(2**32) + 1, 2**40 + 1, 0, 1], np.int64)
    check(ids, 2, 8)


def test_a_launch_has_more_ctas_for_more_choices_and_says_its_limits() -> None:
    spec = align_spec(16, False, "compute_75")
    grids = [spec.launch(Problem(m=m), layer_of(8)).grid[0] for m in (0, 1, 32, 33, 10**6)]
    assert grids == [1, 1, 1, 2, 32]
    first = spec.launch(Problem(m=5), layer_of(8))
    assert spec.launch(Problem(m=9), layer_of(8)) is first
    assert spec.launch(Problem(m=5), layer_of(MAX_EXPERTS)) is first
    with pytest.raises(UnsupportedError, match="up to 1024 experts, and the layer has 1025"):
        spec.launch(Problem(m=5), layer_of(MAX_EXPERTS + 1))
    with pytest.raises(ConfigError, match="choices"):
        spec.launch(Problem(m=2**31), layer_of(8))
    with pytest.raises(ConfigError, match="row_tile"):
        align_spec(-1, False, "compute_75")


def test_there_is_room_for_whatever_the_ids_are() -> None:
    assert aligned_sizes(10, 4, 8) == (32, 4)  # 7 + 1 + 1 + 1 choices; one each would fill less
    assert aligned_sizes(0, 4, 8) == (0, 0)
    assert aligned_sizes(3, 100, 8) == (24, 3)
    assert aligned_sizes(3, 100, UNTILED) == (3, 101)


@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_89", "sm_90a", "sm_120"])
def test_kernels_assemble_without_spills_and_fit_an_sm(arch: str) -> None:
    for wide in (False, True):
        (usage,) = build(align_spec(64, wide, arch)).usage
        assert usage.kernel == "align_rows"
        assert usage.spill_stores == usage.stack == 0
        assert usage.registers <= 64  # of 1024 threads
        assert usage.shared <= 48 * 1024


@pytest.mark.parametrize("layout", [kind for kind in GemmKind if kind is not GemmKind.DENSE])
def test_kernels_of_every_layout_assemble_without_spills(layout: GemmKind) -> None:
    for arch, wide in (("sm_75", False), ("sm_90a", True)):
        (usage,) = build(route_spec(layout, wide, arch)).usage
        assert usage.kernel == "sort_rows"
        assert usage.spill_stores == usage.stack == 0
        assert usage.registers <= 64
    with pytest.raises(ConfigError, match="layout"):
        route_spec(GemmKind.DENSE, False, "sm_75")
