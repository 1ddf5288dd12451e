"""The CPU's loops compiled so that an index beyond an array's end is an error."""

from __future__ import annotations

import os
from pathlib import Path

import processes


def check(program: str) -> None:
    """Run a program that calls loops; ``np`` and ``hetero`` are there, and warnings are none."""
    cache = Path(os.environ["NUMBA_CACHE_DIR"]) / "in-bounds"  # Numba's key does not tell them
    start = "import warnings\nimport numpy as np\nimport hetero\nwarnings.simplefilter('ignore')\n"
    environment = {"NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": str(cache)}
    processes.python("-c", start + program, **environment)
