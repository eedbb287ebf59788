"""Launches that share one allocation: what kernels get of it, against a stand-in of the driver."""

from __future__ import annotations

import struct
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fake_driver import CUBIN, FakeDriver, FakeTensor

from humming.backend import Arg, KernelSpec, LaunchShape, TensorMap
from humming.engine import Site, launches
from humming.engine.launches import Given, Launches, Mapped, Memory, Part, Value, own_step
from humming.launching import CudaRuntime

MAP = TensorMap(element="uint8", dims=(16, 2), strides=(16,), box=(16, 2))
ONE = LaunchShape(grid=(4, 1, 1), block=(128, 1, 1))


def spec_of(**kinds: str) -> KernelSpec:
    args = tuple(Arg(name, kind) for name, kind in kinds.items())
    return KernelSpec(
        name="own", template="t", context=None, arch="sm_80", args=args, launch=lambda *_: ONE
    )


def made(monkeypatch: pytest.MonkeyPatch, fake: FakeDriver) -> Site:
    """A site whose tensors are on the host, and whose kernels are the stand-in's."""
    site = Site(CudaRuntime(fake.driver()), torch.device("cpu"))
    load = SimpleNamespace(load=lambda spec, site: site.runtime.load(CUBIN, spec.entry))
    monkeypatch.setattr(launches, "workshop", lambda: load)
    return site


def test_kernels_get_addresses_in_one_allocation(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeDriver((8, 8, 8, 4, 8))
    site, memory = made(monkeypatch, fake), Memory()
    first = memory.part((3, 5), torch.bfloat16)
    second = memory.part((7,), torch.int32)
    assert (first.offset, first.end, second.offset) == (0, 30, 256)
    spec = spec_of(x="ptr", a="ptr", b="ptr", rows="i32", none="ptr")
    values: dict[str, Value] = {
        "x": Given(0), "a": first, "b": second, "rows": 7, "none": None, "more": 1,
    }  # fmt: skip
    step = own_step(site, spec, ONE, values)
    assert list(step[2]) == [Given(0), first, second], "what no call changes is packed by now"
    run = Launches(site, [step, step], given=1)
    run(FakeTensor(0x50))
    assert len(fake.launches) == 2
    for launch in fake.launches:
        x, a, b = (struct.unpack("<Q", raw)[0] for raw in launch.packed[:3])
        assert (x, b - a, a % 64) == (0x50, 256, 0)
        assert launch.packed[3:] == [struct.pack("<i", 7), bytes(8)]


def test_other_runtimes_get_tensors() -> None:
    got: list[Any] = []
    site = Site(SimpleNamespace(name="other"), torch.device("cpu"))  # type: ignore[arg-type]
    memory = Memory(64)
    part, codes = memory.part((3, 5), torch.float32), memory.part((2, 8), torch.uint8)
    values = [part, Mapped(codes, MAP), Given(0), Mapped(Given(0), MAP), Given(1)]
    run = Launches(site, [(lambda shape, *values: got.append(values), ONE, values)], given=2)
    x = torch.zeros(3)
    run(x, None)
    ((found, (described, view), given, (_, below), none),) = got
    assert isinstance(found, torch.Tensor)
    assert isinstance(view, torch.Tensor)
    assert (found.shape, found.dtype, found.is_contiguous()) == ((3, 5), torch.float32, True)
    assert (view.shape, view.dtype, described) == ((2, 8), torch.uint8, MAP)
    assert view.data_ptr() - found.data_ptr() == codes.offset - part.offset == 256 - 64
    assert given is below is x
    assert none is None


def test_each_call_has_memory_of_its_own() -> None:
    got: list[torch.Tensor] = []
    site = Site(SimpleNamespace(name="other"), torch.device("cpu"))  # type: ignore[arg-type]
    part = Part(0, (4,), (1,), torch.int32)
    run = Launches(site, [(lambda shape, *values: got.append(values[0]), ONE, [part])], given=0)
    run()
    run()
    assert got[0].data_ptr() != got[1].data_ptr()
