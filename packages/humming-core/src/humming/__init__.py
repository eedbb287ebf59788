"""humming: quantized matrix multiplication, from any checkpoint to any tensor core.

Public names are imported on first use, so that ``import humming`` costs milliseconds and the
parts that need no torch (formats, schemes, profiles) run without it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from humming._clash import find_clash as _find_clash
from humming.errors import NameClashError as _NameClashError

_clash = _find_clash()
if _clash is not None:
    raise _NameClashError(_clash)

if TYPE_CHECKING:
    from humming.checkpoints.checkpoint import Checkpoint
    from humming.checkpoints.humming_form import save_checkpoint
    from humming.combining import Routes
    from humming.configs import ComputeConfig, GemmKind, LayerConfig, TuningConfig
    from humming.errors import (
        CaptureError,
        CheckpointError,
        CompileError,
        ConfigError,
        HummingError,
        LaunchError,
        LayoutMismatch,
        NameClashError,
        NoBackendError,
        PluginError,
        ProfileError,
        UnsupportedError,
    )
    from humming.formats.activation import ActivationScheme
    from humming.formats.number import NumberFormat
    from humming.formats.scheme import WeightScheme
    from humming.formats.table import number_format
    from humming.fusing import fuse, stack_experts
    from humming.gating import Gating, GatingFunction, register_gating
    from humming.grouped import grouped_matmul, route
    from humming.inputs import quantize_input
    from humming.layer import QuantLinear, matmul
    from humming.loading import load_checkpoint
    from humming.moe import QuantMoE
    from humming.plugins import hookimpl
    from humming.profiles import DeviceProfile
    from humming.quantizing import quantize
    from humming.selection import resolve_activation, select_backend
    from humming.validity import why_not
    from humming.weight import CanonicalWeight

__version__ = "0.1.0"

_HOMES = {
    "humming.checkpoints.checkpoint": ("Checkpoint",),
    "humming.checkpoints.humming_form": ("save_checkpoint",),
    "humming.combining": ("Routes",),
    "humming.configs": ("ComputeConfig", "GemmKind", "LayerConfig", "TuningConfig"),
    "humming.errors": (
        "CaptureError",
        "CheckpointError",
        "CompileError",
        "ConfigError",
        "HummingError",
        "LaunchError",
        "LayoutMismatch",
        "NameClashError",
        "NoBackendError",
        "PluginError",
        "ProfileError",
        "UnsupportedError",
    ),
    "humming.formats.activation": ("ActivationScheme",),
    "humming.formats.number": ("NumberFormat",),
    "humming.formats.scheme": ("WeightScheme",),
    "humming.formats.table": ("number_format",),
    "humming.fusing": ("fuse", "stack_experts"),
    "humming.gating": ("Gating", "GatingFunction", "register_gating"),
    "humming.layer": ("QuantLinear", "matmul"),
    "humming.loading": ("load_checkpoint",),
    "humming.grouped": ("grouped_matmul", "route"),
    "humming.inputs": ("quantize_input",),
    "humming.moe": ("QuantMoE",),
    "humming.plugins": ("hookimpl",),
    "humming.profiles": ("DeviceProfile",),
    "humming.quantizing": ("quantize",),
    "humming.selection": ("resolve_activation", "select_backend"),
    "humming.validity": ("why_not",),
    "humming.weight": ("CanonicalWeight",),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "ActivationScheme",
    "CanonicalWeight",
    "CaptureError",
    "Checkpoint",
    "CheckpointError",
    "CompileError",
    "ComputeConfig",
    "ConfigError",
    "DeviceProfile",
    "Gating",
    "GatingFunction",
    "GemmKind",
    "HummingError",
    "LaunchError",
    "LayerConfig",
    "LayoutMismatch",
    "NameClashError",
    "NoBackendError",
    "NumberFormat",
    "PluginError",
    "ProfileError",
    "QuantLinear",
    "QuantMoE",
    "Routes",
    "TuningConfig",
    "UnsupportedError",
    "WeightScheme",
    "__version__",
    "fuse",
    "grouped_matmul",
    "hookimpl",
    "load_checkpoint",
    "matmul",
    "number_format",
    "quantize",
    "quantize_input",
    "register_gating",
    "resolve_activation",
    "route",
    "save_checkpoint",
    "select_backend",
    "stack_experts",
    "why_not",
]


def __getattr__(name: str) -> Any:
    """Import a public name from its home on first use (PEP 562)."""
    if name not in _HOME_OF:
        raise AttributeError(f"module 'humming' has no attribute {name!r}")
    value = getattr(import_module(_HOME_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
