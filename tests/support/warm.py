"""What the calls of one public function can differ in, and what each call must come to.

A `Space` lists for every parameter of a function the values it is tried with, and "use" and
"threads" for what else a call depends on. A point is one call: a label for each of them. Operands
are made anew for every call, so that nothing is told apart by where it lies in memory.
"""

from __future__ import annotations

import contextlib
import dataclasses
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import fakes
import numpy as np
from scipy.sparse import issparse

import hetero
from hetero import registry, tables
from hetero.errors import DeviceNotAvailable, MethodNotAvailable
from hetero.pricing.plan import Plan
from hetero.profile import inventory

Point = dict[str, str]
NOTHING = object()  # the parameter is not given at all


class Outcome(NamedTuple):
    """What a call came to.

    Attributes
    ----------
    result
        The result, or the exception.
    written : list of ndarray
        The memory of the operands and of ``out`` afterwards, whole.
    ran : list of (device, method)
        Which implementations the registry has were run.
    """

    result: Any
    written: list[np.ndarray]
    ran: list[tuple[str, str]]


@dataclasses.dataclass
class Space:
    """The calls of one function.

    Attributes
    ----------
    function : callable
    values : dict
        Parameter -> label -> value. A callable value is called for it, with ``expected`` where it
        is the value of "out". The first label of each is the plain call's.
    judge : callable or None
        ``judge(space, point, outcome)`` asserts that a result is right; see `test_warm_calls`.
    operands : int
        How many of the parameters, the first ones, are given by position.
    impossible : callable
        Of a point: whether the machine of these tests has no such call.
    """

    function: Callable[..., Any]
    values: dict[str, dict[str, Any]]
    judge: Callable[[Space, Point, Outcome], None] | None
    operands: int = 2
    impossible: Callable[[Point], bool] = lambda point: False

    @property
    def plain(self) -> Point:
        return {name: next(iter(values)) for name, values in self.values.items()}

    def changes(self, point: Point, name: str) -> list[Point]:
        """The possible points that differ from this one in a parameter."""
        others = ({**point, name: label} for label in self.values[name] if label != point[name])
        return [other for other in others if not self.impossible(other)]

    def arguments(self, point: Point) -> tuple[list[Any], dict[str, Any]]:
        """Positional and keyword arguments, new ones."""
        made: dict[str, Any] = {}
        for name, label in point.items():
            value = self.values[name][label]
            if name in ("use", "out", "options") or value is NOTHING:
                continue
            made[name] = value() if callable(value) and name != "callback" else value
        positional = [made.pop(name) for name in list(self.values)[: self.operands]]
        made |= self.values["options"][point["options"]] if "options" in point else {}
        if "out" in point and (out := self.values["out"][point["out"]]) is not NOTHING:
            made["out"] = out(positional) if callable(out) else out
        return positional, made

    def run(self, point: Point, machine: Machine) -> Outcome:
        """Make the call."""
        positional, named = self.arguments(point)
        machine.ran.clear()
        use = self.values["use"][point["use"]]
        with contextlib.ExitStack() as stack:
            stack.enter_context(warnings.catch_warnings())
            warnings.simplefilter("ignore")
            try:
                for placement in use:
                    stack.enter_context(hetero.use(**placement))
                result = self.function(*positional, **named)
            except Exception as error:
                result = error
        kept = [memory(x) for x in (*positional, *named.values())]
        return Outcome(result, [x for x in kept if x is not None], list(machine.ran))


def memory(x: Any) -> np.ndarray | None:
    """All the memory that an array is a view of, on the host."""
    if isinstance(x, fakes.Array):
        return x.get()
    if isinstance(x, np.ndarray):
        while isinstance(x.base, np.ndarray):
            x = x.base
        return np.array(x)
    return None


class Machine:
    """A CPU and a fake "cuda:0" that can do every operation; ``ran`` tells what did."""

    def __init__(self, monkeypatch: Any) -> None:
        self.ran: list[tuple[str, str]] = []
        fakes.install(monkeypatch)
        for operation in [o.name for o in registry.operations()]:
            entries = [
                dataclasses.replace(entry, run=self._counted(entry))
                for entry in registry.lookup(operation)
            ]
            monkeypatch.setitem(registry.problem._implementations, operation, entries)
        inventory.changed()

    def _counted(self, entry: registry.Implementation) -> Callable[..., Any]:
        run = entry.run
        if entry.kind == "cuda":
            run = on_fake(entry)

        def counted(devices: Any, *rest: Any) -> Any:
            self.ran.append((devices[0].name if devices else "cpu", entry.method))
            return run(devices, *rest)

        return counted

    @staticmethod
    def forget() -> None:
        """As in a new process: no plan and no call is remembered."""
        tables.forget()


def on_fake(entry: registry.Implementation) -> Callable[..., Any]:
    """What stands for a CUDA implementation on the fake device."""
    if entry.operation in ("matvec", "matmul"):
        return fakes.compute
    if entry.operation == "convolve2d":
        return fakes.convolve
    cpu = [i for i in registry.lookup(entry.operation) if i.kind == "cpu"]
    same = [i for i in cpu if i.method == entry.method]

    def solve(devices: Any, problem: Any, arguments: Any) -> Any:
        able = [i for i in same or cpu if i.obstacle(problem, {"kind": "cpu"}) is None]
        o = problem.output
        b, x = (
            fakes.view(v, o.shape, o.dtype, o.strides) if isinstance(v, int) else v
            for v in (*arguments.inputs, arguments.output)
        )
        options = arguments.options
        if entry.operation == "cg" and options.system is None:
            system, M = options.on(())
            options = options._replace(system=system, preconditioner=M)
        given = arguments._replace(inputs=(b,), output=x, options=options)
        return able[0].run((), problem, given)

    return solve


def refused(outcome: Outcome) -> bool:
    """Whether a placement was asked for that is not here."""
    return isinstance(outcome.result, (DeviceNotAvailable, MethodNotAvailable))


def forced(space: Space, point: Point) -> tuple[str | None, str | None]:
    """The (device, method) that a point asks for: the call's own, else the innermost block's."""
    found: dict[str, Any] = {}
    for block in space.values["use"][point["use"]]:
        found |= {key: value for key, value in block.items() if value is not None}
    for key in ("device", "method"):
        own = space.values[key][point[key]]
        if own not in (NOTHING, None):
            found[key] = own
    return found.get("device"), found.get("method")


def placed(space: Space, point: Point, outcome: Outcome) -> None:
    """Assert that a forced placement is where the call ran."""
    device, method = forced(space, point)
    ran = set(outcome.ran)
    if device == "cpu":
        assert {name for name, _ in ran} <= {"cpu"}, (point, ran)
    elif device is not None:
        assert {name for name, _ in ran} == {"cuda:0"}, (point, ran)
    if method == "blas" and space.function is not hetero.solve_cg:  # NumPy itself, not counted
        assert ran <= {("cpu", "blas")}, (point, ran)
    elif method is not None:
        assert {used for _, used in ran} == {method}, (point, ran)


def same(found: Any, expected: Any, where: Any, rounding: float = 1e3) -> None:
    """Equal in type, dtype, shape and order; values to ``rounding`` eps of the largest."""
    assert type(found) is type(expected), (where, found, expected)
    if isinstance(expected, BaseException):
        return
    if isinstance(expected, (tuple, list, dict)):
        assert len(found) == len(expected), where
        for key in expected if isinstance(expected, dict) else range(len(expected)):
            same(found[key], expected[key], (where, key), rounding)
        return
    if isinstance(expected, fakes.Array):
        alike(found, expected, where, "shape", "dtype", "strides")
        found, expected = found.get(), expected.get()
    if isinstance(expected, (np.ndarray, np.generic)):
        alike(found, expected, where, "dtype", "shape")
        if isinstance(expected, np.ndarray) and expected.size:
            alike(found.flags, expected.flags, where, "c_contiguous", "f_contiguous")
        close(found, expected, where, rounding)
    elif isinstance(expected, float):
        close(found, expected, where, rounding)
    elif isinstance(expected, Plan):
        alike(found.chosen, expected.chosen, where, "device", "method")
    else:
        assert found == expected, where


def alike(found: Any, expected: Any, where: Any, *names: str) -> None:
    """Equal in attributes."""
    for name in names:
        assert getattr(found, name) == getattr(expected, name), (where, name)


def close(found: Any, expected: Any, where: Any, rounding: float) -> None:
    """Values to ``rounding`` eps of the largest finite one."""
    found, expected = np.asarray(found), np.asarray(expected)
    if expected.dtype.kind not in "fc":
        np.testing.assert_array_equal(found, expected, str(where))
        return
    finite = abs(expected[np.isfinite(expected)])
    bound = rounding * np.finfo(expected.dtype).eps * float(finite.max(initial=0.0))
    np.testing.assert_allclose(found, expected, rtol=0.0, atol=bound, err_msg=str(where))


def dense(A: Any) -> np.ndarray:
    """A matrix of any kind as an array."""
    if issparse(A):
        return A.toarray()
    if isinstance(A, np.ndarray):
        return A
    return np.asarray(A @ np.eye(A.shape[0]))
