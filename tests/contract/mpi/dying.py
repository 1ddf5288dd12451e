"""A solve in which a rank may be killed: ``dying.py CHECKPOINT VICTIM RESULT``; no victim: -1."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import numpy as np
import scipy.sparse as sp
from mpi4py import MPI

import hetero.mpi

N, KILLED_AT = 301, 40

comm = MPI.COMM_WORLD
path, victim, result = Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
A = sp.csr_array(sp.diags_array([2.0, -1.0, -1.0], offsets=[0, 1, -1], shape=(N, N)))
b = np.random.default_rng(2).standard_normal(N)
lo, hi = hetero.mpi.rows(N)
done = 0


def callback(x):
    global done
    done += 1
    if comm.rank == victim and done == KILLED_AT:
        os.kill(os.getpid(), signal.SIGKILL)


x, info, how = hetero.mpi.solve_cg(
    A[lo:hi], b[lo:hi], rtol=1e-10, callback=callback, checkpoint=path, every=0.0,
    return_info=True,
)  # fmt: skip
whole = np.concatenate(comm.allgather(x))
if comm.rank == 0:
    residual = np.linalg.norm(b - A @ whole) / np.linalg.norm(b)
    how = [info, how["continued_from"], how["iterations"], done, residual]
    result.write_text(json.dumps(how), "utf-8")
