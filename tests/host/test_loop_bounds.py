"""No loop of the CPU reads or writes beyond its arrays: an index beyond an end is an error here."""

from __future__ import annotations

import os
from pathlib import Path

import processes

SHAPES = "(40, 40), (33, 30), (1, 50), (50, 2), (6, 9, 11), (9, 1, 8), (20, 21, 18)"
PROGRAM = f"""
import warnings
import numpy as np
import hetero
from hetero.ops.kmeans import compiled_cpu
warnings.simplefilter("ignore")
for shape in ({SHAPES}):
    A, b = hetero.Poisson(shape), np.ones(np.prod(shape))
    for matrix in (A, A.tocsr()):
        for M in (None, "jacobi"):
            hetero.solve_cg(matrix, b, M=M, method="numba", device="cpu", maxiter=5)
    hetero.solve_poisson(np.ones(shape), method="jacobi", device="cpu", maxiter=9)
    hetero.solve_poisson(np.ones(shape), method="multigrid", device="cpu")
compiled_cpu.compile_clusters(np.dtype("float64"))
X = np.random.default_rng(0).random((777, 5))
for k in (1, 7, 65):
    for least in (1 << 20, 0):
        compiled_cpu._LEAST = compiled_cpu._COSTLY = least
        hetero.kmeans(X, k, n_init=1, max_iter=4, method="lloyd", device="cpu", random_state=0)
"""


def test_no_loop_leaves_its_arrays():
    cache = Path(os.environ["NUMBA_CACHE_DIR"]) / "in-bounds"  # Numba's key does not tell them
    environment = {"NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": str(cache)}
    processes.python("-c", PROGRAM, **environment)
