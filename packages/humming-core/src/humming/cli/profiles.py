"""``humming profiles``: every device that humming knows, whether or not it is here."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import Any

from humming import plugins
from humming.cli.output import Column, Output
from humming.profiles import DeviceProfile

__all__ = ["configure", "run"]


def configure(parser: argparse.ArgumentParser) -> None:
    """No arguments of its own."""
    parser.epilog = (
        "The names are what --profile of `humming inspect` takes. --json has all numbers of each\n"
        "profile; a folder of your own in HUMMING_PROFILE_PATH adds to them."
    )


def run(args: argparse.Namespace, output: Output) -> int:
    """Print all profiles by name."""
    profiles = [profile for _, profile in sorted(plugins.profiles().items())]
    output.data({"profiles": [_data(profile) for profile in profiles]})
    output.table(
        [Column("name"), Column("device"), Column("capability"), Column("target"),
         Column("backend"), Column("GB/s", right=True), Column("activations")],
        [
            [p.name, p.title, ".".join(map(str, p.capability)) if p.capability else "-",
             p.target.arch or "-", p.target.backend or "-",
             f"{p.rates.dram_gbps:g}" if p.rates.dram_gbps else "-", " ".join(p.activations)]
            for p in profiles
        ],
    )  # fmt: skip
    return 0


def _data(profile: DeviceProfile) -> dict[str, Any]:
    rates = profile.rates
    return {
        "name": profile.name,
        "title": profile.title,
        "vendor": profile.vendor,
        "capability": list(profile.capability) if profile.capability else None,
        "arch": profile.target.arch or None,
        "backend": profile.target.backend or None,
        "limits": asdict(profile.limits),
        "rates": {
            "clock_mhz": rates.clock_mhz,
            "dram_gbps": rates.dram_gbps,
            "l2_mib": rates.l2_mib,
            "tensor_tflops": dict(rates.tensor_tflops),
        },
        "mma": list(profile.mma),
        "activations": list(profile.activations),
        "tuned_for": {backend: len(rows) for backend, rows in profile.tuning.items()},
        "sources": dict(profile.sources),
        "path": profile.path,
    }
