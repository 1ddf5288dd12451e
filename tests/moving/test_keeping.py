"""Operands that do not change: what counts as one, where copies are, when they are moved."""

from __future__ import annotations

import gc

import numpy as np
import pytest

import hetero
from hetero.arrays import describe, kept

rng = np.random.default_rng(16)
N = 96  # of a square float64 matrix that is large enough for a copy


def matrix(n=N):
    return rng.random((n, n))


# -- What does not change ------------------------------------------------------------------------


def frozen(array):
    array.flags.writeable = False
    return array


def views(A):
    return {"itself": A, "transpose": A.T, "rows": A[8:80], "reversed": A[::-1], "gaps": A[:, ::2]}


@pytest.mark.parametrize("view", views(matrix()))
@pytest.mark.parametrize("how", ["kept", "bytes"])
def test_what_nobody_can_write_to_is_known_and_its_views_are(how, view):
    A = matrix()
    if how == "bytes":
        A = np.frombuffer(A.tobytes()).reshape(A.shape)
    else:
        A = hetero.keep(A)
    seen = views(A)[view]
    assert kept.find(seen) is not None
    assert kept.find(seen) is kept.find(views(A)[view])
    assert describe(seen).kept is kept.find(seen)


def test_what_somebody_may_write_to_is_not():
    A = matrix()
    view = frozen(A[:])
    assert kept.find(A) is None
    assert kept.find(view) is None
    assert kept.find(frozen(matrix())) is None  # its owner may make it writeable again
    assert kept.find(frozen(np.frombuffer(bytearray(A.tobytes())))) is None
    assert kept.find(hetero.keep(np.ones((8, 8)))) is None  # too small to matter
    assert kept.find(hetero.keep(np.ones((N, N), int))) is None  # no device computes with it


def test_arrays_that_fill_the_same_memory_are_one_operand():
    A = hetero.keep(matrix())
    assert kept.find(A) is kept.find(A.T) is kept.find(A.reshape(-1))
    assert kept.find(A) is not kept.find(A[::-1])
    part = kept.find(A[1:])
    assert kept.find(A) is not part
    assert kept.find(A[2:]) is not part
    assert kept.find(A[1:]) is part
    overlapping = np.lib.stride_tricks.as_strided(A, (4, 4, N), (16, 24, 8))
    assert kept.find(overlapping) is not kept.find(A.reshape(-1)[: overlapping.size])


def test_keep_gives_a_view_that_cannot_be_written_to():
    A = matrix()
    K = hetero.keep(A)
    assert np.shares_memory(A, K)
    assert A.flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        K[0, 0] = 1
    assert hetero.keep(K) is K
    assert hetero.keep([[1.0, 2.0]]).tolist() == [[1.0, 2.0]]


@pytest.mark.parametrize("uses", [0, -1, 1.5, "many"])
def test_uses_are_counted_from_one(uses):
    with pytest.raises(ValueError, match="uses must be a whole number from 1 on, got"):
        hetero.keep(matrix(), uses=uses)


def test_sparse_matrices_are_not_kept():
    from scipy.sparse import eye_array

    with pytest.raises(TypeError, match="takes dense arrays, got csr_array"):
        hetero.keep(eye_array(3).tocsr())


def test_the_promise_ends_with_what_keep_gave():
    A = matrix()
    K, other = hetero.keep(A), hetero.keep(A[:48])
    view = K.T
    assert kept.find(view) is not None
    del K
    assert kept.find(view) is None  # A may be written to again
    assert kept.find(other) is not None
    del other


def test_nothing_is_left_of_arrays_that_died():
    gc.collect()
    before = len(kept.every())
    for _ in range(50):
        kept.find(frozen(matrix()))
        kept.find(np.frombuffer(matrix().tobytes()))
        hetero.keep(matrix())
    A = hetero.keep(matrix())
    for begin in range(N):
        for end in range(begin + 8, N):
            kept.find(A[begin:end])
    assert len(kept.every()) <= before + 1024
    del A
    assert len(kept.every()) == before
