"""How weights lie in memory for mma.sync: sizes, index maps and which tensors there are.

Everything here is integers. A *panel* is 64 rows, a *block* 64 rows by 64 columns: the codes that
the 32 lanes of a warp load together, 128 each. Blocks lie in windows of 32 along K, panel by
panel, so that the CTAs of a wave read memory that lies together.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from humming.configs import LayerConfig
from humming.errors import UnsupportedError
from humming.formats.number import NumberFormat, Specials
from humming.formats.operands import operand_exponent, operand_unit
from humming.formats.scheme import Second, WeightScheme, Zero
from humming.formats.table import number_format
from humming.layouts import PlaneLayout, plane_layout
from humming.profiles import DeviceProfile
from humming.validity import multiplicand

__all__ = [
    "BLOCK",
    "KERNEL_SCALES",
    "NORMAL_SCALES",
    "PANEL",
    "WINDOW",
    "BlockGrid",
    "MmaLayout",
    "layout_of",
    "padded",
    "refuse_layout",
]

#: Rows of a panel.
PANEL = 64
#: Columns of a block.
BLOCK = 64
#: Blocks of a panel that lie in one piece.
WINDOW = 32
#: Scale formats that kernels read as they are; any other is converted to f32, which holds them all.
KERNEL_SCALES = ("f32", "f16", "bf16", "e8m0", "e4m3fn")
#: What scales of e4m3fn become that kernels multiply into e2m1: positive ones are normal there, so
#: that an addition to their exponents makes bf16 of them.
NORMAL_SCALES = "e5m3"

#: Codes that are NaN, and none Inf; scale formats whose NaN is one wherever it is multiplied.
_NAN_ALONE = (Specials.NAN_ONLY, Specials.FNUZ)
_NAN_SCALES = ("f32", "f16", "bf16")

#: Kernels take K in pairs of blocks.
_K_MULTIPLE = 2 * BLOCK


def padded(size: int, multiple: int) -> int:
    """The next multiple from `size` on."""
    return -(-size // multiple) * multiple


@dataclass(frozen=True)
class BlockGrid:
    """The blocks of a matrix and their order in memory.

    Attributes:
        n: rows.
        k: stored columns; with holes between groups these are more than the inputs.
    """

    n: int
    k: int

    @property
    def n64(self) -> int:
        """Rows with padding."""
        return padded(self.n, PANEL)

    @property
    def k128(self) -> int:
        """Stored columns with padding."""
        return padded(self.k, _K_MULTIPLE)

    @property
    def panels(self) -> int:
        """Panels of 64 rows (NP)."""
        return self.n64 // PANEL

    @property
    def blocks(self) -> int:
        """Blocks of a panel along K (KB), an even number."""
        return self.k128 // BLOCK

    def position(self, panel: int, block: int) -> int:
        """Index in memory of a block: windows along K, in each the panels, in each its blocks."""
        window = block // WINDOW * WINDOW
        width = min(WINDOW, self.blocks - window)
        return window * self.panels + panel * width + block - window

    def windows(self) -> Iterator[tuple[int, int]]:
        """(first block, number of blocks) of each window; it starts at position first * NP."""
        for first in range(0, self.blocks, WINDOW):
            yield first, min(WINDOW, self.blocks - first)


@dataclass(frozen=True, kw_only=True)
class MmaLayout:
    """The packed form of one layer's weight; ``str()`` is its id.

    Tensors, with E experts (1 if dense), ``n64``, ``k128`` and NP panels of :attr:`grid`, and
    G = ceil(k128 / group), so that padding has scales too. In *panel order* row
    ``64 * P + 8 * j + g`` is at ``[P, 8 * g + j]``: the rows of a lane's fragments lie together.

    =======  =============================  ====================================================
    weight   int32 [E, NP * KB * 128 * b]   b-bit codes, block after block: `element`, `planes`
    scales   :attr:`scale` [E, G, NP, 64]   panel order; those of stored column k: k // group
    zeros    uint8 (integers) or            panel order; those of stored column k:
             :attr:`scale` [E, Gz, NP, 64]  k // zero_group
    channel  float32 [E, n64]               factor of a row, natural order
    bias     float32 [E, n64]               natural order
    order    int32 [E, k128]                input of each stored column; -1: a hole or padding
    =======  =============================  ====================================================

    The value of a weight is, with d its decoded number and 2^e for :attr:`exponent`,
    ``(d * 2^e) * scale * channel`` (an absent factor is 1), and with float zero points
    ``(d * 2^e * scale + zero) * channel``. Integer zero points and midpoints are subtracted in
    the decoder. What is padded has code 0, scale 0, zero point 0 and factor 0.

    Attributes:
        n: rows of the matrix.
        k: inputs. Without `has_order` stored columns are inputs; with it their number is that of
            the tensor ``order``, which may be larger and is known from the weight alone.
        experts: E, or 0 if dense.
        weight: scheme of the weight.
        target: format that codes are decoded to.
        exponent: e such that a weight is its decoded number times 2^e, before scales.
        scale: format of `scales` and of float zero points, one of :data:`KERNEL_SCALES`, or
            :data:`NORMAL_SCALES`.
        group: columns per scale, a multiple of `step`; 0 without `scales`.
        zero_group: columns per zero point, a multiple of `step`; 0 without `zeros`.
        has_scales: several scales per row, or one beside a float zero point.
        has_zeros: whether there are zero points.
        has_channel: the scale per row or tensor, the second-level scale, the row's power of two
            (see :attr:`has_powers`), or their product.
        has_order: whether stored columns are not simply the inputs.
        has_bias: whether there is a bias.
    """

    n: int
    k: int
    experts: int
    weight: WeightScheme
    target: NumberFormat
    exponent: int
    scale: NumberFormat
    group: int
    zero_group: int
    has_scales: bool
    has_zeros: bool
    has_channel: bool
    has_order: bool
    has_bias: bool

    def __str__(self) -> str:
        """Names all that a kernel must know to read the tensors, sizes apart."""
        parts = [
            f"scales{self.group}-{self.scale}{'-powers' * self.has_powers}" * self.has_scales,
            f"zeros{self.zero_group}" * self.has_zeros,
            "channel" * self.has_channel,
            "order" * self.has_order,
            "nan" * (self.code != self.weight.code),
        ]
        tensors = ".".join(filter(None, parts))
        return f"sm75_sm89/mma{PANEL}x{BLOCK}/{self.planes}/{tensors}/v1"

    @property
    def has_powers(self) -> bool:
        """Whether each row's scales were divided by a power of two, which is in `channel` instead.

        They then are from 2^-5 to 2^6: so kernels may multiply them into their operands, exactly.
        """
        return self.has_scales and _has_powers(self.weight, self.target)

    @property
    def code(self) -> NumberFormat:
        """What kernels take codes for: the weight's format, or the one without its NaN.

        A NaN makes all results of its row NaN, and so does a scale of that row that is: the packed
        form has that one (:func:`.packing.pack_weight`), and decoders take 4.5 instructions for
        a register, not 7.5. Not where codes are operands as they are, nor where Inf is a code too,
        nor where scales are of formats whose NaN does not survive being multiplied into operands.
        """
        code = self.weight.code
        kept = self.has_channel or self.scale.name in _NAN_SCALES
        if code == self.target or code.specials not in _NAN_ALONE or not kept:
            return code
        return replace(code, specials=Specials.NONE)

    @property
    def unit(self) -> int:
        """Codes per register of the MMA's operand (u)."""
        return operand_unit(self.target)

    @property
    def step(self) -> int:
        """Columns of one MMA, 8u."""
        return 8 * self.unit

    @property
    def steps(self) -> int:
        """MMAs along K in a block (S)."""
        return BLOCK // self.step

    @property
    def planes(self) -> PlaneLayout:
        """Where the bits of a lane's 128 codes of a block are."""
        return plane_layout(self.weight.code, self.target)

    @property
    def grid(self) -> BlockGrid:
        """The blocks, if stored columns are the inputs."""
        return BlockGrid(self.n, self.k)

    @property
    def lead(self) -> int:
        """First dimension of all tensors: E, or 1 if dense."""
        return max(self.experts, 1)

    def words(self, grid: BlockGrid) -> int:
        """32-bit words of one matrix."""
        return grid.panels * grid.blocks * 32 * self.planes.words

    def element(self, lane: int, code: int) -> tuple[int, int]:
        """Row and column in a block of a lane's code 0 to 127."""
        index, j = divmod(code, self.unit)
        rest, register = divmod(index, 4)
        tile, s = divmod(rest, self.steps)
        row = 16 * tile + 8 * (register & 1) + lane // 4
        return row, self.unit * (8 * s + 4 * (register >> 1) + lane % 4) + j


def refuse_layout(layer: LayerConfig, profile: DeviceProfile) -> str | None:
    """None if there is a packed form for this layer on such a device, or why there is none."""
    scheme, activation = layer.weight, layer.activation
    target = multiplicand(scheme, activation.format, profile)
    if target is None or operand_exponent(scheme.code, target, scheme.zero) is None:
        codes = f"{scheme.code}+{scheme.zero.value}" if scheme.zero.value else str(scheme.code)
        return f"{codes} weights are not decoded for {activation.format} activations"
    if activation.group_size and _has_order(layer, 8 * operand_unit(target)):
        return (
            f"activation groups of {activation.group_size} inputs with weight columns in another "
            f"order: an activation group would be scattered"
        )
    return None


def layout_of(layer: LayerConfig, profile: DeviceProfile) -> MmaLayout:
    """The packed form of a layer's weight for a device.

    Raises:
        UnsupportedError: there is none; :func:`refuse_layout` says so without raising.
    """
    refusal = refuse_layout(layer, profile)
    if refusal:
        raise UnsupportedError(refusal)
    scheme = layer.weight
    target = multiplicand(scheme, layer.activation.format, profile)
    assert target is not None, "refuse_layout() checked it"
    exponent = operand_exponent(scheme.code, target, scheme.zero)
    assert exponent is not None, "refuse_layout() checked it"
    grouped = _is_grouped(layer)
    has_scales = grouped or scheme.zero is Zero.FLOAT
    whole = BlockGrid(layer.n, layer.k).k128
    step = 8 * operand_unit(target)
    group = min(padded(scheme.granularity.k, step), whole) if grouped else whole
    return MmaLayout(
        n=layer.n,
        k=layer.k,
        experts=layer.experts,
        weight=scheme,
        target=target,
        exponent=exponent,
        scale=_kernel_scale(layer, target, grouped=grouped),
        group=group if has_scales else 0,
        zero_group=group if scheme.zero is not Zero.NONE else 0,
        has_scales=has_scales,
        has_zeros=scheme.zero is not Zero.NONE,
        has_channel=not has_scales
        or scheme.second is not Second.NONE
        or _has_powers(scheme, target),
        has_order=_has_order(layer, step),
        has_bias=layer.bias,
    )


def _kernel_scale(layer: LayerConfig, target: NumberFormat, *, grouped: bool) -> NumberFormat:
    scheme = layer.weight
    names = scheme.code.name, scheme.scale.name, target.name
    if names == ("e2m1", "e4m3fn", "bf16") and grouped and not layer.activation.group_size:
        return number_format(NORMAL_SCALES)
    return scheme.scale if scheme.scale.name in KERNEL_SCALES else number_format("f32")


def _has_powers(scheme: WeightScheme, target: NumberFormat) -> bool:
    names = scheme.code.name, scheme.scale.name, target.name
    return names == ("e2m1", "e8m0", "e4m3fn")


def _is_grouped(layer: LayerConfig) -> bool:
    """Whether a row has several scales; under act-order that is only known from the weight."""
    size = layer.weight.granularity.k
    return size > 0 and (layer.k > size or layer.act_order)


def _has_order(layer: LayerConfig, step: int) -> bool:
    """Groups that an MMA can't keep apart are filled up with holes, and so have an order too."""
    return layer.act_order or (_is_grouped(layer) and layer.weight.granularity.k % step != 0)
