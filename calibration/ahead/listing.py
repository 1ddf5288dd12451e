"""Which kernels and transforms cases need, recorded by a device that computes nothing.

What a solve launches depends on its sizes and on its course: it is run on a device that has the
limits of the real one, but no memory, and only records what it is asked for.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np

from hetero.calibration.measure import sampling, solving
from hetero.devices.base import Device
from hetero.errors import HeteroError
from hetero.host.copying.copy_jobs import DOWNLOAD
from hetero.ops.cases import Case, Dims, Passes, SampleGrid, TimedSolves, grid
from hetero.registry import Arguments

_MOST = 100_000  # launches of one run: with results that mean nothing a loop may never end
_ALIGNED = 256  # bytes, as what allocators give

log = logging.getLogger("hetero")

Kernel = tuple[str, tuple[tuple[str, int | str], ...]]  # a file's name, and its macros


class Listing(Device):
    """Records the kernels and the transforms that it is asked for.

    Parameters
    ----------
    name : str
    info : dict
        The description of the device that it stands in for.

    Attributes
    ----------
    wanted : dict
        Its keys are the kernels: files and macros, in the order of the requests.
    layouts : dict
        Its values are the layouts that plans of transforms were requested with.
    local : object
        As a CUDA device's, for its libraries.
    """

    local = SimpleNamespace(queue=None)

    def __init__(self, name: str, info: Mapping[str, Any]) -> None:
        self.name, self._info = name, dict(info)
        self.kind = self.dialect = info["kind"]
        for limit in ("multiprocessors", "block_limit", "shared_limit"):
            setattr(self, limit, info[limit])
        self.arch = info.get("arch", "")
        if self.arch:
            self.capability = divmod(int(self.arch.removeprefix("sm_")), 10)
        self.wanted: dict[Kernel, None] = {}
        self.layouts: dict[str, Sequence[tuple[Any, ...]]] = {}
        self._state = SimpleNamespace(handles={"cublas": (_Nothing(), 0)})
        self._end, self._launches = 0, 0

    def describe(self) -> dict[str, Any]:
        return dict(self._info)

    def begin(self) -> None:
        """Begin another run."""
        self._launches = 0

    @contextlib.contextmanager
    def active(self) -> Iterator[Listing]:
        yield self

    def build(self, text: str, kernel: str, defines: Any) -> None:
        self.wanted[text, defines] = None

    def compile_ahead(self, wanted: Iterable[Kernel]) -> None:
        self.wanted.update(dict.fromkeys(wanted))

    def cooperative(
        self, text: str, kernel: str, defines: Any, block: int, shared_bytes: int
    ) -> _Nothing:
        self.build(text, kernel, defines)
        return _Nothing()

    def transforms(self, layouts: Sequence[tuple[Any, ...]]) -> _Nothing:
        self.layouts[repr(layouts)] = layouts
        return _Nothing()

    def state(self) -> Any:
        return self._state

    def launch(self, *arguments: Any) -> None:
        self._launches += 1
        if self._launches > _MOST:
            raise HeteroError(f"more than {_MOST} launches")

    def allocate(self, nbytes: int) -> tuple[int, None]:
        self._end += _ALIGNED
        return self._end, None

    def enqueue(
        self,
        direction: str,
        array: np.ndarray,
        buffer: Any,
        offset: int = 0,
        stream: Any = None,
        awake: bool = False,
    ) -> None:
        if direction == DOWNLOAD:
            array[...] = 1  # zeros would be a residual that ends a solve before it begins

    def elapsed(self, start: Any, end: Any) -> float:
        return 1.0

    def passed(self, mark: Any) -> bool:
        return True

    def new_array(self, shape: tuple[int, ...], dtype: np.dtype) -> Any:
        raise HeteroError("it has no memory")

    def pinned(self, nbytes: int, purpose: str = "") -> np.ndarray:
        return np.empty(nbytes, np.uint8)

    def _nothing(self, *arguments: Any, **options: Any) -> None: ...

    fill = copy = copy_from_peer = synchronize = _nothing
    event = record = wait = new_stream = _nothing


class _Nothing:
    """A kernel, a plan of a transform or a library that does nothing on any call."""

    most_blocks = _MOST

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: None


def kernels_of(device: Listing, cases: Iterable[Case], number: int = 1) -> list[Kernel]:
    """The kernels that cases launch; those that were listed before are left out.

    ``number`` devices like this one share each solve.
    """
    before = set(device.wanted)
    for case in cases:
        run = partial(_solve, number) if isinstance(case.how, TimedSolves) else _call
        for dims in sizes(case):
            device.begin()
            try:
                run(device, case, dims)
            except Exception as error:  # its kernels are compiled when they are measured
                log.debug("the kernels of %s %s are not listed: %s", case, dims, error)
    return [one for one in device.wanted if one not in before]


def sizes(case: Case) -> list[Dims]:
    """All sizes that will be measured of a case."""
    if isinstance(case.how, Passes):
        return [*case.how.knots.values(), *case.how.held_out.values()]
    if isinstance(case.how, SampleGrid):
        between = itertools.islice(sampling.between_knots(case), case.how.held_out)
        return [*grid(case.axes), *between]
    return list(grid(case.axes))


def _call(device: Listing, case: Case, dims: Dims) -> None:
    problem = case.problem(*dims)
    options = case.options(problem) if case.options is not None else None
    inputs = tuple(device.allocate(1)[0] for _ in problem.inputs[: case.inputs])
    arguments = Arguments(inputs, device.allocate(1)[0], options)
    case.implementation.run((device,), problem, arguments)


def _solve(number: int, device: Listing, case: Case, dims: Dims) -> None:
    devices = (device,) * number
    problem, made = case.problem(*dims), case.arguments(*dims, devices=devices)
    if number == 1 and not case.implementation.from_host:  # else operands are the host's
        b, x = device.allocate(1)[0], device.allocate(1)[0]
        made = made._replace(inputs=(b,), output=x)
    for count in solving.counts(case, dims[0]):
        options = made.options._replace(maxiter=count)
        case.implementation.run(devices, problem, made._replace(options=options))
