"""``humming devices``: what is visible here, which profile matches it, and what would run on it."""

from __future__ import annotations

import argparse
from typing import Any

from humming.cli.output import Column, Output
from humming.errors import HummingError
from humming.selection import device_names, find_device, select_backend

__all__ = ["configure", "run"]


def configure(parser: argparse.ArgumentParser) -> None:
    """No arguments of its own."""


def run(args: argparse.Namespace, output: Output) -> int:
    """Print every device; 1 if one has no profile or no backend."""
    names, simulated = device_names()
    rows = [_row(name) for name in names]
    default = find_device(None)
    chosen = default.identity.torch_device if default.identity else "cpu"
    output.data({"devices": rows, "default": chosen, "simulated": simulated})
    output.table(
        [Column("device"), Column("name"), Column("vendor"), Column("capability"),
         Column("profile"), Column("backend"), Column("activations")],
        [
            [row["device"], row["name"] or "-", row["vendor"] or "-", row["capability"] or "-",
             row["profile"] or "-", row["backend"] or "none", " ".join(row["activations"])]
            for row in rows
        ],
    )  # fmt: skip
    output.line(f"\nused when none is named: {chosen}")
    if simulated:
        output.line(f"\nsimulated here, on the CPU: {' '.join(simulated)}")
    problems = [(row["device"], row["problem"]) for row in rows if row["problem"]]
    for device, problem in problems:
        output.line(f"\n{device}: {problem}")
    return 1 if problems else 0


def _row(name: str) -> dict[str, Any]:
    row: dict[str, Any] = {
        "device": name,
        "name": None,
        "vendor": None,
        "capability": None,
        "limits": {},
        "profile": None,
        "backend": None,
        "activations": [],
        "problem": None,
    }
    try:
        found = find_device(name)
        row["profile"] = found.profile.name
        row["activations"] = list(found.profile.activations)
        if found.identity is not None:
            row["name"], row["vendor"] = found.identity.name, found.identity.vendor
            row["limits"] = dict(found.identity.limits)
            if any(found.identity.capability):
                row["capability"] = ".".join(map(str, found.identity.capability))
        row["backend"] = select_backend(device=name).name
    except HummingError as error:
        row["problem"] = str(error)
    return row
