"""Warming up, what is then left to do, captures, scratch memory, and what binaries devices get."""

from __future__ import annotations

import threading

import core_oracle as oracle
import pytest
import torch
from fake_engine import A100, fake, kept
from fake_kernels import FakeTuning

from humming import QuantLinear
from humming.configs import GemmKind
from humming.engine import Site, Workshop, kernel_layer
from humming.engine.workspace import Workspaces
from humming.errors import CaptureError, CompileError, UnsupportedError
from humming.jit import Cache, KernelLibrary
from humming.launching import CudaRuntime
from humming.selection import find_device

pytestmark = [pytest.mark.compile, pytest.mark.usefixtures("fake")]
__all__ = ["fake"]

N, K, E = 12, 64, 4
F16 = torch.float16


@pytest.fixture
def cold(monkeypatch, tmp_path) -> Workshop:
    """A workshop that has made nothing yet, in the place of the shared one."""
    made = Workshop(KernelLibrary(Cache(tmp_path)))
    for module in ("kernel_layer", "aligning", "packing", "quantized"):
        monkeypatch.setattr(f"humming.engine.{module}.workshop", lambda: made)
    return made


def layer(experts=0, **options) -> QuantLinear:
    weight = oracle.random_weight("u4-g32-f16", N, K, experts)
    return QuantLinear(weight, backend="fake", device=A100, **options)


def names(made: Workshop) -> list[str]:
    return sorted(program.name for program in made._programs.values())


# -- warming up ------------------------------------------------------------------------------------


def test_after_warming_up_nothing_is_compiled(cold, monkeypatch, caplog):
    caplog.set_level("INFO", "humming.jit")
    module = layer()
    module.warm_up(F16, range(1, 33))
    assert names(cold) == ["fake.gemm.dense.f16_f16_1", "fake.gemm.dense.f16_f16_2"]
    (line,) = [record.getMessage() for record in caplog.records]
    assert "compiled 2 kernels for sm_80" in line
    monkeypatch.setenv("HUMMING_NO_JIT", "1")
    for m in (1, 4, 7, 32):
        module(torch.randn(m, K).half())
    assert len(caplog.records) == 1
    module.warm_up(F16)  # all sizes use the kernels that are there
    with pytest.raises(UnsupportedError, match=r"fake\.gemm\.dense\.bf16_bf16_1.*HUMMING_NO_JIT"):
        module.warm_up(torch.bfloat16, [16])


def test_indexed_layers_warm_up_what_sorts_their_rows_too(cold, monkeypatch):
    module = layer(E)
    module.warm_up(F16, [1, 8], top_k=2)
    assert names(cold) == [
        "fake.gemm.indexed.f16_f16_1",
        "fake.gemm.indexed.f16_f16_2",
        "humming.align_rows.i32_m4",
        "humming.align_rows.i64_m4",
    ]
    monkeypatch.setenv("HUMMING_NO_JIT", "1")
    ids = torch.zeros(8, 2, dtype=torch.int64)
    module(torch.randn(8, K).half(), expert_ids=ids)
    module(torch.randn(8, 2, K).half(), expert_ids=ids)
    module(torch.randn(1, K).half(), expert_ids=ids[:1].int())
    with pytest.raises(UnsupportedError, match="grouped_masked"):
        module.warm_up(F16, [1], gemm=GemmKind.GROUPED_MASKED)


@pytest.mark.parametrize("dtype", [F16, torch.bfloat16])
def test_layers_that_quantize_warm_up_what_does_it_too(cold, monkeypatch, dtype):
    module = layer(activation="int8")
    module.warm_up(dtype, [1])
    name = {F16: "f16", torch.bfloat16: "bf16"}[dtype]
    assert names(cold)[1:] == [f"humming.quantize.{name}_s8_token_f32_32x1x8"]
    monkeypatch.setenv("HUMMING_NO_JIT", "1")
    capture(monkeypatch)
    for x in (torch.randn(1, K), torch.randn(K, 1).T, torch.randn(1, 1, K)):
        assert module(x.to(dtype)).shape == (*x.shape[:-1], N)


def test_layers_share_kernels(cold):
    layer().warm_up(F16, [1])
    before = dict(cold._loaded)
    layer().warm_up(F16, [2])
    assert cold._loaded == before
    assert len(before) == 1


def test_the_reference_backend_has_nothing_to_warm_up():
    weight = oracle.random_weight("u4-g32-f16", N, K)
    QuantLinear(weight, backend="reference").warm_up(F16)


def test_a_template_that_is_not_there_is_named(cold, monkeypatch):
    from fake_kernels import FakeBackend

    kernel = FakeBackend.kernel
    for template in ("fake_kernels/other.cu.j2", "no_such_package/gemm.cu.j2"):

        def other(*args, template=template):
            spec = kernel(*args)
            return type(spec)(**{**vars(spec), "template": template})

        monkeypatch.setattr(FakeBackend, "kernel", other)
        with pytest.raises(CompileError, match=f"there is no template {template}"):
            layer().warm_up(F16, [1])


# -- captures --------------------------------------------------------------------------------------


def capture(monkeypatch, on: bool = True) -> None:
    monkeypatch.setattr(Site, "capturing", lambda self: on)


def test_a_capture_that_needs_a_kernel_is_refused_by_its_name(cold, monkeypatch):
    module, x = layer(E), torch.randn(3, K).half()
    ids = torch.zeros(3, 2, dtype=torch.int64)
    module.prepare(F16)
    capture(monkeypatch)
    with pytest.raises(CaptureError, match=r"fake\.gemm\.indexed\.f16_f16_1.*warm up first"):
        module(x, expert_ids=ids)
    assert not cold.library._known, "nothing may be compiled in a capture"
    capture(monkeypatch, False)
    whole = module(x, expert_ids=ids)
    capture(monkeypatch)
    assert torch.equal(module(x, expert_ids=ids), whole)


def test_sizes_of_a_warmed_range_can_be_captured(cold, monkeypatch):
    module = layer()
    module.warm_up(F16, range(1, 17))
    capture(monkeypatch)
    for m in (1, 3, 16):
        assert module(torch.randn(m, K).half()).shape == (m, N)


def test_a_kernel_that_another_layer_has_loaded_can_be_captured(cold, monkeypatch):
    layer().warm_up(F16, [8])
    module = layer()
    module.prepare(F16)
    capture(monkeypatch)
    assert module(torch.randn(8, K).half()).shape == (8, N)


# -- scratch memory --------------------------------------------------------------------------------


def test_each_stream_and_each_backend_has_scratch_memory_of_its_own(monkeypatch):
    memory, site = Workspaces(), Site.of(find_device(A100))
    first = memory.take(site, "a", 100)
    assert not first.any()
    assert memory.take(site, "a", 50) is first
    assert memory.take(site, "b", 100) is not first
    larger = memory.take(site, "a", 1000)
    assert larger.numel() >= 1000
    assert memory.take(site, "a", 100) is larger
    found = []
    thread = threading.Thread(target=lambda: found.append(memory.take(site, "a", 100)))
    thread.start()
    thread.join()
    assert found[0] is not larger
    capture(monkeypatch)
    assert memory.take(site, "a", 100) is not memory.take(site, "a", 100)


def test_a_graph_gets_scratch_memory_that_is_zero_in_every_replay(monkeypatch):
    module = layer(tuning=FakeTuning(splits=2))
    x = torch.randn(3, K).half()
    whole = module(x)
    taken = []
    take = Workspaces.take

    def watched(self, *args):
        taken.append(take(self, *args))
        return taken[-1]

    monkeypatch.setattr(Workspaces, "take", watched)
    capture(monkeypatch)
    assert torch.equal(module(x), whole)
    assert torch.equal(module(x), whole)
    assert taken[0] is not taken[1]


# -- what a device gets ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arch", "capability", "kind"),
    [
        ("sm_80", (8, 0), "cubin"),
        ("sm_80", (8, 6), "cubin"),
        ("sm_86", (8, 0), "ptx"),
        ("sm_75", (9, 0), "ptx"),
        ("sm_89", (9, 0), "ptx"),
        ("sm_90a", (9, 0), "cubin"),
        ("sm_120a", (12, 1), "ptx"),
        ("sm_121a", (12, 1), "cubin"),
        ("something", (9, 0), "cubin"),
        ("sm_80", (0, 0), "cubin"),
    ],
)
def test_machine_code_goes_where_it_runs_and_ptx_where_it_is_translated(arch, capability, kind):
    assert Site(CudaRuntime(), torch.device("cuda:0"), capability).kind(arch) == kind
    simulated = Site.of(find_device(A100))
    assert simulated.kind(arch) == "ptx"


def test_kernels_of_a_profile_run_where_the_device_says():
    """A simulated A100 with the facts of a T4 runs PTX for a T4."""
    weight = oracle.random_weight("u4-g32-f16", N, K)
    module = QuantLinear(weight, backend="fake", device=A100, profile="nvidia-t4")
    x = torch.randn(3, K).half()
    same = QuantLinear(weight, backend="fake", device=A100)
    assert torch.equal(module(x), same(x))
    kernels = module.prepare(F16).kernels
    assert kernels is not None
    assert {kernel.spec.arch for kernel in kernels._kernels.values()} == {"sm_75"}


def test_the_workshop_of_the_process_is_made_once():
    assert kernel_layer.workshop is kept
    from humming.engine.workshop import workshop

    assert workshop() is workshop()
