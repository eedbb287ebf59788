"""resolve_activation(): the checkpoint's activations, or the nearest that hold as much."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace

from humming.errors import UnsupportedError
from humming.formats.activation import ActivationScheme
from humming.formats.number import NumberFormat
from humming.formats.scheme import WeightScheme
from humming.formats.table import number_format
from humming.profiles import DeviceProfile
from humming.selection.notice import log_once
from humming.settings import flag
from humming.validity import why_not

__all__ = ["WIDER", "resolve_activation"]

#: Quantized formats that may stand in for one that a device lacks, nearest first. Each holds every
#: value of the narrower one, so under the same scales nothing is lost. After them come 16 bits.
WIDER: dict[str, tuple[str, ...]] = {
    "e2m1": ("e4m3fn",),
    "e2m3": ("e4m3fn",),
    "e3m2": ("e4m3fn", "e5m2"),
    "e0m1": ("s4", "s8"),
    "e0m2": ("s4", "s8"),
    "e0m3": ("s4", "e4m3fn", "s8"),
    **{f"e0m{bits}": ("s8",) for bits in (4, 5, 6, 7)},
    **{f"s{bits}": ("s4", "s8") for bits in (1, 2, 3)},
    **{f"s{bits}": ("s8",) for bits in (4, 5, 6, 7)},
}


def resolve_activation(
    requested: ActivationScheme | NumberFormat | str,
    profile: DeviceProfile,
    *,
    weight: WeightScheme,
    output: NumberFormat | str | None = None,
    override: ActivationScheme | NumberFormat | str | None = None,
    allow_fallback: bool | None = None,
) -> ActivationScheme:
    """The activations to use: what is requested if the device can, else the nearest wider ones.

    A wider format holds every value of the narrower one. Dynamic scales stay as they are; a
    scale stored in the checkpoint fits its own format only, so what has one becomes unquantized.
    A replacement is logged once.

    Args:
        requested: what the checkpoint asks for.
        profile: of the device.
        weight: what the activations meet.
        output: format of the unquantized activations, bf16 or else f16 if None.
        override: what the user asks for; replaced only if `allow_fallback` is True.
        allow_fallback: whether a wider type may be used; None is HUMMING_ALLOW_FALLBACK, or
            False with an override.

    Raises:
        UnsupportedError: the device can't, and nothing may or can replace it.
        ConfigError: a text is no activation scheme.
    """
    wanted = ActivationScheme.parse(requested if override is None else override)
    reason = why_not(weight, wanted, profile)
    if reason is None:
        return wanted
    tried = [(wider, why_not(weight, wider, profile)) for wider in _wider(wanted, output, profile)]
    would_do = [wider for wider, refused in tried if refused is None]
    if allow_fallback is None:
        allow_fallback = override is None and flag("HUMMING_ALLOW_FALLBACK")
    if allow_fallback and would_do:
        log_once(
            logging.WARNING,
            f"{profile.title}: {wanted} activations with {weight} weights become {would_do[0]}: "
            f"{reason}",
        )
        return would_do[0]
    listed = f"lists {', '.join(profile.activations)}"
    others = " or ".join(map(str, would_do)) or "no wider type"
    raise UnsupportedError(
        f"{profile.title} can't multiply {wanted} activations with {weight} weights: {reason}"
        + ("" if listed in reason else f"; the device {listed}")
        + f"; {others} would work"
    )


def _wider(
    wanted: ActivationScheme, output: NumberFormat | str | None, profile: DeviceProfile
) -> Iterator[ActivationScheme]:
    """Schemes that hold all values of `wanted`, nearest first."""
    names = () if wanted.static else WIDER.get(wanted.format.name, ())
    for name in names:
        yield replace(wanted, format=number_format(name))
    if wanted.hadamard:  # the weight is transformed as well, and nothing transforms these alone
        return
    if output is not None and number_format(output).bits == 16:
        plain = [number_format(output)]  # the model's own: rounding to another would lose more
    elif output is not None:
        plain = [number_format("bf16"), number_format("f16")]
        # f32 holds everything, but only where the device lists it is it as fast as the others.
        first = 0 if number_format(output).name in profile.activations else 2
        plain.insert(first, number_format(output))
    else:
        plain = [number_format("bf16"), number_format("f16")]
    for fmt in plain:
        if fmt.holds(wanted.format) and fmt != wanted.format:
            yield ActivationScheme(format=fmt)
