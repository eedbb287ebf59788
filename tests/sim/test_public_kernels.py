"""Kernels of public projects, compiled to PTX elsewhere, give right results in the simulator.

None of that code is here: HUMMING_SIM_PTX names a folder of PTX files, each with a manifest and its
data. The format is in the README of humming-sim ("Kernels of other projects").
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from humming_sim import CHECKS, Device, SimulationFault, Struct, TensorMap, launch

FOLDER = os.environ.get("HUMMING_SIM_PTX", "")
MANIFESTS = sorted(Path(FOLDER).glob("*.json")) if FOLDER else []
SEEDS = [int(seed) for seed in os.environ.get("HUMMING_SIM_SEEDS", "1,2").split(",")]

#: Shared memory of a CTA in KiB, and CTAs of a cluster (with non-portable sizes), by target.
LIMITS = {
    "sm_75": (64, 1),
    "sm_80": (163, 1),
    "sm_89": (99, 1),
    "sm_90a": (227, 16),
    "sm_100a": (227, 16),
    "sm_120a": (99, 1),
}
DTYPES = {
    "bf16": ml_dtypes.bfloat16,
    "e4m3": ml_dtypes.float8_e4m3fn,
    "f16": np.float16,
    "f32": np.float32,
    "f64": np.float64,
    "i32": np.int32,
    "u8": np.uint8,
    "u32": np.uint32,
    "u64": np.uint64,
}


def tensor_map(spec, buffers):
    shape = {name: tuple(spec[name]) for name in ("dims", "strides", "box", "element_strides")}
    modes = {name: spec[name] for name in ("offset", "element", "swizzle", "fill")}
    return TensorMap(buffer=buffers[spec["buffer"]], **shape, **modes)


def pointer(spec, buffers):
    """What gives an address of eight bytes: a struct of nothing else, for an offset may follow."""
    return Struct(bytes(8), {0: (buffers[spec["buffer"]], spec["offset"])})


def scalar(spec, _):
    return DTYPES[spec["dtype"]](spec["value"])


def struct(spec, buffers):
    pieces = {}
    for patch in spec["patches"]:
        if "tensor_map" in patch:
            pieces[patch["at"]] = tensor_map(patch["tensor_map"], buffers)
        else:
            pieces[patch["at"]] = (buffers[patch["buffer"]], patch["offset"])
    return Struct(bytes.fromhex(spec["bytes"]), pieces)


ARGUMENTS = {"buffer": pointer, "scalar": scalar, "tensor_map": tensor_map, "bytes": struct}


def error_of(output, data, buffers):
    """Largest error in units of what is allowed (so right is at most 1); NaN expects anything."""
    got = buffers[output["buffer"]].view(DTYPES[output["dtype"]]).astype(np.float64)
    expected = data[output["expected"]]
    assert got.shape == expected.shape
    matters = ~np.isnan(expected)
    allowed = output["atol"] + output["rtol"] * np.abs(expected[matters])
    ratio = np.abs(got[matters] - expected[matters]) / allowed
    return float(np.where(np.isnan(ratio), np.inf, ratio).max())


def run(path, seed):
    """Run one case; the largest error of its outputs in units of what is allowed.

    All checks may report what the manifest admits, and in a convergent run they must. The outputs
    are those of a run without these checks, unless the case admits that it may deadlock.
    """
    manifest = json.loads(path.read_text())
    assert manifest["format"] == 1, "a manifest of another version"
    admitted = {} if seed is None else manifest.get("races", {})
    admitted = {*admitted, *manifest.get("faults", {})}
    if admitted:
        found = faults_of(path, manifest, seed, set(CHECKS))
        assert found <= admitted
        assert found or seed is not None, f"{admitted} are admitted, and not found"
    try:
        return outcome(path, manifest, seed, set(CHECKS) - (admitted - {"deadlock"}))
    except SimulationFault as fault:
        if {finding.check for finding in fault.findings} == admitted & {"deadlock"}:
            return 0.0
        raise


def faults_of(path, manifest, seed, checks):
    """The checks that report something."""
    try:
        outcome(path, manifest, seed, checks)
    except SimulationFault as fault:
        return {finding.check for finding in fault.findings}
    return set()


def outcome(path, manifest, seed, checks):
    shared, cluster = LIMITS[manifest["target"]]
    device = Device(
        name=manifest["target"],
        arch=manifest["target"],
        shared_bytes=shared * 1024,
        max_cluster=cluster,
    )
    with np.load(path.with_suffix(".npz")) as data:
        buffers = {
            name: data[spec["data"]].view(np.uint8).copy()
            for name, spec in manifest["buffers"].items()
        }
        arguments = [ARGUMENTS[spec["kind"]](spec, buffers) for spec in manifest["arguments"]]
        launch(
            (path.parent / manifest["ptx"]).read_text(),
            manifest["entry"],
            manifest["grid"],
            manifest["block"],
            arguments,
            cluster=manifest["cluster"],
            smem=manifest["shared_bytes"],
            device=device,
            seed=seed,
            checks=checks,
        )
        return max(error_of(output, data, buffers) for output in manifest["outputs"])


@pytest.mark.slow
@pytest.mark.skipif(not FOLDER, reason="HUMMING_SIM_PTX names no folder of PTX files to run")
@pytest.mark.parametrize("seed", [None, *SEEDS], ids=["convergent", *(f"seed{s}" for s in SEEDS)])
@pytest.mark.parametrize("path", MANIFESTS or [Path("no manifest")], ids=lambda path: path.stem)
def test_a_public_kernel_gives_what_its_project_says(path, seed, record_property):
    assert MANIFESTS, f"no *.json in {FOLDER}"
    start = time.perf_counter()
    error = run(path, seed)
    seconds = time.perf_counter() - start
    record_property("error", error)
    print(f"{path.stem} seed={seed}: error {error:.3g} of what is allowed, {seconds:.1f} s")
    assert error <= 1
