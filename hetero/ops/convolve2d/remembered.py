"""Calls of `convolve2d` that are remembered; see `hetero.calling.call_cache`.

`calls` holds all. Some calls on NumPy arrays come down to SciPy's function: integers and other
dtypes that only SciPy takes, and problems cheaper than the start-up of any other method. Others
come down to one method on the CPU. Both are found by `convolve2d` itself, under the same key.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from hetero import registry
from hetero.arrays import HOST, dense
from hetero.calling import call_cache
from hetero.calling.planner import HERE, Machine
from hetero.host import pages
from hetero.ops.convolve2d import traits
from hetero.ops.convolve2d.filters import FilterOptions
from hetero.ops.convolve2d.operands import (
    CheckedCall,
    described,
    filter_of,
    rank_of,
    scipys_convolve2d,
    swapped,
)
from hetero.ops.convolve2d.value_ranges import is_wide
from hetero.ops.convolve2d.window import (
    ALIASES,
    BOUNDARIES,
    FEW_PRODUCTS,
    MODES,
    NAME,
    window_of,
)
from hetero.pricing import settings, tables
from hetero.pricing.plan import CPU, Plan
from hetero.profile import inventory
from hetero.registry import Arguments

calls = call_cache.Calls()
SMALL = 256  # elements of a filter whose values are part of the key of a call on a device
_BOUNDARIES = (*BOUNDARIES, *ALIASES)


# -- On a device -----------------------------------------------------------------------------------


def key_of(filter: Any, mode: str, boundary: str, method: str | None) -> tuple[Any, ...]:
    """What a call on a device depends on beside its arrays there, where nothing lies beyond the
    image but 0: the values of a filter on the host are part of it."""
    if type(filter) is not np.ndarray:
        return mode, boundary, method
    return filter.tobytes(), filter.shape, filter.dtype, mode, boundary, method


def learn(call: CheckedCall, plan: Plan, options: FilterOptions, now: int) -> None:
    """Remember a call that just ran, if its image is on a device, and its filter small on the host,
    or unread on the device."""
    a, b, image = call.a, call.b, call.image
    if a.location == HOST or call.fillvalue != 0:
        return
    given = call.device, key_of(call.filter, call.mode, call.boundary, call.method)
    if b.location == HOST and b.size <= SMALL:
        calls.learn(plan, (image, image), None, (a, a), given, now, options)
    elif options.filter.array is None:
        calls.learn(plan, (image, call.filter), None, (a, b), given, now, options)


# -- SciPy's ---------------------------------------------------------------------------------------


def scipys(key: Any) -> Callable[[Any, Any, Any], Any] | None:
    """Remember a call as SciPy's if it is one; gives ``run(in1, in2, fillvalue)``, or None.

    Parameters
    ----------
    key : tuple
        Shape, strides and dtype of the image, shape and dtype of the filter, mode, boundary.
    """
    shape, _, dtype, filter_shape, filter_dtype, mode, boundary = key
    if not (len(shape) == len(filter_shape) == 2 and all(shape) and all(filter_shape)):
        return None
    if mode not in MODES or boundary not in _BOUNDARIES:
        return None
    try:
        common = np.result_type(dtype, filter_dtype)
        if mode == "valid" and swapped(shape, filter_shape):
            shape, filter_shape = filter_shape, shape
    except (TypeError, ValueError):  # the general way says what is wrong
        return None
    now = tables.generation()
    if common.char in FEW_PRODUCTS and not _are_few(common, shape, filter_shape, mode):
        return None
    run = _scipys(mode, boundary)
    tables.remember(calls.host, key, run, now)
    return run


@functools.cache
def _scipys(mode: str, boundary: str) -> Callable[[Any, Any, Any], Any]:
    convolve2d = scipys_convolve2d()

    def run(in1: Any, in2: Any, fillvalue: Any) -> Any:
        return convolve2d(in1, in2, mode, boundary, fillvalue)

    return run


def are_few(call: CheckedCall) -> bool:
    """Whether a call, placed by prices alone, has so few products that it is SciPy's."""
    a, b = call.a, call.b
    return (
        call.device is None
        and call.method is None
        and a.location == b.location == HOST
        and len(a.shape) == 2
        and _are_few(call.dtype, a.shape, b.shape, call.mode, call.machine)
    )


def _are_few(
    dtype: np.dtype, shape: Any, filter_shape: Any, mode: str, machine: Machine = HERE
) -> bool:
    """Few products, on a machine whose best way for the most that count as few is the direct sum on
    the CPU. With less to compute a device only loses: beginning and moving cost the same. Where
    devices were not looked for yet, they are not for a call as small as this."""
    if not window_of(shape, filter_shape, mode).has_few(dtype.char):
        return False
    if machine.is_here and not inventory.looked():
        return True

    def most() -> Plan:
        real = np.dtype(dtype.char.lower())
        shapes = (FEW_PRODUCTS[dtype.char] // 8 // 64, 64), (2, 2)
        image, filter = (dense(shape, real) for shape in shapes)
        return machine.plan(described(image, filter, real, window_of(*shapes, "same")))

    return leaves_few(calls.plan(dtype.char, most) if machine.is_here else most())


def leaves_few(plan: Plan) -> bool:
    """Whether a plan's first way leaves few products to SciPy's loop."""
    return traits.of_row(plan.candidates[0].implementation).few


def method_of_few() -> str:
    """The name of that way, one of the CPU's."""
    return next(row.method for row in registry.lookup(NAME) if traits.of_row(row).few)


# -- A method's on the CPU -------------------------------------------------------------------------


class _HostCall:
    """What a call on the CPU comes down to, by the rank of its filter.

    ``call(image, kernel, fillvalue)`` gives the result; None where another way is to be planned.
    """

    __slots__ = ("by_rank", "generation")

    def __init__(self, generation: int) -> None:
        self.generation = generation
        self.by_rank: dict[int, Any] = {}

    def __call__(self, image: np.ndarray, kernel: np.ndarray, fillvalue: Any) -> Any:
        if type(fillvalue) not in (int, float) or fillvalue != 0:
            return None
        filter = filter_of(kernel, image.dtype)
        run = self.by_rank.get(rank_of(filter))
        return run and run(image, filter)


def _host_key(call: CheckedCall) -> tuple[Any, ...] | None:
    """What a call of NumPy arrays is found by, by `convolve2d` itself where it is not placed.

    None for others, for methods that are refused by name where values are not finite, and where the
    result may stay on a device.
    """
    a, b = call.a, call.b
    if not a.location == b.location == HOST or call.stays or traits.of(call.method).spreads:
        return None
    placed = () if call.device is call.method is None else (call.device, call.method)
    placed += settings.besides() or ()
    return a.shape, a.strides, a.dtype, b.shape, b.dtype, call.mode, call.boundary, *placed


def known(call: CheckedCall) -> _HostCall | None:
    """What a call on the CPU comes down to, if one like it is remembered.

    `convolve2d` itself finds those of its arguments, but neither lists nor parts of convolutions.
    """
    key = _host_key(call) if call.machine.is_here else None
    found = key and calls.host.get(key)
    return found if isinstance(found, _HostCall) else None


def remember(call: CheckedCall, plan: Plan, now: int) -> None:
    """What the next call of this kind comes down to, if the CPU does it.

    Parameters
    ----------
    call : CheckedCall
        With the fill value 0, of values that a transform keeps.
    plan : Plan
    now : int
        Of the plans, see `tables.generation`, before the plan was made.
    """
    key, chosen, problem = _host_key(call), plan.chosen, plan.problem
    if key is None or chosen.device != CPU or call.a.dtype != call.dtype or are_few(call):
        return  # few products come this way as a list or a subclass; arrays need not
    row = chosen.implementation
    compute = row.run
    shape, dtype = problem.output.shape, problem.output.dtype
    empty, transforms = pages.maker(problem.output.nbytes), traits.of_row(row).transforms

    def run(image: np.ndarray, filter: Any) -> np.ndarray | None:
        if plan.keepable and not image.flags.writeable:
            return None
        if transforms and is_wide(image, filter, problem.options, 0.0) is not False:
            return None
        out = empty(shape, dtype)
        compute((), problem, Arguments((image,), out, FilterOptions(filter, 0.0)))
        return out

    host_call = calls.host.get(key)
    if not isinstance(host_call, _HostCall) or host_call.generation != now:
        host_call = _HostCall(now)
    host_call.by_rank[problem.options.rank] = run
    tables.remember(calls.host, key, host_call, now)
