"""State spaces: what an address means in each, and the windows of the generic space.

Generic addresses (PTX ISA 9.0, 5.1.4) of shared and local memory and of kernel parameters lie in
windows far from each other and from global memory, so that no address means two things.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from humming_sim.isa.builder import Environment
from humming_sim.machine.frame import Frame

__all__ = ["LOCAL", "PARAM", "SHARED", "WINDOW", "Spaces"]

WINDOW = 1 << 40  # bytes of each window
LOCAL, SHARED, PARAM = WINDOW, 2 * WINDOW, 3 * WINDOW

Addresses = npt.NDArray[np.int64]


class Spaces:
    """Loads and stores by space: "global", "shared", "shared::cluster", "local", "param", ""."""

    def __init__(self, environment: Environment) -> None:
        self._parameters = environment.parameters
        self._local = environment.local

    def load(self, frame: Frame, space: str, addresses: Addresses, width: int) -> npt.NDArray[Any]:
        """`width` bytes at each address [n], as uint or void of that width."""
        if space == "global":
            return frame.machine.memory.load(frame, addresses, width)
        if space == "shared":
            return frame.machine.shared.load(frame, addresses, width)
        if space == "shared::cluster":
            return frame.machine.shared.load(frame, addresses, width, peers=True)
        if space == "local":
            return self._load_local(frame, addresses, width)
        if space == "param":
            return self._load_parameter(frame, addresses, width)
        return self._load_generic(frame, addresses, width)

    def store(
        self, frame: Frame, space: str, addresses: Addresses, values: npt.NDArray[Any]
    ) -> None:
        """Store values [n] of 1 to 32 bytes each."""
        if space == "global":
            frame.machine.memory.store(frame, addresses, values)
        elif space == "shared":
            frame.machine.shared.store(frame, addresses, values)
        elif space == "shared::cluster":
            frame.machine.shared.store(frame, addresses, values, peers=True)
        elif space == "local":
            self._store_local(frame, addresses, values)
        else:
            for part, window, mask, inner in self.split(frame, addresses):
                if window == "param":
                    frame.machine.report(
                        part,
                        "bounds",
                        "kernel parameters are read-only",
                        index=0,
                        space="param",
                        address=int(inner[0]),
                    )
                self.store(part, window, inner, values if mask is None else values[mask])

    def split(
        self, frame: Frame, addresses: Addresses
    ) -> Iterator[tuple[Frame, str, npt.NDArray[np.bool_] | None, Addresses]]:
        """(threads, space, which of the frame's, address in the space) of generic addresses.

        Which of the frame's is None if it is all.
        """
        window = np.minimum(addresses // WINDOW, 4)
        names = {LOCAL // WINDOW: "local", SHARED // WINDOW: "shared::cluster"}
        names[PARAM // WINDOW] = "param"
        kinds = np.unique(window).tolist()
        for kind in kinds:
            name = names.get(kind, "global")
            mask = None if len(kinds) == 1 else window == kind
            chosen = addresses if mask is None else addresses[mask]
            part = frame if mask is None else frame.of(frame.threads()[mask])
            yield part, name, mask, chosen - kind * WINDOW if name != "global" else chosen

    def _load_generic(self, frame: Frame, addresses: Addresses, width: int) -> npt.NDArray[Any]:
        out: npt.NDArray[Any] | None = None
        for part, space, mask, inner in self.split(frame, addresses):
            values = self.load(part, space, inner, width)
            if mask is None:
                return values
            if out is None:
                out = np.zeros(frame.n, values.dtype)
            out[mask] = values
        if out is None:
            raise IndexError("no thread loads")
        return out

    # --------------------------------------------------------------------------------- local, param

    def _load_local(self, frame: Frame, addresses: Addresses, width: int) -> npt.NDArray[Any]:
        rows = self._check_local(frame, addresses, width)
        picked = self._local[rows[:, None], addresses[:, None] + np.arange(width)]
        out: npt.NDArray[Any] = picked.view(_raw(width)).reshape(-1)
        return out

    def _store_local(self, frame: Frame, addresses: Addresses, values: npt.NDArray[Any]) -> None:
        width = values.dtype.itemsize
        rows = self._check_local(frame, addresses, width)
        raw = np.ascontiguousarray(values).view(np.uint8).reshape(-1, width)
        self._local[rows[:, None], addresses[:, None] + np.arange(width)] = raw

    def _check_local(self, frame: Frame, addresses: Addresses, width: int) -> npt.NDArray[np.intp]:
        size = self._local.shape[1]
        _check(frame, "local", addresses, width, size)
        return frame.threads()

    def _load_parameter(self, frame: Frame, addresses: Addresses, width: int) -> npt.NDArray[Any]:
        offsets = np.where(addresses >= PARAM, addresses - PARAM, addresses)
        _check(frame, "param", offsets, width, len(self._parameters))
        first = int(offsets[0])
        if (offsets == first).all():
            value = self._parameters[first : first + width].view(_raw(width))
            return np.broadcast_to(value, (frame.n,))
        picked = self._parameters[offsets[:, None] + np.arange(width)]
        return picked.view(_raw(width)).reshape(-1)


def _raw(width: int) -> npt.DTypeLike:
    return np.dtype(f"u{width}") if width <= 8 else np.dtype(f"V{width}")


def _check(frame: Frame, space: str, addresses: Addresses, width: int, size: int) -> None:
    bad = (addresses < 0) | (addresses + width > size)
    if bad.any():
        index = int(np.argmax(bad))
        frame.machine.report(
            frame,
            "bounds",
            f"{width} bytes at byte {int(addresses[index])} of {size}",
            index=index,
            space=space,
            address=int(addresses[index]),
        )
    wrong = addresses % width != 0
    if wrong.any():
        index = int(np.argmax(wrong))
        frame.machine.report(
            frame,
            "alignment",
            f"a {width}-byte access needs an address that {width} divides",
            index=index,
            space=space,
            address=int(addresses[index]),
        )
