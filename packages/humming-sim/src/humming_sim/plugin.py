"""humming's plugin: the runtime "sim", whose devices are those of humming's profiles.

``humming.select_backend(device="sim:nvidia-b200")`` chooses what would run on a B200. A binary of
this runtime is PTX text, and its tensors live on the CPU.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from humming import plugins
from humming.backend import LaunchShape, PreparedLaunch, Runtime, TensorMap
from humming.errors import ConfigError, LaunchError
from humming.plugins import hookimpl
from humming.profiles import DeviceIdentity

if TYPE_CHECKING:
    from humming_sim.device import Device

__all__ = ["LoadedKernel", "SimulatorRuntime"]

#: Options of a launch, as humming_sim.launch calls them.
_OPTIONS = ("seed",)


@hookimpl
def humming_register_runtimes() -> Sequence[Runtime]:
    """The simulator."""
    return [SimulatorRuntime()]


@dataclass(frozen=True)
class LoadedKernel:
    """A kernel that was found in its PTX.

    Attributes:
        ptx: the text.
        entry: name of the kernel in it.
        device: limits of the devices of the PTX's target; None if no profile is for it.
    """

    ptx: str
    entry: str
    device: Device | None


class SimulatorRuntime:
    """The simulator as a :class:`humming.backend.Runtime`; a device is the name of a profile."""

    name = "sim"
    portable = True  # takes PTX, not machine code

    def identify(self, device: str) -> DeviceIdentity | None:
        """A device that its profile, and no other, is for; None if it is not simulated."""
        from humming_sim.profiles import simulated

        profile = simulated(plugins.profiles()).get(device)
        if profile is None:
            return None
        reported = profile.match.reported
        return DeviceIdentity(
            name=reported[0] if reported else profile.title,
            vendor=profile.vendor,
            capability=profile.capability or (0, 0),
            limits={},
        )

    def devices(self) -> Sequence[str]:
        """Names of the profiles whose devices are simulated."""
        from humming_sim.profiles import simulated

        return list(simulated(plugins.profiles()))

    def load(self, binary: bytes, entry: str) -> LoadedKernel:
        """Read PTX text, UTF-8, and find its kernel `entry`.

        Raises:
            LaunchError: it is no PTX, or holds no such kernel.
        """
        from humming_sim.errors import PtxError
        from humming_sim.launching import module_of
        from humming_sim.profiles import limits_of, simulated

        try:
            text = binary.decode("utf-8").rstrip("\0")
            module = module_of(text)
        except (UnicodeDecodeError, PtxError) as error:
            raise LaunchError(entry, "loading", f"this is no PTX: {error}") from error
        if entry not in module.kernels:
            found = ", ".join(module.kernels) or "none"
            raise LaunchError(entry, "loading", f"not in the PTX, which has {found}")
        # Devices of one architecture have the same limits, so the first of them stands for all.
        known = simulated(plugins.profiles()).values()
        fitting = [limits_of(profile) for profile in known if profile.target.arch == module.target]
        return LoadedKernel(text, entry, fitting[0] if fitting else None)

    def launch(
        self, kernel: object, shape: LaunchShape, args: Sequence[object], options: Mapping[str, int]
    ) -> None:
        """Run a kernel to its end; see :func:`humming_sim.launch`.

        Args:
            kernel: what :meth:`load` returned.
            shape: grid, block, cluster and dynamic shared memory.
            args: CPU tensors, NumPy arrays, numbers, and tensor maps: the simulator's, or a pair of
                humming's and a tensor.
            options: "seed" runs warps in a random order.

        Raises:
            ConfigError: there is no such option, or `kernel` is none of this runtime's.
            LaunchError: no device would accept the launch, or the kernel did something wrong.
        """
        from humming_sim.errors import SimulatorError
        from humming_sim.launching import launch

        if not isinstance(kernel, LoadedKernel):
            raise ConfigError("kernel", kernel, "what load() of this runtime returned")
        unknown = set(options) - set(_OPTIONS)
        if unknown:
            raise ConfigError("options", sorted(unknown), f"{', '.join(_OPTIONS)} or nothing")
        try:
            launch(
                kernel.ptx,
                kernel.entry,
                shape.grid,
                shape.block,
                [_argument(value) for value in args],
                cluster=shape.cluster if shape.cluster != (1, 1, 1) else None,
                smem=shape.shared_bytes,
                device=kernel.device,
                seed=options.get("seed"),
            )
        except SimulatorError as error:
            raise LaunchError(kernel.entry, str(shape), str(error)) from error

    def prepare(
        self,
        kernel: object,
        kinds: Sequence[str],
        args: Sequence[object],
        options: Mapping[str, int],
        changing: Sequence[int] = (),
    ) -> PreparedLaunch:
        """:meth:`launch` with the arguments in place; the PTX knows its parameters' types itself.

        Raises:
            ConfigError: the numbers of kinds, arguments and changing slots do not fit.
        """
        if len(kinds) != len(args):
            raise ConfigError("args", len(args), f"{len(kinds)} values, one for each kind")
        if not set(changing) <= set(range(len(kinds))) or len(set(changing)) != len(changing):
            raise ConfigError("changing", tuple(changing), f"different numbers below {len(kinds)}")
        slots = tuple(changing)
        fixed = tuple(args)

        def prepared(shape: LaunchShape, *changed: object) -> None:
            if len(changed) != len(slots):
                allowed = f"{len(slots)} values, one for each slot"
                raise ConfigError("changed", len(changed), allowed)
            values = {**dict(enumerate(fixed)), **dict(zip(slots, changed, strict=True))}
            self.launch(kernel, shape, list(values.values()), options)

        return prepared


def _argument(value: object) -> object:
    """An argument of humming's as the simulator takes it."""
    if value is None:
        return 0
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], TensorMap):
        from humming_sim.tensors import TensorMap as Described

        told, buffer = value
        return Described(
            buffer=buffer,
            element=told.element,
            dims=told.dims,
            strides=told.strides,
            box=told.box,
            swizzle=told.swizzle,
            fill=told.fill,
        )
    return value
