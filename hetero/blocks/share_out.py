"""Running the shares of a call at once, each on its device, or on another one if it fails."""

from __future__ import annotations

from collections.abc import Callable

from hetero import devices
from hetero.blocks.partition import moved
from hetero.devices import at_once
from hetero.devices.base import Device
from hetero.errors import DeviceError
from hetero.moving import failures
from hetero.pricing.plan import Plan, Share

Attempt = Callable[[Device, Plan, Share], None]


def run(
    shares: tuple[Share, ...],
    attempt: Attempt,
    by_cpu: Callable[[Share], None],
    begun: int,
) -> None:
    """Run all shares; returns when all have ended.

    A failure is counted for its device. The share is then done by a device that finished its own,
    and where that fails too, or none did, by the CPU.

    Parameters
    ----------
    shares : tuple of Share
    attempt : callable
        ``attempt(device, plan, share)`` does one there; it raises `DeviceError`.
    by_cpu : callable
        Does one on the CPU.
    begun : int
        `hetero.devices.failures` when the call began.
    """
    used = [devices.get(share.plan.candidates[0].device) for share in shares]
    errors: dict[int, DeviceError] = {}

    def task(number: int) -> Callable[[], None]:
        def do() -> None:
            try:
                attempt(used[number], shares[number].plan, shares[number])
            except DeviceError as error:
                errors[number] = error

        return do

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
