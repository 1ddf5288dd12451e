"""What rungs of every operation share: how a row of the registry launches one with a shape."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from hetero.registry import Arguments, Shaping
from hetero.registry.problem import Problem

if TYPE_CHECKING:
    from hetero.devices.base import Device


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
