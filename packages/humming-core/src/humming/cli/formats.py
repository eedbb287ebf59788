"""``humming formats``: the rows of the tables that spell numbers and schemes."""

from __future__ import annotations

import argparse
from typing import Any

from humming import plugins
from humming.cli.output import Column, Output
from humming.formats.activation import ACTIVATION_ALIASES
from humming.formats.number import NumberFormat
from humming.formats.scheme import SCHEME_ALIASES, WeightScheme
from humming.formats.table import SCALE_FORMATS, all_formats

__all__ = ["configure", "run"]


def configure(parser: argparse.ArgumentParser) -> None:
    """No arguments of its own."""
    parser.epilog = (
        "A weight scheme is CODE[+z|+zf]-GRANULARITY-SCALE[-SECOND]: u4+z-g64-f16 is 4-bit codes\n"
        "with integer zero points and f16 scales, both per 64 inputs. GRANULARITY is tensor,\n"
        "channel, gG or bNxK; +zf means float zero points; SECOND is tensor or channel, a second\n"
        "scale in f32. Any signed eXmY of up to 8 bits is a format, listed here or not."
    )


def run(args: argparse.Namespace, output: Output) -> int:
    """Print number formats and aliases."""
    plugins.load()  # plugins may add formats
    formats = [_format(fmt) for fmt in all_formats()]
    schemes = [_scheme(alias, text) for alias, text in SCHEME_ALIASES.items()]
    activations = [{"alias": a, "activation": text} for a, text in ACTIVATION_ALIASES.items()]
    output.data({"formats": formats, "schemes": schemes, "activations": activations})
    output.line("Number formats")
    output.table(
        [Column("name"), Column("bits", right=True), Column("kind"), Column("smallest", right=True),
         Column("largest", right=True), Column("specials"), Column("scale"), Column("also called")],
        [
            [f["name"], str(f["bits"]), f["kind"], f"{f['min']:g}", f"{f['max']:g}",
             f["specials"], "yes" if f["is_scale"] else "", " ".join(f["aliases"])]
            for f in formats
        ],
    )  # fmt: skip
    output.line("\nWeight schemes by short name")
    output.table(
        [Column("alias"), Column("scheme"), Column("bits per weight", right=True)],
        [[s["alias"], s["scheme"], f"{s['bits_per_weight']:.3f}"] for s in schemes],
    )
    output.line("\nActivation schemes by short name")
    output.table(
        [Column("alias"), Column("activation")],
        [[a["alias"], a["activation"]] for a in activations],
    )
    return 0


def _format(fmt: NumberFormat) -> dict[str, Any]:
    return {
        "name": fmt.name,
        "bits": fmt.bits,
        "kind": fmt.kind.value,
        "signed": fmt.signed,
        "exponent": fmt.exponent,
        "mantissa": fmt.mantissa,
        "bias": fmt.bias,
        "min": fmt.min,
        "max": fmt.max,
        "specials": fmt.specials.value,
        "is_scale": fmt.name in SCALE_FORMATS,
        "aliases": list(fmt.aliases),
    }


def _scheme(alias: str, text: str) -> dict[str, Any]:
    bits = WeightScheme.parse(text).bits_per_weight(4096, 4096)
    return {"alias": alias, "scheme": text, "bits_per_weight": bits}
