"""Spectral clustering of rings: affinities, subspace iteration, KMeans."""

import sys

import numpy as np
from sklearn.cluster import KMeans

n, steps = (300, 300) if "small" in sys.argv else (6000, 100)
random = np.random.default_rng(0)
angle = random.random(n) * 2 * np.pi
ring = np.arange(n) % 3
points = (1 + 2 * ring)[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=1)
points += 0.08 * random.standard_normal(points.shape)
squares = (points**2).sum(axis=1)
distances = squares[:, None] + squares[None] - 2 * points @ points.T
affinity = np.exp(-distances / 0.5)
scale = 1 / np.sqrt(affinity.sum(axis=1))
affinity *= scale[:, None] * scale[None]
Q = np.linalg.qr(random.standard_normal((n, 8)))[0]
for _ in range(steps):
    Q = np.linalg.qr(affinity @ Q)[0]
values, vectors = np.linalg.eigh(Q.T @ (affinity @ Q))
rows = Q @ vectors[:, -3:]
rows /= np.linalg.norm(rows, axis=1, keepdims=True)
found = KMeans(3, n_init=4, random_state=0).fit(rows)
pure = [np.bincount(found.labels_[ring == r], minlength=3).max() for r in range(3)]
print("together", sum(pure) / n)
