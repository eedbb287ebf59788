"""Which threads run next.

Threads are in *pools*: all in one when a launch runs convergent, a warp each when it runs with a
seed. Within a pool the threads at the lowest instruction go first, which makes diverged threads
meet again where their paths join. A thread that waits is *parked* with a sentence on what for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from humming_sim.machine.frame import Frame, Selection, as_selection
from humming_sim.machine.geometry import WARP

if TYPE_CHECKING:
    from humming_sim.machine.code import Block
    from humming_sim.machine.machine import Machine
    from humming_sim.ptx.model import Kernel

__all__ = ["HANDLED", "Parked", "Scheduler"]

#: What the end of a block returns when it has placed all its threads itself.
HANDLED = -1

_SWITCH = 0.15  # chance that a seeded run leaves a warp after a block
_PART = 0.05  # chance that some lanes of a warp fall behind where they may exchange data
_FAVOUR = 0.9  # chance that the first runnable pool goes on, in runs with an order of pools
_POOLS = 64  # about so many pools at most; clusters that talk to each other share them at random
_TALK = {"acquire", "acq_rel", "relaxed", "volatile", "mmio"}
_ROUNDS = 4  # rounds of nothing but polling, without any change, that make a deadlock


@dataclass(eq=False)
class Parked:
    """Threads that wait: where they go on, what for, and what ends a wait that has a time limit."""

    frame: Frame
    block: int
    why: Callable[[], str]
    give_up: Callable[[], None] | None = None


class Scheduler:
    """Runs blocks of instructions until every thread has exited."""

    def __init__(self, machine: Machine, blocks: list[Block]) -> None:
        self._machine = machine
        self._blocks = blocks
        self._ready: list[dict[int, list[Selection]]] = []
        self._runnable: set[int] = set()
        self._parked: set[Parked] = set()
        self._yielded: list[tuple[int, int, Selection]] = []
        self._behind: list[tuple[int, int, Selection]] = []
        self._rank: list[float] = []
        self._timed_out_at = -1
        self._gathering: dict[tuple[int, int, int], Parked] = {}
        self._seen = (-1, 0)  # progress when polling threads last ran, and rounds since
        self.steps = 0
        for pool, threads in enumerate(self._pools()):
            self._ready.append({})
            if len(threads):
                self.push(pool, 0, as_selection(threads))

    def _pools(self) -> Iterator[npt.NDArray[np.intp]]:
        """The threads of each pool."""
        machine = self._machine
        threads = np.flatnonzero(machine.alive)
        if machine.random is None:
            yield threads
            return
        geometry = machine.geometry
        warps = geometry.warps * geometry.cluster_size
        cluster, warp = np.divmod(threads // WARP, warps)
        groups = max(1, _POOLS // warps) if _clusters_talk(machine.kernel) else 1
        party = machine.random.integers(groups, size=int(cluster.max()) + 1)
        key = party[cluster] * warps + warp
        found = np.unique(key)
        self._rank = self._ranks(found % warps // geometry.warps)
        for pool in found:
            yield threads[key == pool]

    def _ranks(self, cta: npt.NDArray[np.intp]) -> list[float]:
        """Who goes first: in half of the runs an order of the CTAs of a cluster and their warps."""
        random = self._machine.random
        if random is None or random.random() < 0.5:
            return []
        order = random.permutation(int(cta.max()) + 1)
        return [float(order[rank] + random.random()) for rank in cta]

    # ------------------------------------------------------------------ what instructions call

    def push(self, pool: int, block: int, sel: Selection) -> None:
        """Let threads go on at a block."""
        self._ready[pool].setdefault(block, []).append(sel)
        self._runnable.add(pool)

    def park(
        self,
        frame: Frame,
        block: int,
        why: Callable[[], str],
        give_up: Callable[[], None] | None = None,
    ) -> Parked:
        """Let threads wait for :meth:`wake` and go on at `block` then.

        Args:
            give_up: for waits with a time limit, called before :meth:`wake` when it is over.
        """
        parked = Parked(frame, block, why, give_up)
        self._parked.add(parked)
        return parked

    def wake(self, parked: Parked) -> None:
        """Let parked threads go on."""
        self._parked.remove(parked)
        self.push(parked.frame.pool, parked.block, parked.frame.sel)

    def branch(self, frame: Frame, taken: npt.NDArray[np.bool_], target: int, other: int) -> int:
        """Send each thread to `target` or to `other`; the end of a block returns what this does."""
        count = int(np.count_nonzero(taken))
        if count == frame.n:
            return self.jump(frame, target)
        if count == 0:
            return other
        threads = frame.threads()
        chosen = frame.of(threads[taken])
        if self.jump(chosen, target) != HANDLED:
            self.push(frame.pool, target, chosen.sel)
        self.push(frame.pool, other, as_selection(threads[~taken]))
        return HANDLED

    def jump(self, frame: Frame, target: int) -> int:
        """Send all threads to `target`; those that poll in a loop let the others go first."""
        machine = self._machine
        if not machine.any_polled or target > machine.block:
            return target
        polled = machine.polled[frame.sel]
        if not polled.any():
            return target
        machine.polled[frame.sel] = False
        self._yielded.append((frame.pool, target, frame.sel))
        return HANDLED

    def exit(self, frame: Frame) -> int:
        """End threads."""
        machine = self._machine
        machine.alive[frame.sel] = False
        machine.progress += 1
        machine.after_exit(frame)
        for key in [key for key in self._gathering if self._exited_in(frame, key[1])]:
            parked = self._gathering[key]
            if self._together(parked.frame.threads(), key[1], key[2]):
                del self._gathering[key]
                self.wake(parked)
        return HANDLED

    def _exited_in(self, frame: Frame, warp: int) -> bool:
        return bool(np.any(frame.threads() // WARP == warp))

    # ----------------------------------------------------------------------------------- running

    def run(self) -> None:
        """Run until every thread has exited.

        Reports "deadlock" when the threads that are left wait for each other or for nothing.
        """
        machine, blocks = self._machine, self._blocks
        pool = -1
        while machine.alive.any():
            machine.asyncs.turn()
            pool = self._pick(pool)
            if pool < 0:
                if not (
                    self._catch_up() or machine.asyncs.idle() or self._revive() or self._time_out()
                ):
                    self._deadlock()
                continue
            ready = self._ready[pool]
            block = min(ready)
            sel = _merge(ready.pop(block))
            if not ready:
                self._runnable.discard(pool)
            while block != HANDLED:
                block = self._execute(blocks, pool, block, sel)
                if block == HANDLED or machine.random is not None or ready:
                    break
            if block != HANDLED:
                self.push(pool, block, sel)

    def _execute(self, blocks: list[Block], pool: int, index: int, sel: Selection) -> int:
        """Run a block and say which comes next."""
        machine = self._machine
        block = blocks[index]
        n = sel.stop - sel.start if isinstance(sel, slice) else len(sel)
        frame = Frame(machine, sel, n, pool)
        if block.gather and not self._whole(frame):
            frame.at = block.first
            gathered = self._gather(frame, index)
            if gathered is None:
                return HANDLED
            if not np.array_equal(gathered.threads(), frame.threads()):
                self.push(pool, index, gathered.sel)
                return HANDLED
        elif block.exchanges and not block.gather and n > 1 and self._falls_behind():
            frame = self._part(frame, index)
        self.steps += 1
        if self.steps > machine.options.max_steps:
            machine.report(frame, "trap", f"not finished after {self.steps - 1} blocks; given up")
        machine.now += 1
        machine.block = index
        block.visits += frame.n
        for at, step in block.steps:
            frame.at = at
            step(frame)
        frame.at = block.last
        following = block.end(frame)
        if frame.n < n and following != HANDLED:  # some fell behind: the others go on alone
            self.push(pool, following, frame.sel)
            return HANDLED
        return following

    def _falls_behind(self) -> bool:
        random = self._machine.random
        return random is not None and random.random() < _PART

    def _part(self, frame: Frame, index: int) -> Frame:
        """Let some of a frame's threads fall behind until nothing else can go on.

        Lanes of a warp are together only where an instruction says so (PTX ISA 9.0, 3.1).
        """
        random = self._machine.random
        behind = np.zeros(frame.n, np.bool_) if random is None else random.random(frame.n) < 0.5
        if behind.all() or not behind.any():
            return frame
        threads = frame.threads()
        self._behind.append((frame.pool, index, as_selection(threads[behind])))
        return frame.of(threads[~behind])

    def _pick(self, current: int) -> int:
        """The pool to run, or -1."""
        random = self._machine.random
        if not self._runnable:
            return -1
        if random is None:
            return 0
        if current in self._runnable and random.random() > _SWITCH:
            return current
        if self._rank and random.random() < _FAVOUR:
            return min(self._runnable, key=self._rank.__getitem__)
        pools = sorted(self._runnable)
        return pools[random.integers(len(pools))]

    def _catch_up(self) -> bool:
        """Let those that fell behind go on."""
        behind, self._behind = self._behind, []
        for pool, block, sel in behind:
            self.push(pool, block, sel)
        return bool(behind)

    def _time_out(self) -> bool:
        """End waits that have a time limit; False if that has changed nothing before."""
        progress = self._machine.progress
        waits = [parked for parked in self._parked if parked.give_up is not None]
        if not waits or progress == self._timed_out_at:
            return False
        self._timed_out_at = progress
        for parked in sorted(waits, key=lambda wait: (wait.frame.at, wait.frame.threads()[0])):
            if parked.give_up is not None:
                parked.give_up()
            self.wake(parked)
        return True

    def _revive(self) -> bool:
        """Let the polling threads look again; False if that has become pointless."""
        if not self._yielded:
            return False
        progress, rounds = self._seen
        now = self._machine.progress
        self._seen = (now, rounds + 1 if now == progress else 0)
        if self._seen[1] >= _ROUNDS:
            return False
        yielded, self._yielded = self._yielded, []
        for pool, block, sel in yielded:
            self.push(pool, block, sel)
        return True

    # --------------------------------------------------------------------------- whole warps first

    def _whole(self, frame: Frame) -> bool:
        """Whether the frame holds whole warps, which needs no further question."""
        sel = frame.sel
        if isinstance(sel, slice):
            return bool(sel.start % WARP == 0 and sel.stop % WARP == 0)
        return frame.n % WARP == 0 and frame.warps().full

    def _together(self, threads: npt.NDArray[np.intp], warp: int, mask: int) -> bool:
        """Whether all lanes of `mask` that still run are among these threads of a warp."""
        alive = self._machine.alive[warp * WARP : warp * WARP + WARP].copy()
        alive &= ((mask >> np.arange(WARP)) & 1).astype(np.bool_)
        alive[threads - warp * WARP] = False
        return not bool(alive.any())

    def _gather(self, frame: Frame, index: int) -> Frame | None:
        """The warps of a frame whose lanes are all there; the others wait for their lanes."""
        masks = frame.expand(self._blocks[index].mask(frame)).astype(np.int64)
        threads = frame.threads()
        going: list[npt.NDArray[np.intp]] = []
        for warp in np.unique(threads // WARP).tolist():
            inside = threads // WARP == warp
            for mask in np.unique(masks[inside]).tolist():
                lanes = threads[inside & (masks == mask)]
                key = (index, warp, mask)
                earlier = self._gathering.pop(key, None)
                if earlier is not None:
                    self._parked.remove(earlier)
                    lanes = np.sort(np.concatenate([earlier.frame.threads(), lanes]))
                if self._together(lanes, warp, mask):
                    going.append(lanes)
                    continue
                waiting = frame.of(lanes)
                self._gathering[key] = self.park(waiting, index, self._why_gathering(lanes, warp))
        if not going:
            return None
        return frame.of(np.sort(np.concatenate(going)))

    def _why_gathering(self, lanes: npt.NDArray[np.intp], warp: int) -> Callable[[], str]:
        here = ", ".join(map(str, (lanes - warp * WARP).tolist()))
        return lambda: f"lanes {here} wait for the other lanes of their warp"

    # ------------------------------------------------------------------------------------ deadlock

    def _deadlock(self) -> None:
        """Report what every remaining thread waits for."""
        machine = self._machine
        lines = []
        polling = [
            Parked(
                Frame(
                    machine,
                    sel,
                    len(range(*sel.indices(1 << 62))) if isinstance(sel, slice) else len(sel),
                    pool,
                ),
                block,
                lambda: "polls for a change",
            )
            for pool, block, sel in self._yielded
        ]
        for parked in polling:
            parked.frame.at = self._blocks[parked.block].first
        for parked in sorted([*self._parked, *polling], key=lambda p: p.frame.at):
            instruction = machine.kernel.instructions[parked.frame.at]
            warps = np.unique(parked.frame.threads() // WARP)
            first = machine.where(int(parked.frame.threads()[0]))
            lines.append(
                f"line {instruction.line} ({instruction.opcode}), {parked.frame.n} threads of "
                f"{len(warps)} warps, first CTA {first[0]} warp {first[1]}: {parked.why()}"
            )
        frame = next(iter(self._parked), *polling[:1]).frame
        machine.report(frame, "deadlock", "no thread can go on:\n      " + "\n      ".join(lines))


def _clusters_talk(kernel: Kernel) -> bool:
    """Whether CTAs may wait for each other through global memory.

    If they don't, the order of clusters changes nothing, and the same warp of all runs together.
    """
    return any(
        item.words[0] in ("atom", "multimem")
        or (item.words[0] == "ld" and not _TALK.isdisjoint(item.words))
        for item in kernel.instructions
    )


def _merge(parts: list[Selection]) -> Selection:
    """The union of disjoint selections."""
    if len(parts) == 1:
        return parts[0]
    arrays = [np.arange(p.start, p.stop) if isinstance(p, slice) else p for p in parts]
    return as_selection(np.sort(np.concatenate(arrays)))
