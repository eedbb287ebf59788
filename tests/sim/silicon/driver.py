"""Runs a case on a real GPU through the CUDA driver; NumPy and ctypes only."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from silicon.case import Bytes, Case, Map, Memory, Scalar

ELEMENTS: tuple[str, ...] = (
    "uint8",
    "uint16",
    "uint32",
    "int32",
    "uint64",
    "int64",
    "float16",
    "float32",
)
ELEMENTS += ("float64", "bfloat16", "float32_ftz", "tfloat32", "tfloat32_ftz")
SWIZZLES = ("none", "32", "64", "128")
FILLS = ("zero", "nan")
ERROR_LOG, ERROR_LOG_SIZE = 5, 6
MAX_DYNAMIC_SHARED = 8
CLUSTER_DIMENSION = 4


def driver_version() -> str:
    """The version of the driver package, as the management library tells it."""
    library, text = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.create_string_buffer(80)
    if library.nvmlInit_v2() or library.nvmlSystemGetDriverVersion(text, len(text)):
        return "unknown"
    return text.value.decode()


class DriverError(RuntimeError):
    """A driver call failed; the text names it and what the driver said."""


class _Attribute(ctypes.Structure):
    _fields_ = [
        ("id", ctypes.c_uint),
        ("pad", ctypes.c_uint),
        ("value", ctypes.c_uint * 16),
    ]


class _Config(ctypes.Structure):
    _fields_ = [
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("count", ctypes.c_uint),
    ]


class Gpu:
    """The first CUDA device and a context on it."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL("libcuda.so.1")
        self.call("cuInit", 0)
        device = ctypes.c_int()
        self.call("cuDeviceGet", ctypes.byref(device), 0)
        name = ctypes.create_string_buffer(100)
        self.call("cuDeviceGetName", name, 100, device)
        version = ctypes.c_int()
        self.call("cuDriverGetVersion", ctypes.byref(version))
        self.name = name.value.decode()
        self.cuda = f"{version.value // 1000}.{version.value % 1000 // 10}"
        context = ctypes.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)

    def call(self, name: str, *arguments: Any) -> None:
        """Calls the driver.

        Raises:
            DriverError: if it does not answer success.
        """
        code = getattr(self.library, name)(*arguments)
        if code:
            text = ctypes.c_char_p()
            self.library.cuGetErrorString(code, ctypes.byref(text))
            raise DriverError(f"{name}: error {code}: {(text.value or b'?').decode()}")

    def load(self, ptx: str) -> ctypes.c_void_p:
        """A module of PTX text.

        Raises:
            DriverError: if it does not assemble, with the assembler's log.
        """
        module, log = ctypes.c_void_p(), ctypes.create_string_buffer(8192)
        options = (ctypes.c_int * 2)(ERROR_LOG, ERROR_LOG_SIZE)
        values = (ctypes.c_void_p * 2)(ctypes.addressof(log), len(log))
        try:
            self.call(
                "cuModuleLoadDataEx", ctypes.byref(module), ptx.encode() + b"\0", 2, options, values
            )
        except DriverError as error:
            raise DriverError(f"{error}\n{log.value.decode()}") from None
        return module

    def run(self, case: Case) -> dict[int, Bytes]:
        """Runs a case; returns the final bytes of each memory argument by position.

        Raises:
            DriverError: if it does not load, launch or finish.
        """
        module = self.load(case.ptx)
        function = ctypes.c_void_p()
        self.call("cuModuleGetFunction", ctypes.byref(function), module, case.entry.encode())
        pointers: dict[int, ctypes.c_uint64] = {}
        sizes: dict[int, int] = {}
        for position, argument in enumerate((*case.arguments, *case.hidden)):
            if isinstance(argument, Memory):
                start = argument.start()
                pointer = ctypes.c_uint64()
                self.call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(start.nbytes))
                source = ctypes.c_void_p(start.ctypes.data)
                self.call("cuMemcpyHtoD_v2", pointer, source, ctypes.c_size_t(start.nbytes))
                pointers[position], sizes[position] = pointer, start.nbytes
        values = [self._value(argument, pointers, i) for i, argument in enumerate(case.arguments)]
        self._launch(case, function, values)
        self.call("cuCtxSynchronize")
        results = {}
        for position, pointer in pointers.items():
            result = np.zeros(sizes[position], np.uint8)
            target = ctypes.c_void_p(result.ctypes.data)
            self.call("cuMemcpyDtoH_v2", target, pointer, ctypes.c_size_t(result.nbytes))
            self.call("cuMemFree_v2", pointer)
            results[position] = result
        self.call("cuModuleUnload", module)
        return results

    def _launch(self, case: Case, function: ctypes.c_void_p, values: list[Any]) -> None:
        parameters = (ctypes.c_void_p * len(values))(*[ctypes.addressof(v) for v in values])
        if case.shared:
            self.call("cuFuncSetAttribute", function, MAX_DYNAMIC_SHARED, case.shared)
        config = _Config(case.grid, case.block, case.shared, None, None, 0)
        attribute = _Attribute(CLUSTER_DIMENSION, 0, case.cluster)
        if case.cluster != (1, 1, 1):
            config.attributes, config.count = ctypes.pointer(attribute), 1
        self.call("cuLaunchKernelEx", ctypes.byref(config), function, parameters, None)

    def _value(self, argument: Any, pointers: dict[int, ctypes.c_uint64], position: int) -> Any:
        if isinstance(argument, Memory):
            return pointers[position]
        if isinstance(argument, Scalar):
            data = argument.array()
            return (ctypes.c_uint8 * data.nbytes).from_buffer_copy(data.tobytes())
        return self._map(argument, pointers[argument.memory].value)

    def _map(self, spec: Map, address: int) -> Any:
        """A tensor map, in 64-byte aligned memory."""
        rank = len(spec.dims)
        room = (ctypes.c_uint8 * 192)()
        shift = -ctypes.addressof(room) % 64
        result = (ctypes.c_uint8 * 128).from_buffer(room, shift)
        self.call(
            "cuTensorMapEncodeTiled",
            result,
            ELEMENTS.index(spec.element),
            rank,
            ctypes.c_uint64(address + spec.offset),
            (ctypes.c_uint64 * rank)(*spec.dims),
            (ctypes.c_uint64 * max(rank - 1, 1))(*spec.strides),
            (ctypes.c_uint32 * rank)(*spec.box),
            (ctypes.c_uint32 * rank)(*spec.element_strides()),
            0,
            SWIZZLES.index(spec.swizzle),
            0,
            FILLS.index(spec.fill),
        )
        return result
