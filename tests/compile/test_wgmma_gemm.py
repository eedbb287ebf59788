"""Every family of wgmma kernels compiles for sm_90a, as lean as it was planned.

No spills and no stack, the matrix instruction that was meant and no other, which ptxas does not
serialise, and shared memory that the device has.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache

import pytest
from gemm_matrix import Case
from wgmma_layers import H100, config_of

from humming.backend import KernelSpec, Problem
from humming.configs import GemmKind
from humming.engine.workshop import workshop
from humming.errors import ConfigError
from humming.jit import Binary, compile_many
from humming_sm90.backend import Sm90Backend
from humming_sm90.tuning import WgmmaTuning

pytestmark = pytest.mark.compile

DENSE = GemmKind.DENSE
#: Weights, activations, kind and result; the instruction with the widest tile.
FAMILIES = (
    ("s8-channel-f32", "s8-g128-f32", GemmKind.DENSE, "bf16", "m64n128k32.s32.s8.s8"),
    ("s8-g128-f32", "s8-g128-f32", GemmKind.GROUPED_MASKED, "f16", "m64n128k32.s32.s8.s8"),
    ("e4m3fn-g128-f32", "e4m3fn-token-f32", GemmKind.DENSE, "f32", "m64n128k32.f32.e4m3.e4m3"),
    (
        "e4m3fn-b128x128-f32",
        "e4m3fn-g128-f32",
        GemmKind.GROUPED_CONTIGUOUS,
        "bf16",
        "m64n128k32.f32.e4m3.e4m3",
    ),
    ("e4m3fn-g128-f32", "e5m2-g128-f32", GemmKind.DENSE, "bf16", "m64n128k32.f32.e5m2.e4m3"),
    ("e5m2-b128x128-f32", "e4m3fn-g128-f32", GemmKind.INDEXED, "f16", "m64n128k32.f32.e4m3.e5m2"),
)
_MMA = re.compile(r"wgmma\.mma_async\.sync\.aligned\.(\S+)")


def case_of(family: int) -> Case:
    weight, activation, kind, dtype, _ = FAMILIES[family]
    return Case(
        source=H100,
        weight=weight,
        activation=activation,
        dtype=dtype,
        n=8192,
        k=8192,
        kind=kind,
        bias=family % 2 == 0,
    )


@cache
def specs_of(family: int) -> tuple[KernelSpec, ...]:
    """The kernels of every tuning that the backend would consider."""
    case = case_of(family)
    backend, layer = Sm90Backend(case.profile), config_of(case)
    assert backend.refuse(layer, case.compute) is None
    tunings = backend.candidates(layer, case.compute, Problem(m=4096))
    return tuple(backend.kernel(layer, case.compute, tuning) for tuning in tunings)


@cache
def few_specs_of(family: int) -> tuple[KernelSpec, ...]:
    """Those for few tokens and few rows of weights: some of each shape, with parts of K."""
    case = replace(case_of(family), n=1280)
    backend, layer = Sm90Backend(case.profile), config_of(case)
    found: dict[tuple[int, int, bool], WgmmaTuning] = {}
    for m in (16, 128):
        for tuning in backend.candidates(layer, case.compute, Problem(m=m)):
            assert isinstance(tuning, WgmmaTuning)
            found[tuning.tile_n, tuning.tokens, tuning.splits > 1] = tuning
    return tuple(backend.kernel(layer, case.compute, tuning) for tuning in found.values())


def complaints(spec: KernelSpec, binary: Binary) -> str:
    """What is wrong with a binary, or nothing."""
    (usage,) = binary.usage
    if usage.stack or usage.spill_stores or usage.spill_loads:
        return f"{spec.name}: {usage}"
    # ptxas says so if it waits for each MMA (C7510 and the like).
    if "warning" in binary.log or "wgmma" in binary.log:
        return f"{spec.name}: {binary.log}"
    return ""


@pytest.mark.parametrize("family", range(len(FAMILIES)), ids=lambda f: "-x-".join(FAMILIES[f][:2]))
def test_a_family_compiles_lean(family: int) -> None:
    *narrow, widest = sorted(specs_of(family), key=lambda spec: spec.context.tuning.tile_n)  # type: ignore[attr-defined]
    assert len(narrow) == 2
    specs = [narrow[family % 2], widest]  # the widest has the fewest registers to spare
    programs = [workshop().program(spec, "cubin") for spec in specs]
    found = [complaints(*pair) for pair in zip(specs, compile_many(programs), strict=True)]
    assert not any(found), "\n".join(filter(None, found))


@pytest.mark.parametrize("family", [f for f in range(len(FAMILIES)) if FAMILIES[f][2] is DENSE])
def test_kernels_for_few_tokens_and_parts_of_k_compile_lean(family: int) -> None:
    specs = few_specs_of(family)
    assert len(specs) == 9
    some = specs[family % 3 :: 3]  # all of them would take a minute more
    programs = [workshop().program(spec, "cubin") for spec in some]
    found = [complaints(*pair) for pair in zip(some, compile_many(programs), strict=True)]
    assert not any(found), "\n".join(filter(None, found))


def test_parts_of_tiles_have_room_in_the_workspace() -> None:
    case = case_of(0)
    backend, layer = Sm90Backend(case.profile), config_of(case)
    spec = backend.kernel(layer, case.compute, WgmmaTuning(tile_n=64, tokens=64, splits=2))
    assert spec.workspace is not None
    assert spec.workspace(Problem(m=64), layer) == 65536 + 2 * 128 * 4 * 64 * 64
    assert spec.launch(Problem(m=64), layer).grid == (132, 1, 1)
    with pytest.raises(ConfigError, match="no parts of K with more than 16384 tiles"):
        spec.workspace(Problem(m=64 * 129), layer)
    experts = replace(case, kind=GemmKind.INDEXED)
    with pytest.raises(ConfigError, match="splits"):
        backend.kernel(config_of(experts), experts.compute, WgmmaTuning(splits=2))


@pytest.mark.parametrize("family", range(len(FAMILIES)), ids=lambda f: FAMILIES[f][-1])
def test_the_matrix_instruction_is_the_one_that_was_meant(family: int) -> None:
    spec = specs_of(family)[0]
    (binary,) = compile_many([workshop().program(spec, "ptx")])
    assert set(_MMA.findall(binary.data.decode())) == {FAMILIES[family][-1]}


def test_shared_memory_is_planned_and_fits() -> None:
    """The template asserts that C++ comes to the same number."""
    case = case_of(0)
    layer, problem = config_of(case), Problem(m=4096)
    shapes = [spec.launch(problem, layer) for spec in specs_of(0)]
    assert [shape.shared_bytes for shape in shapes] == [
        4 * (48 * 1024 + 512 + 48) + 16 * 1024,
        6 * (32 * 1024 + 512 + 48) + 16 * 1024,
        8 * (24 * 1024 + 512 + 48) + 16 * 1024,
    ]
    for family in range(len(FAMILIES)):
        limits = case_of(family).profile.limits
        for spec in specs_of(family):
            shape = spec.launch(problem, config_of(case_of(family)))
            assert shape.shared_bytes <= limits.smem_block_bytes
            assert (shape.block, shape.grid[0] <= limits.sm_count) == ((384, 1, 1), True)
    scaled = WgmmaTuning(tile_n=256, stages=4).shared_bytes(row_groups=True, scales=True)
    assert scaled == 4 * (48 * 1024 + 512 + 1024 + 48) + 16 * 1024
