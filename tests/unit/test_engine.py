"""Kernels of a backend under QuantLinear, matmul and prepare: a small one, in the simulator."""

from __future__ import annotations

import copy
import dataclasses
import io

import core_oracle as oracle
import pytest
import torch
from fake_engine import A100, L40S, T4, fake, product, routed
from fake_kernels import FakeBackend, FakeTuning

from humming import QuantLinear, matmul
from humming.backend import KernelSpec, PackedWeight, RepackSpec
from humming.configs import ComputeConfig, GemmKind, TuningConfig
from humming.engine import Site
from humming.engine.packing import packed_tensors, repacked
from humming.errors import ConfigError, LayoutMismatch, UnsupportedError
from humming.formats.activation import ActivationScheme
from humming.formats.table import number_format
from humming.layer import prepare
from humming.selection import find_device

pytestmark = [pytest.mark.compile, pytest.mark.usefixtures("fake")]
__all__ = ["fake"]

N, K, E = 12, 64, 4
LIMITS = {torch.float16: 1e-3, torch.bfloat16: 4e-3, torch.float32: 1e-5}


def layer(scheme="u4+z-g16-f16", experts=0, **options) -> QuantLinear:
    names = ("activation", "compute", "device", "profile", "tuning")
    more = {name: options.pop(name) for name in names if name in options}
    weight = oracle.random_weight(scheme, N, options.pop("k", K), experts, **options)
    return QuantLinear(weight, backend="fake", **{"device": A100, **more})


def check(found: torch.Tensor, wanted: torch.Tensor, limit: float | None = None) -> None:
    limit = LIMITS[found.dtype] if limit is None else limit
    assert found.is_contiguous()
    assert found.shape == wanted.shape
    flat, expected = found.reshape(-1, found.shape[-1]), wanted.reshape(-1, found.shape[-1])
    skipped = (expected == 0).all(dim=1)
    assert torch.equal(flat[skipped], torch.zeros_like(flat[skipped]))
    whole, worst = oracle.relative_errors(flat, expected)
    assert whole <= limit
    assert worst <= 3 * limit


# -- dense -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", [(K,), (1, K), (5, K), (2, 3, K), (20, K)])
def test_a_kernel_gives_what_the_formula_says(shape, dtype):
    module = layer(bias=torch.float32)
    x = torch.randn(shape).to(dtype)
    found = module(x)
    assert found.dtype == dtype
    check(found, product(x.view(-1, K), module.weight).view(*shape[:-1], N))
    assert torch.equal(matmul(x, module.weight, backend="fake", device=A100), found)
    assert module.prepare(dtype).backend.name == "fake"


@pytest.mark.parametrize("scheme", ["u4-g16-f16", "s8-channel-f32", "nvfp4", "mxfp4", "fp8"])
@pytest.mark.parametrize("act_order", [False, True])
def test_every_packed_tensor_reaches_its_argument(scheme, act_order):
    module = layer(scheme, act_order=act_order)
    x = torch.randn(3, K).half()
    check(module(x), product(x, module.weight))


@pytest.mark.parametrize("shape", [(0, K), (3, 0, K)])
def test_no_rows_launch_nothing(shape):
    module = layer()
    assert module(torch.zeros(shape).half()).shape == (*shape[:-1], N)
    kernels = module.prepare(torch.float16).kernels
    assert kernels is not None
    assert not kernels._kernels


@pytest.mark.parametrize("k", [60, 63])
def test_rows_that_no_copy_could_load_are_padded(k):
    module = layer("u4-g16-f16", k=k)
    x = torch.randn(5, k).half()
    check(module(x), product(x, module.weight))


def test_strided_and_misaligned_activations_give_the_same_bits():
    module, x = layer(), torch.randn(5, K).half()
    moved = torch.empty(5 * K + 1, dtype=torch.float16)[1:].view(5, K).copy_(x)
    assert moved.data_ptr() % 16
    wide = torch.cat([x, x], dim=1)[:, :K]
    for other in (moved, wide, x.T.contiguous().T, x.flip(0).flip(0)):
        assert torch.equal(module(other), module(x))


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.randn(2, K + 1), r"a last dimension of k=64"),
        (torch.tensor(1.0), "a last dimension of k=64"),
        (torch.ones(2, K, device="meta"), "a tensor on cpu, where the weight is"),
    ],
)
def test_activations_that_do_not_fit_are_refused_also_on_the_fast_path(x, message):
    module = layer()
    module(torch.randn(2, K).half())
    with pytest.raises(ConfigError, match=message):
        module(x.half())


# -- quantized activations -------------------------------------------------------------------------

ACTIVATIONS = [
    "int8",
    "s8-g32-f16",
    "fp8",
    "fp8-block",
    "mxfp8",
    "e4m3fn-g32-e4m3fn-token",
    "e4m3fn-tensor-f32",
    "int4",
]


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_quantized_activations_are_multiplied_as_the_reference_quantizes_them(name):
    module = layer("u3-g64-f16", activation=name, device=L40S, k=160)
    x = oracle.realistic_activations(5, 160).half()
    x[3] = 0
    scheme = ActivationScheme.parse(name)
    check(module(x), product(x, module.weight, scheme))


@pytest.mark.parametrize("name", ["int8", "s8-g32-f16", "fp8", "e4m3fn-g32-e4m3fn-token", "int4"])
def test_a_row_with_a_nan_is_nan_and_no_other(name):
    module = layer("u3-g64-f16", activation=name, device=L40S)
    x = torch.randn(4, K).half()
    whole = module(x)
    x[1, 7] = torch.nan
    found = module(x)
    assert found[1].isnan().all()
    kept = torch.tensor([0, 2, 3])
    assert torch.equal(found[kept], whole[kept])


def test_a_stored_scale_is_used():
    weight = oracle.random_weight("fp8", N, K, activation="fp8-static")
    module = QuantLinear(weight, backend="fake", device=L40S)
    x = torch.randn(4, K).half()
    check(module(x), product(x, weight, weight.activation))


def test_pre_quant_scale_multiplies_first():
    weight = oracle.random_weight("u4-g32-f16", N, K)
    weight = weight.replace(pre_quant_scale=torch.linspace(0.5, 2, K))
    x = torch.randn(4, K).half()
    for activation in (None, "int8"):
        module = QuantLinear(weight, backend="fake", device=A100, activation=activation)
        scheme = None if activation is None else ActivationScheme.parse(activation)
        check(module(x), product(x, weight, scheme))


def test_bf16_on_a_device_without_it_is_refused_or_computed_as_asked():
    x = torch.randn(4, K).bfloat16()
    with pytest.raises(UnsupportedError, match="bf16 activations need bf16 tensor cores"):
        layer(device=T4)(x)
    module = layer(device=T4, activation="f16")
    found = module(x)
    assert found.dtype == torch.bfloat16
    check(found, product(x, module.weight))
    found = module(x.float())
    assert found.dtype == torch.float32
    check(found, product(x, module.weight))


# -- experts ---------------------------------------------------------------------------------------

IDS = [[0, 1], [3, -1], [1, 0], [3, 3], [-1, -1], [0, 99]]


def calls(dtype: torch.dtype = torch.float16) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Keyword to activations and routing: expert 2 gets no row, some rows belong to none."""
    x = torch.randn(7, K).to(dtype)
    return {
        "expert_ids": (x[:6], torch.tensor(IDS)),
        "expert_offsets": (x, torch.tensor([0, 2, 5, 5, 6])),
        "expert_counts": (torch.randn(E, 6, K).to(dtype), torch.tensor([2, 6, 0, 1])),
    }


@pytest.mark.parametrize("wide", [True, False])
@pytest.mark.parametrize("kind", ["expert_ids", "expert_offsets", "expert_counts"])
def test_experts_compute_their_rows_and_all_others_are_zero(kind, wide):
    module = layer("mxfp4", E, bias=torch.float32)
    x, numbers = calls()[kind]
    numbers = numbers if wide else numbers.int()
    check(module(x, **{kind: numbers}), routed(x, module.weight, **{kind: numbers}))


def test_routing_lies_where_activations_do():
    module = layer("mxfp4", E)
    x, ids = calls()["expert_ids"]
    with pytest.raises(ConfigError, match="expert_ids='meta': expected a tensor on cpu, as x"):
        module(x, expert_ids=ids.to("meta"))


@pytest.mark.parametrize("top_k", [1, 2])
def test_a_choice_may_have_a_row_of_its_own(top_k):
    module = layer("mxfp4", E)
    x, ids = torch.randn(6, top_k, K).half(), torch.tensor(IDS)[:, :top_k].contiguous()
    check(module(x, expert_ids=ids), routed(x, module.weight, expert_ids=ids))


@pytest.mark.parametrize("activation", ["int8", "e4m3fn-g32-f32", "fp8-static"])
@pytest.mark.parametrize("kind", ["expert_ids", "expert_offsets", "expert_counts"])
def test_a_row_is_scaled_as_its_expert_says(kind, activation):
    weight = oracle.random_weight("u4-g32-f16", N, K, E, activation=activation)
    scales = torch.rand(E, K) + 0.5
    weight = weight.replace(pre_quant_scale=scales)
    if weight.input_scale is not None:
        weight = weight.replace(input_scale=torch.tensor([0.02, 0.05, 0.03, 0.04]))
    module = QuantLinear(weight, backend="fake", device=L40S)
    x, numbers = calls()[kind]
    wanted = routed(x, weight, weight.activation, **{kind: numbers})
    check(module(x, **{kind: numbers}), wanted)


def test_experts_with_equal_numbers_need_no_rows_of_their_own():
    weight = oracle.random_weight("fp8", N, K, E, activation="fp8-static")
    weight = weight.replace(pre_quant_scale=torch.linspace(0.5, 2, K).expand(E, K).contiguous())
    kernels = prepare(weight, torch.float16, backend="fake", device=L40S).kernels
    assert kernels is not None
    assert not kernels.operand.by_expert
    x, ids = calls()["expert_ids"]
    check(kernels(x, expert_ids=ids), routed(x, weight, weight.activation, expert_ids=ids))


def test_no_rows_and_no_choices_give_nothing_or_zeros():
    module = layer("mxfp4", E)
    none, ids = torch.zeros(0, K).half(), torch.zeros(0, 2, dtype=torch.int64)
    assert module(none, expert_ids=ids).shape == (0, 2, N)
    assert module(none, expert_offsets=torch.zeros(5, dtype=torch.int32)).shape == (0, N)
    counts = torch.zeros(E, dtype=torch.int32)
    assert module(torch.zeros(E, 0, K).half(), expert_counts=counts).shape == (E, 0, N)
    x = torch.randn(E, 3, K).half()
    assert not module(x, expert_counts=counts).any()
    assert not module(x[0], expert_ids=torch.full((3, 2), -1)).any()


def test_one_dynamic_scale_over_the_rows_of_an_expert_is_refused():
    with pytest.raises(UnsupportedError, match="one dynamic scale over all rows of an expert"):
        layer("mxfp4", E, activation="e4m3fn-g32-f32-tensor", device=L40S).prepare(torch.float16)


# -- the packed weight -----------------------------------------------------------------------------


def test_layers_that_read_the_same_layout_share_one_packed_weight():
    module = layer("mxfp4", E)
    for dtype in (torch.float16, torch.bfloat16):
        for kind in (GemmKind.INDEXED, GemmKind.GROUPED_MASKED):
            module.prepare(dtype, kind)
    assert len(FakeBackend.packed) == 1
    module.half()
    module.prepare(torch.float16)
    assert len(FakeBackend.packed) == 2


def test_other_numbers_in_the_same_layer_are_packed_anew():
    module, other = layer(bias=torch.float16), layer(bias=torch.float16, seed=9)
    x = torch.randn(3, K).half()
    before, wanted = module(x), other(x)
    twin = copy.deepcopy(module)
    module.load_state_dict(other.state_dict())
    assert torch.equal(module(x), wanted)
    assert torch.equal(twin(x), before)
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    assert torch.equal(torch.load(file, weights_only=False)(x), wanted)


@pytest.mark.parametrize("scheme", ["u3-g32-f16", "u4+z-g16-f16", "u7-channel-f32"])
@pytest.mark.parametrize("experts", [0, E])
def test_a_kernel_lays_codes_out_as_torch_does(scheme, experts):
    weight = oracle.random_weight(scheme, N, K, experts, bias=torch.float32)
    found = find_device(A100)
    backend, site = FakeBackend(found.profile), Site.of(found)
    config = prepare(weight, torch.float16, backend="fake", device=A100).layer
    spec = backend.repack(weight, config)
    assert isinstance(spec, RepackSpec)
    wanted = packed_tensors(backend, weight, config, site)
    made = repacked(spec, weight, site)
    assert made.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert torch.equal(made[name], tensor), name


def test_a_packing_kernel_gets_only_what_its_backend_gave():
    weight = oracle.random_weight("u4-g16-f16", N, K)
    found = find_device(A100)
    spec = FakeBackend(found.profile).repack(weight, None)
    assert spec is not None
    lacking = dataclasses.replace(spec, values={"k": K})
    with pytest.raises(ConfigError, match=r"\['row_bytes', 'total'\]: expected arguments among"):
        repacked(lacking, weight, Site.of(found))


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda t: PackedWeight("fake/other/v1", t), LayoutMismatch, "fake/other/v1"),
        (
            lambda t: PackedWeight("fake/plain/v1", {**t, "table": t["scales"][0].T}),
            ConfigError,
            "packed table=.*contiguous tensor on cpu",
        ),
    ],
)
def test_a_packed_weight_that_kernels_would_misread_is_refused(change, error, message, monkeypatch):
    pack = FakeBackend.pack
    monkeypatch.setattr(FakeBackend, "pack", lambda *args: change(pack(*args).tensors))
    with pytest.raises(error, match=message):
        layer()(torch.randn(2, K).half())


def test_a_backend_may_give_a_weight_another_form_first(monkeypatch):
    """What fit() returns is what is packed, and its layer what kernels are asked for."""
    seen = []

    def fit(self, weight, config):
        seen.append(config)
        return weight.rows(0, 4), type(config)(**{**vars(config), "n": 4})

    monkeypatch.setattr(FakeBackend, "fit", fit)
    module = layer()
    x = torch.randn(2, K).half()
    kernels = module.prepare(torch.float16).kernels
    assert kernels is not None
    check(kernels.dense(x), product(x, module.weight.rows(0, 4)))
    assert [config.n for config in seen] == [N]
    assert FakeBackend.packed[-1].n == 4


# -- arguments -------------------------------------------------------------------------------------


def changed_args(monkeypatch, change) -> None:
    kernel = FakeBackend.kernel

    def other(*args) -> KernelSpec:
        spec = kernel(*args)
        return KernelSpec(**{**vars(spec), "args": tuple(change(list(spec.args)))})

    monkeypatch.setattr(FakeBackend, "kernel", other)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda args: [*args, args[0]._replace(name="surprise")], "surprise.*one of x, x_stride"),
        (lambda args: [args[0]._replace(kind="i64"), *args[1:]], 'argument x of .*kind "ptr"'),
        (lambda args: args[1:], "each of x, x_stride, out, m once"),
        (lambda args: [*args, args[0]], "each of x, x_stride, out, m once"),
    ],
)
def test_arguments_that_nobody_could_bind_are_refused(change, message, monkeypatch):
    changed_args(monkeypatch, change)
    with pytest.raises(ConfigError, match=message):
        layer()(torch.randn(2, K).half())


# -- what may be asked for -------------------------------------------------------------------------


@pytest.mark.parametrize("splits", [1, 2])
def test_a_forced_tuning_serves_every_size(splits):
    tuning = FakeTuning(threads=32, splits=splits)
    module = layer(tuning=tuning)
    for m in (1, 5, 17):
        x = torch.randn(m, K).half()
        check(module(x), product(x, module.weight))
        assert torch.equal(
            matmul(x, module.weight, backend="fake", device=A100, tuning=tuning), module(x)
        )
    kernels = module.prepare(torch.float16).kernels
    assert kernels is not None
    assert list(kernels._kernels) == [tuning]


def test_scratch_memory_serves_one_call_after_the_other():
    """Kernels leave their counters zero, so that the results of later calls are right as well."""
    one, other = layer(tuning=FakeTuning(splits=2)), layer(tuning=FakeTuning(splits=2), seed=3)
    for m in (1, 9, 2, 9, 3):
        for module in (one, other):
            x = torch.randn(m, K).half()
            check(module(x), product(x, module.weight))


def test_promises_reach_the_backend():
    x = torch.randn(1, K).half()
    loose, strict = layer(), layer(compute=ComputeConfig(batch_invariant=True))
    tunings = []
    for module in (loose, strict):
        module(x)
        kernels = module.prepare(torch.float16).kernels
        assert kernels is not None
        tunings += kernels._kernels
        assert kernels.planner.compute.gemm is GemmKind.DENSE
    assert [tuning.splits for tuning in tunings] == [2, 1]
    half = ComputeConfig(accumulate=number_format("f16"))
    with pytest.raises(UnsupportedError, match="only f16 has the range"):
        layer("u4-g32-f16", activation="int8", compute=half)(x)


def test_a_tuning_is_the_backends_own():
    with pytest.raises(ConfigError, match="a FakeTuning, for fake"):
        layer(tuning=TuningConfig()).prepare(torch.float16)
    weight = oracle.random_weight("u4-g16-f16", N, K)
    with pytest.raises(ConfigError, match="None: reference has no kernels to tune"):
        prepare(weight, torch.float16, backend="reference", tuning=FakeTuning())


def test_kernels_need_something_that_launches_them():
    weight = oracle.random_weight("u4-g16-f16", N, K)
    with pytest.raises(UnsupportedError, match="device='sim:nvidia-a100' simulates a device"):
        prepare(weight, torch.float16, backend="fake", profile="nvidia-a100")


def test_tensors_are_where_the_device_has_them():
    weight = oracle.random_weight("u4-g16-f16", N, K).to("meta")
    with pytest.raises(ConfigError, match="a tensor on cpu, where sim computes"):
        prepare(weight, torch.float16, backend="fake", device=A100)


def test_a_backend_with_a_compiler_of_its_own_has_to_wait(monkeypatch):
    monkeypatch.setattr(FakeBackend, "compiler", lambda self: object())
    with pytest.raises(UnsupportedError, match="brings a compiler"):
        layer().prepare(torch.float16)
