"""Plans as tables, as plain data, copied."""

from __future__ import annotations

import copy
import inspect
import math
import pickle

import numpy as np
import pytest

import hetero
from hetero import registry
from hetero.errors import readable


def test_plans_can_be_copied_and_what_they_tell_can_be_pickled():
    """In results that are kept or sent, such as a fitted estimator; to run is their process's."""
    A = np.arange(64.0).reshape(8, 8) + 30 * np.eye(8)
    others = {"matmul": A, "matvec": A[0], "convolve2d": A[:3, :3], "cg": A[0], "kmeans": 2}
    for operation in registry.operations():
        given = [others[operation.name]] if operation.name in others else []
        plan = hetero.plan(operation.name, A, *given)
        for again in (copy.copy(plan), copy.deepcopy(plan)):
            assert again == plan
            assert again.chosen.implementation is plan.chosen.implementation
        told = pickle.loads(pickle.dumps(plan))
        assert told.to_dict() == plan.to_dict()
        assert told.chosen.implementation is None


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        *[(0.0, "0 us"), (9.994e-4, "999 us"), (9.996e-4, "1 ms"), (99.94, "99.9 s")],
        *[(99.96, "1.7 min"), (598.0, "10 min"), (3569.0, "59 min"), (3571.0, "1.0 h")],
        *[(359_900.0, "100 h"), (-150.0, "-2.5 min"), (math.inf, "inf s"), (math.nan, "nan s")],
    ],
)
def test_readable_seconds(seconds, text):
    assert readable(seconds) == text


@pytest.mark.parametrize("operation", registry.operations(), ids=lambda o: o.function)
def test_arguments_that_a_plan_does_not_take_are_refused_by_the_operation(operation):
    taken = inspect.signature(operation.problem).parameters.values()
    operands = [p.name for p in taken if p.default is p.empty]
    options = {p.name for p in taken if p.default is not p.empty}
    options |= {"device", "method", "profile"}
    for given, named, why in (
        (operands, {"nonsense": 1}, "'nonsense'"),
        ((), {}, f"missing .*'{operands[0]}'"),
        (9 * operands, {}, "too many positional arguments"),
    ):
        with pytest.raises(TypeError, match=f"^plan of {operation.function}: .*{why}") as refused:
            hetero.plan(operation.function, *given, **named)
        text = str(refused.value)
        assert f"its operands are {', '.join(operands)}, and its options" in text
        assert set(text.rpartition("options ")[2].split(", ")) == options
