"""Which BLAS this process has, whose copy each is, and who may be in it."""

from __future__ import annotations

import functools
import os
import sys
import threading
from typing import Any

__all__ = ["libraries", "others", "owner"]

OWN = "hetero-"  # how the names of our threads begin; they never call BLAS


def libraries() -> list[dict[str, Any]]:
    """Every BLAS of this process, as threadpoolctl describes it."""
    import threadpoolctl

    return [x for x in threadpoolctl.threadpool_info() if x["user_api"] == "blas"]


@functools.cache
def owner(path: str) -> str:
    """Whose copy a library is: "numpy", "scipy", or its file's name."""
    folder, name = os.path.split(path)
    package, dot, _ = os.path.basename(folder).partition(".libs")
    return package if dot else name


def others() -> list[str]:
    """Other threads that run Python, by name; our own that never call BLAS are none."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    running = (set(sys._current_frames()) | set(names)) - {threading.get_ident()}
    beside = [names.get(ident) or "without a name" for ident in running]
    return [name for name in beside if not name.startswith(OWN)]
