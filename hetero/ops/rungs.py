"""How the rungs of every operation are registered and launched: one function for all ladders."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from hetero import registry
from hetero.host.limits import LOOPS
from hetero.imports import load
from hetero.kernels import LaunchPlan
from hetero.kernels.common.rungs import CONSTANT_BYTES, HeldPlan, Ladder
from hetero.registry import Arguments, Implementation, Shaping
from hetero.registry.models import Work
from hetero.registry.problem import Problem

if TYPE_CHECKING:
    from hetero.devices.base import Device

Loop = Callable[[], Callable[..., None]]  # gives a rung's on the CPU


def register(
    ladder: Ladder,
    run: Callable[..., Any],
    sizes: Callable[[Problem], tuple[int, ...]] | None = None,
    *,
    add: Callable[..., None] = registry.register_method,
    launches: Callable[..., Any] | None = None,
    **row: Any,
) -> None:
    """Add the rows of a ladder on devices.

    Parameters
    ----------
    ladder : Ladder
    run : callable
        ``run(rung, device, problem, arguments, shape=None)`` computes with blocks of a shape, or of
        the rung's own; what it returns the row's ``run`` returns.
    sizes : callable, optional
        ``sizes(problem)``: what `Ladder.chosen` is given. Without it blocks have one shape.
    add : callable
        Takes a row's fields.
    launches : callable, optional
        ``launches(rung, device, problem, shape)``: what is compiled for a shape.
    **row
        Fields that all rows share; of a dict of them a rung takes the one with its name, or that
        named None.
    """
    for name, rung in ladder.items():
        own = {k: v.get(name, v[None]) if isinstance(v, dict) else v for k, v in row.items()}
        if sizes is not None:
            own["shaping"] = functools.partial(_shaping, ladder, name, run, sizes, launches)
        add(method=name, kinds=registry.PORTABLE, run=_by_name(run, name), rung=rung, **own)


def _by_name(run: Callable[..., Any], name: str) -> Callable[..., Any]:
    def by_kernel(devices: tuple[Device], problem: Problem, arguments: Arguments) -> Any:
        return run(name, devices[0], problem, arguments)

    return by_kernel


def _shaping(
    ladder: Ladder, name: str, run: Any, sizes: Any, launches: Any, device: Device, problem: Problem
) -> Shaping:
    def run_shape(shape: Any, arguments: Arguments) -> None:
        run(name, device, problem, arguments, shape)

    more = () if launches is None else (lambda s: launches(name, device, problem, s),)
    what, card = (name, problem.dtype), device.card()
    own = ladder.chosen(*what, sizes(problem), card)
    return Shaping(ladder.shapes(*what, card), own, run_shape, *more)


def run_plan(
    device: Device, planned: LaunchPlan | HeldPlan, buffers: dict[str, Any], itemsize: int
) -> None:
    """Run a plan; of a `HeldPlan` each launch has its own piece of x in constant memory."""
    if isinstance(planned, LaunchPlan):
        device.run_launches(planned, buffers, itemsize)
        return
    vectors, owner = buffers["x"], None
    if planned.pack is not None:
        vectors, owner = device.allocate(planned.packed * itemsize)
        device.run_launches(planned.pack, buffers | {"packed": vectors}, itemsize)
    same = planned.pieces[0].launch
    where = same.source, same.kernel, same.defines
    with device.constant_memory(*where, "held", CONSTANT_BYTES) as (kernel, held):
        buffers["held"] = held
        for begin, count, launch in planned.pieces:
            device.copy(held, vectors, count * itemsize, 0, begin * itemsize)
            given = [buffers[a] if type(a) is str else a for a in launch.arguments]
            device.launch(kernel, launch.grid, launch.block, given)
    del owner


# -- On the CPU ------------------------------------------------------------------------------------


def on_cpu(
    operation: str, family: str, rungs: Ladder, run: Callable[..., Any], work: Callable[..., Work]
) -> list[Implementation]:
    """The rows of a family's ``CPU_RUNGS``, for `hetero ladder` alone: calls do not take them.

    ``run(loop, devices, problem, arguments)`` computes by the loop that ``loop()`` loads; Numba
    compiles it when it is first called.
    """
    return [
        Implementation(
            operation,
            name,
            "cpu",
            registry.no_obstacle,
            work,
            functools.partial(run, functools.partial(loop, family, name)),
            uses=(LOOPS,) if rung.threads else (),
            rung=rung,
        )
        for name, rung in rungs.items()
    ]


def loop(family: str, rung: str) -> Callable[..., None]:
    """The compiled loop of a rung on the CPU."""
    return getattr(load("hetero.kernels.cpu.rungs"), f"{family}_{rung}")
