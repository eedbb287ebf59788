"""Runs the cases of tests/sim/test_tma_silicon.json on the GPU of this machine and compares.

    PYTHONPATH=tests/sim:tests/helpers python tests/helpers/record_tma.py [--write]

Each case runs in a process of its own, since some stop the device. Without --write, differences
from the file are listed; with it they replace what the file says. Needs CUDA's driver and NumPy.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from silicon.driver import DriverError, Gpu
from tma_recording import BULK, CASES, OPERANDS, OPERATIONS, PATH, SIZE, digest, memories

OUTCOMES = ("digest", "fault", "complete")
GLOBAL_BYTES = 1 << 20

KERNEL = """
.version 8.0
.target sm_90
.address_size 64
.visible .entry k(.param .align 64 .b8 map[128], .param .u64 tensor, .param .u64 before,
                  .param .u64 after, .param .u64 flag) {{
.shared .align 1024 .b8 tile[32768];
.shared .align 8 .b8 bar[8];
.reg .pred %p, %q; .reg .b32 %r<8>; .reg .b64 %rd<16>;
mov.b64 %rd0, map; cvta.param.u64 %rd0, %rd0;
ld.param.u64 %rd1, [tensor]; ld.param.u64 %rd2, [before];
ld.param.u64 %rd3, [after]; ld.param.u64 %rd4, [flag];
mov.u32 %r0, tile; mov.u32 %r1, bar; mov.u32 %r2, %tid.x;
FILL: mad.wide.u32 %rd5, %r2, 4, %rd2; ld.global.b32 %r3, [%rd5];
mad.lo.u32 %r4, %r2, 4, %r0; st.shared.b32 [%r4], %r3;
add.u32 %r2, %r2, 128; setp.lt.u32 %p, %r2, 8192; @%p bra FILL;
mov.u32 %r2, %tid.x; setp.ne.u32 %p, %r2, 0;
@!%p mbarrier.init.shared::cta.b64 [%r1], 1;
fence.proxy.async; bar.sync 0;
@%p bra DONE;
mbarrier.arrive.expect_tx.shared::cta.b64 %rd6, [%r1], {expected};
{copy}
mov.u64 %rd7, %clock64;
WAIT: mov.u64 %rd8, %clock64; sub.u64 %rd8, %rd8, %rd7;
setp.lt.u64 %q, %rd8, 200000; @%q bra WAIT;
mbarrier.test_wait.parity.shared::cta.b64 %q, [%r1], 0;
selp.u32 %r5, 1, 0, %q; st.global.b32 [%rd4], %r5;
DONE: bar.sync 0;
DUMP: mad.wide.u32 %rd5, %r2, 4, %rd3; mad.lo.u32 %r4, %r2, 4, %r0;
ld.shared.b32 %r3, [%r4]; st.global.b32 [%rd5], %r3;
add.u32 %r2, %r2, 128; setp.lt.u32 %p, %r2, 8192; @%p bra DUMP;
ret;
}}
"""


def copy_text(case: dict[str, Any]) -> str:
    """The instruction of a case."""
    operation, kind = case.get("operation", 0), case["kind"]
    finish = "cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;"
    if kind == "bulk":
        how = BULK[operation].replace("add.f16", "add.noftz.f16")
        how = how.replace("add.bf16", "add.noftz.bf16")
        text = f"cp.reduce.async.bulk.global.shared::cta.bulk_group.{how} [%rd1], [%r0], 4096;"
        return text + finish
    rank, points = len(case["dims"]), list(case["coords"])
    if kind == "load" and 0 < operation < 6:  # a rank that is not the map's
        rank = operation
    where = "{" + ", ".join(str(value) for value in (points + [0] * 5)[:rank]) + "}"
    place = f"[%r0+{case.get('shared_offset', 0)}]"
    start = f"bulk.tensor.{rank}d"
    if kind in ("load", "count"):
        start += ".shared::cluster.global.mbarrier::complete_tx::bytes"
        return f"cp.async.{start} {place}, [%rd0, {where}], [%r1];"
    how = OPERATIONS[operation] if operation < OPERANDS else ""
    verb = (
        f"cp.reduce.async.{start}.global.shared::cta.{how}" if how else f"cp.async.{start}.global"
    )
    space = ".tile.bulk_group" if how else ".shared::cta.bulk_group"
    return f"{verb}{space} [%rd0, {where}], {place};{finish}"


def encode(gpu: Gpu, case: dict[str, Any], address: int) -> Any:
    """The driver's tensor map of a case."""
    rank, room = len(case["dims"]), (ctypes.c_uint8 * 192)()
    result = (ctypes.c_uint8 * 128).from_buffer(room, -ctypes.addressof(room) % 64)
    gpu.call(
        "cuTensorMapEncodeTiled",
        result,
        case["type"],
        rank,
        ctypes.c_uint64(address + case.get("address_offset", 0)),
        (ctypes.c_uint64 * rank)(*case["dims"]),
        (ctypes.c_uint64 * max(rank - 1, 1))(*case["strides"]),
        (ctypes.c_uint32 * rank)(*case["box"]),
        (ctypes.c_uint32 * rank)(*case["element_strides"]),
        case.get("interleave", 0),
        case.get("swizzle", 0),
        0,
        case.get("fill", 0),
    )
    return result


def outcome(case: dict[str, Any]) -> dict[str, Any]:
    """What the device makes of a case: one of OUTCOMES."""
    gpu = Gpu()
    pointers = []
    source, shared = memories(case)
    for data in (np.resize(source, GLOBAL_BYTES), shared, np.zeros(SIZE, np.uint8), np.zeros(8)):
        pointer = ctypes.c_uint64()
        gpu.call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(data.nbytes))
        raw = ctypes.c_void_p(data.ctypes.data)
        gpu.call("cuMemcpyHtoD_v2", pointer, raw, ctypes.c_size_t(data.nbytes))
        pointers.append(pointer)
    try:
        tensor_map = encode(gpu, case, pointers[0].value)
    except DriverError:
        return {"fault": "refused by the encoder"}
    if case["kind"] == "encode":
        return {}
    counted = case["kind"] == "count"
    expected = case["operation"] if counted else 1 << 18
    module, function = gpu.load(KERNEL.format(expected=expected, copy=copy_text(case))), None
    function = ctypes.c_void_p()
    gpu.call("cuModuleGetFunction", ctypes.byref(function), module, b"k")
    values = [tensor_map, *pointers]
    parameters = (ctypes.c_void_p * 5)(*[ctypes.addressof(value) for value in values])
    gpu.call("cuLaunchKernel", function, 1, 1, 1, 128, 1, 1, 0, None, parameters, None)
    try:
        gpu.call("cuCtxSynchronize")
    except DriverError as error:
        return {"fault": str(error).split(": ")[-1]}
    loads = case["kind"] == "load"
    result = np.zeros(4 if counted else SIZE, np.uint8)
    place = pointers[3] if counted else pointers[2] if loads else pointers[0]
    target = ctypes.c_void_p(result.ctypes.data)
    gpu.call("cuMemcpyDtoH_v2", target, place, ctypes.c_size_t(result.nbytes))
    return {"complete": bool(result[0])} if counted else {"digest": digest(result)}


def run(number: int) -> dict[str, Any]:
    """The outcome of a case, from a process of its own."""
    command = [sys.executable, __file__, "--worker", str(number)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode:
        return {"fault": done.stderr.strip().split("\n")[-1]}
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def main() -> int:
    """The command; 1 if anything differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker is not None:
        print(json.dumps(outcome(CASES[options.worker])))
        return 0
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        found = list(pool.map(run, range(len(CASES))))
    differences = 0
    for case, new in zip(CASES, found, strict=True):
        old = {key: case.pop(key) for key in OUTCOMES if key in case}
        if old != new:
            differences += 1
            print(case["name"], "was", old, "is", new)
        case.update(new)
    print(f"{len(CASES)} cases, {differences} differ")
    if options.write:
        lines = ",\n".join(json.dumps(case) for case in CASES)
        PATH.write_text(f"[\n{lines}\n]\n", encoding="utf-8")
    return int(differences > 0)


if __name__ == "__main__":
    raise SystemExit(main())
