"""Every family of mma.sync kernels compiles for its architectures, as lean as it was planned.

No spills and no stack, the matrix instruction that was meant, and shared memory and registers that
the device has. A family is a pair of number formats; what else a kernel has goes round in turns,
and so do the architectures that differ little.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache

import pytest
from gemm_matrix import Case

from humming.backend import KernelSpec, Problem
from humming.configs import GemmKind, LayerConfig
from humming.engine.choice import Planner
from humming.engine.workshop import workshop
from humming.formats.table import number_format
from humming.jit import Binary, compile_many
from humming.jit.program import Kind
from humming_sm75_sm89.backend import Sm75Sm89Backend
from humming_sm75_sm89.tuning import MmaTuning

pytestmark = pytest.mark.compile

#: Profiles by architecture: those whose kernels these are.
PROFILES = {
    "sm_75": "nvidia-t4",
    "sm_80": "nvidia-a100",
    "sm_86": "nvidia-a10",
    "sm_87": "family-sm87",
    "sm_89": "nvidia-l40s",
}
#: Newer architectures that can carry the same kernels.
CARRIERS = ("sm_90a", "sm_120a")
#: Rows of the problems whose tunings are compiled.
ROWS = (1, 48, 8192)
REGISTERS = 65_536
KINDS = tuple(GemmKind)

#: (weight, activations, first architecture): what is decoded to what, and where scales go.
FAMILIES = (
    ("u4-g128-bf16", "", 75), ("u4+z-g64-f16", "", 75), ("u4+zf-g32-f16", "", 75),
    ("s8-channel-f32", "", 75), ("u3+z-tensor-f32", "", 75), ("u2+zf-g16-f32", "", 75),
    ("e2m1-g32-e8m0", "", 75), ("e2m1-g16-e4m3fn-tensor", "", 75), ("e4m3fn-b128x128-f32", "", 75),
    ("e5m2-channel-f32", "", 75), ("u6-g64-bf16", "", 75),
    ("s8-channel-f32", "s8-token-f32", 75), ("u4-g128-f16", "s8-g128-f32", 75),
    ("u4+z-g64-f16", "s8-g32-f32", 75), ("e2m1-g32-e8m0", "s8-token-f32", 75),
    ("u4-g128-f16", "s4-token-f32", 75),
    ("e4m3fn-b128x128-f32", "e4m3fn-g128-f32", 89), ("e4m3fn-channel-f32", "e4m3fn-token-f32", 89),
    ("u4-g128-bf16", "e4m3fn-token-f32", 89), ("e2m1-g32-e8m0", "e4m3fn-g32-e8m0", 89),
    ("e5m2-channel-f32", "e5m2-token-f32", 89),
)  # fmt: skip

#: Activations, accumulation and instruction set, and the only matrix instruction of a kernel.
INSTRUCTIONS = {
    ("f16", "", 75): "m16n8k8.row.col.f32.f16.f16.f32",
    ("f16", "f16", 75): "m16n8k8.row.col.f16.f16.f16.f16",
    ("s8", "", 75): "m8n8k16.row.col.s32.s8.s8.s32",
    ("s4", "", 75): "m8n8k32.row.col.s32.s4.s4.s32",
    ("f16", "", 80): "m16n8k16.row.col.f32.f16.f16.f32",
    ("f16", "f16", 80): "m16n8k16.row.col.f16.f16.f16.f16",
    ("bf16", "", 80): "m16n8k16.row.col.f32.bf16.bf16.f32",
    ("s8", "", 80): "m16n8k32.row.col.s32.s8.s8.s32",
    ("s4", "", 80): "m16n8k64.row.col.s32.s4.s4.s32",
    ("e4m3fn", "", 80): "m16n8k32.row.col.f32.e4m3.e4m3.f32",
    ("e5m2", "", 80): "m16n8k32.row.col.f32.e5m2.e5m2.f32",
}
_MMA = re.compile(r"mma\.sync\.aligned\.(\S+)")


@dataclass(frozen=True)
class Build:
    """A kernel for an architecture."""

    case: Case
    arch: str
    tuning: MmaTuning

    @property
    def spec(self) -> KernelSpec:
        found = backend_of(self.case).kernel(layer_of(self.case), self.case.compute, self.tuning)
        return replace(found, arch=self.arch)

    def __str__(self) -> str:
        return f"{self.case} for {self.arch}: {self.tuning}"


def backend_of(case: Case) -> Sm75Sm89Backend:
    return Sm75Sm89Backend(case.profile)


def layer_of(case: Case) -> LayerConfig:
    return LayerConfig(
        n=case.n,
        k=case.k,
        experts=case.experts,
        weight=case.scheme,
        activation=case.activations,
        output=number_format(case.dtype),
        bias=case.bias,
        act_order=case.act_order,
    )


@cache
def tunings_of(case: Case) -> tuple[MmaTuning, ...]:
    """What is chosen for few and for many rows."""
    planner = Planner(backend_of(case), layer_of(case), case.compute)
    found = dict.fromkeys(planner.tuning(Problem(m=m)) for m in ROWS)
    return tuple(tuning for tuning in found if isinstance(tuning, MmaTuning))


def case_of(family: int, arch: str) -> Case:
    """A family's case on an architecture: kind, result, bias and order go round in turns."""
    weight, activation, _ = FAMILIES[family]
    turn = family + list(PROFILES).index(arch)
    return Case(
        source=PROFILES[arch],
        weight=weight,
        activation=activation,
        dtype="f16" if arch == "sm_75" or turn % 3 == 0 else "bf16",
        n=8192,
        k=8192,
        kind=KINDS[turn % 4],
        bias=turn % 2 == 0,
        act_order=turn % 5 == 0 and "b128" not in weight and activation.count("-g") == 0,
    )


def archs_of(family: int) -> list[str]:
    """The first two architectures, which differ, and by turns one of those like the second.

    Of families that leave activations as they are, every other one has such a third.
    """
    archs = [arch for arch in PROFILES if int(arch[3:]) >= FAMILIES[family][2]]
    third = bool(FAMILIES[family][1]) or family % 2
    return [*archs[:2], *archs[2 + family % 3 :][: int(third)]]


def builds_of(family: int) -> Iterator[Build]:
    """A family on its architectures, and on one of them every second tuning."""
    archs = archs_of(family)
    for place, arch in enumerate(archs):
        case = case_of(family, arch)
        tunings = tunings_of(case)
        some = tunings[family // len(archs) % 2 :: 2]
        chosen = some if place == family % len(archs) else tunings[place % len(tunings) :][:1]
        for tuning in chosen:
            yield Build(case, arch, tuning)


def carried() -> Iterator[Build]:
    """Some families on newer architectures."""
    for arch in CARRIERS:
        for family in (0, 8, 11, 15, 16):
            case = case_of(family, "sm_89")
            yield Build(case, arch, tunings_of(case)[-1])


def compiled(builds: list[Build], kind: Kind) -> list[Binary]:
    return compile_many([workshop().program(build.spec, kind) for build in builds])


def over_budget(build: Build, binary: Binary) -> str:
    """What a kernel takes more of than it may, or nothing."""
    (usage,) = binary.usage
    if usage.stack or usage.spill_stores or usage.spill_loads:
        return f"{build}: {usage}"
    limits = build.case.profile.limits
    shape = build.spec.launch(Problem(m=8192), layer_of(build.case))
    shared = usage.shared + shape.shared_bytes
    if shared > limits.smem_block_bytes or shared * build.tuning.ctas > limits.smem_sm_bytes:
        return f"{build}: {shared} bytes of shared memory, {limits}"
    if usage.registers * build.tuning.threads * build.tuning.ctas > REGISTERS:
        return f"{build}: {usage.registers} registers"
    return ""


@pytest.mark.parametrize("family", range(len(FAMILIES)), ids=lambda f: "-x-".join(FAMILIES[f][:2]))
def test_a_family_compiles_lean_for_its_architectures(family: int) -> None:
    builds = list(builds_of(family))
    binaries = compiled(builds, "cubin")
    found = [over_budget(*pair) for pair in zip(builds, binaries, strict=True)]
    assert not any(found), "\n".join(filter(None, found))


def test_every_architecture_has_families_of_each_kind_of_operand() -> None:
    for arch in PROFILES:
        own = [FAMILIES[family] for family in range(len(FAMILIES)) if arch in archs_of(family)]
        operands = {activation.partition("-")[0] for _, activation, _ in own}
        assert operands >= ({"", "s8", "s4"} if arch in ("sm_75", "sm_80") else {"", "s8"}), arch


def test_newer_architectures_carry_the_kernels() -> None:
    builds = list(carried())
    binaries = compiled(builds, "cubin")
    spilled = [
        f"{build}: {binary.usage[0]}"
        for build, binary in zip(builds, binaries, strict=True)
        if binary.usage[0].stack or binary.usage[0].spill_stores
    ]
    assert not spilled, "\n".join(spilled)


@pytest.mark.parametrize(("activation", "accumulate", "generation"), INSTRUCTIONS)
def test_the_matrix_instruction_is_the_one_that_was_meant(
    activation: str, accumulate: str, generation: int
) -> None:
    quantized = number_format(activation).bits < 16
    first = 89 if activation.startswith("e") else generation
    archs = [arch for arch in PROFILES if int(arch[3:]) >= first]
    archs = archs[:1] if generation == 75 else archs
    weight = f"{activation}-channel-f32" if quantized else "u4-channel-f32"
    builds = [
        Build(case, arch, tunings_of(case)[0])
        for arch in archs
        for case in [
            Case(
                source=PROFILES[arch],
                weight=weight,
                activation=f"{activation}-token-f32" if quantized else "",
                dtype="f16" if quantized else activation,
                accumulate=accumulate,
            )
        ]
    ]
    for build, binary in zip(builds, compiled(builds, "ptx"), strict=True):
        found = set(_MMA.findall(binary.data.decode()))
        assert found == {INSTRUCTIONS[activation, accumulate, generation]}, build


def test_every_choice_of_the_backend_fits_the_device() -> None:
    """Plans alone, no compiler: shared memory and threads of every candidate, on every device."""
    for arch, profile in PROFILES.items():
        for family in range(len(FAMILIES)):
            case = case_of(family, arch)
            if case.why_not() is not None:
                continue
            backend, layer = backend_of(case), layer_of(case)
            for m in (1, 64, 4096):
                problem = Problem(m=m)
                for tuning in backend.candidates(layer, case.compute, problem):
                    assert isinstance(tuning, MmaTuning)
                    spec = backend.kernel(layer, case.compute, tuning)
                    shape = spec.launch(problem, layer)
                    assert shape.shared_bytes <= case.profile.limits.smem_block_bytes, profile
                    assert shape.block[0] == tuning.threads <= 1024
