"""When hetero is loaded, and what is kept of a script's run for the next one.

A script that ends right after hetero was loaded loses what that takes, and its first run knows no
end. So that one loads hetero where it runs long enough for the loss to be small. What its calls
took is kept. A later run of the same script with the same arguments has hetero loaded for its first
call, where the last one's calls pay for that.
"""

from __future__ import annotations

import atexit
import functools
import glob
import importlib.util
import os
import sys
import time

from hetero.imports import load
from hetero.times import readable

# Without and with a GPU: seconds that loading hetero, the first plan, the first context and its end
# hold a script up; the part of such calls' time that is saved, where no run has measured it.
LOADING, SAVED = {False: 0.5, True: 1.0}, {False: 0.6, True: 0.9}
GAIN = 2.0  # times what loading takes, that calls must save
_LOSS = 0.03  # of a script's time, which loading may take where nothing is known of its end
_KEPT = 1.0  # seconds of calls from which a run is kept


class Loading:
    """Whether loading hetero pays, by the calls of this run and the last one, or ``at_once``."""

    def __init__(self, at_once: bool) -> None:
        self.is_loaded, self._began = False, time.perf_counter()
        # Seconds of calls that are enough, None before one was looked at; when the script will have
        # run so long that its end can't take back much.
        self.enough, self._due = 0.0 if at_once else None, 0.0
        # Seconds of all calls, as if each were the plain library's, and of those that hetero saved;
        # the fraction of their time that it is expected to save.
        self.spent = self.gained = self._saved = 0.0

    def __str__(self) -> str:
        enough, begin = readable(self.enough or 0.0), readable(self._due - self._began)
        text = f"hetero is loaded after {enough} of such calls, {begin} from the start; "
        return text + f"{readable(self.spent)} of them so far"

    def pays(self) -> bool:
        """Whether hetero is there, or is worth loading now."""
        if self.is_loaded or _is_there():
            return True
        if self.enough is None:
            self._look()
        return self.spent >= self.enough and time.perf_counter() >= self._due

    def load(self) -> None:
        """Load hetero; the calling thread waits: in another one, BLAS and both lose more time."""
        self.is_loaded = True  # a broken installation is loaded once
        self.gained = self._saved * self.spent  # if it had been loaded for these calls
        load("hetero.ops.functions")
        load("hetero.profile.inventory").devices()

    def _look(self) -> None:
        """Find out what is enough, by what is here and what the last run took."""
        with_device = has_device()
        loading, self._saved = LOADING[with_device], SAVED[with_device]
        self.enough, self._due = GAIN * loading / self._saved, self._began + loading / _LOSS
        file = getattr(sys.modules["__main__"], "__file__", None)
        if not (file and os.path.isfile(file)):  # a notebook, or the standard input
            return
        paths = load("hetero.paths")
        cache = paths.cache_directory()
        # After profiles were written or loops compiled, calls may gain otherwise.
        folders = [f for f in (cache / "profiles", cache / "loops") if f.is_dir()]
        changes = [folder.stat().st_mtime for folder in folders if any(folder.iterdir())]
        script = repr((file, sys.argv[1:], with_device, changes)).encode()
        self._name = load("hashlib").blake2b(script, digest_size=16).hexdigest()
        is_there = (cache / "accel").is_dir()  # no folder is made to look
        kept = paths.cached("accel", self._name) if is_there else None
        self._was_kept = kept is not None
        atexit.register(self._keep, os.getpid())
        spent, self._saved = map(float, kept.split()) if kept else (0.0, self._saved)
        if spent * self._saved >= GAIN * loading:
            self.enough = self._due = 0.0

    def _keep(self, process: int) -> None:
        """Keep what the calls took, and the part of it that is saved, at the end of the process."""
        is_long = self.spent >= _KEPT
        if os.getpid() == process and (is_long or self._was_kept):  # and not a fork of it
            saved = self.gained / self.spent if self.is_loaded and is_long else self._saved
            load("hetero.paths").cache("accel", self._name, f"{self.spent} {saved}".encode())


def has_device() -> bool:
    """Whether a device may be here; nothing is loaded for the answer."""
    if _is_there():
        return not load("hetero.profile.inventory").is_host_alone(None)
    return _has_nodes()


@functools.cache
def _has_nodes() -> bool:
    """Whether the system has nodes of devices that a package here can use."""
    if glob.glob("/dev/nvidia[0-9]*") or os.path.exists("/dev/dxg"):
        return True
    return bool(glob.glob("/dev/dri/renderD*")) and importlib.util.find_spec("pyopencl") is not None


def _is_there() -> bool:
    """Whether hetero is there, by a call before or by a script that uses hetero itself."""
    inventory = sys.modules.get("hetero.profile.inventory")
    return inventory is not None and bool(inventory.looked())
