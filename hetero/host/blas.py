"""Which BLAS libraries this process has, their owners, and which threads may be in them."""

from __future__ import annotations

import functools
import os
import sys
import threading
from typing import Any

from hetero.imports import load

__all__ = ["libraries", "others", "owner"]

OWN = "hetero-"  # how the names of our threads begin; they never call BLAS


def libraries() -> list[dict[str, Any]]:
    """Every BLAS of this process, as threadpoolctl describes it."""
    threadpoolctl = load("threadpoolctl")

    return [x for x in threadpoolctl.threadpool_info() if x["user_api"] == "blas"]


@functools.cache
def owner(path: str) -> str:
    """The package that ships a library: "numpy", "scipy", or its file's name."""
    folder, name = os.path.split(path)
    package, dot, _ = os.path.basename(folder).partition(".libs")
    return package if dot else name


def others() -> list[str]:
    """Other threads that run Python, by name; our own that never call BLAS are none."""
    running, here = sys._current_frames(), threading.get_ident()
    running.pop(here, None)
    names = []
    for thread in threading.enumerate():
        ident, name = thread.ident, thread.name
        running.pop(ident, None)  # type: ignore[arg-type]
        if ident != here and not name.startswith(OWN):
            names.append(name or "without a name")
    return names + ["without a name"] * len(running)  # that Python did not start
