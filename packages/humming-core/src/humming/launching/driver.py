"""The CUDA driver through cuda-python, and what torch says of the calling thread."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from humming.errors import LaunchError, UnsupportedError

__all__ = ["INVALID_CONTEXT", "Driver", "cuda_driver"]

_INSTALL = 'python -m pip install "humming-core[cu13]" (or [cu12], for a torch built for CUDA 12)'

#: A thread that has not used CUDA yet has no context; torch makes one when it first needs it.
INVALID_CONTEXT = 201

#: What the driver also returns for work that failed earlier, on any call that follows. From then
#: on the context is lost.
_EARLIER = {
    214: "an uncorrectable memory error",
    700: "an access outside of memory",
    702: "a kernel that ran too long",
    710: "an assertion",
    714: "a corrupt stack",
    715: "an illegal instruction",
    716: "a misaligned access",
    717: "an access of the wrong memory space",
    718: "a jump outside of the code",
    719: "an exception in a kernel",
}


@dataclass(frozen=True)
class Driver:
    """What launching needs from outside; tests give their own.

    Attributes:
        api: the module ``cuda.bindings.driver``.
        stream_of: torch's current stream on a device, as the driver's handle.
        current_device: torch's current device.
        on_device: makes a device the current one for a while.
        is_capturing: whether the current stream is being captured into a graph.
    """

    api: Any
    stream_of: Callable[[int], int]
    current_device: Callable[[], int]
    on_device: Callable[[int], AbstractContextManager[Any]]
    is_capturing: Callable[[], bool]
    _contexts: dict[int, Any] = field(default_factory=dict, init=False, repr=False)

    def bind(self, device: int) -> None:
        """Make the device's primary context, which is torch's, the calling thread's own.

        Raises:
            LaunchError: the driver refuses.
        """
        context = self._contexts.get(device)
        if context is None:  # retained for good: torch never releases it either
            (handle,) = self.expect("binding", device, self.api.cuDeviceGet(device))
            (context,) = self.expect("binding", device, self.api.cuDevicePrimaryCtxRetain(handle))
            self._contexts[device] = context
        self.expect("binding", device, self.api.cuCtxSetCurrent(context))

    def expect(self, kernel: str, doing: int | str, result: tuple[Any, ...]) -> tuple[Any, ...]:
        """What a call of the driver returned, less its status.

        Raises:
            LaunchError: the status says that it failed.
        """
        status, *values = result
        if status:
            shape = f"on cuda:{doing}" if isinstance(doing, int) else doing
            raise LaunchError(kernel, shape, self.meaning(status))
        return tuple(values)

    def meaning(self, status: Any) -> str:
        """Name, number and meaning of a status, and whether it may be about something earlier."""
        _, name = self.api.cuGetErrorName(status)
        _, text = self.api.cuGetErrorString(status)
        said = f"{_text(name)} ({int(status)}): {_text(text)}"
        earlier = _EARLIER.get(int(status))
        if earlier is None:
            return said
        return (
            f"{said}; some kernel before this one met {earlier}, and the driver reports it on the "
            "next call. CUDA_LAUNCH_BLOCKING=1 shows which. This process can't use the GPU any more"
        )


def _text(value: object) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def cuda_driver() -> Driver:
    """The driver of this machine.

    Raises:
        UnsupportedError: there is no driver, no cuda-python, or no device that torch can use.
    """
    import torch

    try:
        from cuda.bindings import driver as api

        status, *_ = api.cuInit(0)
    except (ImportError, OSError, RuntimeError) as error:
        raise UnsupportedError(f"kernels can't be launched: {error}\ninstall {_INSTALL}") from error
    if status or torch.version.cuda is None or not torch.cuda.is_available():
        raise UnsupportedError("kernels can't be launched: torch sees no CUDA device")
    torch.cuda.init()
    return Driver(
        api,
        # 0.15 us; torch.cuda.current_stream() makes an object of it, 4.9 us.
        torch._C._cuda_getCurrentRawStream,
        torch._C._cuda_getDevice,
        torch.cuda.device,
        torch.cuda.is_current_stream_capturing,
    )
