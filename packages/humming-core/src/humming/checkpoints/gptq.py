"""GPTQ checkpoints, as AutoGPTQ and GPTQModel write them, and GPTQ-shaped layers of AutoRound.

A layer [N, K] with G groups of inputs and b bits per code is::

    qweight  int32 [ceil(K * b / 32), N]   codes packed along K
    qzeros   int32 [G, ceil(N * b / 32)]   zero points packed along N; may be absent if symmetric
    scales   float [G, N]
    g_idx    int32 [K]                     group of each input; k // group_size if absent

Codes are one little-endian bit stream, or planes of 32 codes: always so for 5, 6 and 7 bits, and
for 3 bits under the label ``gptq_p``.

**Zero points.** ``gptq`` (v1) stores the zero point minus one, ``gptq_v2`` and ``gptq_p`` store it
as it is. With ``sym`` the zero point is 2^(b-1) by definition: stored ones are not used, but they
must all be 2^(b-1), or one less. So a v2 file that calls itself ``gptq`` is read right.

**v1 and asymmetric.** A zero point of 0 less one does not fit its field, and writers differ in
what they leave there. Our reading undoes those that lose nothing:

* 2, 4 and 8 bits: one is added to every field of a 32-bit word in a single addition, carries
  included and the last one dropped. That undoes GPTQModel, which subtracts likewise and so
  borrows from the next field, and also AutoRound's sums of shifted fields. The word 0x3333332F
  is [0, 4, 4, 4, 4, 4, 4, 4]; 0x3333333F, which no such writer leaves for these zero points,
  is [0, 5, 4, 4, 4, 4, 4, 4].
* other widths: each field by itself, modulo 2^b. Fields straddle words there, and GPTQModel
  (from 6.1) and AutoRound wrap each field instead of borrowing. Before 6.1 GPTQModel subtracted
  something else from 3-bit words; such asymmetric files are refused.

Both are the plain ``stored + 1`` unless a stored field is 2^b - 1, which is logged as a warning:
AutoGPTQ loses the neighbours of such a field when it writes it.
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass

import torch

from humming.checkpoints.base import CheckpointLoader, LayerPlan
from humming.checkpoints.overrides import Overrides, Settings
from humming.checkpoints.scales import BIAS_DTYPES, finite_scales, scale_format
from humming.checkpoints.words import dense_words, unpack_words, words_as_bytes
from humming.errors import CheckpointError
from humming.formats.number import NumberFormat
from humming.formats.scheme import Granularity, WeightScheme, Zero
from humming.formats.table import number_format
from humming.packing import pack, packed_bytes
from humming.weight import CanonicalWeight

__all__ = [
    "FLOAT_SCALES",
    "GptqFormat",
    "GptqLoader",
    "check_bias",
    "integer_scheme",
    "load_layer",
    "plan_layer",
]

log = logging.getLogger("humming.checkpoints")

#: Formats of scales.
FLOAT_SCALES = ("f16", "bf16", "f32")
_SUFFIXES = ("qweight", "qzeros", "scales", "g_idx", "bias")
_BITS = (2, 3, 4, 5, 6, 7, 8)
#: Label: (whether 3-bit codes are planar, what was subtracted from zero points).
_LABELS = {"gptq": (False, 1), "gptq_v2": (False, 0), "gptq_p": (True, 0)}
_PLANAR_BITS = (5, 6, 7)
#: A one in every field of a word, for widths that divide 32.
_ONES = {2: 0x55555555, 4: 0x11111111, 8: 0x01010101}
#: What GPTQModel before 6.1 left of symmetric 3-bit v1 zero points, three words in turn.
_OLD_INT3_WORDS = (0x00000000, 0xB6DB6DB7, 0x49249249)


@dataclass(frozen=True, kw_only=True)
class GptqFormat:
    """How the tensors of one layer are to be read.

    Attributes:
        bits: width of a code.
        group_size: inputs per scale, 0 for one scale per output.
        sym: whether every zero point is 2^(bits - 1).
        act_order: whether the config says that groups are not in the order of the inputs.
        planar: whether codes are stored as planes.
        offset: what was subtracted from the stored zero points, 0 or 1.
    """

    bits: int
    group_size: int
    sym: bool
    act_order: bool = False
    planar: bool = False
    offset: int = 0

    @property
    def layout(self) -> str:
        """Name of the packing in :mod:`humming.checkpoints.words`."""
        return "planar" if self.planar else "dense"


class GptqLoader(CheckpointLoader):
    """``quant_method: gptq``; every layer that has a ``qweight``."""

    quant_methods = ("gptq",)

    def plan(self) -> list[LayerPlan]:
        """All quantized layers."""
        settings = Settings(self.config, self.source.path)
        settings.refuse("rotation", why="activations would have to be rotated too")
        settings.refuse("activation", why="a stream of quantized activations between layers")
        overrides = Overrides.dynamic(settings.get("dynamic", dict, {}), self.source.path)
        overrides.report_unused({name.rpartition(".")[0] for name in self.store})
        plans = []
        for name in self.layers_with("qweight"):
            own = overrides.settings(name)
            if own is None:
                raise CheckpointError(
                    "the layer is excluded by `dynamic`, but quantized in the file",
                    tensor=f"{name}.qweight",
                )
            # Without sym the zero points are read, which is right for symmetric files too.
            sym = f"{name}.qzeros" not in self.store
            plans.append(plan_layer(self, name, _format(settings.over(own), sym)))
        self._check_head(settings, {plan.name for plan in plans})
        return plans

    def _check_head(self, settings: Settings, quantized: set[str]) -> None:
        """`lm_head`, where the config has it, must say what the file holds."""
        said = settings.get("lm_head", bool, None)
        names = [name.rpartition(".")[0] for name in self.store]
        for name in sorted({n for n in names if n.split(".")[-1] == "lm_head"}):
            if said is not None and said != (name in quantized):
                found = "quantized" if name in quantized else "not quantized"
                raise CheckpointError(
                    f"quantization config: lm_head={said}, but {name!r} is {found} in the file",
                    path=self.source.path,
                )

    def load(self, plan: LayerPlan) -> CanonicalWeight:
        """Read one layer."""
        return load_layer(self, plan)


def _format(settings: Settings, default_sym: bool) -> GptqFormat:
    """The format that a config, with a layer's own settings in it, asks for."""
    settings.refuse("is_marlin_format", why="repacked for one kernel; convert it to gptq")
    settings.choice("method", ("gptq",), "gptq")
    if str(settings.values.get("pack_dtype") or "int32").removeprefix("torch.") != "int32":
        raise settings.error("pack_dtype", "int32")
    labels = [settings.choice(key, _LABELS, None) for key in ("checkpoint_format", "format")
              if settings.values.get(key) is not None]  # fmt: skip
    if len(set(labels)) > 1:
        raise settings.error("format", f"{labels[0]}, as checkpoint_format says")
    planar, offset = _LABELS[labels[0] if labels else "gptq"]
    bits = settings.choice("bits", _BITS)
    if bits in _PLANAR_BITS:  # GPTQModel has one form of these widths, whatever the label
        planar, offset = True, 0
    sym = settings.get("sym", bool, default_sym)
    if bits == 3 and offset and not sym and _gptqmodel_version(settings) < (6, 1):
        raise CheckpointError(
            "3-bit asymmetric zero points written by GPTQModel before 6.1 in the gptq format "
            "are damaged; convert the file to gptq_v2 with the version that wrote it",
            path=settings.path,
        )
    return GptqFormat(
        bits=bits,
        group_size=settings.group_size(),
        sym=sym,
        act_order=settings.get("desc_act", bool, False),
        planar=planar and bits not in _ONES,
        offset=offset,
    )


def _gptqmodel_version(settings: Settings) -> tuple[int, int]:
    """Version of the GPTQModel that wrote the file; a high one if another tool did."""
    quantizer = settings.get("meta", dict, {}).get("quantizer") or ()
    for entry in [quantizer] if isinstance(quantizer, str) else quantizer:
        match = re.match(r"gptqmodel:(\d+)\.(\d+)", str(entry).lower())
        if match:
            return int(match[1]), int(match[2])
    return (1 << 30, 0)


def integer_scheme(bits: int, group_size: int, scale: NumberFormat, *, zeros: bool) -> WeightScheme:
    """Unsigned codes in groups of inputs; group size 0: one scale per output."""
    return WeightScheme(
        code=number_format(f"u{bits}"),
        granularity=Granularity(1, group_size),
        scale=scale,
        zero=Zero.INTEGER if zeros else Zero.NONE,
    )


def plan_layer(loader: CheckpointLoader, name: str, fmt: GptqFormat) -> LayerPlan:
    """Plan one layer from the headers of its tensors.

    Raises:
        CheckpointError: a tensor is missing, or has another shape than the format asks for.
    """
    bits = fmt.bits
    words, n = loader.info(f"{name}.qweight", "I32", dims=2).shape
    scales = loader.info(f"{name}.scales", dims=2)
    scale = scale_format(f"{name}.scales", scales, *FLOAT_SCALES)
    has_index = f"{name}.g_idx" in loader.store
    if has_index:
        (k,) = loader.info(f"{name}.g_idx", "I32", "I64", dims=1).shape
    else:
        k = words * 32 // bits
    if words != dense_words(k, bits) or (not has_index and words * 32 % bits):
        asked = f"{dense_words(k, bits)} for K={k}" if has_index else f"a multiple of {bits}"
        raise CheckpointError(
            f"found {words} rows of words, expected {asked} at {bits} bits",
            tensor=f"{name}.qweight",
        )
    if fmt.planar and (k % 32 or n % 32):
        raise CheckpointError(
            f"planar {bits}-bit codes need multiples of 32, found N={n}, K={k}",
            tensor=f"{name}.qweight",
        )
    groups = -(-k // fmt.group_size) if fmt.group_size else 1
    if scales.shape != (groups, n):
        size = f"group_size {fmt.group_size or -1}"
        raise CheckpointError(
            f"expected [{groups}, {n}] for K={k}, {size}, found {scales}", tensor=f"{name}.scales"
        )
    _check_zeros(loader, name, fmt, (groups, n))
    if fmt.act_order and not has_index:
        raise CheckpointError("missing, but desc_act is true", tensor=f"{name}.g_idx")
    bias = check_bias(loader, name, n)
    return LayerPlan(
        name=name,
        n=n,
        k=k,
        scheme=integer_scheme(bits, fmt.group_size, scale, zeros=not fmt.sym),
        tensors=loader.present(name, *_SUFFIXES),
        bias=bias,
        act_order=fmt.act_order and has_index,
        detail=fmt,
    )


def check_bias(loader: CheckpointLoader, name: str, n: int) -> bool:
    """Whether a layer has a bias; raises CheckpointError unless that is a float [N]."""
    tensor = f"{name}.bias"
    if tensor not in loader.store:
        return False
    found = loader.info(tensor, *BIAS_DTYPES)
    if found.shape != (n,):
        raise CheckpointError(f"expected [{n}], found {found}", tensor=tensor)
    return True


def _check_zeros(
    loader: CheckpointLoader, name: str, fmt: GptqFormat, scales: tuple[int, int]
) -> None:
    tensor = f"{name}.qzeros"
    if tensor not in loader.store:
        if fmt.sym:
            return
        raise CheckpointError("missing, and the config does not say sym", tensor=tensor)
    found = loader.info(tensor)
    groups, n = scales
    expected = (groups, dense_words(n, fmt.bits))
    if found.shape == expected and found.dtype == "I32":
        return
    if found.shape == scales:
        raise CheckpointError(
            f"found unpacked zero points, {found}: shaped like the scales, which no GPTQ format "
            f"has and which leaves open whether one was subtracted",
            tensor=tensor,
        )
    raise CheckpointError(
        f"expected I32 {list(expected)} for N={n} at {fmt.bits} bits, found {found}", tensor=tensor
    )


def load_layer(loader: CheckpointLoader, plan: LayerPlan) -> CanonicalWeight:
    """Read a layer that :func:`plan_layer` planned.

    Raises:
        CheckpointError: zero points contradict ``sym``, or g_idx names no group.
    """
    fmt: GptqFormat = plan.detail
    name, bits, k = plan.name, fmt.bits, plan.k
    permutation, group_index = _column_order(loader, plan)
    scales = finite_scales(f"{name}.scales", loader.tensor(f"{name}.scales"), plan.scheme.scale)
    words = loader.tensor(f"{name}.qweight").t()
    if permutation is None and not fmt.planar and k * bits % 8 == 0:
        packed = words_as_bytes(words)[:, : packed_bytes(k, bits)].contiguous()
    else:
        codes = unpack_words(words, bits, k, fmt.layout)
        packed = pack(codes if permutation is None else codes[:, permutation], bits)
    return CanonicalWeight(
        scheme=plan.scheme,
        n=plan.n,
        k=k,
        packed=packed,
        scales=scales.t().contiguous(),
        zeros=_zero_points(loader, plan),
        bias=loader.tensor(f"{name}.bias") if plan.bias else None,
        permutation=None if permutation is None else permutation.to(torch.int32),
        group_index=None if group_index is None else group_index.to(torch.int32),
    )


def _column_order(
    loader: CheckpointLoader, plan: LayerPlan
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Order of the columns that brings groups together, and the groups if they are uneven."""
    tensor = f"{plan.name}.g_idx"
    if tensor not in plan.tensors:
        return None, None
    fmt: GptqFormat = plan.detail
    index = loader.tensor(tensor).long()
    groups = -(-plan.k // fmt.group_size) if fmt.group_size else 1
    if index.numel() and not 0 <= int(index.min()) <= int(index.max()) < groups:
        found = f"{int(index.min())} to {int(index.max())}"
        raise CheckpointError(f"groups {found}, expected 0 to {groups - 1}", tensor=tensor)
    natural = torch.arange(plan.k) // max(min(fmt.group_size or plan.k, plan.k), 1)
    if torch.equal(index, natural):
        return None, None
    if not index.any():
        if fmt.act_order:
            raise CheckpointError(f"every input is in group 0 of {groups}", tensor=tensor)
        # Tools leave it at zero when they do not use it, and read the file as k // group_size.
        log.info("%s is all zero and desc_act is false: groups are in order", tensor)
        return None, None
    if not fmt.act_order:
        log.warning("%s reorders groups although desc_act is false; it is followed", tensor)
    permutation = torch.argsort(index, stable=True)
    ordered = index[permutation]
    in_order = torch.equal(ordered, index)
    return None if in_order else permutation, None if torch.equal(ordered, natural) else ordered


def _zero_points(loader: CheckpointLoader, plan: LayerPlan) -> torch.Tensor | None:
    """uint8 [N, G], or None for a symmetric layer."""
    tensor = f"{plan.name}.qzeros"
    if tensor not in plan.tensors:
        return None
    fmt: GptqFormat = plan.detail
    words = loader.tensor(tensor)
    stored = unpack_words(words, fmt.bits, plan.n, fmt.layout)
    if fmt.sym:
        _check_symmetric(words, stored, fmt, tensor)
        return None
    if fmt.offset:
        top = (1 << fmt.bits) - 1
        if bool((stored == top).any()):
            log.warning(
                "%s stores %d, a zero point of 0 less one, which writers of the v1 format leave "
                "in different ways; check the result, or use a gptq_v2 file",
                tensor, top,
            )  # fmt: skip
        if fmt.bits in _ONES:
            added = (words.long() + _ONES[fmt.bits]).to(torch.int32)
            stored = unpack_words(added, fmt.bits, plan.n, fmt.layout)
        else:
            stored = (stored + 1) & top
    return stored.t().contiguous()


def _check_symmetric(
    words: torch.Tensor, stored: torch.Tensor, fmt: GptqFormat, tensor: str
) -> None:
    """Refuse stored zero points that are not what ``sym`` says, whichever version they are."""
    if not stored.numel():
        return
    middle = 1 << (fmt.bits - 1)
    low, high = int(stored.min()), int(stored.max())
    if low == high and low in (middle, middle - 1):
        if low != middle - fmt.offset:
            log.info("%s: every stored zero point is %d, not %d; as sym is true it stands for %d",
                     tensor, low, middle - fmt.offset, middle)  # fmt: skip
        return
    if fmt.bits == 3 and fmt.offset and words.shape[-1] % 3 == 0:
        turns = words.long().bitwise_and(0xFFFFFFFF).unflatten(-1, (-1, 3))
        if bool((turns == torch.tensor(_OLD_INT3_WORDS)).all()):
            log.info("%s: left by GPTQModel before 6.1; as sym is true it stands for 4", tensor)
            return
    raise CheckpointError(
        f"sym is true, so every zero point is {middle} (stored as that or {middle - 1}), but "
        f"{low} to {high} are stored",
        tensor=tensor,
    )
