"""What Quark's ``input_tensors`` ask of activations."""

from __future__ import annotations

from collections.abc import Sequence

from humming.checkpoints.quark_config import CODES, TensorSpec
from humming.errors import CheckpointError
from humming.formats.activation import ActivationScheme
from humming.formats.table import number_format

__all__ = ["activation_scheme"]

_SCALES = {"": "f32", "float32": "f32", "e8m0": "e8m0", "e5m3": "e5m3"}


def activation_scheme(specs: Sequence[TensorSpec]) -> ActivationScheme | None:
    """The scheme of these specs: none, one, or one and that of its scales.

    Activations have tokens along axis 0, or 1 if there is a batch, and inputs along the last.

    Raises:
        CheckpointError: a combination that no kernel of ours would know how to compute.
    """
    if not specs:
        return None
    spec = specs[0]
    code = number_format(CODES[spec.dtype]) if spec.dtype in CODES else None
    if code is None or spec.scales:
        raise _error(spec, "is about scales", "activations first")
    if not code.signed or (code.is_integer and not spec.symmetric):
        raise _error(spec, f"is {spec.dtype} with zero points", "symmetric activations")
    if len(specs) == 2:
        return ActivationScheme.parse(f"{code}-{_two_stages(spec, specs[1])}")
    static = "" if spec.dynamic else "-static"
    if spec.qscheme == "per_tensor":
        return ActivationScheme.parse(f"{code}-tensor-f32{static}")
    if static:
        raise _error(spec, f"is static {spec.qscheme}", "static per_tensor, or dynamic")
    if spec.qscheme == "per_channel" and spec.axis in (0, 1):
        return ActivationScheme.parse(f"{code}-token-f32")
    if spec.qscheme == "per_group" and spec.axis in (1, -1):
        return ActivationScheme.parse(f"{code}-g{spec.group}-{_SCALES[spec.scale_format]}")
    raise _error(
        spec, f"is {spec.qscheme} with ch_axis={spec.axis}", "a scale per tensor, token or group"
    )


def _two_stages(spec: TensorSpec, scales: TensorSpec) -> str:
    """``g16-e4m3fn-tensor-static``: groups under a scale of their scales."""
    grouped = spec.qscheme == "per_group" and spec.axis in (1, -1) and spec.dynamic
    e4m3 = scales.dtype == "fp8_e4m3" and scales.qscheme == "per_tensor"
    if not scales.scales or not grouped or not e4m3:
        raise _error(spec, "has two stages", "dynamic groups under fp8_e4m3 scales per tensor")
    return f"g{spec.group}-e4m3fn-tensor{'' if scales.dynamic else '-static'}"


def _error(spec: TensorSpec, found: str, expected: str) -> CheckpointError:
    return CheckpointError(f"Quark config: {spec.where} {found}; expected {expected}")
