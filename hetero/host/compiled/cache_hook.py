"""The cache of the CPU's compiled loops: set by whoever knows of folders.

Kernels know nothing of folders. Who uses them sets a store here, which `numba_cache` asks.
"""

from __future__ import annotations

from typing import Any

# Has ``read(kind, name, root)`` and ``write(kind, name, content, root)``; None: nothing is kept.
store: Any = None

# Names under which loops were read or written since the process began.
used: set[str] = set()
