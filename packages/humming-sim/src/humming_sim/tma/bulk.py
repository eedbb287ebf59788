"""Rules of bulk copies and bulk reductions, as tables and pure functions.

PTX ISA 9.0, 9.7.9.25.4 (cp.async.bulk, cp.reduce.async.bulk, cp.async.bulk.prefetch), 9.7.9.27.1.3
(cp.reduce.async.bulk.tensor), 9.7.13.7 (red.async) and 9.7.9.13 (st.bulk).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = [
    "REDUCE_GLOBAL",
    "REDUCE_SHARED",
    "REDUCE_TENSOR",
    "Problem",
    "copied_bytes",
    "copy_problem",
    "initialise_problem",
    "reduction_refusal",
]

Addresses = npt.NDArray[np.int64]
Table = dict[str, frozenset[str]]

#: What addresses and sizes of bulk copies are multiples of, bytes.
UNIT = 16

#: Largest size of st.bulk, bytes.
LARGEST_INITIALISED = 16777216


def _table(**rows: str) -> Table:
    return {op: frozenset(types.split()) for ops, types in rows.items() for op in ops.split("_")}


#: Operation -> element types, by destination of a reduction.
REDUCE_SHARED = _table(add="u32 s32 u64", min_max="u32 s32", inc_dec="u32", and_or_xor="b32")
REDUCE_GLOBAL = _table(
    add="u32 s32 u64 f32 f64 f16 bf16",
    min_max="u32 s32 u64 s64 f16 bf16",
    inc_dec="u32",
    and_or_xor="b32 b64",
)
#: The manual's table lacks f64 and calls all floats of 32 bits f32; an H200 does as said here.
REDUCE_TENSOR = REDUCE_GLOBAL | {"add": REDUCE_GLOBAL["add"] | {"f32.ftz"}}


@dataclass(frozen=True)
class Problem:
    """A use of an instruction whose behaviour is undefined.

    Attributes:
        check: the check that finds it, a key of :data:`humming_sim.findings.CHECKS`.
        message: what is wrong and what was expected.
        index: which of the copies, the first that is wrong.
        space: "shared" or "global", if it is about an address.
        address: that address.
    """

    check: str
    message: str
    index: int = 0
    space: str = ""
    address: int | None = None


def copy_problem(
    destination: Addresses, source: Addresses, sizes: Addresses, spaces: tuple[str, str]
) -> Problem | None:
    """The first address or size among n bulk copies that is no multiple of 16, or None.

    Args:
        destination, source, sizes: int64 [n], bytes.
        spaces: "shared" or "global", of destination and source.
    """
    named = (("destination", destination, spaces[0]), ("source", source, spaces[1]))
    for name, addresses, space in named:
        wrong = addresses % UNIT != 0
        if wrong.any():
            index = int(np.argmax(wrong))
            message = f"the {name} of a bulk copy must be a multiple of {UNIT} bytes"
            return Problem("alignment", message, index, space, int(addresses[index]))
    wrong = sizes % UNIT != 0
    if wrong.any():
        index = int(np.argmax(wrong))
        message = f"a bulk copy of {int(sizes[index])} bytes; the size must be a multiple of {UNIT}"
        return Problem("alignment", message, index)
    return None


def copied_bytes(mask: int, size: int) -> npt.NDArray[np.bool_]:
    """Which bytes of a copy ``.cp_mask`` lets through: bit i is for byte i of each 16.

    Args:
        mask: the 16-bit byteMask.
        size: bytes of the copy, a multiple of 16.

    Returns:
        bool [size].
    """
    bits = (mask >> np.arange(UNIT)) & 1
    return np.tile(bits.astype(np.bool_), size // UNIT)


def initialise_problem(addresses: Addresses, sizes: Addresses) -> Problem | None:
    """The first of n st.bulk with a size or address that it does not take, or None.

    Args:
        addresses, sizes: int64 [n], bytes.
    """
    wrong = (sizes % 8 != 0) | (sizes > LARGEST_INITIALISED) | (addresses % 8 != 0)
    if not wrong.any():
        return None
    index = int(np.argmax(wrong))
    message = (
        f"st.bulk of {int(sizes[index])} bytes; address and size must be multiples of 8, "
        f"the size at most {LARGEST_INITIALISED}"
    )
    return Problem("alignment", message, index, "shared", int(addresses[index]))


def reduction_refusal(table: Table, operation: str, element: str) -> str | None:
    """Why `table` lacks this reduction, with what it has; None if it has it."""
    types = table.get(operation)
    if types is None:
        return f"no reduction .{operation}; there are {', '.join(sorted(table))}"
    if element not in types:
        return f"no reduction .{operation}.{element}; .{operation} takes {', '.join(sorted(types))}"
    return None
