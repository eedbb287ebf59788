"""A layer of experts for calls of one size: every launch settled but for where tensors are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch

from humming.backend import UNTILED, KernelSpec, LaunchShape, Problem
from humming.configs import GemmKind
from humming.engine.aligning import CODE_BYTES, order_spec
from humming.engine.expert_products import ExpertProducts
from humming.engine.expert_rows import CallSizes, Counted, Rows, scratch_of
from humming.engine.experts import ROW_MASKS, ExpertKernels
from humming.engine.kernel_layer import KernelLayer, Plan
from humming.engine.launches import Given, Launches, Mapped, Memory, Part, Step, Value, own_step
from humming.engine.operand import ROW_BYTES
from humming.expert_kernels import RowMask
from humming.gating import Gating
from humming.quantizer import RowSource
from humming.routing import align_spec, aligned_sizes, route_spec

__all__ = ["SOURCES", "ExpertCall"]

#: What a call gives; scratch memory of the products comes behind.
_X, _IDS, _WEIGHTS, _SHARED, _OUT = map(Given, range(5))
_GIVEN = 5
#: What the quantizer calls the choices of rows that the function's kernel knows.
SOURCES = {
    RowMask.IDS: RowSource.IDS,
    RowMask.IDS_64: RowSource.IDS_64,
    RowMask.COUNTS: RowSource.COUNTS,
}


class ExpertCall:
    """All launches of a layer of experts for calls of one size.

    Sort the choices, bring rows into order or quantize them, multiply, activate (and quantize),
    multiply, add up: on one allocation, in which the results of both products share memory, and so
    do what they read.

    Args:
        products: both of them; :meth:`serves` says whether they can be these.
        around: the kernels around them.
        sizes: of the calls.
        states: of the layers whose products these are: with others the call is none of theirs.

    Attributes:
        products, around, states: as given.
        launches: how many there are.

    Raises:
        CaptureError: a kernel is not loaded, in the capture of a graph.
    """

    def __init__(
        self,
        products: ExpertProducts,
        around: ExpertKernels,
        sizes: CallSizes,
        states: tuple[object, object],
    ) -> None:
        self.products, self.around, self.states = products, around, states
        steps = _Steps(products, around, sizes)
        steps.write()
        self._scratch, self.launches = steps.scratch, len(steps.steps)
        site, width = products.down.site, products.down.layer.n
        self._launches = Launches(site, steps.steps, given=_GIVEN + len(self._scratch))
        self._shape, self._strides = (sizes.tokens, width), (width, 1)
        self._dtype, self._device = sizes.dtype, site.device

    @staticmethod
    def serves(products: ExpertProducts, dtype: torch.dtype) -> bool:
        """Whether what each product reads of rows of this dtype is made in one launch or none."""
        return products.up.takes(dtype) and products.down.takes(dtype)

    def fits(
        self, hidden: torch.Tensor, topk_ids: torch.Tensor, topk_weights: torch.Tensor
    ) -> bool:
        """Whether nothing is wrong with tensors whose shapes and dtypes are those of a call that
        was checked, but for `topk_weights`, of which nothing is known."""
        device = self._device
        return (
            hidden.device == device
            and topk_ids.device == device
            and topk_weights.device == device
            and topk_weights.shape == topk_ids.shape
            and topk_weights.is_floating_point()
        )

    def __call__(
        self,
        x: torch.Tensor,
        ids: torch.Tensor,
        weights: torch.Tensor | None,
        shared: torch.Tensor | None,
    ) -> torch.Tensor:
        """The layer's result [M, H].

        Args:
            x: [M, H], or [M, top_k, H] with a row for each choice.
            ids: [M, top_k].
            weights: float32 [M, top_k], factors in the sum; None is 1 everywhere.
            shared: [M, H], added last; as it comes out of a layer.
        """
        if not x.is_contiguous() or x.data_ptr() % ROW_BYTES:
            x = x.clone(memory_format=torch.contiguous_format)
        if weights is not None:
            weights = weights.contiguous()
        # 1 us less than torch.empty().
        out = torch.empty_strided(
            self._shape, self._strides, dtype=self._dtype, device=self._device
        )
        scratch = [product.scratch(nbytes) for product, nbytes in self._scratch]
        self._launches(x, ids.contiguous(), weights, shared, out, *scratch)
        return out


class _Steps:
    """Writes down the launches of an :class:`ExpertCall`, in their order."""

    def __init__(self, products: ExpertProducts, around: ExpertKernels, sizes: CallSizes) -> None:
        self._products, self._around, self._sizes = products, around, sizes
        self.steps: list[Step] = []
        self._tables = Memory()
        kind, self._experts = products.up.gemm, products.down.layer.experts
        self._sorts, self._masks = kind is not GemmKind.INDEXED, kind is GemmKind.GROUPED_MASKED
        self._alignments: dict[int, dict[str, Value]] = {}
        per_row = 1 if self._sorts else sizes.per_row
        self._m = sizes.capacity if self._masks else sizes.choices
        self._rows = self._m * (self._experts if self._masks else 1)
        self._plans = (
            products.up.plan(Problem(m=self._m, top_k=per_row)),
            products.down.plan(Problem(m=self._m)),
        )
        self.scratch, self._workspaces = scratch_of(products, self._plans, _GIVEN)

    def write(self) -> None:
        """All of them."""
        places = None
        if self._sorts:
            routing, places, counted = self._sort()
            routings = routing, routing
        else:
            mask = ROW_MASKS[self._sizes.ids]
            counted = Counted(mask, _IDS, self._experts)
            routings = self._align(self._plans[0]), self._align(self._plans[1])
        if self._products.activates:
            result = self._activating(routings)
        else:
            result = self._multiplying(routings, counted)
        self._combine(result, places)

    def _activating(self, routings: tuple[dict[str, Value], dict[str, Value]]) -> Part:
        """Both products, the first of which gives what the second reads."""
        up, down = self._products
        between = Memory(self._tables.end)
        middle = self._rows_of(down, self._rows, between)
        assert isinstance(middle.x, Part), "memory was asked for"
        # Nobody reads hidden states behind the first product, whose results are the middle.
        read, written = (Memory(between.end) for _ in range(2))
        rows = self._first_rows(up, read, routings[0])
        result = written.part((self._rows, down.layer.n), self._sizes.dtype)
        spare = max(read.end, written.end)
        self._multiply(0, rows, routings[0], middle.x, spare)
        self._multiply(1, middle, routings[1], result, spare)
        return result

    def _multiplying(
        self, routings: tuple[dict[str, Value], dict[str, Value]], counted: Counted
    ) -> Part:
        """Both products, and the function between them."""
        up, down = self._products
        # What both products read is never needed at once, nor are their results.
        read, again = (Memory(self._tables.end) for _ in range(2))
        rows = self._first_rows(up, read, routings[0])
        middle = self._rows_of(down, self._rows, again)
        written = Memory(max(read.end, again.end))
        results = [
            Memory(written.end).part((self._rows, product.layer.n), self._sizes.dtype)
            for product in (up, down)
        ]
        spare = max(result.end for result in results)
        self._multiply(0, rows, routings[0], results[0], spare)
        self._activate(results[0], middle, counted)
        self._multiply(1, middle, routings[1], results[1], spare)
        return results[1]

    # -- where rows are ----------------------------------------------------------------------------

    def _table(self, count: int) -> Part:
        return self._tables.part((count,), torch.int32)

    def _sort(self) -> tuple[dict[str, Value], Part, Counted]:
        sizes, wide = self._sizes, self._sizes.ids is torch.int64
        tables = {"sources": self._table(self._rows), "places": self._table(sizes.choices)}
        given: dict[str, Value] = {"ids": _IDS, "per_source": sizes.per_row, **tables}
        if self._masks:
            groups = rows = self._table(self._experts)
            given |= {"table": groups, "capacity": sizes.capacity}
        else:
            groups, rows = self._table(self._experts + 1), self._table(1)
            given |= {"offsets": groups, "rows": rows}
        self._core(route_spec(self._products.up.gemm, wide, self._around.arch), given)
        routing: dict[str, Value] = {"groups": groups, "sources": tables["sources"]}
        # Contiguous rows are counted as if all of them were one expert's.
        return routing, tables["places"], Counted(RowMask.COUNTS, rows, self._m)

    def _align(self, plan: Plan) -> dict[str, Value]:
        """Choices sorted for a product, once for both if their tiles are as high; or unsorted."""
        kernel, sizes = plan.kernel.spec, self._sizes
        if sizes.choices <= kernel.sorts:
            return {"groups": _IDS, "id_words": sizes.ids.itemsize // 4}
        found = self._alignments.get(kernel.row_tile)
        if found is None:
            spec = align_spec(kernel.row_tile, sizes.ids is torch.int64, kernel.arch)
            lengths = aligned_sizes(sizes.choices, self._experts, kernel.row_tile)
            found = {
                "slots": self._table(lengths.slots), "row_tiles": self._table(1),
                "groups": self._table(lengths.row_tiles),
            }  # fmt: skip
            self._core(spec, {"ids": _IDS, "tile_experts": found["groups"], **found})
            self._alignments[kernel.row_tile] = found
        return found

    def _core(self, spec: KernelSpec, values: dict[str, Value]) -> None:
        """One of the kernels that sort."""
        layer = self._products.down.layer
        known = {"choices": self._sizes.choices, "experts": layer.experts, **values}
        shape = spec.launch(Problem(m=self._sizes.choices, top_k=self._sizes.top_k), layer)
        self._own(spec, shape, known)

    def _own(self, spec: KernelSpec, shape: LaunchShape, values: Mapping[str, Value]) -> None:
        self.steps.append(own_step(self._around.site, spec, shape, values))

    # -- what products read ------------------------------------------------------------------------

    def _rows_of(self, product: KernelLayer, rows: int, memory: Memory) -> Rows:
        """Memory for rows of a product."""
        dtype, k = self._sizes.dtype, product.layer.k
        if not product.operand.in_one_launch(dtype):
            return Rows(memory.part((rows, k), dtype), (rows, k), k * dtype.itemsize)
        width, count = product.operand.quantizer.sizes
        return Rows(
            memory.part((rows, width), torch.uint8),
            (rows, width),
            width,
            memory.part((rows,), torch.float32),
            memory.part((rows, count), torch.float32) if count else None,
        )

    def _first_rows(self, up: KernelLayer, memory: Memory, routing: dict[str, Value]) -> Rows:
        """Hidden states as the first product reads them."""
        sizes, k = self._sizes, up.layer.k
        sources = sizes.choices // sizes.per_row  # rows of hidden states
        stride = k * sizes.dtype.itemsize
        table, quantizes = routing.get("sources"), up.operand.in_one_launch(sizes.dtype)
        if table is None and not quantizes:
            return Rows(_X, (sources, k), stride)
        rows = sources if table is None else self._rows
        found = self._rows_of(up, rows, memory)
        if quantizes:
            source = RowSource.EVERY if table is None else RowSource.MAP
            self._quantize(up, (_X, k), found, (source, table, sources), None)
            return found
        spec, shape = self._around.spec("gather", rows, k)
        values: dict[str, Value] = {
            "x": _X, "x_stride": stride, "sources": table, "out": found.x, "limit": sources,
            "rows": rows, "width": k, "per_source": 1, "scales": None, "scales_out": None,
            "groups": None, "groups_out": None, "group_count": 0,
        }  # fmt: skip
        self._own(spec, shape, values)
        return found

    def _quantize(  # budget: what the kernel reads, writes and does
        self,
        product: KernelLayer,
        x: tuple[Value, int],
        rows: Rows,
        choice: tuple[RowSource, Value, int],
        gating: Gating | None,
    ) -> None:
        source, table, limit = choice
        quantizer = product.operand.quantizer
        spec = quantizer.spec(self._sizes.dtype, gating, source)
        count = rows.shape[0]
        values: dict[str, Value] = {
            "x": x[0], "x_stride": x[1], "stored": product.operand.stored, "stored_step": 0,
            "codes": rows.x, "scales": rows.scales, "groups": rows.groups, "rows": count,
            "k": product.layer.k, "table": table, "limit": limit if table is not None else 0,
        }  # fmt: skip
        shape = spec.launch(Problem(m=count), product.layer)
        self._own(spec, shape, values)

    # -- products and what is between and behind ---------------------------------------------------

    def _multiply(  # budget: what the kernel reads and writes, and memory that is free
        self, index: int, rows: Rows, routing: dict[str, Value], out: Part, spare: int
    ) -> None:
        plan, product = self._plans[index], self._products[index]
        spec = plan.kernel.spec
        per_row = self._sizes.per_row if index == 0 and not self._sorts else 1
        if spec.row_tile == UNTILED:
            rows = self._ordered(spec, rows, (routing["slots"], per_row), spare)
        x = rows.x
        mapped = ("x", "map") in spec.args
        values: dict[str, Value] = {
            **product.fixed(plan),
            **routing,
            "x": Mapped(x, spec.maps["x"](rows.shape, rows.stride)) if mapped else x,
            "x_stride": rows.stride, "out": out, "m": self._m, "top_k": per_row,
            "x_scales": rows.scales, "x_groups": rows.groups,
            "workspace": self._workspaces[index],
        }  # fmt: skip
        self._own(spec, plan.shape, values)

    def _ordered(
        self, kernel: KernelSpec, rows: Rows, sources: tuple[Value, int], spare: int
    ) -> Rows:
        """Rows in the order of sorted choices."""
        stride, memory = rows.stride, Memory(spare)
        out, scales, groups, count = memory.part((self._m, stride), torch.uint8), None, None, 0
        if rows.scales is not None:
            scales = memory.part((self._m,), torch.float32)
        if rows.groups is not None:
            count = rows.groups.shape[-1]
            groups = memory.part((self._m, count), torch.float32)
        spec, width = order_spec(kernel.arch), stride // CODE_BYTES
        values: dict[str, Value] = {
            "x": rows.x, "x_stride": stride, "sources": sources[0], "out": out,
            "limit": rows.shape[0], "rows": self._m, "width": width, "per_source": sources[1],
            "scales": rows.scales, "scales_out": scales, "groups": rows.groups,
            "groups_out": groups, "group_count": count,
        }  # fmt: skip
        layer = replace(self._products.down.layer, n=width)
        self._own(spec, spec.launch(Problem(m=self._m), layer), values)
        return Rows(out, (self._m, stride), stride, scales, groups)

    def _activate(self, results: Part, middle: Rows, counted: Counted) -> None:
        """The function, and codes of what it gives if the second product wants codes."""
        down, gating = self._products.down, self._around.gating
        (rows, inputs), width = results.shape, down.layer.k
        if middle.scales is not None:
            choice = SOURCES[counted.mask], counted.table, counted.limit
            self._quantize(down, (results, inputs), middle, choice, gating)
            return
        spec, shape = self._around.spec("gate", rows, width, counted.mask)
        values: dict[str, Value] = {
            "x": results, "x_stride": inputs * results.dtype.itemsize, "out": middle.x,
            "mask": counted.table, "limit": counted.limit, "rows": rows, "width": width,
        }  # fmt: skip
        self._own(spec, shape, values)

    def _combine(self, results: Part, places: Part | None) -> None:
        sizes, width = self._sizes, results.shape[1]
        what = "combine" if places is None else "combine placed"
        mask = ROW_MASKS[sizes.ids]
        values: dict[str, Value] = {"ids": _IDS, "experts": self._experts}
        if self._masks:  # a choice counts if it has a row, not if its id is an expert's
            mask, values = RowMask.IDS, {"ids": places, "experts": self._rows}
        spec, shape = self._around.spec(what, sizes.tokens, width, mask)
        values |= {
            "y": results, "weights": _WEIGHTS, "shared": _SHARED, "out": _OUT,
            "tokens": sizes.tokens, "top_k": sizes.top_k, "width": width, "places": places,
        }  # fmt: skip
        self._own(spec, shape, values)
