"""FP8 checkpoints: quant_method "fp8" of Hugging Face, DeepSeek, Mistral and their kin.

A layer is ``LAYER.weight`` in an FP8 dtype and one scale tensor, under one of several names; the
scale multiplies, whatever the name says (``weight_scale_inv`` too). A stack of experts may be
``LAYER`` itself with ``LAYER_scale_inv``. Routed experts of DeepSeek-V4 are pairs of e2m1 codes
in a byte dtype, with an exponent per 32, in a file that otherwise is FP8.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from humming.checkpoints.base import CheckpointLoader, LayerPlan, matches
from humming.checkpoints.scales import BIAS_DTYPES, finite_scalar, finite_scales, scale_format
from humming.checkpoints.store import TensorInfo
from humming.errors import CheckpointError, ConfigError
from humming.formats.activation import ActivationScheme
from humming.formats.number import NumberFormat
from humming.formats.scheme import Granularity, WeightScheme
from humming.formats.table import number_format
from humming.weight import CanonicalWeight

__all__ = ["Fp8Loader"]

_CODES = {
    "F8_E4M3": "e4m3fn",
    "F8_E5M2": "e5m2",
    "F8_E4M3FNUZ": "e4m3fnuz",
    "F8_E5M2FNUZ": "e5m2fnuz",
}
_FP4_DTYPES = ("I8", "U8", "F4")
#: Spellings of one thing, met in different families.
_WEIGHT_SCALES = (
    "weight_scale_inv",
    "weight_scale",
    "scale",
    "scale_weight",
    "weight_quantizer.scale",
    "qscale_weight",
)
_INPUT_SCALES = (
    "input_scale",
    "scale_input",
    "activation_scale",
    "input_quantizer.scale",
    "qscale_act",
)
#: The same for a stack of experts that is a tensor without a suffix.
_STACK_WEIGHT_SCALES = ("_scale_inv", "_scale")
_STACK_INPUT_SCALES = ("_activation_scale", "_input_scale")
_SKIP_LISTS = ("modules_to_not_convert", "ignored_layers")
_FP4_GROUP = 32


@dataclass(frozen=True, kw_only=True)
class _Names:
    """Full names of a layer's tensors; "" where there is none."""

    weight: str
    scale: str
    input_scale: str
    bias: str


class Fp8Loader(CheckpointLoader):
    """Reads FP8 weights with scales per tensor, channel, group or block."""

    quant_methods: ClassVar[tuple[str, ...]] = ("fp8",)

    def plan(self) -> Iterable[LayerPlan]:
        """All layers with FP8 or packed FP4 codes."""
        self._check_config()
        block = self._block()
        skipped = self._skipped()
        plans = []
        for layer, weight in self._weights():
            entry = next((entry for entry in skipped if matches(layer, entry)), None)
            if entry is not None:
                raise CheckpointError(
                    f"{self.store.info(weight)}, but {entry!r} in the config spares the layer",
                    tensor=weight,
                    path=self.source.path,
                )
            plans.append(self._plan(layer, weight, block))
        self._refuse_orphans({tensor for plan in plans for tensor in plan.tensors})
        return plans

    def load(self, plan: LayerPlan) -> CanonicalWeight:
        """Read one layer; raises CheckpointError, naming the tensor."""
        names: _Names = plan.detail
        lead = (plan.experts,) if plan.experts else ()
        scales = finite_scales(names.scale, self.tensor(names.scale), plan.scheme.scale)
        blocks = (*lead, *plan.scheme.granularity.scale_shape(plan.n, plan.k))
        if scales.numel() == 1:
            scales = scales.reshape(()).expand(blocks).contiguous()
        elif plan.experts and tuple(scales.shape) == (plan.experts, 2, 1) != blocks:
            scales = scales.repeat_interleave(plan.n // 2, dim=1)
        return CanonicalWeight(
            scheme=plan.scheme,
            n=plan.n,
            k=plan.k,
            experts=plan.experts,
            packed=self.tensor(names.weight).view(torch.uint8),
            scales=scales.reshape(blocks),
            bias=self.tensor(names.bias, (*lead, plan.n)) if names.bias else None,
            activation=plan.activation,
            input_scale=self._input_scale(names.input_scale, plan.experts),
        )

    # -- the config ---------------------------------------------------------------------------

    def _check_config(self) -> None:
        allowed = {
            "activation_scheme": ("dynamic", "static"),
            "scale_fmt": ("float", "ue8m0"),
            "expert_dtype": ("fp8", "fp4"),
        }
        for key, values in allowed.items():
            found = self._choice(key, values[0])
            if found not in values:
                raise self._config_error(key, found, " or ".join(values))

    def _choice(self, key: str, default: str) -> str:
        # DeepSeek-V4 keeps expert_dtype beside the quantization config, not in it.
        beside = self.source.model_config.get(key) if key == "expert_dtype" else None
        if self.config.get(key) is None and beside is not None:
            if not isinstance(beside, str):
                raise self._config_error(key, beside, "a string")
            return beside
        return str(self.setting(key, str, default)).lower()

    def _config_error(self, key: str, found: Any, expected: str) -> CheckpointError:
        problem = f"config: {key}={found!r}, expected {expected}"
        return CheckpointError(problem, path=self.source.path)

    def _block(self) -> tuple[int, int] | None:
        """Rows and columns of a block; (0, 0) if the config leaves them open."""
        if "weight_block_size" not in self.config:
            return 0, 0
        value = self.config["weight_block_size"]
        if value is None:
            return None
        sizes = list(value) if isinstance(value, (list, tuple)) else []
        if len(sizes) != 2 or not all(type(size) is int and size > 0 for size in sizes):
            raise self._config_error("weight_block_size", value, "[rows, columns] or null")
        return sizes[0], sizes[1]

    def _skipped(self) -> Sequence[str]:
        entries: list[str] = []
        for key in _SKIP_LISTS:
            found = self.setting(key, list, [])
            if not all(isinstance(entry, str) and entry for entry in found):
                raise self._config_error(key, found, "a list of names")
            entries += found
        return entries

    # -- planning -----------------------------------------------------------------------------

    def _weights(self) -> Iterable[tuple[str, str]]:
        """(layer, tensor) of everything that holds codes."""
        for name in self.store:
            dtype, matrix = self.store.info(name).dtype, name.endswith(".weight")
            if dtype in _CODES and any(name.endswith(f".{s}") for s in _WEIGHT_SCALES):
                continue  # never codes; the layer's own checks name it
            if dtype in _CODES or (matrix and dtype in _FP4_DTYPES):
                yield (name[: -len(".weight")] if matrix else name), name

    def _plan(self, layer: str, weight: str, block: tuple[int, int] | None) -> LayerPlan:
        info = self.store.info(weight)
        if len(info.shape) not in (2, 3):
            raise CheckpointError(f"expected 2 or 3 dimensions, found {info}", tensor=weight)
        names = self._names(layer, weight)
        *lead, n, k = info.shape
        experts = lead[0] if lead else 0
        if info.dtype in _CODES:
            code = number_format(_CODES[info.dtype])
            self._check_fmt(weight, code)
        else:
            code = self._fp4_code(layer, weight)
            k *= 1 if info.dtype == "F4" else 2  # an F4 header counts codes
            block = (1, _FP4_GROUP)
        scale = self.store.info(names.scale)
        fmt = scale_format(names.scale, scale, "f32", "bf16", "f16", "e8m0")
        granularity = self._granularity(names.scale, scale, (experts, n, k), block)
        bias = bool(names.bias)
        if bias:
            self.info(names.bias, *BIAS_DTYPES, dims=len(lead) + 1)
        tensors = (names.weight, names.scale, names.input_scale, names.bias)
        return LayerPlan(
            name=layer,
            n=n,
            k=k,
            experts=experts,
            scheme=WeightScheme(code=code, granularity=granularity, scale=fmt),
            activation=self._activation(names, granularity, code),
            tensors=tuple(name for name in tensors if name),
            bias=bias,
            detail=names,
        )

    def _names(self, layer: str, weight: str) -> _Names:
        if weight == layer:
            scales = [layer + end for end in _STACK_WEIGHT_SCALES]
            inputs = [layer + end for end in _STACK_INPUT_SCALES]
            bias = f"{layer}_bias"
        else:
            scales = [f"{layer}.{end}" for end in _WEIGHT_SCALES]
            inputs = [f"{layer}.{end}" for end in _INPUT_SCALES]
            bias = f"{layer}.bias"
        scale = self._one_of(weight, scales)
        if not scale:
            raise CheckpointError(
                f"{self.store.info(weight)} without a scale: no {', '.join(scales)}",
                tensor=weight,
                path=self.source.path,
            )
        return _Names(
            weight=weight,
            scale=scale,
            input_scale=self._one_of(weight, inputs),
            bias=bias if bias in self.store else "",
        )

    def _one_of(self, weight: str, spellings: Sequence[str]) -> str:
        found = [name for name in spellings if name in self.store]
        if len(found) > 1:
            raise CheckpointError(
                f"two spellings of one thing: {found[0]!r} and {found[1]!r}",
                tensor=weight,
                path=self.source.path,
            )
        return found[0] if found else ""

    def _check_fmt(self, weight: str, code: NumberFormat) -> None:
        stated = self.setting("fmt", str, None)
        if stated is None:
            return
        try:
            exponent = number_format(stated).exponent
        except ConfigError:
            raise self._config_error("fmt", stated, "the name of an FP8 format") from None
        if exponent != code.exponent:
            raise CheckpointError(
                f"{self.store.info(weight)}, but the config says fmt={stated!r}", tensor=weight
            )

    def _fp4_code(self, layer: str, weight: str) -> NumberFormat:
        stated = self._choice("expert_dtype", "fp8")
        if stated != "fp4" or "experts" not in layer.split("."):
            raise CheckpointError(
                f"{self.store.info(weight)}, expected an FP8 dtype: bytes hold FP4 codes only in "
                f"routed experts of a model whose config says expert_dtype='fp4'",
                tensor=weight,
                path=self.source.path,
            )
        return number_format("e2m1")

    def _granularity(
        self,
        name: str,
        info: TensorInfo,
        size: tuple[int, int, int],
        block: tuple[int, int] | None,
    ) -> Granularity:
        """How many weights share a scale, from the shape of the scales.

        Args:
            name: of the scale tensor.
            info: its header.
            size: experts (0: a single matrix), N and K.
            block: what the config says; None: no blocks; (0, 0): nothing, and then blocks can be
                only those of Hugging Face's default.
        """
        experts, n, k = size
        tail = info.shape
        if experts and tail not in ((), (1,)):
            if tail[0] != experts:
                raise CheckpointError(f"{info}, expected {experts} experts first", tensor=name)
            tail = tail[1:]
        if block is not None and block != (0, 0):
            blocks = Granularity.block(*block)
            if tail == blocks.scale_shape(n, k):
                return blocks
        if tail in ((), (1,), (1, 1)):
            return Granularity.parse("tensor")
        if block is None or block == (0, 0):
            halves = experts and name.endswith("gate_up_proj_scale_inv") and n % 2 == 0
            if tail in ((n,), (n, 1)) or (halves and tail == (2, 1)):
                return Granularity.parse("channel")
            usual = Granularity.block(128, 128)
            if block is not None and tail == usual.scale_shape(n, k):
                return usual
            wanted = f"one scale, or {n} of them"
        else:
            rows, columns = blocks.scale_shape(n, k)
            wanted = f"[{rows}, {columns}] for blocks of {block[0]} x {block[1]}"
            if tail == (columns, rows):
                wanted += ": the axes are swapped"
        raise CheckpointError(
            f"N={n}, K={k} expected {wanted}, found {info}; scales of the parts of a fused layer "
            f"are not supported",
            tensor=name,
            path=self.source.path,
        )

    def _activation(
        self, names: _Names, granularity: Granularity, code: NumberFormat
    ) -> ActivationScheme:
        static = self._choice("activation_scheme", "dynamic") == "static"
        if static != bool(names.input_scale):
            what = "there is no scale of its input"
            if names.input_scale:
                what = f"{names.input_scale!r} is present"
            raise CheckpointError(
                f"activation_scheme is {'static' if static else 'dynamic'}, but {what}",
                tensor=names.weight,
                path=self.source.path,
            )
        if static:
            return ActivationScheme.parse("e4m3fn-tensor-f32-static")
        group = granularity.k
        if code.bits == 4:  # the experts' inputs are rounded like all others
            block = self._block()
            group = block[1] if block else 0
        scale = "e8m0" if self._choice("scale_fmt", "float") == "ue8m0" else "f32"
        return ActivationScheme.parse(f"e4m3fn-g{group}-{scale}" if group else "e4m3fn-token-f32")

    def _refuse_orphans(self, claimed: set[str]) -> None:
        """A scale whose weight holds no codes: config, data or both are wrong."""
        ends = {f".{suffix}": ".weight" for suffix in (*_WEIGHT_SCALES, *_INPUT_SCALES)}
        del ends[".scale"]  # norms have such a parameter too
        ends |= dict.fromkeys(("_scale_inv", "_activation_scale"), "")
        for name in self.store:
            for end, weight_end in ends.items():
                weight = name[: -len(end)] + weight_end
                if name.endswith(end) and name not in claimed and weight in self.store:
                    raise CheckpointError(
                        f"a scale, but {weight!r} is {self.store.info(weight)}",
                        tensor=name,
                        path=self.source.path,
                    )

    def _input_scale(self, name: str, experts: int) -> torch.Tensor | None:
        if not name:
            return None
        self.info(name, "F32", "F16", "BF16")
        shapes: tuple[tuple[int, ...], ...] = ((), (1,))
        if not experts:
            return finite_scalar(name, self.tensor(name, *shapes))
        stored = self.tensor(name, *shapes, (experts,)).reshape(-1)
        values = [finite_scalar(name, value) for value in stored]
        return torch.stack(values).expand(experts).contiguous()
