"""Scale tensors of checkpoints: which format a header means, and reading them exactly."""

from __future__ import annotations

import torch

from humming.checkpoints.store import TensorInfo
from humming.errors import CheckpointError
from humming.formats.number import NumberFormat
from humming.formats.table import number_format
from humming.formats.tensors import as_storage, decode

__all__ = ["BIAS_DTYPES", "finite_scalar", "finite_scales", "scale_format"]

#: safetensors dtype of a scale tensor to the format it holds. A byte without a type is an
#: exponent (OCP MX): no writer stores integer scales in these families.
_FORMATS = {
    "F32": "f32",
    "F16": "f16",
    "BF16": "bf16",
    "F8_E4M3": "e4m3fn",
    "F8_E8M0": "e8m0",
    "U8": "e8m0",
}
BIAS_DTYPES = ("F16", "BF16", "F32")


def scale_format(name: str, info: TensorInfo, *allowed: str) -> NumberFormat:
    """Format of the scales in a tensor with this header.

    Raises:
        CheckpointError: the dtype holds no scales, or not of one of the formats `allowed`.
    """
    found = _FORMATS.get(info.dtype)
    if found is None or found not in allowed:
        raise CheckpointError(
            f"expected scales in {' or '.join(allowed)}, found {info}", tensor=name
        )
    return number_format(found)


def finite_scales(name: str, tensor: torch.Tensor, fmt: NumberFormat) -> torch.Tensor:
    """`tensor` in the storage dtype of `fmt`.

    Raises:
        CheckpointError: a scale is NaN or infinite: the whole block would be.
    """
    stored = as_storage(tensor, fmt)
    bad = ~torch.isfinite(decode(stored, fmt))
    if bool(bad.any()):
        where = [int(i) for i in bad.nonzero()[0]]
        raise CheckpointError(f"{fmt} scale at {where} is NaN or infinite", tensor=name)
    return stored


def finite_scalar(name: str, tensor: torch.Tensor, *, invert: bool = False) -> torch.Tensor:
    """One positive scale as float32 [].

    Args:
        name: of the tensor, for errors.
        tensor: one element, f16, bf16 or f32.
        invert: whether the file stores the divisor; then the result is 1 / value, rounded once.

    Raises:
        CheckpointError: zero, negative, NaN or infinite, or its inverse is.
    """
    value = tensor.to(torch.float32).reshape(())
    result = torch.reciprocal(value.to(torch.float64)).to(torch.float32) if invert else value
    if not (bool(torch.isfinite(result)) and bool(result > 0) and bool(torch.isfinite(value))):
        kind = "divisor" if invert else "scale"
        raise CheckpointError(f"{kind} {float(value)}, expected a positive number", tensor=name)
    return result
