"""Runs single warp-wide PTX instructions on fragments: arrays [warps, 32, registers]."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

import humming_sim

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class WarpOp:
    """A kernel that loads fragments into registers, runs `body` and stores fragments.

    Attributes:
        name: of the kernel.
        body: PTX; `%a0` is the first register of input "a"; `%me` the thread.
        inputs: registers of each input by its letter.
        outputs: registers of each output.
        bits: width of the registers that are not 32 bits wide.
    """

    name: str
    body: str
    inputs: Mapping[str, int]
    outputs: Mapping[str, int]
    bits: Mapping[str, int]

    def text(self) -> str:
        """The kernel."""
        names = [*self.inputs, *self.outputs]
        lines = [f".visible .entry {self.name}("]
        lines += [",\n".join(f".param .u64 p_{name}" for name in names), ") {"]
        lines += [".reg .b32 %me;", ".reg .b64 %at, %p;", "mov.u32 %me, %tid.x;"]
        for name in names:
            count = {**self.inputs, **self.outputs}[name]
            lines.append(f".reg .b{self.bits.get(name, 32)} %{name}<{count}>;")
        for name, count in self.inputs.items():
            lines += self._place(name, count)
            lines += [f"ld.global.{self._each(name, i)};" for i in range(count)]
        lines.append(self.body)
        for name, count in self.outputs.items():
            lines += self._place(name, count)
            lines += [f"st.global.{self._each(name, i, store=True)};" for i in range(count)]
        return "\n".join([*lines, "ret;", "}"]) + "\n"

    def _each(self, name: str, i: int, store: bool = False) -> str:
        width = self.bits.get(name, 32)
        pair = [f"%{name}{i}", f"[%at+{i * width // 8}]"]
        return f"b{width} " + ", ".join(pair[::-1] if store else pair)

    def _place(self, name: str, count: int) -> list[str]:
        size = count * self.bits.get(name, 32) // 8
        return [f"ld.param.u64 %p, [p_{name}];", f"mad.wide.u32 %at, %me, {size}, %p;"]

    def run(self, text: str, values: Mapping[str, Array], **options: Any) -> dict[str, Array]:
        """The outputs, [warps, 32, registers] each."""
        warps = len(next(iter(values.values())))
        results = {
            name: np.zeros(
                (warps, 32, count), np.uint64 if self.bits.get(name) == 64 else np.uint32
            )
            for name, count in self.outputs.items()
        }
        arguments = [np.ascontiguousarray(values[name]) for name in self.inputs]
        arguments += list(results.values())
        humming_sim.launch(text, self.name, 1, 32 * warps, arguments, **options)
        return results


def vector(name: str, count: int) -> str:
    """``{%a0, %a1}``."""
    return "{" + ", ".join(f"%{name}{i}" for i in range(count)) + "}"


def module(ops: Sequence[WarpOp], target: str, version: str) -> str:
    """All kernels in one text, which is read and assembled once."""
    head = f".version {version}\n.target {target}\n.address_size 64\n"
    return head + "\n".join(op.text() for op in ops)
