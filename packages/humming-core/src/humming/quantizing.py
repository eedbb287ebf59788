"""quantize(): from a float matrix to a CanonicalWeight."""

from __future__ import annotations

from collections.abc import Callable

import torch

from humming.activations import hadamard as transformed
from humming.errors import ConfigError
from humming.formats.scheme import Second, WeightScheme, Zero
from humming.formats.tensors import decode, divide, encode, encode_scale, scale_reach
from humming.packing import pack
from humming.weight import CanonicalWeight

__all__ = ["quantize"]

#: Shrink factors that clip="mse" tries; 1.0 is the largest magnitude, as clip="max" uses.
_CLIP_FACTORS = tuple(1.0 - 0.02 * i for i in range(26))
_CHUNK_BYTES = 64 << 20


def quantize(
    weight: torch.Tensor,
    scheme: str | WeightScheme,
    *,
    bias: torch.Tensor | None = None,
    clip: str = "max",
    hadamard: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> CanonicalWeight:
    """Quantize `weight` to `scheme`, rounding to nearest.

    The scale of a block maps its largest magnitude (its range, with zero points) onto the
    largest code; it is rounded to the scale format before the codes are computed, e8m0 scales
    upwards so that nothing saturates (OCP MX rounds down, and what then lies beyond the largest
    code saturates). A block of zeros gets scale 1 and codes of zero.

    Args:
        weight: float [N, K] or [E, N, K]; finite.
        scheme: a scheme or its text, ``"u4-g128-bf16"``, ``"nvfp4"``.
        bias: [N] or [E, N], stored with the weight.
        clip: "max", or "mse" to search, per block, the shrink factor in 0.5 to 1 with the
            least squared error.
        hadamard: block of :func:`humming.activations.hadamard`, taken of the rows before; for
            activations that get it, too: ``activation="s8-token-f32-h32"``. 0 for none.
        progress: called with (rows done, rows in all) after each chunk of long work.

    Raises:
        ConfigError: not a float matrix, empty, NaN or Inf inside, a magnitude that the scale
            format can't reach, or an unknown `clip`.
    """
    scheme = WeightScheme.parse(scheme)
    _check_request(weight, clip)
    if hadamard:
        weight = transformed(weight.to(torch.float32), hadamard)
    if weight.dim() == 3:
        return _experts(weight, scheme, bias, clip, progress)
    n, k = weight.shape
    second = _second_scale(weight, scheme)
    bn, bk = scheme.granularity.extent(n, k)
    step = max(1, _CHUNK_BYTES // (4 * k) // bn) * bn
    parts: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]] = []
    for start in range(0, n, step):
        rows = weight[start : start + step].to(torch.float32)
        if second is not None:
            rows = rows / (second if second.shape[0] == 1 else second[start : start + step])
        parts.append(_quantize_rows(rows, scheme, (bn, bk), clip))
        if progress is not None:
            progress(min(start + step, n), n)
    zeros = [p[2] for p in parts if p[2] is not None]
    return CanonicalWeight(
        scheme=scheme,
        n=n,
        k=k,
        packed=torch.cat([p[0] for p in parts]),
        scales=torch.cat([p[1] for p in parts]),
        zeros=torch.cat(zeros) if zeros else None,
        second=second,
        bias=bias,
    )


def _check_request(weight: torch.Tensor, clip: str) -> None:
    if clip not in ("max", "mse"):
        raise ConfigError("clip", clip, "'max' or 'mse'")
    if weight.dim() not in (2, 3) or not weight.is_floating_point():
        found = f"{weight.dtype} {list(weight.shape)}"
        raise ConfigError("weight", found, "a float tensor [N, K] or [E, N, K]")
    if weight.numel() == 0:
        raise ConfigError("weight", list(weight.shape), "at least one row and one column")
    narrow = weight.to(torch.float32) if weight.dtype == torch.float64 else weight
    if not bool(torch.isfinite(narrow).all()):
        raise ConfigError("weight", "NaN or Inf", "finite float32 values")


def _experts(
    weight: torch.Tensor,
    scheme: WeightScheme,
    bias: torch.Tensor | None,
    clip: str,
    progress: Callable[[int, int], None] | None,
) -> CanonicalWeight:
    experts, n, _ = weight.shape

    def shifted(index: int) -> Callable[[int, int], None] | None:
        if progress is None:
            return None
        report = progress
        return lambda done, _: report(index * n + done, experts * n)

    parts = [quantize(weight[e], scheme, clip=clip, progress=shifted(e)) for e in range(experts)]
    stacked = {
        name: torch.stack([dict(p.tensors())[name] for p in parts])
        for name, _ in parts[0].tensors()
    }
    return parts[0].replace(experts=experts, bias=bias, **stacked)


def _positive_range(scheme: WeightScheme) -> float:
    """The largest |value| / scale that rounding alone can reproduce."""
    code = scheme.code
    if code.is_integer:
        # Half a step beyond the largest positive code rounds to it: the same error as anywhere
        # else, for a finer step. One bit holds only {-1, 0}.
        return 1.0 if code.bits == 1 else ((1 << code.bits) - 1) / 2
    return code.max


def _second_scale(weight: torch.Tensor, scheme: WeightScheme) -> torch.Tensor | None:
    """Second-level scale that puts the largest first-level one at the top of its format."""
    if scheme.second is Second.NONE:
        return None
    if scheme.second is Second.CHANNEL:
        largest = weight.abs().amax(dim=1, keepdim=True)
    else:
        largest = weight.abs().amax().reshape(1, 1)
    top = _positive_range(scheme) * scale_reach(scheme.scale)
    second = divide(largest.to(torch.float32), top)
    return torch.where(second > 0, second, torch.ones_like(second))


def _quantize_rows(
    rows: torch.Tensor, scheme: WeightScheme, block: tuple[int, int], clip: str
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Packed codes, scales and zeros of float32 rows [n, K]; n holds whole row blocks."""
    n, k = rows.shape
    bn, bk = block
    pad = (0, -k % bk, 0, -n % bn)
    # [R, bn, C, bk]; padding is NaN so that it takes no part in the ranges.
    blocks = torch.nn.functional.pad(rows, pad, value=torch.nan)
    blocks = blocks.unflatten(0, (-1, bn)).unflatten(2, (-1, bk))
    low = torch.nan_to_num(blocks, nan=torch.inf).amin(dim=(1, 3))
    high = torch.nan_to_num(blocks, nan=-torch.inf).amax(dim=(1, 3))
    inside = ~blocks.isnan()
    blocks = torch.nan_to_num(blocks, nan=0.0)
    best: tuple[torch.Tensor, ...] | None = None
    for factor in _CLIP_FACTORS if clip == "mse" else (1.0,):
        scales, zeros = _scales(*_shrunk(low, high, factor, scheme), scheme)
        codes, values = _round(blocks, scales, zeros, scheme)
        if clip == "max":
            best = (codes, scales, *(() if zeros is None else (zeros,)))
            break
        error = ((values - blocks) * inside).square().sum(dim=(1, 3))
        trial = (codes, scales, *(() if zeros is None else (zeros,)), error)
        best = trial if best is None else _keep_better(best, trial)
    assert best is not None, "there is at least one clip factor"
    codes = best[0].flatten(2).flatten(0, 1)[:n, :k].contiguous()
    zeros = best[2] if scheme.zero is not Zero.NONE else None
    return pack(codes, scheme.code.bits), best[1], zeros


def _shrunk(
    low: torch.Tensor, high: torch.Tensor, factor: float, scheme: WeightScheme
) -> tuple[torch.Tensor, torch.Tensor]:
    """The range made smaller: about its middle with float zero points, else about zero."""
    if factor == 1.0 or scheme.zero is not Zero.FLOAT:
        return low * factor, high * factor
    middle, half = (low + high) / 2, (high - low) * (factor / 2)
    return middle - half, middle + half


def _keep_better(
    best: tuple[torch.Tensor, ...], trial: tuple[torch.Tensor, ...]
) -> tuple[torch.Tensor, ...]:
    better = trial[-1] < best[-1]

    def pick(new: torch.Tensor, old: torch.Tensor) -> torch.Tensor:
        return torch.where(better[:, None, :, None] if new.dim() == 4 else better, new, old)

    return tuple(pick(new, old) for new, old in zip(trial, best, strict=True))


def _scales(
    low: torch.Tensor, high: torch.Tensor, scheme: WeightScheme
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Stored scales and zeros for blocks that range from `low` to `high`."""
    steps = (1 << scheme.code.bits) - 1
    if scheme.zero is Zero.NONE:
        wanted = divide(torch.maximum(high.abs(), low.abs()), _positive_range(scheme))
    elif scheme.zero is Zero.INTEGER:
        low, high = low.clamp(max=0.0), high.clamp(min=0.0)
        wanted = divide(high - low, steps)
    else:
        wanted = divide(high - low, steps)
    stored = _store_scale(wanted, scheme)
    if scheme.zero is Zero.NONE:
        return stored, None
    scale = decode(stored, scheme.scale)
    if scheme.zero is Zero.INTEGER:
        return stored, (-low / scale).round().clamp(0, steps).to(torch.uint8)
    first = low - float(scheme.code.min) * scale
    _check_reach(first, scheme)
    return stored, encode(first, scheme.scale)


def _check_reach(wanted: torch.Tensor, scheme: WeightScheme) -> None:
    """Refuse scales (or float zero points) beyond the scale format: they would saturate."""
    # The largest scale under a second-level one may pass the top by the rounding of that one.
    largest = float(wanted.abs().max())
    if largest > scheme.scale.max * (1 + 2**-10):
        found = f"magnitudes that need a scale or zero point of {largest:.4g}"
        raise ConfigError("weight", found, f"at most {scheme.scale.max:.4g} for {scheme}")


def _store_scale(wanted: torch.Tensor, scheme: WeightScheme) -> torch.Tensor:
    """Scales in their format; a block of zeros gets 1."""
    wanted = torch.where(wanted > 0, wanted, torch.ones_like(wanted))
    if scheme.scale.name != "e8m0":
        _check_reach(wanted, scheme)
    return encode_scale(wanted, scheme.scale)


def _round(
    blocks: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor | None, scheme: WeightScheme
) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes [R, bn, C, bk] and the values that they stand for."""
    scale = decode(scales, scheme.scale)[:, None, :, None]
    if scheme.zero is Zero.FLOAT:
        assert zeros is not None, "float zero points were computed with the scales"
        shift = zeros.to(torch.float32)[:, None, :, None]
        codes = encode((blocks - shift) / scale, scheme.code)
        return codes, decode(codes, scheme.code) * scale + shift
    middle = torch.full_like(scale, float(scheme.midpoint))
    if zeros is not None:
        middle = zeros.to(torch.float32)[:, None, :, None]
    wanted = blocks / scale
    # Rounding before the shift keeps ties at even *values*; the shift itself is exact.
    codes = encode(wanted.round() + middle if scheme.code.is_integer else wanted, scheme.code)
    return codes, (decode(codes, scheme.code) - middle) * scale
