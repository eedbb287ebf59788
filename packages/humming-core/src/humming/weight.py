"""CanonicalWeight: the one form that every checkpoint becomes and every backend starts from."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from humming.blocks import spread
from humming.errors import ConfigError
from humming.formats.activation import ActivationScheme
from humming.formats.scheme import Second, WeightScheme, Zero
from humming.formats.tensors import decode, storage_dtype
from humming.packing import pack, packed_bytes, unpack

__all__ = ["CanonicalWeight"]

_FLOAT_DTYPES = (torch.float16, torch.bfloat16, torch.float32)


@dataclass(frozen=True, kw_only=True, eq=False)
class CanonicalWeight:
    """A quantized weight [N, K] (or E of them), exactly as its scheme describes.

    N counts outputs, K inputs. With experts every tensor has a leading dimension E. R and C are
    the scale rows and columns of :meth:`Granularity.scale_shape`, [1, 1] for a scale per tensor.

    Attributes:
        scheme: what codes, scales and zeros mean; the formula stands there.
        n: output features.
        k: input features.
        experts: E, or 0 for a single matrix.
        packed: uint8 [N, ceil(K * bits / 8)], codes packed as :mod:`humming.packing` says.
        scales: [R, C] in the storage dtype of ``scheme.scale`` (uint8 codes for 8-bit formats).
        zeros: [R, C]; uint8 below 2^bits (integer) or in the scales' dtype (float).
        second: float32 [1, 1] (tensor) or [N, 1] (channel).
        bias: [N], added to the product.
        permutation: int32 [K]: stored column j multiplies input ``permutation[j]`` (act-order).
        group_index: int32 [K]: scale column of each stored column, where that is not ``k // g``:
            a K shard of an act-order weight has groups of uneven size.
        offset: where the matrix starts inside its first scale block (rows, columns); a
            tensor-parallel cut through a block leaves it non-zero.
        pre_quant_scale: [K], multiplies the activations before they are quantized (AWQ of
            ModelOpt). Not part of :meth:`dequantize`.
        activation: what the checkpoint wants activations quantized to; None: nothing.
        input_scale: float32 [] (or [E]), the stored activation scale if that is static.
    """

    scheme: WeightScheme
    n: int
    k: int
    experts: int = 0
    packed: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor | None = None
    second: torch.Tensor | None = None
    bias: torch.Tensor | None = None
    permutation: torch.Tensor | None = None
    group_index: torch.Tensor | None = None
    offset: tuple[int, int] = (0, 0)
    pre_quant_scale: torch.Tensor | None = None
    activation: ActivationScheme | None = None
    input_scale: torch.Tensor | None = None

    def __post_init__(self) -> None:
        scheme = self.scheme
        for field in ("n", "k", "experts"):
            if getattr(self, field) < 0:
                raise ConfigError(field, getattr(self, field), "a size >= 0")
        for start, size in zip(
            self.offset, (scheme.granularity.n, scheme.granularity.k), strict=True
        ):
            if not 0 <= start < max(size, 1):
                raise ConfigError("offset", self.offset, f"a place inside a block of {scheme}")
        blocks = scheme.granularity.scale_shape(self.n, self.k, self.offset)
        if self.group_index is not None:  # then the groups are counted by the data
            if not scheme.granularity.is_group:
                raise ConfigError("group_index", str(scheme.granularity), "a group granularity")
            blocks = (self.n, self.scales.shape[-1])
        scale_dtype = storage_dtype(scheme.scale)
        zero_dtype = torch.uint8 if scheme.zero is Zero.INTEGER else scale_dtype
        second_shape = (self.n if scheme.second is Second.CHANNEL else 1, 1)
        self._check("packed", (self.n, packed_bytes(self.k, scheme.code.bits)), torch.uint8)
        self._check("scales", blocks, scale_dtype)
        self._check_presence("zeros", scheme.zero is not Zero.NONE)
        self._check("zeros", blocks, zero_dtype)
        self._check_presence("second", scheme.second is not Second.NONE)
        self._check("second", second_shape, torch.float32)
        self._check("bias", (self.n,), *_FLOAT_DTYPES)
        self._check("permutation", (self.k,), torch.int32)
        self._check("group_index", (self.k,), torch.int32)
        self._check("pre_quant_scale", (self.k,), *_FLOAT_DTYPES)
        self._check("input_scale", (), torch.float32)

    def _check_presence(self, field: str, wanted: bool) -> None:
        if (getattr(self, field) is not None) != wanted:
            expected = f"{'a tensor' if wanted else 'None'}, as {self.scheme} says"
            raise ConfigError(field, "present" if not wanted else None, expected)

    def _check(self, field: str, shape: tuple[int, ...], *dtypes: torch.dtype) -> None:
        tensor = getattr(self, field)
        if tensor is None:
            return
        lead = (self.experts,) if self.experts else ()
        if tuple(tensor.shape) != (*lead, *shape) or tensor.dtype not in dtypes:
            found = f"{tensor.dtype} {list(tensor.shape)}"
            names = " or ".join(map(str, dtypes))
            raise ConfigError(field, found, f"{names} {[*lead, *shape]} for {self.scheme}")

    def __repr__(self) -> str:
        lead = f"{self.experts} x " if self.experts else ""
        return f"CanonicalWeight({self.scheme}, {lead}[{self.n}, {self.k}])"

    # -- what it is ---------------------------------------------------------------------------

    @property
    def shape(self) -> tuple[int, ...]:
        """(N, K), or (E, N, K)."""
        return (self.experts, self.n, self.k) if self.experts else (self.n, self.k)

    @property
    def device(self) -> torch.device:
        """Where the codes are."""
        return self.packed.device

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """(field, tensor) of all tensors that are present."""
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, torch.Tensor):
                yield field.name, value

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(t.numel() * t.element_size() for _, t in self.tensors())

    def replace(self, **changes: object) -> CanonicalWeight:
        """A copy with some fields changed, checked like a new one."""
        return dataclasses.replace(self, **changes)  # type: ignore[arg-type]

    def to(self, device: torch.device | str) -> CanonicalWeight:
        """A copy whose tensors are on `device`."""
        return self.replace(**{name: t.to(device) for name, t in self.tensors()})

    def expert(self, index: int) -> CanonicalWeight:
        """One expert as a single matrix, sharing memory.

        Raises:
            ConfigError: there are no experts, or no such one.
        """
        if not 0 <= index < self.experts:
            raise ConfigError("expert", index, f"an index below {self.experts}")
        return self.replace(experts=0, **{name: t[index] for name, t in self.tensors()})

    def check_values(self) -> None:
        """Check what shapes and dtypes don't show; reads the small tensors, so not done by itself.

        Raises:
            ConfigError: `permutation` is none, `group_index` names no scale column, an integer
                zero point has more bits than the codes, or an `input_scale` is not positive.
        """
        scale = self.input_scale
        if scale is not None and not bool(((scale > 0) & scale.isfinite()).all()):
            raise ConfigError("input_scale", scale.tolist(), "positive finite scales")
        if self.permutation is not None:
            order = torch.arange(self.k, dtype=torch.int32, device=self.device)
            if not torch.equal(self.permutation.sort(dim=-1)[0], order.expand_as(self.permutation)):
                raise ConfigError(
                    "permutation", "repeated or missing inputs", f"each of {self.k} once"
                )
        if self.group_index is not None:
            self._check_below("group_index", self.scales.shape[-1])
        if self.scheme.zero is Zero.INTEGER:
            self._check_below("zeros", 1 << self.scheme.code.bits)

    def _check_below(self, field: str, limit: int) -> None:
        tensor = getattr(self, field)
        if tensor.numel() and not 0 <= int(tensor.min()) <= int(tensor.max()) < limit:
            found = f"{int(tensor.min())} to {int(tensor.max())}"
            raise ConfigError(field, found, f"0 to {limit - 1} for {self.scheme}")

    # -- what it means ------------------------------------------------------------------------

    def codes(self) -> torch.Tensor:
        """uint8 codes [.., N, K] in stored column order."""
        return unpack(self.packed, self.scheme.code.bits, self.k)

    def dequantize(self, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """The matrix [.., N, K] in the order of the inputs, by the scheme's formula.

        In float64 the product of code and scale is exact whatever their formats. In float32 it
        is exact while both together have at most 24 significant bits: always with scales of at
        most 16 bits, and in GGUF's K-quants. One rounding follows for a float zero point and
        one for a second-level scale. ``pre_quant_scale`` and the bias are left out.

        Args:
            dtype: torch.float64 or torch.float32 to be exact; another rounds the float32 value.
        """
        work = torch.float64 if dtype == torch.float64 else torch.float32
        values = decode(self.codes(), self.scheme.code, work)
        scales = self._spread(decode(self.scales, self.scheme.scale, work))
        if self.scheme.midpoint:
            values -= self.scheme.midpoint
        if self.zeros is not None and self.scheme.zero is Zero.INTEGER:
            values -= self._spread(self.zeros.to(work))
        values *= scales
        if self.zeros is not None and self.scheme.zero is Zero.FLOAT:
            values += self._spread(self.zeros.to(work))
        if self.second is not None:
            values *= self.second.to(work)
        if self.permutation is not None:
            index = self.permutation.long().unsqueeze(-2).expand_as(values)
            values = torch.empty_like(values).scatter_(-1, index, values)
        return values.to(dtype)

    def _spread(self, blocks: torch.Tensor) -> torch.Tensor:
        """[.., R, C] per block → something that broadcasts against [.., N, K]."""
        bn, bk = self.scheme.granularity.n, self.scheme.granularity.k
        if self.group_index is not None:
            index = self.group_index.long().unsqueeze(-2)
            return blocks.gather(-1, index.expand(*blocks.shape[:-1], self.k))
        if bn > 1:
            blocks = spread(blocks, -2, bn, self.n, self.offset[0])
        if bk > 0:
            blocks = spread(blocks, -1, bk, self.k, self.offset[1])
        return blocks

    # -- cuts ---------------------------------------------------------------------------------

    def shard(self, dim: str, rank: int, world: int) -> CanonicalWeight:
        """The part of this weight that tensor-parallel `rank` of `world` owns.

        Args:
            dim: "n" (column parallel: a slice of the outputs) or "k" (row parallel: a slice of
                the inputs, whose products are summed over ranks). Inputs are counted in the
                order in which the activations arrive, also under act-order.
            rank: 0 to world - 1.
            world: number of ranks; must divide the dimension.

        Returns:
            A weight that keeps scales and zeros as stored; cuts may fall inside a scale block.
            Of a "k" cut only rank 0 keeps the bias, so that the sum adds it once.

        Raises:
            ConfigError: dim, rank or world is out of range.
        """
        if dim not in ("n", "k"):
            raise ConfigError("dim", dim, "'n' or 'k'")
        size = self.n if dim == "n" else self.k
        if world < 1 or size % world:
            raise ConfigError("world", world, f"a divisor of {dim}={size}")
        if not 0 <= rank < world:
            raise ConfigError("rank", rank, f"0 to {world - 1}")
        start, stop = rank * (size // world), (rank + 1) * (size // world)
        return self.rows(start, stop) if dim == "n" else self.columns(start, stop)

    def rows(self, start: int, stop: int) -> CanonicalWeight:
        """Outputs `start` to `stop`, sharing memory with this weight."""
        _check_range("rows", start, stop, self.n)
        bn = self.scheme.granularity.n
        first = start + self.offset[0]
        kept = slice(None)
        if bn and stop > start:
            kept = slice(first // bn, -(-(stop + self.offset[0]) // bn))
        elif bn:
            kept = slice(0, 0)
        channel = self.scheme.second is Second.CHANNEL
        return self.replace(
            n=stop - start,
            offset=(first % bn if bn and stop > start else 0, self.offset[1]),
            packed=self.packed[..., start:stop, :],
            scales=self.scales[..., kept, :],
            zeros=None if self.zeros is None else self.zeros[..., kept, :],
            second=self.second[..., start:stop, :] if channel and self.second is not None
            else self.second,
            bias=None if self.bias is None else self.bias[..., start:stop],
        )  # fmt: skip

    def with_rows(self, order: torch.Tensor) -> CanonicalWeight:
        """The same outputs in another order: output i is this weight's ``order[i]``.

        Args:
            order: int64 [N], each output once.

        Raises:
            ConfigError: scales are those of blocks of several outputs.
        """
        block = self.scheme.granularity.n
        if block > 1:
            raise ConfigError("granularity", str(self.scheme.granularity), "scales of one output")
        each = {"packed": -2, "bias": -1}
        if block:
            each |= {"scales": -2, "zeros": -2}
        if self.scheme.second is Second.CHANNEL:
            each["second"] = -2
        tensors = {name: t for name, t in self.tensors() if name in each}
        return self.replace(
            **{name: t.index_select(each[name], order) for name, t in tensors.items()}
        )

    def columns(self, start: int, stop: int) -> CanonicalWeight:
        """Inputs `start` to `stop`; the bias stays with the part that holds input 0."""
        _check_range("columns", start, stop, self.k)
        common: dict[str, object] = {
            "k": stop - start,
            "bias": self.bias if start == 0 else None,
            "pre_quant_scale": None
            if self.pre_quant_scale is None
            else self.pre_quant_scale[..., start:stop],
        }
        if self.permutation is not None:
            return self._permuted_columns(start, stop, common)
        if self.group_index is not None:
            index = self.group_index[..., start:stop].contiguous()
            return self.replace(packed=self._codes_cut(start, stop), group_index=index, **common)
        bk = self.scheme.granularity.k
        first = start + self.offset[1]
        kept = slice(None)
        if bk:
            last = -(-(stop + self.offset[1]) // bk) if stop > start else first // bk
            kept = slice(first // bk, last)
        return self.replace(
            packed=self._codes_cut(start, stop),
            scales=self.scales[..., kept],
            zeros=None if self.zeros is None else self.zeros[..., kept],
            offset=(self.offset[0], first % bk if bk and stop > start else 0),
            **common,
        )

    def _codes_cut(self, start: int, stop: int) -> torch.Tensor:
        bits = self.scheme.code.bits
        if start * bits % 8 == 0 and (stop * bits % 8 == 0 or stop == self.k):
            return self.packed[..., start * bits // 8 : packed_bytes(stop, bits)]
        return pack(self.codes()[..., start:stop].contiguous(), bits)

    def _permuted_columns(
        self, start: int, stop: int, common: dict[str, object]
    ) -> CanonicalWeight:
        permutation = self.permutation
        assert permutation is not None, "columns() calls this for act-order weights only"
        lead = permutation.shape[:-1]
        inside = (permutation >= start) & (permutation < stop)
        # Every expert keeps stop - start columns, so the flat list can be folded back.
        picked = inside.nonzero()[:, -1].view(*lead, stop - start)
        index = self.group_index
        if index is None and self.scheme.granularity.k:
            stored = torch.arange(self.k, dtype=torch.int32, device=self.device)
            groups = (stored + self.offset[1]) // self.scheme.granularity.k
            index = groups.expand_as(permutation)
        rows = picked.unsqueeze(-2).expand(*lead, self.n, stop - start)
        codes = self.codes().gather(-1, rows)
        return self.replace(
            packed=pack(codes, self.scheme.code.bits),
            permutation=(permutation.gather(-1, picked) - start).to(torch.int32),
            group_index=None if index is None else index.gather(-1, picked).contiguous(),
            offset=(self.offset[0], 0),
            **common,
        )


def _check_range(field: str, start: int, stop: int, size: int) -> None:
    if not 0 <= start <= stop <= size:
        raise ConfigError(field, (start, stop), f"0 <= start <= stop <= {size}")
