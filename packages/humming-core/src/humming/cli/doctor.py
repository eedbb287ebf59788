"""``humming doctor``: one look at everything outside humming that it depends on."""

from __future__ import annotations

import argparse

from humming.cli.output import Column, Output
from humming.doctor import FAIL, examine

__all__ = ["configure", "run"]


def configure(parser: argparse.ArgumentParser) -> None:
    """No arguments of its own."""
    parser.epilog = "Needs no GPU. The exit status is 1 only if a row says fail."


def run(args: argparse.Namespace, output: Output) -> int:
    """Print the findings, and below them how to mend what is not well."""
    findings = examine()
    broken = any(finding.status == FAIL for finding in findings)
    output.data(
        {
            "healthy": not broken,
            "findings": [
                {"subject": f.subject, "status": f.status, "found": f.found, "mend": f.mend or None}
                for f in findings
            ],
        }
    )
    output.table(
        [Column("checked"), Column("status"), Column("found")],
        [[f.subject, f.status, f.found] for f in findings],
    )
    for finding in findings:
        if finding.mend:
            output.line(f"\n{finding.subject}: {finding.mend}")
    return 1 if broken else 0
