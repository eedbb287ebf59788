"""The launches between and behind the products of experts, with kernels of core's own."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import torch

from humming.backend import KernelSpec, LaunchShape, PreparedLaunch, Problem
from humming.configs import LayerConfig
from humming.engine.aligning import SortedChoices, Sorter
from humming.engine.operand import ROW_BYTES
from humming.engine.site import Site
from humming.engine.workshop import workshop
from humming.errors import ConfigError
from humming.expert_kernels import CHUNK, RowMask, combine_spec, gate_spec, gather_spec
from humming.formats.number import NumberFormat
from humming.gating import Gating

__all__ = ["ID_DTYPES", "ROW_MASKS", "ExpertKernels", "check_experts"]

#: What a kernel does, which rows (or ids) it reads, and whether they are whole chunks.
_Key = tuple[str, RowMask, bool]
#: By dtype of what chooses experts.
ROW_MASKS = {torch.int32: RowMask.IDS, torch.int64: RowMask.IDS_64}
#: Of what chooses experts.
ID_DTYPES = tuple(ROW_MASKS)


class ExpertKernels:
    """Order of rows, activation function and weighted sum of one layer of experts.

    Nothing here waits for the device.

    Args:
        site: where they run.
        arch: target architecture as the compiler spells it.
        down: the second product; its output has the format of all rows.
        gating: the function between them.

    Attributes:
        site, arch, gating: as given.
    """

    def __init__(self, site: Site, arch: str, down: LayerConfig, gating: Gating) -> None:
        self.site, self.arch, self.gating = site, arch, gating
        self._down, self._element = down, down.output
        self._middle: dict[int, LayerConfig] = {}  # by outputs of the function
        self.sort = Sorter(site, arch, down)
        self._kernels: dict[_Key, tuple[KernelSpec, PreparedLaunch]] = {}

    def gather(self, x: torch.Tensor, found: SortedChoices) -> torch.Tensor:
        """Rows of x in the order of experts; behind the last they are not written.

        Args:
            x: [rows, K], its rows contiguous.
            found: where rows come from.
        """
        rows, width = found.sources.numel(), x.shape[1]
        out = torch.empty((rows, width), dtype=x.dtype, device=x.device)
        spec, launch = self._kernel(("gather", RowMask.EVERY, _whole(width, x)))
        shape = spec.launch(Problem(m=rows), self._of_width(width))
        stride = width * x.element_size()
        sizes = x.shape[0], rows, width, 1
        launch(shape, x, stride, found.sources, out, *sizes, None, None, None, None, 0)
        return out

    def gate(
        self,
        x: torch.Tensor,
        ids: torch.Tensor | None = None,
        experts: int = 0,
        *,
        count: torch.Tensor | None = None,
        capacity: int = 0,
    ) -> torch.Tensor:
        """The function of rows [rows, inputs]; rows without an expert here are not written.

        Args:
            x: contiguous.
            ids: int32 or int64 of each row, contiguous; None: every row counts.
            experts: how many there are.
            count: int32 [1], instead of ids: so many rows count, the first ones; or [E], of each
                `capacity` of them.
        """
        rows, width = x.shape[0], x.shape[1] // self.gating.function.inputs
        out = torch.empty((rows, width), dtype=x.dtype, device=x.device)
        mask = RowMask.EVERY if ids is None else ROW_MASKS[ids.dtype]
        if count is not None:  # as if all rows were one expert's
            mask, ids, experts = RowMask.COUNTS, count, capacity or rows
        spec, launch = self._kernel(("gate", mask, _whole(width, x)))
        shape = spec.launch(Problem(m=rows), self._of_width(width))
        stride = x.shape[1] * x.element_size()
        launch(shape, x, stride, out, ids, experts, rows, width)
        return out

    def combine(
        self,
        y: torch.Tensor,
        ids: torch.Tensor,
        weights: torch.Tensor | None,
        shared: torch.Tensor | None,
        places: torch.Tensor | None = None,
        *,
        masked: bool = False,
    ) -> torch.Tensor:
        """What :func:`humming.combining.combine` gives.

        Args:
            y: [M, top_k, H] or [M * top_k, H], contiguous like all others.
            ids: int32 or int64 [M, top_k].
            weights: float32 [M, top_k].
            shared: [M, H].
            places: int32 [M * top_k]: the row of y of each choice, where they are in another order.
            masked: whether a choice counts if it has a place, whatever its id.
        """
        (tokens, top_k), width = ids.shape, y.shape[-1]
        experts = self._down.experts
        if masked and places is not None:
            ids, experts = places.view(ids.shape), y[..., 0].numel()
        out = torch.empty((tokens, width), dtype=y.dtype, device=y.device)
        whole = _whole(width, y) and (shared is None or _whole(width, shared))
        what = "combine" if places is None else "combine placed"
        spec, launch = self._kernel((what, ROW_MASKS[ids.dtype], whole))
        shape = spec.launch(Problem(m=tokens), self._of_width(width))
        sizes = (tokens, top_k, experts, width)
        others = () if places is None else (places,)
        launch(shape, y, ids, weights, shared, out, *sizes, *others)
        return out

    def warm_up(
        self,
        shared: int = 0,
        *,
        indexed: bool = True,
        sorts: bool = False,
        masked: bool = False,
        without: Collection[str] = (),
    ) -> None:
        """Compile and load all kernels that calls can need.

        Args:
            shared: outputs of the function in shared experts; 0 if there are none.
            indexed: whether some products have indexed rows.
            sorts: whether some have sorted ones.
            masked: whether these are masked.
            without: what calls for rows of experts do not need, "gate" or "gather".
        """
        keys = _keys(self._down, shared, indexed=indexed, sorts=sorts)
        # Shared experts may need the function of every row all the same.
        kept = [key for key in keys if key[0] not in without or key[:2] == ("gate", RowMask.EVERY)]
        self._load(kept)
        if sorts:
            self.sort.warm_up(masked)

    def spec(
        self, what: str, rows: int, width: int, mask: RowMask = RowMask.EVERY
    ) -> tuple[KernelSpec, LaunchShape]:
        """A kernel for rows that begin at multiples of 16 bytes, and how it is launched.

        Args:
            what: "gather", "gate", "combine" or "combine placed".
            rows: of the result.
            width: of the result.
            mask: which rows count, or of ids which width they have.
        """
        key = what, mask, width % CHUNK == 0
        spec = _spec(key, self._element, self.gating, self.arch)
        return spec, spec.launch(Problem(m=rows), self._of_width(width))

    def _of_width(self, width: int) -> LayerConfig:
        if width not in self._middle:
            self._middle[width] = replace(self._down, n=width)
        return self._middle[width]

    def _kernel(self, key: _Key) -> tuple[KernelSpec, PreparedLaunch]:
        if key not in self._kernels:
            self._load([key])
        return self._kernels[key]

    def _load(self, keys: Sequence[_Key]) -> None:
        specs = [_spec(key, self._element, self.gating, self.arch) for key in keys]
        handles = workshop().load_all(specs, self.site)
        with self.site.active():
            for key, spec, handle in zip(keys, specs, handles, strict=True):
                kinds = [arg.kind for arg in spec.args]
                values, every = [None] * len(kinds), range(len(kinds))
                launch = self.site.runtime.prepare(handle, kinds, values, {}, every)
                self._kernels[key] = spec, launch


def _keys(down: LayerConfig, shared: int, *, indexed: bool, sorts: bool) -> list[_Key]:
    middle, outer = down.k % CHUNK == 0, down.n % CHUNK == 0
    keys: list[_Key] = []
    if indexed:
        keys += [("gate", mask, middle) for mask in ROW_MASKS.values()]
        keys += [("combine", mask, outer) for mask in ROW_MASKS.values()]
    if shared:
        keys.append(("gate", RowMask.EVERY, shared % CHUNK == 0))
    if sorts:
        keys += [("gather", RowMask.EVERY, outer), ("gate", RowMask.COUNTS, middle)]
        keys += [("combine placed", mask, outer) for mask in ROW_MASKS.values()]
    return keys


def _spec(key: _Key, element: NumberFormat, gating: Gating, arch: str) -> KernelSpec:
    what, mask, whole = key
    if what == "gate":
        return gate_spec(gating, element, mask, whole, arch)
    if what == "gather":
        return gather_spec(element, whole, arch)
    placed = what == "combine placed"
    return combine_spec(element, mask is RowMask.IDS_64, whole, arch, placed=placed)


def check_experts(
    hidden: torch.Tensor,
    topk_ids: torch.Tensor,
    topk_weights: torch.Tensor,
    width: int,
    device: torch.device,
) -> None:
    """Check the arguments of a layer of experts, but no number, which would wait for the device.

    Args:
        hidden, topk_ids, topk_weights: as of :meth:`humming.QuantMoE.forward`.
        width: of hidden states.
        device: where the weights are.

    Raises:
        ConfigError: shapes, dtypes or devices don't fit.
    """
    if hidden.dim() != 2 or hidden.shape[1] != width:
        raise ConfigError("hidden", list(hidden.shape), f"[M, {width}]")
    given = {"hidden": hidden, "topk_ids": topk_ids, "topk_weights": topk_weights}
    for name, tensor in given.items():
        if tensor.device != device:
            allowed = f"a tensor on {device}, where the weights are"
            raise ConfigError(name, str(tensor.device), allowed)
    if topk_ids.dtype not in ID_DTYPES:
        raise ConfigError("topk_ids", topk_ids.dtype, "an int32 or int64 tensor")
    if not topk_weights.is_floating_point():
        raise ConfigError("topk_weights", topk_weights.dtype, "a float tensor")
    if topk_ids.dim() != 2 or topk_ids.shape[0] != hidden.shape[0] or not topk_ids.shape[1]:
        allowed = f"[{hidden.shape[0]}, top_k] beside hidden {list(hidden.shape)}"
        raise ConfigError("topk_ids", list(topk_ids.shape), allowed)
    if topk_weights.shape != topk_ids.shape:
        allowed = f"{list(topk_ids.shape)}, as topk_ids"
        raise ConfigError("topk_weights", list(topk_weights.shape), allowed)


def _whole(width: int, rows: torch.Tensor) -> bool:
    """Whether kernels may read 16 bytes at a time."""
    return width % CHUNK == 0 and rows.data_ptr() % ROW_BYTES == 0
