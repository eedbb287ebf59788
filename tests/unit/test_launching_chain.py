"""Several launches with arguments behind a few addresses, against a stand-in of the driver."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from fake_driver import CUBIN, FakeDriver

from humming.backend import Address, LaunchShape, TensorMap
from humming.errors import ConfigError, LaunchError
from humming.launching import CudaRuntime

ONE, TWO = (LaunchShape(grid=(4, 1, 1), block=(threads, 1, 1)) for threads in (128, 64))
MAP = TensorMap(element="uint8", dims=(16, 2), strides=(16,), box=(16, 2))
KINDS = ("ptr", "i32", "ptr", "map")


def linked(fake: FakeDriver, *slots: tuple[Address, ...]) -> Any:
    """A chain of as many launches of one kernel."""
    runtime = CudaRuntime(fake.driver())
    kernel = runtime.load(CUBIN, "k")
    args = (None, 5, None, None)
    links = [
        (runtime.prepare(kernel, KINDS, args, {}, (2, 0, 3)), shape, given)
        for given, shape in zip(slots, (ONE, TWO), strict=False)
    ]
    return runtime.chain(links)


def of(launch: Any) -> tuple[Any, ...]:
    """Its pointers and number, and the address that the stand-in's map begins with."""
    pointers = (struct.unpack("<Q", launch.packed[place][:8])[0] for place in (0, 2, 3))
    return (*pointers, struct.unpack("<i", launch.packed[1])[0])


FIRST = (Address(1, 64), Address(0), Address(1, 32, MAP))
SECOND = (Address(0, 8), Address(1), Address(1, 0, MAP))
SIZES = (8, 4, 8, 128)


def test_slots_get_what_lies_behind_their_base() -> None:
    fake = FakeDriver(SIZES)
    run = linked(fake, FIRST, SECOND)
    run([0x1000, 0x2000])
    assert [of(launch) for launch in fake.launches] == [
        (0x1000, 0x2040, 0x2020, 5), (0x2000, 0x1008, 0x2000, 5),
    ]  # fmt: skip
    assert [launch.blockDimX for launch in fake.launches] == [128, 64]
    assert {launch.hStream for launch in fake.launches} == {7}


def test_another_base_or_stream_is_noticed_and_no_map_is_made_twice() -> None:
    fake = FakeDriver(SIZES)
    run = linked(fake, FIRST, SECOND)
    for bases in ([16, 32], [16, 32], [48, 32], [16, 64], [16, 32], [0, 32]):
        fake.stream += 1
        fake.launches.clear()
        run(bases)
        assert of(fake.launches[0]) == (bases[0], bases[1] + 64, bases[1] + 32, 5)
        assert of(fake.launches[1]) == (bases[1], bases[0] + 8, bases[1], 5)
        assert {launch.hStream for launch in fake.launches} == {fake.stream}
    made = [call[2] for call in fake.calls if isinstance(call, tuple) and len(call) > 5]
    assert sorted(made) == [32, 64, 96], "of the addresses that maps are of"


def test_it_runs_on_the_device_of_its_launches() -> None:
    fake = FakeDriver(SIZES, devices=2)
    run = linked(fake, FIRST)
    fake.device = 1
    run([16, 32])
    assert fake.device == 1
    assert len(fake.launches) == 1


def test_a_thread_without_a_context_gets_one_and_a_refusal_says_which() -> None:
    fake = FakeDriver(SIZES)
    run = linked(fake, FIRST, SECOND)
    fake.fails["cuLaunchKernelEx"] = [0, 201, 0]
    run([16, 32])
    assert len(fake.launches) == 3
    fake.fails["cuLaunchKernelEx"] = [0, 1]
    with pytest.raises(LaunchError, match=r"block 64x1x1[\s\S]*invalid argument"):
        run([16, 32])


def test_what_failed_half_way_is_written_again() -> None:
    fake = FakeDriver(SIZES)
    run = linked(fake, FIRST, SECOND)
    with pytest.raises(ConfigError, match="must be a multiple of 16"):
        run([16, 40])
    run([16, 32])
    assert of(fake.launches[0]) == (16, 96, 64, 5)


@pytest.mark.parametrize(
    ("slots", "message"),
    [
        ((Address(0), Address(0)), "3 addresses, one for each changing slot"),
        ((Address(0), Address(0), Address(0)), "kind map for slot 3"),
        ((Address(0, 0, MAP), Address(0), Address(0, 0, MAP)), "kind ptr for slot 2"),
    ],
)
def test_slots_of_another_kind_are_refused(slots: tuple[Address, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        linked(FakeDriver(SIZES), slots)


def test_other_launches_and_shapes_are_refused() -> None:
    runtime = CudaRuntime(FakeDriver(SIZES).driver())
    with pytest.raises(ConfigError, match="what prepare"):
        runtime.chain([(lambda shape, *changed: None, ONE, [])])
    with pytest.raises(ConfigError, match="on one device"):
        runtime.chain([])
    kernel = runtime.load(CUBIN, "k")
    launch = runtime.prepare(kernel, KINDS, (None, 5, None, None), {}, (2, 0, 3))
    with pytest.raises(LaunchError, match="1024 threads"):
        runtime.chain([(launch, LaunchShape(grid=(1, 1, 1), block=(1024, 1, 1)), FIRST)])
