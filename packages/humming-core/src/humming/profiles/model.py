"""DeviceProfile and its parts: what is known of a device, and which devices it is about."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import Any

__all__ = [
    "DeviceIdentity",
    "DeviceProfile",
    "Features",
    "Limits",
    "Match",
    "Rates",
    "Target",
    "TuningRow",
    "best_matches",
]


@dataclass(frozen=True, kw_only=True)
class DeviceIdentity:
    """What a live (or simulated) device says of itself.

    Attributes:
        name: product name as reported.
        vendor: lower-case name of who made it.
        capability: (major, minor); (0, 0) where the vendor has no such notion.
        limits: live limits by the names of :class:`Limits`; those that are known.
        torch_device: where its tensors live, ``"cuda:0"``; "cpu" for a simulated one.
    """

    name: str
    vendor: str
    capability: tuple[int, int]
    limits: Mapping[str, int]
    torch_device: str = "cpu"


@dataclass(frozen=True, kw_only=True)
class Match:
    """Which devices a profile is about: every key that is given must hold.

    Attributes:
        vendor: see :class:`DeviceIdentity`.
        capability: None for any.
        product: regular expression for the whole reported name; None for any.
        reported: names that real devices report; each matches `product`.
    """

    vendor: str
    capability: tuple[int, int] | None = None
    product: str | None = None
    reported: tuple[str, ...] = ()

    def admits(self, device: DeviceIdentity) -> bool:
        """Whether all keys hold for `device`."""
        return (
            self.vendor == device.vendor
            and self.capability in (None, device.capability)
            and (self.product is None or re.search(self.product, device.name) is not None)
        )

    @property
    def keys(self) -> int:
        """How many keys are given; of several matching profiles, most keys wins."""
        return 1 + (self.capability is not None) + (self.product is not None)


@dataclass(frozen=True, kw_only=True)
class Target:
    """Architecture as the compiler spells it, and the backend to prefer; "" if none."""

    arch: str = ""
    backend: str = ""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Hard limits, per multiprocessor unless named otherwise; None if no source states it.

    A live device's own numbers replace these (:meth:`DeviceProfile.with_live_limits`).
    """

    sm_count: int | None = None
    smem_block_bytes: int | None = None
    smem_sm_bytes: int | None = None
    registers: int | None = None
    threads: int | None = None
    max_cluster: int | None = None
    tmem_columns: int | None = None


@dataclass(frozen=True, kw_only=True)
class Rates:
    """Peak rates, for cost models only; None if no source states it.

    Attributes:
        clock_mhz: boost clock.
        dram_gbps: memory bandwidth, 10^9 bytes per second.
        l2_mib: last-level cache, 2^20 bytes.
        tensor_tflops: dense 10^12 operations per second by number format.
    """

    clock_mhz: float | None = None
    dram_gbps: float | None = None
    l2_mib: float | None = None
    tensor_tflops: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, kw_only=True)
class Features:
    """What the device can do.

    Attributes:
        mma: names of matrix instructions, which backends understand and core does not interpret.
        activations: names of the number formats whose products those instructions take.
        tma: whether it has a tensor copy engine.
        pdl: whether a kernel can start before the previous one has ended.
    """

    mma: tuple[str, ...]
    activations: tuple[str, ...]
    tma: bool
    pdl: bool


@dataclass(frozen=True, kw_only=True)
class TuningRow:
    """One measured pick: under which conditions, which tuning, and where it was measured."""

    when: Mapping[str, Any]
    use: Mapping[str, Any]
    source: str


@dataclass(frozen=True, kw_only=True)
class DeviceProfile:
    """Facts about a device; all fields come from one TOML file.

    Attributes:
        name: stem of the file, ``"VENDOR-PRODUCT"``.
        title: the product's name for people.
        tuning: measured picks by backend name, first match wins.
        sources: where the numbers come from, by key path or table.
        path: the file, for messages.
    """

    name: str
    title: str
    match: Match
    target: Target
    limits: Limits
    rates: Rates = field(hash=False)
    features: Features
    tuning: Mapping[str, tuple[TuningRow, ...]] = field(hash=False)
    sources: Mapping[str, str] = field(hash=False)
    path: str = field(default="", compare=False)

    @property
    def vendor(self) -> str:
        """Who made it."""
        return self.match.vendor

    @property
    def capability(self) -> tuple[int, int] | None:
        """(major, minor), or None where the vendor has no such notion."""
        return self.match.capability

    @property
    def mma(self) -> tuple[str, ...]:
        """Names of its matrix instructions."""
        return self.features.mma

    @property
    def activations(self) -> tuple[str, ...]:
        """Names of the number formats whose products it computes."""
        return self.features.activations

    def with_live_limits(
        self, device: DeviceIdentity
    ) -> tuple[DeviceProfile, dict[str, tuple[int, int]]]:
        """This profile with the device's own limits, and where they differ: (profile, live)."""
        known = {f.name for f in fields(Limits)}
        live = {key: value for key, value in device.limits.items() if key in known}
        stated = {key: getattr(self.limits, key) for key in live}
        different = {
            key: (stated[key], live[key]) for key in live if stated[key] not in (None, live[key])
        }
        return replace(self, limits=replace(self.limits, **live)), different


def best_matches(profiles: Iterable[DeviceProfile], device: DeviceIdentity) -> list[DeviceProfile]:
    """Those profiles that match `device` with the most keys: none, one, or a tie."""
    admitted = [profile for profile in profiles if profile.match.admits(device)]
    most = max((profile.match.keys for profile in admitted), default=0)
    return [profile for profile in admitted if profile.match.keys == most]
