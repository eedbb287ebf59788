"""Whether the registers of a tcgen05.ld are touched before its tcgen05.wait::ld.

The manual lets a register dependency stand in for the wait as far as the value goes (PTX ISA 9.0,
9.7.16.6.4.5), and compilers move copies in front of the wait. So a load whose registers are
touched early has its value early; a real use of it, as opposed to a copy, is still reported, as
"tcgen05-wait", since what follows may overrun the load.
"""

from __future__ import annotations

from collections.abc import Iterator

from humming_sim.ptx.model import Address, Group, Instruction, Kernel, Operand, Pair, Register

__all__ = ["touched_before_wait"]

_ENDS = ("ret", "exit", "trap")


def touched_before_wait(kernel: Kernel, load: Instruction) -> tuple[bool, Instruction | None]:
    """Whether any path leads from a load to a mention of its registers before the wait.

    Returns:
        whether one does, and an instruction that uses the value there, if any does.
    """
    code = kernel.instructions
    start = next(index for index, item in enumerate(code) if item is load)
    loaded = frozenset(_registers(load.operands[0]))
    early = False
    seen: set[tuple[int, frozenset[int]]] = set()
    work = [(start + 1, loaded)]
    while work:
        index, held = work.pop()
        if index >= len(code) or (index, held) in seen:
            continue
        seen.add((index, held))
        item = code[index]
        if item.words[:2] == ("tcgen05", "wait::ld"):
            continue
        mentioned = {r for operand in item.operands for r in _registers(operand)}
        if item.guard is not None:
            mentioned.add(item.guard.index)
        if mentioned & held:
            early = True
            if item.words[0] != "mov":
                return True, item
            held = held | frozenset(_registers(item.operands[0]))
        work += [(following, held) for following in _successors(kernel, index)]
    return early, None


def _successors(kernel: Kernel, index: int) -> Iterator[int]:
    item = kernel.instructions[index]
    if item.words[0] == "bra":
        yield kernel.labels[_name(item)]
    elif item.words[0] == "brx":
        yield from (kernel.labels[label] for label in kernel.tables[_name(item)])
    if item.guard is not None or item.words[0] not in ("bra", "brx", *_ENDS):
        yield index + 1


def _name(item: Instruction) -> str:
    return str(getattr(item.operands[-1], "name", ""))


def _registers(operand: Operand) -> Iterator[int]:
    if isinstance(operand, Register):
        yield operand.index
    elif isinstance(operand, Group):
        for inner in operand.items:
            yield from _registers(inner)
    elif isinstance(operand, Pair):
        yield from _registers(operand.first)
        yield from _registers(operand.second)
    elif isinstance(operand, Address):
        for inner in (operand.base, *operand.extras):
            yield from _registers(inner)
