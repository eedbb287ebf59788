"""Arguments of a launch: buffers become addresses, everything becomes parameter bytes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from humming_sim.errors import LaunchError
from humming_sim.machine.global_memory import Allocation, GlobalMemory
from humming_sim.ptx.model import Kernel, Module, Parameter

__all__ = ["Bindings", "Buffer", "Encodable", "Struct", "bind_arguments", "buffers_of"]


@runtime_checkable
class Encodable(Protocol):
    """An argument that becomes bytes once its buffer's address is known (a tensor map)."""

    @property
    def buffer(self) -> Any:
        """The array or tensor it describes."""
        ...

    def encode(self, address: int) -> bytes:
        """Its bytes when the buffer starts at `address`."""
        ...


@dataclass(frozen=True, eq=False)
class Struct:
    """A struct argument with pointers and tensor maps in it.

    Attributes:
        data: its bytes.
        at: what to put over them, by byte offset: an array or tensor becomes its address, a pair
            (array, bytes) an address inside of it, a tensor map its 128 bytes.
    """

    data: bytes
    at: Mapping[int, Any]


@dataclass
class Buffer:
    """One caller's array: its bytes, and where the kernel sees them."""

    array: npt.NDArray[Any]
    allocation: Allocation


@dataclass
class Bindings:
    """Global memory, parameter bytes and addresses of module variables for one launch."""

    memory: GlobalMemory
    parameters: npt.NDArray[np.uint8]
    variables: dict[str, int]
    buffers: list[Buffer] = field(default_factory=list)

    def copy_back(self) -> None:
        """Give the caller's arrays what the kernel wrote."""
        for buffer in self.buffers:
            if buffer.allocation.writable:
                _bytes(buffer.array)[:] = self.memory.bytes_of(buffer.allocation)


def bind_arguments(module: Module, kernel: Kernel, args: Sequence[Any]) -> Bindings:
    """Place buffers and module variables in global memory and encode the parameters.

    Raises:
        LaunchError: if the arguments are not what the kernel's parameters need.
    """
    parameters = list(kernel.parameters.values())
    if len(args) != len(parameters):
        raise LaunchError(
            f"kernel {kernel.name} has {len(parameters)} parameters, and {len(args)} arguments came"
        )
    memory = GlobalMemory()
    buffers = _place_buffers(memory, args)
    variables = {
        name: memory.add(name, max(variable.size, 1), variable.space != "const")
        for name, variable in module.variables.items()
    }
    memory.seal()
    for buffer in buffers.values():
        memory.bytes_of(buffer.allocation)[:] = _bytes(buffer.array)
    addresses = {name: allocation.start for name, allocation in variables.items()}
    for name, variable in module.variables.items():
        _initialise(memory, variables[name], variable.data, variable.links, addresses)
    bank = np.zeros(kernel.parameter_bytes, np.uint8)
    for index, (parameter, value) in enumerate(zip(parameters, args, strict=True)):
        raw = _encode(index, parameter, value, buffers)
        bank[parameter.offset : parameter.offset + parameter.size] = np.frombuffer(raw, np.uint8)
    return Bindings(memory, bank, addresses, list(buffers.values()))


def buffers_of(args: Sequence[Any]) -> list[tuple[int, Any, npt.NDArray[Any]]]:
    """The distinct buffers among arguments: (argument, what was passed, its memory as an array).

    Raises:
        LaunchError: an argument is of no type that a launch takes.
    """
    found: dict[int, tuple[int, Any, npt.NDArray[Any]]] = {}
    for index, source in _sources(args):
        array = _array(source)
        if array is not None:
            found.setdefault(_key(array), (index, source, array))
    return list(found.values())


def _place_buffers(memory: GlobalMemory, args: Sequence[Any]) -> dict[int, Buffer]:
    """One place per distinct memory of the caller, by the address of its first byte."""
    found: dict[int, Buffer] = {}
    for index, source in _sources(args):
        array = _array(source)
        if array is None:
            continue
        key = _key(array)
        if key in found:
            if found[key].array.nbytes != array.nbytes:
                raise LaunchError(
                    f"argument {index} starts where another buffer starts, with "
                    f"{array.nbytes} bytes instead of {found[key].array.nbytes}"
                )
            continue
        if not array.flags.c_contiguous:
            raise LaunchError(f"argument {index} is not contiguous; copy it first")
        allocation = memory.add(f"argument {index}", array.nbytes, array.flags.writeable)
        found[key] = Buffer(array, allocation)
    return found


def _sources(args: Sequence[Any]) -> Iterator[tuple[int, Any]]:
    """(argument, what may be a buffer) of everything in the arguments."""
    for index, value in enumerate(args):
        if isinstance(value, Struct):
            parts = [part[0] if isinstance(part, tuple) else part for part in value.at.values()]
            yield from ((index, source) for _, source in _sources(parts))
        else:
            yield index, value.buffer if isinstance(value, Encodable) else value


def _array(value: Any) -> npt.NDArray[Any] | None:
    """The array behind a buffer argument, sharing its memory; None for scalars and bytes."""
    if isinstance(value, np.ndarray):
        return value
    if isinstance(value, bool | int | float | bytes | bytearray | np.generic | Encodable):
        return None
    if hasattr(value, "data_ptr") and hasattr(value, "untyped_storage"):
        return _tensor(value)
    raise LaunchError(
        f"an argument of type {type(value).__name__}; give a NumPy array, a CPU tensor, a number, "
        "bytes or a TensorMap"
    )


def _tensor(value: Any) -> npt.NDArray[Any]:
    """A torch tensor's memory as bytes, whatever its dtype."""
    import torch

    if value.device.type != "cpu":
        raise LaunchError(f"a tensor on {value.device}; the simulator takes CPU tensors")
    if not value.is_contiguous():
        raise LaunchError("a tensor that is not contiguous; call .contiguous() first")
    out: npt.NDArray[Any] = value.detach().reshape(-1).view(torch.uint8).numpy()
    return out


def _key(array: npt.NDArray[Any]) -> int:
    return int(array.__array_interface__["data"][0])


def _bytes(array: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    return array.reshape(-1).view(np.uint8)


def _initialise(
    memory: GlobalMemory,
    allocation: Allocation,
    data: bytes,
    links: Sequence[tuple[int, str, int]],
    addresses: dict[str, int],
) -> None:
    target = memory.bytes_of(allocation)
    target[: len(data)] = np.frombuffer(data, np.uint8)
    for offset, symbol, addend in links:
        if symbol not in addresses:
            raise LaunchError(f"{allocation.name} holds the address of {symbol}, which is nowhere")
        raw = (addresses[symbol] + addend).to_bytes(8, "little")
        target[offset : offset + 8] = np.frombuffer(raw, np.uint8)


def _encode(index: int, parameter: Parameter, value: Any, buffers: dict[int, Buffer]) -> bytes:
    """The bytes of one argument as its parameter takes them."""
    where = f"argument {index} ({parameter.name}, .{parameter.type}, {parameter.size} bytes)"
    if isinstance(value, Encodable):
        raw = value.encode(_address(value.buffer, buffers))
    elif isinstance(value, Struct):
        raw = _encode_struct(value, buffers)
    elif isinstance(value, bytes | bytearray):
        raw = bytes(value)
    elif isinstance(value, np.generic):
        raw = value.tobytes()
    elif isinstance(value, float):
        if parameter.size not in (4, 8):
            raise LaunchError(f"{where} takes no Python float; give NumPy scalars or bytes")
        raw = np.dtype(f"f{parameter.size}").type(value).tobytes()
    elif isinstance(value, int):
        if not -(1 << (8 * parameter.size - 1)) <= value < 1 << 8 * parameter.size:
            raise LaunchError(f"{where} cannot hold {value}")
        raw = (value % (1 << 8 * parameter.size)).to_bytes(parameter.size, "little")
    else:
        raw = _address(value, buffers).to_bytes(8, "little")
    if len(raw) != parameter.size:
        raise LaunchError(f"{where} was given {len(raw)} bytes")
    return raw


def _encode_struct(value: Struct, buffers: dict[int, Buffer]) -> bytes:
    raw = bytearray(value.data)
    for offset, part in value.at.items():
        if isinstance(part, Encodable):
            piece = part.encode(_address(part.buffer, buffers))
        else:
            source, inside = part if isinstance(part, tuple) else (part, 0)
            piece = (_address(source, buffers) + inside).to_bytes(8, "little")
        if offset < 0 or offset + len(piece) > len(raw):
            raise LaunchError(f"{len(piece)} bytes at offset {offset} of a {len(raw)}-byte struct")
        raw[offset : offset + len(piece)] = piece
    return bytes(raw)


def _address(value: Any, buffers: dict[int, Buffer]) -> int:
    array = _array(value)
    if array is None:
        raise LaunchError("a tensor map needs an array or tensor as its buffer")
    return buffers[_key(array)].allocation.start
