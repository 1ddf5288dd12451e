"""The process that compiles a device's kernels during a calibration; see
`hetero.calibration.ahead.compiling`, which starts it.

It lists the kernels that cases launch, and reports when those that are needed first are compiled.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from hetero import devices, registry
from hetero.calibration import request
from hetero.calibration.ahead.listing import Kernel, Listing, kernels_of
from hetero.calibration.worklist import all_cases, has_own_clock
from hetero.devices.base import Device
from hetero.devices.cuda import cubin
from hetero.errors import HeteroError
from hetero.host import disk_cache
from hetero.imports import load
from hetero.kernels import kernel_text
from hetero.ops.cases import Budget, Place
from hetero.pricing import pricing
from hetero.profile import inventory

if TYPE_CHECKING:
    from concurrent.futures import Future

KIND = "cubin"  # category in the cache
_FIRST = "first"  # printed when the kernels that are needed first are compiled
_NICE, _NICER = 10, 9  # priority of those kernels, and how much lower that of the others is
_thread = threading.local()


def compile_asked() -> None:
    """Compile the kernels of the cases that standard input names, in a process of their own, and
    make the plans of their transforms; the code of both goes to caches on disk."""
    # Not above: whatever imports this for the first time when the interpreter ends could not.
    ThreadPoolExecutor = load("concurrent.futures").ThreadPoolExecutor
    _make_nicer(_NICE)
    inventory.devices()  # while the request may still be to come
    asked = json.load(sys.stdin)
    name = asked["place"]
    info = inventory.devices()[name]
    listing = Listing(name, info)
    place = Place(name, info, (listing,))
    budget = request.QUICK if asked["quick"] else request.FULL

    with (
        ThreadPoolExecutor(os.cpu_count()) as pool,
        ThreadPoolExecutor(1) as waiter,
    ):
        worklist = all_cases(registry.operations(), [place], budget, [])
        cases = [case for item in worklist for case in item.cases]
        cases = [case for case in cases if str(case) in set(asked["cases"])]
        first = [case for case in cases if has_own_clock(case)]
        made = [pool.submit(_make, listing, one) for one in kernels_of(listing, first)]
        made.append(waiter.submit(_say_when, [*made]))
        made += [pool.submit(_make_nicely, listing, one) for one in kernels_of(listing, cases)]
        made += [pool.submit(_make_nicely, listing, one) for one in _of_several(listing, budget)]
        _make_plans(name, listing)
        for one in made:
            one.result()
    disk_cache.write(KIND, asked["mark"], b"")


def _of_several(listing: Listing, budget: Budget) -> list[Kernel]:
    """The kernels of solves shared by all devices like this one, if this is the first of them; of
    the smallest sizes only, since larger ones launch what one device does."""
    needed = []
    for group in pricing.groups(inventory.devices()).values() if not budget.quick else ():
        if group["members"][0] == listing.name:
            number = len(group["members"])
            place = Place(group["constants"], group, (listing,) * number)
            for item in all_cases(registry.operations(), [place], budget, []):
                cases = [case for case in item.cases if case.axes]
                small = [replace(case, axes=[case.axes[0][:1], *case.axes[1:]]) for case in cases]
                needed += kernels_of(listing, small, number)
    return needed


def _make_plans(name: str, listing: Listing) -> None:
    """Make the plans of the listed transforms: the first time each takes 0.1 s and more."""
    if listing.layouts:
        device = devices.get(name)
        with device.active():
            for layouts in listing.layouts.values():
                with contextlib.suppress(HeteroError):  # measuring it reports the error
                    device.transforms(layouts)
                device.trim()  # its memory is needed for measuring


def _make_nicer(by: int) -> None:
    """Lower the priority of this thread and of those that it starts."""
    if hasattr(os, "nice"):
        os.nice(by)


def _say_when(first: Iterable[Future[None]]) -> None:
    """Report when all of these are done."""
    for one in first:
        one.result()
    with contextlib.suppress(BrokenPipeError):
        print(_FIRST, flush=True)


def _make(device: Device, wanted: Kernel) -> None:
    text, defines = wanted
    cubin.keep(kernel_text(text, device.dialect), device.arch, defines)


def _make_nicely(device: Device, wanted: Kernel) -> None:
    """`_make` in a thread of lower priority than those of the kernels that are needed first."""
    if not getattr(_thread, "is_nicer", False):
        _make_nicer(_NICER)
        _thread.is_nicer = True
    _make(device, wanted)
