"""compressed-tensors checkpoints: integers, FP8, NVFP4, MXFP4, MXFP6 and MXFP8, group by group.

==================== ========================================================================
tensor of a layer    meaning
==================== ========================================================================
weight_packed        int32 words along K, codes plus 2^(bits - 1); or bytes of FP4, FP6 codes
weight               int8 or e4m3 codes
weight_shape         N and K, or E, N and K
weight_scale         one per block; a byte is an exponent
weight_global_scale  a divisor of everything
weight_zero_point    int32 words along N, plus 2^(bits - 1); or int8
weight_g_idx         group of each column (act-order); -1 anywhere: not used
input_scale          of static activations
input_global_scale   a divisor: the second-level scale of activations
==================== ========================================================================
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from humming.checkpoints.base import CheckpointLoader, LayerPlan, split_name
from humming.checkpoints.ct_args import QuantArgs
from humming.checkpoints.ct_groups import FORMATS, CtConfig, Group
from humming.checkpoints.ct_read import CtDetail, read_layer
from humming.checkpoints.ct_schemes import activation_scheme, weight_scheme
from humming.checkpoints.ct_shapes import check_headers, layer_shape, scale_of, word_layout
from humming.errors import CheckpointError
from humming.weight import CanonicalWeight

__all__ = ["CompressedTensorsLoader"]

#: Suffixes that only a quantized layer has. Scales of inputs and outputs prove nothing: those of
#: k_proj and v_proj may be the cache's.
_PROOFS = (
    "weight_packed",
    "weight_scale",
    "weight_zero_point",
    "weight_global_scale",
    "weight_shape",
    "weight_g_idx",
)


class CompressedTensorsLoader(CheckpointLoader):
    """Reads every format of compressed-tensors, old and new, but for sparse weights."""

    quant_methods: ClassVar[tuple[str, ...]] = ("compressed-tensors",)

    def plan(self) -> Iterable[LayerPlan]:
        """All layers that have codes or scales.

        K of integer weights stands only in ``weight_shape``: those few bytes are read here.
        """
        config = CtConfig.parse(self.config)
        layers = self._layers()
        for target, group in config.exact_targets():
            plain = f"{target}.weight" in self.store and target not in layers
            if plain and group.format and config.ignored_by(target) is None:
                raise CheckpointError(
                    f"missing, though config group {group.name} names the layer",
                    tensor=f"{target}.weight_scale",
                    path=self.source.path,
                )
        return [self._plan(layer, self._group(config, layer), config.version) for layer in layers]

    def load(self, plan: LayerPlan) -> CanonicalWeight:
        """Read one layer; raises CheckpointError, naming the tensor."""
        return read_layer(self, plan)

    def _layers(self) -> dict[str, None]:
        """Layers with any tensor that proves them quantized, in file order."""
        layers: dict[str, None] = {}
        for name in self.store:
            layer, suffix = split_name(name)
            coded = suffix == "weight" and self.store.info(name).dtype in ("I8", "F8_E4M3")
            if layer and (suffix in _PROOFS or coded):
                layers.setdefault(layer)
        return layers

    def _group(self, config: CtConfig, layer: str) -> Group:
        """The group of a layer that looks quantized."""
        entry = config.ignored_by(layer)
        group = config.group_of(layer)
        if entry is not None:
            problem = f"{entry!r} in the config's ignore list spares the layer"
        elif group is None:
            targets = [target for g in config.groups for target in g.targets]
            problem = f"no config group names the layer; targets: {', '.join(targets) or 'none'}"
        elif not group.format:
            problem = f"config group {group.name} says that nothing is compressed"
        else:
            return group
        raise CheckpointError(
            f"part of a quantized layer, but {problem}",
            tensor=self.present(layer, *_PROOFS, "weight")[0],
            path=self.source.path,
        )

    def _plan(self, layer: str, group: Group, version: tuple[int, ...]) -> LayerPlan:
        args = group.weights
        assert args is not None, "CtConfig keeps groups with weights only"
        file = FORMATS[group.format]
        codes, zero = f"{layer}.{file.suffix}", f"{layer}.weight_zero_point"
        experts, n, k = layer_shape(self, layer, args, file)
        words = zero_words = ""
        if file.dtypes == ("I32",):
            words = word_layout(self, codes, args, k, version)
        has_zeros = zero in self.store
        if has_zeros and self.store.info(zero).dtype == "I32" and not args.is_float:
            zero_words = word_layout(self, zero, args, n, version)
        elif has_zeros and not args.symmetric:
            self.info(zero, "I32", "I8")
        scheme = weight_scheme(
            args,
            scale_of(self, layer, args, file, (experts, n, k)),
            packed=file.suffix == "weight_packed",
            zeros=has_zeros and not args.symmetric,
        )
        activation = activation_scheme(group.inputs)
        suffixes = [file.suffix, "weight_scale", *self._more_suffixes(layer, args, experts)]
        suffixes += ["weight_shape"] * (file.dtypes == ("I32",))
        if activation is not None and activation.static:
            suffixes.append("input_global_scale" if activation.second else "input_scale")
            suffixes += ["input_zero_point"] * (f"{layer}.input_zero_point" in self.store)
        bias = f"{layer}.bias" in self.store
        suffixes += ["bias"] * bias
        tensors = tuple(f"{layer}.{suffix}" for suffix in suffixes)
        check_headers(self, layer, suffixes, (experts, n, k))
        return LayerPlan(
            name=layer,
            n=n,
            k=k,
            experts=experts,
            scheme=scheme,
            activation=activation,
            tensors=tensors,
            bias=bias,
            act_order="weight_g_idx" in suffixes,
            detail=CtDetail(args=args, codes=codes, words=words, zero_words=zero_words),
        )

    def _more_suffixes(self, layer: str, args: QuantArgs, experts: int) -> Iterable[str]:
        if args.strategy == "tensor_group":
            yield "weight_global_scale"
        if f"{layer}.weight_zero_point" in self.store:
            yield "weight_zero_point"
        order = f"{layer}.weight_g_idx"
        if order in self.store:
            if not args.act_order or not args.group or experts:
                problem = "a stack of experts" if experts else f"strategy {args.strategy!r}"
                if not args.act_order:
                    problem = f"{args.where}.actorder other than 'group'"
                raise CheckpointError(f"present, with {problem}", tensor=order)
            yield "weight_g_idx"
