"""Where each simulated thread stands in its warp, CTA, cluster and grid.

CTAs are numbered cluster by cluster, so that the CTAs of a cluster are neighbours; threads are
numbered CTA by CTA, and each CTA is padded to whole warps with threads that never run.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["WARP", "Geometry", "Shape"]

WARP = 32

Shape = tuple[int, int, int]


def _unravel(index: npt.NDArray[Any], shape: Shape) -> list[npt.NDArray[Any]]:
    x, y, _ = shape
    return [index % x, index // x % y, index // (x * y)]


@dataclass(frozen=True)
class Geometry:
    """Grid, block and cluster, and the clusters [first, last) that this wave runs."""

    grid: Shape
    block: Shape
    cluster: Shape
    first: int
    last: int

    @cached_property
    def cluster_size(self) -> int:
        """CTAs of a cluster."""
        return int(np.prod(self.cluster))

    @cached_property
    def ctas(self) -> int:
        """CTAs of this wave."""
        return (self.last - self.first) * self.cluster_size

    @cached_property
    def block_threads(self) -> int:
        """Threads of a CTA that run."""
        return int(np.prod(self.block))

    @cached_property
    def warps(self) -> int:
        """Warps of a CTA."""
        return -(-self.block_threads // WARP)

    @cached_property
    def padded(self) -> int:
        """Threads of a CTA with padding."""
        return self.warps * WARP

    @cached_property
    def threads(self) -> int:
        """Threads of this wave with padding."""
        return self.ctas * self.padded

    def clusters_in_grid(self) -> Shape:
        """How many clusters fit along each axis."""
        x, y, z = (g // c for g, c in zip(self.grid, self.cluster, strict=True))
        return x, y, z

    def cta_coordinates(self) -> npt.NDArray[np.int64]:
        """Index in the grid of each CTA of this wave, [CTAs, 3]."""
        size = self.cluster_size
        clusters = np.repeat(np.arange(self.first, self.last), size)
        ranks = np.tile(np.arange(size), self.last - self.first)
        outer = _unravel(clusters, self.clusters_in_grid())
        inner = _unravel(ranks, self.cluster)
        axes = [o * c + i for o, c, i in zip(outer, self.cluster, inner, strict=True)]
        return np.stack(axes, -1)

    def specials(self) -> dict[str, npt.NDArray[np.uint32] | int]:
        """Special registers that launch shape and thread index decide (PTX ISA 9.0, 10)."""
        thread = np.arange(self.threads)
        local, cta = thread % self.padded, thread // self.padded
        where = self.cta_coordinates()
        size = self.cluster_size
        clusters = np.arange(self.first, self.last).repeat(size)
        values: dict[str, npt.NDArray[np.uint32] | int] = {}
        rank = np.arange(self.ctas) % size
        for axis, name in enumerate("xyz"):
            values[f"%tid.{name}"] = _unravel(local, self.block)[axis].astype(np.uint32)
            values[f"%ntid.{name}"] = self.block[axis]
            values[f"%ctaid.{name}"] = where[cta, axis].astype(np.uint32)
            values[f"%nctaid.{name}"] = self.grid[axis]
            values[f"%cluster_ctaid.{name}"] = _per(cta, _unravel(rank, self.cluster)[axis])
            values[f"%cluster_nctaid.{name}"] = self.cluster[axis]
            outer = _unravel(clusters, self.clusters_in_grid())[axis]
            values[f"%clusterid.{name}"] = _per(cta, outer)
            values[f"%nclusterid.{name}"] = self.clusters_in_grid()[axis]
        lane = local % WARP
        values["%laneid"] = lane.astype(np.uint32)
        values["%warpid"] = (local // WARP).astype(np.uint32)
        values["%nwarpid"] = self.warps
        values["%cluster_ctarank"] = _per(cta, rank)
        values["%cluster_nctarank"] = size
        values["%is_explicit_cluster"] = int(size > 1)
        below = (np.uint64(1) << lane.astype(np.uint64)) - np.uint64(1)
        bit = np.uint64(1) << lane.astype(np.uint64)
        masks = {"eq": bit, "lt": below, "le": below | bit}
        masks |= {"ge": ~below, "gt": ~(below | bit)}
        for name, mask in masks.items():
            values[f"%lanemask_{name}"] = (mask & np.uint64(0xFFFFFFFF)).astype(np.uint32)
        return values


def _per(cta: npt.NDArray[Any], values: npt.NDArray[Any]) -> npt.NDArray[np.uint32]:
    out: npt.NDArray[np.uint32] = np.asarray(values)[cta].astype(np.uint32)
    return out
