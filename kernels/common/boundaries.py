"""What lies beyond an image's edges: names, and the codes that kernels of all kinds take."""

from __future__ import annotations

BOUNDARIES = ("fill", "wrap", "symm")  # a constant; periodic; mirrored, with the edge repeated
FILL, WRAP, SYMM = range(3)
