"""compressed-tensors' arguments as WeightScheme and ActivationScheme."""

from __future__ import annotations

from humming.checkpoints.ct_args import QuantArgs, config_error
from humming.formats.activation import ActivationScheme
from humming.formats.number import NumberFormat
from humming.formats.scheme import Granularity, Second, WeightScheme, Zero
from humming.formats.table import number_format

__all__ = ["activation_scheme", "granularity", "weight_scheme"]

_FLOATS = {"float8": "e4m3fn", "float6": "e2m3", "float4": "e2m1"}
#: dtype that dynamic scales are rounded to, as the config spells it; without one, f32.
_SCALES = {
    "": "f32",
    "float32": "f32",
    "bfloat16": "bf16",
    "float16": "f16",
    "float8_e4m3fn": "e4m3fn",
    "uint8": "e8m0",
}


def granularity(args: QuantArgs) -> Granularity:
    """How many weights share a scale."""
    if args.strategy == "block":
        return Granularity.block(*args.block)
    if args.group:
        return Granularity.group(args.group)
    return Granularity.parse(args.strategy)


def weight_scheme(
    args: QuantArgs, scale: NumberFormat, *, packed: bool, zeros: bool
) -> WeightScheme:
    """The scheme of a weight.

    Args:
        args: of the weights.
        scale: format of the stored scales.
        packed: whether integer codes are stored with their offset 2^(bits - 1) already added.
        zeros: whether zero points are stored. An asymmetric layer whose zero points were all
            zero may have none: early writers (0.6) left them out. It then is a symmetric one.
    """
    if args.is_float:
        code = _FLOATS[args.code]
    else:
        # int8 codes are kept as they are; all others count from 0, as zero points do.
        code = "s8" if args.bits == 8 and not packed and not zeros else f"u{args.bits}"
    return WeightScheme(
        code=number_format(code),
        granularity=granularity(args),
        scale=scale,
        zero=Zero.INTEGER if zeros else Zero.NONE,
        second=Second.TENSOR if args.strategy == "tensor_group" else Second.NONE,
    )


def activation_scheme(args: QuantArgs | None) -> ActivationScheme | None:
    """What input activations are rounded to.

    Raises:
        CheckpointError: an activation scheme that humming has no form for.
    """
    if args is None:
        return None
    if not args.symmetric:
        raise config_error(f"{args.where}.symmetric", "zero points of activations: not supported")
    if args.is_float and args.code not in _FLOATS:
        raise config_error(f"{args.where}.num_bits", f"float of {args.bits} bits: not supported")
    fmt = _FLOATS[args.code] if args.is_float else f"s{args.bits}"
    scale = _SCALES.get(args.scale_dtype)
    if args.strategy == "tensor_group" and not args.scale_dtype:
        scale = "e4m3fn"  # NVFP4 before 0.13, which had no such key
    if scale is None or (scale == "e8m0" and (args.group != 32 or not args.is_float)):
        problem = f"{args.scale_dtype!r} is not supported here"
        raise config_error(f"{args.where}.scale_dtype", problem)
    by_strategy: dict[tuple[str, bool | str], str] = {
        ("token", True): f"{fmt}-token-{scale}",
        ("tensor", True): f"{fmt}-tensor-{scale}",
        ("tensor", False): f"{fmt}-tensor-f32-static",
        ("group", True): f"{fmt}-g{args.group}-{scale}",
        ("tensor_group", True): f"{fmt}-g{args.group}-{scale}",
        ("tensor_group", "local"): f"{fmt}-g{args.group}-{scale}-tensor-static",
    }
    text = by_strategy.get((args.strategy, args.dynamic))
    if text is None:
        problem = f"strategy {args.strategy!r} with dynamic={args.dynamic!r} is not supported"
        raise config_error(args.where, f"activations: {problem}")
    return ActivationScheme.parse(text)
