"""quantize_input(): activations as codes under scales, by core's kernel or, elsewhere, in torch."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import torch

from humming.activations import QuantizedActivation, quantize_rows
from humming.activations import hadamard as transformed
from humming.backend import Problem
from humming.configs import LayerConfig
from humming.engine import Profile
from humming.engine.own_kernels import Place, own_kernel, place_of
from humming.engine.quantized import RowChoice
from humming.errors import ConfigError
from humming.formats.activation import ActivationScheme
from humming.formats.scheme import WeightScheme
from humming.formats.table import number_format
from humming.formats.tensors import TORCH_FLOATS, encode_scale
from humming.gating import Gating
from humming.quantizer import (
    SOURCES,
    QuantizeOptions,
    RowSource,
    quantize_refusal,
    quantize_spec,
    row_sizes,
)

__all__ = ["quantize_input"]

_DTYPES = tuple(TORCH_FLOATS[name] for name in SOURCES)
_INTEGERS = (torch.int32, torch.int64)


def quantize_input(  # budget: one keyword for each thing that the kernel does in the same launch
    x: torch.Tensor,
    scheme: str | ActivationScheme,
    *,
    input_scale: torch.Tensor | None = None,
    gating: str | Gating | None = None,
    hadamard: int = 0,
    rows: torch.Tensor | None = None,
    expert_ids: torch.Tensor | None = None,
    experts: int = 0,
    expert_counts: torch.Tensor | None = None,
    device: object = None,
    profile: Profile | None = None,
) -> QuantizedActivation:
    """Quantize activations as a layer does: activate, transform and choose rows on the way.

    On a device with kernels the codes come from one launch, and nothing waits for it; elsewhere,
    and for schemes that no kernel has, torch computes the same. Without a `gating` the numbers are
    the same to the bit. A NaN makes NaN of its row where the kernel quantizes, as products do, and
    of itself (or of all under its scale) in torch.

    At most one of `rows`, `expert_ids` and `expert_counts` says which rows are quantized. Rows of
    the result that are nobody's are zeros.

    Args:
        x: [M, K], or [M, 2 K] before a function with a gate: float16, bfloat16 or float32. With
            `expert_counts` [E, capacity, ..], whose result has E * capacity rows.
        scheme: what to quantize to; text as of :class:`ActivationScheme`.
        input_scale: the stored scale of a static scheme: one, or one for each row of the result.
        gating: an activation function that is applied first, rounded to the dtype of x.
        hadamard: block of :func:`humming.activations.hadamard`, which is applied then; 0 for none,
            or what the scheme says.
        rows: int32 or int64 [R], the row of x of each row of the result, such as ``sources`` of
            :class:`humming.Routes`; what is no row of x is nobody's.
        expert_ids: int32 or int64, M in any shape: rows whose expert is none of `experts` are
            nobody's.
        experts: how many there are, beside `expert_ids`.
        expert_counts: int32 or int64 [E], how many of an expert's rows count, the first ones.
        device: where, if tensors do not say: ``"sim:NAME"`` is a simulated device.
        profile: facts to use instead of the device's own.

    Returns:
        Codes [rows, K], one per byte, under scales in their stored form.

    Raises:
        ConfigError: a shape, dtype, device or number that does not fit.
        CaptureError: a kernel is not loaded, in the capture of a graph.
    """
    scheme = ActivationScheme.parse(scheme)
    if hadamard and scheme.hadamard:
        raise ConfigError("hadamard", hadamard, f"none beside that of {scheme}")
    gating = Gating.of(gating) if isinstance(gating, str) else gating
    dims = 2 if expert_counts is None else 3
    _check_x(x, scheme, dims, 1 if gating is None else gating.function.inputs)
    place = place_of(str(x.device if device is None else device), profile)
    choice = _choice(x, rows, expert_ids, experts, expert_counts)
    x = x.flatten(0, -2)
    count = x.shape[0] if choice is None else choice.rows
    scale = _checked_scale(input_scale, scheme, count, x.device)
    work = _Work(x, scheme, scale, gating, hadamard, choice)
    if place is None or not count or not x.shape[1] or _refused(scheme, hadamard):
        return _in_torch(work)
    place.site.check(x.device, "x")
    return _by_kernel(work, place)


class _Work(NamedTuple):
    """A checked call.

    Attributes:
        x: rows.
        scheme: what to quantize to.
        scale: f32 [1, 1] or [rows of the result, 1], stored; None for a dynamic scheme.
        gating, hadamard: what is applied before.
        choice: which rows; None is all.
    """

    x: torch.Tensor
    scheme: ActivationScheme
    scale: torch.Tensor | None
    gating: Gating | None
    hadamard: int
    choice: RowChoice | None

    @property
    def k(self) -> int:
        """Elements of a row of codes."""
        return self.x.shape[1] // (1 if self.gating is None else self.gating.function.inputs)


# -- checks ----------------------------------------------------------------------------------------


def _check_x(x: torch.Tensor, scheme: ActivationScheme, dims: int, inputs: int) -> None:
    if x.dtype not in _DTYPES or x.dim() != dims:
        shape = "[M, K]" if dims == 2 else "[E, capacity, K], as there are expert_counts"
        allowed = f"a float16, bfloat16 or float32 tensor {shape}"
        raise ConfigError("x", f"{x.dtype} {list(x.shape)}", allowed)
    if not scheme.is_quantized:
        raise ConfigError("scheme", str(scheme), "a scheme that quantizes")
    if x.shape[-1] % inputs:
        raise ConfigError("x", list(x.shape), "an even last dimension, of gates and ups")


def _checked_scale(
    scale: torch.Tensor | None, scheme: ActivationScheme, rows: int, device: torch.device
) -> torch.Tensor | None:
    if scale is None and scheme.static:
        raise ConfigError("input_scale", None, f"a stored scale, for {scheme}")
    if scale is None:
        return None
    if not scheme.static:
        raise ConfigError("input_scale", "given", f"None: the scales of {scheme} are dynamic")
    if not scale.is_floating_point() or scale.numel() not in (1, rows):
        found = f"{scale.dtype} {list(scale.shape)}"
        raise ConfigError("input_scale", found, f"one float, or {rows}")
    return scale.to(device, torch.float32).reshape(-1, 1).contiguous()


def _choice(
    x: torch.Tensor,
    rows: torch.Tensor | None,
    ids: torch.Tensor | None,
    experts: int,
    counts: torch.Tensor | None,
) -> RowChoice | None:
    named = {"rows": rows, "expert_ids": ids, "expert_counts": counts}
    given = {name: table for name, table in named.items() if table is not None}
    if len(given) > 1:
        raise ConfigError("rows", sorted(given), "at most one of these")
    if (ids is None) != (experts < 1):
        raise ConfigError("experts", experts, "1 or more beside expert_ids, and 0 without")
    for name, table in given.items():
        if table.dtype not in _INTEGERS:
            raise ConfigError(name, table.dtype, "an int32 or int64 tensor")
        if table.device != x.device:
            raise ConfigError(name, str(table.device), f"a tensor on {x.device}, as x")
    if rows is not None:
        if rows.dim() != 1:
            raise ConfigError("rows", list(rows.shape), "[rows of the result]")
        # As int32 a number beyond could be a row's again.
        small = rows.clamp(-1, x.shape[0]).to(torch.int32).contiguous()
        return RowChoice(RowSource.MAP, small, x.shape[0])
    if ids is not None:
        if ids.numel() != x.shape[0]:
            raise ConfigError("expert_ids", list(ids.shape), f"one for each of {x.shape[0]} rows")
        source = RowSource.IDS if ids.dtype == torch.int32 else RowSource.IDS_64
        return RowChoice(source, ids.reshape(-1).contiguous(), experts)
    if counts is not None:
        if tuple(counts.shape) != (x.shape[0],):
            raise ConfigError("expert_counts", list(counts.shape), f"[{x.shape[0]}], as x has")
        small = counts.clamp(0, x.shape[1]).to(torch.int32).contiguous()
        return RowChoice(RowSource.COUNTS, small, x.shape[1])
    return None


def _refused(scheme: ActivationScheme, hadamard: int) -> bool:
    """Whether no kernel has this scheme, or not behind a transform: groups across its blocks."""
    across = bool(hadamard and scheme.group_size & (scheme.group_size - 1))
    return across or quantize_refusal(scheme) is not None


# -- in torch --------------------------------------------------------------------------------------


def _in_torch(work: _Work) -> QuantizedActivation:
    y = work.x
    if work.choice is not None:
        y = _chosen(y, work.choice)
    if work.gating is not None:
        y = work.gating(y)
    if work.choice is not None:  # a function may make something of nothing
        y = torch.where(_somebodys(work.choice).unsqueeze(1), y, 0)
    if work.hadamard:
        y = transformed(y, work.hadamard)
    return quantize_rows(y, work.scheme, work.scale)


def _chosen(x: torch.Tensor, choice: RowChoice) -> torch.Tensor:
    """Rows as the result has them; some row of x, or zeros, where they are nobody's."""
    if choice.source is not RowSource.MAP:
        return x
    if not x.shape[0]:
        return x.new_zeros(choice.rows, x.shape[1])
    return x[choice.table.clamp(0, x.shape[0] - 1).long()]


def _somebodys(choice: RowChoice) -> torch.Tensor:
    """bool [rows of the result]."""
    table, limit = choice.table, choice.limit
    if choice.source is not RowSource.COUNTS:
        return (table >= 0) & (table < limit)
    row = torch.arange(limit, device=table.device, dtype=table.dtype)
    return (row < table.unsqueeze(1)).reshape(-1)


# -- by the kernel ---------------------------------------------------------------------------------


def _by_kernel(work: _Work, place: Place) -> QuantizedActivation:
    x, scheme, choice, k = work.x, work.scheme, work.choice, work.k
    site, profile = place
    source = RowSource.EVERY if choice is None else choice.source
    native = "e4m3fn" in profile.features.activations  # it converts to this format as well
    options = QuantizeOptions(native, work.gating, work.hadamard, source)
    layer = _layer(scheme, x.dtype, k)
    spec, launch = own_kernel(
        site, quantize_spec, scheme, layer.output, k, profile.target.arch, options
    )
    rows = x.shape[0] if choice is None else choice.rows
    width, count = row_sizes(scheme, k)
    # Rows that are nobody's are not written.
    make: Callable[..., torch.Tensor] = torch.empty if choice is None else torch.zeros
    codes = make(rows, width, dtype=torch.uint8, device=x.device)
    scales = make(rows, dtype=torch.float32, device=x.device)
    groups = make(rows, count, dtype=torch.float32, device=x.device) if count else None
    # What a simulator copies must be a whole buffer.
    if x.stride(1) != 1 or (x.device.type == "cpu" and not x.is_contiguous()):
        x = x.contiguous()
    stored, step = work.scale, 0 if work.scale is None or work.scale.numel() == 1 else 1
    table, limit = (None, 0) if choice is None else (choice.table, choice.limit)
    shape = spec.launch(Problem(m=rows), layer)
    launch(shape, x, x.stride(0), stored, step, codes, scales, groups, rows, k, table, limit)
    return _stored_form(work, codes, scales, groups)


@lru_cache(maxsize=256)
def _layer(scheme: ActivationScheme, dtype: torch.dtype, k: int) -> LayerConfig:
    """What a launch wants of a layer; there is no weight."""
    weight = WeightScheme.parse("s8-channel-f32")
    return LayerConfig(n=1, k=k, weight=weight, activation=scheme, output=number_format(dtype))


def _stored_form(
    work: _Work, codes: torch.Tensor, scales: torch.Tensor, groups: torch.Tensor | None
) -> QuantizedActivation:
    """What the kernel wrote, as :func:`quantize_rows` gives it."""
    scheme, k = work.scheme, work.k
    assert scheme.scale is not None, "a scheme that quantizes has a scale format"
    invalid = scales.isnan().unsqueeze(1).expand(-1, k)
    if scheme.format.bits <= 4:
        codes = torch.stack((codes & 15, codes >> 4), dim=2).flatten(1)
    codes = codes[:, :k].contiguous()
    outer = scales.unsqueeze(1)
    if work.choice is not None:
        outer = torch.where(outer == 0, torch.ones_like(outer), outer)
    outer = outer if work.scale is None else work.scale
    second = outer if scheme.second else None
    stored = encode_scale(outer if groups is None else groups, scheme.scale)
    return QuantizedActivation(
        scheme=scheme, codes=codes, scales=stored, second=second, invalid=invalid
    )
