"""Arguments of a kernel, packed as the driver takes them: values, and an array of their addresses.

Every slot starts a 64-bit word, so that changing one is a single store.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, MutableSequence, Sequence
from functools import lru_cache, partial
from typing import Any, cast

from humming.backend import TensorMap
from humming.errors import ConfigError, LaunchError

__all__ = ["KINDS", "ArgumentBlock"]

#: What a slot can hold, and its bytes. "ptr" is a tensor, an address or None; "map" a pair
#: (TensorMap, tensor).
KINDS = {"ptr": 8, "i32": 4, "u32": 4, "i64": 8, "u64": 8, "f32": 4, "f64": 8, "map": 128}

_WORD = 8
_KEPT_MAPS = 64
_RANGES = {
    "i32": (-(2**31), 2**31),
    "u32": (0, 2**32),
    "i64": (-(2**63), 2**63),
    "u64": (0, 2**64),
}

#: Puts a value into its slot; raises ConfigError.
_Put = Callable[[object], None]


class ArgumentBlock:
    """The arguments of one kernel on one device.

    Args:
        kernel: its name, for messages.
        kinds: of its arguments; keys of :data:`KINDS`.
        device: ordinal of the device that tensors must be on.
        encode: the words of a tensor map that is at an address.

    Attributes:
        address: of the array of addresses, as the driver's `kernelParams`.
        put: for each slot, a function that sets its value; it raises ConfigError.
        kept: what must live as long as the addresses in here.
    """

    def __init__(
        self,
        kernel: str,
        kinds: Sequence[str],
        device: int,
        encode: Callable[[TensorMap, int], Sequence[int]],
    ) -> None:
        self.kernel, self.kinds, self.device = kernel, tuple(kinds), device
        self._encode = encode
        self.kept: tuple[object, ...] = ()
        starts, size = [], 0
        for index, kind in enumerate(kinds):
            if kind not in KINDS:
                allowed = f"a kind: {', '.join(KINDS)}"
                raise ConfigError(f"argument {index} of {kernel}", kind, allowed)
            starts.append(size)
            size += -(-KINDS[kind] // _WORD)
        self._starts = starts
        self._words = (ctypes.c_uint64 * max(size, 1))()
        base = ctypes.addressof(self._words)
        self._pointers = (ctypes.c_void_p * max(len(starts), 1))(
            *(base + start * _WORD for start in starts)
        )
        self.address = ctypes.addressof(self._pointers)
        self.put: tuple[_Put, ...] = tuple(self._putter(index) for index in range(len(starts)))

    def raw(self, index: int) -> bytes:
        """The bytes that the kernel gets for an argument."""
        start = self._starts[index] * _WORD
        return bytes(memoryview(self._words).cast("B")[start : start + KINDS[self.kinds[index]]])

    def mapper(self, index: int, description: TensorMap) -> Callable[[int], None]:
        """Puts the map of what is at an address into its slot, always of this description."""
        words, start = self._words, self._starts[index]
        end = start + KINDS["map"] // _WORD
        # Found by the address alone: hashes of descriptions take longer than all the rest.
        encode = lru_cache(maxsize=_KEPT_MAPS)(partial(self._encode, description))

        def put(address: int) -> None:
            words[start:end] = [*encode(address)]

        return put

    def word(self, index: int) -> tuple[MutableSequence[int], int]:
        """Words of 64 bits, and which of them is an argument or begins it."""
        return cast(MutableSequence[int], self._words), self._starts[index]

    def __str__(self) -> str:
        values = (_shown(kind, self.raw(index)) for index, kind in enumerate(self.kinds))
        pairs = zip(self.kinds, values, strict=True)
        return ", ".join(f"{index} {kind} {text}" for index, (kind, text) in enumerate(pairs))

    def expect_sizes(self, sizes: Sequence[int]) -> None:
        """Compare with the sizes of the kernel's own parameters, bytes.

        Raises:
            LaunchError: the number of arguments or a size differs.
        """
        mine = [KINDS[kind] for kind in self.kinds]
        if len(mine) != len(sizes):
            said = f"the kernel has {len(sizes)} parameters, and {len(mine)} arguments came"
            raise LaunchError(self.kernel, "arguments", said)
        for index, (has, takes) in enumerate(zip(mine, sizes, strict=True)):
            if has != takes:
                said = f"argument {index} ({self.kinds[index]}) has {has} bytes, not {takes}"
                raise LaunchError(self.kernel, "arguments", said)

    def _putter(self, index: int) -> _Put:
        kind, start = self.kinds[index], self._starts[index]
        where = f"argument {index} ({kind}) of {self.kernel}"
        if kind == "ptr":
            return self._pointer(start, where)
        if kind == "map":
            return self._map(start, where)
        if kind in _RANGES:
            return self._integer(start, where, kind)
        return self._float(start, where, kind)

    def _pointer(self, start: int, where: str) -> _Put:
        words, device = self._words, self.device

        def put(value: Any) -> None:
            if type(value) is not int and value is not None:
                try:
                    if value.get_device() == device:
                        words[start] = value.data_ptr()
                        return
                except AttributeError:
                    pass  # no tensor; refused below
            words[start] = _address(value, where, device)

        return put

    def _map(self, start: int, where: str) -> _Put:
        words, encode, device = self._words, self._encode, self.device
        end = start + KINDS["map"] // _WORD

        def put(value: Any) -> None:
            if not (isinstance(value, tuple) and len(value) == 2 and type(value[0]) is TensorMap):
                raise ConfigError(where, described(value), "a pair (TensorMap, tensor)")
            words[start:end] = [*encode(value[0], _address(value[1], where, device))]

        return put

    def _integer(self, start: int, where: str, kind: str) -> _Put:
        words, (low, high) = self._words, _RANGES[kind]
        mask = 2 ** (8 * KINDS[kind]) - 1

        def put(value: Any) -> None:
            if type(value) is not int or not low <= value < high:
                raise ConfigError(where, described(value), f"an int from {low} to {high - 1}")
            words[start] = value & mask

        return put

    def _float(self, start: int, where: str, kind: str) -> _Put:
        words = self._words
        pack, unpack = ("<f", "<I") if kind == "f32" else ("<d", "<Q")

        def put(value: Any) -> None:
            try:
                (words[start],) = struct.unpack(unpack, struct.pack(pack, value))
            except (struct.error, OverflowError):
                raise ConfigError(where, described(value), f"a number within {kind}") from None

        return put


def described(value: object) -> object:
    """A value as an error shows it: a tensor without its contents, which are on the GPU."""
    if hasattr(value, "data_ptr") and hasattr(value, "dtype"):
        shape = "x".join(map(str, getattr(value, "shape", ())))
        return f"a {value.dtype} tensor {shape} on {getattr(value, 'device', 'no device')}"
    if isinstance(value, tuple):
        return tuple(described(part) for part in value)
    return value


def _address(value: Any, where: str, device: int) -> int:
    """Where a tensor is, or an address that came as a number, or none at all."""
    if type(value) is int and 0 <= value < 2**64:
        return value
    if value is None:
        return 0
    try:
        if value.get_device() == device:
            return int(value.data_ptr())
    except AttributeError:
        pass  # no tensor
    raise ConfigError(where, described(value), f"a tensor on cuda:{device}, an address or None")


def _shown(kind: str, raw: bytes) -> str:
    if kind == "map":
        return f"{len(raw)} bytes"
    if kind == "ptr":
        return hex(int.from_bytes(raw, "little"))
    if kind in _RANGES:
        return str(int.from_bytes(raw, "little", signed=kind.startswith("i")))
    return f"{struct.unpack('<f' if kind == 'f32' else '<d', raw)[0]:g}"
