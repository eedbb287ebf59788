"""humming's backend for NVIDIA Hopper: a plugin of humming-core."""

from __future__ import annotations

from collections.abc import Sequence

from humming.backend import Backend
from humming.plugins import hookimpl


@hookimpl
def humming_register_backends() -> Sequence[type[Backend]]:
    """The backend of this package."""
    from humming_sm90.backend import Sm90Backend

    return [Sm90Backend]
