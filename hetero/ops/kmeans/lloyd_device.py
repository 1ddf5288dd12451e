"""The rows of X on one device: their layout there, and what an iteration asks of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from hetero.devices.base import Device
from hetero.devices.workspace import Workspace
from hetero.errors import DeviceError
from hetero.imports import load
from hetero.kernels.common.launch import Launch
from hetero.kernels.kmeans import plan as plans
from hetero.ops.kmeans import columns_device
from hetero.ops.kmeans.fit import Run
from hetero.ops.kmeans.loop_device import CHANGED, RUNNING, Loop
from hetero.ops.kmeans.seeding_device import DeviceSeeding
from hetero.ops.linear_systems.types import DeviceFailed
from hetero.profile import tuning
from hetero.registry.problem import Problem

_SWAPPED = {
    "centroids": "means",
    "means": "centroids",
    "packed": "packed_next",
    "packed_next": "packed",
    "norms": "norms_next",
    "norms_next": "norms",
}


class DeviceRows:
    """The rows of X on one device, and k-means of them: see `hetero.ops.kmeans.fit.Rows`.

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
    method : str
        "lloyd", "library", or a rung of `hetero.kernels.kmeans.plan.RUNGS`.
    labels : device buffer, optional
        (n,) of int32, which the labels are left in. Default: one of its own.
    given : (k, d) numpy.ndarray, optional
        See `hetero.ops.kmeans.fit.Fit.given`.
    seeded : bool
        Whether `seeding` will be asked for.
    mean : (d,) numpy.ndarray, optional
        What is to be subtracted. Default: by the rows, or by what is given.

    Attributes
    ----------
    mean : (d,) numpy.ndarray
        What is subtracted of X, see `hetero.ops.kmeans.columns_device.subtracted`. Centroids that
        come and go are less it too.
    labels : device buffer
    """

    def __init__(
        self,
        device: Device,
        problem: Problem,
        X: Any,
        weights: Any = None,
        method: str = "lloyd",
        labels: Any = None,
        given: np.ndarray | None = None,
        seeded: bool = False,
        mean: np.ndarray | None = None,
    ) -> None:
        self.n, self.d, self.k = problem.dims
        self.dtype = np.dtype(problem.dtype)
        self._device = device
        self._method = method
        self._products: Any = None
        self._space = Workspace(device, "kmeans")
        self._buffers = self._space.buffers
        self._buffers["X"] = X
        if weights is not None:
            self._buffers["weights"] = weights
        if labels is None:
            labels = self._space.allocate(self.n * 4, "labels")
        self.labels = self._buffers["labels"] = labels
        self._plan = self._planned()
        self._compile(seeded)
        self.mean = self._own_mean(given) if mean is None else mean
        if self.mean.any():
            self._subtract_mean()
        self._lay_out()

    def _planned(self) -> plans.LloydPlan:
        """The launches of an iteration on X where it is now."""
        device, X = self._device, self._buffers["X"]
        return plans.plan_lloyd(
            n=self.n,
            d=self.d,
            k=self.k,
            dtype=self.dtype.name,
            weighted="weights" in self._buffers,
            multiprocessors=device.multiprocessors,
            alignment=X & -X & 15 or 16 if type(X) is int else 16,
            block_limit=device.block_limit,
            shared_limit=device.shared_limit,
            capability=device.capability,
            method=self._method,
            tuning=tuning.of_device(device),
        )

    def _columns(self) -> tuple[Launch, Launch]:
        return columns_device.launches(self._device, self.n, self.d, self.dtype)

    def _compile(self, seeded: bool) -> None:
        """Compile what a fit launches, together; one after the other they take two seconds."""
        plan = self._plan
        launches = [*plan.update, *plan.assign, *plan.finish, *plan.prepare, plan.pack]
        launches += [plan.inertia, *self._columns(), *(self.seeding().launches() if seeded else ())]
        if not plan.assign:  # of a library's products
            launches.append(
                plans.label_rows(0, self.n, self.k, self.dtype.name, self._device.block_limit)
            )
        self._device.compile_ahead((one.source, one.defines) for one in launches)

    def _own_mean(self, given: np.ndarray | None) -> np.ndarray:
        """What is subtracted of these rows where nobody tells."""
        where = self._device, self._buffers["X"], self.n, self.d, self.dtype
        means, self._variance = columns_device.moments(*where)
        if given is not None:
            return columns_device.subtracted_for(given)
        return columns_device.subtracted(means, self._variance, self.dtype)

    def _subtract_mean(self) -> None:
        """Go on with X less its mean."""
        n, d, mean = self.n, self.d, np.ascontiguousarray(self.mean)
        self._device.upload(mean, self._space.allocate(mean.nbytes, "mean"))
        self._space.allocate(n * d * self.dtype.itemsize, "centred")
        self._start(self._bound(self._columns()[1]))
        self._buffers["X"] = self._buffers["centred"]
        self._plan = self._planned()

    def _lay_out(self) -> None:
        """Buffers and launches of an iteration, and of one that follows it."""
        self._space.allocate(self.k * self.d * self.dtype.itemsize, "centroids")
        for name, nbytes in self._plan.scratch.items():
            self._space.allocate(nbytes, name)
        self._start(*map(self._bound, self._plan.prepare))

    def _library(self) -> Any:
        """The products of the device's BLAS, made when they are asked for first."""
        Products = load("hetero.ops.kmeans.products_device").Products
        if self._products is None:
            dims = self.n, self.d, self.k
            self._products = Products(
                self._device, self._space, self._buffers, dims, self.dtype.name
            )
        return self._products

    def _bound(self, launch: Launch, swapped: bool = False, **others: Any) -> tuple[Any, ...]:
        """What the device's launch takes."""

        def value(argument: Any) -> Any:
            if type(argument) is not str:
                return argument
            if argument in others:
                return others[argument]
            return self._buffers[_SWAPPED.get(argument, argument) if swapped else argument]

        kernel = self._device.build(launch.source, launch.kernel, launch.defines)
        arguments = [value(argument) for argument in launch.arguments]
        return kernel, launch.grid, launch.block, arguments, launch.shared_bytes

    def _start(self, *bound: tuple[Any, ...]) -> None:
        for one in bound:
            self._device.launch(*one)

    def mean_variance(self) -> float:
        """See `hetero.ops.kmeans.fit.Rows`; known where the mean is the rows' own."""
        return self._variance

    def lloyd(self, centroids: np.ndarray, maxiter: int, tol: float, exactly: bool = False) -> Run:
        """See `hetero.ops.kmeans.fit.Rows`; the labels stay on the device, in `labels`."""
        loop = Loop(self, centroids, tol, exactly)
        try:
            return loop.run(maxiter)
        except DeviceError as error:
            if not loop.begun:
                raise
            saved = None if loop.saved is None else loop.saved + self.mean
            raise DeviceFailed(error, saved, loop.saved_at) from error

    def assign(self, centroids: np.ndarray) -> float:
        """Find the labels for centroids on the host; the inertia."""
        self.upload(centroids)
        self.label(False)
        return self.inertia(False)

    def upload(self, centroids: np.ndarray) -> None:
        """Begin with centroids from the host."""
        self._device.upload(np.ascontiguousarray(centroids, self.dtype), self._buffers["centroids"])
        self._pack("centroids", "packed", "norms")
        self._pack("centroids", "packed_next", "norms_next")
        self.set_state(RUNNING, 0, 1)

    def put(self, centroids: np.ndarray, swapped: bool) -> None:
        """Go on with centroids from the host, as those of one of the two sets."""
        names = ("means", "packed_next", "norms_next")
        names = names if swapped else tuple(_SWAPPED[name] for name in names)
        self._device.upload(centroids, self._buffers[names[0]])
        self._pack(*names)

    def _pack(self, centroids: str, packed: str, norms: str) -> None:
        names = {"centroids": centroids, "packed": packed, "norms": norms}
        buffers = {name: self._buffers[other] for name, other in names.items()}
        self._start(self._bound(self._plan.pack, **buffers))

    def download(self, name: str, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """A buffer's content."""
        found = np.empty(shape, dtype)
        self._device.download(self._buffers[name], found)
        return found

    def set_state(self, stopped: int, iterations: int, changed: int) -> None:
        """Write what the iteration's state is. Labels "changed" keep it from ending at once."""
        state = np.array([stopped, iterations, changed, 0], np.int32)
        self._device.upload(state, self._buffers["state"])

    def label(self, swapped: bool) -> None:
        """Find the labels for the one or the other set of centroids."""
        if not self._plan.assign:
            self._by_library(swapped)
        self._start(*(self._bound(launch, swapped) for launch in self._plan.assign))

    def _by_library(self, swapped: bool) -> None:
        names = ("means", "norms_next") if swapped else ("centroids", "norms")
        self._library().assign(*names)

    def iteration(self, swapped: bool, tolerance: float) -> Any:
        """A function that starts one iteration from the one or the other set of centroids."""
        first = [self._bound(launch, swapped) for launch in self._plan.assign]
        rest = [
            self._bound(launch, swapped, tolerance=tolerance)
            for launch in (*self._plan.update, *self._plan.finish)
        ]

        def start() -> None:
            if not first:
                self._by_library(swapped)
            self._start(*first, *rest)

        return start

    def inertia(self, swapped: bool) -> float:
        """The weighted sum of squared distances from the centroids of the labels."""
        launch = self._plan.inertia
        self._start(self._bound(launch, swapped))
        return float(self.download("partial_inertia", (launch.grid,), np.float64).sum())

    def begin_step(self, centroids: np.ndarray) -> None:
        """Start to label the rows and to add them up: see `sums` and `changed`."""
        self.upload(centroids)
        self.set_state(RUNNING, 0, 0)
        self.label(False)
        self._start(*map(self._bound, (*self._plan.update, self._plan.finish[0])))

    def sums(self) -> tuple[np.ndarray, np.ndarray]:
        """The weighted sums of the clusters' rows, (k, d), and of their weights, in float64."""
        sums = self.download("sums", (self.k, self.d), self.dtype)
        totals = self.download("totals", (self.k,), self.dtype)
        return sums.astype(np.float64), totals.astype(np.float64)

    def changed(self) -> bool:
        """Whether the step that was begun last changed a label, if it was not the first one."""
        return bool(self.download("state", (plans.STATE,), np.int32)[CHANGED])

    def distances(self, swapped: bool) -> np.ndarray:
        """Squared distances of the rows from the centroids of their labels."""
        if "distances" not in self._buffers:
            self._space.allocate(self.n * self.dtype.itemsize, "distances")
        self._start(self._bound(self._plan.distances, swapped))
        return self.download("distances", (self.n,), self.dtype)

    def fetch_labels(self) -> np.ndarray:
        """The labels, on the host."""
        return self.download("labels", (self.n,), np.int32)

    def seeding(self) -> DeviceSeeding:
        """Distances for k-means++."""
        buffers = self._buffers
        where = self._device, buffers["X"], buffers.get("weights")
        return DeviceSeeding(*where, self.n, self.d, self.k, self.dtype)

    def rows(self, indices: np.ndarray) -> np.ndarray:
        """Some rows, less the mean."""
        found = np.empty((len(indices), self.d), self.dtype)
        row = self.d * self.dtype.itemsize
        buffer = self._space.allocate(found.nbytes)
        for place, index in enumerate(indices):  # a download of each would wait for each
            self._device.copy(buffer, self._buffers["X"], row, place * row, int(index) * row)
        self._device.download(buffer, found)
        return found

    def row(self, index: int) -> np.ndarray:
        """One row, less the mean."""
        row = np.empty(self.d, self.dtype)
        self._device.download(self._buffers["X"], row, int(index) * row.nbytes)
        return row

    def weight(self, index: int) -> float:
        """One weight."""
        weight = np.ones(1, self.dtype)
        if "weights" in self._buffers:
            self._device.download(self._buffers["weights"], weight, int(index) * weight.itemsize)
        return float(weight[0])
