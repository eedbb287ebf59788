"""pytest's side of humming-sim: the fixture ``simulate`` and the option ``--sim-seeds``.

It lies outside of the package, and imports it only when a test asks: pytest imports its plugins
before it starts to measure coverage, and what was imported by then is never measured.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from humming_sim.report import Report

__all__ = ["pytest_addoption", "simulate"]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--sim-seeds``."""
    parser.getgroup("humming-sim").addoption(
        "--sim-seeds",
        type=int,
        default=3,
        metavar="N",
        help="random orders in which the fixture `simulate` runs each kernel (default: 3)",
    )


@pytest.fixture
def simulate(request: pytest.FixtureRequest) -> Callable[..., Report]:
    """:func:`humming_sim.launch_seeds` with as many seeds as ``--sim-seeds`` says.

    ``simulate(ptx, entry, grid, block, args, tolerance=0.0, **options)`` runs the kernel once with
    all threads together and then in random orders. It fails on a finding and on results that
    depend on the order; the buffers among `args` then hold the results.
    """
    from humming_sim.seeds import launch_seeds

    return partial(launch_seeds, seeds=request.config.getoption("--sim-seeds"))
