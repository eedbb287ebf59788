"""Where in the shared memory of a cluster a copy goes, and which mbarriers it signals there."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from humming_sim.isa.builder import Builder, Reader
from humming_sim.isa.spaces import SHARED, WINDOW
from humming_sim.machine.frame import Frame
from humming_sim.machine.shared_memory import RANK_SHIFT
from humming_sim.ptx.model import Operand

__all__ = ["Destinations", "Targets"]

Addresses = npt.NDArray[np.int64]

_OFFSET = (1 << RANK_SHIFT) - 1


@dataclass(frozen=True)
class Targets:
    """Destinations of the copies of n threads; multicast makes several of one copy.

    Attributes:
        thread: int64 [t], which of the frame's threads.
        address: int64 [t], shared address of the data.
        barrier: int64 [t], offset in shared memory of the mbarrier.
        peers: whether other CTAs than the thread's own may be named.
    """

    thread: Addresses
    address: Addresses
    barrier: Addresses
    peers: bool

    def flat(self, frame: Frame, addresses: Addresses, width: int) -> Addresses:
        """Checked offsets of shared addresses [t, m] of these destinations."""
        ctas = frame.ctas()[self.thread][:, None]
        return frame.machine.shared.locate_from(frame, ctas, addresses, width, self.peers)

    def of(self, index: int) -> Targets:
        """The destinations of one thread's copy."""
        mine = self.thread == index
        chosen = (self.thread[mine], self.address[mine], self.barrier[mine])
        return Targets(*chosen, self.peers)


class Destinations:
    """Compiled operands ``[dstMem]``, ``[mbar]`` and ``ctaMask``."""

    def __init__(  # budget: three operands, and what the modifiers say of them
        self,
        b: Builder,
        data: Operand,
        barrier: Operand,
        mask: Operand | None,
        peers: bool,
        pair: bool = False,
    ) -> None:
        """Compile them.

        Args:
            peers: ``.shared::cluster`` instead of ``.shared::cta``.
            pair: ``.cta_group::2``: the mbarrier may lie in the peer CTA of a pair.
        """
        self._data, self._barrier = b.address(data), b.address(barrier)
        self._mask: Reader | None = None if mask is None else b.read(mask, "b16")
        self._peers, self._pair = peers, pair

    def read(self, frame: Frame) -> Targets:
        """The destinations for the frame's threads."""
        data, barrier = self._data(frame), self._barrier(frame)
        barrier = np.where(barrier // WINDOW == SHARED // WINDOW, barrier - SHARED, barrier)
        thread = np.arange(frame.n)
        self._check_barriers(frame, data, barrier)
        if self._mask is not None:
            masks = frame.expand(self._mask(frame)).astype(np.int64)
            thread, data, barrier = self._multicast(frame, masks, data, barrier)
        ctas = frame.ctas()[thread]
        peers = self._peers or self._pair
        places = frame.machine.shared.locate_from(frame, ctas, barrier, 8, peers)
        return Targets(thread, data, places, self._peers)

    def _check_barriers(self, frame: Frame, data: Addresses, barrier: Addresses) -> None:
        """The mbarrier lies in the CTA of the data, or (pair) in the other CTA of its pair."""
        apart = (data >> RANK_SHIFT) ^ (barrier >> RANK_SHIFT)
        wrong = apart > int(self._pair)
        if wrong.any():
            index = int(np.argmax(wrong))
            where = "the pair of CTAs" if self._pair else "the CTA"
            frame.machine.report(
                frame,
                "cluster",
                f"the mbarrier must lie in {where} of the destination, CTA "
                f"{int(data[index]) >> RANK_SHIFT}, not in CTA {int(barrier[index]) >> RANK_SHIFT}",
                index=index,
                space="shared",
                address=int(barrier[index]),
            )

    def _multicast(
        self, frame: Frame, masks: Addresses, data: Addresses, barrier: Addresses
    ) -> tuple[Addresses, Addresses, Addresses]:
        size = frame.machine.geometry.cluster_size
        wrong = (masks == 0) | (masks >> size != 0)
        if wrong.any():
            index = int(np.argmax(wrong))
            frame.machine.report(
                frame,
                "cluster",
                f"a multicast to CTAs {int(masks[index]):#06x} of a cluster of {size}",
                index=index,
            )
        thread, rank = np.nonzero((masks[:, None] >> np.arange(size)) & 1)
        signal = rank
        if self._pair:  # all signals go to CTAs of one parity, that of the mbarrier named
            signal = (rank & ~1) | ((barrier[thread] >> RANK_SHIFT) & 1)
        to_data = (rank << RANK_SHIFT) | (data[thread] & _OFFSET)
        return thread, to_data, (signal << RANK_SHIFT) | (barrier[thread] & _OFFSET)
