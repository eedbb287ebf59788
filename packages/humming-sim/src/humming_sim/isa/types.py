"""PTX types as NumPy sees them, and how immediates read as them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from humming_sim.errors import PtxError
from humming_sim.ptx.model import BITS, Immediate

__all__ = ["DTYPES", "constant", "width_of"]

#: bf16 and packed types stay bits; :mod:`humming_sim.numbers` computes with them.
DTYPES: dict[str, npt.DTypeLike] = {
    "pred": np.bool_,
    **{f"{kind}{bits}": np.dtype(f"u{bits // 8}") for kind in "bu" for bits in (8, 16, 32, 64)},
    **{f"s{bits}": np.dtype(f"i{bits // 8}") for bits in (8, 16, 32, 64)},
    "f16": np.float16,
    "bf16": np.uint16,
    "f16x2": np.uint32,
    "bf16x2": np.uint32,
    "f32": np.float32,
    "f64": np.float64,
}


def width_of(type_: str) -> int:
    """Bits of a PTX type.

    Raises:
        PtxError: if there is no such type.
    """
    if type_ not in BITS:
        raise PtxError(f".{type_} is no type that can be held in registers here")
    return BITS[type_]


def constant(immediate: Immediate, type_: str) -> Any:
    """A literal as a NumPy scalar of a PTX type."""
    dtype = np.dtype(DTYPES[type_])
    bits = immediate.value
    if immediate.kind != "int" and type_ in ("f32", "f64", "f16"):
        source = np.dtype("f4") if immediate.kind == "f32" else np.dtype("f8")
        value = np.frombuffer(bits.to_bytes(source.itemsize, "little"), source)
        return value.astype(dtype)[0] if dtype != source else value[0]
    if type_ == "pred":
        return np.bool_(bits != 0)
    # An integer where f32 or f64 is expected is that value (PTX ISA 9.0, 4.5.3); f16 has no
    # literals, so there it is bits.
    if type_ in ("f32", "f64") and immediate.kind == "int":
        return dtype.type(bits)
    raw = (bits % (1 << 8 * dtype.itemsize)).to_bytes(dtype.itemsize, "little")
    return np.frombuffer(raw, dtype)[0]
