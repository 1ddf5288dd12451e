"""device= and method=, of a call and of `use`."""

from __future__ import annotations

import contextlib
import contextvars
import copy
import pickle

import numpy as np
import pytest
from fakes import in_threads

import hetero
from hetero import tables
from hetero.calling import planner


def test_use_may_end_in_another_thread():
    """As where a generator is closed there; the block holds in the thread that it began in."""

    def generator():
        with hetero.use(device="cpu"):
            yield

    blocks, failed = generator(), []

    def close():
        try:
            blocks.close()
        except ValueError as error:
            failed.append(error)

    context = contextvars.copy_context()
    context.run(next, blocks)
    in_threads(close)
    assert not failed
    with pytest.raises(RuntimeError), hetero.use(device="cpu"):
        raise RuntimeError  # which undoes it, too
    assert planner.placement(None, None) == (None, None)


def test_the_calls_own_placement_counts_before_the_innermost_blocks(cuda):
    """What a block leaves out is that of the block around it."""
    A = np.ones((5, 5), np.float32)
    for blocks, own, on_device in (
        ([{"device": "cuda"}, {"device": "cpu"}], {}, False),
        ([{"device": "cuda"}, {"results": "host"}], {}, True),
        ([{"device": "cuda"}], {"device": "cpu"}, False),
        ([{"device": "cpu"}], {"device": "cuda"}, True),
        ([{"method": "tiled"}], {}, True),
        ([{"method": "tiled"}], {"method": "blas"}, False),
        ([{"method": "blas"}, {"method": "tiled"}], {}, True),
    ):
        for _ in range(2):  # then remembered
            cuda.log.clear()
            with contextlib.ExitStack() as stack:
                for block in blocks:
                    stack.enter_context(hetero.use(**block))
                np.testing.assert_array_equal(hetero.matmul(A, A, **own), A @ A)
            assert ("compute" in cuda.log) == on_device, (blocks, own)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"device": "nonsense"}, "'cpu'.*got 'nonsense'"),
        ({"device": "gpu"}, "'cpu'.*got 'gpu' .*'hetero info'"),  # and no guess that it was "cpu"
        ({"method": "magic"}, "'blas'.*'multigrid'.*got 'magic'"),
        ({"device": "cpu", "method": "tiled"}, "'blas'.*got 'tiled'"),
        ({"results": "gpu"}, "'host', 'device', got 'gpu'$"),
        ({"memory_limit": "lots"}, "bytes.*got 'lots'"),
        ({"watch": "no"}, "True or False, got 'no'"),
    ],
    ids=str,
)
def test_use_refuses_an_argument_at_once(given, message):
    with pytest.raises(ValueError, match=message):
        hetero.use(**given)


@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))]
)
def test_a_block_can_be_copied_and_pickled(copied):
    """The copy asks for the same, and is not entered where the original is."""
    block = hetero.use(device="cpu", results="host", memory_limit="1 GB")
    before = copied(block)
    with block:
        inside = copied(block)
    for one in (before, inside):
        with one:
            assert tables.forced.get() == ("cpu", None, "host", 10**9, None)
        assert tables.forced.get() is None


def test_a_block_around_a_function_is_one_for_each_call():
    @hetero.use(device="cpu")
    def depth(left):
        assert planner.placement(None, None)[0] == "cpu"
        return left and depth(left - 1)

    assert depth(3) == 0
    assert tables.forced.get() is None
    block = hetero.use(device="cpu")
    with block, pytest.raises(RuntimeError, match="entered already"), block:
        pass
    assert tables.forced.get() is None
