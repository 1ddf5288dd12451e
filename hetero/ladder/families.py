"""The families of kernels that have a ladder: their problems, operands, results by NumPy; and a
ladder at one size, on a device or on the CPU, run and checked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from hetero.devices.base import Device
from hetero.devices.storage import Workspace
from hetero.errors import MethodNotAvailable, one_of, readable
from hetero.host import loops as compiled
from hetero.imports import load
from hetero.kernels.ladder import HELD_BYTES, LADDERS, Block, Ladder, Step, Steps
from hetero.kernels.procedure import of_attributes, of_limits
from hetero.ops import functions
from hetero.pricing.plan import CPU

Arrays = dict[str, Any]
Dims = tuple[int, ...]
_SWEEPS = 64  # of hetero's own Jacobi that are timed
_ROOM, _PLACES = 1 << 28, 8  # bytes of operands at different places, against caches
_MANY = 1 << 16  # threads: more than there are
_FLOPS = 1e6  # of the size that is tried first, to see how long others take
TOLERANCE = {"float32": 1e-4, "float64": 1e-11}  # of the largest value expected
Call = Callable[[int], object]  # ``call(turn)``


class Family(NamedTuple):
    """A family of kernels.

    ``of_size(size)``, of a convolution ``of_size(size, filter)``, gives the dimensions ``dims``;
    ``operands(random, *dims)`` the buffers by name, as the CPU's loops take them in turn, of which
    ``out`` has the result; ``expected(arrays, repeats)`` results by NumPy; ``work(*dims)`` flops,
    and elements that are moved at least. ``call(arrays, **where)`` is hetero's own function, which
    makes ``made`` results; ``methods`` are its ways on a device and what is new in them. ``what``
    is timed, in ``dtype`` by default.
    """

    ladder: Ladder
    dims: tuple[str, ...]
    of_size: Callable[..., Dims]
    operands: Callable[..., Arrays]
    out: str
    expected: Callable[[Arrays, int], Arrays]
    work: Callable[..., tuple[float, float]]
    call: Callable[..., Any]
    methods: Mapping[str, str]
    what: str = "call"
    dtype: str = "float32"
    made: int = 1

    def arrays(self, dtype: str, dims: Dims) -> Arrays:
        """The operands, random numbers around 0, and results, which are zero."""
        rng = np.random.default_rng(0)
        return self.operands(
            lambda *shape: (rng.random(shape, np.float32) - np.float32(0.5)).astype(dtype), *dims
        )


def _filtered(a: Arrays, repeats: int) -> Arrays:
    return {"out": load("scipy.signal").convolve(a["image"], a["taps"][::-1, ::-1], "same")}


def _convolved(a: Arrays, **where: Any) -> Any:
    taps = np.ascontiguousarray(a["host"]["taps"][::-1, ::-1])
    return functions.convolve2d(a["image"], taps, "same", **where)


def _swept(a: Arrays, repeats: int) -> Arrays:
    u, f = a["u"], a["f"] * a["u"].dtype.type(0.25 / (len(a["u"]) + 1) ** 2)
    for _ in range(repeats):
        near = load("scipy.ndimage").convolve(u, [[0, 1, 0], [1, 0, 1], [0, 1, 0]], mode="constant")
        u = u.dtype.type(0.25) * near + f
    return {"u_new" if repeats == 1 else "u": u}


def _solved(a: Arrays, **where: Any) -> Any:
    limits = {"method": "jacobi", "rtol": 0.0, "maxiter": _SWEEPS}
    return functions.solve_poisson(a["f"], **(where | limits))


def _rows(random: Any, n: int, d: int, k: int) -> Arrays:
    X = random(n, d)
    counts = {name: np.zeros(n, np.int32) for name in ("labels", "changed")}
    return {"X": X, "centroids": X[:k].copy(), "total": np.zeros(1, np.int32), **counts}


def _labelled(a: Arrays, repeats: int) -> Arrays:
    apart = load("scipy.spatial.distance").cdist(a["X"], a["centroids"], "sqeuclidean")
    labels = apart.argmin(axis=1).astype(np.int32)
    return {"labels": labels, "total": np.array([np.count_nonzero(labels)], np.int32)}


def _clustered(a: Arrays, **where: Any) -> Any:
    init = a["host"]["centroids"]
    return functions.kmeans(a["X"], len(init), init=init, max_iter=1, tol=0.0, **where)


# fmt: off
FAMILIES = {
    "matmul": Family(
        LADDERS["matmul"], ("M", "N", "K"), lambda size: (size, size, size),
        lambda random, m, n, k: {"A": random(m, k), "B": random(k, n), "C": 0 * random(m, n)},
        "C", lambda a, repeats: {"C": a["A"] @ a["B"]},
        lambda m, n, k: (2.0 * m * n * k, m * k + k * n + m * n),
        lambda a, **where: functions.matmul(a["A"], a["B"], out=a["C"], **where),
        {"tensor": "a block for each multiprocessor: it copies ahead while it writes a tile",
         "tiled": "tiles chosen for the sizes, from registers", "library": "cuBLAS"},
    ),
    "matvec": Family(
        LADDERS["matvec"], ("M", "K"), lambda size: (size, size),
        lambda random, m, k: {"A": random(m, k), "x": random(k), "y": 0 * random(m)},
        "y", lambda a, repeats: {"y": a["A"] @ a["x"]},
        lambda m, k: (2.0 * m * k, m * k + k + m),
        lambda a, **where: functions.matvec(a["A"], a["x"], out=a["y"], **where),
        {"tiled": "vectors of 16 bytes from memory to registers"},
    ),
    "convolve2d": Family(
        LADDERS["convolution"], ("H", "W", "FH", "FW"),
        lambda size, filter=15: (size, size, filter, filter),
        lambda random, *d: {"image": random(*d[:2]), "taps": random(*d[2:]),
                            "out": 0 * random(*d[:2])},
        "out", _filtered, lambda h, w, fh, fw: (2.0 * h * w * fh * fw, 2 * h * w + fh * fw),
        _convolved, {"direct": "many results of a thread in registers"},
    ),
    "solve_poisson": Family(
        LADDERS["jacobi"], ("H", "W"), lambda size: (size, size),
        lambda random, *dims: {"u": random(*dims), "f": random(*dims), "u_new": 0 * random(*dims)},
        "u_new", _swept, lambda h, w: (6.0 * h * w, 3 * h * w),
        _solved, {"jacobi": "several sweeps in one pass over the memory"},
        "sweep", "float64", _SWEEPS,
    ),
    "kmeans": Family(
        LADDERS["kmeans"], ("N", "D", "K"), lambda size: (size, min(64, size), min(64, size)),
        _rows, "labels", _labelled, lambda n, d, k: (3.0 * n * d * k, n * d + k * d + n),
        _clustered, {"lloyd": "a whole iteration: labels, sums of clusters, centroids"},
        "iteration",
    ),
}
# fmt: on


def family(function: str) -> Family:
    """A family by hetero's function; ValueError for what has none."""
    if function not in FAMILIES:
        raise ValueError(one_of("operation", FAMILIES, function))
    return FAMILIES[function]


def problems(
    of: Family,
    sizes: Sequence[int] | None,
    dims: Sequence[int] | None,
    filter: int | None,
    usual: Sequence[int],
) -> list[Dims]:
    """The dimensions of some sizes, by default the usual ones, or those that are given; checked."""
    filters = None if filter is None else [filter]
    for name, given in (("sizes", sizes), ("dims", dims), ("filter", filters)):
        if given is not None and min(given, default=0) < 1:
            raise ValueError(f"{name} must be 1 or more, got {', '.join(map(str, given))}")
    if filter is not None and "FH" not in of.dims:
        raise ValueError(f"--filter is of a convolution, not of {of.ladder.family}")
    if dims is None:
        return [of.of_size(n, *([filter] if filter else [])) for n in dict.fromkeys(sizes or usual)]
    if sizes or filter or len(dims) != len(of.dims):
        raise ValueError(f"--dims are {','.join(of.dims)}, alone, got {','.join(map(str, dims))}")
    return [tuple(dims)]


# -- A ladder at one size --------------------------------------------------------------------------


class OnCpu:
    """A family's loops at one size; those that run on threads on some numbers of them, or all."""

    def __init__(self, threads: Sequence[int], of: Family, dtype: str, dims: Dims) -> None:
        found = load("hetero.kernels.cpu.ladder").LADDERS.get(of.ladder.family, ())
        if not found:
            family = of.ladder.family
            raise ValueError(f"{family} has no loops on {CPU!r}: its kernels are a device's")
        self.of, self.dims, self.dtype, self._threads = of, dims, dtype, threads
        self.rungs, self.methods = {loop.name: loop for loop in found}, dict[str, str]()
        self.arrays = of.arrays(dtype, dims)

    def variants(self, name: str) -> list[dict[str, Any]]:
        """How a loop is called, by the options of `prepared`."""
        several = self._threads if self.rungs[name].threads else ()
        return [{"threads": number} for number in several or (None,)]

    def obstacle(self, name: str) -> str | None:
        """Why a loop cannot do this size; None where it can."""
        return compiled.obstacle()

    def prepared(self, name: str, threads: int | None = None) -> Call:
        """A loop as a call."""
        loop, given = self.rungs[name], tuple(self.arrays.values())
        if loop.threads:
            given = (load("hetero.host.threads").team_of(threads or _MANY), *given)

        def call(turn: int) -> None:
            self.arrays[self.of.out][...] = 0
            loop.run(*given)

        return call

    def check(self, name: str) -> None:
        """ValueError where a loop's result differs from NumPy's by more than rounding."""
        self.prepared(name)(0)
        out = self.of.out
        _compare(f"{name}'s {out}", self.arrays[out], self.of.expected(self.arrays, 1)[out])


class OnDevice:
    """A family's rungs, and hetero's own methods, at one size on an active device."""

    def __init__(self, device: Device, of: Family, dtype: str, dims: Dims) -> None:
        self.device, self.of, self.dims, self.dtype = device, of, dims, dtype
        self.rungs, self.methods = of.ladder.rungs, of.methods
        self.arrays = of.arrays(dtype, dims)
        self.card = of_attributes(device, device.attribute) if device.is_cuda else of_limits(device)
        nbytes = sum(array.nbytes for array in self.arrays.values())
        places = max(1, min(_PLACES, _ROOM // nbytes)) if device.is_cuda else 1
        self._owner = Workspace(device, "ladder")
        self._sets = [
            {name: self._owner.upload(array) for name, array in self.arrays.items()}
            for _ in range(places)
        ]

    def variants(self, name: str) -> list[dict[str, Any]]:
        """How a rung is launched, by the options of `prepared`."""
        return [{"block": self.chosen(name)}]

    def chosen(self, name: str) -> Block:
        """The block that a rung is launched with."""
        return self.of.ladder.chosen(name, self.dtype, self.card, self.dims)

    def steps(self, name: str, block: Block | None = None) -> Steps:
        """The launches of a rung, by default with its own block."""
        given = block or self.chosen(name), self.dtype, self.card, *self.dims
        return self.of.ladder.steps(self.of.ladder, self.rungs[name], *given)

    def compile_ahead(self, *given: tuple[Any, ...]) -> None:
        """Compile what `steps` gives for some arguments."""
        launches = [step.launch for one in given for step in self.steps(*one).launches]
        self.device.compile_ahead([(launch.source, launch.defines) for launch in launches])

    def obstacle(self, name: str) -> str | None:
        """Why a rung cannot do this size here; None where it can."""
        wanted = self.of.ladder.rungs[name].capability
        if wanted and (self.device.capability, self.dtype) != (wanted, "float32"):
            return "it is for float32 on compute capability {}.{}".format(*wanted)
        step, what, nbytes, most = self.steps(name).launches[0], "constant memory", 0, HELD_BYTES
        if step.held:
            nbytes = self.arrays[step.held].nbytes
        elif step.cleared:
            (columns, share), what = step.launch.arguments[5:7], "shared memory"
            most = dict(step.launch.defines)["SHARED_BYTES"]
            nbytes = share * columns * np.dtype(self.dtype).itemsize
        return f"{nbytes} bytes do not fit in the {most} of {what}" if nbytes > most else None

    def prepared(self, name: str, block: Block | None = None) -> Call:
        """A rung as a call, what is made once before done."""
        steps = self.steps(name, block)
        scratch = {n: self._owner.allocate(nbytes) for n, nbytes in steps.scratch.items()}
        sets = [buffers | scratch for buffers in self._sets]
        for step in steps.before:
            self._run(step, sets[0])

        def call(turn: int) -> None:
            for step in steps.launches:
                self._run(step, sets[turn % len(sets)])

        return call

    def _run(self, step: Step, buffers: Arrays) -> None:
        device, launch, given = self.device, step.launch, dict(buffers)
        where = launch.source, launch.kernel, launch.defines
        if step.held:
            kernel, given["held"], _owner = device.constant_memory(*where, "held", HELD_BYTES)
            device.copy(given["held"], buffers[step.held], self.arrays[step.held].nbytes)
        else:
            kernel = device.build(*where)
        arguments = [given[a] if type(a) is str else a for a in launch.arguments]
        if step.cleared:
            device.fill(buffers[step.cleared], 4)
            together = device.cooperative(*where, launch.block, 0)
            if together is not None:
                together.launch(launch.grid, arguments)
                return
            if launch.grid > 1:
                raise MethodNotAvailable(f"blocks do not wait for each other on {device.name}")
        device.launch(kernel, launch.grid, launch.block, arguments, launch.shared_bytes)

    def check(self, name: str, block: Block | None = None) -> None:
        """ValueError where a rung's results differ from NumPy's by more than rounding."""
        expected = self.of.expected(self.arrays, self.rungs[name].repeats)
        self.prepared(name, block)(0)
        for result, value in expected.items():
            found = np.zeros_like(value)
            self.device.download(self._sets[0][result], found)
            _compare(f"{name}'s {result}", found, value)

    def method(self, name: str) -> Call:
        """A method of hetero's on arrays of the device, as a call."""
        there: Arrays = {"host": self.arrays}
        for key, host in self.arrays.items():
            there[key], buffer = self.device.new_array(host.shape, host.dtype)
            self.device.upload(host, buffer)
        return lambda turn: self.of.call(there, device=self.device.name, method=name)


def _compare(what: str, found: np.ndarray, value: np.ndarray) -> None:
    """ValueError where results differ by more than rounding."""
    worst = float(np.abs(found - value).max() / max(np.abs(value).max(), 1e-30))
    if not worst <= TOLERANCE.get(value.dtype.name, 0.0):
        raise ValueError(f"{what} is wrong by {worst:.2g} of the largest value")


def too_long(of: Family, dims: Dims, limit: float, seconds: Callable[[Dims], float]) -> str | None:
    """Why a size would take too long, by sizes that double: each shows how long the next takes."""
    sizes = [dims]
    while of.work(*sizes[0])[0] > _FLOPS and max(sizes[0]) > 1:
        sizes.insert(0, tuple(max(1, size // 2) for size in sizes[0]))
    flops = [of.work(*size)[0] for size in sizes]
    for at, (here, following) in enumerate(pairwise(flops)):
        rate = seconds(sizes[at]) / here
        if rate * following > limit:
            return f"would take about {readable(rate * flops[-1])}"
        if rate * flops[-1] < limit / 8:  # and less than that, since small sizes are slow
            break
    return None
