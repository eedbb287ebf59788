"""How weights lie in memory for wgmma: panels of bytes, step by step, and f32 scales."""

from __future__ import annotations

from dataclasses import dataclass

from humming.configs import LayerConfig
from humming.errors import UnsupportedError
from humming.formats.scheme import Second, WeightScheme, Zero

__all__ = [
    "BLOCK",
    "GROUP",
    "PADDED_N",
    "PANEL",
    "WgmmaLayout",
    "are_of_one_width",
    "are_scaled_by_steps",
    "layout_of",
    "refuse_layout",
]

#: Columns per scale, of weights and of activations: those of a stage.
GROUP = 128
#: Rows of a block whose scale is kept as one.
BLOCK = 128
#: Rows whose codes of a step lie together: those of the smallest tile.
PANEL = 64
#: Scales, factors and biases are padded to a multiple of so many rows: the largest tile.
PADDED_N = 256
_FLOATS = ("e4m3fn", "e5m2")
_INTEGERS = ("s8",)


def padded(size: int, multiple: int) -> int:
    """The next multiple from `size` on."""
    return -(-size // multiple) * multiple


@dataclass(frozen=True, kw_only=True)
class WgmmaLayout:
    """The packed form of one layer's weight; ``str()`` is its id.

    Tensors, with E experts (1 if dense), G = ceil(k / 128), and P = ceil(n / 64):

    =======  ===========================  ======================================================
    weight   uint8 [E, P, G, 64, 128]     codes of 8 bits: of panels of 64 rows those of each step
    scales   float32 [E, G, n256 / rows]  those of column k: k // 128; of row n: n // `scale_rows`
    channel  float32 [E, n256]            factor of a row
    bias     float32 [E, n256]
    =======  ===========================  ======================================================

    So a CTA reads 8 KiB at a time, and all of a tile from few pages of memory. On an H200 one token
    of 8192 x 8192 took 27.7 us so, 28.6 with rows as they are, 128 bytes of each for a step, and
    27.0 with all rows of a step together; but 64 tokens of 256 experts of 4096 x 7168, whose CTAs
    are not at the same step, 1486, 1478 and 1522 (2026-11-30).

    The value of a weight is ``code * scale * channel``; an absent factor is 1. What is padded is 0.

    Attributes:
        n: rows of the matrix.
        k: columns.
        experts: E, or 0 if dense.
        weight: scheme of the weight.
        scale_rows: rows that share a scale of 128 columns: 1 or 128; 0 without `scales`.
        has_channel: the scale per row or tensor, the second-level scale, or their product.
        has_bias: whether there is a bias.
    """

    n: int
    k: int
    experts: int
    weight: WeightScheme
    scale_rows: int
    has_channel: bool
    has_bias: bool

    def __str__(self) -> str:
        """Names all that a kernel must know to read the tensors, sizes apart."""
        tensors = [f"scales{self.scale_rows}x{GROUP}"] * (self.scale_rows > 0)
        tensors += ["channel"] * self.has_channel
        return f"sm90/panels{PANEL}x{GROUP}/{'.'.join(tensors)}/v1"

    @property
    def lead(self) -> int:
        """First dimension of all tensors: E, or 1 if dense."""
        return max(self.experts, 1)

    @property
    def groups(self) -> int:
        """Columns of scales (G), and steps of K."""
        return -(-self.k // GROUP)

    @property
    def k128(self) -> int:
        """Columns with padding."""
        return self.groups * GROUP

    @property
    def panels(self) -> int:
        """Panels of rows (P)."""
        return -(-self.n // PANEL)

    @property
    def n256(self) -> int:
        """Rows of scales, factors and biases with padding."""
        return padded(self.n, PADDED_N)


def are_of_one_width(layer: LayerConfig) -> bool:
    """Whether codes and activations are of one kind, and so operands as they are stored."""
    formats = {layer.weight.code.name, layer.activation.format.name}
    return any(formats <= set(kind) for kind in (_FLOATS, _INTEGERS))


def are_scaled_by_steps(layer: LayerConfig) -> bool:
    """Whether they have scales for 128 of K, and none for fewer or more."""
    sizes = {layer.weight.granularity.k or 0, layer.activation.group_size or 0}
    return GROUP in sizes and sizes <= {0, GROUP}


def refuse_layout(layer: LayerConfig) -> str | None:
    """None if there is a packed form for this layer, or why there is none."""
    scheme, activation = layer.weight, layer.activation
    code, fmt = scheme.code.name, activation.format.name
    if not are_of_one_width(layer) or scheme.zero is not Zero.NONE:
        codes = f"{code}+{scheme.zero.value}" if scheme.zero.value else code
        formats = f"{', '.join(_FLOATS)} with one another and {', '.join(_INTEGERS)} with itself"
        return f"multiplies {formats}, not {codes} weights by {fmt} activations"
    if layer.act_order:
        return "columns in another order: activations are copied as they lie in memory"
    for what, size in (("weight", scheme.granularity.k), ("activation", activation.group_size)):
        if size and size != GROUP:
            return f"{what} groups of {size} inputs; scales are applied every {GROUP}"
    return None


def layout_of(layer: LayerConfig) -> WgmmaLayout:
    """The packed form of a layer's weight.

    Raises:
        UnsupportedError: there is none; :func:`refuse_layout` says so without raising.
    """
    refusal = refuse_layout(layer)
    if refusal:
        raise UnsupportedError(refusal)
    granularity = layer.weight.granularity
    grouped = granularity.k > 0
    return WgmmaLayout(
        n=layer.n,
        k=layer.k,
        experts=layer.experts,
        weight=layer.weight,
        scale_rows=(BLOCK if granularity.n == BLOCK else 1) if grouped else 0,
        has_channel=not grouped or layer.weight.second is not Second.NONE,
        has_bias=layer.bias,
    )
