"""What bulk reductions compute, on bit patterns.

PTX ISA 9.0, 9.7.9.25.4.2 (cp.reduce.async.bulk), 9.7.9.27.1.3 (tensors), 9.7.13.7 (red.async). An
H200 gives the same bits for every operation here. Where the manual differs the H200 counts:
reductions of f32 keep subnormals unless a tensor map of an _FTZ type asks for flushing.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from humming_sim.numbers.arithmetic import Modifiers, operation
from humming_sim.numbers.formats import number_format

__all__ = ["STORAGE", "Reduction", "reduction"]

Bits = npt.NDArray[Any]

#: (what memory holds, what comes) to what memory then holds; unsigned bits, [n].
Reduction = Callable[[Bits, Bits], Bits]

#: Type of a reduction -> the unsigned integers that hold its operands.
STORAGE: dict[str, npt.DTypeLike] = {
    **dict.fromkeys(("f16", "bf16"), np.uint16),
    **dict.fromkeys(("u32", "s32", "b32", "f32", "f32.ftz"), np.uint32),
    **dict.fromkeys(("u64", "s64", "b64", "f64"), np.uint64),
}


@cache
def reduction(how: str, type_: str) -> Reduction:
    """The function of a reduction that :mod:`humming_sim.tma.bulk` allows.

    Args:
        how: add, min, max, inc, dec, and, or, xor.
        type_: a key of :data:`STORAGE`.
    """
    if type_ in ("f16", "bf16") and how in ("min", "max"):
        return _extreme(how, type_)
    if type_[0] in "fb" and how == "add":
        kind, _, ftz = type_.partition(".")
        add: Reduction = operation("add", kind, Modifiers(ftz=bool(ftz)))
        return _add_float64 if kind == "f64" else add
    if type_[0] == "s" and how in ("min", "max"):
        pick: Any = np.minimum if how == "min" else np.maximum
        signed = np.dtype(f"i{int(type_[1:]) // 8}")

        def extreme(old: Bits, new: Bits) -> Bits:
            result: Bits = pick(old.view(signed), new.view(signed)).view(old.dtype)
            return result

        return extreme
    return _UNSIGNED[how]


def _increase(old: Bits, new: Bits) -> Bits:
    result: Bits = np.where(old >= new, old.dtype.type(0), old + old.dtype.type(1))
    return result


def _decrease(old: Bits, new: Bits) -> Bits:
    return np.where((old == 0) | (old > new), new, old - old.dtype.type(1))


_UNSIGNED: dict[str, Reduction] = {
    "add": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "inc": _increase,
    "dec": _decrease,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}


def _add_float64(old: Bits, new: Bits) -> Bits:
    """Rounded to nearest; NaN operands stay as they are, the incoming one first."""
    total = operation("add", "f64")(old, new)
    # The NaN of opposite infinities has its sign set.
    result = np.where(_is_nan(total), np.uint64(0xFFF8_0000_0000_0000), total)
    result = np.where(_is_nan(old), old, result)
    return np.where(_is_nan(new), new, result)


def _is_nan(bits: Bits) -> npt.NDArray[np.bool_]:
    doubles: npt.NDArray[np.float64] = bits.view(np.float64)
    return np.isnan(doubles)


def _extreme(how: str, type_: str) -> Reduction:
    """min and max of 16-bit floats: a number wins over NaN, -0 lies below +0."""
    nan = np.uint16(number_format(type_).nan or 0)
    infinity = np.uint16(number_format(type_).infinity or 0)
    pick: Any = np.minimum if how == "min" else np.maximum

    def run(old: Bits, new: Bits) -> Bits:
        chosen = _unordered(pick(_ordered(old), _ordered(new)))
        odd_old, odd_new = (old & 0x7FFF) > infinity, (new & 0x7FFF) > infinity
        chosen = np.where(odd_old, np.where(odd_new, nan, new), np.where(odd_new, old, chosen))
        return chosen.astype(np.uint16)

    return run


def _ordered(bits: Bits) -> npt.NDArray[np.int32]:
    """16-bit floats as integers in the same order."""
    wide = bits.astype(np.int32)
    return np.where(wide & 0x8000, ~wide & 0x7FFF, wide | 0x8000)


def _unordered(ordered: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    return np.where(ordered & 0x8000, ordered & 0x7FFF, ~ordered & 0xFFFF)
