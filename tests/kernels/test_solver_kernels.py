"""Kernels of solvers and fits are compiled together at first."""

from __future__ import annotations

import numpy as np
import pytest

import hetero
from hetero import devices

B = np.random.default_rng(0).standard_normal(90 * 80)
GRID = hetero.Poisson((90, 80))
FIRST = {
    "stencil": lambda: hetero.solve_cg(GRID, B, maxiter=2),
    "rows": lambda: hetero.solve_cg(GRID.tocsr(), B, M="jacobi", maxiter=2),
    "multigrid": lambda: hetero.solve_cg(GRID, B, M="multigrid", maxiter=2),
    "cycles": lambda: hetero.solve_poisson(B.reshape(90, 80), method="multigrid", maxiter=1),
    "k-means": lambda: hetero.kmeans(
        100 + B.reshape(-1, 6), 5, sample_weight=abs(B[:1200]), random_state=0
    ),
}


@pytest.mark.filterwarnings("ignore:solve_:RuntimeWarning")
@pytest.mark.parametrize("name", FIRST)
def test_what_a_first_call_needs_is_compiled_together(opencl, monkeypatch, name):
    """A kernel file takes tenths of a second; one after the other they took 2.4 s."""
    device = devices.get(opencl)
    wanted, built, build = [], set(), device.build

    def recorded(source, kernel, defines):
        built.add((source, defines))
        return build(source, kernel, defines)

    monkeypatch.setattr(device, "compile_ahead", lambda files: wanted.append(set(files)))
    monkeypatch.setattr(device, "build", recorded)
    hetero.clear_memory()  # a hierarchy that is kept is not built again
    with hetero.use(device=opencl):
        FIRST[name]()
    assert set().union(*wanted) == built
    assert len(built) > 1
