"""A call is remembered by all that it depends on: cold, warm, warm with each option changed.

`SPACES` lists for every parameter of a function the values it is tried with, and "use" for what
else a call depends on; a parameter without values fails the first test. A point is one call: a
label for each of them. Operands are made anew for every call, so that nothing is told apart by
where it lies in memory. Each outcome is compared with that of the same call when nothing is
remembered, which `test_semantics` and `test_transfer` compare with NumPy's.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import itertools
import random
import re
import warnings
from collections.abc import Callable
from typing import Any

import fakes
import numpy as np
import pytest
import scipy.signal
import scipy.sparse

import hetero
from hetero import registry, tables
from hetero.profile import inventory

rng = np.random.default_rng(3)
Point = dict[str, str]
NOTHING = object()  # the parameter is not given at all


def arguments(name: str, point: Point) -> tuple[list[Any], dict[str, Any]]:
    """Positional and keyword arguments, new ones."""
    made: dict[str, Any] = {}
    for parameter, label in point.items():
        value = SPACES[name][parameter][label]
        if parameter == "options":
            made |= value
        elif parameter == "out" and callable(value):
            made["out"] = value([*made.values()])
        elif parameter != "use" and value is not NOTHING:
            made[parameter] = value() if callable(value) and parameter != "callback" else value
    required = [p.name for p in parameters(name).values() if p.default is p.empty]
    return [made.pop(parameter) for parameter in required if parameter in made], made


def parameters(name: str) -> dict[str, inspect.Parameter]:
    function = getattr(hetero, name)
    return dict(inspect.signature(function).parameters) if inspect.isfunction(function) else {}


def run(name: str, point: Point, ran: list[tuple[str, str]]) -> tuple[Any, ...]:
    """Make the call: its result or exception, the memory of the operands and of ``out`` afterwards,
    whole, and which (device, method) ran."""
    positional, named = arguments(name, point)
    ran.clear()
    with contextlib.ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        try:
            for placement in SPACES[name]["use"][point["use"]]:
                stack.enter_context(hetero.use(**placement))
            result = getattr(hetero, name)(*positional, **named)
        except Exception as error:
            result = error
    return result, [memory(x) for x in (*positional, *named.values())], list(ran)


def memory(x: Any) -> np.ndarray | None:
    """All the memory that an array is a view of, on the host."""
    if isinstance(x, fakes.Array):
        return x.get()
    if isinstance(x, np.ndarray):
        while isinstance(x.base, np.ndarray):
            x = x.base
        return np.array(x)
    return None


@pytest.fixture
def ran(monkeypatch: Any) -> list[tuple[str, str]]:
    """(device, method) of what runs on a CPU and a fake "cuda:0" that can do every operation."""
    found: list[tuple[str, str]] = []

    def noted(entry: registry.Implementation) -> registry.Implementation:
        run = on_fake(entry) if entry.kind == "cuda" else entry.run

        def instead(devices: Any, *rest: Any) -> Any:
            found.append((devices[0].name if devices else "cpu", entry.method))
            return run(devices, *rest)

        def prepared(device: Any, *rest: Any) -> Callable[..., None]:
            launch = entry.prepare(device, *rest)
            return lambda *given: found.append((device.name, entry.method)) or launch(*given)

        return dataclasses.replace(entry, run=instead, prepare=entry.prepare and prepared)

    (device,) = fakes.install(monkeypatch)
    fakes.remember(monkeypatch, device)
    for operation in registry.operations():
        fakes.change_rows(monkeypatch, operation.name, noted)
    inventory.changed()
    return found


def on_fake(entry: registry.Implementation) -> Callable[..., Any]:
    """What stands for a CUDA implementation on the fake device."""
    if entry.operation in ("matvec", "matmul", "convolve2d"):
        return entry.run
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
    if isinstance(expected, (tuple, list, dict)):
        assert len(found) == len(expected), where
        for key in expected if isinstance(expected, dict) else range(len(expected)):
            same(found[key], expected[key], (where, key))
    elif isinstance(expected, fakes.Array):
        assert found.strides == expected.strides, where
        same(found.get(), expected.get(), where)
    elif isinstance(expected, (np.ndarray, np.generic, float)):
        found, expected = np.asarray(found), np.asarray(expected)
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape), where
        assert found.flags.c_contiguous == expected.flags.c_contiguous, where
        assert found.flags.f_contiguous == expected.flags.f_contiguous, where
        bound = 0.0
        if expected.dtype.kind in "fc":
            finite = abs(expected[np.isfinite(expected)])
            bound = 1e3 * np.finfo(expected.dtype).eps * float(finite.max(initial=0.0))
        np.testing.assert_allclose(found, expected, rtol=0.0, atol=bound, err_msg=str(where))
    elif not isinstance(expected, BaseException):
        assert found == expected, where


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


def spread(values, between=np.nan):
    """The same values in every second place of a larger array."""
    wide = np.full([2 * n for n in values.shape], between, values.dtype)
    places = wide[(slice(None, None, 2),) * values.ndim]
    places[...] = values
    return places


def readonly(values):
    made = np.array(values)
    made.flags.writeable = False
    return made


def on_cuda(values):
    return fakes.Cupy.of(values, CUDA)


LAYOUTS = {
    "F": lambda values: np.array(values, order="F"),
    "backwards": lambda values: np.array(values[::-1])[::-1],
    "strided": spread,
    "readonly": readonly,
    "on cuda": on_cuda,
    "strided on cuda": lambda values: on_cuda(spread(values)),
}


def laid(values, *names):
    """Makers of arrays with the same values in other layouts."""
    return {name: functools.partial(LAYOUTS[name], values) for name in names}


# -- Products ------------------------------------------------------------------------------------

SQUARE, OTHER, TALL, WIDE, STACK, VECTOR = (
    rng.standard_normal(shape) for shape in [(5, 5), (5, 5), (7, 5), (5, 6), (3, 5, 5), 5]
)
WITH_NAN = np.where(np.eye(5) > 0, np.nan, SQUARE)


def operand(values):
    return {
        **floats(values),
        **laid(values, *LAYOUTS),
        "stack": given(STACK),
        "vector": given(VECTOR),
        "integers": given(10 * values, int),
        "complex": given(values + 1j),
        "list": values.tolist,
        "matrix": lambda: np.matrix(values),
        "NaN": given(WITH_NAN),
    }


OUTS = {
    "C": np.zeros_like,
    "F": lambda like: np.zeros_like(like, order="F"),
    "gaps": lambda like: spread(like, 7.0),
    "complex": lambda like: np.zeros(like.shape, complex),
    "float32": lambda like: np.zeros(like.shape, "f4"),
    "readonly": readonly,
    "tuple": lambda like: (np.zeros_like(like),),
    "on cuda": lambda like: on_cuda(np.zeros_like(like)),
}


def out_of(name, make):
    """A maker of an ``out`` for operands, after the result that NumPy has."""

    def made(operands):
        hosts = [x.get() if isinstance(x, fakes.Array) else np.asarray(x) for x in operands]
        try:
            return make(np.asarray(getattr(np, name)(*hosts)))
        except ValueError:
            return make(np.zeros((5, 5)))

    return made


def product(name, second, options):
    first_name, second_name, *_ = parameters(name)
    return {
        first_name: operand(SQUARE) | {"tall": given(TALL)},
        second_name: second,
        "out": {
            "none": NOTHING,
            "None": None,
            **{how: out_of(name, make) for how, make in OUTS.items()},
            "first operand": lambda operands: operands[0],
        },
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
    }


SPACES = {
    "matmul": product("matmul", operand(OTHER) | {"wide": given(WIDE)}, {"axis": {"axis": 0}}),
    "matvec": product(
        "matvec",
        operand(VECTOR)
        | {"stack": given(STACK[0]), "wide": given(OTHER), "NaN": given(VECTOR * np.nan)},
        {"axes": {"axes": [(-1, -2), (-1,), (-1,)]}},
    ),
}

# -- Convolution ---------------------------------------------------------------------------------

IMAGE = rng.standard_normal((14, 11))
COLUMN, ROW = rng.standard_normal((2, 3))
RANK_1 = np.outer(COLUMN, ROW)
FULL_RANK = rng.standard_normal((3, 3))
FIFTEEN = rng.standard_normal(15)

SPACES["convolve2d"] = {
    "in1": {
        **floats(IMAGE),
        **laid(IMAGE, "F", "backwards", "strided", "on cuda"),
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
        **laid(FULL_RANK, "F"),
        "NaN": given(FULL_RANK * [1, np.nan, 1]),
        **laid(RANK_1, "on cuda"),
    },
    "mode": either("same", "valid", "full", "other"),
    "boundary": either("wrap", "symm", "fill", "circular", "other"),
    "fillvalue": either(2, 2.5, 0.0, np.nan, np.inf, 2 + 3j, [[1.5]], "x"),
    "device": DEVICE,
    "method": either("direct", "fft", "separable", "other"),
    "use": USE | {"fft": [{"method": "fft"}], "direct": [{"method": "direct"}]},
}

# -- Solves --------------------------------------------------------------------------------------

N = 40
MATRIX = hetero.Poisson((5, 8)).tocsr().toarray()
WEIGHTED = MATRIX * np.sqrt(np.outer(np.arange(1.0, N + 1), np.arange(1.0, N + 1)))
RHS = rng.standard_normal(N)

SPACES["solve_cg"] = {
    "A": {
        "plain": given(MATRIX),
        "weighted": given(WEIGHTED),
        **laid(WEIGHTED, "F", "strided"),
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
        **laid(RHS, "strided"),
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
    "callback": {"none": NOTHING, "given": lambda x: None},
    "device": DEVICE,
    "method": either("blas", "numba", "operator", "fused", "hybrid", "other"),
    "use": USE | {"fused": [{"method": "fused"}]},
}

FIELD = rng.standard_normal((5, 7))
EDGES = [(rng.standard_normal(7), 2.0), (rng.standard_normal(5), rng.standard_normal(5))]

SPACES["solve_poisson"] = {
    "f": {
        **floats(FIELD),
        "other": given(FIELD.T),
        "box": given(rng.standard_normal((4, 3, 5))),
        **laid(FIELD, "F"),
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
}


def impossible(name: str, point: Point) -> bool:
    """Whether the machine of these tests has no such call."""
    if name == "solve_cg":  # its hierarchy is made of kernels, which the fake device does not have
        return point["M"] == "multigrid" and point["A"].endswith("Poisson")
    if name == "solve_poisson" and point["f"] in ("box", "other"):
        return point["boundary"] == "sides" or point["x0"] != "none"
    return False


# -- The walks -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SPACES)
def test_every_parameter_of_every_function_has_values(name):
    calls = {name for name in hetero.__all__ if {"device", "method"} <= parameters(name).keys()}
    assert calls - {"plan", "use", "kmeans"} == set(SPACES)  # each call of kmeans is planned
    space = SPACES[name]
    assert set(space) - {"use"} == set(parameters(name))
    assert all(len(values) > 1 for values in space.values())
    blocks = {key for blocks in space["use"].values() for block in blocks for key in block}
    assert blocks == set(inspect.signature(hetero.use).parameters)
    if "options" in space:
        text = getattr(hetero, name).__doc__.partition("**options")[2].partition("Returns")[0]
        tried = {key for value in space["options"].values() for key in value}
        assert set(re.findall(r"``(\w+)``", text)) <= tried


@pytest.mark.parametrize("name", SPACES)
@pytest.mark.filterwarnings("ignore")  # by np.matrix, and of complex numbers that SciPy cuts off
def test_options_changed(name, ran):
    """Cold, warm, warm with one option changed, changed again, and as at first; then every two
    values of every two parameters, one call after the other. Each call gives what it gave when
    nothing was remembered."""
    space = SPACES[name]
    plain = {parameter: next(iter(values)) for parameter, values in space.items()}
    path = [plain] * 2
    for parameter, values in space.items():
        for label in values:
            changed = {**plain, parameter: label}
            path += [changed, changed, plain]
    pairs = [
        {**plain, one: first, other: second}
        for one, other in itertools.combinations(space, 2)
        for first in space[one]
        for second in space[other]
    ]
    if name == "solve_poisson":  # whose calls take long
        pairs = random.Random(0).sample(pairs, 100)
    path = [point for point in path + pairs if not impossible(name, point)]
    known = {}
    for point in path:
        key = tuple(point.values())
        if key not in known:
            tables.forget()
            known[key] = run(name, point, ran)
    tables.forget()
    for previous, point in itertools.pairwise([None, *path]):
        same(run(name, point, ran), known[tuple(point.values())], (point, previous))
