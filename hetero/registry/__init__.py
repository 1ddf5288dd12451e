"""Operations; with the methods (`problem`) what there is to compute, and how.

The operations' packages register both when they are imported; planner, calibration, evaluation, the
command line and tests walk the same lists.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from hetero.devices import KINDS as PORTABLE  # noqa: F401  for rows of methods
from hetero.errors import one_of
from hetero.registry.problem import ALWAYS as ALWAYS
from hetero.registry.problem import BLAS as BLAS
from hetero.registry.problem import IN_TURN as IN_TURN
from hetero.registry.problem import LOOPS as LOOPS
from hetero.registry.problem import NOT_COMPILED as NOT_COMPILED
from hetero.registry.problem import WHEN_SHORT as WHEN_SHORT
from hetero.registry.problem import Arguments as Arguments
from hetero.registry.problem import Implementation as Implementation
from hetero.registry.problem import Price as Price
from hetero.registry.problem import Problem
from hetero.registry.problem import Unasked as Unasked
from hetero.registry.problem import lookup as lookup
from hetero.registry.problem import missing as missing
from hetero.registry.problem import register_method as register_method


@dataclass(frozen=True)
class Operation:
    """What there is to know about an operation outside of its folder.

    Attributes
    ----------
    name : str
        As in `Problem.operation` and in the profile, such as "cg".
    function : str
        Name of the public function, such as "solve_cg".
    call : callable
        The public function.
    summary : str
        What it does, in one line.
    dims : tuple of str
        Forms of the dimensions that the command line takes, such as ("NY NX", "NZ NY NX").
    problem : callable
        ``problem(*operands, **options)`` gives the `Problem` of a call, for arrays or `hetero.spec`
        stand-ins.
    from_dims : callable
        ``from_dims(dims, dtype, on, **options)`` gives the `Problem` with these dimensions, its
        operands on one device or "host".
    plan : callable or None
        ``plan(operands, options, device, method, machine)`` gives the `Plan` of a call, on this
        machine where no other `Machine` is given. None: that of ``problem(*operands, **options)``.
    options : tuple of str
        Names of what the command line may set.
    cut : callable or None
        ``cut(problem)`` gives the `Cut` of a problem of host arrays.
    keeps : callable
        ``keeps(problem)``: whether its calls use copies of operands that stay on a device.
    iterations : callable
        ``iterations(dims, dtype)``: the `Iteration` of each method that many devices can share.
    """

    name: str
    function: str
    call: Callable[..., Any]
    summary: str
    dims: tuple[str, ...]
    problem: Callable[..., Problem]
    from_dims: Callable[..., Problem]
    plan: Callable[..., Any] | None = None
    options: tuple[str, ...] = ()
    cut: Callable[[Problem], Cut] | None = None
    keeps: Callable[[Problem], bool] = lambda problem: True
    iterations: Callable[[tuple[int, ...], str], Mapping[str, Iteration]] = lambda dims, dtype: {}


class Iteration(NamedTuple):
    """What an iteration exchanges on a grid that is divided by the rows of its first axis."""

    row_bytes: int  # of a row (a plane in 3-D) of one vector
    vectors: int  # that lie on each device
    depth: int  # rows of each neighbour that a device has, and of its own at least
    halo: int  # rows of vectors that it gets from each neighbour in an exchange
    every: int = 1  # iterations from one exchange to the next
    sums: int = 0  # all-reduces of an iteration, one after the other
    sum_bytes: int = 0  # of each


class Cut(NamedTuple):
    """How a call on host arrays is cut into ranges, which are smaller calls.

    A range is a box, (begin, end) along each axis, and computes this part of the result.

    Attributes
    ----------
    axes : tuple of (str, int)
        What can be cut, such as ("rows", 4096); the outermost axis of the result comes first.
    needs : tuple of tuple of int
        For each array the axes that decide which part of it a range reads: ranges that agree along
        these read the same part.
    problem : callable
        ``problem(box, place)`` gives the `Problem` of a range: of its parts as they lie on "host",
        or packed on a device.
    arrays : callable
        ``arrays(box, arrays)`` gives for each array the part that the range reads, a view if it
        can be one.
    output : callable
        ``output(box, out)`` gives the view of the whole's result that the range fills.
    steps : tuple of int
        A range that is longer than this along an axis is a multiple of it long.
    seconds : (float, float)
        Of the host for a call, whose copies it makes itself, and for each range; about.
    both : float
        What copies up and down take together, as a part of one after the other; about.
    workspace : int
        Memory that a method may take beside a range and its result, as a multiple of these.
    priced : callable
        ``priced(plan, constants)`` gives the plan of a range on a device with what a call of the
        operation takes beside it.
    look : callable or None
        ``look(plan, part, options)`` gives the problem of a range as the values of its first part
        decide it: the plan's, or another one.
    """

    axes: tuple[tuple[str, int], ...]
    needs: tuple[tuple[int, ...], ...]
    problem: Callable[[tuple[tuple[int, int], ...], str], Problem]
    arrays: Callable[..., tuple[Any, ...]]
    output: Callable[[tuple[tuple[int, int], ...], Any], Any]
    steps: tuple[int, ...]
    seconds: tuple[float, float]
    both: float
    workspace: int = 0
    priced: Callable[[Any, Any], Any] = lambda plan, constants: plan
    look: Callable[[Any, Any, Any], Problem] | None = None

    def box(self, axis: int, begin: int, end: int) -> tuple[tuple[int, int], ...]:
        """A range along one axis, of all there is along the others."""
        return tuple([(begin, end) if i == axis else (0, n) for i, (_, n) in enumerate(self.axes)])

    def read_whole(self, axis: int) -> list[int]:
        """Numbers of the arrays that every range along one axis reads whole."""
        return [i for i, axes in enumerate(self.needs) if axis not in axes]


_operations: dict[str, Operation] = {}
_ORDER = ("matvec", "matmul", "convolve2d", "cg", "poisson", "kmeans")


def register_operation(operation: Operation) -> Operation:
    """Add an operation."""
    _operations[operation.name] = operation
    return operation


def operations() -> tuple[Operation, ...]:
    """All operations that were loaded, as `hetero.ops.functions` does with all."""
    return tuple([_operations[name] for name in _ORDER if name in _operations])


def cut(problem: Problem) -> Cut | None:
    """How a problem of host arrays is cut into ranges; None where it is not.

    Ranges always move their operands, even if devices hold copies of the whole ones.
    """
    row = _operations.get(problem.operation)
    if row is None or row.cut is None:
        return None
    inputs = tuple([o._replace(copies=(), kept=None) for o in problem.inputs])
    # They are put together on the host.
    return row.cut(replace(problem, inputs=inputs, next_device=None))


def operation(name: str) -> Operation:
    """An operation, by its name or by its public function's.

    Raises
    ------
    ValueError
        The message names the operations there are.
    """
    for one in _operations.values():
        if name in (one.name, one.function):
            return one
    raise ValueError(one_of("operation", (o.function for o in operations()), name))
