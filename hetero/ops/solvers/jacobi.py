"""Jacobi's method for -div grad u = f: on the CPU, and on devices with a slab of rows each.

On a device a pass over the memory makes several sweeps, after which several devices exchange as
many rows. A point's operations do not depend on that, so neither do the results, to the last bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hetero.devices import peers
from hetero.devices.base import Device
from hetero.host.loops import as_loops_take
from hetero.imports import load
from hetero.kernels.jacobi import plan as plan_jacobi
from hetero.kernels.multigrid.plan import squares
from hetero.ops.solvers import multigrid
from hetero.ops.solvers.exchange import Exchange, Part, Range, range_copies, split, widened
from hetero.ops.solvers.systems import LIMIT, ROUNDING, Outcome, Solve, Stencil, judged

_FEWEST, _MOST = 64, 8192  # sweeps between two looks at the residual
_QUEUED = 1024  # passes that are queued before the host waits, and an interrupt gets through


def solve(devices: Sequence[Device], asked: Solve, f: Any, u: Any, dtype: Any = None) -> Outcome:
    """Sweep until the residual is small, or ``asked.exactly`` as often as the limit says.

    ``devices`` is empty for the CPU. Several are of one kind, and one may come several times; grids
    with too few rows use fewer. ``f`` and ``u``, which is the start and gets the result, are arrays
    of the stencil's shape, or for one device its buffers of ``dtype``: float32 or float64.
    """
    if not devices:
        return _on_cpu(asked, f, u)
    whole = plan_jacobi.GridSlab.of(*asked.system, np.dtype(dtype or f.dtype).name)
    cuts = split(whole.held, len(devices), plan_jacobi.default_depth(whole))
    devices = devices[: len(cuts)]
    start = None if asked.from_zero and len(devices) > 1 else u
    with peers.turn(devices):
        on = _Devices(devices, cuts, whole)
        on.load(f, start)
        outcome = _iterate(on.advance, on.norms, on.depth, asked)
        on.store(u)
        on.exchange.synchronize()  # before memory is free
    return outcome


def _iterate(
    advance: Callable[[int], object],
    norms: Callable[[], tuple[float, float]],
    depth: int,
    asked: Solve,
) -> Outcome:
    """Sweep until norm(f - A u) <= rtol norm(f), or to the limit. ``advance`` makes a number of
    sweeps, ``depth`` of them in a pass; ``norms`` gives the 2-norms of f - A u and of f.

    The residual is computed only now and then. Its norm falls ever more slowly, towards a factor of
    cos(pi / (n + 1)) a sweep: the sweeps that are left, reckoned with the last factor seen, are
    rather too few, and the next look comes after as many, made whole passes. Equal runs end after
    equally many sweeps. Without rounding the norm would never rise: where it did not fall twice in
    a row, rounding keeps it up. Of f without a norm it makes no sweeps.
    """
    residual, norm = norms()
    limit = asked.maxiter if norm > 0.0 or asked.exactly else 0
    target, more = (-1.0, limit) if asked.exactly else (asked.rtol * norm, _FEWEST)
    done = stalled = 0
    while target < residual < math.inf and done < limit and stalled < 2:
        made = min(-(-more // depth) * depth, limit - done)
        advance(made)
        last, residual = residual, norms()[0]
        stalled = 0 if residual < last else stalled + 1
        done, more = done + made, _FEWEST
        if 0.0 < target < residual < last:
            left = made * math.log(residual / target) / math.log(last / residual)
            more = int(min(max(left, _FEWEST), _MOST))
    return judged(residual, target, LIMIT if done >= limit else ROUNDING, done, norm)


def _on_cpu(asked: Solve, f: np.ndarray, u: np.ndarray) -> Outcome:
    shape, weights = asked.system.box
    diagonal = 2.0 * sum(weights)
    factors = tuple(f.dtype.type(w / diagonal) for w in (*weights, 1.0))
    f = as_loops_take(np.ascontiguousarray(f)).reshape(shape)
    present = np.array(u, f.dtype, order="C").reshape(shape)
    grids = [present, np.empty_like(present)]
    sweep = load("hetero.kernels.cpu.poisson").jacobi
    team = load("hetero.host.threads").team_for(f.size)

    def advance(sweeps: int) -> None:
        for _ in range(sweeps):
            sweep(team, grids[0], f, grids[1], factors)
            grids.reverse()

    outcome = _iterate(advance, lambda: multigrid.norms(asked.system, f, grids[0]), 1, asked)
    u[...] = grids[0].reshape(u.shape)
    return outcome


class _Devices:
    """A solve on devices: each part has a slab's rows in "f", "u0" and "u1".

    The present u is that of number ``now``.
    """

    def __init__(
        self, devices: Sequence[Device], cuts: Sequence[Range], whole: plan_jacobi.GridSlab
    ) -> None:
        self.now, self.depth = 0, plan_jacobi.default_depth(whole)
        self._nbytes = whole.held * whole.row_bytes
        self.exchange = Exchange([Part(device, alone=len(cuts) == 1) for device in devices])
        held = widened(cuts, self.depth)
        grids = [whole.slab(low, high - low) for low, high in held]
        self._each = list(zip(self.exchange.parts, grids, cuts, strict=True))
        self._rows = range_copies(cuts, held, whole.row_bytes, [low for low, _ in held])
        self._bound: dict[tuple[int, int], list[Any]] = {}

    def load(self, f: Any, u: Any) -> None:
        """Bring what the caller gives, zero for None; returns when it is there."""

        def load(number: int) -> None:
            part, grid, (begin, end) = self._each[number]
            device, nbytes = part.device, grid.held * grid.row_bytes
            with device.active():
                for name, values in (("f", f), ("u0", u), ("u1", None)):
                    device.fill(part.allocate(nbytes, name), nbytes)
                    if isinstance(values, np.ndarray):
                        low = -grid.first
                        rows = values[low : low + grid.held]
                        values = part.upload(np.ascontiguousarray(rows, grid.dtype), "rows")
                    if values is not None:
                        self._copy_rows(number, values, name, grid.columns, grid.pitch)
                    if part.stream is not None:  # the default queue did a part of it
                        device.synchronize()
                part.allocate(16 * (end - begin), "squares")

        self.exchange.at_once(load, 2 * self._nbytes)
        copies = [(name, self._rows) for name in ("u0", "u1")]
        self._halos = list(map(self.exchange.bind, copies))

    def store(self, u: Any) -> None:
        """Write the present u to an array, or a buffer, of the caller."""

        def store(number: int) -> None:
            part, grid, (begin, end) = self._each[number]
            is_array = isinstance(u, np.ndarray)
            with part.device.active():
                to = "rows" if is_array else u
                self._copy_rows(number, f"u{self.now}", to, grid.pitch, grid.columns)
                if is_array:
                    before = (begin + grid.first) * grid.columns * u.itemsize
                    part.download("rows", u[begin:end], before)

        self.exchange.check()
        self.exchange.at_once(store, self._nbytes)

    def _copy_rows(self, number: int, source: Any, target: Any, *pitches: int) -> None:
        part, grid, _ = self._each[number]
        launch = plan_jacobi.change_pitch(grid, *pitches, part.device.target)
        part.start(part.bind(launch, source=source, target=target))

    def advance(self, sweeps: int) -> None:
        full, rest = divmod(sweeps, self.depth)
        for number in range(full + rest):
            launches = self._launches(self.depth if number < full else 1)
            self.now = 1 - self.now
            self.exchange.run(launches, self._halos[self.now])
            if (number + 1) % _QUEUED == 0:
                self.exchange.synchronize()

    def norms(self) -> tuple[float, float]:
        self.exchange.check()
        self.exchange.run(self._launches(0))
        sums = self.exchange.total("squares", [end - begin for *_, (begin, end) in self._each], 2)
        return math.sqrt(sums[0]), math.sqrt(sums[1])

    def _launches(self, depth: int) -> list[Any]:
        """Of each part a pass of ``depth`` sweeps over the present u; for 0 sweeps the squares of
        f - A u and of f, in the order of the rows."""
        key = depth, self.now
        if key not in self._bound:
            plans = []
            for part, grid, (begin, end) in self._each:
                own, target = (begin + grid.first, end + grid.first), part.device.target
                if depth:
                    plans.append(plan_jacobi.blocked(grid, own, depth, target))
                    continue
                box, (along_rows, along_columns) = (grid.held, 1, grid.columns), grid.weights
                given = box, (along_rows, 0.0, along_columns), grid.dtype, target
                plans.append(squares(*given, own, end - begin, grid.pitch))
            names = {"u": f"u{self.now}", "u_new": f"u{1 - self.now}"}
            self._bound[key] = self.exchange.launches(plans, **names)
        return self._bound[key]


def example(dtype: np.dtype) -> None:
    """Call the compiled loops."""
    f = np.ones((40, 40), dtype)
    solve((), Solve(Stencil(f.shape, (1.0, 1.0)), 1e-3, 0.0, 20), f, np.zeros_like(f))
