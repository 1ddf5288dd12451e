"""Rows on one device: k-means++ and Lloyd's iterations, which are queued there."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from hetero.arrays import alignment
from hetero.devices.base import Device
from hetero.devices.storage import Workspace
from hetero.kernels.common.launch import Launch
from hetero.kernels.kmeans import plan as plans
from hetero.ops.kmeans.fit import Rows, Stopped, ending, means
from hetero.ops.kmeans.operands import SEEDED, check_finite, trials
from hetero.registry import Problem

_BATCH_SECONDS = 1e-3  # of iterations between two looks at the state, which take some 20 us
_LONGEST_BATCH = 64
_FAR = 1.0  # of the variance; rows with a mean farther from zero are centred
S, T = TypeVar("S"), TypeVar("T")


def moments(device: Device, X: Any, n: int, d: int, dtype: np.dtype) -> tuple[np.ndarray, float]:
    """The columns' means in float64, and the mean of their variances.

    X is a buffer of (n, d) numbers without gaps; its device is active.
    """
    sums, _ = plans.columns(n, d, dtype.name, device.target)
    space = Workspace(device, "kmeans")  # which holds it as long as it is there
    columns = space.allocate(sums.grid * 2 * d * 8)
    device.launch(*device.bound(sums, {"X": X, "columns": columns}))
    first, found = np.empty(d, dtype), np.empty((sums.grid, 2, d))
    device.download(X, first)
    device.download(columns, found)
    with np.errstate(invalid="ignore", over="ignore"):  # of rows that are refused for it
        apart, squares = found.sum(axis=0) / n
        return first + apart, float(np.mean(np.maximum(squares - apart * apart, 0.0)))


def subtracted(
    means: Any, variance: float, dtype: np.dtype, given: np.ndarray | None
) -> np.ndarray:
    """What is subtracted of rows on devices: their columns' means, or those of the centroids for
    which they only get labels; zeros where these are near enough to zero."""
    if given is not None:
        means, variance = (of(axis=0, dtype=np.float64) for of in (given.mean, given.var))
    with np.errstate(over="ignore"):  # infinite is far
        is_far = np.mean(means * means) > _FAR * np.mean(variance)
    return means.astype(dtype) if is_far else np.zeros(len(means), dtype)


class DeviceRows(Rows):
    """The rows of X on one device, which is active here and whenever a method is called.

    The device decides when a start ends, and the host looks at it once for several iterations:
    those beyond the last one do nothing.

    X and the weights, which may be None, are buffers of the device, (n, d) and (n,) of one dtype,
    contiguous; they are only read. ``kept`` and ``given`` are `Fit.labels` and `Fit.given`. What is
    subtracted is ``mean``; None: by the rows, or what is given. With ``counted`` the labels that
    change are counted.
    """

    def __init__(
        self,
        device: Device,
        problem: Problem,
        X: Any,
        weights: Any = None,
        kept: tuple[Any, Any] | None = None,
        *,
        given: np.ndarray | None = None,
        mean: np.ndarray | None = None,
        counted: bool = False,
    ) -> None:
        self.n, self.d, self.k = problem.dims
        self.dtype, self.device = np.dtype(problem.dtype), device
        self._kept = kept
        self._space = Workspace(device, "kmeans")
        self.buffers = self._space.buffers  # by the names of `plans.LloydPlan`
        self._X = self.buffers["X"] = X
        if weights is not None:
            self.buffers["weights"] = weights
        if kept is None:
            self._space.allocate(self.n * 4, "labels")
        else:
            self.buffers["labels"] = kept[1]
        columns = plans.columns(self.n, self.d, self.dtype.name, device.target)
        how = "weights" in self.buffers, alignment(X), device.target
        points = plans.Points(*problem.dims, self.dtype.name, *how)
        self.seeds_plan = plans.plan_seeds(points, trials(self.k))
        plan = self._plan = plans.plan_lloyd(points, counted)
        # Compiled together; one after the other they take two seconds.
        launches = [*plan.prepare, *plan.iteration, plan.pack, plan.distances, *columns]
        launches += self.seeds_plan.launches() if problem.layout == SEEDED else ()
        device.compile_ahead((one.source, one.defines) for one in launches)
        if mean is None:
            means, self.variance = moments(device, X, self.n, self.d, self.dtype)
            if not math.isfinite(self.variance):  # or only their squares overflow
                check_finite(self.on_host())
            mean = subtracted(means, self.variance, self.dtype, given)
        self.mean = mean
        if mean.any():  # go on with X less it
            self._space.upload(np.ascontiguousarray(mean), "mean")
            self._space.allocate(self.n * self.d * self.dtype.itemsize, "centred")
            self._start(columns[1])
            centred = self.buffers["X"] = self.buffers["centred"]
            self._plan = plans.plan_lloyd(points._replace(alignment=alignment(centred)), counted)
        for name, nbytes in self._plan.scratch.items():
            self._space.allocate(nbytes, name)
        self._start(*self._plan.prepare)

    # -- Launches and copies ---------------------------------------------------------------------

    def _start(self, *launches: Launch, **others: Any) -> None:
        """Start launches."""
        for launch in launches:
            self.device.launch(*self.device.bound(launch, self.buffers | others))

    def download(self, name: str, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """A buffer's content."""
        return self._space.download(name, np.empty(shape, dtype))

    def put(self, centroids: np.ndarray) -> None:
        """Go on with centroids from the host."""
        given = np.ascontiguousarray(centroids, self.dtype)
        self.device.upload(given, self.buffers["centroids"])
        self._start(self._plan.pack)  # as the assignment reads them

    def state(self) -> tuple[Stopped, int, int]:
        """`Stopped`, after how many iterations, and how many labels changed since; where they are
        not counted, 1 for any number."""
        stopped, iterations, changed, _ = self.download("state", (plans.STATE,), np.int32).tolist()
        return Stopped(stopped), iterations, min(changed, self.n)

    def set_state(self, stopped: int, iterations: int, changed: int) -> None:
        """Write the state. Labels "changed" keep the next iteration from ending early."""
        state = np.array([stopped, iterations, changed, 0], np.int32)
        self.device.upload(state, self.buffers["state"])

    # -- What is asked of rows -------------------------------------------------------------------

    def host_weights(self) -> np.ndarray | None:
        if "weights" not in self.buffers:
            return None
        return self.download("weights", (self.n,), self.dtype)

    def on_host(self) -> np.ndarray:
        X = np.empty((self.n, self.d), self.dtype)
        self.device.download(self._X, X)
        return X

    def rows(self, indices: np.ndarray) -> np.ndarray:
        space, row = Workspace(self.device, "kmeans"), self.d * self.dtype.itemsize
        found = np.empty((len(indices), self.d), self.dtype)
        buffer = space.allocate(found.nbytes)
        for place, index in enumerate(indices):  # a download of each would wait for each
            self.device.copy(buffer, self.buffers["X"], row, place * row, int(index) * row)
        self.device.download(buffer, found)
        return found

    def seeding(self) -> DeviceSeeding:
        return DeviceSeeding([self])

    @property
    def labels(self) -> Any:  # type: ignore[override]
        return self.host_labels() if self._kept is None else self._kept[0]

    def host_labels(self) -> np.ndarray:
        return self.download("labels", (self.n,), np.int32)

    def begin(self, centroids: np.ndarray) -> None:
        """Start to label the rows and to add them up: see `sums` and `state`."""
        self.put(centroids)
        self.set_state(Stopped.RUNNING, 0, 0)
        self._start(*self._plan.iteration[:-1])

    def sums(self) -> tuple[np.ndarray, np.ndarray]:
        sums = self.download("sums", (self.k, self.d), self.dtype)
        totals = self.download("totals", (self.k,), self.dtype)
        return sums.astype(np.float64), totals.astype(np.float64)

    def distances(self, centroids: np.ndarray) -> np.ndarray:
        self.inertia(centroids)
        return self.download("distances", (self.n,), self.dtype)

    def inertia(self, centroids: np.ndarray) -> float:
        self.device.upload(np.ascontiguousarray(centroids, self.dtype), self.buffers["previous"])
        self._start(self._plan.distances)
        return float(self.download("inertia", (self._plan.distances.grid,), np.float64).sum())

    def restart(self, centroids: np.ndarray) -> None:
        self._batch = 2
        self.put(centroids)
        self.set_state(Stopped.RUNNING, 0, min(self.n, 1 << 30))  # from no labels

    def iterate(
        self, centroids: np.ndarray, done: int, maxiter: int, tol: float, most: int
    ) -> tuple[Stopped, int]:
        """Make some iterations, between two looks at the state."""
        if not done:
            counted = float(most) if most < self.n else math.inf
            buffers = self.buffers | {"tolerance": tol, "most": counted}
            self._bound = [self.device.bound(one, buffers) for one in self._plan.iteration]
        began, before = time.monotonic(), done
        for _ in range(min(self._batch, maxiter - done)):
            for one in self._bound:
                self.device.launch(*one)
        stopped, done, changed = self.state()
        if stopped == Stopped.EMPTIED:
            old = self.download("previous", (self.k, self.d), self.dtype)
            new, moved = means(self, old)
            shift = float(((new.astype(np.float64) - old) ** 2).sum())
            stopped, done = ending(changed, moved, shift, tol, most), done + 1
            self.put(new)
            self.set_state(stopped, done, 0)
        wanted = math.ceil(_BATCH_SECONDS * (done - before) / (time.monotonic() - began))
        self._batch = max(1, min(wanted, 2 * self._batch, _LONGEST_BATCH))
        if stopped != Stopped.RUNNING or done >= maxiter:
            centroids[...] = self.download("centroids", (self.k, self.d), self.dtype)
        return stopped, done

    def label(self, centroids: np.ndarray) -> None:
        """Find the labels for the centroids that are there."""
        self.set_state(Stopped.RUNNING, 1, 1)
        self._start(*self._plan.assign)


class DeviceSeeding:
    """k-means++ of rows on one device, which is active, or on several: distances stay there, sums
    of blocks of rows come to the host. See `Rows`.

    One device takes candidates of its own rows; several get them from the host, where ``X`` has the
    rows of all, less the ``mean``.
    """

    def __init__(
        self, parts: Sequence[DeviceRows], X: np.ndarray | None = None, mean: Any = 0.0
    ) -> None:
        self._parts, self._X, self._mean = parts, X, mean
        self._spaces = each(parts, self._space)
        self._begins = np.cumsum([0, *(rows.n for rows in parts)])
        self._blocks = np.cumsum([0, *(rows.seeds_plan.parts for rows in parts)])
        self._bound: dict[tuple[int, ...], tuple[Any, ...]] = {}  # shorter ones find rows

    def _space(self, rows: DeviceRows) -> Workspace:
        """Buffers of a device."""
        space, plan, size = Workspace(rows.device, "kmeans"), rows.seeds_plan, rows.dtype.itemsize
        space.buffers.update(rows.buffers)
        space.allocate(rows.n * size, "closest")
        space.allocate(rows.n * size * plan.trials, "tried")
        space.allocate(2 * plan.trials * 8, "asked")
        space.allocate((plan.parts + 1) * plan.trials * 8, "sums")  # and numbers of rows
        space.allocate(plan.trials * rows.d * size, "candidates")
        return space

    def first(self, index: int) -> np.ndarray:
        if self._X is None:
            behind = self._parts[0].seeds_plan.parts * 8
            self._spaces[0].upload(np.array([index], float), "sums", behind)
        return self._try(np.array([index]), True)[1]

    def draw(self, blocks: np.ndarray, rest: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        owners = np.searchsorted(self._blocks, blocks, "right") - 1
        asked = np.stack([blocks - self._blocks[owners], rest], axis=1)
        found = np.empty(len(blocks), np.int64)
        for number in np.unique(owners):
            rows, space, mine = self._parts[number], self._spaces[number], owners == number
            with rows.device.active():
                space.upload(asked[mine], "asked")
                count, plan = int(np.count_nonzero(mine)), rows.seeds_plan
                self._launch(number, plan.find_rows, count, self._X is None)
                if self._X is not None:
                    local = space.download("sums", np.empty(count), plan.parts * count * 8)
                    found[mine] = self._begins[number] + local.astype(np.int64)
        return self._try(found, False)

    def take(self, which: int) -> None:
        for rows, space in zip(self._parts, self._spaces, strict=True):
            nbytes, of = rows.n * rows.dtype.itemsize, space.buffers
            with rows.device.active():
                rows.device.copy(of["closest"], of["tried"], nbytes, 0, which * nbytes)

    def _try(self, rows: np.ndarray, first: bool) -> tuple[np.ndarray, np.ndarray]:
        """Rows, which are those that one device was asked for last, and the potentials."""
        count, found = len(rows), []
        for number, (part, space) in enumerate(zip(self._parts, self._spaces, strict=True)):
            with part.device.active():
                if self._X is not None:
                    space.upload(np.ascontiguousarray(self._X[rows] - self._mean), "candidates")
                self._launch(number, part.seeds_plan.try_seeds, count, first, self._X is None)
        for part, space in zip(self._parts, self._spaces, strict=True):
            with part.device.active():
                shape = part.seeds_plan.parts + 1, count
                found.append(space.download("sums", np.empty(shape)))
        rows = found[0][-1].astype(np.int64) if self._X is None else rows
        return rows, np.concatenate([one[:-1] for one in found])

    def _launch(self, number: int, plan: Callable[..., Launch], *shape: int) -> None:
        """Start the launch that ``plan(*shape)`` gives on a device; it is bound once."""
        key, device = (number, *shape), self._parts[number].device
        if key not in self._bound:
            self._bound[key] = device.bound(plan(*shape), self._spaces[number].buffers)
        device.launch(*self._bound[key])


def each(parts: Sequence[S], step: Callable[[S], T]) -> list[T]:
    """``step(part)`` of each of some rows on devices, on its device."""
    found = []
    for part in parts:
        with part.device.active():
            found.append(step(part))
    return found
