"""kmeans that is over when few labels change: in the same iteration wherever it computes."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from runtimes import opencl_device

import hetero
from hetero.ops.kmeans import problem, ranges
from hetero.ops.kmeans.fit import Fit, fit, most_changed
from hetero.ops.kmeans.ranges import RangeRows
from hetero.pricing import places

N, K = 2601, 5  # more rows than the threads of all blocks that count, on two cores


@cache
def rows():
    return np.random.default_rng(4).standard_normal((N, 3))


@cache
def changes():
    """How many labels each of Lloyd's iterations changes, as in a book."""
    X, counts, labels = rows(), [], np.full(N, -1)
    centroids = X[:K]
    while not counts or counts[-1]:
        new = ((X[:, None] - centroids) ** 2).sum(axis=2).argmin(axis=1)
        counts.append(int((new != labels).sum()))
        labels, centroids = new, np.array([X[new == c].mean(axis=0) for c in range(K)])
    return counts


def cases():
    """Shares of labels, at a number that an iteration changes and half a label below, and the
    iteration that is the last one."""
    counts = changes()
    assert len(counts) > 20
    for at in (1, 5, 12, 13, len(counts) - 2):
        for most in (counts[at], counts[at] - 0.5):
            yield most / N, next(i for i, count in enumerate(counts, 1) if count <= most)
    yield 0.0, len(counts)
    yield 1.0, 1


@pytest.mark.parametrize("place", ["products", "lloyd", "opencl", "shares", "ranges"])
def test_the_last_iteration(place, monkeypatch):
    """One call after the other: the shape is remembered, the share is another."""
    device = opencl_device()
    if place == "ranges":
        room = 700 * (2 * rows()[0].nbytes + 16) / ranges._ROOM
        monkeypatch.setattr(places, "room", lambda info: room)
    for share, iterations in cases():
        if place in ("shares", "ranges"):
            used = [device] * (3 if place == "shares" else 2)
            found = RangeRows(used, problem(rows(), K), rows(), counted=share > 0)
            asked = Fit(300, 0.0, rows()[:K], label_tol=share)
            assert fit(found, asked, K)[0][1:] == (iterations, True), share
            continue
        at = {"device": device.name} if place == "opencl" else {"device": "cpu", "method": place}
        options = {"init": rows()[:K], "tol": 0.0, "label_tol": share, **at}
        centroids, labels, info = hetero.kmeans(rows(), K, **options)
        assert (info["iterations"], info["converged"]) == (iterations, True), share
        nearest = ((rows()[:, None] - centroids) ** 2).sum(axis=2).argmin(axis=1)
        np.testing.assert_array_equal(labels, nearest)


@pytest.mark.parametrize("share", [0.0, 1e-9, 0.002, 0.02, 0.2])
def test_with_empty_clusters_and_several_starts(share):
    """Where the host gives the centroids of an iteration it decides too; a start counts anew."""
    far = np.concatenate([rows()[:2], np.full((3, 3), 1e4) + np.arange(3)[:, None]])
    for options in ({"init": far}, {"init": "random", "n_init": 3, "random_state": 7}):
        runs = [
            hetero.kmeans(
                rows(), K, tol=0.0, label_tol=share, device=device, method=method, **options
            )
            for device, method in (("cpu", "products"), (opencl_device().name, "lloyd"))
        ]
        assert runs[0][2]["iterations"] == runs[1][2]["iterations"]
        np.testing.assert_array_equal(runs[0][1], runs[1][1])


def test_shares_of_labels():
    """One that is a number of labels is that number; what is no share is refused."""
    for n in (1, 3, 1000, 12_345, 488_565):
        for most in {0, 1, n // 3, n - 1, n}:
            assert most_changed(most / n, n) == most
            assert most_changed((most + 0.999) / n, n) == most
        assert most_changed(1e308, n) == n
    for share in (-0.1, np.inf, np.nan, "0.1", None):
        with pytest.raises(ValueError, match=r"'label_tol' parameter of KMeans must be a float"):
            hetero.kmeans(rows(), K, label_tol=share)
