"""PageRank of a dense graph, by power iteration."""

import sys

import numpy as np

n, steps = (300, 20) if "small" in sys.argv else (7000, 150)
random = np.random.default_rng(0)
links = (random.random((n, n)) < 0.05 / (1 + np.arange(n) / n)[:, None]).astype(float)
links /= np.maximum(links.sum(axis=0), 1)
rank = np.full(n, 1 / n)
for _ in range(steps):
    rank = 0.85 * (links @ rank) + 0.15 / n
    rank /= rank.sum()
print("highest", *np.sort(rank)[-3:] * n)
