"""AutoRound checkpoints: a config of AutoRound's own over layers in the forms of other tools.

============================== ==========================================================
a layer has                    and is read as
============================== ==========================================================
qweight                        GPTQ or AWQ, as ``packing_format`` says
weight in FP8, weight_scale    FP8: per tensor, output or block
weight in FP8, byte scales     MXFP8, as compressed-tensors
weight_packed                  MXFP4, NVFP4 or integers, as compressed-tensors, or one of
                               two forms that only AutoRound has: see ``_PAIRS``
============================== ==========================================================

GPTQ layers differ in one thing by packing format: ``auto_round:auto_gptq`` stores zero points
less one, ``auto_round`` and ``auto_round:gptqmodel`` store them as they are. Codes of 5, 6 and 7
bits are a bit stream, unlike GPTQModel's.

``extra_config`` has settings of single layers; ``bits: 16`` there means not quantized. One file may
mix all of the above: a hybrid keeps the FP8 layers of the model that it was made from.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from humming.checkpoints import awq, gptq
from humming.checkpoints.base import CheckpointLoader, LayerPlan, split_name
from humming.checkpoints.compressed_tensors import CompressedTensorsLoader
from humming.checkpoints.fp8 import Fp8Loader
from humming.checkpoints.overrides import Overrides, Settings
from humming.checkpoints.scales import finite_scales
from humming.checkpoints.store import TensorInfo, TensorStore
from humming.errors import CheckpointError
from humming.formats.activation import ActivationScheme
from humming.formats.scheme import WeightScheme
from humming.weight import CanonicalWeight

__all__ = ["AutoRoundLoader"]

#: Integer packing formats: GPTQ tensors and what was subtracted from their zero points, or AWQ.
#: The short names are what versions before 0.5 wrote.
_PACKINGS: Mapping[str, int | str] = {
    "auto_round": 0,
    "auto_round:gptqmodel": 0,
    "auto_round:auto_gptq": 1,
    "auto_round:gptq": 1,
    "auto_round:auto_awq": "awq",
    "auto_round:awq": "awq",
}
_GPTQ_BITS = (2, 3, 4, 5, 6, 7, 8)
_AWQ_BITS = (4, 5, 6, 7)
#: Strategy, group size and scales, as compressed-tensors spells them, by start of data_type.
_MICROSCALED = {"mx_fp": ("group", 32, "uint8"), "nv_fp": ("tensor_group", 16, "float8_e4m3fn")}
#: Suffixes that prove a layer quantized, and of them those that say how.
_PROOFS = ("qweight", "weight_packed", "weight_scale", "weight_scale_inv", "qzeros", "scales")
_FP8_DTYPES = ("F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ")


@dataclass(frozen=True)
class _Pairs:
    """Two 4-bit codes per byte and byte scales, as only AutoRound writes them.

    Attributes:
        scheme: of the weight.
        shift: what is subtracted from the stored exponents, to count codes in units of one.
    """

    scheme: str
    shift: int = 0


#: By data_type. mx_int codes are sign and magnitude in quarters: e0m3 under exponents less two.
_PAIRS: Mapping[str, _Pairs] = {
    "mx_int": _Pairs("e0m3-g32-e8m0", shift=2),
    "mx_int4": _Pairs("e0m3-g32-e8m0", shift=2),
    "nvfp4_v2": _Pairs("e2m1-g16-e5m3"),
}


@dataclass(frozen=True)
class _Part:
    """A layer that another loader reads, and that loader's plan of it."""

    loader: CheckpointLoader
    plan: LayerPlan


class _Subset:
    """The tensors of some layers of a store."""

    def __init__(self, store: TensorStore, layers: Iterable[str]) -> None:
        self._store = store
        layers = frozenset(layers)
        self._names = {name: None for name in store if split_name(name)[0] in layers}

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def info(self, name: str) -> TensorInfo:
        return self._store.info(name)

    def get(self, name: str) -> torch.Tensor:
        return self._store.get(name)


@dataclass
class _Found:
    """Layers by who reads them."""

    plans: dict[str, LayerPlan] = field(default_factory=dict)
    fp8: dict[str, Settings] = field(default_factory=dict)
    compressed: dict[str, Settings] = field(default_factory=dict)


class AutoRoundLoader(CheckpointLoader):
    """``quant_method: auto-round`` and its older spellings."""

    quant_methods = ("auto-round", "auto_round", "intel/auto-round")

    def plan(self) -> list[LayerPlan]:
        """All quantized layers."""
        settings = Settings(self.config, self.source.path)
        rules = settings.get("extra_config", dict, {})
        overrides = Overrides.extra_config(rules, self.source.path)
        overrides.report_unused({split_name(name)[0] for name in self.store})
        layers = self._layers()
        found = _Found()
        for name in layers:
            own = overrides.settings(name)
            self._sort(name, None if own is None else settings.over(own), settings, found)
        self._check_declared(rules, layers)
        found.plans.update(self._delegate_fp8(settings, found.fp8))
        found.plans.update(self._delegate_compressed(found.compressed))
        return [found.plans[name] for name in layers]

    def load(self, plan: LayerPlan) -> CanonicalWeight:
        """Read one layer."""
        detail = plan.detail
        if isinstance(detail, gptq.GptqFormat):
            return gptq.load_layer(self, plan)
        if isinstance(detail, awq.AwqFormat):
            return awq.load_layer(self, plan)
        if isinstance(detail, _Pairs):
            return self._load_pairs(plan, detail)
        assert isinstance(detail, _Part), "plan() has no other kinds of layers"
        return detail.loader.load(detail.plan).replace(activation=plan.activation)

    # -- which reader ---------------------------------------------------------------------------

    def _layers(self) -> list[str]:
        """Names of all layers with a tensor that only quantized ones have, in file order."""
        layers: dict[str, None] = {}
        for tensor in self.store:
            name, suffix = split_name(tensor)
            coded = suffix == "weight" and self.store.info(tensor).dtype in _FP8_DTYPES
            if name and (coded or suffix in _PROOFS):
                layers.setdefault(name)
        return list(layers)

    def _sort(self, name: str, own: Settings | None, settings: Settings, found: _Found) -> None:
        """Plan a layer that is read here, or note it for the loader that reads it."""
        present = self.present(name, "qweight", "weight_packed", "weight")
        proof = present[0] if present else f"{name}.weight"
        info = self.info(proof)
        is_fp8 = info.dtype in _FP8_DTYPES
        if own is None and not is_fp8:
            raise CheckpointError(
                f"extra_config says bits 16, but the layer is quantized: {info}", tensor=proof
            )
        # Layers that AutoRound left alone may be FP8 in the model that it started from.
        own = own or settings
        _refuse_transforms(own)
        if proof.endswith(".qweight"):
            found.plans[name] = self._plan_integers(name, own)
        elif proof.endswith(".weight_packed") and own.get("data_type", str, "int") in _PAIRS:
            found.plans[name] = self._plan_pairs(name, own)
        elif is_fp8 and self._scale_dtype(name) not in ("U8", "F8_E8M0"):
            found.fp8[name] = own
        else:
            found.compressed[name] = own

    def _scale_dtype(self, name: str) -> str:
        scale = f"{name}.weight_scale"
        return self.store.info(scale).dtype if scale in self.store else ""

    def _check_declared(self, rules: Mapping[str, Any], layers: list[str]) -> None:
        """A layer named in extra_config with a width must not be left unquantized."""
        for name, values in rules.items():
            weight = f"{name}.weight"
            declared = isinstance(values.get("bits"), int) and values["bits"] < 16
            if declared and name not in layers and weight in self.store:
                raise CheckpointError(
                    f"extra_config says bits {values['bits']}, but the file has "
                    f"{self.store.info(weight)} and no quantized tensors of the layer",
                    tensor=weight,
                )

    # -- integers -------------------------------------------------------------------------------

    def _plan_integers(self, name: str, settings: Settings) -> LayerPlan:
        if settings.get("act_bits", int, 16) < 16:
            raise settings.error("act_bits", "16: integer weights with quantized activations are "
                                 "not supported in this packing")  # fmt: skip
        data_type = settings.get("data_type", str, "int")
        if data_type not in ("int", "int_sym", "int_asym"):
            raise settings.error("data_type", f"int: {name!r} has integer codes")
        sym = settings.get("sym", bool, f"{name}.qzeros" not in self.store)
        packing = self._packing(name, settings, sym)
        group_size = settings.group_size()
        if packing == "awq":
            awq_bits = settings.choice("bits", _AWQ_BITS)
            fmt = awq.AwqFormat(bits=awq_bits, group_size=group_size, zero_point=not sym)
            return awq.plan_layer(self, name, fmt)
        return gptq.plan_layer(
            self,
            name,
            gptq.GptqFormat(
                bits=settings.choice("bits", _GPTQ_BITS),
                group_size=group_size,
                sym=sym,
                offset=int(packing),
            ),
        )

    def _packing(self, name: str, settings: Settings, sym: bool) -> int | str:
        """What :data:`_PACKINGS` has for the config, or what the shapes say if it is silent."""
        if settings.values.get("packing_format") is not None:
            return _PACKINGS[settings.choice("packing_format", _PACKINGS)]
        if not sym:
            raise settings.error(
                "packing_format", "a value: without one it is open whether one was subtracted "
                "from the zero points",
            )  # fmt: skip
        words = self.info(f"{name}.qweight", dims=2).shape[1]
        return 1 if words == self.info(f"{name}.scales", dims=2).shape[1] else "awq"

    # -- pairs of 4-bit codes -------------------------------------------------------------------

    def _plan_pairs(self, name: str, settings: Settings) -> LayerPlan:
        pairs = _PAIRS[settings.values["data_type"]]
        scheme = WeightScheme.parse(pairs.scheme)
        group = scheme.granularity.k
        settings.choice("bits", (4,))
        settings.choice("group_size", (group,))
        n, half = self.info(f"{name}.weight_packed", "U8", dims=2).shape
        scales = self.info(f"{name}.weight_scale", "U8", dims=2)
        if half * 2 % group or scales.shape != (n, half * 2 // group):
            raise CheckpointError(
                f"expected [{n}, {half * 2 // group}] for K={half * 2} in groups of {group}, "
                f"found {scales}",
                tensor=f"{name}.weight_scale",
            )
        activation = None
        if settings.get("act_bits", int, 16) < 16:
            settings.choice("act_data_type", (settings.values["data_type"],))
            settings.choice("act_bits", (4,))
            settings.choice("act_dynamic", (True,), True)
            activation = ActivationScheme.parse(pairs.scheme)
        return LayerPlan(
            name=name,
            n=n,
            k=half * 2,
            scheme=scheme,
            activation=activation,
            tensors=self.present(name, "weight_packed", "weight_scale", "bias"),
            bias=gptq.check_bias(self, name, n),
            detail=pairs,
        )

    def _load_pairs(self, plan: LayerPlan, pairs: _Pairs) -> CanonicalWeight:
        tensor = f"{plan.name}.weight_scale"
        scales = finite_scales(tensor, self.tensor(tensor), plan.scheme.scale)
        if pairs.shift and bool((scales < pairs.shift).any()):
            raise CheckpointError(
                f"an exponent below {pairs.shift}: its scale is too small for {plan.scheme.scale}",
                tensor=tensor,
            )
        return CanonicalWeight(
            scheme=plan.scheme,
            n=plan.n,
            k=plan.k,
            packed=self.tensor(f"{plan.name}.weight_packed"),
            scales=scales - pairs.shift,
            bias=self.tensor(f"{plan.name}.bias") if plan.bias else None,
            activation=plan.activation,
        )

    # -- other loaders' layers ------------------------------------------------------------------

    def _delegate_fp8(
        self, settings: Settings, layers: Mapping[str, Settings]
    ) -> Iterator[tuple[str, LayerPlan]]:
        for name in layers:
            if f"{name}.weight_zp" in self.store:
                raise CheckpointError(
                    "zero points of FP8 weights are not supported", tensor=f"{name}.weight_zp"
                )
        static = any(f"{name}.input_scale" in self.store for name in layers)
        config: dict[str, Any] = {"activation_scheme": "static" if static else "dynamic"}
        block = settings.values.get("weight_block_size", settings.values.get("group_size"))
        if isinstance(block, list):
            config["weight_block_size"] = block
        for name, plan in self._delegate(Fp8Loader, layers, config):
            own = layers[name].values
            # An FP8 layer among others keeps what FP8 models do. Where AutoRound made it,
            # act_bits says whether activations are quantized.
            made = str(own.get("data_type", "int")).startswith("fp")
            if made and layers[name].get("act_bits", int, 16) >= 16:
                plan = dataclasses.replace(plan, activation=None)
            yield name, plan

    def _delegate_compressed(
        self, layers: Mapping[str, Settings]
    ) -> Iterator[tuple[str, LayerPlan]]:
        groups = {}
        for number, (name, settings) in enumerate(layers.items()):
            has_global = f"{name}.input_global_scale" in self.store
            groups[f"group_{number}"] = {"targets": [name], **_group(settings, has_global)}
        config = {"format": "mixed-precision", "config_groups": groups}
        return self._delegate(CompressedTensorsLoader, layers, config)

    def _delegate(
        self, family: type[CheckpointLoader], layers: Iterable[str], config: Mapping[str, Any]
    ) -> Iterator[tuple[str, LayerPlan]]:
        """(layer, plan) of layers that a loader of another family reads."""
        store = _Subset(self.store, layers)
        loader = family(dataclasses.replace(self.source, store=store, quant_config=config))
        for plan in loader.plan():
            yield plan.name, dataclasses.replace(plan, detail=_Part(loader, plan))


def _refuse_transforms(settings: Settings) -> None:
    settings.refuse(
        "rotation_config", "rotation_configs", "spinquant_config", "transform_config",
        why="activations would have to be rotated too",
    )  # fmt: skip
    settings.refuse("super_bits", why="scales that are quantized themselves")


def _group(settings: Settings, has_global: bool) -> dict[str, Any]:
    """A config group of compressed-tensors that says what these settings say."""
    bits = settings.get("bits", int)
    kind = settings.get("data_type", str, "int")[:5]
    if kind.startswith("int"):
        settings.choice("act_bits", (16,), 16)
        size = settings.group_size()
        weights = {"num_bits": bits, "type": "int", "symmetric": settings.get("sym", bool, True)}
        weights |= {"strategy": "group", "group_size": size} if size else {"strategy": "channel"}
        return {"format": "pack-quantized", "weights": weights}
    weights = _float_arguments(settings, "", dynamic=False)
    form = f"{kind.replace('_', '')}4-pack-quantized"
    group: dict[str, Any] = {"format": "mxfp8-quantized" if bits == 8 else form, "weights": weights}
    if settings.get("act_bits", int, 16) < 16:
        dynamic: bool | str = settings.get("act_dynamic", bool, True)
        if has_global and settings.get("act_data_type", str).startswith("nv_fp"):
            dynamic = "local"
        group["input_activations"] = _float_arguments(settings, "act_", dynamic)
    return group


def _float_arguments(settings: Settings, prefix: str, dynamic: bool | str) -> dict[str, Any]:
    """Arguments, as compressed-tensors has them, of weights or (``act_``) of activations."""
    kind = settings.get(f"{prefix}data_type", str)[:5]
    if kind not in _MICROSCALED:
        raise settings.error(f"{prefix}data_type", "int, mx_fp or nv_fp")
    strategy, size, scale = _MICROSCALED[kind]
    return {
        "num_bits": settings.get(f"{prefix}bits", int),
        "type": "float",
        "dynamic": dynamic,
        "strategy": strategy,
        "group_size": settings.choice(f"{prefix}group_size", (size,)),
        "scale_dtype": scale,
    }
