"""OpenCL programs on disk: taken for the same source, options, driver and CPU, and no others."""

from __future__ import annotations

import pytest
import runtimes
from fakes import noting, raising

from hetero import paths
from hetero.devices import opencl as backend
from hetero.devices.opencl import OpenCLDevice


@pytest.fixture
def sources(monkeypatch, tmp_path):
    """A cache of the test's own; the texts that were built from source."""
    import pyopencl as cl

    found = runtimes.opencl_device()._device
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    seen = []

    def note(context, *rest):
        if isinstance(rest[0], str):
            seen.append(rest[0])

    noting(monkeypatch, cl.Program, "__init__", note)

    def probed():
        """As a new process does: with a device that has built nothing."""
        OpenCLDevice(0, found).probe()
        return len(seen)

    return probed


def kept():
    return list((paths.cache_directory() / "opencl").glob("*.program"))


def test_a_program_is_built_once_and_again_where_the_driver_refuses_it(sources):
    """The file is whole, and what is in it is another driver's."""
    assert [sources(), sources(), len(kept())] == [1, 1, 1]
    (file,) = kept()
    paths.cache("opencl", file.name, b"no machine code")
    assert [sources(), sources()] == [2, 2]


@pytest.mark.parametrize("change", ["options", "instructions"])
def test_other_options_and_other_cpus_have_programs_of_their_own(sources, monkeypatch, change):
    """CPUs of one name need not execute the same instructions."""
    sources()
    if change == "options":
        monkeypatch.setenv("PYOPENCL_BUILD_OPTIONS", "-DOTHER=1")
    else:
        monkeypatch.setattr(backend, "_instructions", lambda: "flags: fewer")
    assert [sources(), len(kept())] == [2, 2]


def test_a_program_that_cannot_be_kept_runs(sources, monkeypatch):
    import pyopencl as cl

    monkeypatch.setattr(cl.Program, "get_info", raising(cl.RuntimeError("no binaries")))
    assert [sources(), len(kept())] == [1, 0]
