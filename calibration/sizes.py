"""What calibration measures: the sizes of every operation's problems in one table, and the list of
cases made of it.

A case is what one model is fitted to: problems of one method at one place, with one dtype and one
layout. `hetero.calibration.operands` draws their operands.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from math import inf, prod
from typing import Any, NamedTuple

import numpy as np

from hetero import registry
from hetero.arrays import HOST
from hetero.calibration import operands
from hetero.devices.base import Device
from hetero.imports import load
from hetero.ops.solvers import multigrid as grids
from hetero.ops.solvers.poisson_methods import BY_NAME, MULTIGRID
from hetero.registry import Implementation
from hetero.registry.models import ModelKey
from hetero.registry.problem import DEVICE_DTYPES

Dims = tuple[int, ...]

# What is measured, and the kind of place -> sizes along each dimension; --quick leaves out those in
# parentheses. OpenCL has CUDA's, up to `_MOST_OPENCL`, since its device may be a slow one.
SIZES = {
    # rows, columns
    "matvec first cpu": ("4 16 128 (512) 1024 (2048) 4096 (8192)",) * 2,
    "matvec first cuda": ("4 (64) 256 (512) (1024) 2048 (4096) 16384",) * 2,
    "matvec others cuda": ("4 (256) 1024 16384",) * 2,
    # rows, columns, sum
    "matmul first cpu": ("4 32 128 (256) 512 2048",) * 3,
    "matmul first cuda": ("4 64 (256) 1024 (2048) (4096) 8192",) * 3,
    "matmul others cuda": (*("4 256 (2048) 8192",) * 2, "4 32 256 (2048) 8192"),
    "matmul estimated cuda": ("16 (64) 256 (1024) 8192",) * 3,
    "matmul estimated, others cuda": ("16 256 8192",) * 3,
    # side of the image, of the filter
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
    "cg csr cuda": ("256 (1024) (4096) 16384 (65536) (262144) 1048576", "5 27"),
    "grid cpu": ("256 (1024) (4096) 16384 (65536) 262144 (1048576)",),
    "grid cuda": ("256 (1024) (4096) (16384) 65536 (262144) (1048576) 4194304 (16777216)",),
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
    "kmeans": ("dense", operands.FIRST),
}
# Steps of a solve: few; more of them; how many at most, where the set-up hides them.
_ITERATIONS, _CYCLES, _DENSE, _ONE = (4, 12, 516), (1, 4, 4), (2, 18, 18), (1, 1, 1)
_KMEANS, _KMEANS_ON_DEVICES = (1, 3, 9), (4, 40, 516)
_ORDERS = {"matvec": ("C", "F"), "matmul": ("CC", "CF", "FC", "FF")}
_MOST_OPENCL = 1 << 16
_FEW = 4  # sizes of calls that several devices share, and the smallest: only large ones are
_ROOM = 0.5  # of a device's memory, for the operands of one call
# Seconds of a call above which larger ones are extrapolated: in full, with --quick, of transforms.
LONGEST, _QUICK_LONGEST, _LONGEST_FFT = 0.02, 0.005, 0.08


class Budget(NamedTuple):
    """How long measuring may take."""

    quick: bool
    point: float  # seconds for one sample
    largest_copy: int  # bytes


QUICK, FULL = Budget(True, 0.002, 2**26), Budget(False, 0.005, 2**28)


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

    def __str__(self) -> str:
        layout = "" if self.layout == "*" else f"{self.layout} "
        return f"{self.row.operation} {self.row.method} {layout}{self.dtype} on {self.place.name}"

    @property
    def key(self) -> ModelKey:
        """The key of its model."""
        row = self.row
        return ModelKey(self.place.name, row.operation, row.method, self.dtype, self.layout)

    @property
    def names(self) -> set[str]:
        """The names that stand for it."""
        row, place = self.row, self.place
        function = registry.operation(row.operation).function
        return {row.operation, function, row.method, place.name, row.kind}


def grid(axes: Iterable[Iterable[int]]) -> list[Dims]:
    """All combinations of the axes' sizes, the last axis fastest."""
    return [*itertools.product(*axes)]


def _sizes(text: str, quick: bool) -> list[int]:
    return [int(size.strip("()")) for size in text.split() if not (quick and size[0] == "(")]


def axes_of(what: str, place: Place, quick: bool) -> list[list[int]]:
    """The sizes of the table along each dimension."""
    kind = place.info["kind"]
    most = _MOST_OPENCL if kind == "opencl" else inf
    return [
        [size for size in _sizes(text, quick) if size <= most]
        for text in SIZES[f"{what} {'cpu' if kind == 'cpu' else 'cuda'}"]
    ]


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
        problem = functools.partial(operands.product, operation, place.operands_on, dtype, order)
        layout, what, estimated = order, "first", False
        if place.devices:
            layout = f"{order} {'odd' if less else 'aligned'}"
            estimated = row.work(problem(*(512,) * number), place.info).estimate > 0.0
            is_first = not less and (order == orders[0] or operation == "matvec")
            what = "first" if is_first else "others"
            if estimated:
                what = "estimated" if is_first else "estimated, others"
        axes = [[n - less for n in axis] for axis in axes_of(f"{operation} {what}", place, quick)]
        if row.why_not(problem(*(axis[-1] for axis in axes)), place.info) is not None:
            continue  # it cannot, or would do as another one does
        knots = [dims for dims in sorted(grid(axes), key=prod) if _fits(problem(*dims), place)]
        yield Case(
            place,
            row,
            dtype,
            layout,
            axes,
            problem,
            knots={dims: dims for dims in knots},
            longest=_QUICK_LONGEST if quick else LONGEST,
            estimated=estimated,
        )


def _fits(problem: Any, place: Place) -> bool:
    """Whether the operands leave room in a device's memory."""
    nbytes = sum(o.nbytes for o in (*problem.inputs, problem.output))
    return not place.devices or nbytes <= _ROOM * place.info.get("memory_bytes", nbytes / _ROOM)


def _images(
    operation: str, rows: list[Implementation], place: Place, quick: bool
) -> Iterator[Case]:
    """Convolutions of square images, filtered to the same size."""
    on_cpu, options = not place.devices, functools.cache(operands.filter_options)
    for row, dtype in itertools.product(rows, DEVICE_DTYPES):
        if f"{row.method} cuda" not in SIZES:
            continue
        problem = functools.partial(operands.image, row, dtype, place.operands_on)
        images, *filters = axes_of(row.method, place, quick)
        if row.obstacle(operands.image(row, dtype, HOST, images[-1], 5), place.info) is not None:
            continue
        block: int | None = None
        sizes = [(n, min(33, max(n // 48, 3))) for n in images]
        if filters:
            sizes, block = grid([images, *filters]), 1
            if on_cpu:
                convolve = load("hetero.kernels.cpu.convolve")
                block = convolve.block_width(np.dtype(dtype))
        knots = _by_work(row, problem, sizes, block)
        yield Case(
            place,
            row,
            dtype,
            "*",
            [sorted(set(extents)) for extents in zip(*knots, strict=True)],
            problem,
            options=lambda made: options(made.inputs[1].shape, made.dtype),
            knots=knots,
            longest=_LONGEST_FFT if not filters else _QUICK_LONGEST if quick else LONGEST,
            block=block,
        )


def _by_work(
    row: Implementation, problem: Any, sizes: Iterable[Dims], block: int | None
) -> dict[Dims, Dims]:
    """What the model knows a problem by -> the problem's sizes, smaller ones first."""
    found, info = {}, {"kind": row.kind}
    for size in sizes:
        made = problem(*size)
        if row.obstacle(made, info) is None:
            dims = row.work(made, info).dims
            if block is not None:
                dims = dims[0] * -(-dims[1] // block) * block, dims[2] * dims[3]
            found[dims] = size
    return dict(sorted(found.items(), key=lambda item: prod(item[0])))


def _solves(
    operation: str, rows: list[Implementation], place: Place, quick: bool
) -> Iterator[Case]:
    """Set-up and one step of conjugate gradients, Poisson's equation and k-means."""
    if operation == "kmeans":  # one method of a kind is measured
        rows = rows[:1]
    for row, dtype, layout in itertools.product(rows, DEVICE_DTYPES, _LAYOUTS[operation]):
        if row.method in ("scipy", "adaptive") and operation != "kmeans":
            continue  # the plain library's is not measured, the other is made of others
        if row.price is not None and layout != "dense":
            continue  # 'hybrid' moves the vectors, which are most of the work there
        what, steps, less = "grid", _ITERATIONS, []
        if operation == "kmeans":
            what, steps = f"kmeans {layout}", _KMEANS_ON_DEVICES if place.devices else _KMEANS
            steps = _ONE if layout == operands.FIRST else steps
        elif layout in ("dense", "csr"):
            what, steps = f"cg {layout}", _DENSE if layout == "dense" else steps
        elif layout.endswith("multigrid"):
            what, steps = "cycles", _CYCLES
        elif operation == "poisson" and row.method == MULTIGRID:
            what, steps, less = "cycles", _CYCLES, [grids.coarsest(row.kind)]
        elif operation == "poisson" and not BY_NAME[row.method].iterations:
            steps = _ONE
        problem, arguments = operands.of_solve(operation, layout, dtype, steps == _ONE)
        first, *others = axes_of(what, place, quick)
        axes = [[*less, *first], *others]
        if row.obstacle(problem(*(axis[0] for axis in axes)), place.info) is None:
            yield Case(place, row, dtype, layout, axes, problem, arguments, steps=steps)
