"""What an operation provides for verify, bench and demo: calls to draw, to compare, to show.

`hetero verify`, `bench` and `demo` do all measuring themselves. They ask for what an operation's
module of benchmarks (`Operation.benchmarks`) has of

``draw(random, on, largest)``
    A random `Trial`, its operands on "host" or on a device, no extent above ``largest``.
``VERIFIED``
    True where verify takes the operation if none is named.
``remembered(plan, operands, options)``
    A remembered call of a plan on host operands, as ``run()``. Without it the public function is
    measured, with ``device=`` and ``method=``.
``benchmarks(dtype, **options)``
    The `Benchmark` s of bench, one at a time.
``CASES``
    Name -> `Named` cases of bench; `benchmarks` gets their ``sizes`` in place of its own.
``DTYPE``
    The default dtype of bench. Without it float32.
``OPTIONS``
    Options of bench in addition to the dtype: some of "device" and "order". "device" is one with a
    clock that can be read, or "cpu"; "order" is "C" or "F".
``GROWING``
    Positions of the dimensions that grow with a call's size, as `hetero transfer` varies it; the
    first one tells how large it is. Without it all do.
``moved(dtype)``
    The `Benchmark` s of `hetero bench movement`: calls on large host operands, on the wall's clock.
``columns(rows)``
    All rows as one `BenchTable`. Without it each row is a table of its own.
``demonstrated(largest)``
    The `Benchmark` s of demo: calls on host operands, as they are placed by themselves, beside the
    same of other libraries. A call gives its result, or a tuple that begins with that and ends
    with the number of iterations or a dict that has it.
``pictured_result(result, path)``
    Saves a picture of such a result, where that makes sense, and gives the file.
``LINES``, ``PLANES``
    Problems over one size, each a `Line`, and over two, each a `Plane`, for the pictures of
    `hetero report`. Without ``PLANES`` there are none of these.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from hetero import devices
from hetero.calling import planner
from hetero.imports import load
from hetero.pricing.plan import CPU, Candidate, Plan
from hetero.registry import Operation

TimedCall = Callable[[int], object]
DTYPE = "float32"  # of bench, unless an operation or its user says otherwise
_LIBRARIES = {  # module -> the library that has it, its package
    "cv2": ("OpenCV", "opencv-python-headless"),
    "pyamg": ("PyAMG", "pyamg"),
    "sklearn.cluster": ("scikit-learn", "scikit-learn"),
}


class Trial(NamedTuple):
    """One call; of an operand for which any numbers will do, a `hetero.spec`."""

    operands: tuple[Any, ...]
    options: Mapping[str, Any] = {}


class Named(NamedTuple):
    """Sizes that somebody else measured, for bench: their dtype, and the dimensions of each."""

    dtype: str
    sizes: tuple[tuple[int, ...], ...]


class Iterations(NamedTuple):
    """A solve of which one iteration is timed: from the difference of many and few of them."""

    run: TimedCall  # ``run(count)``
    few: int
    many: int


class Comparison(NamedTuple):
    """The ways to do one thing: name -> ``call(turn)`` or `Iterations`. Turns count up, so that
    operands can rotate."""

    calls: Mapping[str, TimedCall | Iterations]  # hetero's own
    peers: Mapping[str, TimedCall | Iterations] = {}  # other libraries'
    chosen: str | None = None  # name of the call that the plan takes
    count: int | None = None  # calls queued on a device back to back; None: by their length
    plan: Plan | None = None  # of the call that is placed by itself
    missing: Mapping[str, str] = {}  # libraries that are not here -> the package that has them


class Benchmark(NamedTuple):
    """One row of bench."""

    case: str  # what is computed
    # Gives the `Comparison` when the row's turn comes: operands can be large.
    make: Callable[[], Comparison]
    what: str = "call"  # that is timed; or "solve", "iteration"
    # What else is known of the row; "floor_bytes" with "passes": bytes that must be moved at least,
    # and how that is worded; "asked": iterations, where each call gives its result and how many
    # iterations it made.
    facts: Mapping[str, Any] = {}
    # The device that times calls, queued back to back, by its clock; "cpu": each on the wall's.
    device: str = CPU
    budget: float = 0.3  # seconds of each call on the wall's clock
    least: int = 3  # samples, and
    most: int = 25


class Axis(NamedTuple):
    """A size from the least to the most, by its name."""

    name: str
    least: int
    most: int

    def sizes(self, parts: int = 4) -> list[int]:
        """Sizes from the least to the most, ``parts`` for each doubling."""
        sizes = {self.most}
        size = self.least
        while size < self.most:
            sizes |= {min(round(size * (1 + part / parts)), self.most) for part in range(parts)}
            size *= 2
        return sorted(sizes)


class Line(NamedTuple):
    """Problems over one size: what they are in words, such as "n x n"; ``dims(n)`` gives the
    dimensions as the command line takes them."""

    text: str
    axis: Axis
    dims: Callable[[int], tuple[int, ...]]


class Plane(NamedTuple):
    """Likewise over two sizes: ``dims(x, y)``."""

    text: str
    x: Axis
    y: Axis
    dims: Callable[[int, int], tuple[int, ...]]


class BenchTable(NamedTuple):
    """Rows as cells, and ratios that are averaged below, by name."""

    head: Sequence[str]
    cells: Sequence[Sequence[str]]
    ratios: Mapping[str, Sequence[float]]


def of(operation: Operation, name: str, default: Any = None) -> Any:
    """What an operation's module of benchmarks has under a name."""
    return getattr(load(operation.benchmarks), name, default)


def dtype_of(operation: Operation) -> str:
    """The dtype that an operation's benchmarks have unless another one is asked for."""
    return of(operation, "DTYPE", DTYPE)


def cuda_device() -> str | None:
    """The first device with arrays that CuPy and torch take."""
    proven = devices.proven().values()
    return next((d.name for d in proven if d.is_cuda), None)


def library(name: str) -> Any:
    """A library to compare with; None where it is not installed, or does not work here."""
    try:
        found = load(name)
        if name == "cupy":
            found.empty(1)
    except Exception:  # whatever goes wrong there
        return None
    return found


def missing(*modules: str) -> dict[str, str]:
    """Those of `_LIBRARIES` that are not here, and the packages that bring them."""
    return dict(_LIBRARIES[name] for name in modules if library(name) is None)


def rotating(call: Callable[..., object], sets: Sequence[Sequence[Any]]) -> TimedCall:
    """A call on another set of operands each turn, so that none is in a cache yet."""
    return lambda turn: call(*sets[turn % len(sets)])


def from_host_by_cupy(
    function: Callable[..., Any], *arrays: np.ndarray
) -> dict[str, TimedCall | Iterations]:
    """The peer "CuPy": ``function(cupy, *arrays)`` of copies of host arrays, its result copied
    back; empty without CuPy."""
    if (cupy := library("cupy")) is None:
        return {}
    return {"CuPy": lambda turn: cupy.asnumpy(function(cupy, *map(cupy.asarray, arrays)))}


def moved_call(case: str, make: Callable[[], Comparison], what: str = "call") -> Benchmark:
    """A row of bench's movement: a large call on host operands."""
    return Benchmark(case, make, what, budget=0.6, most=5)


def of_candidates(
    plan: Plan,
    call: Callable[..., TimedCall | Iterations],
    *,
    longest: float = math.inf,
    only: str | None = None,
) -> dict[str, TimedCall | Iterations]:
    """``call(device=, method=)``, which is what is timed, of each of a plan's candidates that is
    expected to take less than ``longest`` seconds, on the ``only`` device where one is named."""
    return {
        name_of(candidate): call(device=candidate.device, method=candidate.method)
        for candidate in plan.candidates
        if candidate.reason is None and (candidate.seconds or 0.0) < longest
        if only in (None, candidate.device)
    }


def compared(
    operation: Operation,
    operands: tuple[Any, ...],
    options: Mapping[str, Any],
    peers: Mapping[str, TimedCall | Iterations],
    *modules: str,
    longest: float = 0.0,
) -> Comparison:
    """A call on host operands as it is placed by itself, and the same by other libraries.

    The modules are of libraries without which ``peers`` lacks some. The call is made by each of the
    candidates, too, that is predicted to take less than ``longest`` seconds.
    """
    plan = planner.plan_call(operation, operands, options)

    def timed(run: Callable[[], object]) -> TimedCall:
        return lambda turn: run()

    def placed(**place: str) -> TimedCall:
        return timed(placed_call(operation, operands, options, **place))

    calls = {"automatic": timed(partial(operation.call, *operands, **options))}
    calls |= of_candidates(plan, placed, longest=longest)
    return Comparison(calls, peers, name_of(plan.chosen), plan=plan, missing=missing(*modules))


def placed_call(
    operation: Operation,
    operands: tuple[Any, ...],
    options: Mapping[str, Any],
    device: str,
    method: str,
) -> Callable[[], object]:
    """A call of an operation on a device by a method, as it is once it is remembered."""
    remembered = of(operation, "remembered")
    if remembered is not None:
        plan = planner.plan_call(operation, operands, options, device, method)
        if (run := remembered(plan, operands, options)) is not None:
            return run
    return partial(operation.call, *operands, **options, device=device, method=method)


def name_of(candidate: Candidate) -> str:
    """As a call by this candidate is named in a `Comparison`."""
    return f"{candidate.method} on {candidate.device}"
