"""Which CTA computes which part of a product, in which order: integers and nothing else.

:class:`TileMap` says where a tile lies (raster, groups of rows), :class:`Schedule` which CTA
computes which K steps of it, :func:`plan` which of the ways to cut K is the fastest. Kernels ask
the same questions of ``include/humming/scheduler.cuh``, which gives the same answers.

A tile that several CTAs share is summed in fp32, in the order of ascending K, by the CTA that
finishes last. No CTA waits for another, and the bits don't depend on who finishes when.
"""

from humming.scheduling.groups import (
    IndexedRows,
    RowGroups,
    align_rows,
    max_row_tiles,
    source_row,
)
from humming.scheduling.planning import Candidate, Costs, Plan, Rates, estimate, plan
from humming.scheduling.schedule import (
    Partition,
    Schedule,
    Split,
    WorkItem,
    Workspace,
    ceil_div,
    k_order,
    refuse_batch_invariant,
)
from humming.scheduling.tiles import Axis, Place, Raster, TileMap

__all__ = [
    "Axis",
    "Candidate",
    "Costs",
    "IndexedRows",
    "Partition",
    "Place",
    "Plan",
    "Raster",
    "Rates",
    "RowGroups",
    "Schedule",
    "Split",
    "TileMap",
    "WorkItem",
    "Workspace",
    "align_rows",
    "ceil_div",
    "estimate",
    "k_order",
    "max_row_tiles",
    "plan",
    "refuse_batch_invariant",
    "source_row",
]
