"""What the ranks of one `mpirun` compute, written as JSON by rank 0: ``cases.py FILE FOLDER``.

Every case is a function of the communicator; what it returns on each rank goes into the file.
"""

from __future__ import annotations

import hashlib
import json
import re
import resource
import sys
import time
import warnings
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import scipy.sparse as sp
from mpi4py import MPI

import hetero.mpi
import hetero.ops
from hetero.calling import planner
from hetero.errors import DeviceError
from hetero.mpi import choosing, solving
from hetero.mpi.ranks import ranks_of
from hetero.ops.kmeans import rows_in_parts
from hetero.ops.krylov import cg_device
from hetero.profile import inventory

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
N = 203  # 4 does not divide it
FOLDER = Path(sys.argv[2])
SINGLE = {"rtol": 8e-8}  # met by the residual in float32 and not by that in float64


def spd(n, dtype=float, far=0.03, seed=3):
    """A sparse symmetric positive definite matrix with entries anywhere, and a right-hand side."""
    rng = np.random.default_rng(seed)
    R = sp.random_array((n, n), density=far, rng=rng, format="csr")
    A = sp.csr_array(R + R.T + sp.diags_array(8 + rng.random(n)))
    return A.astype(dtype), rng.standard_normal(n).astype(dtype)


def spans(n):
    """Uneven parts; where there are four ranks, the third has none."""
    cuts = [0, n // 5, n // 2, n // 2, n] if size == 4 else [*range(0, n, -(-n // size)), n]
    return cuts[rank], cuts[rank + 1]


def whole(x):
    return np.concatenate(comm.allgather(np.ascontiguousarray(x)))


def digest(x):
    return hashlib.sha256(np.ascontiguousarray(x).tobytes()).hexdigest()


def solved(A, b, x0=None, **options):
    """Solve on all ranks; the whole x, the code and what was told."""
    lo, hi = spans(len(b))
    start = None if x0 is None else x0[lo:hi]
    x, info, how = hetero.mpi.solve_cg(A[lo:hi], b[lo:hi], start, return_info=True, **options)
    return whole(x), info, how


def error_of(call, *arguments, **options):
    """(class, text) of what a call raises."""
    try:
        call(*arguments, **options)
    except Exception as error:
        return type(error).__name__, str(error)
    return None


def sparse():
    """Both methods, both dtypes, with and without Jacobi: against a dense solve."""
    found = {}
    for dtype in ("float64", "float32"):
        A, b = spd(N, dtype)
        expected = np.linalg.solve(A.toarray().astype(float), b.astype(float))
        for method in ("cg", "pipelined"):
            for M in (None, "jacobi"):
                rtol = 1e-12 if dtype == "float64" else 1e-6
                x, info, how = solved(A, b, rtol=rtol, method=method, M=M)
                off = np.linalg.norm(x - expected) / np.linalg.norm(expected)
                rest = np.linalg.norm(b - A.astype(float) @ x) / np.linalg.norm(b)
                key = f"{dtype} {method} {M}"
                found[key] = [
                    off,
                    rest / rtol,
                    info,
                    how["iterations"],
                    how["method"],
                    x.dtype.name,
                ]
    return found


def same_iterations():
    """x after a fixed number of iterations, to compare with other numbers of ranks."""
    A, b = spd(N)
    x, info, how = solved(A, b, rtol=1e-30, maxiter=12, method="cg")
    y, *_ = solved(A, b, rtol=1e-30, maxiter=12, method="cg")
    z, *_ = solved(A, b, rtol=1e-30, maxiter=12, method="pipelined")
    w, *_ = solved(A, b, rtol=1e-30, maxiter=12, method="pipelined")
    alike = [digest(x) == digest(y), digest(z) == digest(w)]
    return {
        "cg": x.tolist(),
        "pipelined": z.tolist(),
        "repeats": alike,
        "residual": how["residual"],
        "info": info,
    }


def jacobi():
    """Iterations for a badly scaled matrix: with the diagonal, and without."""
    A, b = spd(N)
    scale = sp.diags_array(10.0 ** np.random.default_rng(6).uniform(-1.5, 1.5, N))
    A = sp.csr_array(scale @ A @ scale)
    return [solved(A, b, rtol=1e-8, M=M, method="cg")[2]["iterations"] for M in ("jacobi", None)]


def dense():
    """A dense matrix from a start, a vector as M, a column as b."""
    A, b = spd(N)
    lo, hi = spans(N)
    M = 1.0 / A.diagonal()[lo:hi]
    x0 = np.linspace(-1.0, 1.0, N)[lo:hi]
    x, info = hetero.mpi.solve_cg(A.toarray()[lo:hi], b[lo:hi, None], x0, rtol=1e-12, M=M)
    return [float(abs(whole(x) - np.linalg.solve(A.toarray(), b)).max()), info, x.ndim]


def long_pipelined():
    """Many iterations: the recurrences are renewed, and the plain method ends what they cannot."""
    n = 400
    A = sp.csr_array(sp.diags_array([2.0, -1.0, -1.0], offsets=[0, 1, -1], shape=(n, n)))
    b = np.random.default_rng(1).standard_normal(n)
    x, info, how = solved(A, b, rtol=1e-10, method="pipelined")
    rest = np.linalg.norm(b - A @ x) / np.linalg.norm(b)
    return [rest, info, how["iterations"]]


def scaled():
    """A right-hand side whose squares overflow on one rank alone."""
    A, b = spd(N)
    b[:5] *= 1e200
    x, info, _ = solved(A, b, rtol=1e-10)
    return [float(np.linalg.norm((b - A @ x) / 1e200) / np.linalg.norm(b / 1e200)), info]


def indefinite():
    A, b = spd(N)
    A = sp.csr_array(A - sp.diags_array(np.where(np.arange(N) == N - 1, 100.0, 0.0)))
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = [solved(A, b, rtol=1e-10, method=method)[1] for method in ("cg", "pipelined")]
        b[-1] = np.inf
        found += [solved(A, b, rtol=1e-10, method=method)[1] for method in ("cg", "pipelined")]
    return found


def overflowing():
    """The first step overflows on rank 0 alone: no rank moves."""
    A = sp.csr_array(sp.diags_array(np.full(N, 1e-30, np.float32)))
    b, x0 = np.full(N, 1e8, np.float32), np.zeros(N, np.float32)
    b[:5], x0[:5] = 6e8, 3e38
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        x, info, _ = solved(A, b, x0, method="cg")
    return [info, x.tolist() == x0.tolist()]


def poisson():
    """Grids in 2-D and 3-D with values on the boundary, against a dense solve."""
    found = {}
    rng = np.random.default_rng(5)
    for shape, spacing in (((13, 9), (0.5, 0.25)), ((7, 4, 5), 0.5), ((3, 6), 1.0)):
        f = rng.standard_normal(shape)
        lo, hi = spans(shape[0])
        first, last = rng.standard_normal((2, *shape[1:]))
        side = rng.standard_normal((shape[0], *shape[2:]))
        rest = [(0.0, 0.0)] * (len(shape) - 2)
        A = hetero.Poisson(shape, spacing)
        b = f.copy()
        h = A.spacing
        b[0] += first / h[0] ** 2
        b[-1] += last / h[0] ** 2
        b[:, 0] += side / h[1] ** 2
        b[:, -1] += 2.5 / h[1] ** 2
        expected = np.linalg.solve(A.tocsr().toarray(), b.reshape(-1)).reshape(shape)
        given = {"boundary": [(first, last), (side[lo:hi], 2.5), *rest], "spacing": spacing}
        for options in ({}, {"method": "pipelined"}, {"M": "multigrid", "method": "cg"}):
            u, how = hetero.mpi.solve_poisson(
                f[lo:hi], rtol=1e-12, return_info=True, **given, **options
            )
            off = abs(whole(u) - expected).max() / abs(expected).max()
            found[f"{shape} {options}"] = [off, how["converged"], u.shape == f[lo:hi].shape]
    small = hetero.mpi.solve_poisson(f[lo:hi].astype(np.float32))
    found["dtype"] = small.dtype.name
    return found


def extreme_grids():
    """What is left after a few iterations, of f whose squares overflow or vanish, and a plain f."""
    f, (lo, hi) = np.random.default_rng(6).standard_normal((13, 9)), spans(13)
    left = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for scale in (2.0**700, 2.0**-700, 1.0):
            options = {"maxiter": 3, "method": "cg", "return_info": True}
            left.append(hetero.mpi.solve_poisson(scale * f[lo:hi], **options)[1])
    return [how["relative_residual"] for how in left]


def coarse_grid():
    """Iterations with multigrid as the preconditioner, of both methods, and what they leave."""
    found = []
    for shape, method in (((64, 48), "cg"), ((50, 12, 15), "pipelined")):
        f = np.random.default_rng(7).standard_normal(shape)
        lo, hi = spans(shape[0])
        options = {"M": "multigrid", "rtol": 1e-8, "return_info": True}
        u, how = hetero.mpi.solve_poisson(f[lo:hi], method=method, **options)
        rest = f.reshape(-1) - hetero.Poisson(shape) @ whole(u).reshape(-1)
        found.append([how["iterations"], np.linalg.norm(rest) / np.linalg.norm(f)])
    return found


def _no_plan(*operands, **options):
    """A plan that the last rank cannot make."""
    if rank == size - 1:
        raise ValueError("nothing is here")
    return SimpleNamespace(chosen=SimpleNamespace(device="cpu"))


def disagreeing():
    """What every rank raises where one is unlike the others."""
    A, b = spd(N)
    lo, hi = spans(N)
    odd = rank == size - 1
    solve = hetero.mpi.solve_cg
    wider = sp.csr_array((A[lo:hi].data, A[lo:hi].indices, A[lo:hi].indptr), (hi - lo, N + odd))
    found = {
        "rtol": error_of(solve, A[lo:hi], b[lo:hi], rtol=1e-6 if odd else 1e-5),
        "atol": error_of(solve, A[lo:hi], b[lo:hi], atol=float(odd)),
        "maxiter": error_of(solve, A[lo:hi], b[lo:hi], maxiter=5 + odd),
        "method": error_of(solve, A[lo:hi], b[lo:hi], method="pipelined" if odd else "cg"),
        "dtype": error_of(solve, A[lo:hi].astype("f4"), b[lo:hi].astype("f8" if odd else "f4")),
        "columns": error_of(solve, wider, b[lo:hi]),
        "spacing": error_of(hetero.mpi.solve_poisson, np.ones((3, 4)), spacing=1.0 + odd),
        "rows": error_of(solve, A[lo : hi - odd], b[lo : hi - odd]),
        "b_rows": error_of(solve, A[lo:hi], b[lo : hi - odd]),
        "complex": error_of(solve, A[lo:hi] * (1j if odd else 1.0), b[lo:hi]),
        "n": error_of(hetero.mpi.rows, N + odd),
        "whole n": error_of(hetero.mpi.rows, "9" if odd else 9),
        "checkpoint": error_of(solve, A[lo:hi], b[lo:hi], checkpoint=b"a" if odd else "b"),
    }
    grid = np.ones((3, 4))
    found["fine spacing"] = error_of(hetero.mpi.solve_poisson, grid, spacing=1e-200 if odd else 1.0)
    outer = hetero.ops.plan, planner.is_host_alone
    hetero.ops.plan, planner.is_host_alone = _no_plan, lambda device: False
    found["no plan"] = error_of(solve, A[lo:hi], b[lo:hi])
    hetero.ops.plan, planner.is_host_alone = outer
    X, kmeans, matmul = A.toarray()[lo:hi], hetero.mpi.kmeans, hetero.mpi.matmul
    found |= {
        "init": error_of(kmeans, X, 3, init=np.ones((3, N)) + odd),
        "k": error_of(kmeans, X, 3 + odd),
        "tol": error_of(kmeans, X, 3, tol=0.5 * odd),
        "label_tol": error_of(kmeans, X, 3, label_tol=0.5 * odd),
        "columns (X)": error_of(kmeans, X[:, odd:], 3),
        "NaN": error_of(kmeans, np.where(odd, np.nan, X), 3),
        "placed": error_of(kmeans, X, 3, device="cpu", method="library" if odd else None),
        "placed matmul": error_of(matmul, X, X, device="cpu", method="tiled" if odd else None),
        "weights": error_of(kmeans, X, 3, sample_weight=np.ones(hi - lo + odd)),
        "no weight": error_of(kmeans, X, 3, sample_weight=0),
        "clusters": error_of(kmeans, X, N + 1),
        "columns (B)": error_of(matmul, X, np.ones((hi - lo, 2 + odd))),
        "dtypes": error_of(matmul, X, X.astype("f4" if odd else "f8")),
        "rows (B)": error_of(matmul, X, X[: hi - lo - odd]),
        "dimensions": error_of(matmul, X, np.ones((hi - lo, 1, 1) if odd else hi - lo)),
        "device": error_of(hetero.mpi.matvec, X, X[:, 0], device="cuda:9" if odd else "cpu"),
    }
    version, hetero.__version__ = hetero.__version__, f"0.{odd:d}"
    found["version of hetero"] = error_of(solve, A[lo:hi], b[lo:hi])
    hetero.__version__ = version
    return found


def raising_callback():
    """The callback of one rank raises in the third iteration: all raise, the next call works."""
    A, b = spd(N)
    lo, hi = spans(N)
    calls = []

    def callback(x):
        calls.append(x.size)
        if rank == size - 1 and len(calls) == 3:
            raise KeyError("lost")

    found = []
    for method in choosing.METHODS:
        calls.clear()
        options = {"callback": callback, "method": method}
        found.append(error_of(hetero.mpi.solve_cg, A[lo:hi], b[lo:hi], **options))
        found.append([len(calls), set(calls) == {hi - lo}])
    return [*found, solved(A, b)[1]]


def callback_of_one_rank():
    """The last rank alone has a callback, which raises: all raise."""
    A, b = spd(N)
    lo, hi = spans(N)
    only = [].pop if rank == size - 1 else None
    each = ({"callback": only and (lambda _: only()), "method": m} for m in choosing.METHODS)
    return [error_of(hetero.mpi.solve_cg, A[lo:hi], b[lo:hi], **options) for options in each]


def checkpoints():
    """Saved by these ranks, continued, refused for another matrix, and where it is damaged."""
    A, b = spd(N)
    path = FOLDER / f"saved-{size}.npz"
    first = solved(A, b, rtol=1e-12, maxiter=9, method="cg", checkpoint=path, every=0.0)
    then = solved(A, b, rtol=1e-12, maxiter=1000, method="cg", checkpoint=path, every=1e9)
    other = A.copy()
    other.data[7] *= 1.5
    lo, hi = spans(N)
    save = {"checkpoint": path}
    wrong = error_of(hetero.mpi.solve_cg, other[lo:hi], b[lo:hi], **save)
    wrong_b = error_of(hetero.mpi.solve_cg, A[lo:hi], b[lo:hi] + 1.0, **save)
    broken = FOLDER / f"broken-{size}.npz"
    if rank == 0:
        broken.write_bytes(path.read_bytes()[:300])
    comm.Barrier()
    damaged = error_of(hetero.mpi.solve_cg, A[lo:hi], b[lo:hi], checkpoint=broken)
    if rank == 0:  # the length and the dtype of x are not those of the system
        np.savez(broken, x=np.zeros(3, "float32"), about=np.load(path)["about"])
    comm.Barrier()
    short = error_of(hetero.mpi.solve_cg, A[lo:hi], b[lo:hi], checkpoint=broken)
    if rank == 0:
        about, x = np.load(path)["about"], np.full(N, np.nan)
        np.savez(broken, x=x, about=about)
    comm.Barrier()
    infinite = error_of(hetero.mpi.solve_cg, A[lo:hi], b[lo:hi], checkpoint=broken)
    nowhere = FOLDER / "none" / "x.npz"
    unwritable = error_of(hetero.mpi.solve_cg, A[lo:hi], b[lo:hi], checkpoint=nowhere)
    rest = np.linalg.norm(b - A @ then[0]) / np.linalg.norm(b)
    left = sorted(p.name for p in FOLDER.iterdir() if "part" in p.name)
    return {
        "first": first[1],
        "continued": [then[2]["continued_from"], then[2]["iterations"], rest, then[1]],
        "refused": [wrong, wrong_b, damaged, short, infinite, unwritable],
        "left": left,
    }


def devices():
    """Ranks on an OpenCL device beside ranks on the CPU: what ranks on the CPU alone give."""
    found = {}
    if not any(name.startswith("opencl") for name in hetero.machine()["devices"]):
        return found
    A, b = spd(N)
    f = np.random.default_rng(8).standard_normal((17, 6, 5))
    lo, hi = spans(17)
    for device in ("opencl", "opencl" if rank % 2 else "cpu"):
        for method in choosing.METHODS:
            for M in (None, "jacobi"):
                options = {"method": method, "M": M, "rtol": 1e-30, "maxiter": 12}
                x, _, how = solved(A, b, **options, device=device)
                off = np.linalg.norm(x - solved(A, b, **options)[0]) / np.linalg.norm(x)
                found[f"{len(found)} {method} {M}"] = [off, how["device"], how["iterations"]]
        for g in (f, f[:, :, 0]):
            options = {"method": "cg", "rtol": 1e-12, "return_info": True, "boundary": 0.5}
            u, how = hetero.mpi.solve_poisson(g[lo:hi], device=device, **options)
            v, _ = hetero.mpi.solve_poisson(g[lo:hi], **options)
            off = np.linalg.norm(whole(u) - whole(v)) / np.linalg.norm(whole(v))
            found[f"{len(found)} poisson {g.shape}"] = [off, how["device"], how["converged"]]
        A4, b4 = spd(N, "float32")
        x, info, how = solved(A4, b4, rtol=1e-6, device=device, x0=b4)
        rest = np.linalg.norm(b4 - A4.astype(float) @ x) / np.linalg.norm(b4)
        found[f"{len(found)} float32"] = [rest, how["device"], info]
    return found


def in_blocks():
    """What `use` blocks name: a device, several of them, another operation's method."""
    if not any(name.startswith("opencl") for name in hetero.machine()["devices"]):
        return None
    A, b = spd(N)
    lo, hi = spans(N)
    found = []
    with hetero.use(device="opencl:0"):
        found.append(solved(A, b)[2]["device"])
    with hetero.use(device="opencl:*"):
        found.append(error_of(hetero.mpi.kmeans, A.toarray()[lo:hi], 3))
    alone, planner.is_host_alone = planner.is_host_alone, lambda device: False  # so it is planned
    with hetero.use(method="cg"):
        found.append(hetero.mpi.solve_poisson(np.ones((3, 4)), return_info=True)[1]["converged"])
    planner.is_host_alone = alone
    return found


def gathered():
    """Systems that rank 0 solves on all devices of a kind: the bits of one process."""
    if not any(name.startswith("opencl") for name in hetero.machine()["devices"]):
        return None
    found, on = {}, {"device": "opencl:*"}
    lo, hi = spans(N)
    for dtype in ("float64", "float32"):
        A, b = spd(N, dtype)
        start, scale = np.linspace(-1.0, 1.0, N), 1.0 / (2.0 + A.diagonal())
        mine = A[lo:hi]
        if rank % 2:  # wider indices than those of the others
            mine.indices, mine.indptr = mine.indices.astype("i8"), mine.indptr.astype("i8")
        for M in (None, "jacobi", scale):
            for x0 in (None, start):
                limits = {"rtol": 1e-30, "maxiter": 12} if dtype == "float64" else SINGLE
                own = {"M": M if M is not scale else scale[lo:hi], **limits, **on}
                part = None if x0 is None or rank % 2 else x0[lo:hi]  # zero for the others
                x, info, how = hetero.mpi.solve_cg(mine, b[lo:hi], part, return_info=True, **own)
                first = None if x0 is None else whole(np.zeros(hi - lo) if part is None else part)
                y, code = hetero.solve_cg(A, b, first, M=M, **limits, **on)
                same = [digest(whole(x)) == digest(y), info == code, x.dtype.name == dtype]
                found[f"{dtype} {len(found)}"] = [*same, *told(how)]
    rng = np.random.default_rng(5)
    for shape, scale in (((17, 9), 1.0), ((13, 4, 5), 1.0), ((13, 9), 2.0**700)):
        lo, hi = spans(shape[0])
        f, side = rng.standard_normal(shape), rng.standard_normal((shape[0], *shape[2:]))
        rest = [(0.0, 0.0)] * (len(shape) - 2)
        some = {"spacing": 0.25, "return_info": True, **on}
        sides = [[(0.5, -2.0), (part, 1.5), *rest] for part in (side[lo:hi], side)]
        if scale != 1.0:
            sides = [0.0, 0.0]
        u, how = hetero.mpi.solve_poisson(scale * f[lo:hi], boundary=sides[0], **some)
        v, one = hetero.solve_poisson(scale * f, boundary=sides[1], method="cg", **some)
        same = [digest(whole(u)) == digest(v), how["converged"], u.shape == f[lo:hi].shape]
        for name in ("iterations", "residual", "relative_residual"):
            same[1] &= how[name] == one[name]
        found[f"{shape} {scale}"] = [*same, *told(how)]
    return found


def told(how):
    """How a solve was done."""
    return [how[name] for name in ("device", "method", "prices", "ranks", "gathered")]


def _planned(plan, seconds):
    """Plans of a device that takes so long."""

    def planned(*operands, **options):
        found = plan(*operands, **options | {"device": "opencl:0"})
        first = found.candidates[0]._replace(seconds=seconds)
        return replace(found, candidates=(first, *found.candidates[1:]))

    return planned


def by_plan():
    """Who solves where a plan is of a device, by its time and by what else is asked for."""
    if not any(name.startswith("opencl") for name in hetero.machine()["devices"]):
        return None
    A, b = spd(N)
    lo, hi = spans(N)
    other = A[lo:hi], b[lo:hi]
    f, path = np.ones((hi - lo, 3)), FOLDER / f"gathered-{size}.npz"
    first = comm.bcast([hi, int(A.indptr[hi])])
    travels = (16 * (N - first[0]) + 12 * (A.nnz - first[1])) / 5e9  # of vectors, and of the matrix
    outer = hetero.ops.plan, planner.is_host_alone
    planner.is_host_alone = lambda device: False
    planned = partial(_planned, outer[0])

    def gathers(*call, solve=hetero.mpi.solve_cg, **options):
        *_, how = solve(*call, return_info=True, **options)
        return how["gathered"]

    found = {}
    try:
        hetero.ops.plan = planned(travels)
        x, _, how = solved(A, b, rtol=1e-12)
        y, _ = hetero.solve_cg(A, b, rtol=1e-12, device="opencl:*")
        found["as long"] = [digest(x) == digest(y), *told(how)]
        with hetero.use(method="hybrid", results="device"):
            z = solved(A, b, rtol=1e-12)[0]
        found["in a block"] = [digest(z) == digest(x)]
        hetero.ops.plan = planned(0.999 * travels)
        found["too short"] = gathers(*other) or size == 1
        hetero.ops.plan = planned(1.0)
        only = (lambda x: None) if rank == size - 1 else None
        grid = {"solve": hetero.mpi.solve_poisson}
        found["grid"] = gathers(f, **grid)
        found["others"] = [
            gathers(*other, callback=only),
            gathers(*other, checkpoint=path),
            gathers(*other, method="pipelined"),
            gathers(*other, device="opencl"),
            gathers(*other, device="cpu" if rank == size - 1 else None),
            gathers(A.toarray()[lo:hi], b[lo:hi]),
            gathers(f, M="multigrid", **grid),
            gathers(f[:0], **grid),
        ]
        ranks_of(comm).one_node = False
        found["others"].append(gathers(*other))
        ranks_of(comm).one_node = True
        most, solving._MOST = solving._MOST, 3 * N - 1  # unknowns of the grid
        found["others"].append(gathers(f, **grid))
        solving._MOST = most
        seen = inventory.devices
        more = {"cuda:7": {"kind": "cuda", "name": "of this rank", "pci_bus_id": "0:7"}}
        inventory.devices = lambda: seen() | (more if rank == size - 1 else {})
        found["more devices"] = gathers(*other)
        inventory.devices = seen
        hetero.ops.plan = lambda *o, **_: SimpleNamespace(chosen=SimpleNamespace(device="cpu"))
        found["others"].append(gathers(*other))
    finally:
        hetero.ops.plan, planner.is_host_alone = outer
    return found


def refused():
    """All devices of a kind, where something needs the iteration of all ranks."""
    if not any(name.startswith("opencl") for name in hetero.machine()["devices"]):
        return None
    A, b = spd(N)
    lo, hi = spans(N)
    solve, grid, on = hetero.mpi.solve_cg, np.ones((hi - lo, 3)), {"device": "opencl:*"}
    found = [
        error_of(solve, A[lo:hi], b[lo:hi], **on, method="pipelined"),
        error_of(solve, A[lo:hi], b[lo:hi], **on, checkpoint=FOLDER / "none.npz"),
        error_of(solve, A[lo:hi], b[lo:hi], **on, callback=lambda x: None),
        error_of(solve, A[lo:hi], b[lo:hi], device=on["device"] if rank else None),
    ]
    with hetero.use(**on):
        found.append(error_of(solve, A.toarray()[lo:hi], b[lo:hi]))
        found.append(error_of(hetero.mpi.solve_poisson, grid, M="multigrid"))
        found.append(hetero.mpi.solve_poisson(grid[:0], return_info=True)[1]["device"])
    return found


def failing_leader():
    """What all ranks do where rank 0 raises, is slow, and where its device fails."""
    if not any(name.startswith("opencl") for name in hetero.machine()["devices"]):
        return None
    A, b = spd(N)
    lo, hi = spans(N)
    call, on = (A[lo:hi], b[lo:hi]), {"device": "opencl:*"}
    with np.errstate(all="raise"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        infinite = hetero.mpi.solve_cg(A[lo:hi], np.full(hi - lo, np.inf), **on)[1]
    one, device = solving.execute, cg_device.solve

    def raising(*arguments):
        raise MemoryError("no room")

    def slow(*arguments):
        time.sleep(0.5)
        return one(*arguments)

    def broken(devices, *arguments, **options):
        raise DeviceError("fell off the bus")

    solving.execute = raising
    found = [error_of(hetero.mpi.solve_cg, *call, **on)]
    solving.execute = slow
    comm.Barrier()
    began = resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw  # times that it gave up its core
    hetero.mpi.solve_cg(*call, **on)
    found.append(resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw - began if rank else None)
    solving.execute, cg_device.solve = one, broken
    x, info, how = solved(A, b, rtol=1e-10, **on)
    lo, hi = spans(13)
    grid, some = np.ones((hi - lo, 9)), {"return_info": True, **on}
    _, told_1 = hetero.mpi.solve_poisson(grid, **some)
    _, told_2 = hetero.mpi.solve_poisson(2.0**700 * grid, **some)
    cg_device.solve = device
    rest = np.linalg.norm(b - A @ x) / np.linalg.norm(b)
    left = told_2["relative_residual"] / told_1["relative_residual"]
    return [*found, rest, info, *told(how), told_2["device"], left, infinite]


def clusters():
    """k-means of rows with weights, from given and from drawn centroids: beside one process."""
    rng = np.random.default_rng(7)
    X = rng.normal(size=(N, 4)) + 9 * rng.integers(0, 5, (N, 1))
    weights = np.where(np.arange(N) < N // 5, 0.0, rng.random(N))  # of 4 ranks, the first has none
    far = np.concatenate([X[:2], np.full((3, 4), 1e4) + np.arange(3)[:, None]])
    options = {"sample_weight": weights, "random_state": 0, "method": "products", "device": "cpu"}
    calls = {
        "given": {"init": X[:6].tolist()},
        "unweighted": {"init": X[:6], "sample_weight": None, "tol": 0.0},
        "labels": {"init": X[:6], "max_iter": 0, "sample_weight": 2},
        "empty clusters": {"init": far},
        "k-means++": {"n_init": 2},
        "random": {"init": "random"},
        "float32": {"init": X[:6], "max_iter": 2},
        "few labels": {"init": X[:6], "tol": 0.0, "label_tol": 0.02},
    }
    lo, hi = spans(N)
    found = {}
    for key, some in calls.items():
        some, k = options | some, 5 if key == "empty clusters" else 6
        own = X.astype("f4") if key == "float32" else X
        per_rank = {"sample_weight": weights[lo:hi]} if some["sample_weight"] is weights else {}
        wanted, labels, info = hetero.kmeans(own, k, **some)
        part = own[lo:hi], k
        if rank:
            per_rank["random_state"] = np.random.RandomState(rank)
        centroids, mine, told = hetero.mpi.kmeans(*part, **some | per_rank)
        again = hetero.mpi.kmeans(*part, **some | per_rank)[0]
        found[key] = {
            "labels": [int((mine != labels[lo:hi]).sum()), mine.dtype.name, len(mine) == hi - lo],
            "centroids": [float(abs(centroids - wanted).max()), centroids.dtype.name],
            "repeats": [digest(centroids) == digest(again), digest(centroids)],
            "told": [told[name] == info[name] for name in ("iterations", "converged")],
            "inertia": told["inertia"] / info["inertia"],
        }
    return found


def samples():
    """Initial centroids of a sample; placed by a plan; a device on every second rank; a warning."""
    rng = np.random.default_rng(9)
    X = np.repeat(np.arange(5.0), 400)[rng.permutation(2000), None] * [9, 1, 3, 2]
    lo, hi = spans(len(X))
    taken, seen = rows_in_parts.seeds, []

    def seeds(*arguments):
        seen.append([len(arguments[0]), (arguments[0][:, 1] + 1 == arguments[1]).all().item()])
        return taken(*arguments)

    most, rows_in_parts._SAMPLE, rows_in_parts.seeds = rows_in_parts._SAMPLE, 100, seeds
    weights = X[lo:hi, 1] + 1
    c, labels, info = hetero.mpi.kmeans(X[lo:hi], 5, sample_weight=weights, random_state=3)
    rows_in_parts._SAMPLE, rows_in_parts.seeds = most, taken
    found = [seen, digest(c), len(np.unique(whole(labels))), info["inertia"]]
    opencl = "opencl" if rank % 2 and "opencl:0" in hetero.machine()["devices"] else "cpu"
    *_, info = hetero.mpi.kmeans(X[lo:hi], 5, init=X[:5] + np.arange(5)[:, None], device=opencl)
    found.append(info["device"] == ("opencl:0" if opencl != "cpu" and hi > lo else "cpu"))
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        hetero.mpi.kmeans(X[lo:hi], 6, init=X[[0] * 6] + np.arange(6)[:, None])
    return [*found, [str(w.message)[:36] for w in warned]]


def multiplied():
    """Products of rows that are divided in two ways, whole numbers: exactly NumPy's."""
    rng = np.random.default_rng(4)
    found = []
    for dtype in ("float64", "float32", "int64", "complex128"):
        A, B, x = (rng.integers(-9, 9, n).astype(dtype) for n in ((N, 37), (37, 5), (37,)))
        (lo, hi), (first, last) = spans(N), spans(37)
        C = hetero.mpi.matmul(A[lo:hi], B[first:last])
        y = hetero.mpi.matvec(A[lo:hi], x[first:last], device="cpu")
        found.append([((A @ B)[lo:hi] == C).all().item(), ((A @ x)[lo:hi] == y).all().item()])
        found.append([C.dtype.name == y.dtype.name == dtype, C.shape == (hi - lo, 5)])
    none = hetero.mpi.matmul(A[lo:hi, :0], B[:0])
    return [*found, [none.shape == (hi - lo, 5), not none.any()]]


def watched_device():
    """A callback on a device sees x at the scale of b, whose squares overflow."""
    (A, b), seen = spd(N), []
    if not any(name.startswith("opencl") for name in hetero.machine()["devices"]):
        return None
    options = {"callback": lambda x: seen.append(x.copy()), "device": "opencl", "method": "cg"}
    x, info, _ = solved(A, 2.0**700 * b, rtol=1e-10, **options)
    return [float(abs(whole(seen[-1]) / x - 1.0).max()), info]


def rows():
    """Who takes what."""
    comm.Barrier()
    return [hetero.mpi.rows(10, equal=True), hetero.mpi.rows(1000), hetero.mpi.rows(0)]


def freed():
    other = comm.Dup()
    held = ranks_of(other).comm
    other.Free()
    return held == MPI.COMM_NULL


def priced():
    """What is chosen without a method is the cheaper one by the prices told."""
    A, b = spd(N)
    _, _, how = solved(A, b)
    return [how["method"], how["prices"], how["ranks"]]


def example():
    """The script in docs/several.md: its last line is true."""
    text = (Path(__file__).parents[2] / "docs" / "several.md").read_text("utf-8")
    spoken = []
    (code,) = re.findall(r"```python\n(.*?)```", text, re.S)
    exec(code, {"print": lambda *values: spoken.extend(map(str, values))})
    return spoken


CASES = [
    example,
    sparse,
    same_iterations,
    jacobi,
    dense,
    long_pipelined,
    scaled,
    indefinite,
    overflowing,
    poisson,
    extreme_grids,
    coarse_grid,
    devices,
    in_blocks,
    watched_device,
    gathered,
    by_plan,
    refused,
    disagreeing,
    raising_callback,
    callback_of_one_rank,
    checkpoints,
    clusters,
    samples,
    multiplied,
    rows,
    freed,
    priced,
    failing_leader,
]

if __name__ == "__main__":
    found = {}
    for case in CASES:
        began = time.perf_counter()
        found[case.__name__] = comm.gather(case())
        if rank == 0 and len(sys.argv) > 3:
            print(case.__name__, round(time.perf_counter() - began, 2), flush=True)
    if rank == 0:
        Path(sys.argv[1]).write_text(json.dumps(found), "utf-8")
