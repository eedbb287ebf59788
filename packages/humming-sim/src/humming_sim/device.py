"""What a device can hold; a launch that would not fit there is refused."""

from __future__ import annotations

import re
from dataclasses import dataclass

from humming_sim.errors import LaunchError

__all__ = ["Device", "runs_on", "target_parts"]


@dataclass(frozen=True, kw_only=True)
class Device:
    """Limits of one device.

    Attributes:
        name: for messages.
        arch: architecture that it runs, "sm_90a".
        shared_bytes: shared memory a CTA may have, static and dynamic, in bytes.
        registers: 32-bit registers of a CTA.
        max_cluster: CTAs of a cluster; 1 without clusters.
        threads: threads of a CTA.
    """

    name: str
    arch: str
    shared_bytes: int
    registers: int = 65536
    max_cluster: int = 1
    threads: int = 1024


def target_parts(target: str) -> tuple[int, str]:
    """Number and suffix of an architecture: "sm_90a" is (90, "a").

    Raises:
        LaunchError: if it is none.
    """
    match = re.fullmatch(r"(?:sm|compute)_(\d+)([af]?)", target)
    if match is None:
        raise LaunchError(f"{target!r} is no NVIDIA architecture, such as sm_90a")
    return int(match[1]), match[2]


def runs_on(target: str, arch: str) -> bool:
    """Whether PTX for `target` runs on a device of `arch` (PTX ISA 9.0, 11.1.2 .target)."""
    (wanted, kind), (have, _) = target_parts(target), target_parts(arch)
    if kind == "a":
        return wanted == have
    if kind == "f":
        return wanted // 10 == have // 10 and wanted <= have
    return wanted <= have
