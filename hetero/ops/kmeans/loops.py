"""The compiled loops of k-means on the CPU."""

from __future__ import annotations

from hetero.host.compiled import loops

_EXAMPLES = "hetero.ops.kmeans.loop_examples"
CLUSTERS = loops.register(loops.Family("clusters", 6.0, f"{_EXAMPLES}:clusters"))
BOUNDS = loops.register(loops.Family("bounds", 5.0, f"{_EXAMPLES}:bounds", served=True))
