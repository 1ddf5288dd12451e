"""The rows of X on one device: their layout there, and what an iteration asks of them."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any

import numpy as np

from hetero.devices.base import Device
from hetero.devices.workspace import Workspace
from hetero.kernels.common.launch import Launch
from hetero.kernels.kmeans import plan as plans
from hetero.kernels.kmeans.plan_seeds import SeedsPlan, plan_seeds
from hetero.ops.kmeans.backend import subtracted, subtracted_for, trials
from hetero.registry.problem import Problem

# The two sets of centroids' buffers: an iteration reads one and writes the other.
_SETS = ("centroids", "packed", "norms"), ("means", "packed_next", "norms_next")
_SWAPPED = dict(zip(_SETS[0] + _SETS[1], _SETS[1] + _SETS[0], strict=True))


class Stopped(enum.IntEnum):
    """Why the iterations stopped, first in the device's state."""

    RUNNING, REPEATED, CONVERGED, EMPTIED = range(4)


def bind(device: Device, launch: Launch, buffers: Mapping[str, Any]) -> tuple[Any, ...]:
    """What `Device.launch` takes for a launch on these buffers; the device is active."""
    kernel = device.build(launch.source, launch.kernel, launch.defines)
    arguments = [buffers[a] if type(a) is str else a for a in launch.arguments]
    return kernel, launch.grid, launch.block, arguments, launch.shared_bytes


def moments(device: Device, X: Any, n: int, d: int, dtype: np.dtype) -> tuple[np.ndarray, float]:
    """The columns' means in float64, and the mean of their variances.

    X is a buffer of (n, d) numbers without gaps; its device is active.
    """
    sums, _ = _column_launches(device, n, d, dtype)
    space = Workspace(device, "kmeans")  # which holds it as long as it is there
    columns = space.allocate(sums.grid * 2 * d * 8)
    device.launch(*bind(device, sums, {"X": X, "columns": columns}))
    first, found = np.empty(d, dtype), np.empty((sums.grid, 2, d))
    device.download(X, first)
    device.download(columns, found)
    with np.errstate(invalid="ignore", over="ignore"):  # of rows that are refused for it
        apart, squares = found.sum(axis=0) / n
        return first + apart, float(np.mean(np.maximum(squares - apart * apart, 0.0)))


def _column_launches(device: Device, n: int, d: int, dtype: np.dtype) -> tuple[Launch, Launch]:
    """What adds the columns up, and what makes X less their means."""
    return plans.columns(n, d, dtype.name, device.multiprocessors, device.block_limit)


class DeviceRows:
    """The rows of X on one device, and what Lloyd's iterations do with them there.

    Parameters
    ----------
    device : Device
        Active, here and whenever a method is called.
    problem : Problem
        Of dims (n, d, k).
    X : device buffer
        (n, d), contiguous; read only.
    weights : device buffer or None
        (n,), of the dtype of X.
    labels : device buffer, optional
        (n,) of int32, which the labels are left in. Default: one of its own.
    given : (k, d) numpy.ndarray, optional
        See `hetero.ops.kmeans.fit.Fit.given`.
    seeded : bool
        Whether `seeds_plan` will be launched.
    mean : (d,) numpy.ndarray, optional
        What is to be subtracted. Default: by the rows, or by what is given.
    counted : bool
        Whether the labels that change are counted.

    Attributes
    ----------
    mean : (d,) numpy.ndarray
        What is subtracted of X, see `hetero.ops.kmeans.backend.subtracted`. Centroids that come and
        go are less it too.
    mean_variance : float
        Of the columns, the mean of their variances; where the mean was not given.
    buffers : dict
        By the names of `hetero.kernels.kmeans.plan.LloydPlan`.
    """

    def __init__(
        self,
        device: Device,
        problem: Problem,
        X: Any,
        weights: Any = None,
        labels: Any = None,
        given: np.ndarray | None = None,
        seeded: bool = False,
        mean: np.ndarray | None = None,
        counted: bool = False,
    ) -> None:
        self.n, self.d, self.k = problem.dims
        self.dtype = np.dtype(problem.dtype)
        self.device = device
        self._counted = counted
        self._space = Workspace(device, "kmeans")
        self.buffers = self._space.buffers
        self.buffers["X"] = X
        if weights is not None:
            self.buffers["weights"] = weights
        if labels is None:
            self._space.allocate(self.n * 4, "labels")
        else:
            self.buffers["labels"] = labels
        self._columns = _column_launches(device, self.n, self.d, self.dtype)
        self._plan = self._planned()
        self._compile(seeded)
        self.mean = self._own_mean(given) if mean is None else mean
        if self.mean.any():
            self._subtract_mean()
        self._lay_out()

    def _planned(self) -> plans.LloydPlan:
        """The launches of an iteration on X where it is now."""
        device, X = self.device, self.buffers["X"]
        return plans.plan_lloyd(
            n=self.n,
            d=self.d,
            k=self.k,
            dtype=self.dtype.name,
            weighted="weights" in self.buffers,
            multiprocessors=device.multiprocessors,
            alignment=X & -X & 15 or 16 if type(X) is int else 16,
            block_limit=device.block_limit,
            shared_limit=device.shared_limit,
            capability=device.capability,
            counted=self._counted,
        )

    def seeds_plan(self) -> SeedsPlan:
        """The launches of k-means++."""
        limits = self.device.multiprocessors, self.device.block_limit
        weighted = "weights" in self.buffers
        return plan_seeds(self.n, self.d, trials(self.k), self.dtype.name, weighted, *limits)

    def _compile(self, seeded: bool) -> None:
        """Compile what a fit launches, together; one after the other they take two seconds."""
        plan = self._plan
        launches = [*plan.update, *plan.assign, *plan.finish, plan.pack]
        launches += [plan.inertia, *self._columns]
        if seeded:
            launches += self.seeds_plan().launches()
        self.device.compile_ahead((one.source, one.defines) for one in launches)

    def _own_mean(self, given: np.ndarray | None) -> np.ndarray:
        """What is subtracted of these rows where the caller does not say."""
        X = self.buffers["X"]
        means, self.mean_variance = moments(self.device, X, self.n, self.d, self.dtype)
        if given is not None:
            return subtracted_for(given)
        return subtracted(means, self.mean_variance, self.dtype)

    def _subtract_mean(self) -> None:
        """Go on with X less its mean."""
        n, d, mean = self.n, self.d, np.ascontiguousarray(self.mean)
        self.device.upload(mean, self._space.allocate(mean.nbytes, "mean"))
        self._space.allocate(n * d * self.dtype.itemsize, "centred")
        self._start(self._bound(self._columns[1]))
        self.buffers["X"] = self.buffers["centred"]
        self._plan = self._planned()

    def _lay_out(self) -> None:
        """Buffers and launches of an iteration, and of one that follows it."""
        self._space.allocate(self.k * self.d * self.dtype.itemsize, "centroids")
        for name, nbytes in self._plan.scratch.items():
            self._space.allocate(nbytes, name)

    def _bound(self, launch: Launch, swapped: bool = False, **others: Any) -> tuple[Any, ...]:
        """What the device's launch takes, on the one or the other set of centroids."""
        buffers = self.buffers | others
        if swapped:
            buffers |= {name: self.buffers[other] for name, other in _SWAPPED.items()}
        return bind(self.device, launch, buffers)

    def _start(self, *bound: tuple[Any, ...]) -> None:
        for one in bound:
            self.device.launch(*one)

    def upload(self, centroids: np.ndarray) -> None:
        """Begin with centroids from the host."""
        self.device.upload(np.ascontiguousarray(centroids, self.dtype), self.buffers["centroids"])
        self._pack(_SETS[0])
        self._pack(("centroids", *_SETS[1][1:]))
        self.set_state(Stopped.RUNNING, 0, 1)

    def put(self, centroids: np.ndarray, swapped: bool) -> None:
        """Go on with centroids from the host, as those of one of the two sets."""
        names = _SETS[swapped]
        self.device.upload(centroids, self.buffers[names[0]])
        self._pack(names)

    def _pack(self, names: tuple[str, ...]) -> None:
        """Lay centroids out as the assignment reads them: from and to the buffers of a set."""
        buffers = {name: self.buffers[other] for name, other in zip(_SETS[0], names, strict=True)}
        self._start(self._bound(self._plan.pack, **buffers))

    def download(self, name: str, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """A buffer's content."""
        found = np.empty(shape, dtype)
        self.device.download(self.buffers[name], found)
        return found

    def state(self) -> tuple[int, int, bool]:
        """`Stopped`, after how many iterations, and whether the last one changed a label."""
        stopped, iterations, changed, _ = self.download("state", (plans.STATE,), np.int32).tolist()
        return stopped, iterations, bool(changed)

    def set_state(self, stopped: int, iterations: int, changed: int) -> None:
        """Write the state. Labels "changed" keep the next iteration from ending at once."""
        state = np.array([stopped, iterations, changed, 0], np.int32)
        self.device.upload(state, self.buffers["state"])

    def label(self, swapped: bool) -> None:
        """Find the labels for the one or the other set of centroids."""
        self._start(*(self._bound(launch, swapped) for launch in self._plan.assign))

    def iteration(self, swapped: bool, tolerance: float, most: int = 0) -> Any:
        """A function that starts one iteration from the one or the other set of centroids."""
        bound = [
            self._bound(launch, swapped, tolerance=tolerance, most=float(most))
            for launch in (*self._plan.assign, *self._plan.update, *self._plan.finish)
        ]
        return lambda: self._start(*bound)

    def inertia(self, swapped: bool) -> float:
        """The weighted sum of squared distances from the centroids of the labels."""
        launch = self._plan.inertia
        self._start(self._bound(launch, swapped))
        return float(self.download("partial_inertia", (launch.grid,), np.float64).sum())

    def begin_step(self, centroids: np.ndarray) -> None:
        """Start to label the rows and to add them up: see `sums` and `changed`."""
        self.upload(centroids)
        self.set_state(Stopped.RUNNING, 1, 0)  # the first one would count all labels
        self.label(False)
        self._start(*map(self._bound, (*self._plan.update, self._plan.finish[0])))

    def sums(self) -> tuple[np.ndarray, np.ndarray]:
        """The weighted sums of the clusters' rows, (k, d), and of their weights, in float64."""
        sums = self.download("sums", (self.k, self.d), self.dtype)
        totals = self.download("totals", (self.k,), self.dtype)
        return sums.astype(np.float64), totals.astype(np.float64)

    def changed(self) -> int:
        """How many labels the last iteration changed, or the step that was begun last, if that was
        not the first one; where they are not counted, 1 for any number."""
        if self._counted:
            blocks = self._plan.scratch["counts"] // 8
            return int(self.download("counts", (blocks,), np.float64).sum())
        return int(self.state()[2])

    def distances(self, swapped: bool) -> np.ndarray:
        """Squared distances of the rows from the centroids of their labels."""
        if "distances" not in self.buffers:
            self._space.allocate(self.n * self.dtype.itemsize, "distances")
        self._start(self._bound(self._plan.distances, swapped))
        return self.download("distances", (self.n,), self.dtype)

    def fetch_labels(self) -> np.ndarray:
        """The labels, on the host."""
        return self.download("labels", (self.n,), np.int32)

    def rows(self, indices: np.ndarray) -> np.ndarray:
        """Some rows, less the mean."""
        found = np.empty((len(indices), self.d), self.dtype)
        row = self.d * self.dtype.itemsize
        buffer = self._space.allocate(found.nbytes)
        for place, index in enumerate(indices):  # a download of each would wait for each
            self.device.copy(buffer, self.buffers["X"], row, place * row, int(index) * row)
        self.device.download(buffer, found)
        return found

    def row(self, index: int) -> np.ndarray:
        """One row, less the mean."""
        row = np.empty(self.d, self.dtype)
        self.device.download(self.buffers["X"], row, int(index) * row.nbytes)
        return row

    def weight(self, index: int) -> float:
        """One weight."""
        weight = np.ones(1, self.dtype)
        if "weights" in self.buffers:
            self.device.download(self.buffers["weights"], weight, int(index) * weight.itemsize)
        return float(weight[0])
