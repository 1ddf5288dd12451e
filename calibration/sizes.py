"""What calibration measures: the sizes of every operation's problems in one table, and the list of
cases made of it.

A case is what one model is fitted to: problems of one method at one place, with one dtype and one
layout; its operands are drawn here, too.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from math import inf, prod
from typing import Any, NamedTuple

import numpy as np

from hetero import registry
from hetero.arrays import HOST, dense, spec
from hetero.devices.base import Device
from hetero.imports import load
from hetero.ops import kmeans
from hetero.ops.convolve2d.filters import Filter
from hetero.ops.convolve2d.problem import SEPARABLE, described, window_of
from hetero.ops.kmeans.fit import Fit
from hetero.ops.kmeans.operands import PLUS_PLUS
from hetero.ops.solvers import multigrid as grids
from hetero.ops.solvers import poisson
from hetero.ops.solvers.cg_problem import CgOptions, system_of
from hetero.ops.solvers.poisson_methods import DST, JACOBI, MULTIGRID
from hetero.ops.solvers.systems import Solve, Stencil
from hetero.registry import DEVICE_DTYPES, Arguments, Implementation, Problem
from hetero.registry.models import ModelKey

Dims = tuple[int, ...]

FIRST = "first"  # the layout of fits from k-means++ that end after an iteration
_PERIOD = 1_000_003  # random numbers that are repeated: making them would take longer than a call
_numbers: dict[tuple[str, int], np.ndarray] = {}
# What is measured, and the kind of place -> sizes along each dimension; --quick leaves out those in
# parentheses. OpenCL has CUDA's, up to `_MOST_OPENCL`, since its device may be a slow one.
SIZES = {
    # rows, columns
    "matvec first cpu": ("4 16 128 (512) 1024 (2048) 4096 (8192)",) * 2,
    "matvec first cuda": ("4 (64) 256 (1024) 2048 (4096) 16384",) * 2,
    "matvec others cuda": ("4 (256) 1024 16384",) * 2,
    # rows, columns, sum
    "matmul first cpu": ("4 32 128 512 2048",) * 3,
    "matmul first cuda": ("4 64 (256) 1024 8192",) * 3,
    "matmul others cuda": ("4 256 8192",) * 3,
    "matmul estimated first cuda": ("16 (64) 256 (1024) 8192",) * 3,
    "matmul estimated others cuda": ("16 8192",) * 3,
    # by method: side of the image, of the filter
    "direct cpu": ("4 16 64 128 256 512 1024 (2048)", "1 (2) 3 5 11 31 (63) 129"),
    "direct cuda": ("16 256 1024 (4096) 8192", "1 3 (7) 15 63"),
    "separable cpu": ("4 16 64 128 256 512 1024 (2048)", "3 7 15 (31) 63"),
    "separable cuda": ("16 256 1024 (4096) 8192", "3 15 63"),
    "fft cpu": ("4 16 (32) 64 (128) 256 512 (768) 1024 (2048)",),
    "fft cuda": ("16 256 1024 (4096) 8192",),
    # unknowns; of sparse matrices also entries in a row
    "cg dense cpu": ("16 256 (512) 1024 (2048)",),
    "cg dense cuda": ("16 256 (512) 1024 (2048) 4096",),
    "cg csr cpu": ("256 (1024) 4096 (16384) 65536 (262144)", "5 27"),
    "cg csr cuda": ("256 (1024) (4096) 16384 (65536) 524288", "5 27"),
    "grid cpu": ("256 (1024) (4096) 16384 (65536) 262144 (1048576)",),
    "grid cuda": ("256 (1024) (16384) 65536 (262144) (1048576) 4194304 (16777216)",),
    # of smaller systems multigrid would be no more than its coarsest grid
    "cycles cpu": ("1024 (4096) 16384 (65536) 262144 (1048576)",),
    "cycles cuda": ("1024 (4096) (16384) 65536 (262144) (1048576) 4194304 (16777216)",),
    # rows, columns, clusters
    "kmeans dense cpu": ("256 4096 (16384)", "2 (16) 128", "2 (16) 128"),
    "kmeans dense cuda": ("1024 16384 131072", "2 (16) 128", "2 (16) 128"),
    "kmeans first cpu": ("256 4096 (16384)", "2 128", "2 (16) 64"),
    "kmeans first cuda": ("1024 (16384) 131072", "2 128", "2 (16) 64"),
}
_LAYOUTS = {
    "cg": ("dense", "csr", "stencil2", "stencil3", "stencil2-multigrid"),
    "poisson": ("2d", "3d"),
    "kmeans": ("dense", FIRST),
}
# Sizes of solves by operation and layout, or method; and steps: few; more of them; how many at
# most, where the set-up hides them.
_GRID, _CYCLES = ("grid", (4, 12, 516)), ("cycles", (1, 4, 4))
_SOLVED = {
    "cg dense": ("cg dense", (2, 18, 18)),
    "cg csr": ("cg csr", (4, 12, 516)),
    **dict.fromkeys(("cg stencil2", "cg stencil3", "poisson jacobi"), _GRID),
    **dict.fromkeys(("cg stencil2-multigrid", "poisson multigrid"), _CYCLES),
    "poisson dst": ("grid", (1, 1, 1)),
    "kmeans dense": ("kmeans dense", (1, 3, 9)),
    "kmeans first": ("kmeans first", (1, 1, 1)),
}
_KMEANS_ON_DEVICES = (4, 40, 516)
_ORDERS = {"matvec": ("C", "F"), "matmul": ("CC", "CF", "FC", "FF")}
_MOST_OPENCL = 1 << 16
_FEW = 4  # sizes of calls that several devices share, and the smallest: only large ones are
_ROOM = 0.5  # of a device's memory, for the operands of one call
# Seconds of a call above which larger ones are extrapolated: in full, with --quick, of transforms.
LONGEST, _QUICK_LONGEST, _LONGEST_FFT = 0.02, 0.005, 0.08


class Budget(NamedTuple):
    """How long measuring may take."""

    point: float  # seconds for one sample
    largest_copy: int  # bytes


QUICK, FULL = Budget(0.002, 2**26), Budget(0.004, 2**28)


class Place(NamedTuple):
    """Where cases are measured: the CPU, a device, or all equal devices together."""

    name: str  # of the device in the profile: "cpu", "cuda:0" or, of two together, "cuda*2"
    info: dict[str, Any]  # its description
    devices: tuple[Device, ...] = ()  # none for the CPU

    @property
    def operands_on(self) -> str:
        """Where operands lie: on the host, or on a device that computes alone."""
        return self.devices[0].name if len(self.devices) == 1 else HOST


@dataclass(frozen=True, eq=False)
class Case:
    """What one model is fitted to: a table of seconds, or a solve where there are ``steps``."""

    place: Place
    row: Implementation
    dtype: str  # as in the model's key, like the layout
    layout: str
    axes: list[list[int]]  # knots of each dimension
    problem: Any  # ``problem(*dims)``
    # ``arguments(*dims, devices=devices)`` makes those of a solve on the host. The operands of a
    # table are random numbers; of an image ``options(problem)`` have the filter, and what it takes
    # is timed by the host's clock, the launches included.
    arguments: Any = None
    options: Any = None
    steps: tuple[int, int, int] | None = None  # few, more of them, the most
    # Of a table: what the model knows a problem by -> the arguments of ``problem``.
    knots: dict[Dims, Dims] = field(default_factory=dict)
    longest: float = LONGEST
    block: int | None = None  # of columns, in a table over the points of image and filter
    estimated: bool = False  # the method estimates its time, and how far off it is gets fitted
    first: str | None = None  # the layout that is measured in detail, and this one over it

    def __str__(self) -> str:
        layout = "" if self.layout == "*" else f"{self.layout} "
        return f"{self.row.operation} {self.row.method} {layout}{self.dtype} on {self.place.name}"

    @property
    def key(self) -> ModelKey:
        """The key of its model."""
        row = self.row
        return ModelKey(self.place.name, row.operation, row.method, self.dtype, self.layout)

    @property
    def clocked(self) -> bool:
        """Whether a device's own clock times it, which other work on the host does not disturb."""
        devices = self.place.devices
        is_alone = len(devices) == 1 and devices[0].is_cuda
        return is_alone and self.steps is None and self.options is None

    @property
    def names(self) -> set[str]:
        """The names that stand for it."""
        row, place = self.row, self.place
        function = registry.operation(row.operation).function
        return {row.operation, function, row.method, place.name, row.kind}


def grid(axes: Iterable[Iterable[int]]) -> list[Dims]:
    """All combinations of the axes' sizes, the last axis fastest."""
    return [*itertools.product(*axes)]


def axes_of(what: str, place: Place, quick: bool) -> list[list[int]]:
    """The sizes of the table along each dimension."""
    kind = place.info["kind"]
    most = _MOST_OPENCL if kind == "opencl" else inf
    texts = [text.split() for text in SIZES[f"{what} {'cpu' if kind == 'cpu' else 'cuda'}"]]
    axes = [[int(n.strip("()")) for n in sizes if not (quick and n[0] == "(")] for sizes in texts]
    return [[size for size in axis if size <= most] for axis in axes]


def cases(operation: str, place: Place, quick: bool) -> Iterator[Case]:
    """Every case of an operation at a place."""
    make = {"matvec": _products, "matmul": _products, "convolve2d": _images}
    rows = [row for row in registry.lookup(operation) if row.kind == place.info["kind"]]
    for case in make.get(operation, _solves)(operation, rows, place, quick):
        if len(place.devices) > 1:
            sizes, *others = case.axes
            largest = case.problem(*(axis[-1] for axis in case.axes))
            if case.row.shared is None or not case.row.shared(largest):
                continue
            if len(sizes) > _FEW:
                case = replace(case, axes=[[sizes[0], *sizes[-_FEW:]], *others])
        yield case


def _products(
    operation: str, rows: list[Implementation], place: Place, quick: bool
) -> Iterator[Case]:
    """Products by the orders of their matrices; on devices by alignment, too: 16-byte vectors
    divide the extents, or not."""
    orders, number = _ORDERS[operation], 2 if operation == "matvec" else 3
    if not place.devices and operation == "matmul":
        orders = ("*",)
    layouts = [*itertools.product((0, 1) if place.devices else (0,), orders)]
    rows = [row for row in rows if row.price is None]  # others are priced by these
    for row, dtype, (less, order) in itertools.product(rows, DEVICE_DTYPES, layouts):
        problem = functools.partial(product, operation, place.operands_on, dtype, order)
        layout = f"{order} {'odd' if less else 'aligned'}" if place.devices else order
        estimated = row.work(problem(*(512,) * number), place.info).estimate > 0.0
        is_first = not less and (order == orders[0] or operation == "matvec")
        first = None if is_first or operation == "matvec" else f"{orders[0]} aligned"
        what = f"{operation} {'estimated ' * estimated}{'first' if is_first else 'others'}"
        axes = [[n - less for n in axis] for axis in axes_of(what, place, quick)]
        if row.why_not(problem(*(axis[-1] for axis in axes)), place.info) is not None:
            continue  # it cannot, or would do as another one does
        knots = {d: d for d in sorted(grid(axes), key=prod) if _fits(problem(*d), place)}
        how = {"longest": _QUICK_LONGEST if quick else LONGEST, "first": first}
        how |= {"knots": knots, "estimated": estimated}
        yield Case(place, row, dtype, layout, axes, problem, **how)


def _fits(problem: Any, place: Place) -> bool:
    """Whether the operands leave room in a device's memory."""
    nbytes = sum(o.nbytes for o in (*problem.inputs, problem.output))
    return not place.devices or nbytes <= _ROOM * place.info.get("memory_bytes", nbytes / _ROOM)


def _images(
    operation: str, rows: list[Implementation], place: Place, quick: bool
) -> Iterator[Case]:
    """Convolutions of square images, filtered to the same size."""
    on_cpu, options = not place.devices, functools.cache(filter_options)
    for row, dtype in itertools.product(rows, DEVICE_DTYPES):
        if f"{row.method} {'cpu' if on_cpu else 'cuda'}" not in SIZES:
            continue
        problem = functools.partial(image, row, dtype, place.operands_on)
        images, *filters = axes_of(row.method, place, quick)
        if row.obstacle(image(row, dtype, HOST, images[-1], 5), place.info) is not None:
            continue
        block: int | None = None
        sizes = [(n, min(33, max(n // 48, 3))) for n in images]
        if filters:
            sizes, block = grid([images, *filters]), 1
            if on_cpu:
                convolve = load("hetero.kernels.cpu.convolve")
                block = convolve.BLOCK // np.dtype(dtype).itemsize
        knots, info = dict[Dims, Dims](), {"kind": row.kind}
        for size in sizes:
            made = problem(*size)
            if row.obstacle(made, info) is None:
                dims = row.work(made, info).dims
                if block is not None:
                    dims = dims[0] * -(-dims[1] // block) * block, dims[2] * dims[3]
                knots[dims] = size
        knots = dict(sorted(knots.items(), key=lambda item: prod(item[0])))
        axes = [sorted(set(extents)) for extents in zip(*knots, strict=True)]
        longest = _LONGEST_FFT if not filters else _QUICK_LONGEST if quick else LONGEST
        how = {"options": lambda made: options(made.inputs[1].shape, made.dtype)}
        how |= {"knots": knots, "longest": longest, "block": block}
        yield Case(place, row, dtype, "*", axes, problem, **how)


def _solves(
    operation: str, rows: list[Implementation], place: Place, quick: bool
) -> Iterator[Case]:
    """Set-up and one step of conjugate gradients, Poisson's equation and k-means; no solve ends
    before its last step."""
    if operation == "kmeans":  # one method of a kind is measured
        rows = rows[:1]
    problem_of, arguments_of = _SOLVES[operation]
    for row, dtype, layout in itertools.product(rows, DEVICE_DTYPES, _LAYOUTS[operation]):
        if row.method in ("scipy", "adaptive") and operation != "kmeans":
            continue  # the plain library's is not measured, the other is made of others
        if row.price is not None and layout != "dense":
            continue  # 'hybrid' moves the vectors, which are most of the work there
        problem = functools.partial(problem_of, layout, dtype)
        arguments = functools.partial(arguments_of, layout, dtype)
        what, steps = _SOLVED[f"{operation} {row.method if operation == 'poisson' else layout}"]
        if what == "kmeans dense" and place.devices:
            steps = _KMEANS_ON_DEVICES
        if row.method == DST:
            arguments = functools.partial(arguments, direct=True)
        # Others are faster than Jacobi's sweeps at every size.
        axes = axes_of(what, place, quick or row.method == JACOBI)
        if row.method == MULTIGRID and place.devices:
            axes[0].insert(0, grids.coarsest(row.kind))
        if row.obstacle(problem(*(axis[0] for axis in axes)), place.info) is None:
            yield Case(place, row, dtype, layout, axes, problem, arguments, steps=steps)


# -- Operands --------------------------------------------------------------------------------------


def numbers(shape: tuple[int, ...], dtype: str, number: int = 0) -> np.ndarray:
    """Random numbers between -0.5 and 0.5, to read only: for each operand of a call, by its number,
    the same memory each time.

    Fresh pages would take longer to fill than most calls take. `forget_numbers` frees it.
    """
    count, known = math.prod(shape), _numbers.get((dtype, number))
    if known is None or known.size < count:
        drawn = (np.random.default_rng(number).random(_PERIOD) - 0.5).astype(dtype)
        size = max(count, _PERIOD if known is None else known.size * 5 // 4)  # few fill it anew
        known = _numbers[dtype, number] = np.resize(drawn, size)
    return known[:count].reshape(shape)


def forget_numbers() -> None:
    """Free what `numbers` keeps."""
    _numbers.clear()


# -- Products, convolutions ------------------------------------------------------------------------


def product(operation: str, on: str, dtype: str, order: str, *dims: int) -> Problem:
    """A matvec of dimensions (m, k), or matmul of (m, n, k), with all operands in one place."""
    m, *n, k = dims
    first, second = ("C", "C") if order == "*" else (order[0], order[-1])
    operands = spec((m, k), dtype, on=on, order=first), spec((k, *n), dtype, on=on, order=second)
    return registry.operation(operation).problem(*operands)


def image(row: Implementation, dtype: str, on: str, n: int, filter_size: int) -> Problem:
    """An image of n x n, filtered to the same size; the filter of rank 1 where that is measured."""
    shapes = (n, n), (filter_size, filter_size)
    pixels, filter = (spec(shape, dtype, on=on).operand() for shape in shapes)
    found = window_of(*shapes, "same", rank=int(row.method == SEPARABLE))
    return described(pixels, filter._replace(location=HOST), np.dtype(dtype), found)


def filter_options(shape: tuple[int, int], dtype: str) -> Filter:
    """A filter of rank 1, and nothing beyond the image."""
    line = 0.5 + np.random.default_rng(1).random(shape[0])
    values = np.outer(line, line) / line.sum() ** 2
    return Filter(values.astype(dtype))


# -- Solves ----------------------------------------------------------------------------------------


def even_grid(n: int, ndim: int) -> tuple[int, ...]:
    """The most even grid of about n points; an extent is no power of two less one."""
    return (round(n ** (1.0 / ndim)),) * ndim


def _poisson(layout: str, dtype: str, n: int) -> Problem:
    return poisson.problem(spec(even_grid(n, int(layout[0])), dtype), rtol=0.0, maxiter=1)


def _poisson_arguments(
    layout: str, dtype: str, n: int, *, direct: bool = False, devices: tuple[Device, ...] = ()
) -> Arguments:
    """A direct method's tolerance and extents are as most calls have them."""
    shape = tuple(side - direct for side in even_grid(n, int(layout[0])))
    asked = {"lenient": direct, "measured": not direct}
    solve = Solve(Stencil(shape, (1.0,) * len(shape)), 1e-8 * direct, 0.0, 1, **asked)
    return Arguments((numbers(shape, dtype),), np.zeros(shape, dtype), solve)


def _cg(layout: str, dtype: str, n: int, row_length: int = 5) -> Problem:
    kind = layout.partition("-")[0]
    entries = {"dense": n * n, "csr": n * row_length}.get(kind, 5 * n)
    place = dense((n,), np.dtype(dtype), "host")
    matrix = (dense((n, n), np.dtype(dtype), "host"),) if kind == "dense" else ()
    inputs, options = (*matrix, place), CgOptions(0.0, 1)
    return Problem("cg", (n, entries), dtype, inputs, place, layout=layout, options=options)


def _cg_arguments(
    layout: str, dtype: str, n: int, row_length: int = 5, *, devices: tuple[Device, ...] = ()
) -> Arguments:
    operators = load("hetero.ops.solvers.operators")
    kind, _, preconditioner = layout.partition("-")
    if kind == "dense":
        square = numbers((n, n), dtype)
        matrix = square + square.T
        matrix.flat[:: n + 1] += math.sqrt(n)  # more than the norm of the rest
    elif kind == "csr":
        matrix = _banded(n, row_length, dtype)
    else:
        matrix = operators.Poisson(even_grid(n, int(kind[-1])), dtype=dtype)
    b = numbers(matrix.shape[:1], dtype)
    whole, inverse = system_of(matrix, preconditioner or None, np.dtype(dtype), devices)
    solve = Solve(lambda used: (whole, inverse), 0.0, 0.0, 1)
    return Arguments((b,), np.zeros(b.shape, dtype), solve)


def _banded(n: int, row_length: int, dtype: str) -> Any:
    """A diagonally dominant matrix: ``row_length`` diagonals over about sqrt(n)."""
    half = row_length // 2
    offsets = np.unique(np.linspace(1, max(math.isqrt(n), half), half).astype(int))
    offsets = np.concatenate([-offsets[::-1], [0], offsets])
    values = np.where(offsets == 0, len(offsets) - 0.99, -1.0)
    diags = load("scipy.sparse").diags_array
    return diags(values[:, None], offsets=offsets, shape=(n, n), format="csr", dtype=dtype)


def _fit(layout: str, dtype: str, n: int, d: int, k: int) -> Problem:
    if layout == FIRST:
        return kmeans.problem(spec((n, d), dtype), k, max_iter=1)
    return kmeans.problem(spec((n, d), dtype), k, init=spec((k, d), dtype))


def _fit_arguments(
    layout: str, dtype: str, n: int, d: int, k: int, *, devices: tuple[Device, ...] = ()
) -> Arguments:
    """Random rows, and the first of them as centroids."""
    X = numbers((n, d), dtype)
    init = PLUS_PLUS if layout == FIRST else X[:k].copy()
    fit = Fit(1, -1.0, init, random=np.random.RandomState(0))
    return Arguments((X,), np.empty((k, d), dtype), fit)


# ``problem(layout, dtype, *dims)``, and the ``arguments`` of its run, which take ``devices``, too.
_SOLVES = {
    "poisson": (_poisson, _poisson_arguments),
    "cg": (_cg, _cg_arguments),
    "kmeans": (_fit, _fit_arguments),
}
