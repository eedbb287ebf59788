"""A kernel with packed arguments: what happens in a call is here, and it is short."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from humming.backend import LaunchShape
from humming.errors import ConfigError, LaunchError
from humming.launching.arguments import ArgumentBlock
from humming.launching.driver import INVALID_CONTEXT, Driver
from humming.launching.kernel import CudaKernel, LoadedFunction

__all__ = ["OPTIONS", "CudaLaunch", "describe"]

#: Options of a launch. "pdl": may begin while the kernel before it in the stream still runs; the
#: kernel then waits for that one's results itself (programmatic dependent launch). Left out, it is
#: what the kernel says of itself. Safe behind kernels of others too, as the first of a chain is:
#: they let nobody begin early unless they are made to, and ours waits in either case.
OPTIONS = ("pdl",)

_LARGEST_GRID = (2**31 - 1, 65535, 65535)
_PORTABLE_CLUSTER = 8  # blocks; more is up to the device


class CudaLaunch:
    """A :class:`humming.backend.PreparedLaunch` on one device.

    Attributes:
        kernel: what is launched.
        device: ordinal.
        arguments: the packed values, those of the latest launch.
        changing: the slots whose values come with a launch.
    """

    def __init__(
        self,
        kernel: CudaKernel,
        arguments: ArgumentBlock,
        changing: Sequence[int],
        options: Mapping[str, int],
    ) -> None:
        unknown = set(options) - set(OPTIONS)
        if unknown:
            raise ConfigError("options", sorted(unknown), f"{', '.join(OPTIONS)} or nothing")
        self.kernel, self.arguments, self.device = kernel, arguments, arguments.device
        self._pdl = bool(options.get("pdl", kernel.awaits))
        self._function = kernel.on(self.device)
        if self._function.parameter_bytes is not None:
            arguments.expect_sizes(self._function.parameter_bytes)
        self.changing = tuple(changing)
        self._put = tuple(arguments.put[index] for index in changing)
        self._config = self._driver.api.CUlaunchConfig()
        self._shape: LaunchShape | None = None
        self._stream: int | None = None
        # cuLaunchKernelEx copies the arguments, but leaves Python's lock before it does.
        self._lock = threading.Lock()

    @property
    def _driver(self) -> Driver:
        return self.kernel.driver

    def settle(self, shape: LaunchShape) -> tuple[Any, Any, int]:
        """What the driver takes to launch in this shape: a configuration, whose stream is nobody's
        yet, a function, and the address of the arguments.

        Raises:
            LaunchError: the driver would refuse.
        """
        self._use(shape)
        return self._config, self._function.handle, self.arguments.address

    def __call__(self, shape: LaunchShape, *changed: object) -> None:
        """See :meth:`humming.backend.PreparedLaunch.__call__`."""
        driver, config = self.kernel.driver, self._config
        if driver.current_device() != self.device:
            with driver.on_device(self.device):
                self(shape, *changed)
            return
        if len(changed) != len(self._put):
            raise ConfigError(
                "changed", len(changed), f"{len(self._put)} values, one for each slot"
            )
        with self._lock:
            if shape is not self._shape:
                self._use(shape)
            for put, value in zip(self._put, changed):  # noqa: B905 - checked above, 0.1 us less
                put(value)
            stream = driver.stream_of(self.device)
            if stream != self._stream:
                config.hStream = stream
                self._stream = stream
            result = driver.api.cuLaunchKernelEx(
                config, self._function.handle, self.arguments.address, 0
            )
            if result[0]:
                self.recover(result[0])

    def recover(self, status: Any) -> None:
        """Launch again if the thread only lacked a context; else say what was refused.

        Raises:
            LaunchError: it was something else, or is refused again.
        """
        driver = self._driver
        if int(status) == INVALID_CONTEXT:
            driver.bind(self.device)
            (status,) = driver.api.cuLaunchKernelEx(
                self._config, self._function.handle, self.arguments.address, 0
            )
            if not status:
                return
        shape = describe(self._shape) if self._shape is not None else "no shape"
        said = f"{driver.meaning(status)}\narguments: {self.arguments}"
        raise LaunchError(self.kernel.entry, shape, said)

    def _use(self, shape: LaunchShape) -> None:
        found = list(_problems(shape, self._function))
        if found:
            raise LaunchError(self.kernel.entry, describe(shape), "; ".join(found))
        api, config = self._driver.api, self._config
        self._shape = None  # until all of it is set
        config.gridDimX, config.gridDimY, config.gridDimZ = shape.grid
        config.blockDimX, config.blockDimY, config.blockDimZ = shape.block
        config.sharedMemBytes = shape.shared_bytes
        attributes = []
        if shape.cluster != (1, 1, 1):
            attributes.append(self._cluster(shape))
        if self._pdl:
            attribute = api.CUlaunchAttribute()
            names = api.CUlaunchAttributeID
            attribute.id = names.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
            attribute.value.programmaticStreamSerializationAllowed = 1
            attributes.append(attribute)
        config.attrs = attributes
        config.numAttrs = len(attributes)
        self._shape = shape

    def _cluster(self, shape: LaunchShape) -> Any:
        api, function = self._driver.api, self._function
        if math.prod(shape.cluster) > _PORTABLE_CLUSTER:
            key = api.CUfunction_attribute.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
            result = api.cuFuncSetAttribute(function.handle, key, 1)
            self._driver.expect(self.kernel.entry, describe(shape), result)
        attribute = api.CUlaunchAttribute()
        attribute.id = api.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        size = attribute.value.clusterDim
        size.x, size.y, size.z = shape.cluster
        return attribute


def describe(shape: LaunchShape) -> str:
    """A launch shape in one line: ``"grid 4x1x1, block 128x1x1, 1024 bytes shared"``."""
    text = f"grid {_by(shape.grid)}, block {_by(shape.block)}"
    if shape.cluster != (1, 1, 1):
        text += f", cluster {_by(shape.cluster)}"
    return f"{text}, {shape.shared_bytes} bytes shared" if shape.shared_bytes else text


def _by(sizes: Sequence[int]) -> str:
    return "x".join(map(str, sizes))


def _problems(shape: LaunchShape, function: LoadedFunction) -> Iterator[str]:
    """What the driver would call CUDA_ERROR_INVALID_VALUE."""
    for name, sizes in (("grid", shape.grid), ("block", shape.block), ("cluster", shape.cluster)):
        if min(sizes) < 1:
            yield f"{name} must have sizes of at least 1"
            return
    if any(size > most for size, most in zip(shape.grid, _LARGEST_GRID, strict=True)):
        yield f"grid must be at most {_by(_LARGEST_GRID)}"
    threads = math.prod(shape.block)
    if threads > function.max_threads:
        most = function.max_threads
        yield f"the block has {threads} threads, the kernel runs with at most {most}"
    if not 0 <= shape.shared_bytes <= function.max_shared_bytes:
        yield (
            f"{shape.shared_bytes} bytes of dynamic shared memory, the kernel can have at most "
            f"{function.max_shared_bytes} on this device"
        )
    if shape.cluster != (1, 1, 1):
        if not function.clusters:
            yield "this device has no clusters"
        if any(blocks % size for blocks, size in zip(shape.grid, shape.cluster, strict=True)):
            yield "grid must be a multiple of the cluster"
