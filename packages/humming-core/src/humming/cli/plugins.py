"""``humming plugins``: what is installed, what it offers, and what failed to load."""

from __future__ import annotations

import argparse

from humming import plugins
from humming.cli.output import Column, Output

__all__ = ["configure", "run"]


def configure(parser: argparse.ArgumentParser) -> None:
    """No arguments of its own."""


def run(args: argparse.Namespace, output: Output) -> int:
    """Print plugins, backends, loaders, runtimes and failures; 1 if anything failed."""
    registry = plugins.load()
    loaders: dict[str, list[str]] = {}
    for method, loader in registry.loaders.items():
        loaders.setdefault(f"{loader.__module__}.{loader.__qualname__}", []).append(method)
    failures = [
        {
            "plugin": failure.plugin.name,
            "distribution": failure.plugin.distribution,
            "version": failure.plugin.version,
            "backend": failure.backend or None,
            "reason": failure.reason,
        }
        for failure in registry.failures
    ]
    output.data(
        {
            "plugins": [plugin._asdict() for plugin in registry.plugins],
            "backends": [
                {"name": name, "distribution": found.distribution, "version": found.version,
                 "api": found.type.api, "fallback": found.type.fallback}
                for name, found in registry.backends.items()
            ],
            "loaders": [{"loader": name, "quant_methods": m} for name, m in loaders.items()],
            "runtimes": list(registry.runtimes),
            "failures": failures,
        }
    )  # fmt: skip
    output.line("Plugins")
    output.table(
        [Column("plugin"), Column("distribution"), Column("version")],
        [list(plugin) for plugin in registry.plugins],
    )
    output.line("\nBackends")
    output.table(
        [Column("backend"), Column("from"), Column("note")],
        [
            [name, f"{b.distribution} {b.version}", "used if no other accepts" * b.type.fallback]
            for name, b in registry.backends.items()
        ],
    )
    output.line("\nCheckpoint loaders")
    output.table(
        [Column("quant_method"), Column("loader")],
        [[" ".join(methods), name] for name, methods in loaders.items()],
    )
    output.line(f"\nRuntimes: {', '.join(registry.runtimes) or 'none'}")
    for failure in registry.failures:
        output.line(f"\n{failure}")
    return 1 if failures else 0
