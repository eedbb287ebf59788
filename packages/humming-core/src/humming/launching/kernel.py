"""A kernel of a binary, loaded on each device that launches it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from humming.errors import CaptureError, LaunchError
from humming.launching.driver import Driver

__all__ = ["CudaKernel", "LoadedFunction", "image_of"]

_LOG_BYTES = 16 * 1024
_ELF, _FATBIN = b"\x7fELF", b"\x50\xed\x55\xba"
#: A name in binaries whose kernel waits for those before it: see include/humming/overlap.cuh.
_AWAITS = b"kernels_await_earlier"


@dataclass(frozen=True)
class LoadedFunction:
    """A kernel on one device.

    Attributes:
        handle: the driver's.
        parameter_bytes: of each parameter; None if the driver is too old to say.
        max_threads: of a block.
        max_shared_bytes: of dynamic shared memory, on top of what the kernel declares.
        clusters: whether the device has any.
    """

    handle: Any
    parameter_bytes: tuple[int, ...] | None
    max_threads: int
    max_shared_bytes: int
    clusters: bool


class CudaKernel:
    """One kernel of a binary. It stays loaded until the process ends: graphs may hold it.

    Attributes:
        driver, entry: as given.
        awaits: whether it says of itself that it waits for the kernels before it, and so may begin
            while they still run.
    """

    def __init__(self, driver: Driver, binary: bytes, entry: str) -> None:
        self.driver, self.entry = driver, entry
        self.awaits = _AWAITS in binary
        self._image = image_of(binary, entry)
        self._modules: list[Any] = []
        self._functions: dict[int, LoadedFunction] = {}
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"<kernel {self.entry}, loaded on {sorted(self._functions) or 'no device'}>"

    def on(self, device: int) -> LoadedFunction:
        """The kernel on a device, loaded if it is not yet.

        Raises:
            CaptureError: it is not, and the device's current stream is being captured.
            LaunchError: the driver refuses to load it; with what its compiler said, for PTX.
        """
        found = self._functions.get(device)
        if found is not None:
            return found
        with self._lock, self.driver.on_device(device):
            if device not in self._functions:
                if self.driver.is_capturing():  # loading would break the capture
                    raise CaptureError(self.entry, f"cuda:{device}")
                self._functions[device] = self._load(device)
            return self._functions[device]

    def _load(self, device: int) -> LoadedFunction:
        self.driver.bind(device)
        api, expect, where = self.driver.api, self.driver.expect, f"loading on cuda:{device}"
        handle = self._find(where)
        is_set = api.CUfunction_attribute
        attribute = api.CUdevice_attribute

        def of_function(name: str) -> int:
            key = getattr(is_set, f"CU_FUNC_ATTRIBUTE_{name}")
            return int(expect(self.entry, where, api.cuFuncGetAttribute(key, handle))[0])

        def of_device(name: str) -> int:
            key = getattr(attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
            return int(expect(self.entry, where, api.cuDeviceGetAttribute(key, device))[0])

        most = of_device("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN") - of_function("SHARED_SIZE_BYTES")
        if most > 48 * 1024:  # beyond it the driver wants to be told
            key = is_set.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            expect(self.entry, where, api.cuFuncSetAttribute(handle, key, most))
        return LoadedFunction(
            handle=handle,
            parameter_bytes=_parameters(api, handle),
            max_threads=of_function("MAX_THREADS_PER_BLOCK"),
            max_shared_bytes=most,
            clusters=bool(of_device("CLUSTER_LAUNCH")),
        )

    def _find(self, where: str) -> Any:
        """The function's handle, its code on the device."""
        api, log = self.driver.api, bytearray(_LOG_BYTES)
        options = [
            api.CUjit_option.CU_JIT_ERROR_LOG_BUFFER,
            api.CUjit_option.CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
        ]
        status, module = api.cuModuleLoadDataEx(self._image, len(options), options, [log, len(log)])
        if status:
            said = bytes(log).split(b"\0", 1)[0].decode(errors="replace").strip()
            meaning = self.driver.meaning(status)
            raise LaunchError(self.entry, where, f"{meaning}\n{said}" if said else meaning)
        self._modules.append(module)
        expect = self.driver.expect
        found = api.cuModuleGetFunction(module, self.entry.encode())
        (handle,) = expect(self.entry, where, found)
        # The driver may put code on the device as late as the first launch, and that could be in a
        # capture. CUDA 12.4 can be told.
        _if_known(lambda: expect(self.entry, where, api.cuFuncLoad(handle)))
        return handle


def image_of(binary: bytes, entry: str) -> bytes:
    """What the driver is given: machine code as it is, PTX with the zero that ends it.

    Raises:
        LaunchError: it is neither; the driver would read past its end.
    """
    if binary.startswith((_ELF, _FATBIN)):
        return binary
    text = binary.rstrip(b"\0")
    if b"\0" in text or b".version" not in text or b".target" not in text:
        said = f"{len(binary)} bytes that are neither a cubin nor PTX"
        raise LaunchError(entry, "loading", said)
    return text + b"\0"


def _parameters(api: Any, handle: Any) -> tuple[int, ...] | None:
    counted = _if_known(lambda: api.cuFuncGetParamCount(handle))
    sizes: list[int] = []
    # A driver that can't count says of the first that is missing that there is no such one.
    while counted is None or len(sizes) < int(counted[1]):
        answer = _if_known(lambda: api.cuFuncGetParamInfo(handle, len(sizes)))
        if answer is None:
            return None
        status, _, size = answer
        if status:
            break
        sizes.append(int(size))
    return tuple(sizes)


def _if_known(call: Callable[[], Any]) -> Any:
    """The call's result; None if the driver or its bindings are too old to have the function."""
    try:
        return call()
    except (AttributeError, RuntimeError):
        return None
