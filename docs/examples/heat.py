"""The heat equation on a square, by implicit Euler steps with conjugate gradients."""

import sys

import numpy as np
import scipy.sparse as sp
from scipy.sparse.linalg import cg

n, steps = (60, 3) if "small" in sys.argv else (512, 15)
D = sp.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(n, n))
laplacian = sp.kron(sp.eye_array(n), D) + sp.kron(D, sp.eye_array(n))
A = (sp.eye_array(n * n) + 50.0 * laplacian).tocsr()
u = np.zeros((n, n))
u[n // 4 : n // 2, n // 4 : n // 2] = 1.0
u = u.ravel()
for _ in range(steps):
    u, info = cg(A, u, x0=u, rtol=1e-10)
    assert info == 0
print("heat left", u.sum(), "warmest", u.max())
