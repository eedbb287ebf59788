"""Kernels around asynchronous copies, and what the checkers say of wrong ones.

Every kernel has 4 KiB of shared memory `tile` (address in %tile), an mbarrier (%bar), buffers'
addresses in %g0, %g1, ..., generic addresses of tensor maps in %m0, ..., the thread index in %t,
the CTA's rank in its cluster in %rank, and registers %r, %rd, %p, %h for anything.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from sim_scalar import assemble

import humming_sim
from humming_sim import Finding, SimulationFault

THREADS = 64
TILE = 4096

#: Thread 0 makes the mbarrier for one arrival, and shows it to the asynchronous proxy.
INIT = """
setp.eq.u32 %first, %t, 0;
@%first mbarrier.init.shared::cta.b64 [%bar], 1;
fence.mbarrier_init.release.cluster;
bar.sync 0;
"""

#: All threads wait for the mbarrier's first phase.
WAIT = """
W{0}: mbarrier.try_wait.parity.shared::cta.b64 %q, [%bar], 0;
@!%q bra W{0};
"""

#: Thread 0 announces bytes and arrives.
EXPECT = "@%first mbarrier.arrive.expect_tx.shared::cta.b64 _, [%bar], {0};"

CLUSTER_SYNC = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"


def words(count: int, text: str) -> str:
    """Statements for `count` words of 4 bytes, shared among the threads: %at is a word's offset."""
    lines = []
    for first in range(0, 4 * count, 4 * THREADS):
        lines.append(f"mad.lo.u32 %at, %t, 4, {first};")
        lines.append(f"setp.lt.u32 %some, %at, {4 * count};")
        lines += [f"@%some {line}" for line in text.split("\n") if line]
    return "\n".join(lines)


def load_tile(count: int = TILE // 4, buffer: int = 0) -> str:
    """Write shared memory from a buffer with ordinary loads and stores."""
    text = f"cvt.u64.u32 %x, %at;\nadd.s64 %x, %g{buffer}, %x;\nld.global.b32 %v, [%x];\n"
    return words(count, text + "add.u32 %to, %tile, %at;\nst.shared.b32 [%to], %v;")


def store_tile(count: int = TILE // 4, buffer: int = 0, stride: int = 0) -> str:
    """Write shared memory to a buffer; a cluster's CTAs `stride` bytes apart."""
    text = "add.u32 %to, %tile, %at;\nld.shared.b32 %v, [%to];\n"
    text += f"mad.lo.u32 %to, %rank, {stride}, %at;\ncvt.u64.u32 %x, %to;\n"
    text += f"add.s64 %x, %g{buffer}, %x;\nst.global.b32 [%x], %v;"
    return words(count, text)


def text_of(
    body: str, buffers: int, maps: int = 0, target: str = "sm_90a", tile: int = TILE
) -> str:
    """The module of a kernel "k" with this body."""
    parameters = [f".param .align 64 .b8 map{i}[128]" for i in range(maps)]
    parameters += [f".param .u64 buffer{i}" for i in range(buffers)]
    loads = [f"mov.b64 %m{i}, map{i};\ncvta.param.u64 %m{i}, %m{i};" for i in range(maps)] + [
        f"ld.param.u64 %g{i}, [buffer{i}];" for i in range(buffers)
    ]
    return "\n".join(
        [
            ".version 9.0",
            f".target {target}",
            ".address_size 64",
            f".visible .entry k({', '.join(parameters)})",
            "{",
            f".shared .align 1024 .b8 tile[{tile}];",
            ".shared .align 8 .b8 bars[16];",
            ".reg .pred %first, %some, %q, %p<4>;",
            ".reg .b16 %h<4>;",
            ".reg .b32 %t, %rank, %tile, %bar, %at, %to, %v, %r<16>;",
            ".reg .b64 %x, %g<4>, %m<4>, %rd<8>;",
            ".reg .f32 %f<4>;",
            *loads,
            "mov.u32 %t, %tid.x;",
            "mov.u32 %rank, %cluster_ctarank;",
            "mov.u32 %tile, tile;",
            "mov.u32 %bar, bars;",
            body,
            "ret;",
            "}",
            "",
        ]
    )


@functools.cache
def _assembled(text: str, target: str) -> None:
    assemble(text, target)


def run(
    body: str,
    args: Sequence[Any],
    *,
    target: str = "sm_90a",
    tile: int = TILE,
    legal: bool = True,
    **options: Any,
) -> humming_sim.Report:
    """Launch a kernel; tensor maps come before buffers among `args`.

    Args:
        legal: let ptxas, where there is one, check the text too.
        options: of humming_sim.launch; grid defaults to one cluster.
    """
    maps = sum(isinstance(arg, humming_sim.TensorMap) for arg in args)
    text = text_of(body, len(args) - maps, maps, target, tile)
    if legal:
        _assembled(text, target)
    cluster = options.pop("cluster", None)
    grid = options.pop("grid", cluster or 1)
    block = options.pop("block", THREADS)
    return humming_sim.launch(text, "k", grid, block, args, cluster=cluster, **options)


def fault(body: str, args: Sequence[Any], check: str, at: str, **options: Any) -> Finding:
    """The finding of a kernel that is wrong: of this check, at an instruction that starts so."""
    with pytest.raises(SimulationFault) as caught:
        run(body, args, **options)
    finding = caught.value.findings[0]
    assert finding.check == check, str(finding)
    assert finding.text.startswith(at), str(finding)
    assert finding.line > 0
    assert finding.cta is not None
    return finding


def counting(count: int, dtype: npt.DTypeLike = np.uint32, start: int = 1) -> npt.NDArray[Any]:
    """start, start + 1, ..."""
    return np.arange(start, start + count).astype(dtype)


def random(seed: int, count: int, dtype: npt.DTypeLike = np.uint8) -> npt.NDArray[Any]:
    """Random bits."""
    raw = np.random.default_rng(seed).integers(0, 256, count * np.dtype(dtype).itemsize, np.uint8)
    return raw.view(dtype)
