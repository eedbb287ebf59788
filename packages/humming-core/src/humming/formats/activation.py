"""ActivationScheme: the numbers that activations are turned into before the product."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from humming.errors import ConfigError
from humming.formats.number import NumberFormat
from humming.formats.scheme import Granularity
from humming.formats.table import SCALE_FORMATS, number_format

__all__ = ["ACTIVATION_ALIASES", "LARGEST_HADAMARD", "ActivationScheme"]

#: The largest block of a Hadamard transform.
LARGEST_HADAMARD = 512
_GRANULARITIES = "tensor, token or gG with a positive G"


@dataclass(frozen=True, kw_only=True)
class ActivationScheme:
    """How activations [M, K] are quantized; 16- and 32-bit formats are left as they are.

    Text: ``FORMAT`` alone for f16, bf16 and f32, else ``FORMAT-GRANULARITY-SCALE[-SECOND]``
    with ``-static`` after it when the outermost scale comes from the checkpoint. GRANULARITY is
    ``tensor``, ``token`` or ``gG``; SECOND, the scale over the group scales, is ``tensor`` or
    ``token``. ``e2m1-g16-e4m3fn-tensor-static`` is NVFP4: group scales computed per call under
    one stored factor. ``-hB`` at the end is a Hadamard transform before all of it: of every B
    neighbours along K, for weights whose rows are transformed alike
    (``humming.quantize(.., hadamard=B)``).

    Attributes:
        format: of the codes.
        granularity: "" (not quantized), "tensor", "token" or "gG" along K.
        scale: format of the scales; None if not quantized.
        second: "" or the granularity of the second-level f32 scale.
        static: whether the outermost tensor scale is stored with the weight.
        hadamard: block of :func:`humming.activations.hadamard`, which is applied before; 0 for
            none.
    """

    format: NumberFormat
    granularity: str = ""
    scale: NumberFormat | None = None
    second: str = ""
    static: bool = False
    hadamard: int = 0

    def __post_init__(self) -> None:
        block = self.hadamard
        if block and (not 2 <= block <= LARGEST_HADAMARD or block & (block - 1)):
            raise ConfigError("hadamard", block, f"a power of two from 2 to {LARGEST_HADAMARD}")
        if not self.granularity:
            if self.format.bits < 16 or self.scale or self.second or self.static or block:
                raise ConfigError("activation", str(self), "a granularity and a scale format")
            return
        if not 2 <= self.format.bits <= 8 or not self.format.signed:
            raise ConfigError("format", self.format.name, "a signed format of 2 to 8 bits")
        if self.granularity not in ("tensor", "token"):
            if not re.fullmatch("g[1-9][0-9]{0,9}", self.granularity):
                raise ConfigError("granularity", self.granularity, _GRANULARITIES)
            Granularity.parse(self.granularity)  # which also limits the size
        if self.scale is None or self.scale.name not in SCALE_FORMATS:
            raise ConfigError("scale", self.scale, f"one of {', '.join(SCALE_FORMATS)}")
        if self.second and (self.second not in ("tensor", "token") or not self.group_size):
            raise ConfigError("second", self.second, "tensor or token, over groups")
        if self.static and (self.second or self.granularity) != "tensor":
            raise ConfigError("static", True, "a stored scale per tensor only")

    @classmethod
    def parse(cls, text: str | ActivationScheme | NumberFormat) -> ActivationScheme:
        """Inverse of ``str()``; also an alias, or a bare format that gets its usual scales.

        A bare ``e4m3fn``, ``s8`` and so on means dynamic f32 scales per token; a bare ``e2m1``
        or ``e0m3`` means groups of 16 with e4m3fn scales under a dynamic token scale.

        Raises:
            ConfigError: the text is no activation scheme.
        """
        if isinstance(text, ActivationScheme):
            return text
        spelled = str(text).strip().lower()
        rest, _, last = spelled.rpartition("-")
        if re.fullmatch("h[1-9][0-9]{0,3}", last):
            return replace(cls.parse(rest), hadamard=int(last[1:]))
        parts = ACTIVATION_ALIASES.get(spelled, spelled).split("-")
        static = parts[-1] == "static"
        if static:
            parts.pop()
        fmt = number_format(parts[0] if parts else spelled)
        if len(parts) == 1 and fmt.bits >= 16:
            return cls(format=fmt, static=static)
        if len(parts) == 1:
            usual = "g16-e4m3fn-token" if fmt.name in ("e2m1", "e0m3") else "token-f32"
            parts = [fmt.name, *usual.split("-")]
        if len(parts) not in (3, 4):
            allowed = "FORMAT[-GRANULARITY-SCALE[-SECOND]][-static][-hB]"
            raise ConfigError("activation", spelled, allowed)
        second = parts[3] if len(parts) == 4 else ""
        scale = number_format(parts[2])
        return cls(format=fmt, granularity=parts[1], scale=scale, second=second, static=static)

    def __str__(self) -> str:
        scale = self.scale.name if self.scale else ""
        static, transform = "static" * self.static, f"h{self.hadamard}" * bool(self.hadamard)
        parts = (self.format.name, self.granularity, scale, self.second, static, transform)
        return "-".join(part for part in parts if part)

    @property
    def is_quantized(self) -> bool:
        """Whether activations are rounded to a narrower format."""
        return bool(self.granularity)

    @property
    def group_size(self) -> int:
        """Inputs under one scale, 0 unless the granularity is a group."""
        return int(self.granularity[1:]) if self.granularity.startswith("g") else 0


#: Well-known names, as engines and checkpoints use them.
ACTIVATION_ALIASES: dict[str, str] = {
    "fp8": "e4m3fn-token-f32",
    "fp8-static": "e4m3fn-tensor-f32-static",
    "fp8-block": "e4m3fn-g128-f32",
    "int8": "s8-token-f32",
    "int4": "s4-token-f32",
    "mxfp4": "e2m1-g32-e8m0",
    "mxfp6-e2m3": "e2m3-g32-e8m0",
    "mxfp6-e3m2": "e3m2-g32-e8m0",
    "mxfp8": "e4m3fn-g32-e8m0",
    "nvfp4": "e2m1-g16-e4m3fn-tensor-static",
}
