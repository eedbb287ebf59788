"""A group of threads that executes one instruction together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Union

import numpy as np
import numpy.typing as npt

from humming_sim.machine.geometry import WARP

if TYPE_CHECKING:
    from humming_sim.machine.machine import Machine

__all__ = ["Frame", "Selection", "Warps", "as_selection"]

#: Threads of the wave, ascending: a slice where they are neighbours, so that reading registers
#: makes a view, else their numbers.
Selection = Union[slice, npt.NDArray[np.intp]]  # noqa: UP007 - evaluated on Python 3.10


def as_selection(threads: npt.NDArray[np.intp]) -> Selection:
    """The shortest form of ascending thread numbers."""
    first, last = int(threads[0]), int(threads[-1])
    if last - first + 1 == len(threads):
        return slice(first, last + 1)
    return threads


class Frame:
    """Threads, and which instruction they are at.

    Attributes:
        machine: whose threads these are.
        sel: which threads; indexes every per-thread array.
        n: how many.
        pool: the scheduler's group that they belong to.
        at: index of the instruction in the kernel.
    """

    __slots__ = ("at", "machine", "n", "pool", "sel")

    def __init__(self, machine: Machine, sel: Selection, n: int, pool: int) -> None:
        self.machine = machine
        self.sel = sel
        self.n = n
        self.pool = pool
        self.at = 0

    def copy(self) -> Frame:
        """The same threads at the same instruction, for what outlives the instruction."""
        frame = Frame(self.machine, self.sel, self.n, self.pool)
        frame.at = self.at
        return frame

    def threads(self) -> npt.NDArray[np.intp]:
        """Thread numbers, ascending, [n]."""
        if isinstance(self.sel, slice):
            return np.arange(self.sel.start, self.sel.stop)
        return self.sel

    def ctas(self) -> npt.NDArray[np.intp]:
        """CTA of each thread, [n]."""
        return self.machine.cta_of[self.sel]

    def narrow(self, mask: npt.NDArray[np.bool_]) -> Frame | None:
        """The threads for which `mask` [n] holds; None if there are none, self if all."""
        count = int(np.count_nonzero(mask))
        if count == self.n:
            return self
        if not count:
            return None
        return self.of(self.threads()[mask])

    def of(self, threads: npt.NDArray[np.intp]) -> Frame:
        """A frame of these ascending threads at the same instruction."""
        frame = Frame(self.machine, as_selection(threads), len(threads), self.pool)
        frame.at = self.at
        return frame

    def expand(self, values: Any) -> npt.NDArray[Any]:
        """A scalar or [n] as [n]."""
        array = np.asarray(values)
        return array if array.shape[:1] == (self.n,) else np.broadcast_to(array, (self.n,))

    def uniform(self, values: Any) -> Any:
        """The one value of a scalar or [n] that has to be the same in all threads, as a Python int.

        Reports "convergence" if it is not.
        """
        array = np.asarray(values)
        if array.ndim == 0:
            return array.item()
        first = array[0]
        if not (array == first).all():
            odd = int(np.argmax(array != first))
            self.machine.report(
                self,
                "convergence",
                f"all threads must give the same value here, {first:#x}; this one gives "
                f"{int(array[odd]):#x}",
                index=odd,
            )
        return first.item()

    def warps(self) -> Warps:
        """The threads by warp and lane."""
        return Warps(self)


class Warps:
    """A frame's threads arranged by warp and lane.

    Attributes:
        frame: the frame.
        ids: warp numbers in the wave (thread // 32), [W].
        active: which lanes take part, [W, 32].
        full: whether all lanes of all these warps do.
    """

    __slots__ = ("_flat", "active", "frame", "full", "ids")

    def __init__(self, frame: Frame) -> None:
        self.frame = frame
        sel = frame.sel
        if isinstance(sel, slice) and sel.start % WARP == 0 and sel.stop % WARP == 0:
            self.full = True
            self.ids = np.arange(sel.start // WARP, sel.stop // WARP)
        else:
            threads = frame.threads()
            self.full = len(threads) % WARP == 0 and bool(
                (threads[WARP - 1 :: WARP] - threads[::WARP] == WARP - 1).all()
                and (threads[::WARP] % WARP == 0).all()
            )
            self.ids = threads[::WARP] // WARP if self.full else np.unique(threads // WARP)
        self.active: npt.NDArray[np.bool_] = np.ones((len(self.ids), WARP), np.bool_)
        self._flat: npt.NDArray[np.intp] | None = None
        if not self.full:
            threads = frame.threads()
            self._flat = np.searchsorted(self.ids, threads // WARP) * WARP + threads % WARP
            self.active[:] = False
            self.active.reshape(-1)[self._flat] = True

    def spread(self, values: Any, fill: Any = 0) -> npt.NDArray[Any]:
        """[n] (or a scalar) as [W, 32]; lanes that don't take part get `fill`."""
        values = self.frame.expand(values)
        if self._flat is None:
            whole: npt.NDArray[Any] = values.reshape(-1, WARP)
            return whole
        out = np.full(len(self.ids) * WARP, fill, values.dtype)
        out[self._flat] = values
        return out.reshape(-1, WARP)

    def gather(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """[W, 32] back to [n]."""
        flat = values.reshape(-1)
        out: npt.NDArray[Any] = flat if self._flat is None else flat[self._flat]
        return out

    def stack(self, values: list[Any]) -> npt.NDArray[Any]:
        """R results of readers as a fragment [W, 32, R]."""
        return np.stack([self.spread(value) for value in values], -1)
