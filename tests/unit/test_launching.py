"""Loading and launching against a stand-in of the driver; tests/gpu/test_launch.py is the proof."""

from __future__ import annotations

import struct
from typing import Any

import pytest
import torch
from fake_driver import CUBIN, FakeDriver, FakeTensor

from humming.backend import LaunchShape, Runtime
from humming.errors import CaptureError, ConfigError, LaunchError, UnsupportedError
from humming.launching import CudaRuntime, cuda_driver, describe

ONE = LaunchShape(grid=(4, 1, 1), block=(128, 1, 1))
KINDS = ("ptr", "i32", "u32", "i64", "u64", "f32", "f64")
SIZES = (8, 4, 4, 8, 8, 4, 8)
VALUES = (FakeTensor(0x1234), -2, 2**32 - 1, -(2**40), 2**64 - 1, 0.1, 0.1)


def prepared(fake: FakeDriver, kinds: Any, args: Any, options: Any = None, **more: Any) -> Any:
    runtime = CudaRuntime(fake.driver())
    kernel = runtime.load(CUBIN, "k")
    return runtime.prepare(kernel, kinds, args, options or {}, **more)


# -- arguments -------------------------------------------------------------------------------------


def test_each_kind_is_packed_as_c_would() -> None:
    fake = FakeDriver(SIZES)
    prepared(fake, KINDS, VALUES)(ONE)
    wanted = struct.pack("<Q", 0x1234), struct.pack("<i", -2), struct.pack("<I", 2**32 - 1)
    wanted += struct.pack("<q", -(2**40)), struct.pack("<Q", 2**64 - 1)
    wanted += struct.pack("<f", 0.1), struct.pack("<d", 0.1)
    assert tuple(fake.launches[0].packed) == wanted


def test_changing_slots_are_set_in_their_order_and_the_others_stay() -> None:
    fake = FakeDriver(SIZES)
    args = (None, -2, None, -(2**40), 2**64 - 1, 0.1, 0.1)
    run = prepared(fake, KINDS, args, changing=(2, 0))
    run(ONE, 3, FakeTensor(16))
    run(ONE, 4, None)
    first, second = (launch.packed for launch in fake.launches)
    assert (first[2], first[0]) == (struct.pack("<I", 3), struct.pack("<Q", 16))
    assert (second[2], second[0]) == (struct.pack("<I", 4), bytes(8))
    assert first[3:] == second[3:]
    with pytest.raises(ConfigError, match="changed=1: expected 2 values"):
        run(ONE, 3)


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        ("ptr", torch.zeros(2), r"a torch\.float32 tensor 2 on cpu"),
        ("ptr", -1, r"argument 0 \(ptr\) of k=-1: expected a tensor on cuda:0, an address or None"),
        ("ptr", 2**64, "an address or None"),
        ("ptr", True, "an address or None"),
        ("i32", 2**31, r"argument 0 \(i32\) of k=2147483648: expected an int from -2147483648 to"),
        ("u32", -1, "an int from 0 to 4294967295"),
        ("i64", 2**63, "an int from"),
        ("u64", 2**64, "an int from"),
        ("i32", 1.0, "an int from"),
        ("i32", True, "an int from"),
        ("f32", 1e39, "a number within f32"),
        ("f64", "x", "a number within f64"),
        ("map", FakeTensor(1), r"a pair \(TensorMap, tensor\)"),
        ("map", (1, torch.zeros(2)), r"a pair \(TensorMap, tensor\)"),
        ("int", 1, "a kind: ptr, i32"),
    ],
)
def test_a_value_that_does_not_fit_its_slot_is_named(kind: str, value: Any, message: str) -> None:
    fake = FakeDriver((8,))
    with pytest.raises(ConfigError, match=message):
        prepared(fake, (kind,), (value,))
    assert not fake.launches


def test_all_tensors_are_on_the_device_of_the_first() -> None:
    fake = FakeDriver((8, 8))
    with pytest.raises(ConfigError, match=r"argument 1 .*a fake tensor 2x3 on cuda:1.*on cuda:0"):
        prepared(fake, ("ptr", "ptr"), (FakeTensor(1), FakeTensor(2, device=1)))
    run = prepared(fake, ("ptr", "ptr"), (FakeTensor(1, device=1), None), changing=(1,))
    with pytest.raises(ConfigError, match="a tensor on cuda:1"):
        run(ONE, FakeTensor(2))
    assert not fake.launches


def test_the_kernels_own_parameters_are_compared() -> None:
    with pytest.raises(LaunchError, match=r"has 1 parameters, and 2 arguments came"):
        prepared(FakeDriver((8,)), ("ptr", "i32"), (None, 1))
    with pytest.raises(LaunchError, match=r"argument 0 \(i32\) has 4 bytes, not 8"):
        prepared(FakeDriver((8,)), ("i32",), (1,))
    older = FakeDriver((8,))
    older.missing = {"cuFuncGetParamCount"}
    with pytest.raises(LaunchError, match=r"has 1 parameters, and 2 arguments came"):
        prepared(older, ("ptr", "i32"), (None, 1))
    old = FakeDriver((8,))
    old.missing = {"cuFuncGetParamCount", "cuFuncGetParamInfo", "cuFuncLoad"}
    prepared(old, ("ptr",), (None,))(ONE)  # a driver that can't tell is believed
    assert len(old.launches) == 1
    runtime = CudaRuntime(old.driver())
    with pytest.raises(LaunchError, match=r"use prepare\(\)"):
        runtime.launch(runtime.load(CUBIN, "k"), ONE, [None], {})


def test_what_prepare_is_given_must_fit_together() -> None:
    fake = FakeDriver((8,))
    with pytest.raises(ConfigError, match="args=2: expected 1 values"):
        prepared(fake, ("ptr",), (None, None))
    for changing in ((1,), (-1,), (0, 0)):
        with pytest.raises(ConfigError, match="different numbers below 1"):
            prepared(fake, ("ptr",), (None,), changing=changing)
    with pytest.raises(ConfigError, match=r"options=\['seed'\]: expected pdl or nothing"):
        prepared(fake, ("ptr",), (None,), {"seed": 1})
    with pytest.raises(ConfigError, match="what load\\(\\) of this runtime returned"):
        CudaRuntime(fake.driver()).launch(None, ONE, (), {})


def test_launch_takes_kinds_from_values_and_parameters() -> None:
    fake = FakeDriver(SIZES)
    runtime = CudaRuntime(fake.driver())
    kernel = runtime.load(CUBIN, "k")
    runtime.launch(kernel, ONE, VALUES, {})
    prepared(fake, KINDS, VALUES)(ONE)
    assert fake.launches[0].packed == fake.launches[1].packed
    with pytest.raises(LaunchError, match="has 7 parameters, and 1 arguments came"):
        runtime.launch(kernel, ONE, VALUES[:1], {})
    with pytest.raises(ConfigError, match="something of 4 bytes"):
        runtime.launch(kernel, ONE, (*VALUES[:1], *VALUES[:1], *VALUES[2:]), {})


# -- loading ---------------------------------------------------------------------------------------


def test_it_is_a_runtime_and_says_when_there_is_no_driver() -> None:
    assert isinstance(CudaRuntime(), Runtime)
    if not torch.cuda.is_available():
        with pytest.raises(UnsupportedError, match="kernels can't be launched"):
            cuda_driver()


def test_a_kernel_is_loaded_once_for_each_device_in_its_primary_context() -> None:
    fake = FakeDriver((8,))
    runtime = CudaRuntime(fake.driver())
    kernel = runtime.load(CUBIN, "k")
    assert runtime.load(bytes(bytearray(CUBIN)), "k") is kernel
    assert runtime.load(CUBIN, "other") is not kernel
    run = runtime.prepare(kernel, ("ptr",), (FakeTensor(16, device=1),), {})
    run(ONE)
    assert fake.calls.count("cuModuleLoadDataEx") == 3
    assert fake.launches[0].function == ("function", "k", 1)
    assert fake.device == 0
    assert repr(kernel) == "<kernel k, loaded on [0, 1]>"


def test_ptx_gets_its_final_zero_and_other_bytes_are_refused() -> None:
    fake = FakeDriver()
    ptx = b".version 8.0\n.target sm_80\n"
    kernel = CudaRuntime(fake.driver()).load(ptx, "k")
    assert kernel._modules[0][1] == ptx + b"\0"
    for wrong in (b"", b"hello", ptx.replace(b"8", b"\0"), CUBIN[1:]):
        with pytest.raises(LaunchError, match=r"k \[loading\]: \d+ bytes that are neither"):
            CudaRuntime(fake.driver()).load(wrong, "k")


def test_a_refused_load_holds_the_drivers_name_and_its_compilers_log() -> None:
    fake = FakeDriver()
    fake.fails["cuModuleLoadDataEx"] = [218]
    fake.log = b"ptxas application ptx input, line 5; fatal: rett\n\0"
    with pytest.raises(LaunchError) as caught:
        CudaRuntime(fake.driver()).load(b".version 8.0 .target sm_80", "k")
    assert str(caught.value) == (
        "k [loading on cuda:0]: CUDA_ERROR_INVALID_PTX (218): a PTX JIT compilation failed\n"
        "ptxas application ptx input, line 5; fatal: rett"
    )
    fake.fails["cuModuleGetFunction"] = [500]
    with pytest.raises(LaunchError, match=r"CUDA_ERROR_NOT_FOUND \(500\)"):
        CudaRuntime(fake.driver()).load(CUBIN, "k")


def test_nothing_is_asked_of_the_driver_in_a_capture_unless_it_is_loaded() -> None:
    fake = FakeDriver()
    runtime = CudaRuntime(fake.driver())
    fake.capturing = True
    with pytest.raises(CaptureError, match=r"k \[loading on cuda:0\]: not while a CUDA graph is"):
        runtime.load(CUBIN, "k")
    assert not fake.calls
    fake.capturing = False
    kernel = runtime.load(CUBIN, "k")
    fake.capturing = True
    assert runtime.load(CUBIN, "k") is kernel
    runtime.prepare(kernel, (), (), {})(ONE)
    assert len(fake.launches) == 1


# -- launching -------------------------------------------------------------------------------------


def test_the_shape_and_the_stream_arrive() -> None:
    fake = FakeDriver()
    run = prepared(fake, (), (), {"pdl": 1})
    shape = LaunchShape(grid=(8, 3, 2), block=(64, 2, 1), cluster=(2, 1, 1), shared_bytes=99_000)
    run(shape)
    fake.stream = 9
    run(shape)
    run(LaunchShape(grid=(16, 1, 1), block=(32, 1, 1), cluster=(16, 1, 1)))
    first, second, third = fake.launches
    assert (first.gridDimX, first.gridDimY, first.gridDimZ) == (8, 3, 2)
    assert (first.blockDimX, first.blockDimY, first.blockDimZ) == (64, 2, 1)
    assert (first.sharedMemBytes, first.numAttrs) == (99_000, 2)
    cluster = first.attrs[0].value.clusterDim
    assert (cluster.x, cluster.y, cluster.z) == (2, 1, 1)
    assert first.attrs[1].value.programmaticStreamSerializationAllowed == 1
    assert (first.hStream, second.hStream) == (7, 9)
    assert ("CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES", 99_000) in fake.calls
    wide = [c for c in fake.calls if "NON_PORTABLE" in str(c)]
    assert wide == [("CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED", 1)]
    assert third.gridDimX == 16


@pytest.mark.parametrize(
    ("binary", "options", "early"),
    [
        (CUBIN, {}, False),
        (CUBIN, {"pdl": 1}, True),
        (CUBIN + b"_ZN7humming21kernels_await_earlierIvEE", {}, True),
        (CUBIN + b"_ZN7humming21kernels_await_earlierIvEE", {"pdl": 0}, False),
    ],
)
def test_a_kernel_may_begin_early_if_its_binary_says_that_it_waits(
    binary: bytes, options: dict[str, int], early: bool
) -> None:
    fake = FakeDriver()
    runtime = CudaRuntime(fake.driver())
    run = runtime.prepare(runtime.load(binary, "k"), (), (), options)
    run(ONE)
    runtime.chain([(run, ONE, ())])([])
    for launch in fake.launches:
        assert launch.numAttrs == len(launch.attrs) == early
        for attribute in launch.attrs:
            assert attribute.id == "CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION"
            assert attribute.value.programmaticStreamSerializationAllowed == 1


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"grid": (0, 1, 1)}, r"k \[grid 0x1x1, block 32x1x1\]: grid must have sizes of at least"),
        ({"grid": (1, 65536, 1)}, "grid must be at most 2147483647x65535x65535"),
        ({"block": (513, 1, 1)}, "513 threads, the kernel runs with at most 512"),
        ({"shared_bytes": 99_001}, "99001 bytes .*at most 99000 on this device"),
        ({"cluster": (2, 1, 1)}, "grid must be a multiple of the cluster"),
    ],
)
def test_a_shape_that_can_not_be_is_refused_with_what_can(
    fields: dict[str, Any], message: str
) -> None:
    fake = FakeDriver()
    run = prepared(fake, (), ())
    shape = LaunchShape(**{"grid": (1, 1, 1), "block": (32, 1, 1), **fields})
    for _ in range(2):
        with pytest.raises(LaunchError, match=message):
            run(shape)
    assert not fake.launches


def test_a_device_without_clusters_says_so() -> None:
    fake = FakeDriver()
    fake.attributes["CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH"] = 0
    with pytest.raises(LaunchError, match="this device has no clusters"):
        prepared(fake, (), ())(LaunchShape(grid=(2, 1, 1), block=(1, 1, 1), cluster=(2, 1, 1)))


def test_a_thread_without_a_context_gets_one() -> None:
    fake = FakeDriver()
    run = prepared(fake, (), ())
    fake.fails["cuLaunchKernelEx"] = [201]
    binds = fake.calls.count("cuCtxSetCurrent")
    run(ONE)
    assert len(fake.launches) == 2
    assert fake.calls.count("cuCtxSetCurrent") == binds + 1


def test_a_refused_launch_tells_kernel_shape_status_and_arguments() -> None:
    fake = FakeDriver(SIZES)
    run = prepared(fake, KINDS, VALUES)
    fake.fails["cuLaunchKernelEx"] = [1]
    with pytest.raises(LaunchError) as caught:
        run(ONE)
    assert str(caught.value) == (
        "k [grid 4x1x1, block 128x1x1]: CUDA_ERROR_INVALID_VALUE (1): invalid argument\n"
        "arguments: 0 ptr 0x1234, 1 i32 -2, 2 u32 4294967295, 3 i64 -1099511627776, "
        "4 u64 18446744073709551615, 5 f32 0.1, 6 f64 0.1"
    )


def test_an_error_of_earlier_work_is_not_taken_for_this_launchs() -> None:
    fake = FakeDriver()
    run = prepared(fake, (), ())
    fake.fails["cuLaunchKernelEx"] = [700]
    with pytest.raises(LaunchError, match=r"ILLEGAL_ADDRESS.*some kernel before this one met an"):
        run(ONE)


def test_a_shape_is_one_line() -> None:
    shape = LaunchShape(grid=(4, 2, 1), block=(128, 1, 1), cluster=(2, 1, 1), shared_bytes=1024)
    assert describe(shape) == "grid 4x2x1, block 128x1x1, cluster 2x1x1, 1024 bytes shared"
