"""Rows in the order of experts, and back to weighted sums: the semantics, in torch, on any device.

Nothing here waits for the device.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from humming.configs import GemmKind
from humming.errors import ConfigError

__all__ = ["Routes", "check_route", "combine", "route"]

_ID_DTYPES = (torch.int32, torch.int64)
_INT_LIMIT = 2**31


def combine(
    rows: torch.Tensor,
    ids: torch.Tensor,
    experts: int,
    weights: torch.Tensor | None = None,
    shared: torch.Tensor | None = None,
) -> torch.Tensor:
    """Add up the choices of each token in float32, first to last, and round once.

    Choices whose id is no expert of this layer (-1, remote) contribute nothing, whatever their rows
    and weights hold. Each product and each sum is rounded by itself, so that the order alone
    decides the bits.

    Args:
        rows: [M, top_k, H], what experts gave.
        ids: [M, top_k].
        experts: how many there are.
        weights: [M, top_k]; None is 1 everywhere.
        shared: [M, H], added last.

    Returns:
        [M, H] in the dtype of `rows`.
    """
    sums = torch.zeros(rows.shape[0], rows.shape[2], dtype=torch.float32, device=rows.device)
    here = (ids >= 0) & (ids < experts)
    for choice in range(rows.shape[1]):
        term = rows[:, choice].to(torch.float32)
        if weights is not None:
            term = weights[:, choice, None].to(torch.float32) * term
        sums = torch.where(here[:, choice, None], sums + term, sums)
    if shared is not None:
        sums = sums + shared.to(torch.float32)
    return sums.to(rows.dtype)


@dataclass(frozen=True)
class Routes:
    """Where the rows of an expert's product come from, and where its results go; see :func:`route`.

    Attributes:
        layout: how rows lie.
        table: int32, what :func:`humming.grouped_matmul` reads: ids [M, top_k] (indexed), offsets
            [E + 1] (contiguous) or counts [E] (masked).
        sources: int32 [rows], the token of each row; M or more for rows that are nobody's.
        places: int32 [M, top_k], the row of each choice; -1 if it has none.
        experts: E.
    """

    layout: GemmKind
    table: torch.Tensor
    sources: torch.Tensor
    places: torch.Tensor
    experts: int

    def gather(self, x: torch.Tensor) -> torch.Tensor:
        """Tokens [M, K] as the product wants them; rows that are nobody's are zero.

        Returns:
            x itself (indexed), [M * top_k, K] (contiguous) or [E, capacity, K] (masked).

        Raises:
            ConfigError: x is not [M, K].
        """
        tokens = self.places.shape[0]
        if x.dim() != 2 or x.shape[0] != tokens:
            raise ConfigError("x", list(x.shape), f"[{tokens}, K]")
        if self.layout is GemmKind.INDEXED:
            return x
        if not tokens:
            rows = x.new_zeros(self.sources.numel(), x.shape[1])
        else:
            somebodys = (self.sources < tokens).unsqueeze(1)
            rows = torch.where(somebodys, x[self.sources.clamp(max=tokens - 1).long()], 0)
        masked = self.layout is GemmKind.GROUPED_MASKED
        return rows.view(self.experts, -1, x.shape[1]) if masked else rows

    def combine(
        self,
        y: torch.Tensor,
        weights: torch.Tensor | None = None,
        shared: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """The weighted sum of each token's choices; see :func:`combine`.

        Args:
            y: results of the product, in the order of its rows.
            weights: [M, top_k]; None is 1 everywhere.
            shared: [M, H], added last.

        Returns:
            [M, H] in the dtype of y.

        Raises:
            ConfigError: y has another number of rows.
        """
        flat, width = y.reshape(-1, y.shape[-1]), y.shape[-1]
        if flat.shape[0] != self.sources.numel():
            raise ConfigError("y", list(y.shape), f"{self.sources.numel()} rows")
        rows = flat.new_zeros(*self.places.shape, width)
        if flat.shape[0]:
            rows = flat[self.places.clamp(min=0).long()]
        return combine(rows, self.places.clamp(max=0), 1, weights, shared)


def check_route(
    topk_ids: torch.Tensor, experts: int, layout: GemmKind, capacity: int | None
) -> None:
    """Check the arguments of :func:`route`, but no id, which would wait for the device.

    Raises:
        ConfigError: a shape, dtype, layout or number that does not fit.
    """
    if topk_ids.dtype not in _ID_DTYPES or topk_ids.dim() != 2:
        found = f"{topk_ids.dtype} {list(topk_ids.shape)}"
        raise ConfigError("topk_ids", found, "an int32 or int64 tensor [M, top_k]")
    if experts < 1:
        raise ConfigError("experts", experts, "1 or more")
    if layout is GemmKind.DENSE:
        raise ConfigError("layout", layout, "a layout of experts")
    masked = layout is GemmKind.GROUPED_MASKED
    if capacity is not None and (not masked or capacity < 1):
        raise ConfigError("capacity", capacity, "1 or more rows, of masked ones")
    rows = topk_ids.numel() if capacity is None else capacity
    if masked and experts * rows >= _INT_LIMIT:
        allowed = f"fewer than 2^31 rows of all {experts} experts"
        raise ConfigError("capacity", rows, allowed)


def route(
    topk_ids: torch.Tensor,
    experts: int,
    layout: GemmKind = GemmKind.GROUPED_CONTIGUOUS,
    *,
    capacity: int | None = None,
) -> Routes:
    """The reference of :func:`humming.route`; where a kernel runs, it gives the same numbers.

    Raises:
        ConfigError: as of :func:`check_route`; on the CPU, where looking costs nothing, also an
            expert that is chosen more often than it has room.
    """
    check_route(topk_ids, experts, layout, capacity)
    choices = topk_ids.numel()
    ids = topk_ids.reshape(-1).long()
    here = (ids >= 0) & (ids < experts)
    number = torch.arange(choices, device=ids.device)
    if layout is GemmKind.INDEXED:
        table = torch.where(here, ids, -1).view(topk_ids.shape)
        places, sources = torch.where(here, number, -1), number // max(topk_ids.shape[1], 1)
        return _routes(layout, (table, sources, places), topk_ids, experts)
    owner = torch.where(here, ids, experts)
    order = torch.argsort(owner, stable=True)
    rank = torch.empty_like(order).scatter_(0, order, number)
    counts = torch.zeros(experts + 1, dtype=torch.int64, device=ids.device)
    counts.scatter_add_(0, owner, torch.ones_like(owner))
    offsets = torch.cat((counts.new_zeros(1), counts[:experts].cumsum(0)))
    table, rows, places = offsets, choices, rank
    if layout is GemmKind.GROUPED_MASKED:
        room = choices if capacity is None else capacity
        if topk_ids.device.type == "cpu":
            _check_room(counts[:experts], room)
        rank = rank - offsets[owner]
        here, places = here & (rank < room), owner * room + rank
        table, rows = counts[:experts].clamp(max=room), experts * room
    sources = torch.full((rows + 1,), choices, dtype=torch.int64, device=ids.device)
    sources.scatter_(0, torch.where(here, places, rows), number // max(topk_ids.shape[1], 1))
    places = torch.where(here, places, -1)
    return _routes(layout, (table, sources[:rows], places), topk_ids, experts)


def _check_room(counts: torch.Tensor, room: int) -> None:
    most = int(counts.max())
    if most > room:
        allowed = f"{most} or more: so often expert {int(counts.argmax())} is chosen"
        raise ConfigError("capacity", room, allowed)


def _routes(
    layout: GemmKind, numbers: tuple[torch.Tensor, ...], ids: torch.Tensor, experts: int
) -> Routes:
    table, sources, places = (values.to(torch.int32).contiguous() for values in numbers)
    return Routes(layout, table, sources, places.view(ids.shape), experts)
