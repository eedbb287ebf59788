"""The wide kernels compile for sm_90a, as lean as they were planned, and say what they don't do.

No spills and no stack, the matrix instruction that was meant and no other, which ptxas does not
serialise, and shared memory that the device has.
"""

from __future__ import annotations

import re
from functools import cache

import pytest
from gemm_matrix import Case
from wgmma_layers import H100, config_of
from wide_runs import WideBackend

from humming.backend import KernelSpec, Problem
from humming.configs import ComputeConfig, GemmKind
from humming.engine.workshop import workshop
from humming.errors import ConfigError
from humming.formats.table import number_format
from humming.jit import Binary, compile_many
from humming_sm75_sm89.layout import layout_of
from humming_sm90.wide_kernel import refuse_wide
from humming_sm90.wide_tuning import WideTuning

pytestmark = pytest.mark.compile

DENSE, MASKED = GemmKind.DENSE, GemmKind.GROUPED_MASKED
#: Weights, activations, kind; registers are shortest where numbers are many and scales are close.
FAMILIES = (
    ("u4-g128-bf16", "bf16", DENSE),
    ("u4+z-g64-f16", "f16", GemmKind.GROUPED_CONTIGUOUS),
    ("e2m1-g16-e4m3fn-tensor", "bf16", DENSE),
    ("e2m1-g16-e4m3fn-tensor", "f16", MASKED),
    ("u7+z-g32-bf16", "bf16", MASKED),
    ("s8-channel-f32", "bf16", DENSE),
    ("u4+zf-g32-f16", "f16", DENSE),
    ("e4m3fn-g64-f32", "bf16", MASKED),
    ("e4m3fn-channel-f32", "e4m3fn-token-f32", DENSE),
    ("s8-channel-f32", "s8-token-f32", MASKED),
    ("s4-g128-f32", "s8-token-f32", GemmKind.GROUPED_CONTIGUOUS),
    ("u6+z-g64-f16", "s8-token-f32", MASKED),
    ("e2m1-g32-e8m0", "e4m3fn-token-f32", GemmKind.GROUPED_CONTIGUOUS),
    ("u4-g128-bf16", "e5m2-token-f32", DENSE),
    ("u4-g128-bf16", "bf16", GemmKind.INDEXED),
    ("e4m3fn-channel-f32", "e4m3fn-token-f32", GemmKind.INDEXED),
)
_MMA = re.compile(r"wgmma\.mma_async\.sync\.aligned\.(\S+)")
#: Of a thread at the launch, by the CTAs that an SM has.
_REGISTERS = {1: 168, 2: 80}


def case_of(family: int) -> Case:
    weight, x, kind = FAMILIES[family]
    numbers = {"dtype": x} if "-" not in x else {"activation": x, "dtype": "bf16"}
    return Case(
        source=H100, weight=weight, n=8192, k=8192, kind=kind, bias=family % 2 == 0, **numbers
    )


@cache
def specs_of(family: int) -> tuple[KernelSpec, ...]:
    """The kernels of every tuning that would be considered for some size."""
    case = case_of(family)
    backend, layer = WideBackend(case.profile), config_of(case)
    tunings = {
        tuning: None
        for m in (16, 128, 4096)
        for tuning in backend.candidates(layer, case.compute, Problem(m=m))
    }
    return tuple(backend.kernel(layer, case.compute, tuning) for tuning in tunings)


def complaints(spec: KernelSpec, binary: Binary) -> str:
    """What is wrong with a binary, or nothing."""
    (usage,) = binary.usage
    registers = _REGISTERS[spec.context.tuning.ctas]  # type: ignore[attr-defined]
    if usage.stack or usage.spill_stores or usage.spill_loads or usage.registers != registers:
        return f"{spec.name}: {usage}"
    # ptxas says so if it waits for each MMA (C7510 and the like).
    if "warning" in binary.log or "wgmma" in binary.log:
        return f"{spec.name}: {binary.log}"
    return ""


@pytest.mark.parametrize("family", range(len(FAMILIES)), ids=lambda f: "-x-".join(FAMILIES[f][:2]))
def test_a_family_compiles_lean(family: int) -> None:
    assert len(specs_of(family)) >= 2
    specs = specs_of(family)[family % 4 :: 4]  # all of them would take two minutes more
    programs = [workshop().program(spec, "cubin") for spec in specs]
    found = [complaints(*pair) for pair in zip(specs, compile_many(programs), strict=True)]
    assert not any(found), "\n".join(filter(None, found))


@pytest.mark.parametrize(
    ("family", "instruction"),
    [
        (0, "m64n128k16.f32.bf16.bf16"),
        (1, "m64n64k16.f32.f16.f16"),
        (8, "m64n128k32.f32.e4m3.e4m3"),
        (10, "m64n64k32.s32.s8.s8"),
        (13, "m64n64k32.f32.e5m2.e5m2"),
    ],
)
def test_the_matrix_instruction_is_the_one_that_was_meant(family: int, instruction: str) -> None:
    """Tiles of 128 tokens; sums that are scaled are those of 64."""
    (spec, *_) = (spec for spec in specs_of(family) if spec.row_tile == 128)
    if family == 0:
        spec = next(s for s in specs_of(0) if s.row_tile == 128 and s.context.tuning.folds)  # type: ignore[attr-defined]
    (binary,) = compile_many([workshop().program(spec, "ptx")])
    assert set(_MMA.findall(binary.data.decode())) == {instruction}


def test_a_kernel_that_fits_has_an_instruction_of_each_width() -> None:
    (spec,) = (spec for spec in specs_of(9) if spec.row_tile == 160)
    (binary,) = compile_many([workshop().program(spec, "ptx")])
    found = set(_MMA.findall(binary.data.decode()))
    assert found == {f"m64n{width}k32.s32.s8.s8" for width in range(80, 161, 8)}


def test_shared_memory_is_planned_and_fits() -> None:
    """The template asserts that C++ comes to the same number."""
    layout = layout_of(config_of(case_of(0)), case_of(0).profile)
    stage = 256 * 128 + 2 * (4 * 512 + 128) + 32
    assert WideTuning(stages=5).shared_bytes(layout) == 5 * stage + 2 * 8192 + 16
    for family in range(len(FAMILIES)):
        case = case_of(family)
        for spec in specs_of(family):
            shape = spec.launch(Problem(m=4096), config_of(case))
            assert shape.shared_bytes <= case.profile.limits.smem_block_bytes
            slots = case.profile.limits.sm_count * spec.context.tuning.ctas  # type: ignore[attr-defined]
            assert (shape.block, shape.grid[0] <= slots) == ((384, 1, 1), True)


def test_parts_of_tiles_have_room_in_the_workspace() -> None:
    case = case_of(0)
    backend, layer = WideBackend(case.profile), config_of(case)
    tuning = WideTuning(tokens=128, folds=True, splits=2)
    spec = backend.kernel(layer, case.compute, tuning)
    assert spec.workspace is not None
    assert spec.workspace(Problem(m=128), layer) == 65536 + 2 * 64 * 4 * 128 * 128
    assert spec.launch(Problem(m=128), layer).grid == (128, 1, 1)
    with pytest.raises(ConfigError, match="no parts of K with more than 16384 tiles"):
        spec.workspace(Problem(m=128 * 257), layer)


def test_costs_are_near_what_was_measured() -> None:
    """N = K = 8192, int4: microseconds on an H200 by M; see ``wide_candidates.py``."""
    case = Case(source="nvidia-h200", weight="u4-g128-bf16", n=8192, k=8192)
    backend, layer = WideBackend(case.profile), config_of(case)
    took = {128: 31.2, 256: 50.2, 512: 88.1, 1024: 171.6, 2048: 337.0, 4096: 672.0}
    for m, measured in took.items():
        tunings = backend.candidates(layer, case.compute, Problem(m=m))
        costs = {t: backend.cost(layer, case.compute, Problem(m=m), t) for t in tunings}
        best = min(costs, key=costs.__getitem__)
        assert costs[best] == pytest.approx(measured, rel=0.04), m
        assert (best.tokens, best.folds) == (128 if m <= 256 else 256, True)
        assert best.splits == (2 if m == 128 else 1)


@pytest.mark.parametrize(
    ("changes", "compute", "reason"),
    [
        ({"activation": "e4m3fn-g128-f32"}, {}, "scales of groups"),
        ({"act_order": True}, {}, "columns in another order"),
        ({"dtype": "f16"}, {"accumulate": number_format("f16")}, "sums in f16"),
    ],
)
def test_what_there_is_no_kernel_for(
    changes: dict[str, object], compute: dict[str, object], reason: str
) -> None:
    case = Case(source=H100, **{"weight": "u4-g128-f16", **changes})  # type: ignore[arg-type]
    config = ComputeConfig(gemm=case.kind, **compute)  # type: ignore[arg-type]
    backend, layer = WideBackend(case.profile), config_of(case)
    refusal = refuse_wide(layer, config, layout_of(layer, case.profile))
    assert refusal is not None
    assert reason in refusal
    assert list(backend.candidates(layer, config, Problem(m=256))) == []
    with pytest.raises(ConfigError, match=reason):
        backend.kernel(layer, config, WideTuning())


def test_no_other_bits_where_batches_are_promised_not_to_matter() -> None:
    case = case_of(0)
    backend, layer = WideBackend(case.profile), config_of(case)
    compute = ComputeConfig(batch_invariant=True)
    assert list(backend.candidates(layer, compute, Problem(m=256))) == []


@pytest.mark.parametrize(
    "fields",
    [
        {"tokens": 96},
        {"stages": 2},
        {"stages": 17},
        {"splits": 0},
        {"raster": 0},
        {"tokens": 256, "splits": 2},
    ],
)
def test_tunings_that_make_no_sense(fields: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=list(fields)[-1]):
        WideTuning(**fields)  # type: ignore[arg-type]


def test_a_tuning_that_does_not_fit_a_layer() -> None:
    case = Case(source=H100, weight="u4-g128-f16")
    backend, layer = WideBackend(case.profile), config_of(case)
    with pytest.raises(ConfigError, match="its scales don't fit into operands"):
        backend.kernel(layer, case.compute, WideTuning(folds=True))
    with pytest.raises(ConfigError, match="bytes of shared memory"):
        backend.kernel(layer, case.compute, WideTuning(stages=8))
