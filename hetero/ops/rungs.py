"""What rungs of every operation share: how a row of the registry launches one with a shape, and the
rows of the CPU's."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hetero import registry
from hetero.host.limits import LOOPS
from hetero.imports import load
from hetero.kernels.common.rungs import Rung
from hetero.registry import Arguments, Shaping
from hetero.registry.problem import Problem

if TYPE_CHECKING:
    from hetero.devices.base import Device

Loop = Callable[[], Callable[..., None]]  # gives a rung's on the CPU


def fields(
    rung: str,
    launch: Callable[..., Any],
    blocks: Callable[[str, Device, Problem], tuple[Sequence[Any], Any]],
    launches: Callable[..., Any] | None = None,
) -> dict[str, Any]:
    """The fields ``run`` and ``shaping`` of a rung's row.

    Parameters
    ----------
    rung : str
    launch : callable
        ``launch(rung, device, problem, arguments, shape=None)`` computes with blocks of a shape, or
        of the rung's own; what it returns ``run`` returns.
    blocks : callable
        ``blocks(rung, device, problem)``: every legal shape of a block, and the rung's own.
    launches : callable, optional
        ``launches(rung, device, problem, shape)``: what is compiled for a shape.
    """

    def run(devices: tuple[Device], problem: Problem, arguments: Arguments) -> Any:
        return launch(rung, devices[0], problem, arguments)

    def shaping(device: Device, problem: Problem) -> Shaping:
        def run_shape(shape: Any, arguments: Arguments) -> None:
            launch(rung, device, problem, arguments, shape)

        more = () if launches is None else (lambda s: launches(rung, device, problem, s),)
        return Shaping(*blocks(rung, device, problem), run_shape, *more)

    return {"run": run, "shaping": shaping}


def register_on_cpu(
    family: str, rungs: Mapping[str, Rung], run: Callable[..., Any], add: Any = None, **row: Any
) -> None:
    """Add rows of a family's ``CPU_RUNGS``, by `registry.register_method` or what calls it.

    ``run(loop, devices, problem, arguments)`` computes by the loop that ``loop()`` loads; Numba
    compiles it when it is first called.
    """
    for name, rung in rungs.items():
        row |= {"method": name, "kinds": ("cpu",), "run": _by(run, family, name), "rung": rung}
        (add or registry.register_method)(uses=(LOOPS,) if rung.threads else (), **row)


def _by(run: Callable[..., Any], family: str, name: str) -> Callable[..., Any]:
    own = functools.partial(loop, family, name)

    def by_loop(*given: Any) -> Any:  # no partial one: a reloaded module's has the same name
        return run(own, *given)

    by_loop.loop = own  # type: ignore[attr-defined]
    return by_loop


def loop(family: str, rung: str) -> Callable[..., None]:
    """The compiled loop of a rung on the CPU."""
    return getattr(load("hetero.kernels.cpu.rungs"), f"{family}_{rung}")


def loop_of(row: registry.Implementation) -> Callable[..., None]:
    """The loop of a row that `register_on_cpu` added."""
    return row.run.loop()


def as_devices(problem: Problem, info: dict[str, Any]) -> str | None:
    """What devices do not compute a rung on the CPU does not either."""
    return problem.device_obstacle
