"""The compiled loops of conjugate gradients on the CPU, by what they take."""

from __future__ import annotations

from hetero.host.compiled import loops

_EXAMPLES = "hetero.ops.krylov.cg_examples:"

ROWS = loops.register(loops.Family("rows", 4.5, _EXAMPLES + "rows"))
STENCILS = loops.register(loops.Family("stencils", 4.5, _EXAMPLES + "stencils"))
