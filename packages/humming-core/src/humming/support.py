"""The support matrix: what runs on which device, and how that was checked; from the code alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from humming import plugins
from humming.backend import Evidence
from humming.errors import ConfigError
from humming.profiles import DeviceProfile
from humming.selection import verdicts

__all__ = ["BEGIN", "END", "SupportRow", "markdown", "replace_block", "support"]

BEGIN, END = "<!-- support-matrix:begin -->", "<!-- support-matrix:end -->"

_HEAD = ("device", "architecture", "backend", "native activations", "runs today", "evidence")
_LEGEND = (
    "*Backend* is the one meant for the device. *Evidence*: `measured` on that hardware, "
    "`simulated`, only `compiled` for it, or `reference only`: no kernels of its own yet, so "
    "torch computes with dequantized numbers. Devices that are not listed use the row of their "
    "architecture."
)


@dataclass(frozen=True)
class SupportRow:
    """One device.

    Attributes:
        profile: the facts about it.
        backends: kernels that accept it, with how they were checked; the fallback is left out.
        refusals: backends that refuse it, with the reason.
        fallback: the backend that computes if no other accepts; "" if there is none.
    """

    profile: DeviceProfile
    backends: tuple[tuple[str, Evidence], ...]
    refusals: tuple[tuple[str, str], ...]
    fallback: str

    @property
    def runs(self) -> str:
        """What computes there today."""
        return ", ".join(name for name, _ in self.backends) or self.fallback or "nothing"

    @property
    def evidence(self) -> str:
        """How that was checked: values of :class:`Evidence`, or "reference only"."""
        if not self.backends:
            return "reference only" if self.fallback else "-"
        return ", ".join(evidence.value for _, evidence in self.backends)

    def as_dict(self) -> dict[str, Any]:
        """The row for ``--json``."""
        profile = self.profile
        return {
            "profile": profile.name,
            "title": profile.title,
            "arch": profile.target.arch or None,
            "backend": profile.target.backend or None,
            "activations": list(profile.activations),
            "runs": self.runs,
            "evidence": self.evidence,
            "backends": [{"name": name, "evidence": e.value} for name, e in self.backends],
            "refusals": [{"backend": name, "reason": reason} for name, reason in self.refusals],
        }


def support() -> list[SupportRow]:
    """A row per device profile of humming and of installed plugins, not of the user's folders."""
    profiles = sorted(plugins.load().profiles.values(), key=_order)
    return [_row(profile) for profile in profiles]


def _order(profile: DeviceProfile) -> tuple[bool, bool, str, tuple[int, int], str]:
    """Host first, then products by vendor and age, then whole architectures."""
    family = profile.match.product is None and profile.capability is not None
    host = profile.vendor == "cpu"
    return family, not host, profile.vendor, profile.capability or (0, 0), profile.name


def _row(profile: DeviceProfile) -> SupportRow:
    found = verdicts(profile)
    accepting = [verdict for verdict in found if verdict.backend is not None]
    return SupportRow(
        profile=profile,
        backends=tuple(
            (v.name, v.backend.evidence(profile))
            for v in accepting
            if v.backend is not None and not v.fallback
        ),
        refusals=tuple((verdict.name, verdict.reason) for verdict in found if verdict.reason),
        fallback=next((verdict.name for verdict in accepting if verdict.fallback), ""),
    )


def markdown(rows: list[SupportRow]) -> str:
    """The block between the markers, markers included."""
    lines = [
        BEGIN,
        f"| {' | '.join(_HEAD)} |",
        f"|{'---|' * len(_HEAD)}",
        *(f"| {' | '.join(_cells(row))} |" for row in rows),
        "",
        _LEGEND,
        END,
    ]
    return "\n".join(lines)


def _cells(row: SupportRow) -> list[str]:
    target = row.profile.target
    return [
        row.profile.title,
        f"`{target.arch}`" if target.arch else "-",
        f"`{target.backend}`" if target.backend else "-",
        " ".join(row.profile.activations) if row.profile.mma else "none; any, dequantized",
        f"`{row.runs}`",
        row.evidence,
    ]


def replace_block(page: str, block: str) -> str:
    """`page` with what is between its markers replaced by `block`.

    Raises:
        ConfigError: the page does not have each marker once, in order.
    """
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end or BEGIN in rest or END in after:
        raise ConfigError("page", "no support matrix", f"{BEGIN} and {END}, once each")
    return f"{before}{block}{after}"
