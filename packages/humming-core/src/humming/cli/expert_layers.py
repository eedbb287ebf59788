"""Which layers of a checkpoint are a layer of experts together, and what its config says of it."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from humming.checkpoints.base import LayerPlan, split_name
from humming.checkpoints.checkpoint import Checkpoint
from humming.checkpoints.mxfp4 import rows_interleaved
from humming.errors import HummingError, UnsupportedError
from humming.fusing import fuse, stack_experts
from humming.gating import Gating, gating_functions
from humming.weight import CanonicalWeight

__all__ = [
    "ExpertLayer",
    "expert_layers",
    "gating_argument",
    "gating_of",
    "loose_experts",
    "plan_of",
    "read_product",
    "top_k_of",
]

#: Of the layers behind one prefix: those that are the first product, one above the other, and the
#: second. The first row that is there counts.
_SPELLINGS = (
    (("gate_up_proj",), "down_proj"),
    (("gate_proj", "up_proj"), "down_proj"),
    (("w13",), "w2"),
    (("w1", "w3"), "w2"),
    (("mlp1",), "mlp2"),
    (("ffn_gate_up_exps",), "ffn_down_exps"),
    (("ffn_gate_exps", "ffn_up_exps"), "ffn_down_exps"),
    (("gate_up",), "down"),
    (("gate", "up"), "down"),
    (("up_proj",), "down_proj"),
    (("ffn_up_exps",), "ffn_down_exps"),
)
#: Where experts that see every token are, beside the routed ones: (end of their prefix, first
#: product, second).
_SHARED = (
    *(
        (f"{name}.", first, second)
        for name in ("shared_experts", "shared_expert")
        for first, second in _SPELLINGS
    ),
    ("", ("ffn_gate_shexp", "ffn_up_shexp"), "ffn_down_shexp"),
    ("", ("ffn_up_shexp",), "ffn_down_shexp"),
)

#: Layers of the checkpoint that are one weight [E, N, K]: a stack, or one of each expert.
Stack = tuple[str, ...]


@dataclass(frozen=True)
class ExpertLayer:
    """A layer of experts.

    Attributes:
        name: what its layers have in common.
        experts: E.
        first: the first product's parts, gates above ups.
        second: the second product.
        shared: the same of experts that see every token, dense layers; or None.
    """

    name: str
    experts: int
    first: tuple[Stack, ...]
    second: Stack
    shared: tuple[tuple[Stack, ...], Stack] | None = None

    def names(self) -> Iterator[str]:
        """Of all its layers."""
        for stack in (*self.first, self.second):
            yield from stack
        for stack in (*self.shared[0], self.shared[1]) if self.shared else ():
            yield from stack


def expert_layers(checkpoint: Checkpoint, among: Sequence[str]) -> list[ExpertLayer]:
    """The layers of experts all of whose routed layers are `among` these.

    A first product without a second, and names that mean nothing here, are none.

    Raises:
        CheckpointError: an expert is missing.
    """
    wanted = set(among)
    stacks: dict[str, dict[str, Stack]] = {}
    for name in among:
        prefix, projection = split_name(name)
        if checkpoint.plan(name).experts:
            stacks.setdefault(prefix, {})[projection] = (name,)
    for (prefix, projection), names in checkpoint.expert_groups().items():
        if wanted.issuperset(names):
            stacks.setdefault(prefix, {})[projection] = tuple(names)
    return [
        layer
        for prefix, found in stacks.items()
        if (layer := _layer(checkpoint, prefix, found)) is not None
    ]


def _layer(checkpoint: Checkpoint, name: str, found: Mapping[str, Stack]) -> ExpertLayer | None:
    for first, second in _SPELLINGS:
        if found.keys() >= {*first, second}:
            stack = found[second]
            experts = checkpoint.plan(stack[0]).experts or len(stack)
            parts = tuple(found[part] for part in first)
            return ExpertLayer(name, experts, parts, stack, _shared(checkpoint, name))
    return None


def _shared(checkpoint: Checkpoint, name: str) -> tuple[tuple[Stack, ...], Stack] | None:
    # GGUF has no name for the experts: theirs is the block's.
    lead = name.removesuffix("experts") if name.split(".")[-1] == "experts" else f"{name}."
    for end, first, second in _SHARED:
        names = [f"{lead}{end}{part}" for part in (*first, second)]
        if all(part in checkpoint and not checkpoint.plan(part).experts for part in names):
            return tuple((part,) for part in names[:-1]), (names[-1],)
    return None


def loose_experts(
    checkpoint: Checkpoint, among: Sequence[str], layers: Sequence[ExpertLayer]
) -> list[str]:
    """Layers of experts, stacked or one by one, that belong to none of `layers`."""
    whole = {name for layer in layers for name in layer.names()}
    single = {name for names in checkpoint.expert_groups().values() for name in names}
    every = (name for name in among if name in single or checkpoint.plan(name).experts)
    return [name for name in every if name not in whole]


def read_product(checkpoint: Checkpoint, parts: Sequence[Stack], experts: int) -> CanonicalWeight:
    """A product as its user would join it; of experts stored one by one the first two, no more.

    Args:
        checkpoint: where.
        parts: of the product.
        experts: how many there are, 0 for a dense layer.

    Raises:
        HummingError: parts or experts can't be read or joined.
    """
    weights = []
    for names in parts:
        some = [checkpoint[name] for name in names[:2]]
        whole = some[0].experts or not experts
        weights.append(some[0] if whole else stack_experts(some, names[:2]))
    return fuse(weights, [names[0] for names in parts])


def plan_of(plan: LayerPlan, weight: CanonicalWeight, name: str, experts: int) -> LayerPlan:
    """The plan of a product, from that of its first part."""
    return replace(
        plan,
        name=name,
        n=weight.n,
        k=weight.k,
        experts=experts,
        scheme=weight.scheme,
        activation=weight.activation,
        bias=weight.bias is not None,
        act_order=weight.permutation is not None,
    )


# -- what config.json says -------------------------------------------------------------------------

#: Keys that say how many experts a token chooses.
_TOP_K_KEYS = ("num_experts_per_tok", "experts_per_token", "num_experts_per_token", "moe_topk",
               "moe_top_k")  # fmt: skip
_ACTIVATION_KEYS = ("mlp_hidden_act", "hidden_act", "hidden_activation", "activation_function")
#: Functions of models that do not spell them out in `hidden_act`.
_OF_MODELS = {"gpt_oss": "swiglu_oai", "deepseek_v4": "swiglu_clamped"}
#: Spellings of `hidden_act`, to functions with a gate and without.
_ACTIVATIONS = {
    "silu": ("swiglu", "silu"),
    "swish": ("swiglu", "silu"),
    "swiglu": ("swiglu", ""),
    "gelu": ("geglu", "gelu"),
    "gelu_new": ("geglu_tanh", "gelu_tanh"),
    "gelu_fast": ("geglu_tanh", "gelu_tanh"),
    "gelu_tanh": ("geglu_tanh", "gelu_tanh"),
    "gelu_pytorch_tanh": ("geglu_tanh", "gelu_tanh"),
    "relu": ("reglu", "relu"),
    "relu2": ("", "relu2"),
    "relu_squared": ("", "relu2"),
}


def top_k_of(checkpoint: Checkpoint) -> int:
    """How many experts a token chooses; 1 if nothing says it."""
    config = checkpoint.model_config
    for holder in (_text_config(config), config):
        found: list[int] = [holder[key] for key in _TOP_K_KEYS if isinstance(holder.get(key), int)]
        # GGUF has the architecture's name in front.
        found += [
            value for key, value in holder.items()
            if key.endswith(".expert_used_count") and isinstance(value, int)
        ]  # fmt: skip
        if found:
            return max(found[0], 1)
    return 1


def gating_of(checkpoint: Checkpoint, layer: ExpertLayer, gated: bool) -> Gating:
    """The function between the products, by the model's type or its `hidden_act`.

    Args:
        checkpoint: whose config.json is asked; without an answer a gate means SwiGLU.
        layer: whose first product may have gates and ups in turn.
        gated: whether there is a gate: the first product has twice the second's inputs.

    Raises:
        UnsupportedError: config.json names a function that is none here, or none is named and
            there is no gate.
    """
    config = checkpoint.model_config
    text = _text_config(config)
    model = text.get("model_type") or config.get("model_type") or config.get("general.architecture")
    name = _OF_MODELS.get(str(model).replace("-", "_"), "")
    if not name:
        name = _by_activation(text, gated)
    function = gating_functions()[name]
    values = {
        parameter: float(text[f"swiglu_{parameter}"])
        for parameter in function.parameters
        if isinstance(text.get(f"swiglu_{parameter}"), (int, float))
    }
    interleaved = len(layer.first) == 1 and _in_turn(checkpoint, layer.first[0], name)
    return Gating.of(name, interleaved=interleaved and function.gated, **values)


def _in_turn(checkpoint: Checkpoint, stack: Stack, name: str) -> bool:
    return name == "swiglu_oai" or rows_interleaved(checkpoint.plan(stack[0]))


def _by_activation(config: Mapping[str, Any], gated: bool) -> str:
    named = [config[key] for key in _ACTIVATION_KEYS if isinstance(config.get(key), str)]
    if not named and gated:
        return "swiglu"
    if not named:
        raise UnsupportedError(
            "experts without a gate, and config.json has no hidden_act: name one with --gating"
        )
    name = _ACTIVATIONS.get(named[0].lower(), ("", ""))[0 if gated else 1]
    if not name:
        kind = "with a gate" if gated else "without a gate"
        raise UnsupportedError(
            f"config.json names the activation function {named[0]!r}, and {kind} none of that "
            "name is known: name one with --gating"
        )
    return name


def _text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    inner = config.get("text_config")
    return inner if isinstance(inner, dict) else config


def gating_argument(text: str) -> Gating:
    """``NAME[,interleaved][,PARAMETER=VALUE...]`` as an argparse type."""
    name, *rest = (word.strip() for word in text.split(","))
    values: dict[str, float] = {}
    try:
        for word in rest:
            if word != "interleaved":
                parameter, _, value = word.partition("=")
                values[parameter] = float(value)
        return Gating.of(name, interleaved="interleaved" in rest, **values)
    except (HummingError, ValueError) as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}") from None
