"""``python -m humming_sim``: what ``humming simulate`` does, without humming-core."""

from __future__ import annotations

import sys

from humming_sim.cli.command import main

if __name__ == "__main__":
    sys.exit(main())
