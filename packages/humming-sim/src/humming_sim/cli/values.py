"""``--arg``: from its text to a buffer or scalar, and from a buffer to what is shown of it.

====================  =============================================================
``f32:1024``          a buffer of 1024 zeros
``f32:1024:FILL``     one filled with random, arange, zeros, a number, or a .npy file
``weights.npy``       a buffer with a file's numbers, in the file's type
``u32=7``             a scalar
====================  =============================================================
"""

from __future__ import annotations

import argparse
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from humming_sim.errors import LaunchError
from humming_sim.numbers.formats import FORMATS, Format, Kind, decode
from humming_sim.numbers.rounding import Rounding, encode

__all__ = ["Argument", "Spec", "make_argument", "parse_spec"]

_BUFFER = re.compile(r"(\w+):(\d+)(?::(.+))?")
_SCALAR = re.compile(r"(\w+)=(.+)")

#: Formats that NumPy has: results are saved in these, all others as their codes.
_NATIVE: dict[str, npt.DTypeLike] = {
    **{f"{kind}{bits}": f"{kind.replace('s', 'i')}{bits // 8}"
       for kind in "su" for bits in (8, 16, 32, 64)},
    "f16": np.float16,
    "f32": np.float32,
    "f64": np.float64,
}  # fmt: skip


@dataclass(frozen=True)
class Spec:
    """One ``--arg``, understood.

    Attributes:
        type: a key of :data:`FORMATS`; "" is that of the file `fill`.
        count: elements of a buffer; None for a scalar, 0 for as many as the file has.
        fill: how a buffer is filled, or a scalar's value.
    """

    type: str
    count: int | None
    fill: str


@dataclass(frozen=True)
class Argument:
    """An argument of the launch.

    Attributes:
        type: number format of its elements.
        codes: the buffer's elements, in NumPy's type where it has one, else as unsigned codes; a
            scalar has one element.
        is_buffer: whether the kernel gets a pointer.
    """

    type: str
    codes: npt.NDArray[Any]
    is_buffer: bool

    @property
    def value(self) -> Any:
        """What :func:`humming_sim.launch` takes."""
        return self.codes if self.is_buffer else self.codes[0]

    def numbers(self, count: int | None = None) -> list[float | int]:
        """The first `count` elements as numbers, or all."""
        codes = self.codes[:count]
        found: list[float | int] = (
            codes.tolist() if self.type in _NATIVE else decode(self.type, codes).tolist()
        )
        return found


def parse_spec(text: str) -> Spec:
    """Understand one ``--arg``.

    Raises:
        argparse.ArgumentTypeError: its form, type or value is wrong.
    """
    buffer, scalar = _BUFFER.fullmatch(text), _SCALAR.fullmatch(text)
    if buffer:
        spec = Spec(buffer[1], int(buffer[2]), buffer[3] or "zeros")
    elif scalar:
        spec = Spec(scalar[1], None, scalar[2])
    elif text.endswith(".npy"):
        return Spec("", 0, text)
    else:
        raise argparse.ArgumentTypeError(
            f"{text!r} is neither TYPE:COUNT[:FILL], TYPE=VALUE nor a .npy file"
        )
    known = [name for name, fmt in FORMATS.items() if fmt.bits % 8 == 0]
    if spec.type not in known:
        raise argparse.ArgumentTypeError(f"{spec.type!r} is none of {', '.join(known)}")
    if spec.count == 0:
        raise argparse.ArgumentTypeError(f"{text!r} has no elements")
    if spec.fill not in _FILLS and not spec.fill.endswith(".npy"):
        try:
            _number(FORMATS[spec.type], spec.fill)
        except ValueError:
            what = "" if spec.count is None else f"{', '.join(_FILLS)}, a .npy file, or "
            raise argparse.ArgumentTypeError(
                f"{spec.fill!r} is not {what}a number that {spec.type} holds"
            ) from None
    elif spec.count is None:
        raise argparse.ArgumentTypeError(f"{spec.fill!r} fills a buffer; {text!r} is a scalar")
    return spec


def make_argument(spec: Spec, index: int) -> Argument:
    """The argument at position `index`, which is also the seed of its random numbers.

    Raises:
        LaunchError: a file does not hold what it should.
        OSError: it can't be read.
    """
    if spec.fill.endswith(".npy"):
        return _from_file(spec)
    fmt = FORMATS[spec.type]
    if spec.fill in _FILLS:
        codes = _FILLS[spec.fill](fmt, spec.count or 1, index)
    else:
        codes = np.full(spec.count or 1, _number(fmt, spec.fill))
    return Argument(spec.type, _in_native_type(spec.type, codes), spec.count is not None)


def _from_file(spec: Spec) -> Argument:
    path = Path(spec.fill)
    try:
        numbers = np.load(path, allow_pickle=False).reshape(-1)
    except (ValueError, EOFError) as error:
        raise LaunchError(f"{path}: {error}") from error
    types = {np.dtype(dtype): name for name, dtype in _NATIVE.items()}
    name = spec.type or types.get(numbers.dtype, "")
    if not name:
        raise LaunchError(f"{path} holds {numbers.dtype}; say as what: TYPE:COUNT:{path}")
    if spec.count and spec.count != len(numbers):
        raise LaunchError(f"{path} holds {len(numbers)} elements instead of {spec.count}")
    if not spec.type:
        return Argument(name, np.ascontiguousarray(numbers), True)
    return Argument(name, _in_native_type(name, _codes(FORMATS[name], numbers)), True)


def _number(fmt: Format, text: str) -> Any:
    """The code of a number.

    Raises:
        ValueError: it is none, or `fmt` does not hold it.
    """
    if not _is_integer(fmt):
        return _codes(fmt, np.array([float(text)]))[0]
    value = int(text, 0)
    if not -(fmt.sign or 0) <= value <= fmt.largest:
        raise ValueError(f"{fmt.name} does not hold {value}")
    return fmt.storage(value % (1 << fmt.bits))


def _is_integer(fmt: Format) -> bool:
    return fmt.kind is Kind.INTEGER and not fmt.bias


def _codes(fmt: Format, numbers: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Codes of numbers: integers wrap around, others are rounded to the nearest."""
    if _is_integer(fmt):
        whole = numbers if numbers.dtype.kind in "iu" else numbers.astype(np.int64)
        return whole.astype(fmt.storage)
    nearest = Rounding("rz" if fmt.kind is Kind.POWER else "rn")
    return encode(fmt.name, numbers.astype(np.float64), nearest)


def _in_native_type(name: str, codes: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return codes.view(_NATIVE[name]) if name in _NATIVE else codes


def _zeros(fmt: Format, count: int, seed: int) -> npt.NDArray[Any]:
    return np.zeros(count, fmt.storage)


def _arange(fmt: Format, count: int, seed: int) -> npt.NDArray[Any]:
    return _codes(fmt, np.arange(count))


def _random(fmt: Format, count: int, seed: int) -> npt.NDArray[Any]:
    """Integers of all sizes; floats around 0 with a variance of 1."""
    random = np.random.default_rng(seed)
    if _is_integer(fmt):
        return random.integers(0, 1 << fmt.bits, count, dtype=fmt.storage, endpoint=False)
    return _codes(fmt, random.standard_normal(count))


_FILLS = {"zeros": _zeros, "random": _random, "arange": _arange}
