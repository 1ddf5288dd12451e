"""A call is remembered by all that it depends on: cold, warm, warm with each option changed.

A `Space` lists for every parameter of a function the values it is tried with, and "use" for what
else a call depends on; a parameter without values fails `test_every_parameter_has_values`. A point
is one call: a label for each of them. Operands are made anew for every call, so that nothing is
told apart by where it lies in memory. Each outcome is compared with that of the same call when
nothing is remembered, which `test_semantics` and `test_transfer` compare with NumPy's.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import itertools
import random
import re
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import fakes
import numpy as np
import pytest
import scipy.signal
import scipy.sparse

import hetero
from hetero import registry, tables
from hetero.pricing.plan import Plan
from hetero.profile import inventory

rng = np.random.default_rng(3)
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
        Parameter -> label -> value. A callable value is called for it, with the operands where it
        is the value of "out". The first label of each is the plain call's.
    operands : int
        How many of the parameters, the first ones, are given by position.
    impossible : callable
        Of a point: whether the machine of these tests has no such call.
    """

    function: Callable[..., Any]
    values: dict[str, dict[str, Any]]
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


def same(found: Any, expected: Any, where: Any) -> None:
    """Equal in type, dtype, shape and order; values to 1000 eps of the largest finite one."""
    assert type(found) is type(expected), (where, found, expected)
    if isinstance(expected, BaseException):
        return
    if isinstance(expected, (tuple, list, dict)):
        assert len(found) == len(expected), where
        for key in expected if isinstance(expected, dict) else range(len(expected)):
            same(found[key], expected[key], (where, key))
        return
    if isinstance(expected, fakes.Array):
        alike(found, expected, where, "shape", "dtype", "strides")
        found, expected = found.get(), expected.get()
    if isinstance(expected, (np.ndarray, np.generic)):
        alike(found, expected, where, "dtype", "shape")
        if isinstance(expected, np.ndarray) and expected.size:
            alike(found.flags, expected.flags, where, "c_contiguous", "f_contiguous")
        close(found, expected, where)
    elif isinstance(expected, float):
        close(found, expected, where)
    elif isinstance(expected, Plan):
        alike(found.chosen, expected.chosen, where, "device", "method")
    else:
        assert found == expected, where


def alike(found: Any, expected: Any, where: Any, *names: str) -> None:
    """Equal in attributes."""
    for name in names:
        assert getattr(found, name) == getattr(expected, name), (where, name)


def close(found: Any, expected: Any, where: Any) -> None:
    found, expected = np.asarray(found), np.asarray(expected)
    if expected.dtype.kind not in "fc":
        np.testing.assert_array_equal(found, expected, str(where))
        return
    finite = abs(expected[np.isfinite(expected)])
    bound = 1e3 * np.finfo(expected.dtype).eps * float(finite.max(initial=0.0))
    np.testing.assert_allclose(found, expected, rtol=0.0, atol=bound, err_msg=str(where))


# -- What a call depends on ------------------------------------------------------------------------

USE = {
    "none": [],
    "cpu": [{"device": "cpu"}],
    "cuda": [{"device": "cuda"}],
    "cpu in cuda": [{"device": "cuda"}, {"device": "cpu"}],
    "nothing in cuda": [{"device": "cuda"}, {}],
    "with room": [{"memory_limit": "1 GB"}],
    "to the host": [{"results": "host"}],
    "stays there": [{"results": "device"}],
    "not watched": [{"watch": False}],
}
CUDA = fakes.FakeCuda()


def either(*values):
    """A parameter that is not given, or has one of the values."""
    return {"none": NOTHING, **{str(value): value for value in values}}


DEVICE = either(None, "cpu", "cuda", "cuda:1")


def given(values, dtype=None):
    """A maker of copies: C-contiguous, of a dtype."""
    return lambda: np.array(values, dtype)


def floats(values):
    return {"plain": given(values), "float32": given(values, "f4")}


def laid(values, how):
    """A maker of arrays with the same values in another layout."""

    def make():
        if how == "F":
            return np.array(values, order="F")
        if how == "backwards":
            return np.array(values[::-1])[::-1]
        if how == "strided":
            wide = np.full([2 * n for n in values.shape], np.nan)
            wide[(slice(None, None, 2),) * values.ndim] = values
            return wide[(slice(None, None, 2),) * values.ndim]
        if how == "strided on cuda":
            return fakes.Array.of(laid(values, "strided")(), CUDA)
        if how == "readonly":
            made = np.array(values)
            made.flags.writeable = False
            return made
        return fakes.Array.of(values, CUDA)

    return make


# -- Products ------------------------------------------------------------------------------------

SQUARE, OTHER, TALL, WIDE, STACK, VECTOR = (
    rng.standard_normal(shape) for shape in [(5, 5), (5, 5), (7, 5), (5, 6), (3, 5, 5), 5]
)
LAYOUTS = ("F", "backwards", "strided", "readonly", "on cuda", "strided on cuda")
WITH_NAN = np.where(np.eye(5) > 0, np.nan, SQUARE)


def operand(values):
    return {
        **floats(values),
        **{how: laid(values, how) for how in LAYOUTS},
        "stack": given(STACK),
        "vector": given(VECTOR),
        "integers": given(10 * values, int),
        "complex": given(values + 1j),
        "list": values.tolist,
        "matrix": lambda: np.matrix(values),
        "NaN": given(WITH_NAN),
    }


def out_of(space, how):
    """A maker of an ``out`` for operands: of the shape that NumPy's result has."""

    def make(operands):
        hosts = [x.get() if isinstance(x, fakes.Array) else np.asarray(x) for x in operands]
        try:
            like = np.asarray(NUMPYS[space](*hosts))
        except ValueError:
            like = np.zeros((5, 5))
        if how == "gaps":
            wide = np.full([2 * n for n in like.shape], 7.0, like.dtype)
            return wide[(slice(None, None, 2),) * like.ndim]
        if how == "larger on cuda":
            like = np.zeros([n + 1 for n in like.shape], like.dtype)
        if how == "integers on cuda":
            like = like.astype("i4")
        if "on cuda" in how:
            return fakes.Array.of(np.zeros_like(like), CUDA, readonly="readonly" in how)
        if how in ("complex", "float32"):
            return np.zeros(like.shape, how)
        if how == "readonly":
            like.flags.writeable = False
            return like
        if how == "tuple":
            return (np.zeros_like(like),)
        return np.zeros_like(like, order=how)

    return make


def outs(name):
    hows = ("C", "F", "gaps", "on cuda", "complex", "float32", "readonly", "tuple")
    hows += ("readonly on cuda", "larger on cuda", "integers on cuda")
    return {
        "none": NOTHING,
        "None": None,
        **{how: out_of(name, how) for how in hows},
        "first operand": lambda operands: operands[0],
    }


def product(name, second, options):
    ours = getattr(hetero, name)
    names = list(inspect.signature(ours).parameters)[:2]
    return Space(
        ours,
        {
            names[0]: operand(SQUARE) | {"tall": given(TALL)},
            names[1]: second,
            "out": outs(name),
            "device": DEVICE,
            "method": either("blas", "tiled", "other"),
            "options": {
                "none": {},
                "dtype": {"dtype": "f4"},
                "complex": {"dtype": complex},
                "order": {"order": "F"},
                "casting": {"casting": "no", "dtype": "f4"},
                "subok": {"subok": False},
                "axes": {"axes": [(-1, -2), (-2, -1), (-2, -1)]},
                "unknown": {"unknown": 1},
                **options,
            },
            "use": USE | {"tiled": [{"method": "tiled"}], "blas": [{"method": "blas"}]},
        },
    )


NUMPYS = {"matmul": np.matmul, "matvec": np.matvec}
MATMUL = product("matmul", operand(OTHER) | {"wide": given(WIDE)}, {"axis": {"axis": 0}})
MATVEC = product(
    "matvec",
    operand(VECTOR)
    | {"stack": given(STACK[0]), "wide": given(OTHER), "NaN": given(VECTOR * np.nan)},
    {"axes": {"axes": [(-1, -2), (-1,), (-1,)]}},
)

# -- Convolution ---------------------------------------------------------------------------------

IMAGE = rng.standard_normal((14, 11))
COLUMN, ROW = rng.standard_normal((2, 3))
RANK_1 = np.outer(COLUMN, ROW)
FULL_RANK = rng.standard_normal((3, 3))
FIFTEEN = rng.standard_normal(15)


CONVOLVE2D = Space(
    hetero.convolve2d,
    {
        "in1": {
            **floats(IMAGE),
            **{how: laid(IMAGE, how) for how in ("F", "backwards", "strided", "on cuda")},
            "large": given(rng.standard_normal((40, 45))),
            "stack": given(rng.standard_normal((3, 14, 11))),
            "NaN": given(np.where(IMAGE > 1.5, np.nan, IMAGE)),
            "infinite": given(np.where(IMAGE > 1.5, np.inf, IMAGE)),
            "integers": given(IMAGE * 10, int),
            "complex": given(IMAGE * (1 + 2j)),
            "list": IMAGE.tolist,
        },
        "in2": {
            "plain": given(FULL_RANK),
            "rank 1": given(RANK_1),
            "rank 2": given(RANK_1 + np.outer(ROW, COLUMN)),
            "float32": given(FULL_RANK, "f4"),
            "3 x 5": given(FIFTEEN.reshape(3, 5)),
            "5 x 3": given(FIFTEEN.reshape(5, 3)),
            "integers": given([[1, 2], [3, 4]]),
            "complex": given(RANK_1 * 1j + FULL_RANK),
            "larger": given(rng.standard_normal((16, 13))),
            "F": laid(FULL_RANK, "F"),
            "NaN": given(FULL_RANK * [1, np.nan, 1]),
            "on cuda": laid(RANK_1, "on cuda"),
        },
        "mode": either("same", "valid", "full", "other"),
        "boundary": either("wrap", "symm", "fill", "circular", "other"),
        "fillvalue": either(2, 2.5, 0.0, np.nan, np.inf, 2 + 3j, [[1.5]], "x"),
        "device": DEVICE,
        "method": either("direct", "fft", "separable", "other"),
        "use": USE | {"fft": [{"method": "fft"}], "direct": [{"method": "direct"}]},
    },
)

# -- Solves --------------------------------------------------------------------------------------

N = 40
LAPLACE = hetero.Poisson((5, 8))
MATRIX = LAPLACE.tocsr().toarray()
WEIGHTED = MATRIX * np.sqrt(np.outer(np.arange(1.0, N + 1), np.arange(1.0, N + 1)))
RHS = rng.standard_normal(N)


CALLS = []
SOLVE_CG = Space(
    hetero.solve_cg,
    {
        "A": {
            "plain": given(MATRIX),
            "weighted": given(WEIGHTED),
            "F": laid(WEIGHTED, "F"),
            "strided": laid(WEIGHTED, "strided"),
            "float32": given(MATRIX, "f4"),
            "csr": lambda: scipy.sparse.csr_array(WEIGHTED),
            "csr float32": lambda: scipy.sparse.csr_array(MATRIX.astype("f4")),
            "coo": lambda: scipy.sparse.coo_array(MATRIX),
            "operator": lambda: scipy.sparse.linalg.aslinearoperator(MATRIX),
            "Poisson": lambda: hetero.Poisson((5, 8)),
            "other Poisson": lambda: hetero.Poisson((5, 8), spacing=(1.0, 0.5)),
            "indefinite": given(-MATRIX),
        },
        "b": {
            **floats(RHS),
            "column": given(RHS[:, None]),
            "integers": given(10 * RHS, int),
            "other": given(RHS**2),
            "strided": laid(RHS, "strided"),
        },
        "x0": {
            "none": NOTHING,
            "ones": given(np.ones(N)),
            "float32": given(RHS, "f4"),
            "column": given(RHS[:, None]),
        },
        "rtol": either(1e-10, 0.3),
        "atol": either(0.5, 50.0),
        "maxiter": either(0, 1, 3, None),
        "M": either("jacobi", "multigrid")
        | {"vector": given(1.0 / np.arange(1.0, N + 1))}
        | {"matrix": given(np.diag(1.0 / np.arange(1.0, N + 1)))},
        "callback": {"none": NOTHING, "append": lambda x: CALLS.append(1)},
        "device": DEVICE,
        "method": either("blas", "numba", "operator", "fused", "hybrid", "other"),
        "use": USE | {"fused": [{"method": "fused"}]},
    },
    # Its hierarchy is made of kernels, which the fake device does not have.
    impossible=lambda point: point["M"] == "multigrid" and point["A"].endswith("Poisson"),
)

FIELD = rng.standard_normal((5, 7))
EDGES = [(rng.standard_normal(7), 2.0), (rng.standard_normal(5), rng.standard_normal(5))]


SOLVE_POISSON = Space(
    hetero.solve_poisson,
    {
        "f": {
            **floats(FIELD),
            "other": given(FIELD.T),
            "box": given(rng.standard_normal((4, 3, 5))),
            "F": laid(FIELD, "F"),
            "integers": given(10 * FIELD, int),
            "zeros": given(np.zeros((5, 7))),
        },
        "return_info": {"True": True, "none": NOTHING, "False": False},
        "spacing": either(0.1, 10.0),
        "boundary": {"none": NOTHING, "1.5": 1.5, "sides": EDGES},
        "x0": {"none": NOTHING, "ones": given(np.ones((5, 7))), "float32": given(FIELD, "f4")},
        "method": either("dst", "multigrid", "cg", "jacobi", "other"),
        "rtol": either(1e-3, 0.5),
        "maxiter": either(1, 7, 2000),
        "device": DEVICE,
        "use": USE | {"jacobi": [{"method": "jacobi"}]},
    },
    operands=1,
    impossible=lambda point: (
        point["f"] in ("box", "other") and (point["boundary"] == "sides" or point["x0"] != "none")
    ),
)

# -- Clusters ------------------------------------------------------------------------------------

ROWS = np.concatenate([rng.standard_normal((n, 3)) + 2 * n for n in (14, 15, 16)])
WEIGHTS = 0.5 + rng.random(45)


KMEANS = Space(
    hetero.kmeans,
    {
        "X": {
            **floats(ROWS),
            "fewer": given(ROWS[:30]),
            **{how: laid(ROWS, how) for how in ("F", "strided", "readonly")},
            "integers": given(10 * ROWS, int),
            "list": ROWS.tolist,
            "wrong complex": given(ROWS + 1j),
        },
        "n_clusters": {"3": 3, "2": 2, "wrong True": True, "wrong 3.0": 3.0, "wrong list": [3]},
        "random_state": {"1": 1, "2": 2},
        "init": {"none": NOTHING, "random": "random", "given": given(ROWS[::15]), "wrong": "x"},
        "n_init": {"none": NOTHING, "1": 1, "2": 2, "auto": "auto", "wrong True": True},
        "max_iter": {"none": NOTHING, "1": 1, "0": 0, "wrong 1.0": 1.0},
        "tol": {"none": NOTHING, "0": 0, "0.5": 0.5, "wrong True": True, "wrong": -1.0},
        "label_tol": {"none": NOTHING, "0.1": 0.1, "wrong": -1.0},
        "sample_weight": either(2.0)
        | {"each": given(WEIGHTS), "wrong": given(WEIGHTS[1:]), "wrong zeros": given(0 * WEIGHTS)},
        "device": either(None, "cpu", "cuda:1"),
        "method": either("lloyd", "products", "other"),
        "use": {name: USE[name] for name in USE if "cuda" not in name}
        | {"lloyd": [{"method": "lloyd"}]},
    },
    impossible=lambda point: point["X"] == "fewer" and point["sample_weight"] != "none",
)

SPACES = {
    space.function.__name__: space
    for space in (MATMUL, MATVEC, CONVOLVE2D, SOLVE_CG, SOLVE_POISSON, KMEANS)
}


# -- The walks -----------------------------------------------------------------------------------


def test_every_public_function_has_a_space():
    placed = {"device", "method"}
    calls = {name for name in hetero.__all__ if placed <= set(_parameters(getattr(hetero, name)))}
    assert calls - {"plan", "use"} == set(SPACES)


def _parameters(function):
    return inspect.signature(function).parameters if inspect.isfunction(function) else {}


@pytest.mark.parametrize("name", SPACES)
def test_every_parameter_has_values(name):
    space = SPACES[name]
    assert set(space.values) - {"use"} == set(_parameters(space.function))
    assert all(len(values) > 1 for values in space.values.values())
    blocks = {key for blocks in space.values["use"].values() for block in blocks for key in block}
    assert blocks == set(inspect.signature(hetero.use).parameters)
    if "options" in space.values:
        text = space.function.__doc__.partition("**options")[2].partition("Returns")[0]
        tried = {key for value in space.values["options"].values() for key in value}
        assert set(re.findall(r"``(\w+)``", text)) <= tried


def follow(space, path, machine):
    """Make the calls of a path; each gives what it gave when nothing was remembered."""
    known = {}
    for point in path:
        key = tuple(point.values())
        if key not in known:
            tables.forget()
            known[key] = space.run(point, machine)
    tables.forget()
    previous = None
    for point in path:
        found, expected, where = (
            space.run(point, machine),
            known[tuple(point.values())],
            (point, previous),
        )
        same(found.result, expected.result, where)
        same(found.written, expected.written, where)
        assert found.ran == expected.ran, where
        previous = point


@pytest.mark.parametrize("name", SPACES)
@pytest.mark.filterwarnings("ignore")  # by np.matrix, and of complex numbers that SciPy cuts off
def test_options_changed(name, monkeypatch):
    """Cold, warm, warm with one option changed, changed again, and as at first; then every two
    values of every two parameters, one call after the other."""
    space = SPACES[name]
    path = [space.plain] * 2
    singles = [one for key in space.values for one in space.changes(space.plain, key)]
    for changed in singles:
        path += [changed, changed, space.plain]
    pairs = [
        {**space.plain, one: first, other: second}
        for one, other in itertools.combinations(space.values, 2)
        for first in space.values[one]
        for second in space.values[other]
    ]
    if name == "solve_poisson":  # whose calls take long
        pairs = random.Random(0).sample(pairs, 100)
    path += pairs
    path = [point for point in path if not space.impossible(point)]
    follow(space, path, Machine(monkeypatch))
