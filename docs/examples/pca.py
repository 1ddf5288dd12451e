"""Principal components of many rows, by subspace iteration."""

import sys

import numpy as np

sizes = {"small": (500, 100, 12), "large": (160000, 1000, 120)}
rows, columns, steps = sizes.get(sys.argv[-1], (40000, 1000, 60))
random = np.random.default_rng(0)
X = random.standard_normal((rows, columns)) * np.linspace(1, 0.1, columns) ** 4
X -= X.mean(axis=0)
Q = np.linalg.qr(random.standard_normal((columns, 16)))[0]
for _ in range(steps):
    Q, R = np.linalg.qr(X.T @ (X @ Q))
print("variances", *(abs(np.diag(R)) / rows)[:4])
