"""Running the shares of a call at once, each on its device; what one fails to do others do."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from hetero import devices
from hetero.blocks import beside_cpu
from hetero.blocks.beside_cpu import Enqueued
from hetero.blocks.ranges import moved
from hetero.devices import at_once
from hetero.devices.base import Device
from hetero.errors import DeviceError
from hetero.moving import failures
from hetero.pricing.plan import CPU, Plan, Share

Attempt = Callable[[Device, Plan, Share], None]
Begin = Callable[[Device, Plan, Share], Enqueued | None]


def run(
    shares: tuple[Share, ...],
    attempt: Attempt,
    begin: Begin,
    by_cpu: Callable[[Share], None],
    begun: int,
) -> None:
    """Do all shares; returns when none is under way any longer.

    A device's failure is counted for it. Its share is done by a device that did its own, and where
    that fails too, or none did, by the CPU.

    Parameters
    ----------
    shares : tuple of Share
        One of them may be the CPU's, which works beside the other one.
    attempt : callable
        ``attempt(device, plan, share)`` does one there; it raises `DeviceError`.
    begin : callable
        ``begin(device, plan, share)`` puts one on a device's queue, as `beside_cpu.enqueued` does.
    by_cpu : callable
        Does one on the CPU, its own or another's.
    begun : int
        `hetero.devices.failures` when the call began.
    """
    own = [share for share in shares if share.plan.candidates[0].device == CPU]
    shares = tuple(share for share in shares if share not in own)
    used = [devices.get(share.plan.candidates[0].device) for share in shares]
    errors: dict[int, DeviceError] = {}

    def task(number: int) -> Callable[[], None]:
        def do() -> None:
            try:
                attempt(used[number], shares[number].plan, shares[number])
            except DeviceError as error:
                errors[number] = error

        return do

    if own:
        whole = used[0], shares[0].plan, shares[0]
        steps = partial(by_cpu, own[0]), partial(begin, *whole), partial(attempt, *whole)
        if (error := beside_cpu.together(used[0], *steps)) is not None:
            errors[0] = error
    else:
        tasks = [task(number) for number in range(len(shares))]
        at_once.run(used, tasks, min(moved(share.plan.problem) for share in shares))
    sound = [device for number, device in enumerate(used) if number not in errors]
    for number, error in sorted(errors.items()):
        share = shares[number]
        if sound:
            remedy = f"{sound[0].name} does its {share.along}"
            failures.report(used[number].name, error, remedy, begun=begun)
            failures.release(error)
            try:
                attempt(sound[0], _moved_to(sound[0], share.plan), share)
            except DeviceError as again:
                number, error = used.index(sound.pop(0)), again
            else:
                continue
        remedy = f"the CPU does its {share.along}"
        failures.report(used[number].name, error, remedy, begun=begun)
        failures.release(error)
        by_cpu(share)


def _moved_to(device: Device, plan: Plan) -> Plan:
    """The plan of a share for another device."""
    one = plan.candidates[0]._replace(device=device.name)
    return Plan(plan.problem, (one,), plan.profile_name)
