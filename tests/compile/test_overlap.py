"""Kernels that may begin early wait for those before them, and touch nothing until then."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from gemm_matrix import Case
from wgmma_layers import H100, config_of

import humming
from humming.backend import KernelSpec
from humming.configs import GemmKind, TuningConfig
from humming.engine.workshop import workshop
from humming.expert_kernels import RowMask, combine_spec, gate_spec, gather_spec
from humming.formats.activation import ActivationScheme
from humming.formats.table import number_format
from humming.gating import Gating
from humming.jit import Binary, HeaderRoots, Program, compile_many
from humming.launching.kernel import CudaKernel
from humming.quantizer import QuantizeOptions, RowSource, quantize_spec
from humming.routing import align_spec, route_spec
from humming_sm75_sm89.backend import Sm75Sm89Backend
from humming_sm75_sm89.tuning import MmaTuning
from humming_sm90.backend import Sm90Backend
from humming_sm90.stream_tuning import StreamTuning
from humming_sm90.tuning import WgmmaTuning
from humming_sm90.wide_tuning import WideTuning

pytestmark = pytest.mark.compile

BF16, SWIGLU = number_format("bf16"), Gating.of("swiglu")
KINDS = GemmKind.DENSE, GemmKind.INDEXED
WAIT, BEGIN = "griddepcontrol.wait;", "griddepcontrol.launch_dependents;"
#: What reaches memory that other kernels may know. Prefetches and tensor maps' own don't.
TOUCHES = re.compile(
    r"\b(ld|ldu|st|atom|red|multimem)\.(?!shared|param|const|local)|\bcp\.async\.(?!bulk\.prefetch)"
    r"|\bcp\.reduce|\bret;|\bexit;"
)
LABEL, BRANCH = re.compile(r"^(\$?\w+):", re.MULTILINE), re.compile(r"\bbra(?:\.uni)?\s+(\$?\w+);")
#: Weights, activations, and the tunings of their products; with experts the first of them.
PRODUCTS: tuple[tuple[str, str, tuple[TuningConfig, ...]], ...] = (
    ("u4-g128-bf16", "bf16", (MmaTuning(), MmaTuning(splits=2), MmaTuning(min_run=2))),
    ("u4-g128-bf16", "bf16", (StreamTuning(),)),
    ("u4-g128-bf16", "bf16", (WideTuning(tokens=128), WideTuning(tokens=128, splits=2))),
    ("e4m3fn-b128x128-f32", "e4m3fn-g128-f32", (WgmmaTuning(), WgmmaTuning(splits=2))),
)


def core_specs(arch: str) -> list[KernelSpec]:
    """One of each kind of core's kernels."""
    scheme = ActivationScheme.parse("e4m3fn-g128-f32")
    sources = [QuantizeOptions(native=True, rows=rows) for rows in (RowSource.EVERY, RowSource.MAP)]
    return [
        *(align_spec(tile, False, arch) for tile in (0, 16)),
        *(route_spec(kind, True, arch) for kind in GemmKind if kind is not GemmKind.DENSE),
        *(gate_spec(SWIGLU, BF16, mask, True, arch) for mask in (RowMask.EVERY, RowMask.COUNTS)),
        *(gather_spec(BF16, whole, arch) for whole in (False, True)),
        *(combine_spec(BF16, True, True, arch, placed=placed) for placed in (False, True)),
        *(quantize_spec(scheme, BF16, 512, arch, options) for options in sources),
        quantize_spec(scheme, BF16, 9000, arch, QuantizeOptions(native=True, gating=SWIGLU)),
    ]


def product_spec(
    weight: str, x: str, kind: GemmKind, tuning: TuningConfig, device: str = H100
) -> KernelSpec:
    numbers = {"activation": x} if "-" in x else {"dtype": x}
    case = Case(source=device, weight=weight, n=2048, k=8192, kind=kind, bias=True, **numbers)
    backend = (Sm90Backend if device == H100 else Sm75Sm89Backend)(case.profile)
    return backend.kernel(config_of(case), case.compute, tuning)


@cache
def newest() -> tuple[tuple[KernelSpec, Binary], ...]:
    """All of them for a device on which kernels can begin early, as PTX."""
    specs = core_specs("sm_90a")
    for weight, x, tunings in PRODUCTS:
        for kind in KINDS:
            some = tunings[: None if kind is GemmKind.DENSE else 1]
            specs += [product_spec(weight, x, kind, tuning) for tuning in some]
    binaries = compile_many([workshop().program(spec, "ptx") for spec in specs])
    return tuple(zip(specs, binaries, strict=True))


def complaints(ptx: str) -> list[str]:
    """What is wrong with how a kernel waits."""
    body = re.sub(r"//.*", "", ptx[ptx.index(".entry") :])
    before, found, _ = body.partition(WAIT)
    if not found:
        return ["it never waits"]
    said = [
        f"before it waits: {line.strip()}" for line in before.splitlines() if TOUCHES.search(line)
    ]
    away = set(BRANCH.findall(before)) - set(LABEL.findall(before))
    return said + [f"it can pass by on its way to {label}" for label in sorted(away)]


def test_every_template_is_among_those_that_are_looked_at() -> None:
    packages = Path(humming.__file__).parents[3]
    entries = {
        f"{file.parents[1].name}/{file.name}"
        for file in packages.glob("*/src/*/templates/*.cu.j2")
        if "__global__" in file.read_text() or "extends" in file.read_text()
    }
    # A weight is repacked before anybody reads it: that kernel neither waits nor begins early.
    assert entries - {spec.template for spec, _ in newest()} == {"humming_sm75_sm89/repack.cu.j2"}


def test_kernels_wait_on_every_way_before_they_touch_memory() -> None:
    found = {
        f"{spec.name} {getattr(spec.context, 'tuning', '')}": said
        for spec, binary in newest()
        if (said := complaints(binary.data.decode()))
    }
    assert found == {}


def test_the_binary_says_that_its_kernel_waits_and_no_other_does() -> None:
    some = next(spec for spec, _ in newest() if spec.template.startswith("humming_sm90/wide"))
    cubins = compile_many(
        [workshop().program(spec, "cubin") for spec in (core_specs("sm_90a")[0], some)]
    )
    for binary in [*cubins, *(binary for _, binary in newest())]:
        assert CudaKernel(None, binary.data, "k").awaits  # type: ignore[arg-type]
    core = Path(humming.__file__).parent
    headers = HeaderRoots({"humming": core / "include" / "humming"})
    source = """
#include <humming/chunks.cuh>
#include <humming/gemm/weights.cuh>
extern "C" __global__ void k(int* out) { humming::let_next_begin(); *out = 1; }
"""
    program = Program(
        name="k", source=source, arch="sm_90a", headers=headers.closure(source, "k"), kind="cubin"
    )
    for kind in ("cubin", "ptx"):
        (binary,) = compile_many([replace(program, kind=kind)])
        assert not CudaKernel(None, binary.data, "k").awaits  # type: ignore[arg-type]


def test_products_of_experts_let_nobody_begin_before_their_end() -> None:
    early = {"dense": set(), "experts": set(), "core": set()}
    for spec, binary in newest():
        kind = getattr(spec.context, "kind", None)
        where = "core" if kind is None else "dense" if kind is GemmKind.DENSE else "experts"
        early[where].add(BEGIN in binary.data.decode())
    assert early == {"dense": {True}, "experts": {False}, "core": {True}}


@pytest.mark.parametrize("device", ["nvidia-t4", "nvidia-a100", "nvidia-l40s"])
def test_older_devices_have_nothing_of_it(device: str) -> None:
    x = "f16" if device == "nvidia-t4" else "bf16"
    specs = [product_spec(f"u4-g128-{x}", x, kind, MmaTuning(), device) for kind in KINDS]
    specs += core_specs(specs[0].arch)[::3] if device == "nvidia-l40s" else []
    for binary in compile_many([workshop().program(spec, "ptx") for spec in specs]):
        text = binary.data.decode()
        assert "griddepcontrol" not in text
        assert "prefetch" not in text
        assert not CudaKernel(None, binary.data, "k").awaits  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("ptx", "said"),
    [
        (".entry k() { griddepcontrol.wait; ld.global.u32 %r1, [%r2]; ret; }", []),
        (".entry k() { ret; }", ["it never waits"]),
        (".entry k() {\n@%p bra $L1;\ngriddepcontrol.wait;\n$L1: ret; }",
         ["it can pass by on its way to $L1"]),
        (".entry k() {\n@%p bra $L1;\n$L1:\nst.shared.u32 [%r1], 0;\ngriddepcontrol.wait; }", []),
        (".entry k() {\n@%p ret;\ngriddepcontrol.wait; }", ["before it waits: @%p ret;"]),
        (".entry k() {\nld.global.nc.f32 %f1, [%r1];\ngriddepcontrol.wait; }",
         ["before it waits: ld.global.nc.f32 %f1, [%r1];"]),
        (".entry k() {\nld.u32 %f1, [%r1];\ngriddepcontrol.wait; }",
         ["before it waits: ld.u32 %f1, [%r1];"]),
    ],
)  # fmt: skip
def test_the_check_sees_what_is_wrong(ptx: str, said: list[str]) -> None:
    assert complaints(ptx) == said
