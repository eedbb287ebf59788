"""Which backend runs a layer, on which device, with which activations: decided, with reasons."""

from humming.selection.activation import WIDER, resolve_activation
from humming.selection.choice import Verdict, select_backend, verdicts
from humming.selection.device import Device, device_names, find_device, find_profile

__all__ = [
    "WIDER",
    "Device",
    "Verdict",
    "device_names",
    "find_device",
    "find_profile",
    "resolve_activation",
    "select_backend",
    "verdicts",
]
