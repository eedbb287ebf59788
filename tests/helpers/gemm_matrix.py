"""The matrix of combinations that mma.sync kernels are tested with: one row per case, by rule.

Which combinations exist is what humming.validity says; which granularity, scale format, shape and
bias a combination gets follows from its place in the list, so that every one of them meets many
others. A case has a stable name, and its data follow from the name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import count
from zlib import crc32

from humming import plugins
from humming.configs import ComputeConfig, GemmKind, LayerConfig
from humming.formats.activation import ActivationScheme
from humming.formats.number import NumberFormat
from humming.formats.operands import operand_exponent
from humming.formats.scheme import SCHEME_ALIASES, WeightScheme, Zero
from humming.formats.table import SCALE_FORMATS, all_formats, number_format
from humming.profiles import DeviceProfile
from humming.validity import layer_why_not, multiplicand

#: The profiles whose kernels are run, by what their sources are written for.
SOURCES = {"sm75": "nvidia-t4", "sm80": "nvidia-a100", "sm89": "nvidia-l40s"}
BACKEND = "sm75_sm89"
EXPERTS = 4
TOP_K = 2

#: No size is a multiple of a tile; K is longer than the pipeline, and beyond 2048 once per round.
SHAPES = ((200, 1104), (136, 1312), (72, 2248), (77, 1111), (264, 1176), (328, 1160))

_GRANULARITIES = ("g128", "channel", "g32", "b128x128", "g64", "tensor")
_FLOAT_SCALES = ("f16", "bf16", "f32")
_ACTIVATION_SCALES = ("token-f32", "g128-f32", "tensor-f32", "g64-f32", "token-bf16", "g256-f32")


@dataclass(frozen=True, kw_only=True)
class Case:
    """One weight, one activation format and one kind of GEMM for one source.

    Attributes:
        source: a key of SOURCES.
        weight: text of the weight's scheme.
        activation: text of the activations' scheme; "" leaves them as they are.
        dtype: "f16" or "bf16", of activations and result.
        n, k: size of a weight, before a cut.
        kind: how rows find their weight.
        bias: whether there is one.
        act_order: whether the stored columns are permuted.
        cut: tensor-parallel part of the weight that is used, "k1of3": the second of three.
        accumulate: "f16" or "".
        smooth: whether activations have a factor per input (pre_quant_scale).
    """

    source: str
    weight: str
    activation: str = ""
    dtype: str = "bf16"
    n: int = 200
    k: int = 1104
    kind: GemmKind = GemmKind.DENSE
    bias: bool = False
    act_order: bool = False
    cut: str = ""
    accumulate: str = ""
    smooth: bool = False

    def __str__(self) -> str:
        options = [
            "bias" if self.bias else "",
            "act_order" if self.act_order else "",
            self.cut,
            f"acc_{self.accumulate}" if self.accumulate else "",
            "smooth" if self.smooth else "",
        ]
        parts = [
            self.source,
            self.weight,
            "x",
            self.activation or self.dtype,
            f"to_{self.dtype}" if self.activation else "",
            f"{self.n}x{self.k}",
            *options,
            self.kind.value,
        ]
        return "-".join(part for part in parts if part)

    @property
    def seed(self) -> int:
        return crc32(str(replace(self, kind=GemmKind.DENSE, source="")).encode())

    @property
    def scheme(self) -> WeightScheme:
        return WeightScheme.parse(self.weight)

    @property
    def activations(self) -> ActivationScheme:
        return ActivationScheme.parse(self.activation or self.dtype)

    @property
    def experts(self) -> int:
        return 0 if self.kind is GemmKind.DENSE else EXPERTS

    @property
    def profile(self) -> DeviceProfile:
        return plugins.profiles()[SOURCES.get(self.source, self.source)]

    @property
    def compute(self) -> ComputeConfig:
        accumulate = number_format(self.accumulate) if self.accumulate else None
        return ComputeConfig(gemm=self.kind, accumulate=accumulate)

    def why_not(self) -> str | None:
        """Why humming.validity refuses it, or None."""
        layer = LayerConfig(
            n=self.n,
            k=self.k,
            experts=self.experts,
            weight=self.scheme,
            activation=self.activations,
            output=number_format(self.dtype),
            bias=self.bias,
            act_order=self.act_order,
        )
        if self.act_order and self.scheme.granularity.is_block:
            return "blocks of rows have no order of columns of their own"
        return layer_why_not(layer, self.compute, self.profile) or self._not_decoded()

    def _not_decoded(self) -> str | None:
        """What validity leaves to backends: a 16-bit format of less range than the codes have."""
        scheme = self.scheme
        target = multiplicand(scheme, self.activations.format, self.profile)
        assert target is not None, "validity has an operand for what it accepts"
        if operand_exponent(scheme.code, target, scheme.zero) is None:
            return f"{target} lacks some value of {scheme.code}"
        return None


# -- weights -----------------------------------------------------------------------------------


def code_formats() -> list[NumberFormat]:
    """Every format that a weight's codes can have."""
    rows = [f for f in all_formats() if f.bits <= 8 and (f.signed or f.is_integer)]
    generic = (f"e{x}m{y}" for x in range(1, 7) for y in range(1, 7) if 3 <= 1 + x + y <= 8)
    return list(dict.fromkeys([*rows, *map(number_format, generic)]))


def codes_with_zeros() -> Iterator[str]:
    """Every spelling CODE[+z|+zf]."""
    for code in code_formats():
        yield code.name
        if code.is_integer and not code.signed:
            yield f"{code}+{Zero.INTEGER.value}"
        if code.is_integer:
            yield f"{code}+{Zero.FLOAT.value}"


def _scales_of(code: str) -> Sequence[str]:
    return _FLOAT_SCALES if code.endswith("+zf") else SCALE_FORMATS


def _every_code() -> Iterator[str]:
    """Each code once, with a granularity and a scale format that come by turns."""
    for index, code in enumerate(codes_with_zeros()):
        scales = _scales_of(code)
        yield f"{code}-{_GRANULARITIES[index % 6]}-{scales[index % len(scales)]}"


def _every_scale() -> Iterator[str]:
    """Some codes with every granularity, with every scale format, and with second levels."""
    for code in ("u4", "u4+z", "u4+zf", "e2m1", "e4m3fn", "s8"):
        for granularity in (*_GRANULARITIES, "g16", "g256", "b32x64"):
            yield f"{code}-{granularity}-f32"
        for scale in _scales_of(code):
            yield f"{code}-g32-{scale}"
            yield f"{code}-channel-{scale}"
        yield f"{code}-g64-f16-tensor"
        yield f"{code}-g64-bf16-channel"
        yield f"{code}-channel-f32-channel"


def _named() -> Iterator[str]:
    """The schemes that people have names for; integers of one width are among the others."""
    for alias, scheme in SCHEME_ALIASES.items():
        if not re.match("int[0-9]", alias):
            yield scheme


# -- the table ---------------------------------------------------------------------------------


def _weight_only(source: str) -> Iterator[Case]:
    places = count()
    for dtype in ("f16", "bf16"):
        for scheme in dict.fromkeys([*_every_code(), *_every_scale(), *_named()]):
            n, k = SHAPES[next(places) % len(SHAPES)]
            yield Case(source=source, weight=scheme, dtype=dtype, n=n, k=k)


def _quantized(source: str, formats: Iterable[str]) -> Iterator[Case]:
    """Every code with every format of activations; the first valid choice from its turn on."""
    places = count()
    for activation in formats:
        for index, code in enumerate(codes_with_zeros()):
            place = next(places)
            options = (
                Case(
                    source=source,
                    weight=f"{code}-{_turn(_GRANULARITIES, index + later)}-"
                    f"{_turn(_scales_of(code), place + later)}",
                    activation=f"{activation}-{_turn(_ACTIVATION_SCALES, place + later)}",
                    dtype=("bf16", "f16")[place % 2],
                )
                for later in range(36)
            )
            found = next((case for case in options if case.why_not() is None), None)
            if found is not None:
                n, k = _turn(SHAPES, place)
                yield replace(found, n=n, k=k)


def _quantized_scales(source: str, formats: Iterable[str]) -> Iterator[Case]:
    """Some codes with every pair of granularities."""
    places = count()
    for activation in formats:
        codes = ("u4", "s4") if activation == "s4" else ("u4", "e2m1", activation)
        for code in codes:
            for granularity in _GRANULARITIES:
                for scale in ("token-f32", "tensor-f32", "g128-f32", "g64-e8m0"):
                    n, k = _turn(SHAPES, next(places))
                    yield Case(
                        source=source,
                        weight=f"{code}-{granularity}-bf16",
                        activation=f"{activation}-{scale}",
                        n=n,
                        k=k,
                    )
        static = Case(source=source, weight=f"{codes[0]}-g128-f16", dtype="f16")
        yield replace(static, activation=f"{activation}-tensor-f32-static")


def _options(source: str) -> Iterator[Case]:
    """Act-order and its cuts, cuts inside scale blocks, f16 sums, smoothed activations."""
    plain = Case(source=source, weight="u4-g128-f16", dtype="f16", n=136, k=1344)
    ordered = replace(plain, act_order=True)
    for case in (plain, ordered):
        for cut in ("k1of3", "k2of3", "n1of4"):
            yield replace(case, cut=cut, bias=True)
        yield replace(case, weight="u4+z-g64-f16", cut="k1of4")
        yield replace(case, weight="e2m1-g32-e8m0", dtype="bf16", cut="k1of14")
        yield replace(case, activation="s8-token-f32")
        yield replace(case, activation="e4m3fn-token-f32")
        yield replace(case, weight="u4-g128-f16", activation="s8-token-f32", cut="k1of3")
    for weight in (
        "u4+z-g64-f16",
        "u3-g128-f16",
        "u8+z-g32-f16",
        "u2-channel-f16",
        "u4-tensor-f16",
    ):
        yield replace(ordered, weight=weight)
    for weight in ("e4m3fn-b128x128-f32", "s8-b128x64-f16"):
        for cut in ("n1of4", "n3of4", "k1of3", "k2of7"):
            yield replace(plain, weight=weight, cut=cut, n=192)
    for weight in ("u4-g128-f16", "s8-channel-f16", "e2m1-g32-e8m0"):
        yield replace(plain, weight=weight, accumulate="f16")
    yield replace(plain, smooth=True)
    yield replace(plain, smooth=True, activation="s8-token-f32")
    yield replace(plain, n=2048, k=4096, dtype="bf16")
    yield replace(plain, n=1024, k=7168, activation="s8-token-f32")


def _turn(choices: Sequence, place: int):  # type: ignore[no-untyped-def,type-arg]
    return choices[place % len(choices)]


#: Formats of quantized activations, by the source that has them first.
_INTEGERS, _FLOATS = ("s8", "s4"), ("e4m3fn", "e5m2")


@cache
def combinations(source: str) -> tuple[Case, ...]:
    """Every dense case of a source; of SM80's only a part again for SM89: the code is the same."""
    if source == "sm89":
        shared = combinations("sm80")[::6]
        rows = [replace(case, source="sm89") for case in shared]
        own = [*_quantized(source, _FLOATS), *_quantized_scales(source, _FLOATS)]
        options = [c for c in _options(source) if c.activation.startswith("e")]
        rows += [*own, *options]
    else:
        rows = [
            *_weight_only(source),
            *_quantized(source, _INTEGERS),
            *_quantized_scales(source, _INTEGERS),
            *_options(source),
        ]
    valid = [case for case in rows if case.why_not() is None]
    biased = [replace(case, bias=case.bias or index % 2 == 1) for index, case in enumerate(valid)]
    return tuple(dict.fromkeys(biased))


@cache
def cases(source: str, kind: GemmKind) -> tuple[Case, ...]:
    """The cases of one kind of GEMM."""
    rows = (replace(case, kind=kind) for case in combinations(source))
    return tuple(case for case in rows if case.why_not() is None)


def all_cases() -> list[Case]:
    """All sources, all kinds."""
    return [case for source in SOURCES for kind in GemmKind for case in cases(source, kind)]
