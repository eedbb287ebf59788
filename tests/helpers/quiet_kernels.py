"""A simulated device whose launches do nothing but being counted: for what the host does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import pytest
from torch.utils._python_dispatch import TorchDispatchMode

from humming.backend import KernelSpec, LaunchShape, PreparedLaunch
from humming.engine import Site, Workshop
from humming_sim.plugin import SimulatorRuntime


class Launched(NamedTuple):
    """One launch.

    Attributes:
        name: of the kernel, without what precedes its own.
        values: of its arguments that change.
    """

    name: str
    values: tuple[object, ...]


def quiet(monkeypatch: pytest.MonkeyPatch) -> list[Launched]:
    """From now on nothing is compiled or computed on simulated devices; what is launched."""
    launched: list[Launched] = []

    def prepare(  # budget: as of a runtime
        self: SimulatorRuntime,
        kernel: object,
        kinds: Sequence[str],
        args: Sequence[object],
        options: Mapping[str, int],
        changing: Sequence[int] = (),
    ) -> PreparedLaunch:
        assert isinstance(kernel, KernelSpec)
        name = kernel.name.split(".")[1]
        name = "quantize" + _what(kernel.name) if name == "quantize" else name

        def launch(shape: LaunchShape, *changed: object) -> None:
            assert len(changed) == len(changing)
            launched.append(Launched(name, changed))

        return launch

    def load_all(self: Workshop, specs: Sequence[KernelSpec], site: Site) -> list[object]:
        return list(specs)

    monkeypatch.setattr(Workshop, "load_all", load_all)
    monkeypatch.setattr(SimulatorRuntime, "prepare", prepare)
    return launched


def _what(name: str) -> str:
    """Which rows a quantizer reads and what it does before: the end of its name."""
    known = ("ids", "map", "counts", "swiglu")
    return "".join(f"_{part}" for part in name.split("_") if part in known)


class Operations(TorchDispatchMode):
    """Counts torch's operations."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))
