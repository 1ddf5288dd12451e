"""Calibration's loop over the operations: cases -> samples -> fitted models.

Each step is a function of data, and what it gives can be printed. Whatever fails on the way costs
the models that it stands for: it becomes a `Failure`, and all else goes on.
"""

from __future__ import annotations

import contextlib
import importlib
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from statistics import median
from types import ModuleType
from typing import Any, NamedTuple

from hetero.calibration import fit, keeping_out, repeats, sampling
from hetero.calibration.load import Watch
from hetero.calibration.sampling import Samples
from hetero.calibration.workbench import Bench
from hetero.errors import DeviceError
from hetero.runtime.cases import Budget, Case, Dims, Passes, Place, TimedSolves
from hetero.runtime.models import ModelKey
from hetero.runtime.registry import Operation

Model = dict[str, Any]
Progress = Callable[[str, float, str], None]
AGAIN = "again"  # what is measured once more, beside the places' names, in `Progress`
_FEW = 5  # knots of what several devices share, along the first axis
_ROOM = 0.5  # of a device's memory, for the operands of one call


class Failure(NamedTuple):
    """What is left out, and why."""

    operation: str
    place: str
    what: str
    error: Exception


class Portion(NamedTuple):
    """The cases of one operation at one place."""

    operation: Operation
    place: Place
    cases: tuple[Case, ...]

    @property
    def passes(self) -> int:
        """How often all cases are gone through."""
        return max(
            (case.how.number for case in self.cases if isinstance(case.how, Passes)), default=1
        )


class Measured(NamedTuple):
    """A case, the place, and its samples."""

    case: Case
    place: Place
    samples: Samples

    @property
    def key(self) -> ModelKey:
        return key_of(self.case, self.place)


class Keeper:
    """Who keeps what was measured, in case that measuring is interrupted; this one does not."""

    def earlier(self, case: Case, place: Place) -> Samples | None:
        """The samples of a case, if its turn was taken before an interruption; it counts turns."""
        return None

    def add(self, one: Measured) -> None:
        """Samples of a case after one more turn."""


def key_of(case: Case, place: Place) -> ModelKey:
    """The key of a case's model."""
    row = case.implementation
    return ModelKey(place.name, row.operation, row.method, case.dtype, case.layout)


def module_of(operation: Operation) -> ModuleType:
    """The module that says what is measured of an operation."""
    if not operation.cases:
        raise LookupError("it does not say what is to be measured (Operation.cases)")
    return importlib.import_module(operation.cases)


def all_cases(
    operations: Iterable[Operation], places: list[Place], budget: Budget, failures: list[Failure]
) -> list[Portion]:
    """Everything that is to be measured, in order."""
    found = []
    for operation in operations:
        for place in places:
            try:
                cases = module_of(operation).cases(place, budget)
                cases = tuple(few(with_room(c, place), place) for c in cases if _fits(c, place))
            except Exception as error:
                failures.append(Failure(operation.name, place.name, "", error))
            else:
                found.append(Portion(operation, place, cases))
    return [portion for portion in found if portion.cases]


def _fits(case: Case, place: Place) -> bool:
    """Whether a case can be measured at a place: together only what several devices can share."""
    shared = case.implementation.shared
    if len(place.devices) < 2:
        return True
    return shared is not None and case.problem is not None and shared(case.problem(*case.largest))


def with_room(case: Case, place: Place) -> Case:
    """The case without the knots whose operands fill a device's memory."""
    memory = place.info.get("memory_bytes")
    if not place.devices or memory is None or case.problem is None:
        return case

    def fits(dims: tuple[int, ...]) -> bool:
        problem = case.problem(*dims)
        return sum(o.nbytes for o in (*problem.inputs, problem.output)) <= _ROOM * memory

    if isinstance(case.how, Passes):
        knots = {key: dims for key, dims in case.how.knots.items() if fits(dims)}
        return replace(case, how=replace(case.how, knots=knots))
    axes = case.axes
    while any(len(axis) > 1 for axis in axes) and not fits(tuple(axis[-1] for axis in axes)):
        axes = [axis[:-1] if len(axis) > 1 else axis for axis in axes]
    return replace(case, axes=axes)


def few(case: Case, place: Place) -> Case:
    """The case with fewer knots where it is for several devices: only large ones are shared."""
    if len(place.devices) < 2 or not case.axes or len(case.axes[0]) <= _FEW:
        return case
    sizes, *others = case.axes
    kept = [sizes[0], sizes[-_FEW], *sizes[2 - _FEW :]]
    return replace(case, axes=[kept, *others], seconds=case.seconds * len(kept) / len(sizes))


def measure(
    portions: list[Portion],
    budget: Budget,
    shares: dict[tuple[str, str, str], float],
    progress: Progress,
    failures: list[Failure],
    watch: Watch | None = None,
    keeper: Keeper | None = None,
) -> list[Measured]:
    """Samples of all cases that can be measured.

    Those that met other load, or cannot be, are taken again at the end.

    Parameters
    ----------
    portions, budget
    shares : dict
        Place, operation and method -> the host's share of a call.
    progress : callable
        Called with the place, the planned seconds, and the name of what is measured next.
    failures : list
        Is added to.
    watch : Watch, optional
        Notices other load.
    keeper : Keeper, optional
    """
    start = time.perf_counter()
    watch, keeper = watch or Watch(), keeper or Keeper()
    found: list[Measured] = []
    benches: dict[str, Bench] = {}
    gone: set[str] = set()

    def bench_at(place: Place) -> Bench:
        if place.name not in benches:
            benches[place.name] = Bench(place.devices, watch)
        return benches[place.name]

    left = {portion.place.name: 0.0 for portion in portions}
    for portion in portions:
        left[portion.place.name] += sum(case.seconds for case in portion.cases)
    time_left = dict(left)  # what one case does not use is for those that follow at its place
    for portion in portions:
        samples: dict[ModelKey, tuple[Case, Samples]] = {}
        for case, seconds in in_turn(portion):
            place, row = portion.place, case.implementation
            if (earlier := keeper.earlier(case, place)) is not None:
                samples[key_of(case, place)] = case, earlier
                left[place.name] = max(left[place.name] - seconds, 1e-9)
                time_left[place.name] -= seconds
                continue
            progress(place.name, seconds, f"{case} on {place.name}")
            if place.name in gone:
                continue
            share = budget.patience * max(time_left[place.name], 0.1) * seconds / left[place.name]
            left[place.name] = max(left[place.name] - seconds, 1e-9)
            begin = time.perf_counter()
            try:
                with active(place):
                    bench = bench_at(place)
                    host = shares.get((place.name, row.operation, row.method))
                    _, before = samples.get(key_of(case, place), (case, None))
                    taken = sampling.take(case, bench, budget, share, host, before)
                    samples[key_of(case, place)] = case, taken
            except Exception as error:
                failures.append(Failure(row.operation, place.name, str(case), error))
                if not alive(place):
                    failures.append(Failure("", place.name, str(case), error))
                    gone.add(place.name)
            else:
                keeper.add(Measured(case, place, taken))
            time_left[place.name] -= time.perf_counter() - begin
        found += [Measured(case, portion.place, taken) for case, taken in samples.values()]

    def again(number: int, dims: list[Dims]) -> Samples:
        case, place, before = found[number]
        if place.name not in gone:
            progress(AGAIN, 2 * budget.point * len(dims), f"{case} on {place.name}, again")
            try:
                with active(place):
                    taken = sampling.again(case, bench_at(place), budget, before, dims)
                found[number] = found[number]._replace(samples=taken)
            except Exception as error:
                if not alive(place):
                    failures.append(Failure("", place.name, str(case), error))
                    gone.add(place.name)
        return found[number].samples

    seconds = time.perf_counter() - start
    watch.settled(*repeats.settle(found, again, budget, seconds, watch.noisy))
    return found


def in_turn(portion: Portion) -> Iterator[tuple[Case, float]]:
    """Each case as often as it is gone through, with its part of the case's seconds."""
    for number in range(portion.passes):
        for case in portion.cases:
            if number < turns(case):
                yield case, case.seconds / turns(case)


def turns(case: Case) -> int:
    """How often a case is gone through."""
    return case.how.number if isinstance(case.how, Passes) else 1


def models(measured: list[Measured], failures: list[Failure]) -> dict[ModelKey, Model]:
    """The models fitted to samples, in the order in which these were taken."""
    slower: dict[tuple[str, str], list[float]] = {}
    for case, place, samples in measured:
        of_all = slower.setdefault((case.implementation.operation, place.name), [])
        of_all += sampling.slower(samples)
    found: dict[ModelKey, Model] = {}
    for one in measured:
        ratios = slower[one.case.implementation.operation, one.place.name]
        try:
            found[one.key] = _believed(one, found, median(ratios) if ratios else 1.0)
        except Exception as error:
            row = one.case.implementation
            failures.append(Failure(row.operation, one.place.name, str(one.case), error))
    return found


def _believed(one: Measured, before: dict[ModelKey, Model], slower: float) -> Model:
    """As `fitted`, of what can be; of a curve that cannot, the conservative model."""
    try:
        samples, out = keeping_out.believable(*one)
    except keeping_out.Unbelievable as error:
        model = keeping_out.stand_in(one.key, one.place.kind, str(error))
        if model is None:
            raise
        return model
    except Exception:  # an operation's description fails: then so will what needs it
        samples, out = one.samples, {}
    model = fitted(one._replace(samples=samples), before, slower)
    if out:
        model["samples"]["kept_out"] = [[list(dims), why] for dims, why in out.items()]
    return model


def fitted(one: Measured, before: dict[ModelKey, Model], slower: float) -> Model:
    """The model of one case.

    Parameters
    ----------
    one : Measured
    before : dict
        Models among which the case's reference is.
    slower : float
        How much longer than the fastest call a typical one takes, at this place: of each method
        alone it would be too uncertain to choose by.
    """
    (case, place, samples), how = one, one.case.how
    if isinstance(how, TimedSolves):
        return fit.solve(case.axes, samples.setup, samples.seconds, (how.few, how.many))
    if isinstance(how, Passes):
        seconds = fit.least_above(samples.seconds) if how.number > 1 else samples.seconds
        seconds = {dims: slower * value for dims, value in seconds.items()}
        knots = {dims: seconds[dims] for dims in how.knots if dims in seconds}
        held_out = {d: seconds[d] for d in how.held_out if d in seconds and d not in knots}
        return fit.passes(how.form, how.block, knots, held_out, list(how.knots))
    if how.by_estimate:

        def estimate(dims: tuple[int, ...]) -> float:
            return case.implementation.work(case.problem(*dims), place.info).estimate

        return fit.waves(case.axes, samples.seconds, samples.held_out, samples.host, estimate)
    if how.reference is None:
        return fit.surface(case.axes, samples.seconds, samples.held_out)
    reference = before.get(one.key._replace(layout=how.reference))
    if reference is None:
        raise LookupError(f"there is no model of {how.reference!r} to compare it with")
    if reference["form"] != "surface":  # it was not believed
        return fit.surface(case.axes, samples.seconds, samples.held_out)
    return fit.surface_beside(reference, samples.seconds, samples.held_out)


def derived(
    operations: Iterable[Operation], found: dict[ModelKey, Model], failures: list[Failure]
) -> dict[ModelKey, Model]:
    """All models, with those that the operations make of others."""
    found, fitted = dict(found), {k: m for k, m in found.items() if not keeping_out.stands_in(m)}
    for operation in operations:
        with contextlib.suppress(Exception):  # `all_cases` told what is wrong with the module
            make = getattr(module_of(operation), "derived", None)
            if make is None:
                continue
            try:
                found.update(make(fitted))
            except Exception as error:
                failures.append(Failure(operation.name, "", "derived models", error))
    return found


def active(place: Place) -> Any:
    """A context inside which a single device's operands can be made."""
    return place.devices[0].active() if len(place.devices) == 1 else contextlib.nullcontext()


def alive(place: Place) -> bool:
    """Whether the devices of a place still run a small kernel."""
    for device in place.devices:
        try:
            device.probe()
        except Exception:
            return False
    return True


def told(failures: list[Failure]) -> list[str]:
    """One line for each operation that lost something, and for each device that is gone."""
    gone = {f.place: f for f in failures if not f.operation}
    lines = [
        f"{place} from {what} on, since it no longer works: {one_line(error)}"
        for place, (_, _, what, error) in gone.items()
    ]
    rest = [f for f in failures if f.operation and f.place not in gone]
    for operation in dict.fromkeys(f.operation for f in rest):
        mine = [f for f in rest if f.operation == operation]
        what = dict.fromkeys(f"{f.what or operation} on {f.place or 'all'}" for f in mine)
        more = f" and {len(what) - 1} more" if len(what) > 1 else ""
        lines.append(f"{next(iter(what))}{more}: {one_line(mine[0].error)}")
    return lines


def one_line(error: Exception) -> str:
    """The type and the message of an error, but for those of a device."""
    text = str(error).partition("\n")[0]
    return text if isinstance(error, DeviceError) else f"{type(error).__name__}: {text}"
