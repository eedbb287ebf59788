"""What the backend sm90 says before anything runs: refusals, layouts, choices, arguments."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from gemm_data import random_weight, weight_of
from gemm_matrix import Case
from wgmma_layers import H100, config_of

from humming import plugins
from humming.backend import UNTILED, Arg, Evidence, KernelSpec, LaunchShape, Problem, TensorMap
from humming.configs import ComputeConfig, GemmKind
from humming.engine.arguments import bind
from humming.errors import ConfigError, UnsupportedError
from humming_sm90.backend import Sm90Backend
from humming_sm90.kernel import box_rows
from humming_sm90.layout import layout_of
from humming_sm90.tuning import WgmmaTuning

PLAIN = Case(source=H100, weight="e4m3fn-channel-f32", activation="e4m3fn-g128-f32")
BLOCKS = replace(PLAIN, weight="e4m3fn-b128x128-f32")


def backend() -> Sm90Backend:
    return Sm90Backend(plugins.profiles()[H100])


def test_hoppers_get_these_kernels() -> None:
    for name, evidence in ((H100, Evidence.SIMULATED), ("nvidia-h200", Evidence.MEASURED)):
        profile = plugins.profiles()[name]
        assert Sm90Backend.refuse_device(profile) is None
        assert Sm90Backend.evidence(profile) is evidence
        assert Sm90Backend(profile).refuse(config_of(PLAIN), ComputeConfig()) is None


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({}, None),
        ({"weight": "s8-channel-f32", "activation": "s8-g128-f32"}, None),
        ({"weight": "e5m2-g128-f32"}, None),
        ({"weight": "s8+zf-g128-f32", "activation": "s8-token-f32"}, r"not s8\+zf weights by s8"),
        ({"act_order": True}, "columns in another order"),
        ({"kind": GemmKind.INDEXED}, None),
    ],
)
def test_refusals_say_what_is_missing(changes: Mapping[str, Any], sentence: str | None) -> None:
    case = replace(PLAIN, **changes)
    said = backend().refuse(config_of(case), case.compute)
    assert said is None if sentence is None else re.search(sentence, str(said))
    if sentence is not None and case.kind is GemmKind.DENSE:
        with pytest.raises(UnsupportedError, match=sentence):
            layout_of(config_of(case))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"weight": "e4m3fn-g64-f32"}, "weight groups of 64 inputs; scales are applied every 128"),
        ({"activation": "e4m3fn-g256-f32"}, "activation groups of 256 inputs"),
    ],
)
def test_other_groups_are_for_other_kernels(changes: Mapping[str, Any], sentence: str) -> None:
    case = replace(PLAIN, **changes)
    assert backend().refuse(config_of(case), case.compute) is None
    with pytest.raises(UnsupportedError, match=sentence):
        layout_of(config_of(case))


def test_a_packed_weight_is_its_rows_with_padding_panel_by_panel() -> None:
    case = replace(BLOCKS, n=300, k=392, bias=True, kind=GemmKind.GROUPED_MASKED)
    weight, layer = weight_of(case, "cpu"), config_of(case)
    packed = backend().pack(weight, layer)
    assert packed.layout == backend().layout(layer) == "sm90/panels64x128/scales128x128/v1"
    shapes = {name: tuple(tensor.shape) for name, tensor in packed.tensors.items()}
    assert shapes == {"weight": (4, 5, 4, 64, 128), "scales": (4, 4, 4), "bias": (4, 512)}
    codes = packed.tensors["weight"].transpose(2, 3).reshape(4, 320, 512)
    assert torch.equal(codes[:, :300, :392], weight.packed)
    assert int(codes[..., 392:].sum()) == int(codes[:, 300:].sum()) == 0
    scales = packed.tensors["scales"]
    assert torch.equal(scales[:, :, :3], weight.scales.transpose(1, 2))
    with pytest.raises(ConfigError, match="scheme"):
        backend().pack(weight, config_of(replace(case, weight="e4m3fn-channel-f32")))


def test_a_cut_inside_a_block_gets_scales_of_rows_and_one_inside_a_group_is_refused() -> None:
    generator = torch.Generator().manual_seed(1)
    weight = random_weight("e4m3fn-b128x128-f32", 384, 384, generator)
    rows, layer = weight.rows(64, 200), replace(config_of(BLOCKS), n=136, k=384)
    fit, fitted = backend().fit(rows, layer)
    assert str(fitted.weight) == "e4m3fn-g128-f32"
    assert fit.offset == (0, 0)
    assert torch.equal(fit.dequantize(), rows.dequantize())
    whole = weight.rows(128, 256)
    assert backend().fit(whole, replace(layer, n=128))[0] is whole
    with pytest.raises(UnsupportedError, match="64 columns into a group of 128"):
        backend().fit(weight.columns(64, 384), replace(layer, n=384, k=320))


def test_more_rows_get_wider_tiles() -> None:
    layer, compute = replace(config_of(PLAIN), n=8192, k=8192), ComputeConfig()

    def chosen(m: int) -> WgmmaTuning:
        problem = Problem(m=m)
        found = backend().candidates(layer, compute, problem)
        return min(found, key=lambda t: backend().cost(layer, compute, problem, t))

    assert [chosen(m).tile_n for m in (128, 256, 512, 4096)] == [64, 128, 256, 256]


def test_few_rows_of_experts_read_weights_in_wide_tiles() -> None:
    layer = replace(config_of(BLOCKS), n=4096, k=7168, experts=256)
    for kind in (GemmKind.GROUPED_CONTIGUOUS, GemmKind.INDEXED):
        compute = ComputeConfig(gemm=kind)
        for m in (8, 512, 8192, 65536):
            problem = Problem(m=m)
            costs = {
                t.tile_n: backend().cost(layer, compute, problem, t)
                for t in backend().candidates(layer, compute, problem)
            }
            assert min(costs, key=costs.__getitem__) == 256, m


def test_a_tuning_of_nonsense_and_one_that_does_not_fit_are_refused() -> None:
    for fields in ({"tile_n": 96}, {"stages": 1}, {"raster": 0}):
        with pytest.raises(ConfigError):
            WgmmaTuning(**fields)
    with pytest.raises(ConfigError, match="shared memory"):
        backend().kernel(config_of(PLAIN), ComputeConfig(), WgmmaTuning(tile_n=256, stages=5))


class Recorder:
    """A runtime that keeps what it is given."""

    name = "recorder"

    def __init__(self) -> None:
        self.fixed: list[Any] = []
        self.changed: tuple[Any, ...] = ()

    def prepare(
        self,
        kernel: object,
        kinds: Sequence[str],
        args: Sequence[object],
        options: Mapping[str, int],
        changing: Sequence[int] = (),
    ) -> Any:
        self.fixed = list(args)

        def launch(shape: LaunchShape, *changed: object) -> None:
            self.changed = changed

        return launch


def bound(spec: KernelSpec, runtime: Recorder, tensors: Mapping[str, torch.Tensor]) -> Any:
    layer = config_of(PLAIN)
    return bind(runtime, None, spec, layer, tensors, ("x_scales",))  # type: ignore[arg-type]


def test_tensor_maps_are_made_once_of_weights_and_per_call_of_activations() -> None:
    case, runtime = PLAIN, Recorder()
    weight, layer = weight_of(case, "cpu"), config_of(case)
    tensors = backend().pack(weight, layer).tensors
    spec = backend().kernel(layer, ComputeConfig(), WgmmaTuning(tile_n=128))
    kernel = bound(spec, runtime, tensors)
    names = [arg.name for arg in spec.args]
    described, tensor = runtime.fixed[names.index("weight")]
    assert tensor is tensors["weight"]
    assert described == TensorMap(
        element="uint8",
        dims=(128, 64, 9, 4, 1),
        strides=(128, 8192, 9 * 8192, 4 * 9 * 8192),
        box=(128, 64, 1, 2, 1),
        swizzle="b128",
        l2_bytes=256,
    )
    x, out = torch.zeros(5, 1120, dtype=torch.uint8), torch.zeros(5, 200)
    kernel.launch(spec.launch(Problem(m=5), layer), x, 1120, out, 5, None)
    (described, tensor), *others = runtime.changed
    assert tensor is x
    assert (described.dims, described.strides) == ((1104, 5), (1120,))  # without padding
    assert others == [1120, out, 5, None]


@pytest.mark.parametrize(
    ("kind", "rows", "box"),
    [
        (GemmKind.DENSE, 1, 8),
        (GemmKind.DENSE, 41, 48),
        (GemmKind.DENSE, 128, 128),
        (GemmKind.DENSE, 129, 64),
        (GemmKind.GROUPED_CONTIGUOUS, 8, 8),
        (GemmKind.GROUPED_CONTIGUOUS, 17 * 256, 16),
        (GemmKind.GROUPED_CONTIGUOUS, 49 * 256, 32),
        (GemmKind.GROUPED_CONTIGUOUS, 97 * 256, 64),
        (GemmKind.GROUPED_MASKED, 16, 8),
        (GemmKind.GROUPED_MASKED, 500, 128),
    ],
)
def test_a_box_has_no_more_rows_than_tiles_want(kind: GemmKind, rows: int, box: int) -> None:
    experts = 1 if kind is GemmKind.DENSE else 256
    layer = replace(config_of(PLAIN), experts=experts * (experts > 1))
    assert box_rows(kind, rows, experts) == box
    spec = backend().kernel(layer, ComputeConfig(gemm=kind), WgmmaTuning())
    all_rows = rows * experts if kind is GemmKind.GROUPED_MASKED else rows
    assert spec.maps["x"]((all_rows, layer.k), 1120).box == (128, box)


def test_rows_chosen_by_index_are_read_in_order() -> None:
    layer = replace(config_of(PLAIN), experts=4)
    compute = ComputeConfig(gemm=GemmKind.INDEXED)
    spec = backend().kernel(layer, compute, WgmmaTuning())
    assert spec.row_tile == UNTILED
    assert spec.args[0] == Arg("x", "map")
    assert {arg.name for arg in spec.args} >= {"slots", "groups"}
    assert sorted(spec.maps) == ["weight", "x"]


def test_a_map_must_be_described_and_not_everything_can_be_one() -> None:
    tensors = backend().pack(weight_of(PLAIN, "cpu"), config_of(PLAIN)).tensors
    spec = backend().kernel(config_of(PLAIN), ComputeConfig(), WgmmaTuning())
    with pytest.raises(ConfigError, match="a description of x, which is a tensor map"):
        bound(replace(spec, maps={}), Recorder(), tensors)
    args = tuple(Arg(a.name, "map") if a.name == "out" else a for a in spec.args)
    with pytest.raises(ConfigError, match='kind "ptr"'):
        bound(replace(spec, args=args), Recorder(), tensors)
