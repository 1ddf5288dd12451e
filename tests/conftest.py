"""What every test stands on: a private profile, whole devices, no remembered plans."""

from __future__ import annotations

import fcntl
import gc
import json
import math
import os
import shutil
import sys
import tempfile

import pytest

PLAIN = "-cl-opt-disable"  # for OpenCL's compiler

_environment = pytest.MonkeyPatch()
_private = ""
_turns = ""  # where the locks of `gpu_turn` lie; the workers of a run share them


def pytest_configure(config):
    """Point hetero at a directory of this process's own before any of it is imported."""
    global _private, _turns
    # pytest-xdist would begin files of one test last, and one of them takes the longest.
    config.option.loadscopereorder = False
    # The CPU's compiled loops are no profile: leaving them where they are saves a minute a run.
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    os.environ.setdefault("NUMBA_CACHE_DIR", home)
    _private = tempfile.mkdtemp(prefix="hetero-tests-")
    private = {"HETERO_PROFILE": os.path.join(_private, "profile.json")}
    private["HETERO_COMPILE_AHEAD"] = "0"  # what a test calls by name or by price is what runs
    # What OpenCL's compiler need not optimise takes a tenth of the time; see `optimised`.
    private["PYOPENCL_BUILD_OPTIONS"] = os.environ.get("PYOPENCL_BUILD_OPTIONS", PLAIN)
    if "PYTEST_XDIST_WORKER" not in os.environ:  # the workers compile for one another
        private["XDG_CACHE_HOME"] = os.path.join(_private, "cache")
        from hetero import paths

        # What was compiled stays where that of other runs is: each program takes up to two seconds.
        cache = os.path.join(_private, "cache", "hetero")
        os.makedirs(cache, 0o700)
        if folder := paths.private_folder("compiled"):  # `compiled.remembered`'s
            os.symlink(folder, os.path.join(cache, folder.name))
        for name in ("pyopencl", "pytools"):
            os.makedirs(os.path.join(home, name), exist_ok=True)
            os.symlink(os.path.join(home, name), os.path.join(_private, "cache", name))
    for name, value in private.items():
        _environment.setenv(name, value)
    os.makedirs(os.environ["XDG_CACHE_HOME"], exist_ok=True)
    _turns = os.path.join(os.environ["XDG_CACHE_HOME"], "gpu-turn")
    import hetero.ops.functions  # noqa: F401  # every operation is registered


def pytest_sessionstart(session):
    """Find out which devices work, so that no test meets one that does not."""
    from hetero import devices

    devices.proven()


def pytest_collection_finish():
    """Let collections of garbage, which many tests ask for, pass by what lives to the end."""
    gc.freeze()


def pytest_unconfigure(config):
    """Put the environment back and remove the directory."""
    _environment.undo()
    shutil.rmtree(_private, ignore_errors=True)


def pytest_collection_modifyitems(items):
    """Without a CUDA device, tests marked ``gpu`` are skipped."""
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked:
        return
    from hetero import devices

    if not any(name.startswith("cuda") for name in devices.available()):
        reason = "; ".join(m for m in devices.missing() if m.startswith("cuda")) or "no CUDA device"
        for item in marked:
            item.add_marker(pytest.mark.skip(reason=reason))


def reset():
    """Forget plans, failures of devices and the profile; take the conservative constants."""
    import hetero.ops  # noqa: F401  registers every operation
    from hetero import devices, profile
    from hetero.arrays import kept
    from hetero.profile import inventory

    with kept.lock:
        for known in list(kept.remembered.values()):
            known.release()
        kept.remembered.clear()
    for known in devices.health.values():
        known.failure = known.set_aside = None
        known.was_short = False
    inventory.changed()
    profile.set_current(profile.shipped("conservative"))


@pytest.fixture(autouse=True)
def clean():
    """Each test starts, and leaves the next one, with the state of a new process."""
    reset()
    yield
    reset()


@pytest.fixture(autouse=True, scope="module")
def optimised(request):
    """OpenCL programs of files marked ``optimised`` are: every method's, and what is timed. Unless
    the user of the tests said how they are built."""
    if not request.node.get_closest_marker("optimised"):
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        if os.environ.get("PYOPENCL_BUILD_OPTIONS") == PLAIN:
            patch.delenv("PYOPENCL_BUILD_OPTIONS")
        forget_programs()
        yield
    forget_programs()


def forget_programs():
    """Let OpenCL devices have their programs built, or read, anew."""
    from hetero import devices

    for device in devices.available().values():
        if device.kind == "opencl":
            device._programs, device._kernels = {}, {}


@pytest.fixture(autouse=True)
def gpu_turn(request):
    """Tests marked ``alone`` have the GPU to themselves among the processes of one run.

    The others share a lock, which they ask for in turn, so that who wants it alone gets it.
    """
    if not request.node.get_closest_marker("gpu"):
        yield
        return
    alone = request.node.get_closest_marker("alone")
    with open(f"{_turns}.next", "w") as turn, open(f"{_turns}.lock", "w") as lock:
        fcntl.flock(turn, fcntl.LOCK_EX)
        fcntl.flock(lock, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        fcntl.flock(turn, fcntl.LOCK_UN)
        yield


@pytest.fixture
def profile_file(tmp_path, monkeypatch):
    """Path of a profile file that does not exist yet and is this test's own."""
    from hetero import profile

    path = tmp_path / "hetero" / "profile.json"
    monkeypatch.setenv("HETERO_PROFILE", str(path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    profile.set_current(None)
    return path


@pytest.fixture(autouse=True)
def no_script(monkeypatch):
    """What tests call under `hetero.accel` is no script's: it is not kept for the next run."""
    monkeypatch.setattr(sys.modules["__main__"], "__file__", None, raising=False)


@pytest.fixture
def opencl():
    """The name of an OpenCL device that works here, such as Intel's runtime makes of any CPU."""
    import runtimes

    return runtimes.opencl_device().name


@pytest.fixture
def run(capsys):
    """Run a command in this process: (exit code, standard output, standard error)."""
    from hetero import cli

    def command(*arguments):
        try:
            code = cli.main([str(a) for a in arguments])
        except SystemExit as stop:  # argparse's way
            code = stop.code
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return command


@pytest.fixture
def data(run):
    """Run a command with --json that must do: its output."""

    def command(*arguments):
        code, out, err = run(*arguments, "--json")
        assert code == 0, err
        return json.loads(out)

    return command


@pytest.fixture
def warnings_of(caplog):
    """The texts that hetero logged as warnings since the test began, or since it was cleared."""

    def texts() -> list[str]:
        return [r.getMessage() for r in caplog.records if r.name.startswith("hetero")]

    return texts


@pytest.fixture
def cuda(monkeypatch):
    """One fake device "cuda:0"; its memory must be whole in the end."""
    for found in installed(monkeypatch, 1):
        yield found[0]


@pytest.fixture
def several(monkeypatch, request):
    """Equal fake devices "cuda:0", "cuda:1" and so on; two of them unless a test says how many."""
    yield from installed(monkeypatch, getattr(request, "param", 2))


@pytest.fixture
def two(several):
    """Fake devices "cuda:0" and "cuda:1"."""
    return several


def installed(patch, count):
    """Fake devices, a while."""
    import fakes

    found = fakes.install(patch, count)
    yield found
    for device in found:
        assert not device.damaged(), "wrote outside its memory"


@pytest.fixture
def general(monkeypatch):
    """One for each call that was not remembered."""
    import fakes

    from hetero.calling import execution

    found = []
    fakes.noting(monkeypatch, execution, "execute", lambda *_: found.append(1))
    return found


@pytest.fixture
def hasty(monkeypatch):
    """Calibrating takes a second: what is measured does not matter, only that all is there."""
    import importlib

    from hetero import profile
    from hetero.calibration import measure, samples, sizes

    calibrate = importlib.import_module("hetero.calibration.calibrate")

    axes_of = sizes.axes_of

    def few(*given):
        return [axis[:2] if given[-1] else axis for axis in axes_of(*given)]

    monkeypatch.setattr(sizes, "axes_of", few)
    monkeypatch.setattr(calibrate, "QUICK", sizes.Budget(2e-4, 2**16))
    monkeypatch.setattr(samples, "contradicted", lambda *_: [])
    monkeypatch.setattr(measure, "_STAT", "/dev/null")  # what else runs is no matter
    monkeypatch.setattr(profile, "OFF", math.inf)


@pytest.fixture
def no_failure():
    """A device that failed would go unnoticed: the CPU answers for it."""
    from hetero import devices

    yield
    assert not devices.troubles(), "the device failed, the CPU answered"
