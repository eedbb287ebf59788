"""humming's two backends for NVIDIA Blackwell: a plugin of humming-core."""

from __future__ import annotations

from collections.abc import Sequence

from humming.backend import Backend
from humming.plugins import hookimpl


@hookimpl
def humming_register_backends() -> Sequence[type[Backend]]:
    """tcgen05 with tensor memory, and block-scaled mma."""
    from humming_sm100.backend import Sm100Backend, Sm120Backend

    return [Sm100Backend, Sm120Backend]
