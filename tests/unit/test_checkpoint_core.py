"""Checkpoint and load_checkpoint(): what belongs to a layer, what is left over, what is read."""

from __future__ import annotations

import json

import core_oracle as oracle
import pytest
import torch
from humming_files import write_directory, write_json
from hypothesis import given
from hypothesis import strategies as st

from humming import load_checkpoint
from humming.checkpoints.base import CheckpointLoader, LayerPlan, Source, matches, split_name
from humming.checkpoints.checkpoint import Checkpoint
from humming.checkpoints.store import TensorInfo
from humming.errors import CheckpointError, HummingError
from humming.formats.scheme import WeightScheme

SCHEME = WeightScheme.parse("u4+z-g8-f16")
SPELLED = {torch.uint8: "U8", torch.float16: "F16", torch.float32: "F32", torch.int32: "I32"}


class SpyStore:
    """Tensors in memory that remember what was read."""

    def __init__(self, tensors):
        self.tensors, self.read = dict(tensors), []

    def __iter__(self):
        return iter(self.tensors)

    def __contains__(self, name):
        return name in self.tensors

    def info(self, name):
        tensor = self.tensors[name]
        return TensorInfo(SPELLED[tensor.dtype], tuple(tensor.shape))

    def get(self, name):
        self.read.append(name)
        return self.tensors[name]


class FakeLoader(CheckpointLoader):
    """One layer per NAME.codes, of the standard form's own tensors."""

    quant_methods = ("fake",)

    def plan(self):
        for name in self.config.get("layers", self.layers_with("codes")):
            n = self.store.info(f"{name}.codes").shape[0] if f"{name}.codes" in self.store else 4
            yield LayerPlan(
                name=name,
                n=self.config.get("n", n),
                k=16,
                scheme=SCHEME,
                tensors=(f"{name}.codes", f"{name}.s", f"{name}.z"),
            )

    def load(self, plan):
        packed, scales, zeros = (self.store.get(name) for name in plan.tensors)
        weight = oracle.random_weight(SCHEME, packed.shape[0], 16)
        return weight.replace(packed=packed, scales=scales, zeros=zeros)


def tensors_of(*names: str, n: int = 4) -> dict[str, torch.Tensor]:
    out = {}
    for seed, name in enumerate(names):
        w = oracle.random_weight(SCHEME, n, 16, seed=seed)
        out |= {f"{name}.codes": w.packed, f"{name}.s": w.scales, f"{name}.z": w.zeros}
    return out


def opened(tensors, loader=FakeLoader, family="fake", **config) -> tuple[Checkpoint, SpyStore]:
    store = SpyStore(tensors)
    source = Source(path="model", store=store, quant_config=config)
    return Checkpoint(source, loader(source) if loader else None, family), store


def test_nothing_is_read_before_it_is_asked_for():
    checkpoint, store = opened({**tensors_of("a", "b", "c"), "head.weight": torch.ones(3, 16)})
    assert list(checkpoint) == ["a", "b", "c"]
    assert len(checkpoint) == 3
    assert "a" in checkpoint
    assert checkpoint.plan("b").n == 4
    assert checkpoint.tensor_names() == ("head.weight",)
    assert {n: str(i) for n, i in checkpoint.unquantized.items()} == {"head": "F32 [3, 16]"}
    assert store.read == []
    weight = checkpoint["b"]
    assert store.read == ["b.codes", "b.s", "b.z"]
    assert torch.equal(weight.packed, store.tensors["b.codes"])
    checkpoint.tensor("head.weight")
    assert store.read[3:] == ["head.weight"]


def test_a_layer_that_is_not_there_is_a_key_error_that_says_what_it_is():
    checkpoint, _ = opened({**tensors_of("a"), "head.weight": torch.ones(3, 16)})
    with pytest.raises(KeyError, match="'head' is left unquantized: model"):
        checkpoint["head"]
    with pytest.raises(KeyError, match="'z' is not in this checkpoint: model"):
        checkpoint["z"]
    assert checkpoint.get("z") is None


def test_a_tensor_that_a_layer_needs_and_the_file_lacks_is_an_error():
    tensors = tensors_of("a")
    del tensors["a.z"]
    with pytest.raises(CheckpointError, match=r"model: tensor 'a\.z': missing; layer 'a' needs it"):
        opened(tensors)


def test_a_layer_described_twice_is_an_error():
    with pytest.raises(CheckpointError, match="layer 'a' is described twice"):
        opened(tensors_of("a"), layers=["a", "a"])


LEFT = torch.ones(4, 2, dtype=torch.uint8)


@pytest.mark.parametrize(
    "suffix",
    ["qweight", "qzeros", "scales", "g_idx", "weight_packed", "weight_scale", "weight_scale_inv",
     "weight_scale_2", "weight_zero_point", "weight_global_scale", "input_scale", "weight",
     "pre_quant_scale", "weight_shape", "weight_scale_1"],
)  # fmt: skip
def test_a_tensor_left_over_that_looks_quantized_is_an_error(suffix):
    if suffix == "weight_scale_1":  # no family writes it: nothing to guess
        opened({**tensors_of("a"), f"b.{suffix}": LEFT})
        return
    about = "the fake config does not say that 'b' is quantized"
    with pytest.raises(CheckpointError, match=rf"tensor 'b\.{suffix}': U8 \[4, 2\].*{about}"):
        opened({**tensors_of("a"), f"b.{suffix}": LEFT})
    with pytest.raises(CheckpointError, match=r"layer 'a' \(u4\+z-g8-f16\) has no use for it"):
        opened({**tensors_of("a"), f"a.{suffix}": LEFT})
    with pytest.raises(CheckpointError, match="there is no quantization config"):
        opened({f"b.{suffix}": LEFT}, loader=None, family="unquantized")


@pytest.mark.parametrize(
    "name",
    [
        "attn.k_scale",
        "attn.v_scale",
        "attn.q_scale",
        "kv_scale",
        "norm.weight",
        "embed.weight",
        "rope.inv_freq",
        "a.bias",
    ],
)
def test_what_belongs_to_no_product_is_left_alone(name):
    checkpoint, _ = opened({**tensors_of("a"), name: torch.ones(16)})
    assert checkpoint.tensor_names() == (name,)
    assert not checkpoint.unquantized


def test_a_layer_that_reads_otherwise_than_planned_is_an_error():
    checkpoint, _ = opened(tensors_of("a"), n=5)
    with pytest.raises(CheckpointError, match=r"was planned as u4\+z-g8-f16 \[5, 16\], read as"):
        checkpoint["a"]


@pytest.mark.parametrize(
    ("name", "tensor", "message"),
    [
        ("a.s", torch.ones(4, 3, dtype=torch.float16), r"torch\.float16 \[4, 2\]"),
        ("a.s", torch.ones(4, 2), r"torch\.float16 \[4, 2\]"),
        ("a.codes", torch.ones(4, 9, dtype=torch.uint8), r"torch\.uint8 \[4, 8\]"),
        ("a.z", torch.full((4, 2), 16, dtype=torch.uint8), "0 to 15"),
    ],
)
def test_tensors_that_do_not_fit_are_a_checkpoint_error_that_names_the_layer(name, tensor, message):
    checkpoint, _ = opened({**tensors_of("a"), name: tensor})
    with pytest.raises(CheckpointError, match=f"model: layer 'a': .*{message}"):
        checkpoint["a"]


def test_experts_are_stacked_in_the_order_of_their_numbers():
    names = [f"moe.experts.{e}.up" for e in (0, 10, 2, 1, 3, 4, 5, 6, 7, 8, 9)]
    checkpoint, store = opened(tensors_of(*names))
    assert checkpoint.expert_groups() == {
        ("moe.experts", "up"): [f"moe.experts.{e}.up" for e in range(11)]
    }
    assert store.read == []
    weight = checkpoint.experts("moe.experts", "up")
    assert weight.shape == (11, 4, 16)
    for e in range(11):
        assert torch.equal(weight.packed[e], store.tensors[f"moe.experts.{e}.up.codes"])
    with pytest.raises(KeyError, match=r"no quantized moe\.experts\.INDEX\.down in model"):
        checkpoint.experts("moe.experts", "down")


def test_experts_may_stand_at_the_top_of_the_file():
    checkpoint, _ = opened(tensors_of("experts.0.up", "experts.1.up"))
    assert list(checkpoint.expert_groups()) == [("experts", "up")]


@pytest.mark.parametrize(("present", "missing"), [((0, 2), 1), ((1, 2), 0)])
def test_a_hole_among_the_experts_is_an_error(present, missing):
    checkpoint, _ = opened(tensors_of(*(f"m.experts.{e}.up" for e in present)))
    message = rf"m\.experts\.{missing}\.up is missing; experts up to 2 are there"
    with pytest.raises(CheckpointError, match=message):
        checkpoint.experts("m.experts", "up")


def test_other_spellings_of_a_number_are_other_layers_not_the_same_expert():
    checkpoint, _ = opened(tensors_of("m.experts.1.up", "m.experts.01.up", "m.experts.0.up"))
    assert checkpoint.expert_groups()["m.experts", "up"] == ["m.experts.0.up", "m.experts.1.up"]


def test_fused_reads_layers_as_one_or_says_which_is_unquantized():
    checkpoint, _ = opened({**tensors_of("q", "k"), "v.weight": torch.ones(4, 16)})
    whole = checkpoint.fused(["q", "k"])
    assert torch.equal(whole.packed, torch.cat([checkpoint["q"].packed, checkpoint["k"].packed]))
    with pytest.raises(CheckpointError, match="v is unquantized, the rest of q, k, v is not"):
        checkpoint.fused(["q", "k", "v"])
    with pytest.raises(KeyError, match="left unquantized"):
        checkpoint.fused(["v"])


@pytest.mark.parametrize(
    ("name", "pattern", "meant"),
    [
        ("lm_head", "lm_head", True),
        ("model.lm_head", "lm_head", True),
        ("model.layers.1.mlp.up", "layers.1", True),
        ("model.layers.10.mlp.up", "layers.1", False),
        ("model.layers.0.mlp.gate_proj", "gate", False),
        ("model.layers.0.mlp.gate", "mlp.gate", True),
        ("model.layers.0.mlp.gate", "layers.gate", False),
        ("model.layers.0.mlp", "model.layers.0.mlp.gate", False),
        ("vision.blocks.0.fc", "vision*", True),
        ("visionary.fc", "vision.*", False),
        ("model.vision.fc", "vision*", False),
        ("model.a.b", "*.a", True),
        ("a.b+c", "*b+c", True),
        ("model.layers.3.x", r"re:.*layers\.[0-5]\..*", True),
        ("model.layers.3.x", r"re:layers", False),
    ],
)
def test_names_are_matched_by_components_never_by_substrings(name, pattern, meant):
    assert matches(name, pattern) == meant


def test_an_invalid_pattern_is_an_error():
    with pytest.raises(CheckpointError, match=r"pattern 're:\(': "):
        matches("a", "re:(")


def test_split_name():
    assert split_name("model.layers.0.up.weight") == ("model.layers.0.up", "weight")
    assert split_name("weight") == ("", "weight")


# -- load_checkpoint ---------------------------------------------------------------------------

PLAIN = {"model.safetensors": {"a.weight": torch.ones(4, 8), "norm.weight": torch.ones(8)}}


def test_an_unquantized_checkpoint_has_no_layers_and_says_what_it_leaves(tmp_path):
    folder = write_directory(tmp_path / "m", PLAIN, {"model_type": "x"})
    for path in (folder, str(folder), folder / "model.safetensors"):
        checkpoint = load_checkpoint(path)
        assert len(checkpoint) == 0
        assert checkpoint.family == "unquantized"
        assert list(checkpoint.unquantized) == ["a"]
        assert checkpoint.model_config == {"model_type": "x"}
    with pytest.raises(KeyError, match="'a' is left unquantized"):
        checkpoint["a"]


def test_a_path_that_holds_nothing_is_an_error(tmp_path):
    with pytest.raises(CheckpointError, match="no such file or directory"):
        load_checkpoint(tmp_path / "gone")
    with pytest.raises(CheckpointError, match="no GGUF file here"):
        load_checkpoint(tmp_path)
    (tmp_path / "a.gguf").touch()
    (tmp_path / "b.gguf").touch()
    with pytest.raises(CheckpointError, match=r"several GGUF files, name one: a\.gguf, b\.gguf"):
        load_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"quantization_config": {"quant_method": "exl9"}}, "quant_method 'exl9' is none of"),
        ({"quantization_config": {"bits": 4}}, "quant_method '' is none of"),
        ({"quantization_config": {"quant_method": ["gptq"]}}, "is none of"),
        ({"quantization_config": [1]}, "quantization_config is no JSON object"),
        ({"quantization_config": "gptq"}, "quantization_config is no JSON object"),
        ({"compression_config": {"quant_method": "exl9"}}, "quant_method 'exl9' is none of"),
    ],
)
def test_a_config_of_no_known_family_is_an_error(tmp_path, config, message):
    with pytest.raises(CheckpointError, match=message):
        load_checkpoint(write_directory(tmp_path, PLAIN, config))


@pytest.mark.parametrize("method", ["gptq", "awq", "fp8", "compressed-tensors", "quark", "modelopt",
                                    "mxfp4", "bitnet", "auto-round", "humming"])  # fmt: skip
def test_a_config_whose_layers_are_missing_or_malformed_is_an_error_or_empty(tmp_path, method):
    folder = write_directory(tmp_path, PLAIN, {"quantization_config": {"quant_method": method}})
    try:
        found = len(load_checkpoint(folder))
    except HummingError:
        return
    assert found == 0


@pytest.mark.parametrize(
    ("file", "family"),
    [
        ("quantize_config.json", "gptq"),
        ("quant_config.json", "awq"),
        ("hf_quant_config.json", "modelopt"),
    ],
)
def test_side_files_hold_the_config_of_their_family(tmp_path, file, family):
    folder = write_directory(tmp_path, PLAIN, {"model_type": "x"})
    write_json(folder / file, {"quant_method": "exl9"})
    with pytest.raises(CheckpointError, match="quant_method 'exl9'"):
        load_checkpoint(folder)
    write_json(folder / file, [])
    with pytest.raises(CheckpointError, match="expected a JSON object"):
        load_checkpoint(folder)
    write_json(folder / file, {"surprise": 1})
    problem = ""
    try:
        assert load_checkpoint(folder).family == family
    except HummingError as error:  # from the loader of that family
        problem = str(error)
    assert "is none of" not in problem


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 1 << 70)
    | st.floats()
    | st.text(max_size=6)
    | st.sampled_from(["gptq", "awq", "fp8", "int", "float", "group", "Linear", "*", "re:("]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)
METHODS = ["gptq", "awq", "fp8", "compressed-tensors", "quark", "modelopt", "mxfp4", "bitnet",
           "auto-round", "humming", "fbgemm_fp8", "gpt_oss"]  # fmt: skip
KEYS = [
    "bits",
    "group_size",
    "sym",
    "desc_act",
    "version",
    "layers",
    "config_groups",
    "ignore",
    "format",
    "global_quant_config",
    "layer_quant_config",
    "exclude",
    "weight_block_size",
    "dynamic",
    "modules_to_not_convert",
    "quant_algo",
    "quantization",
    "extra_config",
    "checkpoint_format",
    "zero_point",
    "activation_scheme",
    "export",
    "weights",
    "linear_class",
]


@given(st.sampled_from(METHODS), st.dictionaries(st.sampled_from(KEYS), JSON, max_size=6))
def test_any_config_is_read_or_refused_with_a_typed_error(tmp_path_factory, method, config):
    folder = tmp_path_factory.mktemp("config")
    tensors = {
        "m.a.qweight": torch.zeros(4, 8, dtype=torch.int32),
        "m.a.qzeros": torch.zeros(1, 1, dtype=torch.int32),
        "m.a.scales": torch.ones(1, 8, dtype=torch.float16),
        "m.b.weight": torch.ones(4, 8),
    }
    write_directory(folder, {"model.safetensors": tensors})
    text = json.dumps({"quantization_config": {**config, "quant_method": method}})
    (folder / "config.json").write_text(text)
    try:
        checkpoint = load_checkpoint(folder)
        for name in checkpoint:
            checkpoint[name]
    except HummingError:
        pass
