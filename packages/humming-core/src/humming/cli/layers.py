"""What the commands on checkpoints share: choosing layers, folding names, sizes, configs."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable, Hashable, Iterable, Sequence
from fnmatch import fnmatchcase
from typing import TypeVar

from humming.checkpoints.base import LayerPlan
from humming.checkpoints.checkpoint import Checkpoint
from humming.checkpoints.store import TensorInfo
from humming.cli.output import UsageError
from humming.configs import OUTPUT_FORMATS, ComputeConfig, GemmKind, LayerConfig
from humming.errors import ConfigError
from humming.formats.activation import ActivationScheme
from humming.formats.number import NumberFormat
from humming.formats.table import number_format
from humming.profiles import DeviceProfile
from humming.selection import Device, find_device, resolve_activation

__all__ = [
    "GLOB_HELP",
    "argument",
    "chosen",
    "counted",
    "fold",
    "matching",
    "model_output",
    "planned",
    "scheme_text",
    "shape_text",
    "tensor_bytes",
    "unreadable",
    "weight_bytes",
    "where",
]

GLOB_HELP = "only layers whose name matches; * also matches dots; may be given several times"

#: As repeated layers are numbered: 01 and 1 are different names.
_NUMBER = re.compile(r"0|[1-9][0-9]*")

T = TypeVar("T")
Facts = TypeVar("Facts", bound=Hashable)


def argument(parse: Callable[[str], T]) -> Callable[[str], T]:
    """`parse` as an argparse type: a ConfigError becomes a usage error with its message."""

    def convert(text: str) -> T:
        try:
            return parse(text)
        except ConfigError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return convert


def where(device: str | None, profile: str | None = None) -> Device:
    """The device that --device or --profile means.

    Raises:
        UsageError: there is none of that name.
        UnsupportedError: no profile matches the device.
    """
    try:
        return find_device(device, profile)
    except ConfigError as error:
        raise UsageError(str(error)) from error


def matching(names: Iterable[str], globs: Sequence[str]) -> list[str]:
    """Those of `names` that some glob matches; each glob must match something.

    Raises:
        UsageError: a glob matches nothing.
    """
    names = list(names)
    for glob in globs:
        if not any(fnmatchcase(name, glob) for name in names):
            raise UsageError(f"{glob!r} matches no layer; `humming inspect` lists their names")
    return [name for name in names if any(fnmatchcase(name, glob) for glob in globs)]


def chosen(checkpoint: Checkpoint, globs: Sequence[str]) -> list[str]:
    """Names of the quantized layers that are meant: all, or what `globs` match."""
    return matching(checkpoint, globs) if globs else list(checkpoint)


# -- what a layer is, from headers alone -----------------------------------------------------------


def model_output(checkpoint: Checkpoint, profile: DeviceProfile) -> NumberFormat:
    """Format of unquantized activations and results: the model's own if the device has it.

    Else bf16, f16 or f32, whichever the device lists first in this order.
    """
    config = checkpoint.model_config
    own = str(config.get("torch_dtype") or config.get("dtype") or "").removeprefix("torch.")
    order = list(map(number_format, ("bf16", "f16", "f32")))
    order.sort(key=lambda fmt: own not in (fmt.name, *fmt.aliases))
    return next((fmt for fmt in order if fmt.name in profile.activations), order[0])


def planned(
    plan: LayerPlan,
    profile: DeviceProfile,
    output: NumberFormat,
    override: ActivationScheme | None = None,
) -> tuple[LayerConfig, ComputeConfig]:
    """The configs of a layer on a device, as :func:`humming.layer.prepare` will make them.

    Raises:
        UnsupportedError: the device can't multiply what the checkpoint asks for.
        ConfigError: a size of zero.
    """
    assert output.name in OUTPUT_FORMATS, "model_output() yields only these"
    asked = plan.activation
    if asked is None or not asked.is_quantized:
        asked = ActivationScheme(format=output)
    layer = LayerConfig(
        n=plan.n,
        k=plan.k,
        experts=plan.experts,
        weight=plan.scheme,
        activation=resolve_activation(
            asked, profile, weight=plan.scheme, output=output, override=override
        ),
        output=output,
        bias=plan.bias,
        act_order=plan.act_order,
    )
    return layer, ComputeConfig(gemm=GemmKind.INDEXED if plan.experts else GemmKind.DENSE)


def scheme_text(plan: LayerPlan) -> str:
    """The scheme, and its well-known name if it has one: ``"e2m1-g32-e8m0 (mxfp4)"``."""
    alias = plan.scheme.alias
    return f"{plan.scheme} ({alias})" if alias else str(plan.scheme)


def shape_text(plan: LayerPlan) -> str:
    """``"[4096, 4096]"``, ``"8 x [512, 512]"``."""
    lead = f"{plan.experts} x " if plan.experts else ""
    return f"{lead}[{plan.n}, {plan.k}]"


def weight_bytes(plan: LayerPlan) -> int:
    """Bytes of codes, scales and zero points of all experts."""
    count = max(plan.experts, 1) * plan.n * plan.k
    return math.ceil(plan.scheme.bits_per_weight(plan.n, plan.k) * count / 8)


def tensor_bytes(info: TensorInfo) -> int | None:
    """Bytes of a plain tensor; None if its type is not plain numbers (a block type of GGUF)."""
    match = re.fullmatch(r"(?:F|BF|I|U)([0-9]+)(?:_.*)?", info.dtype)
    return math.prod(info.shape) * int(match[1]) // 8 if match else None


def unreadable(checkpoint: Checkpoint) -> dict[str, str]:
    """Matrices in codes that have no standard form (IQ4_XS of GGUF): name to type."""
    plain = checkpoint.unquantized.items()
    return {name: info.dtype for name, info in plain if tensor_bytes(info) is None}


# -- many names in few rows ------------------------------------------------------------------------


def fold(facts: Sequence[tuple[str, Facts]]) -> list[tuple[str, int, Facts]]:
    """Rows for layers that differ only in the numbers of their names.

    ``layers.0.up`` to ``layers.29.up`` with equal facts become ``layers.{0..29}.up``. A folded
    name means every combination of its numbers, so nothing is listed that is not there.

    Args:
        facts: (name, facts) of each layer.

    Returns:
        (folded name, how many layers, facts) in order of first appearance.
    """
    # A name is its components, each a sorted tuple of alternatives.
    groups: list[tuple[Parts, Facts]] = [
        (tuple((part,) for part in name.split(".")), value) for name, value in facts
    ]
    width = max((len(parts) for parts, _ in groups), default=0)
    for place in reversed(range(width)):
        groups = _fold_place(groups, place)
    return [
        (
            ".".join(_alternatives(part) for part in parts),
            math.prod(len(part) for part in parts),
            value,
        )
        for parts, value in groups
    ]


def counted(count: int) -> str:
    """``"1 layer"``, ``"3 layers"``."""
    return f"{count} layer{'s' * (count != 1)}"


Parts = tuple[tuple[str, ...], ...]


def _fold_place(groups: Sequence[tuple[Parts, Facts]], place: int) -> list[tuple[Parts, Facts]]:
    """Merge groups that differ in one numeric component only."""
    merged: dict[Hashable, tuple[Parts, Facts]] = {}
    for parts, value in groups:
        numeric = place < len(parts) and all(map(_NUMBER.fullmatch, parts[place]))
        key: Hashable = (parts, value)
        if numeric:
            key = (parts[:place], parts[place + 1 :], value, "numeric")
        if key in merged:
            present = merged[key][0][place]
            both = tuple(sorted({*present, *parts[place]}, key=int))
            parts = (*parts[:place], both, *parts[place + 1 :])
        merged[key] = (parts, value)
    return list(merged.values())


def _alternatives(part: tuple[str, ...]) -> str:
    """``"7"``, ``"{0..29}"``, ``"{0,2,5..8}"``."""
    if len(part) == 1:
        return part[0]
    runs: list[list[int]] = []
    for number in map(int, part):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    spelled = [f"{run[0]}..{run[-1]}" if len(run) > 2 else ",".join(map(str, run)) for run in runs]
    return f"{{{','.join(spelled)}}}"
