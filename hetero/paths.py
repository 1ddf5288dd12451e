"""Where hetero keeps files."""

from __future__ import annotations

import os
from pathlib import Path


def cache_directory() -> Path:
    """The user's cache directory for hetero; who writes there makes it, private (0700)."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "hetero"
