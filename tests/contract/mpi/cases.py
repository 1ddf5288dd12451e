"""What the ranks of one `mpirun` compute, written as JSON by rank 0: ``cases.py FILE FOLDER``.

Every case is a function of the communicator; what it returns on each rank goes into the file.
"""

from __future__ import annotations

import json
import os
import re
import sys
import warnings
from pathlib import Path

import numpy as np
import scipy.sparse as sp
from mpi4py import MPI
from scipy.sparse.linalg import LinearOperator

import hetero.mpi

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
N = 203  # 4 does not divide it
FOLDER = Path(sys.argv[2])


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


def solved(A, b, x0=None, **options):
    """Solve on all ranks; the whole x, the code and how it was done."""
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
    """Both dtypes, with and without Jacobi: against a dense solve."""
    found = {}
    for dtype in ("float64", "float32"):
        A, b = spd(N, dtype)
        expected = np.linalg.solve(A.toarray().astype(float), b.astype(float))
        for M in (None, "jacobi"):
            rtol = 1e-12 if dtype == "float64" else 1e-6
            x, info, how = solved(A, b, rtol=rtol, M=M)
            off = np.linalg.norm(x - expected) / np.linalg.norm(expected)
            rest = np.linalg.norm(b - A.astype(float) @ x) / np.linalg.norm(b)
            found[f"{dtype} {M}"] = [off, rest / rtol, info, how["iterations"], x.dtype.name]
    return found


def same_iterations():
    """x after a fixed number of iterations, to compare with other numbers of ranks."""
    A, b = spd(N)
    x, info, how = solved(A, b, rtol=1e-30, maxiter=12)
    y, *_ = solved(A, b, rtol=1e-30, maxiter=12)
    return {"x": x.tolist(), "repeats": x.tobytes() == y.tobytes(), "how": how, "info": info}


def jacobi():
    """Iterations for a badly scaled matrix: with the diagonal, and without."""
    A, b = spd(N)
    scale = sp.diags_array(10.0 ** np.random.default_rng(6).uniform(-1.5, 1.5, N))
    A = sp.csr_array(scale @ A @ scale)
    return [solved(A, b, rtol=1e-8, M=M)[2]["iterations"] for M in ("jacobi", None)]


def dense():
    """A dense matrix from a start, a vector as M, a column as b."""
    A, b = spd(N)
    lo, hi = spans(N)
    M = 1.0 / A.diagonal()[lo:hi]
    x0 = np.linspace(-1.0, 1.0, N)[lo:hi]
    x, info = hetero.mpi.solve_cg(A.toarray()[lo:hi], b[lo:hi, None], x0, rtol=1e-12, M=M)
    return [float(abs(whole(x) - np.linalg.solve(A.toarray(), b)).max()), info, x.ndim]


def scaled():
    """A right-hand side whose squares overflow on one rank alone."""
    A, b = spd(N)
    b[:5] *= 1e200
    x, info, _ = solved(A, b, rtol=1e-10)
    return [float(np.linalg.norm((b - A @ x) / 1e200) / np.linalg.norm(b / 1e200)), info]


def indefinite():
    A, b = spd(N)
    A = sp.csr_array(A - sp.diags_array(np.where(np.arange(N) == N - 1, 100.0, 0.0)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = [solved(A, b, rtol=1e-10)[1]]
        b[-1] = np.inf
        return [*found, solved(A, b, rtol=1e-10)[1]]


def overflowing():
    """The first step overflows on rank 0 alone: no rank moves."""
    A = sp.csr_array(sp.diags_array(np.full(N, 1e-30, np.float32)))
    b, x0 = np.full(N, 1e8, np.float32), np.zeros(N, np.float32)
    b[:5], x0[:5] = 6e8, 3e38
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        x, info, _ = solved(A, b, x0)
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
        for options in ({}, {"M": "multigrid"}):
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
            options = {"maxiter": 3, "return_info": True}
            left.append(hetero.mpi.solve_poisson(scale * f[lo:hi], **options)[1])
    return [how["relative_residual"] for how in left]


def coarse_grid():
    """Iterations with multigrid as the preconditioner, and what they leave."""
    found = []
    for shape in ((64, 48), (50, 12, 15)):
        f = np.random.default_rng(7).standard_normal(shape)
        lo, hi = spans(shape[0])
        options = {"M": "multigrid", "rtol": 1e-8, "return_info": True}
        u, how = hetero.mpi.solve_poisson(f[lo:hi], **options)
        rest = f.reshape(-1) - hetero.Poisson(shape) @ whole(u).reshape(-1)
        found.append([how["iterations"], np.linalg.norm(rest) / np.linalg.norm(f)])
    return found


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
        "checkpoint": error_of(solve, A[lo:hi], b[lo:hi], checkpoint=b"a" if odd else "b"),
    }
    operator = LinearOperator(A.shape, A.__matmul__)
    column = sp.csr_array(b[lo:hi, None])
    given = {"A_rows": operator, "b_rows": column, "x0": column, "M": operator}
    for name, wrong in given.items():
        arguments = {"A_rows": A[lo:hi], "b_rows": b[lo:hi]} | ({name: wrong} if odd else {})
        found[f"{name} of no array"] = error_of(solve, **arguments)
    grid, solve = np.ones((3, 4)), hetero.mpi.solve_poisson
    found["f_slab of no array"] = error_of(solve, sp.csr_array(grid) if odd else grid)
    found["M of a grid"] = error_of(solve, grid, M=operator if odd else None)
    found["several"] = error_of(solve, grid, device="opencl:*" if odd else None)
    found["fine spacing"] = error_of(solve, grid, spacing=1e-200 if odd else 1.0)
    solve = hetero.mpi.solve_cg
    version, hetero.__version__ = hetero.__version__, f"0.{odd:d}"
    found["version of hetero"] = error_of(solve, A[lo:hi], b[lo:hi])
    hetero.__version__ = version
    return found


def raising_callback():
    """The last rank alone has a callback, which raises in the third iteration: all raise."""
    A, b = spd(N)
    lo, hi = spans(N)
    calls = []

    def callback(x):
        calls.append(x.size)
        if len(calls) == 3:
            raise KeyError("lost")

    own = callback if rank == size - 1 else None
    raised = error_of(hetero.mpi.solve_cg, A[lo:hi], b[lo:hi], callback=own)
    return [raised, calls == ([hi - lo] * 3 if own else []), solved(A, b)[1]]


def checkpoints():
    """Saved by these ranks, continued, refused for another matrix, and where it is damaged."""
    A, b = spd(N)
    path = FOLDER / f"saved-{size}.npz"
    if rank == 0:  # by a job that was killed while it wrote
        path.with_name(f"{path.name}.4711.part").write_bytes(b"half")
    comm.Barrier()
    first = solved(A, b, rtol=1e-12, maxiter=9, checkpoint=path, every=0.0)
    then = solved(A, b, rtol=1e-12, maxiter=1000, checkpoint=path, every=1e9)
    other = A.copy()
    other.data[7] *= 1.5
    lo, hi = spans(N)
    broken, pipe, about = FOLDER / f"broken-{size}.npz", FOLDER / f"pipe-{size}", None

    def refused(path, A=A, b=b):
        return error_of(hetero.mpi.solve_cg, A[lo:hi], b[lo:hi], checkpoint=path)

    wrong = [refused(path, other), refused(path, b=b + 1.0)]
    if rank == 0:
        os.mkfifo(pipe)
        broken.write_bytes(path.read_bytes()[:300])
        about = np.load(path)["about"]
    comm.Barrier()
    wrong += [refused(broken), refused(pipe), refused(FOLDER / "none" / "x.npz")]
    for x in (np.zeros(3, "float32"), np.full(N, np.nan)):  # not the system's x, and no numbers
        if rank == 0:
            np.savez(broken, x=x, about=about)
        comm.Barrier()
        wrong.append(refused(broken))
    rest = np.linalg.norm(b - A @ then[0]) / np.linalg.norm(b)
    return {
        "first": first[1],
        "continued": [then[2]["continued_from"], then[2]["iterations"], rest, then[1]],
        "refused": wrong,
        "left": sorted(p.name for p in FOLDER.iterdir() if "part" in p.name),
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
        for M in (None, "jacobi"):
            options = {"M": M, "rtol": 1e-30, "maxiter": 12}
            x, _, how = solved(A, b, **options, device=device)
            off = np.linalg.norm(x - solved(A, b, **options)[0]) / np.linalg.norm(x)
            found[f"{len(found)} {M}"] = [off, how["device"], how["iterations"]]
        for g in (f, f[:, :, 0]):
            options = {"rtol": 1e-12, "return_info": True, "boundary": 0.5}
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
    """What `use` blocks name: a device, several of them."""
    if not any(name.startswith("opencl") for name in hetero.machine()["devices"]):
        return None
    A, b = spd(N)
    lo, hi = spans(N)
    found = []
    with hetero.use(device="opencl:0"):
        found.append(solved(A, b)[2]["device"])
    with hetero.use(device="opencl:*"):
        found.append(error_of(hetero.mpi.solve_cg, A[lo:hi], b[lo:hi]))
    return found


def watched_device():
    """A callback on a device sees x at the scale of b, whose squares overflow."""
    (A, b), seen = spd(N), []
    if not any(name.startswith("opencl") for name in hetero.machine()["devices"]):
        return None
    options = {"callback": lambda x: seen.append(x.copy()), "device": "opencl"}
    x, info, _ = solved(A, 2.0**700 * b, rtol=1e-10, **options)
    return [float(abs(whole(seen[-1]) / x - 1.0).max()), info]


def rows():
    """Who takes what."""
    return [hetero.mpi.rows(n) for n in (10, 1000, 0)]


def example():
    """The script in docs/several.md: its last line is true."""
    text = (Path(__file__).parents[3] / "docs" / "several.md").read_text("utf-8")
    spoken = []
    (code,) = re.findall(r"```python\n(.*?)```", text, re.S)
    exec(code, {"print": lambda *values: spoken.extend(map(str, values))})
    return spoken


def write(cases):
    """Run cases on all ranks; rank 0 writes what they give."""
    results = {case.__name__: comm.gather(case()) for case in cases}
    if rank == 0:
        Path(sys.argv[1]).write_text(json.dumps(results), "utf-8")


CASES = (
    example, sparse, same_iterations, jacobi, dense, scaled, indefinite, overflowing, poisson,
    extreme_grids, coarse_grid, devices, in_blocks, watched_device, disagreeing, raising_callback,
    checkpoints, rows,
)  # fmt: skip

if __name__ == "__main__":
    write(CASES)
