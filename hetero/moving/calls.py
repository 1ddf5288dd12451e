"""One call's data, and its result, as the executor has them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from hetero.arrays import HOST, Operand, describe
from hetero.devices.base import Device
from hetero.errors import DeviceError
from hetero.moving import transfer
from hetero.registry import Arguments, Cut
from hetero.registry.problem import Problem


class Call(NamedTuple):
    """One call's data.

    Attributes
    ----------
    arrays, operands
        The caller's arrays and their descriptions.
    out, target
        The caller's ``out`` and its description, or None.
    options
        The operation's own; see `Arguments`.
    options_on
        ``options_on(devices, done)`` gives them, where they depend on the devices (a tuple, empty
        on the CPU) and on how many iterations of a solve were done by others.
    start
        What the output holds on entry: an array on the host, 0.0, or None where it does not matter.
    done
        Iterations that led to the start, on a device that failed.
    read
        Descriptions of device arrays that the options hold.
    """

    arrays: tuple[Any, ...]
    operands: tuple[Operand, ...]
    out: Any = None
    target: Operand | None = None
    options: Any = None
    options_on: Callable[[tuple[Device, ...], int], Any] | None = None
    start: np.ndarray | float | None = None
    done: int = 0
    read: tuple[Operand, ...] = ()

    def with_output(self, problem: Problem) -> Call:
        """This call with an ``out`` on the device: the caller's, or a new array of their type."""
        if self.out is not None:
            return self
        like, operand = next(
            (a, o) for a, o in zip(self.arrays, self.operands, strict=True) if o.location != HOST
        )
        result = problem.output
        out, pointer = transfer.empty_like(like, operand, result.shape, result.dtype)
        target = result._replace(pointer=pointer, stream=operand.stream)
        return self._replace(out=out, target=target)

    def after(self, error: DeviceError) -> Call:
        """What is left of this call when a device failed: a solve goes on from its last iterate."""
        if error.x is None:
            return self
        return self._replace(start=error.x, done=self.done + error.iterations)

    def range(self, cut: Cut, begin: int, end: int, out: np.ndarray) -> Call:
        """A range of this call, which fills its part of ``out``."""
        arrays = cut.arrays(begin, end, self.arrays, self.options)
        operands = tuple([describe(array).unkept() for array in arrays])
        part = cut.output(begin, end, out)
        return Call(arrays, operands, part, describe(part), self.options)

    def tell(self, error: DeviceError) -> None:
        """Let an error know what was saved before this call began, for `after` of that one."""
        rest = self.after(error)
        error.x, error.iterations = rest.start, rest.done

    def on(self, used: tuple[Device, ...], inputs: tuple[Any, ...], output: Any) -> Arguments:
        """The arguments of a run on these devices."""
        options = self.options
        if self.options_on is not None:
            options = self.options_on(used, self.done)
        return Arguments(inputs, output, options)


class Done(NamedTuple):
    """A result.

    Attributes
    ----------
    value
        ``out``, or a new array of the caller's type: NumPy where all operands lie on the host.
    outcome
        What the implementation gave.
    device, method : str
        Where and how it was computed.
    earlier : int
        Iterations of a solve that a device had done before it failed, beside the outcome's own.
    """

    value: Any
    outcome: Any
    device: str
    method: str
    earlier: int = 0
