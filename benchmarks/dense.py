"""Dense products with int4 weights on a GPU, beside a peer and the floor of reading the weight.

Run, on the machine with the GPU (the peer is built once, see peers/marlin.py):

    export PYTHONPATH=$(echo packages/*/src | tr ' ' :)
    python benchmarks/dense.py --peer FOLDER          # ours, Marlin, floor, and a table
    python benchmarks/dense.py --sweep                # the best tuning of each M, by measuring

Times are medians with a cold L2, allocation of the result included. In the same run some rows of
every result are compared with float64; what is wrong has no time.
"""

from __future__ import annotations

import argparse
import datetime
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from measure import cold_us, errors, read_floor_us, row, sampled_rows

import humming
from humming.backend import KernelBackend, Problem
from humming.configs import TuningConfig
from humming.engine.measured import use_of
from humming.engine.workshop import workshop
from humming.packing import pack
from humming.weight import CanonicalWeight

MS = tuple(1 << power for power in range(14))
#: By which name a scheme's rows are compared with those of other projects.
NAMES = {"u4-g128-bf16": "w4a16_int4_g128", "mxfp4": "w4a16_mxfp4"}
LIMIT = 4e-3
Call = Callable[[torch.Tensor], torch.Tensor]


class Bench:
    """One weight, and what multiplies by it.

    Args:
        options: of the command line.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.n, self.k = options.n, options.k
        generator = torch.Generator("cuda").manual_seed(1)
        scheme = humming.WeightScheme.parse(options.weight)
        shape = scheme.granularity.scale_shape(self.n, self.k)
        self.codes = torch.randint(
            0, 16, (self.n, self.k), dtype=torch.uint8, device="cuda", generator=generator
        )
        noise = torch.rand(shape, device="cuda", generator=generator)
        self.scales = ((noise + 0.5) * 0.01).to(torch.bfloat16)
        self.weight = CanonicalWeight(
            scheme=scheme, n=self.n, k=self.k, packed=pack(self.codes, 4), scales=self.scales
        )
        self.exact = self.weight.dequantize(torch.float64)
        self.nbytes = self.weight.packed.nbytes + self.scales.nbytes

    def rows(self, m: int) -> torch.Tensor:
        """Activations."""
        generator = torch.Generator("cuda").manual_seed(m)
        return torch.randn(m, self.k, device="cuda", generator=generator).to(torch.bfloat16)

    def layer(self, tuning: TuningConfig | None = None) -> humming.QuantLinear:
        """Ours."""
        return humming.QuantLinear(
            self.weight,
            backend=self.options.backend,
            profile=self.options.profile or None,
            activation=self.options.activation or None,
            tuning=tuning,
        )

    def time(self, call: Call, x: torch.Tensor, repeats: int) -> tuple[float | None, float]:
        """Microseconds of a call if its result is right, and the error of the result."""
        some = sampled_rows(len(x))
        whole, worst = errors(call(x)[some], x[some].double() @ self.exact.T)
        allowed = LIMIT if not self.options.activation else 0.1
        if not (whole <= allowed and worst <= 3 * allowed):
            return None, whole
        return cold_us(lambda: call(x), repeats), whole


def measured(
    bench: Bench, name: str, call: Call, ms: Sequence[int], repeats: int
) -> dict[int, float]:
    """Print a row for each M; the times by M."""
    found = {}
    fmt = NAMES.get(bench.options.weight, bench.options.weight)
    if bench.options.activation:
        fmt += f"_x_{bench.options.activation}"
    for m in ms:
        us, error = bench.time(call, bench.rows(m), repeats)
        facts = {"peer": name, "kind": "dense", "fmt": fmt, "n": bench.n, "k": bench.k, "m": m}
        if us is None:
            row(**facts, error=f"wrong result: relative error {error:.2e}")
        else:
            found[m] = us
            row(**facts, us=us, tflops=2e-6 * m * bench.n * bench.k / us, relative_error=error)
    return found


def compare(bench: Bench) -> None:
    """Ours, the peer's and the floor."""
    options = bench.options
    layer = bench.layer()
    layer.warm_up(torch.bfloat16, options.ms)
    times = {"humming": measured(bench, "humming", layer, options.ms, options.repeats)}
    if options.peer:
        from peers.marlin import Marlin

        run = Marlin(options.peer).prepare(bench.codes, bench.scales)

        def call(x: torch.Tensor) -> torch.Tensor:
            return run(x, torch.empty(len(x), bench.n, dtype=x.dtype, device=x.device))

        times["marlin"] = measured(bench, "marlin", call, options.ms, options.repeats)
    floor = read_floor_us(bench.nbytes)
    row(peer="floor", kind="cold_read", mbytes=bench.nbytes / 1e6, us=floor)
    print(f"\n{'m':>6}" + "".join(f"{name:>10}" for name in times) + f"{'ratio':>8}{'floor x':>9}")
    for m in options.ms:
        cells = [times[name].get(m) for name in times]
        mine, peer = cells[0], cells[-1]
        ratio = f"{peer / mine:8.3f}" if mine and peer and len(cells) > 1 else f"{'':8}"
        above = f"{mine / floor:9.2f}" if mine else f"{'':9}"
        print(f"{m:6}" + "".join(f"{us or float('nan'):10.1f}" for us in cells) + ratio + above)


def sweep(bench: Bench) -> None:
    """Time the candidates of each M; the best ones as rows, and beside them what is chosen."""
    options = bench.options
    prepared = bench.layer().prepare(torch.bfloat16)
    backend, layer, compute = prepared.backend, prepared.layer, prepared.compute
    assert isinstance(backend, KernelBackend), "the reference backend has no tunings"
    assert prepared.kernels is not None, "a backend with kernels has made some"
    for m in options.ms:
        problem = Problem(m=m)
        every = list(dict.fromkeys(backend.candidates(layer, compute, problem)))
        cost = {t: backend.cost(layer, compute, problem, t) for t in every}
        chosen = prepared.kernels.planner.tuning(problem)
        tried = list(dict.fromkeys([chosen, *sorted(every, key=cost.__getitem__)[: options.top]]))
        site = prepared.kernels.site
        workshop().load_all([backend.kernel(layer, compute, t) for t in tried], site)
        x = bench.rows(m)
        found = []
        for tuning in tried:
            us, error = bench.time(bench.layer(tuning), x, max(8, options.repeats // 3))
            if us is None:
                row(peer="humming", kind="sweep", m=m, tuning=str(tuning), error=f"wrong: {error}")
            else:
                found.append((us, tuning))
        found.sort(key=lambda pair: pair[0])
        for place, (us, tuning) in enumerate(found[: options.shown]):
            facts = {"peer": "humming", "kind": "sweep", "n": bench.n, "k": bench.k, "m": m}
            picked = {"place": place, "us": us, "estimate": cost.get(tuning)}
            row(**facts, **picked, chosen=tuning == chosen, tuning=plain(backend, tuning))
        now = next((us for us, tuning in found if tuning == chosen), float("nan"))
        print(f"m={m:5}: best {found[0][0]:8.1f} us {found[0][1]}")
        print(
            f"        chosen {now:6.1f} us {chosen}, {len(tried)} of {len(every)} tried", flush=True
        )


def plain(backend: KernelBackend, tuning: TuningConfig) -> dict[str, object]:
    """A tuning as a profile's row would hold it."""
    use = use_of(type(backend), tuning)
    found: dict[str, object] = json.loads(json.dumps(use, default=str))
    return found


def main() -> None:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, default=8192)
    parser.add_argument("--k", type=int, default=8192)
    parser.add_argument("--ms", type=int, nargs="+", default=MS)
    parser.add_argument("--weight", default="u4-g128-bf16", help="4-bit, with bf16 scales")
    parser.add_argument("--activation", default="", help="scheme of quantized activations")
    parser.add_argument("--backend", default="sm75_sm89")
    parser.add_argument(
        "--profile", default="nvidia-a100", help="whose kernels; '' is the device's"
    )
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--peer", type=Path, help="folder of a built peers/marlin.py")
    parser.add_argument("--sweep", action="store_true")
    parser.add_argument("--top", type=int, default=24, help="candidates of a sweep, cheapest first")
    parser.add_argument("--shown", type=int, default=5)
    options = parser.parse_args()
    device = torch.cuda.get_device_properties(0)
    print(f"# {device.name}, torch {torch.__version__}, {datetime.date.today()}, {vars(options)}")
    bench = Bench(options)
    (sweep if options.sweep else compare)(bench)


if __name__ == "__main__":
    main()
