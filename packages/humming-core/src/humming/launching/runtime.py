"""The CUDA driver as a runtime of humming."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from humming import devices
from humming.backend import LaunchShape, Link
from humming.errors import ConfigError, LaunchError
from humming.launching.arguments import KINDS, ArgumentBlock, described
from humming.launching.chain import CudaChain
from humming.launching.driver import Driver, cuda_driver
from humming.launching.kernel import CudaKernel
from humming.launching.launch import CudaLaunch
from humming.launching.tensor_maps import MapEncoder
from humming.profiles import DeviceIdentity

__all__ = ["CudaRuntime"]


class CudaRuntime:
    """The CUDA driver as a :class:`humming.backend.Runtime`.

    Args:
        driver: a driver to use instead of this machine's, for tests.
    """

    name = "cuda"

    def __init__(self, driver: Driver | None = None) -> None:
        self._given = driver
        self._opened: tuple[Driver, MapEncoder] | None = None
        self._kernels: dict[tuple[bytes, str], CudaKernel] = {}
        self._lock = threading.Lock()

    def identify(self, device: str) -> DeviceIdentity | None:
        """Device of an ordinal in digits."""
        return devices.identify(int(device)) if device.isdecimal() else None

    def devices(self) -> Sequence[str]:
        """Ordinals of all visible devices."""
        return [str(ordinal) for ordinal in range(devices.count())]

    def load(self, binary: bytes, entry: str) -> CudaKernel:
        """Load a cubin, fatbin or PTX on the current device, once; other devices load it later.

        Raises:
            UnsupportedError: there is no driver or no device.
            CaptureError: it is not loaded yet and the current stream is being captured.
            LaunchError: the binary is not for the device, or has no such kernel.
        """
        driver, _ = self._open()
        key = (hashlib.sha256(binary).digest(), entry)
        with self._lock:
            kernel = self._kernels.get(key) or CudaKernel(driver, binary, entry)
        kernel.on(driver.current_device())  # not under the lock: drivers translate PTX for seconds
        with self._lock:
            return self._kernels.setdefault(key, kernel)

    def launch(
        self, kernel: object, shape: LaunchShape, args: Sequence[object], options: Mapping[str, int]
    ) -> None:
        """Launch once, with argument kinds as the kernel's parameters and the values suggest.

        Raises:
            ConfigError: an argument does not fit, or `kernel` is none of this runtime's.
            LaunchError: the driver refuses.
        """
        found = _own(kernel)
        sizes = found.on(self._device_of(args)).parameter_bytes
        if sizes is None:
            said = "this driver does not know the kernel's parameters; use prepare()"
            raise LaunchError(found.entry, "arguments", said)
        if len(sizes) != len(args):
            said = f"the kernel has {len(sizes)} parameters, and {len(args)} arguments came"
            raise LaunchError(found.entry, "arguments", said)
        kinds = [_kind(value, size) for value, size in zip(args, sizes, strict=True)]
        self.prepare(found, kinds, args, options)(shape)

    def prepare(
        self,
        kernel: object,
        kinds: Sequence[str],
        args: Sequence[object],
        options: Mapping[str, int],
        changing: Sequence[int] = (),
    ) -> CudaLaunch:
        """Pack arguments for the device that their tensors are on, else for the current one.

        Tensors in slots that do not change stay alive as long as the result.

        Raises:
            ConfigError: a value does not fit its slot, or `kernel` is none of this runtime's.
            CaptureError: the kernel is not loaded on that device, in a capture.
            LaunchError: the kernel has other parameters.
        """
        found = _own(kernel)
        if len(kinds) != len(args):
            raise ConfigError("args", len(args), f"{len(kinds)} values, one for each kind")
        wrong = [index for index in changing if index not in range(len(kinds))]
        if wrong or len(set(changing)) != len(changing):
            raise ConfigError("changing", tuple(changing), f"different numbers below {len(kinds)}")
        _, encoder = self._open()
        fixed = {index: value for index, value in enumerate(args) if index not in changing}
        device = self._device_of(list(fixed.values()))
        block = ArgumentBlock(found.entry, kinds, device, encoder.encode)
        for index, value in fixed.items():
            block.put[index](value)
        block.kept = tuple(fixed.values())
        return CudaLaunch(found, block, changing, options)

    def chain(self, links: Sequence[Link]) -> CudaChain:
        """See :class:`humming.backend.Runtime`; raises as :class:`CudaChain`."""
        return CudaChain(links)

    def _open(self) -> tuple[Driver, MapEncoder]:
        if self._opened is None:
            driver = self._given or cuda_driver()
            self._opened = (driver, MapEncoder(driver))
        return self._opened

    def _device_of(self, values: Sequence[object]) -> int:
        """Of the first tensor on a GPU; a later one elsewhere is refused when it is packed."""
        for value in values:
            part: Any = value[1] if isinstance(value, tuple) and len(value) == 2 else value
            if hasattr(part, "get_device") and part.get_device() >= 0:
                return int(part.get_device())
        return self._open()[0].current_device()


def _own(kernel: object) -> CudaKernel:
    if not isinstance(kernel, CudaKernel):
        raise ConfigError("kernel", kernel, "what load() of this runtime returned")
    return kernel


def _kind(value: object, size: int) -> str:
    """The kind of a value for a parameter of so many bytes."""
    if isinstance(value, tuple):
        kind = "map"
    elif isinstance(value, float):
        kind = f"f{8 * size}"
    elif type(value) is int:
        kind = f"{'i' if value < 2 ** (8 * size - 1) else 'u'}{8 * size}"
    else:
        kind = "ptr"
    if KINDS.get(kind) != size:
        raise ConfigError("args", described(value), f"something of {size} bytes")
    return kind
