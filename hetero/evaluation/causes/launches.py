"""Which kernels a call launches: recorded while it runs."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from hetero.devices.base import Defines, Device
from hetero.kernels.procedure.metrics import Launch, Resources


class Launched(NamedTuple):
    """A kernel as it was launched."""

    kernel: str
    defines: Defines
    launch: Launch
    resources: Resources  # no registers where the device does not tell them
    last: Any  # argument


def recorded(device: Device, call: Callable[[], object]) -> Counter[Launched]:
    """The kernels that a call gives an active device by `Device.launch`, and how often each.

    Those of libraries and of launches that were prepared are not seen.
    """
    names: dict[int, tuple[Any, str, Defines]] = {}  # by identity; the kernel, so that it stays
    seen: Counter[Launched] = Counter()
    build, launch, constant = device.build, device.launch, device.constant_memory

    def built(text: str, kernel: str, defines: Defines) -> Any:
        made = build(text, kernel, defines)
        names[id(made)] = made, kernel, defines
        return made

    @contextlib.contextmanager
    def with_constants(text: str, kernel: str, defines: Defines, *rest: Any) -> Iterator[Any]:
        with constant(text, kernel, defines, *rest) as (made, held):
            names[id(made)] = made, kernel, defines
            yield made, held

    def launched(kernel: Any, grid: int, block: int, given: list[Any], *rest: Any) -> None:
        launch(kernel, grid, block, given, *rest)
        if id(kernel) in names:
            held = getattr(kernel, "shared_size_bytes", 0) + sum(rest[:1])
            needs = Resources(getattr(kernel, "num_regs", 0), held)
            _, *which = names[id(kernel)]
            seen[Launched(*which, Launch(grid, 1, block, 1), needs, given[-1])] += 1

    # The device's own attributes come before those of its class, until they are deleted.
    device.build, device.launch, device.constant_memory = built, launched, with_constants  # type: ignore
    try:
        call()
    finally:
        del device.build, device.launch, device.constant_memory
    return seen
