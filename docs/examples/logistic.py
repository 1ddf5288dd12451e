"""Logistic regression by gradient descent."""

import sys

import numpy as np

sizes = {"small": (2000, 20, 30), "large": (800000, 256, 200)}
rows, columns, steps = sizes.get(sys.argv[-1], (200000, 256, 150))
random = np.random.default_rng(0)
X = random.standard_normal((rows, columns))
y = (X @ random.standard_normal(columns) + random.standard_normal(rows) > 0).astype(float)
w = np.zeros(columns)
for _ in range(steps):
    p = 1.0 / (1.0 + np.exp(-(X @ w)))
    w -= 2.0 / rows * (X.T @ (p - y))
print("right", ((X @ w > 0) == y).mean(), "norm", np.linalg.norm(w))
