"""How long the codes of a weight take to be laid out for mma.sync, on a GPU.

Run: PYTHONPATH=$(echo packages/*/src | tr ' ' :):tests/helpers python benchmarks/repack.py
The goal: 8192 x 8192 int4 in at most 1 ms. Medians of 30 launches with a cold L2; bytes are those
that a copy would read and write. `torch` is the same by humming_sm75_sm89.packing, once.
"""

from __future__ import annotations

import datetime
import sys
import time

import torch
from measure import cold_us, device_arch
from repack_cases import Case, case, program

from humming.formats.scheme import WeightScheme
from humming.jit import compile_program
from humming.launching import CudaRuntime
from humming.weight import CanonicalWeight

#: bits, unit, n, k, columns in another order
ROWS = [
    *((bits, 2, 8192, 8192, False) for bits in range(1, 9)),
    (4, 4, 8192, 8192, False),
    (8, 4, 8192, 8192, False),
    (4, 8, 8192, 8192, False),
    (4, 2, 8192, 8200, False),  # rows begin at multiples of 4
    (4, 2, 8192, 8194, False),  # rows begin anywhere
    (3, 2, 8192, 8186, False),
    (4, 2, 8192, 8192, True),
    (8, 2, 8192, 8192, True),
    (4, 2, 1024, 4096, False),
]


def random_weight(bits: int, n: int, k: int, is_ordered: bool) -> CanonicalWeight:
    """On the GPU; in another order: half of the columns of a weight under act-order."""
    size = 2 * k if is_ordered else k
    group = "g128" if is_ordered else "channel"
    row = (size * bits + 7) // 8
    weight = CanonicalWeight(
        scheme=WeightScheme.parse(f"s{bits}-{group}-f16"),
        n=n,
        k=size,
        packed=torch.randint(0, 256, (n, row), dtype=torch.uint8, device="cuda"),
        scales=torch.ones(n, size // 128 if is_ordered else 1, device="cuda").half(),
        permutation=torch.randperm(size, device="cuda").int() if is_ordered else None,
    )
    return weight.columns(0, k) if is_ordered else weight


def microseconds(found: Case) -> tuple[float, bool]:
    """Of one launch, and whether the words are those of torch."""
    spec = found.spec
    runtime = CudaRuntime()
    handle = runtime.load(compile_program(program(spec, "cubin")).data, spec.kernel.entry)
    out = torch.empty(spec.out_shape, dtype=torch.int32, device="cuda")
    values = {**spec.values, "packed": found.weight.packed, "out": out}
    arguments = [values[arg.name] for arg in spec.kernel.args]
    run = runtime.prepare(handle, [arg.kind for arg in spec.kernel.args], arguments, {})
    best = cold_us(lambda: run(spec.shape))
    return best, torch.equal(out, found.expected().tensors["weight"])


def main() -> None:
    """Print the table."""
    properties = torch.cuda.get_device_properties(0)
    print(f"# {properties.name}, torch {torch.__version__}, {datetime.date.today()}")
    print(f"# python {' '.join(sys.argv)}")
    print(f"{'kernel':28} {'n':>6} {'k':>6} {'ms':>8} {'MB':>8} {'GB/s':>7} {'torch ms':>9}  bits")
    torch.zeros(1, device="cuda")
    for bits, unit, n, k, is_ordered in ROWS:
        found = case(random_weight(bits, n, k, is_ordered), unit, device_arch())
        time_us, equal = microseconds(found)
        torch.cuda.synchronize()
        start = time.perf_counter()
        found.expected()
        torch.cuda.synchronize()
        by_torch = (time.perf_counter() - start) * 1e3
        nbytes = found.weight.packed.numel() + 4 * found.spec.out_shape[0] * found.spec.out_shape[1]
        name = found.spec.kernel.name.removeprefix("sm75_sm89.")
        print(
            f"{name:28} {n:6} {k:6} {time_us / 1e3:8.4f} {nbytes / 1e6:8.1f} "
            f"{nbytes / time_us / 1e3:7.0f} {by_torch:9.1f}  {'equal' if equal else 'WRONG'}",
            flush=True,
        )


if __name__ == "__main__":
    main()
