"""Which devices are believed: those that run a small kernel right. And what becomes of the others.

A runtime whose every build fails is planted by an option that PyOpenCL hands to the compiler; one
that is missing, by the lack of PyOpenCL.
"""

from __future__ import annotations

import os
import signal
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import processes
import pytest
import runtimes
from fakes import raising

import hetero
from hetero import cli, devices
from hetero.devices import opencl as backend
from hetero.errors import DeviceError, DeviceNotAvailable
from hetero.profile import inventory

NO_BUILD = {"PYOPENCL_BUILD_OPTIONS": "-Dfloat=@@ -Dlong=@@"}  # errors in every line of a kernel
A32, B32 = np.ones((40, 30), "f4"), np.ones((30, 50), "f4")


@pytest.fixture
def no_build(monkeypatch, opencl):
    """A runtime whose every build fails; the name of its first device."""
    for name, value in NO_BUILD.items():
        monkeypatch.setenv(name, value)
    # Devices are looked for again; after the test those are forgotten.
    for name, value in (("found", None), ("health", defaultdict(devices.Health)), ("absent", [])):
        monkeypatch.setattr(devices, name, value)
    inventory.changed()
    return opencl


# -- A runtime that builds nothing ---------------------------------------------------------------


def test_a_broken_device_is_listed_with_the_reason(no_build, capsys):
    found = hetero.machine()
    reason = found["broken"][no_build]
    assert "probe.cu" in reason
    assert len(reason.splitlines()) == 1
    assert len(reason) < 250
    assert not [name for name in found["devices"] if name.startswith("opencl")]
    assert cli.main(["info"]) == 0
    captured = capsys.readouterr()
    assert captured.out.count("probe.cu") == len(found["broken"])
    assert not captured.err


def test_no_plan_sees_a_broken_device(no_build, warnings_of, monkeypatch, tmp_path):
    with pytest.raises(DeviceNotAvailable, match=f"{no_build} is broken: .*probe.cu"):
        hetero.matmul(A32, B32, device=no_build)
    with pytest.raises(DeviceNotAvailable, match="broken"), hetero.use(device=no_build):
        pass
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))  # no wait for another test's calibration
    for refuses in (devices.get, lambda name: hetero.calibrate(True, devices=[name])):
        with pytest.raises(DeviceNotAvailable, match="broken"):
            refuses(no_build)
    assert no_build not in inventory.devices()
    plan = hetero.plan("matmul", A32, B32)
    assert no_build not in {candidate.device for candidate in plan.candidates}
    np.testing.assert_array_equal(hetero.matmul(A32, B32), A32 @ B32)
    assert not warnings_of()


@pytest.mark.parametrize("planted", ["no build", "no package"])
def test_calls_of_a_new_process(planted, tmp_path):
    """Import and calls, from the very start, with one line for the missing profile and no more."""
    environment = {"HETERO_PROFILE": str(tmp_path / "none.json")}
    if planted == "no build":
        environment |= NO_BUILD
    else:
        (tmp_path / "pyopencl.py").write_text("raise ImportError('planted')")
        environment["PYTHONPATH"] = str(tmp_path)
    code = """if True:
        import numpy as np, hetero
        A = np.arange(12.0).reshape(3, 4)
        assert (hetero.matmul(A, A.T) == A @ A.T).all()
        assert (hetero.matvec(A, A[0]) == A @ A[0]).all()
        assert hetero.convolve2d(A, A).shape == (5, 7)
        assert hetero.solve_poisson(A).shape == A.shape
        assert hetero.solve_cg(np.eye(3), np.ones(3))[1] == 0
        from hetero import devices
        asked = [name for name, known in devices.health.items() if known.is_proved]
        assert not asked, "nobody asked for a device"
        print(hetero.plan("matmul", A, A.T), hetero.machine())
        assert not [name for name in devices.available() if name.startswith("opencl")]
    """
    done = processes.python("-c", code, **environment)
    assert len(done.stderr.splitlines()) <= 1, done.stderr
    assert ("opencl: PyOpenCL is not installed; pip" in done.stdout) == (planted == "no package")


# -- The probe -----------------------------------------------------------------------------------


def test_a_plan_drops_a_device_that_is_broken_until_a_reset(two, monkeypatch, warnings_of):
    """Of two that are equal the second takes the calls; one warning. A reset asks it again."""
    monkeypatch.setattr(two[0], "probe", raising(DeviceError("planted")))
    plan = hetero.plan("matmul", A32, B32, device="cuda")
    assert plan.chosen.device == "cuda:1"
    assert "cuda:0" not in {c.device for c in plan.candidates}
    (text,) = warnings_of()
    assert "cuda:0 is broken and not used" in text
    assert "planted" in text
    for probe in (two[0].probe, lambda: None):
        assert "cuda:0" not in hetero.machine()["devices"]
        monkeypatch.setattr(two[0], "probe", probe)
        hetero.reset("cuda:0")
    assert "cuda:0" in hetero.machine()["devices"]


@pytest.mark.parametrize("mistake", [("BLOCK - 1 - ", ""), ("(float)factor", "3")])
def test_wrong_values_are_seen(opencl, monkeypatch, mistake):
    device = devices.get(opencl)
    device.probe()
    text = backend.kernel_text
    monkeypatch.setattr(device, "_kernels", {})
    monkeypatch.setattr(device, "_programs", {})

    def edited(name, dialect):
        assert mistake[0] in text(name, dialect)
        return text(name, dialect).replace(*mistake)

    monkeypatch.setattr("hetero.devices.opencl.kernel_text", edited)
    with pytest.raises(DeviceError, match="wrong values"):
        device.probe()


# -- Building ------------------------------------------------------------------------------------


def test_no_folder_of_the_loaders_is_left_behind(opencl, tmp_path):
    code = f"import hetero; print({opencl!r} in hetero.machine()['devices'])"
    assert processes.python("-c", code, TMPDIR=str(tmp_path)).stdout == "True\n"
    assert not list(tmp_path.iterdir())


def test_who_has_a_runtime_is_not_asked_to_install_one(monkeypatch):
    damaged, here = raising(OSError("a damaged file")), Path("libintelocl.so.1")
    for platforms, library in ((damaged, here), (damaged, None), (list, None)):
        monkeypatch.setattr(backend, "platforms", platforms)
        monkeypatch.setattr(backend, "installed", lambda found=library: found)
        found, (missing,) = backend.find()
        assert not found
        assert ("a damaged file" in missing) == (platforms is damaged)
        assert ("pip install" in missing) == (library is None)


# -- Finding Intel's runtime ---------------------------------------------------------------------


def test_the_loader_is_shown_the_library_for_a_moment(monkeypatch, tmp_path):
    for name in ("OCL_ICD_VENDORS", "OPENCL_VENDOR_PATH"):
        monkeypatch.delenv(name, raising=False)
    system = tmp_path / "vendors"
    system.mkdir()
    (system / "other.icd").write_text("libother.so")
    monkeypatch.setattr(backend, "_SYSTEM", system)
    library = tmp_path / "with space and ü" / "libintelocl.so.1"
    with backend._shown(library):
        folder = Path(os.environ["OCL_ICD_VENDORS"])
        assert folder.stat().st_mode & 0o777 == 0o700
        texts = {file.read_text().strip() for file in folder.glob("*.icd")}
        assert texts == {"libother.so", str(library)}
    assert not folder.exists()
    assert "OCL_ICD_VENDORS" not in os.environ


def test_one_runtime_that_fails_leaves_the_others(monkeypatch):
    device, fails = runtimes.opencl_device(), raising(RuntimeError("planted"))
    platforms = [SimpleNamespace(name="planted", get_devices=fails), device._device.platform]
    monkeypatch.setattr(backend, "platforms", lambda: platforms)
    found, missing = backend.find()
    assert [d.describe()["platform"] for d in found] == [device.describe()["platform"]]
    assert missing == ["opencl: no device of planted can be used (planted)"]


def test_what_a_handler_raises_while_devices_are_looked_for_is_raised(monkeypatch):
    """And no runtime is taken for a broken one from then on."""

    def handler(*_):
        raise TimeoutError("late")

    monkeypatch.setattr(devices, "found", None)
    monkeypatch.setattr(devices, "absent", [])
    monkeypatch.setattr(backend, "platforms", lambda: signal.raise_signal(signal.SIGUSR1) or [])
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with pytest.raises(TimeoutError, match="late"):
            devices.everything()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert "late" not in str(devices.absent)
