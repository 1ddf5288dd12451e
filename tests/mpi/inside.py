"""As the contract's ``cases.py``, what concerns the inside: ``inside.py FILE FOLDER``."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import numpy as np
from mpi4py import MPI

sys.path.append(str(Path(__file__).parents[1] / "contract" / "mpi"))

from cases import FOLDER, N, comm, error_of, rank, size, spans, spd, write

import hetero.mpi
from hetero.mpi.ranks import ranks_of
from hetero.profile import inventory

# What hetero makes arrays and works on them with, outside of its compiled loops.
ALLOCATING = ("empty", "zeros", "array", "ascontiguousarray", "copy", "arange", "subtract")
ALLOCATING += ("multiply", "take", "dot", "copyto", "ldexp", "abs")


def short_of_memory():
    """What all ranks raise where a use of NumPy by hetero fails on the last one, each in turn."""
    A, b = spd(N)
    (lo, hi), (begin, end) = spans(N), spans(23)
    path, f = FOLDER / f"short-{size}.npz", np.ones((23, 17))
    some = {"maxiter": 2, "callback": lambda x: None}
    saving = {"M": "jacobi", "checkpoint": path, "every": 0.0}
    solve, grid = hetero.mpi.solve_cg, hetero.mpi.solve_poisson
    calls = {
        "sparse": lambda: solve(A[lo:hi], b[lo:hi], b[lo:hi], **some, **saving),
        "dense": lambda: solve(A.toarray()[lo:hi], 2.0**700 * b[lo:hi], b[lo:hi], **some),
        "single": lambda: solve(A[lo:hi].astype("f4"), b[lo:hi].astype("f4"), rtol=8e-8),
        "grid": lambda: grid(f[begin:end], boundary=1.0, maxiter=1),
        "cycles": lambda: grid(f[begin:end], M="multigrid", maxiter=1),
    }
    if any(name.startswith("opencl") for name in hetero.machine()["devices"]):
        calls["device"] = lambda: solve(A[lo:hi], b[lo:hi], device="opencl", M="jacobi", maxiter=1)
    found = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, call in calls.items():
            call()  # loads what it needs
            _, number = failing(call, 0)
            raised = [failing(call, k + 1)[0] for k in range(comm.bcast(number, size - 1))]
            found[name] = [
                len(raised),
                sorted({str(error) for error in raised}),
                failing(call, 0)[0],
            ]
    return found


class Failing:
    """A function of NumPy's that fails where hetero uses one of these for the ``at``-th time."""

    uses, at = 0, 0

    def __init__(self, name):
        self.name, self.function = name, getattr(np, name)

    def __call__(self, *arguments, **options):
        user = sys._getframe(1).f_globals["__name__"]
        if user.startswith("hetero.") and user != "hetero.mpi.ranks":
            Failing.uses += 1
            if Failing.uses == Failing.at:
                raise MemoryError("no room")
        return self.function(*arguments, **options)

    def __getattr__(self, name):
        return getattr(self.function, name)


def failing(call, at):
    """What a call raises where one use of NumPy fails on the last rank; the number of uses."""
    Failing.uses, Failing.at = 0, at
    replaced = [Failing(name) for name in ALLOCATING] if rank == size - 1 else []
    try:
        for one in replaced:
            setattr(np, one.name, one)
        return error_of(call), Failing.uses
    finally:
        for one in replaced:
            setattr(np, one.name, one.function)


def freed():
    other = comm.Dup()
    held = ranks_of(other).comm
    other.Free()
    return held == MPI.COMM_NULL


def planned():
    """A use block that names another operation's method, where a solve is planned."""
    alone, inventory.is_host_alone = inventory.is_host_alone, lambda device: False
    with hetero.use(method="blas"):
        how = hetero.mpi.solve_poisson(np.ones((3, 4)), return_info=True)[1]
    inventory.is_host_alone = alone
    return how["converged"]


if __name__ == "__main__":
    write([short_of_memory, freed, planned])
