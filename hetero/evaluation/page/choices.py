"""What the planner chooses over two sizes, and where the choice turns."""

from __future__ import annotations

from collections import Counter
from itertools import groupby
from typing import NamedTuple

from hetero.arrays import HOST, Spec
from hetero.calling.planner import OtherMachine
from hetero.errors import MethodNotAvailable, NotPriced
from hetero.evaluation.page.methods import Devices
from hetero.ops.over_sizes import Plane
from hetero.pricing.plan import CPU, Plan
from hetero.profile import Profile
from hetero.registry import Operation

NONE = "no choice"  # where nothing is priced
_PARTS = 2  # sizes to each doubling: a plan takes up to 2 ms


class Choices(NamedTuple):
    """A table of choices.

    Attributes
    ----------
    xs, ys : list of int
        Sizes.
    cells : list of list of str
        ``cells[row][column]``, "method, device" for ``ys[row]`` and ``xs[column]``.
    gain : float
        How many times faster than the CPU's best the choice is, at most; 1.0 where it is the CPU.
    """

    xs: list[int]
    ys: list[int]
    cells: list[list[str]]
    gain: float

    def counts(self) -> dict[str, int]:
        """Choice -> number of cells, the most frequent first."""
        return dict(Counter(cell for row in self.cells for cell in row).most_common())

    def runs(self, row: int) -> list[tuple[str, int, int]]:
        """The choices along a row, each with the first and the last x."""
        pairs = zip(self.cells[row], self.xs, strict=True)
        groups = [(name, [x for _, x in found]) for name, found in groupby(pairs, lambda p: p[0])]
        return [(name, xs[0], xs[-1]) for name, xs in groups]


def choices(
    operation: Operation,
    plane: Plane,
    dtype: str,
    constants: Profile,
    devices: Devices,
    on: str = HOST,
) -> Choices:
    """Plan a call for every pair of sizes, with its operands on the host or on one device."""
    machine = OtherMachine(constants, devices)
    xs, ys = plane.x.sizes(_PARTS), plane.y.sizes(_PARTS)
    cells, gain = [], 1.0
    for y in ys:
        row = []
        for x in xs:
            name, faster = _choice(operation, plane.dims(x, y), dtype, on, machine)
            row.append(name)
            gain = max(gain, faster)
        cells.append(row)
    return Choices(xs, ys, cells, gain)


def _plan(
    operation: Operation, dims: tuple[int, ...], dtype: str, on: str, machine: OtherMachine
) -> Plan:
    problem = operation.from_dims(dims, dtype, on)
    if operation.plan is None:
        return machine.plan(problem)
    operands = tuple(Spec(o.shape, o.dtype, on=o.location) for o in problem.inputs)
    return operation.plan(operands, {}, None, None, machine)


def _choice(
    operation: Operation, dims: tuple[int, ...], dtype: str, on: str, machine: OtherMachine
) -> tuple[str, float]:
    """The choice, and how many times faster it is than the CPU's best."""
    try:
        plan = _plan(operation, dims, dtype, on, machine)
        chosen = plan.chosen
    except (NotPriced, MethodNotAvailable):
        return NONE, 1.0
    if chosen.seconds is None:
        return NONE, 1.0
    on_cpu = [
        c.seconds
        for c in plan.candidates
        if c.device == CPU and c.reason is None and c.seconds is not None
    ]
    return f"{chosen.method}, {chosen.device}", min(on_cpu, default=chosen.seconds) / chosen.seconds
