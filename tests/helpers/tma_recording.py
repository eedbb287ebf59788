"""The cases of tests/sim/test_tma_silicon.json: what memory held, and how results are named.

Each line of the file is one encoding or copy. Global memory held 16-bit words that count up (for
OPERANDS: interesting bit patterns), shared memory 0xCC; loads were recorded as a digest of 32 KiB
of shared memory from address 0x800, stores and reductions as one of 32 KiB of global memory. Counts
say whether an mbarrier that expected so many bytes completed; there are none below what came, since
such a phase may or may not complete while the bytes are coming.
"""

from __future__ import annotations

import functools
import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]

PATH = Path(__file__).parents[1] / "sim" / "test_tma_silicon.json"
CASES: list[dict[str, Any]] = json.loads(PATH.read_text(encoding="utf-8"))
SIZE = 32768
OPERATIONS = ("", "add", "min", "max", "inc", "dec", "and", "or", "xor")
OPERANDS = 9  # as the operation of a load or plain store: special operands
BULK = (
    "add.f32 add.f64 add.f16 add.bf16 min.f16 max.bf16 add.u64 min.s64 inc.u32 dec.u32 xor.b64 "
    "add.s32 max.u64 min.bf16 max.f16"
).split()


#: Bytes of an element, by the driver's code; those of sub-byte elements were all refused.
SIZES = (1, 2, 4, 4, 8, 8, 2, 4, 8, 2, 4, 4, 4, 1, 1, 1)

_MASK = (1 << 64) - 1


def mixed(x: int) -> int:
    """The recording's generator of operands."""
    x = (x + 0x9E3779B97F4A7C15) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


SPECIAL_16 = (
    "0 8000 1 8001 3ff 400 7bff fbff 7c00 fc00 7e00 fe01 7fff 3c00 bc00 7f80 ff80 7f81 7f 80 "
    "807f 3f80"
)
SPECIAL_32 = (
    "0 80000000 1 80000001 7fffff 807fffff 800000 80800000 7f7fffff ff7fffff 7f800000 ff800000 "
    "7fc00000 ffc00001 7fffffff 3f800000 bf800000 2 5 ffffffff fffffffe 1000000"
)


@functools.cache
def operands(size: int, recording: int) -> tuple[Bytes, Bytes]:
    """What global and shared memory held, with elements of `size` bytes."""
    special = [int(word, 16) for word in (SPECIAL_16 if size == 2 else SPECIAL_32).split()]
    sides = []
    for side in (0, 1):
        values = []
        for index in range(SIZE // size):
            r = mixed(index * 2 + side)
            value = mixed(r)
            if r % 4:
                value = special[(r >> 8) % len(special)]
                if size == 8:
                    infinite = recording == 2 and (r >> 40) % 8 == 0
                    sign = 0 if (r >> 44) & 1 else 1 << 63
                    value = sign | 0x7FF0 << 48 if infinite else value << 32 | r >> 60
            values.append(value & ((1 << 8 * size) - 1))
        sides.append(np.array(values, dtype=f"u{size}").view(np.uint8))
    return sides[0], sides[1]


def memories(case: dict[str, Any]) -> tuple[Bytes, Bytes]:
    """Global and shared memory before the copy."""
    size = SIZES[case["type"]]
    special = case.get("operation", 0) if case["kind"] != "bulk" else OPERANDS
    counting = np.arange(1 << 19, dtype=np.uint32).astype(np.uint16).view(np.uint8)
    if case["kind"] == "load":
        shared = np.full(SIZE, 0xCC, np.uint8)
        source = operands(size, case["set"])[0] if special == OPERANDS else counting
        return source.copy(), shared
    if special:
        blank, shared = operands(size, case["set"])
        plain = special == OPERANDS and case["kind"] == "store"
        return (np.zeros(SIZE, np.uint8) if plain else blank.copy()), shared
    shared = (np.arange(SIZE // 2) + 0x8000).astype(np.uint16).view(np.uint8)
    return np.zeros(1 << 20, np.uint8), shared


def digest(data: Bytes) -> str:
    return hashlib.blake2b(data[:SIZE].tobytes(), digest_size=8).hexdigest()
