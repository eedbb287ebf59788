"""A packed weight and the kernels that multiply by it: what a prepared layer runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch

from humming.backend import UNTILED, KernelBackend, LaunchShape, PreparedLaunch, Problem
from humming.configs import ComputeConfig, GemmKind, LayerConfig, TuningConfig
from humming.engine.aligning import Aligner, Alignment, align_specs
from humming.engine.arguments import BoundKernel, Fixed, bind, fixed_values
from humming.engine.choice import Planner
from humming.engine.operand import ROW_BYTES, Operand, OperandMaker
from humming.engine.packing import packed_tensors
from humming.engine.quantized import Quantizer
from humming.engine.routes import ROUTES
from humming.engine.site import Site
from humming.engine.workshop import workshop
from humming.engine.workspace import workspaces
from humming.errors import CaptureError, ConfigError, UnsupportedError
from humming.formats.tensors import TORCH_FLOATS
from humming.gating import Gating
from humming.weight import CanonicalWeight

__all__ = ["KernelLayer", "Plan", "Shelf"]

#: Packed tensors of one weight, by backend, layout and rows for each result, which are in another
#: order if there are two: layers that differ in none of these share them.
Shelf = dict[tuple[str, str, int], Mapping[str, torch.Tensor]]

#: Arguments that calls give, by kind of GEMM.
_GIVEN = {
    GemmKind.DENSE: (),
    GemmKind.INDEXED: ("groups", "slots", "row_tiles", "id_words", "top_k"),
    GemmKind.GROUPED_CONTIGUOUS: ("groups",),
    GemmKind.GROUPED_MASKED: ("groups",),
}
#: Sizes whose plan is remembered; a server meets few of them again and again.
_MOST_PLANS = 8192


@dataclass(frozen=True)
class Plan:
    """How problems of one size are launched.

    Attributes:
        kernel: what is launched.
        launch: the same as `kernel.launch`.
        shape: how.
        nbytes: of scratch memory.
        none: a null pointer for each argument beside x, its stride, out and m.
    """

    kernel: BoundKernel
    launch: PreparedLaunch
    shape: LaunchShape
    nbytes: int
    none: tuple[None, ...]


class KernelLayer:
    """Multiplies by one weight with the kernels of a :class:`KernelBackend`.

    Nothing in a call waits for the device, and nothing is compiled or loaded in the capture of a
    graph.

    Args:
        planner: chooses kernels, for the layer that :meth:`KernelBackend.fit` gave.
        site: where they run.
        tensors: of the packed weight.
        operand: makes what they read of activations.

    Attributes:
        planner, site, operand: as given.
        layer: the numbers.
        gemm: how kernels find the rows of an expert.
    """

    def __init__(
        self,
        planner: Planner,
        site: Site,
        tensors: Mapping[str, torch.Tensor],
        operand: OperandMaker,
    ) -> None:
        self.planner, self.site = planner, site
        self.layer, self.gemm = planner.layer, planner.compute.gemm
        self._backend = planner.backend.name
        self._tensors, self.operand = dict(tensors), operand
        self._given = ("workspace", *operand.names, *_GIVEN[self.gemm])
        self._aligner, self._workspaces = Aligner(site, self.layer), workspaces()
        self._kernels: dict[TuningConfig, BoundKernel] = {}
        self._plans: dict[int | tuple[int, int], Plan] = {}
        # What dense() asks for in every call.
        self._k, self._n, self._device = self.layer.k, self.layer.results, site.device
        self._output, self._strides = TORCH_FLOATS[self.layer.output.name], (self._n, 1)
        self._row_bytes = self._k * self.layer.activation.format.bits // 8
        # Of what goes to a kernel as it is; None if nothing does.
        self._dtype = operand.dtype if self._row_bytes % ROW_BYTES == 0 else None

    @classmethod
    def make(  # budget: what a layer is made of, and where
        cls,
        backend: KernelBackend,
        weight: CanonicalWeight,
        layer: LayerConfig,
        compute: ComputeConfig,
        site: Site,
        *,
        tuning: TuningConfig | None = None,
        shelf: Shelf | None = None,
    ) -> KernelLayer:
        """Pack a weight and get ready.

        Args:
            backend: whose kernels.
            weight: on the site's device.
            layer: the numbers.
            compute: the promises.
            site: where.
            tuning: use this one for every problem.
            shelf: packed tensors of this weight, taken from and added to.

        Raises:
            UnsupportedError: the backend brings a compiler of its own.
            CaptureError: in the capture of a graph.
            ConfigError, LayoutMismatch: see :class:`Planner` and :func:`packed_tensors`.
        """
        if backend.compiler() is not None:
            raise UnsupportedError(f"{backend.name} brings a compiler, and only NVRTC is used yet")
        site.check(weight.device, "weight")
        if site.capturing():  # packing waits for the device
            raise CaptureError(str(layer), str(site.device))
        quantizer = Quantizer(site, layer, backend.profile)
        operand = OperandMaker(weight, layer, quantizer)
        weight, fitted = backend.fit(weight, layer)
        planner = Planner(backend, fitted, compute, tuning)
        shelf = {} if shelf is None else shelf
        function = fitted.function
        inputs = 1 if function is None else function.inputs
        key = backend.name, backend.layout(fitted), inputs
        if key not in shelf:
            shelf[key] = packed_tensors(backend, weight, fitted, site)
        return cls(planner, site, shelf[key], operand)

    # -- calls -------------------------------------------------------------------------------------

    def __call__(self, x: torch.Tensor, **routing: torch.Tensor) -> torch.Tensor:
        """The layer as :meth:`EagerBackend.prepare` would give it."""
        return self.routed(x, *routing.values()) if routing else self.dense(x)

    def dense(self, x: torch.Tensor) -> torch.Tensor:
        """x [.., K] to [.., N].

        Raises:
            ConfigError: x does not fit.
            CaptureError: a kernel is not loaded, in the capture of a graph.
        """
        shape = x.shape
        if not shape or shape[-1] != self._k or x.device != self._device:
            raise self._misfit(x)
        m = x.numel() // self._k
        # 1 us less than torch.empty().
        out = torch.empty_strided(
            (m, self._n), self._strides, dtype=self._output, device=self._device
        )
        if m:
            plan = self._plans.get(m) or self._new_plan(Problem(m=m))
            if x.dtype is not self._dtype or x.data_ptr() % ROW_BYTES or not x.is_contiguous():
                self._launch(plan, self.operand(x.reshape(-1, self._k)), out, m, {})
            elif plan.nbytes:  # the only further argument of activations as they are
                scratch = self.scratch(plan.nbytes)
                plan.launch(plan.shape, x, self._row_bytes, out, m, scratch)
            else:
                plan.launch(plan.shape, x, self._row_bytes, out, m, *plan.none)
        return out if len(shape) == 2 else out.view(*shape[:-1], self._n)

    def activated(self, x: torch.Tensor, gating: Gating) -> torch.Tensor | None:
        """:meth:`dense` of what a function gives; None if no kernel quantizes behind the function.

        Args:
            x: float [rows, gating.inputs(K)].
            gating: the function.
        """
        operand = self.operand.fused(x, gating=gating)
        if operand is None:
            return None
        m = x.shape[0]
        out = torch.empty_strided(
            (m, self._n), self._strides, dtype=self._output, device=self._device
        )
        self._launch(self._plans.get(m) or self._new_plan(Problem(m=m)), operand, out, m, {})
        return out

    def routed(
        self,
        x: torch.Tensor,
        routing: torch.Tensor,
        *,
        sparse: bool = False,
        alignments: dict[int, Alignment] | None = None,
    ) -> torch.Tensor:
        """The result of :func:`humming.matmul` for this layer's kind of routing.

        Rows that no expert computes are zero. Ids that are no expert's and numbers of rows that do
        not fit are not noticed here, since that would wait for the device: kernels skip them.

        Args:
            x: activations.
            routing: ids, offsets or counts.
            sparse: leave rows that no expert computes as memory was.
            alignments: of these very ids, by row tile; taken from and added to.
        """
        experts = self.layer.experts if self.operand.by_expert else 0
        rows = ROUTES[self.gemm](x, routing, experts)
        make = torch.empty if sparse else torch.zeros
        out = make((*rows.shape, self._n), dtype=self._output, device=self._device)
        m, top_k = rows.problem.m, rows.problem.top_k
        if not m or not rows.x.shape[0]:
            return out
        plan = self.plan(rows.problem)
        operand = self.operand(rows.x, rows.experts() if experts else None)
        values: dict[str, object] = {"groups": rows.routing, "top_k": top_k}
        if self.gemm is GemmKind.INDEXED:
            known = {} if alignments is None else alignments
            spec = plan.kernel.spec
            values |= self._aligner.values(rows.routing, spec, known)
            if spec.row_tile == UNTILED:
                operand = self.ordered(plan, operand, known[UNTILED], top_k)
        self._launch(plan, operand, out, m, values)
        return out

    def warm_up(self, ms: Iterable[int] | None = None, top_k: int = 1) -> None:
        """Compile and load every kernel that calls with so many rows can need.

        Args:
            ms: numbers of tokens (masked: what an expert has room for); None is 1 to 8192.
            top_k: choices of a token, if experts are chosen by index.

        Raises:
            CompileError, UnsupportedError: a kernel can't be compiled.
        """
        tunings = self.planner.tunings(ms, top_k)
        specs = [self.planner.spec(tuning) for tuning in tunings]
        if self.gemm is GemmKind.INDEXED:
            specs += align_specs(specs)
        specs += self.operand.quantizer.specs()
        workshop().load_all(specs, self.site)
        for tuning in tunings:
            self._kernel(tuning)
        # Quantizing by torch makes tables at its first use.
        zeros = torch.zeros(1, self._k, dtype=self._output, device=self._device)
        self.operand(zeros, self._no_expert())

    # -- how ---------------------------------------------------------------------------------------

    def plan(self, problem: Problem) -> Plan:
        """How a problem of experts is launched; its kernel is loaded by now.

        Raises:
            CaptureError: it is not, in the capture of a graph.
        """
        return self._plans.get((problem.m, problem.top_k)) or self._new_plan(problem)

    def ordered(self, plan: Plan, operand: Operand, found: Alignment, top_k: int) -> Operand:
        """An operand's rows in the order that a plan's kernel reads them in."""
        return self._aligner.order(operand, found.slots, top_k, plan.kernel.spec.arch)

    def fixed(self, plan: Plan) -> dict[str, Fixed]:
        """The arguments of a plan's kernel by name; those of calls have placeholders."""
        return fixed_values(plan.kernel.spec, self.layer, self._tensors)

    def scratch(self, nbytes: int) -> torch.Tensor:
        """Memory for a plan of the current stream; kernels leave it as they find it."""
        return self._workspaces.take(self.site, self._backend, nbytes)

    def takes(self, dtype: torch.dtype) -> bool:
        """Whether rows of a dtype go to kernels as they are, or as one launch quantizes them."""
        return self._dtype is dtype or self.operand.in_one_launch(dtype)

    def _new_plan(self, problem: Problem) -> Plan:
        kernel = self._kernel(self.planner.tuning(problem))
        plan = Plan(
            kernel,
            kernel.launch,
            kernel.shape(problem),
            kernel.workspace(problem),
            (None,) * len(kernel.extras),
        )
        if len(self._plans) >= _MOST_PLANS:
            self._plans.clear()
        key = problem.m if self.gemm is GemmKind.DENSE else (problem.m, problem.top_k)
        self._plans[key] = plan
        return plan

    def _kernel(self, tuning: TuningConfig) -> BoundKernel:
        found = self._kernels.get(tuning)
        if found is None:
            spec = self.planner.spec(tuning)
            handle = workshop().load(spec, self.site)
            runtime = self.site.runtime
            with self.site.active():
                found = bind(runtime, handle, spec, self.layer, self._tensors, self._given)
            self._kernels[tuning] = found
        return found

    def _launch(
        self,
        plan: Plan,
        operand: Operand,
        out: torch.Tensor,
        m: int,
        values: dict[str, object],
    ) -> None:
        extras = plan.kernel.extras
        if plan.nbytes:
            values["workspace"] = self.scratch(plan.nbytes)
        values["x_scales"], values["x_groups"] = operand.scales, operand.groups
        changed = [values.get(name) for name in extras]
        plan.launch(plan.shape, operand.x, operand.stride, out, m, *changed)

    def _no_expert(self) -> torch.Tensor | None:
        if not self.operand.by_expert:
            return None
        return torch.zeros(1, dtype=torch.int64, device=self._device)

    def _misfit(self, x: torch.Tensor) -> ConfigError:
        if x.dim() < 1 or x.shape[-1] != self._k:
            return ConfigError("x", list(x.shape), f"a last dimension of k={self._k}")
        allowed = f"a tensor on {self._device}, where the weight is"
        return ConfigError("x", str(x.device), allowed)
