"""Where the CPU's compiled loops are kept from one process to the next.

Kernels know nothing of folders: who uses them says where.
"""

from __future__ import annotations

from typing import Any

# Has ``read(kind, name, root)`` and ``write(kind, name, content, root)``; None: nothing is kept.
store: Any = None
