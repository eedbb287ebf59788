"""Products on a device: random weights, and launches that are timed and compared.

A product is launched alone: its operand is quantized before, and ids of experts are sorted before,
as in the peers' runs. Everything also works in the simulator, where there is nothing to time.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import torch
from measure import chosen_experts, cold_us, errors, sampled_rows
from workloads import FORMATS, Work

import humming
from humming.activations import quantize_activation
from humming.backend import UNTILED, KernelBackend, KernelSpec
from humming.configs import ComputeConfig, GemmKind, TuningConfig
from humming.engine.aligning import Aligner, Alignment, align_specs
from humming.engine.choice import Planner
from humming.engine.kernel_layer import KernelLayer
from humming.engine.operand import Operand
from humming.engine.site import Site
from humming.engine.workshop import workshop
from humming.errors import HummingError
from humming.selection import find_device
from humming.weight import CanonicalWeight

__all__ = [
    "LIMIT",
    "Inputs",
    "Matrix",
    "Place",
    "Product",
    "floor_us",
    "load_ahead",
    "planner_of",
    "specs_of",
]

#: Relative error that is still right, of all rows; a row alone may have three times that.
LIMIT = 4e-3


@dataclass(frozen=True)
class Place:
    """Where products run: "cuda:0", or a simulated device, "sim:NAME".

    Attributes:
        device: that name.
        backend: whose kernels; "" is what the device gets.
    """

    device: str = "cuda:0"
    backend: str = ""

    @property
    def is_real(self) -> bool:
        """Whether there is something to time."""
        return not self.device.startswith("sim:")

    @property
    def home(self) -> str:
        """Where tensors are."""
        return self.device if self.is_real else "cpu"

    @cached_property
    def site(self) -> Site:
        """What loads and launches."""
        return Site.of(find_device(self.device))

    @property
    def title(self) -> str:
        """For people."""
        return torch.cuda.get_device_name() if self.is_real else self.device

    def time(self, call: Callable[[], object], repeats: int) -> float:
        """Median microseconds with a cold L2; in the simulator those of one run of it."""
        if self.is_real:
            return cold_us(call, repeats, 2)
        start = time.perf_counter()
        call()
        return (time.perf_counter() - start) * 1e6

    def clean(self) -> None:
        """Give memory back that nothing holds any more."""
        gc.collect()
        if self.is_real:
            torch.cuda.empty_cache()


def planner_of(work: Work, place: Place) -> Planner:
    """What chooses kernels, without a weight.

    Raises:
        UnsupportedError: no backend multiplies such numbers so.
    """
    layer, compute = work.layer, ComputeConfig(gemm=work.kind)
    backend = humming.select_backend(
        place.backend or None, device=place.device, layer=layer, compute=compute
    )
    if not isinstance(backend, KernelBackend):
        raise humming.UnsupportedError(f"{backend.name} has no kernels for {layer}")
    return Planner(backend, layer, compute)


def specs_of(planner: Planner, tunings: Iterable[TuningConfig]) -> list[KernelSpec]:
    """Kernels with these tunings, in their order, and what sorts ids for them behind."""
    found = [planner.spec(tuning) for tuning in tunings]
    return found + (align_specs(found) if planner.compute.gemm is GemmKind.INDEXED else [])


def load_ahead(specs: Sequence[KernelSpec], place: Place) -> list[str]:
    """Compile and load kernels side by side; why each failed, "" if it did not."""
    try:
        workshop().load_all(specs, place.site)
    except (HummingError, RuntimeError):
        pass  # all others are there by now
    else:
        return [""] * len(specs)
    reasons = []
    for spec in specs:
        try:
            workshop().load(spec, place.site)
        except (HummingError, RuntimeError) as error:
            reasons.append(str(error) or repr(error))
        else:
            reasons.append("")
    return reasons


class Matrix:
    """A weight of random numbers, on the device; experts are copies of one.

    Args:
        fmt: a key of FORMATS.
        shape: rows and columns.
        experts: how many; 0 is one matrix.
        place: where.
    """

    def __init__(self, fmt: str, shape: tuple[int, int], experts: int, place: Place) -> None:
        self.format, self.place = FORMATS[fmt], place
        generator = torch.Generator(place.home).manual_seed(1)
        values = torch.randn(shape, device=place.home, generator=generator) * shape[1] ** -0.5
        one = humming.quantize(values, self.format.weight)
        self.exact = one.dequantize(torch.float64)
        self.expert_bytes = one.nbytes
        self.layer = humming.QuantLinear(
            _repeated(one, experts) if experts else one,
            activation=self.format.activation or None,
            backend=place.backend or None,
            device=None if place.is_real else place.device,
        )

    def prepare(self, kind: GemmKind) -> KernelLayer:
        """The kernels' side of it; kinds share what is packed.

        Raises:
            UnsupportedError: no backend multiplies such numbers so.
        """
        kernels = self.layer.prepare(torch.bfloat16, kind).kernels
        if kernels is None:
            raise humming.UnsupportedError("no backend has kernels for it")
        return kernels

    def operand_rows(self, x: torch.Tensor) -> torch.Tensor:
        """Rows as they are multiplied, in float64."""
        if not self.format.activation:
            return x.double()
        scheme = humming.ActivationScheme.parse(self.format.activation)
        return quantize_activation(x, scheme).dequantize(torch.float64)


def _repeated(one: CanonicalWeight, experts: int) -> CanonicalWeight:
    # As many bytes to read as of different ones, and none of it found in a cache.
    tensors = {
        name: tensor.unsqueeze(0).expand(experts, *tensor.shape).contiguous()
        for name, tensor in one.tensors()
    }
    return one.replace(experts=experts, **tensors)


@dataclass(frozen=True)
class Inputs:
    """Activations of one size.

    Attributes:
        tokens: how many.
        x: bf16 rows.
        routing: offsets or ids of experts; None if dense.
        touched: experts that were chosen; 1 if dense.
        rows: of the result that are compared.
        expected: float64, those rows.
    """

    tokens: int
    x: torch.Tensor
    routing: torch.Tensor | None
    touched: int
    rows: torch.Tensor
    expected: torch.Tensor


class Product:
    """What is launched for one work, with any tuning.

    Args:
        work: which.
        matrix: its weight.

    Raises:
        UnsupportedError: no backend multiplies such numbers so.
    """

    def __init__(self, work: Work, matrix: Matrix) -> None:
        self.work, self.matrix = work, matrix
        self.kernels = matrix.prepare(work.kind)
        self.planner = self.kernels.planner

    def inputs(self, tokens: int) -> Inputs:
        """Random activations and choices of experts, always the same."""
        work, home = self.work, self.matrix.place.home
        generator = torch.Generator(home).manual_seed(1000 + tokens)  # not that of weights
        problem = work.problem(tokens)
        count = problem.m // problem.top_k
        x = torch.randn(count, work.k, device=home, generator=generator).bfloat16()
        rows = torch.arange(problem.m) if home == "cpu" else sampled_rows(problem.m)
        routing, touched = None, 1
        if work.experts:
            ids = chosen_experts(tokens, work.experts, work.top_k, home)
            touched = int(ids.unique().numel())
            if work.kind is GemmKind.INDEXED:
                routing = ids.reshape(-1, 1) if work.down else ids
            else:
                routing = humming.route(ids, work.experts, GemmKind.GROUPED_CONTIGUOUS).table
        expected = self.matrix.operand_rows(x[rows // problem.top_k]) @ self.matrix.exact.T
        return Inputs(tokens, x, routing, touched, rows, expected)

    def call(self, inputs: Inputs, tuning: TuningConfig | None = None) -> Callable[[], object]:
        """The launch, with everything before it done; with None the tuning that is chosen."""
        kernels, problem = self.kernels, self.work.problem(inputs.tokens)
        kernels.planner.forced = tuning
        kernels._plans.clear()
        try:
            plan = kernels.plan(problem)
        finally:
            kernels.planner.forced = None
            kernels._plans.clear()
        operand = kernels.operand(inputs.x)
        order: Callable[[], Operand] | None = None
        values: dict[str, object] = {"groups": inputs.routing, "top_k": problem.top_k}
        if plan.nbytes:
            values["workspace"] = kernels.scratch(plan.nbytes)
        if self.work.kind is GemmKind.INDEXED:
            assert inputs.routing is not None, "indexed products have ids"
            aligner = Aligner(kernels.site, kernels.layer)
            known: dict[int, Alignment] = {}
            values |= aligner.values(inputs.routing.contiguous(), plan.kernel.spec, known)
            if plan.kernel.spec.row_tile == UNTILED:  # a launch more
                order = partial(kernels.ordered, plan, operand, known[UNTILED], problem.top_k)
        out, extras = inputs.x.new_empty(problem.m, self.work.n), plan.kernel.extras

        def run() -> torch.Tensor:
            rows = operand if order is None else order()
            given = {**values, "x_scales": rows.scales, "x_groups": rows.groups}
            changed = [given.get(name) for name in extras]
            plan.launch(plan.shape, rows.x, rows.stride, out, problem.m, *changed)
            return out

        return run

    def time(
        self, inputs: Inputs, repeats: int, tuning: TuningConfig | None = None
    ) -> tuple[float | None, float]:
        """Microseconds if the result is right, else None; and its relative error."""
        run = self.call(inputs, tuning)
        result = run()
        assert isinstance(result, torch.Tensor), "a call gives the result"
        whole, worst = errors(result[inputs.rows], inputs.expected)
        if not (whole <= LIMIT and worst <= 3 * LIMIT):
            return None, whole
        return self.matrix.place.time(run, repeats), whole

    def chosen(self, tokens: int) -> TuningConfig:
        """What the planner takes."""
        return self.planner.tuning(self.work.problem(tokens))


def floor_us(product: Product, inputs: Inputs) -> float:
    """The time that nothing goes below: of bytes, or of operations, whichever is larger.

    5.4 us and bytes at 4.15 TB/s fit cold reads of 9 to 138 MB on an H200. Its tensor cores reach
    about 800 TFLOP/s with operands of 16 bits, 1500 of 8.
    """
    rows, work = product.work.problem(inputs.tokens).m, product.work
    bits = work.layer.activation.format.bits
    nbytes = inputs.touched * product.matrix.expert_bytes
    nbytes += inputs.x.numel() * bits // 8 + 2 * rows * work.n
    speed = 800e6 if bits == 16 else 1500e6
    return max(5.4 + nbytes / 4.15e6, 2.0 * rows * work.n * work.k / speed)
