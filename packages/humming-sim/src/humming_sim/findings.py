"""What the checkers report: one :class:`Finding` per fault, and the table of checks."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["CHECKS", "FATAL", "OPTIONAL_CHECKS", "Finding"]

#: Every check by name. All are on unless a launch leaves them out.
CHECKS = {
    "bounds": "an access outside of every buffer, or of the space's window",
    "alignment": "an address that the access's width doesn't divide",
    "uninitialised": "shared memory, tensor memory or a register read before anything wrote it",
    "proxy": "an asynchronous copy or tensor core that reads what a thread wrote without a "
    "fence.proxy.async between them",
    "async": "the result or source of an asynchronous operation used before its wait",
    "exit": "a CTA that exits while an asynchronous operation on its shared memory is in flight "
    "(DeepGEMM leaves its last stores so)",
    "mbarrier": "an mbarrier used before its initialisation, arrived at too often, or left with "
    "bytes or arrivals outstanding",
    "deadlock": "threads that wait for what no thread can bring",
    "convergence": "an .aligned or .sync instruction that not all its lanes execute together",
    "tmem": "tensor memory that is not allocated, not this warp's, or never freed",
    "descriptor": "a descriptor with a reserved bit, a value out of range or a wrong alignment",
    "fence": "an mbarrier that the asynchronous proxy or another CTA sees before its "
    "initialisation is fenced, or a wgmma whose registers were used with no wgmma.fence after it",
    "tcgen05-fence": "tensor memory handed from thread to thread without tcgen05.fence on both "
    "sides of the synchronisation (CUTLASS leaves these fences out)",
    "tcgen05-wait": "a register of tcgen05.ld used before tcgen05.wait::ld, which the manual "
    "allows as far as the value goes (CUTLASS does it)",
    "cluster": "shared memory of a CTA of the cluster that has left, or doesn't exist",
    "trap": "trap, a failed device assertion, or an exceeded step limit",
    "numeric": "an operand for which the instruction's result is undefined",
}

#: Faults after which there is nothing to go on with: reported whatever checks are on.
FATAL = frozenset({"bounds", "deadlock", "trap"})

#: Checks that only an explicit request turns on: code that is right in practice trips them.
OPTIONAL_CHECKS = frozenset[str]()


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One fault of a kernel.

    Attributes:
        check: a key of :data:`CHECKS`.
        message: what happened and what was expected.
        kernel: entry name.
        line: line of the PTX text, 1-based; 0 if the fault belongs to no line.
        text: that instruction.
        cta: index of the CTA in the grid, or None.
        warp: warp of that CTA, or None.
        lane: lane of that warp, or None.
        space: "global", "shared", "local", "tmem" or "".
        address: byte address in that space (TMEM: lane << 16 | column), or None.
    """

    check: str
    message: str
    kernel: str = ""
    line: int = 0
    text: str = ""
    cta: tuple[int, int, int] | None = None
    warp: int | None = None
    lane: int | None = None
    space: str = ""
    address: int | None = None

    def __str__(self) -> str:
        place = [f"kernel {self.kernel}"] if self.kernel else []
        if self.line:
            place.append(f"PTX line {self.line}")
        if self.cta is not None:
            place.append(f"CTA {self.cta}")
        if self.warp is not None:
            place.append(f"warp {self.warp}")
        if self.lane is not None:
            place.append(f"lane {self.lane}")
        if self.address is not None:
            place.append(f"{self.space} address {self.address:#x}".strip())
        head = f"[{self.check}] {self.message}"
        where = f"\n    in {', '.join(place)}" if place else ""
        code = f"\n    {self.text}" if self.text else ""
        return head + where + code
