"""Rows on one device: k-means++ and Lloyd's iterations, which are queued there."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from hetero.devices.base import Device
from hetero.devices.workspace import Workspace
from hetero.kernels.common.launch import Launch
from hetero.kernels.kmeans import plan as plans
from hetero.kernels.kmeans.plan import SeedsPlan, plan_seeds
from hetero.ops.kmeans.fit import DeviceLabels, Rows, Run, Stopped, ending, means, trials
from hetero.ops.kmeans.operands import check_finite
from hetero.registry.problem import Problem

# The two sets of centroids' buffers: an iteration reads one and writes the other.
_SETS = ("centroids", "packed", "norms"), ("means", "packed_next", "norms_next")
_SWAPPED = dict(zip(_SETS[0] + _SETS[1], _SETS[1] + _SETS[0], strict=True))
_BATCH_SECONDS = 1e-3  # of iterations between two looks at the state, which take some 20 us
_LONGEST_BATCH = 64
_FAR = 1.0  # of the variance; rows whose mean is farther from zero are centred


def bind(device: Device, launch: Launch, buffers: Mapping[str, Any]) -> tuple[Any, ...]:
    """What `Device.launch` takes for a launch on these buffers; the device is active."""
    kernel = device.build(launch.source, launch.kernel, launch.defines)
    arguments = [buffers[a] if type(a) is str else a for a in launch.arguments]
    return kernel, launch.grid, launch.block, arguments, launch.shared_bytes


# -- What is subtracted of the rows ----------------------------------------------------------------


def moments(device: Device, X: Any, n: int, d: int, dtype: np.dtype) -> tuple[np.ndarray, float]:
    """The columns' means in float64, and the mean of their variances.

    X is a buffer of (n, d) numbers without gaps; its device is active.
    """
    sums, _ = plans.columns(n, d, dtype.name, device.target)
    space = Workspace(device, "kmeans")  # which holds it as long as it is there
    columns = space.allocate(sums.grid * 2 * d * 8)
    device.launch(*bind(device, sums, {"X": X, "columns": columns}))
    first, found = np.empty(d, dtype), np.empty((sums.grid, 2, d))
    device.download(X, first)
    device.download(columns, found)
    with np.errstate(invalid="ignore", over="ignore"):  # of rows that are refused for it
        apart, squares = found.sum(axis=0) / n
        return first + apart, float(np.mean(np.maximum(squares - apart * apart, 0.0)))


def subtracted(means: np.ndarray, variance: float, dtype: np.dtype) -> np.ndarray:
    """What is subtracted of rows on devices: their columns' means, or zeros where these are near
    enough to zero."""
    with np.errstate(over="ignore"):  # infinite is far
        is_far = np.mean(means * means) > _FAR * variance
    return means.astype(dtype) if is_far else np.zeros(len(means), dtype)


def subtracted_for(given: np.ndarray) -> np.ndarray:
    """What is subtracted of rows that only get labels: see `hetero.ops.kmeans.fit.Fit.given`."""
    variance = float(given.var(axis=0, dtype=np.float64).mean())
    return subtracted(given.mean(axis=0, dtype=np.float64), variance, given.dtype)


# -- The rows --------------------------------------------------------------------------------------


class DeviceRows(Rows):
    """The rows of X on one device, which is active here and whenever a method is called.

    The device decides when a start ends, and the host looks at it once for several iterations:
    those beyond the last one do nothing. Centroids are in two sets of buffers in turn; ``swapped``
    says whether they are in the second one.

    X and the weights, which may be None, are buffers of the device, (n, d) and (n,) of one dtype,
    contiguous; they are only read.
    """

    def __init__(
        self,
        device: Device,
        problem: Problem,
        X: Any,
        weights: Any = None,
        kept: DeviceLabels | None = None,  # where labels are left; None: they come to the host
        *,
        given: np.ndarray | None = None,  # see `hetero.ops.kmeans.fit.Fit.given`
        mean: np.ndarray | None = None,  # that is subtracted; None: by the rows, or what is given
        counted: bool = False,  # whether the labels that change are counted
        seeded: bool = False,  # whether `seeding` will be asked for
    ) -> None:
        self.n, self.d, self.k = problem.dims
        self.dtype, self.device, self.swapped = np.dtype(problem.dtype), device, False
        self._kept, self._counted = kept, counted
        self._space = Workspace(device, "kmeans")
        self.buffers = self._space.buffers  # by the names of `plans.LloydPlan`
        self._X = self.buffers["X"] = X
        if weights is not None:
            self.buffers["weights"] = weights
        if kept is None:
            self._space.allocate(self.n * 4, "labels")
        else:
            self.buffers["labels"] = kept.buffer
        self._columns = plans.columns(self.n, self.d, self.dtype.name, device.target)
        self._plan = self._planned()
        self._compile(seeded)
        self.mean = self._own_mean(given) if mean is None else mean
        if self.mean.any():
            self._subtract_mean()
        self._space.allocate(self.k * self.d * self.dtype.itemsize, "centroids")
        for name, nbytes in self._plan.scratch.items():
            self._space.allocate(nbytes, name)
        self._start(*map(self._bound, self._plan.prepare))

    def _planned(self) -> plans.LloydPlan:
        """The launches of an iteration on X where it is now."""
        X = self.buffers["X"]
        return plans.plan_lloyd(
            n=self.n,
            d=self.d,
            k=self.k,
            dtype=self.dtype.name,
            weighted="weights" in self.buffers,
            target=self.device.target,
            alignment=X & -X & 15 or 16 if type(X) is int else 16,
            counted=self._counted,
        )

    def seeds_plan(self) -> SeedsPlan:
        """The launches of k-means++."""
        weighted, target = "weights" in self.buffers, self.device.target
        return plan_seeds(self.n, self.d, trials(self.k), self.dtype.name, weighted, target)

    def _compile(self, seeded: bool) -> None:
        """Compile what a fit launches, together; one after the other they take two seconds."""
        plan = self._plan
        launches = [
            *plan.prepare,
            *plan.update,
            *plan.assign,
            *plan.finish,
            plan.pack,
            plan.inertia,
        ]
        launches += [*self._columns, *(self.seeds_plan().launches() if seeded else ())]
        self.device.compile_ahead((one.source, one.defines) for one in launches)

    def _own_mean(self, given: np.ndarray | None) -> np.ndarray:
        """What is subtracted of these rows where the caller does not say."""
        X = self.buffers["X"]
        means, self._variance = moments(self.device, X, self.n, self.d, self.dtype)
        if not math.isfinite(self._variance):  # or only their squares overflow
            check_finite(self._on_host())
        if given is not None:
            return subtracted_for(given)
        return subtracted(means, self._variance, self.dtype)

    def _subtract_mean(self) -> None:
        """Go on with X less its mean."""
        n, d, mean = self.n, self.d, np.ascontiguousarray(self.mean)
        self.device.upload(mean, self._space.allocate(mean.nbytes, "mean"))
        self._space.allocate(n * d * self.dtype.itemsize, "centred")
        self._start(self._bound(self._columns[1]))
        self.buffers["X"] = self.buffers["centred"]
        self._plan = self._planned()

    def _on_host(self) -> np.ndarray:
        """X on the host."""
        X = np.empty((self.n, self.d), self.dtype)
        self.device.download(self._X, X)
        return X

    # -- Launches and copies ---------------------------------------------------------------------

    def _bound(self, launch: Launch, swapped: bool | None = None, **others: Any) -> tuple[Any, ...]:
        """What the device's launch takes, on the one or the other set of centroids."""
        buffers = self.buffers | others
        if self.swapped if swapped is None else swapped:
            buffers |= {name: self.buffers[other] for name, other in _SWAPPED.items()}
        return bind(self.device, launch, buffers)

    def _start(self, *bound: tuple[Any, ...]) -> None:
        for one in bound:
            self.device.launch(*one)

    def download(self, name: str, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """A buffer's content."""
        found = np.empty(shape, dtype)
        self.device.download(self.buffers[name], found)
        return found

    def put(self, centroids: np.ndarray) -> None:
        """Go on with centroids from the host, as those of one of the two sets."""
        names = _SETS[self.swapped]
        self.device.upload(np.ascontiguousarray(centroids, self.dtype), self.buffers[names[0]])
        self._pack(names)

    def _pack(self, names: tuple[str, ...]) -> None:
        """Lay centroids out as the assignment reads them: from and to the buffers of a set."""
        buffers = {name: self.buffers[other] for name, other in zip(_SETS[0], names, strict=True)}
        self._start(self._bound(self._plan.pack, False, **buffers))

    def state(self) -> tuple[Stopped, int, bool]:
        """`Stopped`, after how many iterations, and whether the last one changed a label."""
        stopped, iterations, changed, _ = self.download("state", (plans.STATE,), np.int32).tolist()
        return Stopped(stopped), iterations, bool(changed)

    def set_state(self, stopped: int, iterations: int, changed: int) -> None:
        """Write the state. Labels "changed" keep the next iteration from ending at once."""
        state = np.array([stopped, iterations, changed, 0], np.int32)
        self.device.upload(state, self.buffers["state"])

    def iteration(self, swapped: bool, tolerance: float, most: int = 0) -> Callable[[], None]:
        """A function that starts one iteration from the one or the other set of centroids."""
        bound = [
            self._bound(launch, swapped, tolerance=tolerance, most=float(most))
            for launch in (*self._plan.assign, *self._plan.update, *self._plan.finish)
        ]
        return lambda: self._start(*bound)

    # -- What is asked of rows -------------------------------------------------------------------

    def mean_variance(self) -> float:
        return self._variance

    def host_weights(self) -> np.ndarray | None:
        if "weights" not in self.buffers:
            return None
        return self.download("weights", (self.n,), self.dtype)

    def centred(self) -> tuple[np.ndarray, np.ndarray]:
        X = self._on_host()
        centre = X.mean(axis=0)
        return X - centre, centre

    def rows(self, indices: np.ndarray) -> np.ndarray:
        return self._gathered("X", indices, (self.d,), self.dtype)

    def picked(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        weights = np.ones(len(indices))
        if "weights" in self.buffers:
            weights = self._gathered("weights", indices, (), self.dtype)
        return self.rows(indices), weights, self._gathered("labels", indices, (), np.int32)

    def _gathered(self, name: str, indices: np.ndarray, shape: Any, dtype: Any) -> np.ndarray:
        """Some rows of a buffer."""
        found = np.empty((len(indices), *shape), dtype)
        row, space = found.nbytes // len(found), Workspace(self.device, "kmeans")
        buffer = space.allocate(found.nbytes)
        for place, index in enumerate(indices):  # a download of each would wait for each
            self.device.copy(buffer, self.buffers[name], row, place * row, int(index) * row)
        self.device.download(buffer, found)
        return found

    def seeding(self) -> DeviceSeeding:
        return DeviceSeeding(self)

    @property
    def labels(self) -> Any:  # type: ignore[override]
        if self._kept is not None:
            return self._kept.array
        return self.download("labels", (self.n,), np.int32)

    def begin(self, centroids: np.ndarray) -> None:
        """Start to label the rows and to add them up: see `sums` and `changed`."""
        self.put(centroids)
        self.set_state(Stopped.RUNNING, 1, 0)  # the first one would count all labels
        self._start(
            *map(self._bound, (*self._plan.assign, *self._plan.update, self._plan.finish[0]))
        )

    def assign(self, centroids: np.ndarray) -> int:
        self.begin(centroids)
        return self.changed()

    def changed(self) -> int:
        """How many labels the last iteration changed, or the step that was begun last, if that was
        not the first one; where they are not counted, 1 for any number."""
        if self._counted:
            blocks = self._plan.scratch["counts"] // 8
            return int(self.download("counts", (blocks,), np.float64).sum())
        return int(self.state()[2])

    def sums(self) -> tuple[np.ndarray, np.ndarray]:
        sums = self.download("sums", (self.k, self.d), self.dtype)
        totals = self.download("totals", (self.k,), self.dtype)
        return sums.astype(np.float64), totals.astype(np.float64)

    def distances(self, centroids: np.ndarray) -> np.ndarray:
        """Squared distances of the rows from the centroids that are there, of their labels."""
        if "distances" not in self.buffers:
            self._space.allocate(self.n * self.dtype.itemsize, "distances")
        self._start(self._bound(self._plan.distances))
        return self.download("distances", (self.n,), self.dtype)

    def inertia(self, centroids: np.ndarray) -> float:
        """Their weighted sum."""
        launch = self._plan.inertia
        self._start(self._bound(launch))
        return float(self.download("partial_inertia", (launch.grid,), np.float64).sum())

    def restart(self, centroids: np.ndarray) -> None:
        self.swapped, self._batch, self._done = False, 2, 0
        self.put(centroids)
        self._pack(("centroids", *_SETS[1][1:]))  # which fills the other set up
        self.set_state(Stopped.RUNNING, 0, 1)

    def lloyd(self, centroids: np.ndarray, maxiter: int, tol: float, most: int = 0) -> Run:
        run = super().lloyd(centroids, maxiter, tol, most)
        if run.iterations:
            centroids[...] = self._centroids()
        return run

    def iterate(
        self, centroids: np.ndarray, done: int, maxiter: int, tol: float, most: int
    ) -> tuple[Stopped, int]:
        """Make some iterations, between two looks at the state."""
        if not done:
            self._starts = [self.iteration(swapped, tol, most) for swapped in (False, True)]
        began = time.monotonic()
        for number in range(done, min(done + self._batch, maxiter)):
            self._starts[number % 2]()
        stopped, self._done, _ = self.state()
        self.swapped = self._done % 2 == 1
        if stopped == Stopped.EMPTIED:
            old, changed = self._centroids(), self.changed()
            new, moved = means(self, old)
            shift = float(((new.astype(np.float64) - old) ** 2).sum())
            stopped, self._done = ending(changed, moved, shift, tol, most), self._done + 1
            self.swapped = not self.swapped
            self.put(new)
            self.set_state(stopped, self._done, 0)
        took = time.monotonic() - began
        wanted = math.ceil(_BATCH_SECONDS * (self._done - done) / took)
        self._batch = max(1, min(wanted, 2 * self._batch, _LONGEST_BATCH))
        return stopped, self._done

    def label(self, centroids: np.ndarray) -> None:
        """Find the labels for the centroids that are there."""
        if self._done:
            self.set_state(Stopped.RUNNING, self._done, 1)
        self._start(*map(self._bound, self._plan.assign))

    def _centroids(self) -> np.ndarray:
        return self.download(_SETS[self.swapped][0], (self.k, self.d), self.dtype)


# -- k-means++ -------------------------------------------------------------------------------------


class DeviceSeeding:
    """k-means++ of rows on one device, which is active whenever a method is called: distances stay
    there, sums of blocks of rows come to the host."""

    def __init__(self, rows: DeviceRows) -> None:
        self.device, self._dtype, self._plan = rows.device, rows.dtype, rows.seeds_plan()
        self._nbytes = rows.n * self._dtype.itemsize  # of a number for each row
        self._space = Workspace(self.device, "kmeans")
        self._buffers = self._space.buffers
        for name in {"X", "weights"} & rows.buffers.keys():
            self._buffers[name] = rows.buffers[name]
        self._sums = np.zeros((0, 0))  # of each part those of all candidates
        self._reached = np.zeros(1)  # before each part, and at the end
        count, parts = self._plan.trials, self._plan.parts
        sizes = {"closest": self._nbytes, "tried": count * self._nbytes, "asked": 2 * count * 8}
        sizes |= {"sums": (parts + 1) * count * 8}
        sizes |= {"candidates": count * rows.d * self._dtype.itemsize}
        for name, nbytes in sizes.items():
            self._space.allocate(nbytes, name)
        self._bound: dict[tuple[int, ...], tuple[Any, ...]] = {}  # shorter ones find rows

    def first(self, index: int) -> float:
        after = self._plan.parts * 8  # where the kernel looks for the row's number
        self.device.upload(np.array([index], float), self._buffers["sums"], after)
        self._launch(self._plan.try_seeds, 1, True, True)
        self._sums = np.empty((self._plan.parts, 1))
        self.end()
        self.take(0)
        return float(self._reached[-1])

    def draw(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        self._ask(values, gathered=True)
        self._launch(self._plan.try_seeds, len(values), False, True)
        whole = np.empty((self._plan.parts + 1, len(values)))
        self.device.download(self._buffers["sums"], whole)
        self._sums = whole[:-1]
        return whole[-1].astype(np.int64), self._sums.sum(axis=0)

    def take(self, which: int) -> None:
        nbytes, buffers = self._nbytes, self._buffers
        self.device.copy(buffers["closest"], buffers["tried"], nbytes, 0, which * nbytes)
        self._reached = np.cumsum(np.concatenate([[0.0], self._sums[:, which]]))

    def find(self, values: np.ndarray) -> np.ndarray:
        """The rows that `draw` gives alone, for who brings them with `begin`."""
        self._ask(values, gathered=False)
        found = np.empty(len(values))
        self.device.download(self._buffers["sums"], found, self._plan.parts * found.nbytes)
        return found.astype(np.int64)

    def begin(self, rows: np.ndarray, first: bool) -> None:
        """Start to ask for the potentials with rows of the host's, less the mean; see `end`."""
        rows = np.ascontiguousarray(rows, self._dtype)
        self.device.upload(rows, self._buffers["candidates"])
        self._launch(self._plan.try_seeds, len(rows), first, False)
        self._sums = np.empty((self._plan.parts, len(rows)))

    def end(self) -> np.ndarray:
        """Wait for the potentials."""
        self.device.download(self._buffers["sums"], self._sums)
        return self._sums.sum(axis=0)

    def _ask(self, values: np.ndarray, gathered: bool) -> None:
        """Start to look for the rows at which the running sum reaches the values."""
        parts = np.minimum(np.searchsorted(self._reached[1:], values), self._plan.parts - 1)
        asked = np.stack([parts, values - self._reached[parts]], axis=1)
        self.device.upload(asked, self._buffers["asked"])
        self._launch(self._plan.find_rows, len(values), gathered)

    def _launch(self, plan: Callable[..., Launch], *shape: int) -> None:
        """Start the launch that ``plan(*shape)`` gives, which is bound once."""
        if shape not in self._bound:
            self._bound[shape] = bind(self.device, plan(*shape), self._buffers)
        self.device.launch(*self._bound[shape])
