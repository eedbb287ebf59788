"""Launches one after another whose changing arguments are addresses: some microseconds for all."""

from __future__ import annotations

import threading
from collections.abc import Callable, MutableSequence, Sequence
from typing import Any

from humming.backend import Address, Link
from humming.errors import ConfigError
from humming.launching.launch import CudaLaunch

__all__ = ["CudaChain"]


#: What depends on one base: words that hold an address behind it, and by how much, and maps there.
_Pointers = list[tuple[MutableSequence[int], int, int]]
_Maps = list[tuple[Callable[[int], None], int]]


class CudaChain:
    """Launches several kernels on one device.

    A launch alone looks for device and stream, and writes all that may have changed. Here that is
    done once for all of them, and arguments are written only if their base is not where it was: an
    allocator that is asked for the same often gives the same.

    Safe in several threads.

    Args:
        links: in their order; their launches are used by nobody else.

    Raises:
        ConfigError: a launch is none of this runtime's or of another device, or its slots differ.
        LaunchError: the driver would refuse a shape.
    """

    def __init__(self, links: Sequence[Link]) -> None:
        bases = 1 + max((slot.base for _, _, slots in links for slot in slots), default=-1)
        self._slots: list[tuple[_Pointers, _Maps]] = [([], []) for _ in range(bases)]
        self._launches: list[CudaLaunch] = []
        self._settled: list[tuple[Any, Any, int]] = []
        for launch, shape, slots in links:
            if not isinstance(launch, CudaLaunch):
                raise ConfigError("launch", launch, "what prepare() of this runtime returned")
            self._add(launch, slots)
            self._launches.append(launch)
            self._settled.append(launch.settle(shape))
        devices = {launch.device for launch in self._launches}
        if len(devices) != 1:
            raise ConfigError("links", sorted(devices), "launches on one device")
        (self._device,) = devices
        self._driver = self._launches[0].kernel.driver
        self._bases: list[int | None] = [None] * bases
        self._stream: int | None = None
        self._lock = threading.Lock()

    def __call__(self, bases: Sequence[int]) -> None:
        """Launch all on the current stream.

        Args:
            bases: addresses on the device, 0 for none.

        Raises:
            LaunchError: a launch is refused; those before it are under way.
        """
        driver = self._driver
        if driver.current_device() != self._device:
            with driver.on_device(self._device):
                self(bases)
            return
        with self._lock:
            if bases != self._bases:
                self._write(bases)
            stream = driver.stream_of(self._device)
            if stream != self._stream:
                for config, _, _ in self._settled:
                    config.hStream = stream
                self._stream = stream
            launch = driver.api.cuLaunchKernelEx
            for place, (config, function, arguments) in enumerate(self._settled):
                result = launch(config, function, arguments, 0)
                if result[0]:
                    self._launches[place].recover(result[0])

    def _add(self, launch: CudaLaunch, slots: Sequence[Address]) -> None:
        block, changing = launch.arguments, launch.changing
        if len(changing) != len(slots):
            allowed = f"{len(changing)} addresses, one for each changing slot"
            raise ConfigError("slots", len(slots), allowed)
        for index, (base, offset, described) in zip(changing, slots, strict=True):
            kind = "ptr" if described is None else "map"
            if block.kinds[index] != kind:
                raise ConfigError("slots", kind, f"kind {block.kinds[index]} for slot {index}")
            pointers, maps = self._slots[base]
            if described is None:
                pointers.append((*block.word(index), offset))
            else:
                maps.append((block.mapper(index, described), offset))

    def _write(self, bases: Sequence[int]) -> None:
        known = self._bases
        for number, base in enumerate(bases):
            if base == known[number]:
                continue
            known[number] = None  # until all of it is written
            pointers, maps = self._slots[number]
            for words, start, offset in pointers:
                words[start] = base + offset
            for put, offset in maps:
                put(base + offset)
            known[number] = base
