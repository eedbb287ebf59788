"""The config of compressed-tensors: groups, targets and quantization arguments, strictly read.

What a config leaves out has the tool's own default (`QuantizationArgs` of compressed-tensors).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from humming.errors import CheckpointError

__all__ = ["QuantArgs", "checked_keys", "config_error"]

_KEYS = frozenset(
    (
        *("num_bits", "type", "symmetric", "group_size", "strategy", "block_structure"),
        *("dynamic", "actorder", "scale_dtype", "zp_dtype", "observer", "observer_kwargs"),
    )
)
_STRATEGIES = ("tensor", "channel", "group", "block", "token", "tensor_group")
#: Whether an order of columns is stored. "weight" and "static" only steer the writer.
_ACTORDERS: Mapping[str | bool | None, bool] = {
    "group": True,
    "dynamic": True,
    True: True,
    "weight": False,
    "static": False,
    False: False,
    None: False,
}


def config_error(where: str, problem: str) -> CheckpointError:
    """An error about the quantization config; `where` is a key path."""
    return CheckpointError(f"quantization config, {where}: {problem}")


def checked_keys(value: Any, where: str, known: frozenset[str]) -> Mapping[str, Any]:
    """`value` as an object with no key outside `known`; a key that is null counts as absent.

    Raises:
        CheckpointError: not an object, or an unknown key: it might change what numbers mean.
    """
    if not isinstance(value, Mapping):
        raise config_error(where, f"{value!r}, expected an object")
    unknown = sorted(set(map(str, value)) - known)
    if unknown:
        raise config_error(
            where, f"unknown key {unknown[0]!r}, expected {', '.join(sorted(known))}"
        )
    return {key: found for key, found in value.items() if found is not None}


@dataclass(frozen=True, kw_only=True)
class QuantArgs:
    """How one side, weights or input activations, is quantized.

    Attributes:
        where: key path, for errors.
        is_float: float or integer codes.
        bits: of a code.
        symmetric: whether zero points are fixed.
        strategy: tensor, channel, group, block, token or tensor_group.
        group: group size, 0 if there are no groups.
        block: rows and columns of a block, (0, 0) if there are none.
        dynamic: True, False or "local": only the second-level scale is stored.
        act_order: whether ``weight_g_idx`` may say which group each column is in.
        scale_dtype: as spelled, "" if left out.
    """

    where: str
    is_float: bool
    bits: int
    symmetric: bool
    strategy: str
    group: int
    block: tuple[int, int]
    dynamic: bool | str
    act_order: bool
    scale_dtype: str

    @property
    def code(self) -> str:
        """ "float8", "int4", ...: as the tool's presets name it."""
        return f"{'float' if self.is_float else 'int'}{self.bits}"

    @classmethod
    def parse(cls, value: Any, where: str) -> QuantArgs:
        """Read one arguments object.

        Raises:
            CheckpointError: an unknown key, a wrong type, or a contradiction.
        """
        args = checked_keys(value, where, _KEYS)
        kind = _choice(args, where, "type", ("int", "float"), "int")
        bits = _integer(args, where, "num_bits", 8)
        if not 1 <= bits <= 8:
            raise config_error(f"{where}.num_bits", f"{bits}, expected 1 to 8")
        group = _integer(args, where, "group_size", 0)
        inferred = "group" if group > 0 else "channel" if group == -1 else "tensor"
        strategy = _choice(args, where, "strategy", _STRATEGIES, inferred)
        grouped = strategy in ("group", "tensor_group")
        if group < -1 or (group > 0) != grouped:
            raise config_error(f"{where}.group_size", f"{group} with strategy {strategy!r}")
        block = _block(args.get("block_structure"), f"{where}.block_structure")
        if (block != (0, 0)) != (strategy == "block"):
            raise config_error(
                f"{where}.block_structure", f"{list(block)} with strategy {strategy!r}"
            )
        order = args.get("actorder")
        if isinstance(order, str):
            order = order.lower()
        if not isinstance(order, (str, bool, type(None))) or order not in _ACTORDERS:
            allowed = "group, dynamic, weight, static or null"
            raise config_error(f"{where}.actorder", f"{order!r}, expected {allowed}")
        return cls(
            where=where,
            is_float=kind == "float",
            bits=bits,
            symmetric=_boolean(args, where, "symmetric", True),
            strategy=strategy,
            group=max(group, 0),
            block=block,
            dynamic=_dynamic(args, where),
            act_order=_ACTORDERS[order],
            scale_dtype=str(args.get("scale_dtype", "")).removeprefix("torch."),
        )


def _choice(
    args: Mapping[str, Any], where: str, key: str, allowed: tuple[str, ...], default: str
) -> str:
    value = args.get(key, default)
    if not isinstance(value, str) or value.lower() not in allowed:
        raise config_error(f"{where}.{key}", f"{value!r}, expected {', '.join(allowed)}")
    return value.lower()


def _integer(args: Mapping[str, Any], where: str, key: str, default: int) -> int:
    value = args.get(key, default)
    if type(value) is not int:
        raise config_error(f"{where}.{key}", f"{value!r}, expected an integer")
    return value


def _boolean(args: Mapping[str, Any], where: str, key: str, default: bool) -> bool:
    value = args.get(key, default)
    if not isinstance(value, bool):
        raise config_error(f"{where}.{key}", f"{value!r}, expected true or false")
    return value


def _dynamic(args: Mapping[str, Any], where: str) -> bool | str:
    value = args.get("dynamic", False)
    if isinstance(value, str) and value.lower() == "local":
        return "local"
    return _boolean(args, where, "dynamic", False)


def _block(value: Any, where: str) -> tuple[int, int]:
    """``[128, 128]`` or, as older files spell it, ``"128x128"``."""
    if value is None:
        return 0, 0
    sizes = value
    if isinstance(value, str):
        sizes = [int(part) if part.strip().isdecimal() else 0 for part in value.split("x")]
    if not isinstance(sizes, (list, tuple)) or len(sizes) != 2:
        raise config_error(where, f"{value!r}, expected [rows, columns]")
    if not all(type(size) is int and size > 0 for size in sizes):
        raise config_error(where, f"{value!r}, expected two positive integers")
    return sizes[0], sizes[1]
