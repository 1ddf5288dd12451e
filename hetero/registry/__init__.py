"""Problems, operations, and their methods: a `Problem` is a call of an operation without its data;
an `Implementation` does an operation on one kind of device.

The operations' packages register operations and methods when they are imported; planner,
calibration, evaluation, the command line and tests walk the same lists.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from hetero.arrays import HOST, Operand
from hetero.devices import KINDS as PORTABLE  # noqa: F401  for rows of methods
from hetero.errors import one_of
from hetero.imports import load

if TYPE_CHECKING:
    from hetero.registry.models import Work

DEVICE_DTYPES = ("float32", "float64")


@dataclass(frozen=True, slots=True)
class Problem:
    """A call of an operation: dimensions, dtype, options, where each operand and the result lie.

    Attributes
    ----------
    operation : str
    dims : tuple of int
        Extents as the operation counts them, such as (m, n, k).
    batch : int
        How many such products.
    dtype : str
        Name of the dtype that is computed in.
    inputs : tuple of Operand
    output : Operand
        Its location says where the result must go.
    strides : tuple of tuple of int
        Strides in elements as a kernel needs them once everything lies on its device, batch
        first, for operands and result.
    layout : str
        What besides dims decides the speed; selects the constants.
    function : str
        The NumPy function with the call's semantics.
    device_obstacle : str or None
        Why no device (but the CPU) can do it.
    options : NamedTuple or None
        The operation's own, as far as a price can depend on them; they must be hashable.
    next_device : str or None
        The device that is expected to use the result next, which then stays where it is computed;
        None: it goes to the output's location. See `hetero.use`.
    shown : tuple of str
        How the operands are printed, where that is not by the shapes of the inputs.
    """

    operation: str
    dims: tuple[int, ...]
    dtype: str
    inputs: tuple[Operand, ...]
    output: Operand
    batch: int = 1
    strides: tuple[tuple[int, ...], ...] = ()
    layout: str = "*"
    function: str = ""
    device_obstacle: str | None = None
    options: Any = None
    next_device: str | None = None
    shown: tuple[str, ...] = ()

    @property
    def device(self) -> str | None:
        """The device that operands or result lie on; None when all are on the host."""
        for operand in self.inputs:
            if operand.location != HOST:
                return operand.location
        return None if self.output.location == HOST else self.output.location

    def __str__(self) -> str:
        shapes = ", ".join(self.shown or shapes_of(self.inputs))
        stays = self.next_device is not None
        place = "where it is computed" if stays else f"on {self.output.location}"
        result = f"{self.output.shape} {place}"
        return f"{self.function or self.operation} {self.dtype}: {shapes} -> {result}"


def shapes_of(operands: tuple[Operand, ...]) -> tuple[str, ...]:
    """What is printed of arrays."""
    return tuple([f"{operand.shape} on {operand.location}" for operand in operands])


def check_dims(operation: str, dims: tuple[int, ...], *forms: str) -> None:
    """Raise ValueError unless the dimensions are at least 1 each and fit one of the forms, which
    name them: "M N K"."""
    if all(len(dims) != len(form.split()) for form in forms):
        number = "/".join(str(len(form.split())) for form in forms)
        names = " or ".join(forms)
        raise ValueError(f"{operation} takes {number} dimensions, {names}, got {len(dims)}")
    if min(dims) < 1:
        raise ValueError(f"a dimension must be at least 1, got {min(dims)}")


def dtype_obstacle(*operands: Operand) -> str | None:
    """Why the devices cannot compute with these dtypes, None where they can."""
    first = operands[0].dtype
    for operand in operands:
        dtype = operand.dtype
        if not dtype.isnative:
            return f"byte order of {dtype.str!r} is not this machine's"
        if dtype.char not in "fd":
            return f"dtype {dtype.name}: devices compute in {' and '.join(DEVICE_DTYPES)}"
        if dtype is not first and dtype != first:
            return f"mixed dtypes {first.name} and {dtype.name}"
        if 0 in operand.shape:
            return "nothing to compute: an operand has no elements"
        if not operand.is_c_contiguous() and operand.staged_strides() is None:
            return "strides are no whole number of elements"
    return None


# -- Methods ---------------------------------------------------------------------------------------


class Arguments(NamedTuple):
    """The data of one call, as every ``run`` gets them.

    Attributes
    ----------
    inputs : tuple
        The operands, in the order of ``problem.inputs``: NumPy arrays on the CPU and for several
        devices, buffers for one device. What an operation moves itself is among its options.
    output : array or buffer
        Takes the result. In a solve it holds the start on entry, and x at the end.
    options : Any
        The operation's own, such as a filter and the fill value, or a system and its tolerances.
    """

    inputs: tuple[Any, ...]
    output: Any
    options: Any = None


class Price(NamedTuple):
    """Price of a composite method.

    Attributes
    ----------
    terms : dict of str to float or None
        Seconds, which add up to its own; None where they are not known.
    made_of : str
        What it is made of, in words.
    reason : str or None
        Why it cannot do the problem; None where it can.
    """

    terms: dict[str, float] | None
    made_of: str = ""
    reason: str | None = None


BLAS = "blas"  # the method that runs on the threads of the CPU's BLAS


class Unasked(str):
    """A reason against a method that holds unless the caller names it, or nothing else can.

    Attributes
    ----------
    otherwise : str or None
        The reason that holds then.
    """

    otherwise: str | None

    def __new__(cls, reason: str, otherwise: str | None = None) -> Unasked:
        """With the reason as its text."""
        self = super().__new__(cls, reason)
        self.otherwise = otherwise
        return self


NOT_COMPILED = Unasked("its loops are not compiled on this machine; 'hetero compile' does it")
_NOT_LOADED = Unasked("to load its loops takes longer than the call")


def missing(names: tuple[str, ...], info: dict[str, Any]) -> str | None:
    """Why compiled loops cannot be called on a CPU, or are not to be unasked."""
    if not names or info.get("elsewhere"):
        return None
    loops = load("hetero.host.loops")
    if not all(map(loops.is_ready, names)):
        return loops.obstacle() or NOT_COMPILED
    return _NOT_LOADED if info.get("plain") else None


# When a device gets arrays on the host, of which the method moves ranges: always; where it has no
# room for them, which a plan takes only where the device is named; or always, to compute with them
# on the CPU in turn with the device.
ALWAYS, WHEN_SHORT, IN_TURN = "always", "when short", "in turn"


@dataclass(frozen=True, slots=True, repr=False)
class Implementation:
    """One way to do an operation on one kind of device.

    Attributes
    ----------
    operation, method, kind : str
        ``kind`` is the kind of device: "cpu", "cuda" or "opencl".
    work : callable
        ``work(problem, info)`` counts the `Work`.
    run : callable
        ``run(devices, problem, arguments)`` computes `Arguments.output`, and gives how it ended, or
        None where there is nothing to report. ``devices`` is a tuple: empty on the CPU, one active
        device, or several.
    excludes : callable
        ``excludes(problem, info)`` gives the reason why it cannot do the problem on the device that
        the dict ``info`` describes, which may be `Unasked`; None where it can. ``info`` has "asked"
        where the caller named the device, "elsewhere" of a machine that only its profile tells of.
    shared : callable or None
        ``shared(problem)`` gives whether several devices of the kind can do the problem together.
    loops : callable or None
        ``loops(problem)`` names the compiled loops that it needs on the CPU, as
        `hetero.host.loops.named` does. Where the description has "plain" none are called.
    blocks : str
        `ALWAYS`, `WHEN_SHORT` or `IN_TURN`, where one device gets arrays on the host; else "".
    price : callable or None
        ``price(problem, device's name, info, profile)`` gives the `Price` of a method that is made
        of others, by theirs and by the links. None where it has models of its own.
    prepare : callable or None
        ``prepare(device, problem, alignment, options)`` gives the launch of ``run`` for addresses
        that ``alignment`` divides, as ``launch(a, b, c)`` of the operands and the result, in
        the current context. An operation on one array gets its address twice.
    """

    operation: str
    method: str
    kind: str
    work: Callable[[Problem, dict[str, Any]], Work]
    run: Callable[..., Any]
    excludes: Callable[[Problem, dict[str, Any]], str | None] = lambda problem, info: None
    shared: Callable[[Problem], bool] | None = None
    loops: Callable[[Problem], tuple[str, ...]] | None = None
    blocks: str = ""
    price: Callable[..., Price] | None = None
    prepare: Callable[[Any, Problem, int, Any], Callable[..., None]] | None = None

    def why_not(self, problem: Problem, info: dict[str, Any]) -> str | None:
        """The reason of ``excludes``, or that its loops are not there."""
        reason = self.excludes(problem, info)
        if self.loops is None or (reason is not None and not isinstance(reason, Unasked)):
            return reason
        return missing(self.loops(problem), info) or reason

    def obstacle(self, problem: Problem, info: dict[str, Any]) -> str | None:
        """Why it cannot do a problem even where it is named."""
        reason = self.why_not(problem, info)
        return reason.otherwise if isinstance(reason, Unasked) else reason

    @property
    def from_host(self) -> bool:
        """Whether one device always gets arrays on the host, and leaves the result there."""
        return self.blocks in (ALWAYS, IN_TURN)

    def threads(self, info: dict[str, Any]) -> int | None:
        """How many threads of the CPU that ``info`` describes it runs on at most, of loops or of
        BLAS alone; None for others."""
        if self.loops is not None:
            return info.get("cores")
        is_blas = self.method == BLAS and self.operation in ("matvec", "matmul")
        return info.get("blas_threads") if is_blas else None

    def __repr__(self) -> str:
        return f"<{self.operation} {self.method} on {self.kind}>"

    def __deepcopy__(self, memo: Any) -> Implementation:
        return self

    def __reduce__(self) -> Any:
        return type(None), ()  # a plan that was pickled, say with a result, tells and runs nothing


_implementations: dict[str, list[Implementation]] = {}


def register_method(*, operation: str, kinds: tuple[str, ...], **row: Any) -> None:
    """Add one way to do an operation: a row for each kind of device, `PORTABLE` or named, of the
    fields of `Implementation`."""
    rows = [Implementation(operation=operation, kind=kind, **row) for kind in kinds]
    _implementations.setdefault(operation, []).extend(rows)


def lookup(operation: str) -> tuple[Implementation, ...]:
    """All implementations of an operation, in the order they were registered."""
    return tuple(_implementations.get(operation, ()))


# -- Operations ------------------------------------------------------------------------------------


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


_operations: dict[str, Operation] = {}
_ORDER = ("matvec", "matmul", "convolve2d", "cg", "poisson", "kmeans")


def register_operation(operation: Operation) -> None:
    """Add an operation."""
    _operations[operation.name] = operation


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
    """An operation, by its name or its function's; ValueError, with those there are, for others."""
    for one in _operations.values():
        if name in (one.name, one.function):
            return one
    raise ValueError(one_of("operation", (o.function for o in operations()), name))
