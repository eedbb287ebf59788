"""Choices of experts, and how what a kernel made of them is compared with the reference."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from humming.backend import UNTILED
from humming.configs import LayerConfig
from humming.formats.activation import ActivationScheme
from humming.formats.scheme import WeightScheme
from humming.formats.table import number_format
from humming.scheduling import IndexedRows, align_rows

Ids = npt.NDArray[np.int32] | npt.NDArray[np.int64]

POISON = -0x5A5A5A5A
#: Elements behind an output that must stay as they are.
GUARD = 64


def _permutations(rng: np.random.Generator, choices: int, experts: int) -> npt.NDArray[np.int64]:
    """Every token has different experts, like a router's."""
    top_k = min(8, experts)
    rows = [rng.permutation(experts)[:top_k] for _ in range(-(-choices // top_k))]
    return np.concatenate(rows)[:choices]


#: What a router may say: (generator, choices, experts) to ids.
CASES: dict[str, Callable[[np.random.Generator, int, int], npt.NDArray[np.int64]]] = {
    "random": lambda rng, choices, experts: rng.integers(0, experts, choices),
    "router": _permutations,
    "one for all": lambda rng, choices, experts: np.full(choices, experts - 1),
    "one each": lambda rng, choices, experts: np.arange(choices)[::-1] % experts,
    "nobody": lambda rng, choices, experts: np.full(choices, -1),
    "remote": lambda rng, choices, experts: rng.integers(-experts, 2 * experts, choices),
    "few": lambda rng, choices, experts: rng.integers(0, max(experts // 16, 1), choices) * 16
    % experts,
}  # fmt: skip


def layer_of(experts: int) -> LayerConfig:
    """A layer with so many experts; nothing else of it matters here."""
    weight, activation = WeightScheme.parse("u4-g128-bf16"), ActivationScheme.parse("bf16")
    output = number_format("bf16")
    return LayerConfig(
        n=64, k=128, experts=experts, weight=weight, activation=activation, output=output
    )


def padded(size: int) -> npt.NDArray[np.int32]:
    """An output full of poison, and a guard behind it."""
    return np.full(size + GUARD, POISON, np.int32)


def expected(ids: Ids, experts: int, row_tile: int) -> IndexedRows:
    """The reference; without tiles, offsets are in the place of experts."""
    if row_tile != UNTILED:
        return align_rows(ids.tolist(), experts, row_tile)
    sorted_choices = align_rows(ids.tolist(), experts, 1)
    counts = np.bincount(np.array(sorted_choices.experts, np.int64), minlength=experts)
    offsets = np.concatenate([[0], counts.cumsum()])
    return IndexedRows(sorted_choices.slots, tuple(map(int, offsets)))


@dataclass(frozen=True)
class Aligned:
    """What a kernel wrote, poison included."""

    slots: npt.NDArray[np.int32]
    tile_experts: npt.NDArray[np.int32]
    row_tiles: int

    def check(self, rows: IndexedRows, row_tile: int) -> None:
        """It is the reference, and nothing else was written."""
        if row_tile == UNTILED:
            assert self.row_tiles == len(rows.slots)
        else:
            assert self.row_tiles == len(rows.experts)
            assert len(rows.slots) == self.row_tiles * row_tile
        for written, reference in (
            (self.slots, rows.slots),
            (self.tile_experts, rows.experts),
        ):
            assert len(written) >= len(reference) + GUARD
            assert (written[: len(reference)] == np.array(reference, np.int32)).all()
            assert (written[len(reference) :] == POISON).all()
