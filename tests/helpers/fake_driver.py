"""A stand-in for ``cuda.bindings.driver``: it records calls and reads packed arguments.

It proves what we hand to the driver and what we make of its answers, and nothing about CUDA.
"""

from __future__ import annotations

import ctypes
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from humming.launching import Driver

NAMES = {
    1: ("CUDA_ERROR_INVALID_VALUE", "invalid argument"),
    201: ("CUDA_ERROR_INVALID_CONTEXT", "invalid device context"),
    218: ("CUDA_ERROR_INVALID_PTX", "a PTX JIT compilation failed"),
    500: ("CUDA_ERROR_NOT_FOUND", "named symbol not found"),
    700: ("CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"),
}
CUBIN = b"\x7fELF and so on"


class Names:
    """An enumeration that has every member, each equal to its name."""

    def __getattr__(self, name: str) -> str:
        return name


class FakeTensor:
    """What a pointer slot asks of a tensor."""

    dtype, shape = "fake", (2, 3)

    def __init__(self, address: int, device: int = 0) -> None:
        self.address, self.ordinal = address, device
        self.device = f"cuda:{device}"

    def get_device(self) -> int:
        return self.ordinal

    def data_ptr(self) -> int:
        return self.address


class FakeDriver:
    """The module's functions, with the parameters of one kernel, and torch's side of a driver."""

    def __init__(self, sizes: tuple[int, ...] = (), *, devices: int = 1) -> None:
        self.sizes = sizes
        self.calls: list[Any] = []
        self.launches: list[Any] = []
        self.fails: dict[str, list[int]] = {}
        self.log = b""
        self.missing: set[str] = set()
        self.stream, self.device, self.capturing = 7, 0, False
        self.current: int | None = None
        for kind in (
            "CUfunction_attribute",
            "CUdevice_attribute",
            "CUjit_option",
            "CUlaunchAttributeID",
            "CUtensorMapDataType",
            "CUtensorMapInterleave",
            "CUtensorMapSwizzle",
            "CUtensorMapL2promotion",
            "CUtensorMapFloatOOBfill",
        ):
            setattr(self, kind, Names())
        self.cuuint64_t = self.cuuint32_t = int
        self.attributes = {
            "CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": 100_000,
            "CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH": 1,
            "CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES": 1_000,
            "CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK": 512,
        }

    def driver(self) -> Driver:
        return Driver(
            self, lambda device: self.stream, lambda: self.device, self.on, lambda: self.capturing
        )

    @contextmanager
    def on(self, device: int) -> Any:
        before, self.device = self.device, device
        yield
        self.device = before

    def status(self, name: str) -> int:
        self.calls.append(name)
        if name in self.missing:
            raise RuntimeError(f'Function "{name}" not found')
        queue = self.fails.get(name, [])
        return queue.pop(0) if queue else 0

    def cuGetErrorName(self, status: int) -> Any:  # noqa: N802
        return 0, NAMES[status][0].encode()

    def cuGetErrorString(self, status: int) -> Any:  # noqa: N802
        return 0, NAMES[status][1].encode()

    def cuDeviceGet(self, device: int) -> Any:  # noqa: N802
        return self.status("cuDeviceGet"), device

    def cuDevicePrimaryCtxRetain(self, device: int) -> Any:  # noqa: N802
        return self.status("cuDevicePrimaryCtxRetain"), ("context", device)

    def cuCtxSetCurrent(self, context: Any) -> Any:  # noqa: N802
        self.current = context[1]
        return (self.status("cuCtxSetCurrent"),)

    def cuModuleLoadDataEx(self, image: bytes, count: int, options: Any, values: Any) -> Any:  # noqa: N802
        assert count == len(options) == len(values)
        values[0][: len(self.log)] = self.log
        return self.status("cuModuleLoadDataEx"), ("module", image, self.current)

    def cuModuleGetFunction(self, module: Any, name: bytes) -> Any:  # noqa: N802
        return self.status("cuModuleGetFunction"), ("function", name.decode(), self.current)

    def cuFuncLoad(self, function: Any) -> Any:  # noqa: N802
        return (self.status("cuFuncLoad"),)

    def cuFuncGetAttribute(self, key: str, function: Any) -> Any:  # noqa: N802
        return self.status("cuFuncGetAttribute"), self.attributes[key]

    def cuDeviceGetAttribute(self, key: str, device: int) -> Any:  # noqa: N802
        return self.status("cuDeviceGetAttribute"), self.attributes[key]

    def cuFuncSetAttribute(self, function: Any, key: str, value: int) -> Any:  # noqa: N802
        self.calls.append((key, value))
        return (self.status("cuFuncSetAttribute"),)

    def cuFuncGetParamCount(self, function: Any) -> Any:  # noqa: N802
        return self.status("cuFuncGetParamCount"), len(self.sizes)

    def cuFuncGetParamInfo(self, function: Any, index: int) -> Any:  # noqa: N802
        status = self.status("cuFuncGetParamInfo")
        if index >= len(self.sizes):
            return 1, 0, 0
        return status, 0, self.sizes[index]

    def cuTensorMapEncodeTiled(self, *values: Any) -> Any:  # noqa: N802
        self.calls.append(values)
        words = (ctypes.c_uint64 * 16)(*(values[2] + index for index in range(16)))
        encoded = SimpleNamespace(words=words, getPtr=lambda: ctypes.addressof(words))
        return self.status("cuTensorMapEncodeTiled"), encoded

    def CUlaunchConfig(self) -> Any:  # noqa: N802
        return SimpleNamespace()

    def CUlaunchAttribute(self) -> Any:  # noqa: N802
        return SimpleNamespace(id=None, value=SimpleNamespace(clusterDim=SimpleNamespace()))

    def cuLaunchKernelEx(self, config: Any, function: Any, address: int, extra: int) -> Any:  # noqa: N802
        pointers = (ctypes.c_void_p * len(self.sizes)).from_address(address)
        packed = [
            ctypes.string_at(pointer or 0, size)
            for pointer, size in zip(pointers, self.sizes, strict=True)
        ]
        self.launches.append(SimpleNamespace(**vars(config), function=function, packed=packed))
        return (self.status("cuLaunchKernelEx"),)
