"""`hetero.calibrate`: measure this machine once and store the results."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from hetero import paths, profile
from hetero.calibration import machine
from hetero.calibration.request import Request
from hetero.errors import ProfileError

_NOT_WRITABLE = (errno.EROFS, errno.EACCES, errno.EPERM)

log = logging.getLogger("hetero")


def calibrate(
    quick: bool = False,
    path: str | os.PathLike[str] | None = None,
    devices: list[str] | None = None,
    progress: Callable[[float, str], None] | None = None,
    *,
    only: Sequence[str] | None = None,
) -> profile.Profile:
    """Measure this machine and store its profile; from then on every plan uses it.

    Measured are the links of each device (each direction, pageable and pinned memory), the
    overhead of a launch and of a call, and every implementation, by dtype and layout, over sizes
    and aspect ratios.

    Parameters
    ----------
    quick : bool
        Coarser grids: 14 seconds on two cores instead of 21, half a minute with a GPU instead of a
        minute; compiling apart.
    path : path-like, optional
        Where to store the profile. Default: ``HETERO_PROFILE``, or the user's cache directory.
    devices : list of str, optional
        Only these, such as ``["cpu", "cuda:0"]``; the CPU is always measured. Default: all devices;
        of identical GPUs one is measured, for all; an OpenCL device that is this machine's CPU is
        left out.
    progress : callable, optional
        Called as ``progress(fraction, text)``, fraction from 0 to 1; the text says what is measured
        and the time left.
    only : sequence of str, optional
        Names of operations, devices or methods: just what has one of them is measured, such as
        ``["matmul", "cuda:0"]``, and merged into this machine's profile.

    Returns
    -------
    Profile
        What was measured, which is used from now on.

    Raises
    ------
    DeviceNotAvailable
        If ``devices`` names one that is not here; the message names those that are.
    ValueError
        If ``only`` names nothing that can be measured here; the message lists what can.
    OSError
        If the profile cannot be written: before anything is measured, where that shows.

    Notes
    -----
    Samples that the others contradict are measured once more. Where many stay doubtful, or other
    processes kept the machine busy, a warning says so.

    A second calibration of the same user waits for the first one's end, since both would measure
    how they disturb each other. It does not where the user's cache directory cannot be written.

    References
    ----------
    A. White, "Modeling and Optimization of Parallel Matrix-based Computations on GPU", Auburn
    University, 2013, chapter 3.

    Examples
    --------
    >>> import hetero
    >>> hetero.calibrate(quick=True, path="/tmp/hetero-example.json").name
    'measured'
    """
    only = (only,) if isinstance(only, str) else tuple(only or ())
    if path is not None:  # this fails before anything is measured
        profile.place(path)
    with _alone():
        if path is None:  # the default path depends on the devices
            profile.place()
        base = None
        if only:
            base = profile.held() if path is None else _holding(path)
            if base is None:
                log.warning("all else is conservative until 'hetero calibrate' measures it")
        measured = profile.parse(
            profile.encode(_content(Request(quick, devices, only, base and base.data), progress))
        )
    try:
        measured.save(path)
    finally:
        profile.set_current(measured)
    return measured


def _holding(path: str | os.PathLike[str]) -> profile.Profile | None:
    """The profile in a file, if there is one and it is of this machine."""
    try:
        stored = profile.read(path)
    except (OSError, ProfileError):
        return None
    return stored if profile.obstacle(stored.data["fingerprint"]) is None else None


def measure_machine(
    quick: bool,
    devices: list[str] | None,
    progress: Callable[[float, str], None] | None,
) -> dict[str, Any]:
    """The content of a profile of this machine, which is not stored."""
    with _alone():
        return _content(Request(quick, devices), progress)


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Let one process of a user calibrate at a time."""

    def waiting() -> None:
        log.warning("another calibration is running on this machine: waiting for its end")

    with contextlib.ExitStack() as stack:
        if (folder := paths.private_folder()) is not None:
            # Several machines may share the folder.
            lock = folder / f"calibrating-{os.uname().nodename}.lock"
            try:
                stack.enter_context(paths.locked(lock, waiting))
            except OSError as error:
                if error.errno not in _NOT_WRITABLE:
                    raise
                log.info("calibrating without a lock against others: %s", error)
        yield


def _content(request: Request, progress: Callable[[float, str], None] | None) -> dict[str, Any]:
    """The content of a profile of this machine."""
    if profile.held() is None:  # else a line would say so, and ask for what is under way
        profile.set_current(profile.shipped("conservative"))
    return machine.measure(request, progress)
