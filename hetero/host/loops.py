"""The CPU's compiled loops by family: which are compiled on this machine, and compiling them.

Numba compiles a family of loops in some seconds, and keeps the code in its own cache. That is done
where somebody asks for it: by `hetero compile`, by `hetero calibrate`, or by a call that names a
method. Until then NumPy and SciPy compute. A marker in hetero's cache directory says that a family
is compiled, so that nothing imports Numba to find out.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np

from hetero import locks, paths, tables
from hetero.host import cpu
from hetero.imports import load, no_fork

IN_CALLS = "HETERO_COMPILE_AHEAD"  # "0": loops are compiled by the call that needs them
_LOOPS = "hetero.kernels.cpu"  # the package of the compiled loops
_DTYPES = ("float32", "float64")
_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
_MANY = 1 << 15  # elements from which on vectors are worth importing Numba

log = logging.getLogger("hetero")


_families: dict[str, str] = {}  # name -> examples
_known: dict[str, bool] = {}  # name -> whether it is ready
_lock = locks.new()


def register(family: str, examples: str) -> str:
    """Add a family of loops, which are compiled together for each dtype; gives its name.

    ``examples`` is "module:function": ``function(dtype)`` calls all of the loops in all ways.
    """
    _families[family] = examples
    return family


@functools.cache
def named(family: str, dtype: str | np.dtype) -> str:
    """The name of a family's loops for a dtype, such as "vectors in float64"."""
    return f"{family} in {np.dtype(dtype).name}"


def every() -> list[str]:
    """The names of all loops, of each family for each dtype."""
    return [named(family, dtype) for family in _families for dtype in _DTYPES]


@functools.cache
def obstacle() -> str | None:
    """What this system or its user denies the process, so that no loop can be run."""
    if os.environ.get("NUMBA_DISABLE_JIT", "0") != "0":
        return "NUMBA_DISABLE_JIT switches Numba's compiler off"
    try:
        os.sched_getaffinity(0)
    except OSError:
        return "this process may not ask for its cores (sched_getaffinity)"
    return None if cpu.makes_code() else cpu.NO_CODE


def is_ready(name: str) -> bool:
    """Whether loops may be called: they are compiled, or are to be by the call; looks once."""
    known = _known.get(name)
    if known is None:
        marker = _marker(name)
        here = os.environ.get(IN_CALLS) == "0" or (marker is not None and marker.exists())
        _known[name] = known = obstacle() is None and here
    return known


def ensure(names: Iterable[str], progress: Callable[[float, str], None] | None = None) -> None:
    """Compile what is not compiled, for this process and, where files can be written, later ones.

    Parameters
    ----------
    names : iterable of str
    progress : callable, optional
        Called as ``progress(fraction, text)`` when the loops of a name are compiled.
    """
    if obstacle():
        return
    say = progress or (lambda fraction, text: None)
    with _lock:
        wanted = [name for name in names if not is_ready(name)]
        families: dict[str, list[str]] = {}
        for name in wanted:
            families.setdefault(name.rpartition(" in ")[0], []).append(name)
        # Other processes can compile for this one if they are Python, and files can be kept.
        is_python = "python" in os.path.basename(sys.executable or "").lower()
        if len(families) > 1 and is_python and can_be_kept():
            _compile_apart(families, say)
        for done, name in enumerate(wanted, 1):
            marker = _marker(name)
            if marker is None or not marker.exists():
                begun = time.monotonic()
                _compile(name, marker)
                say(done / len(wanted), f"{name}: compiled in {time.monotonic() - begun:.0f} s")
        _known.update(dict.fromkeys(wanted, True))
    if wanted:
        tables.forget()


def _compile(name: str, marker: Path | None) -> None:
    _known[name] = True  # the examples call them
    family, _, dtype = name.rpartition(" in ")
    module, _, function = _families[family].partition(":")
    getattr(load(module), function)(np.dtype(dtype))
    with contextlib.suppress(OSError):
        if marker is not None:
            paths.replace_file(marker, b"")


def _compile_apart(families: dict[str, list[str]], say: Callable[[float, str], None]) -> None:
    """Compile each family in a process: Numba compiles one function at a time in each."""
    folders = [
        *sys.path[not sys.flags.safe_path :],
        str(Path(sys.modules["hetero"].__file__).parents[1]),
    ]
    code = f"import sys; sys.path[:] = {folders}\nimport %s\nfrom hetero.host import loops\n"
    code += "loops.ensure(%r)"
    environment = os.environ | dict.fromkeys(_ONE_THREAD, "1")
    begun, futures = time.monotonic(), load("concurrent.futures")
    how = {"env": environment, "capture_output": True, "stdin": subprocess.DEVNULL}
    with futures.ThreadPoolExecutor(cpu.cores()) as pool:
        running = {}
        for family, names in reversed(families.items()):  # those of k-means take longest
            module = _families[family].partition(":")[0]
            command = [sys.executable, "-P", "-c", code % (module, names)]
            running[pool.submit(subprocess.run, command, **how)] = family
        load("hetero.host.threads").start()  # compiles what all loops share
        for done, each in enumerate(futures.as_completed(running), 1):
            text = f"{running[each]}: compiled after {time.monotonic() - begun:.0f} s"
            log.info("loops of %s", text)
            say(done / len(families), text)


def can_be_kept() -> bool:
    """Whether later processes find what is compiled."""
    marker = _marker("")
    return marker is not None and os.access(marker.parent, os.W_OK)


def _marker(name: str) -> Path | None:
    """The file that says that loops are compiled; None where none can be kept."""
    named = os.environ.get("NUMBA_CACHE_DIR")
    folder = paths.private_folder("loops", root=Path(named) / "hetero" if named else None)
    return folder and folder / f"{name.replace(' ', '-')}-{_key()}"


@functools.cache
def _key() -> str:
    """A digest of what Numba's code depends on: versions, sources, processor, settings."""
    version = load("importlib.metadata").version
    with no_fork:  # it imports
        versions = [version(package) for package in ("numba", "llvmlite", "numpy")]
    spec = load("importlib.util").find_spec(_LOOPS)
    files = [os.stat(path) for path in sorted(Path(spec.origin).parent.glob("*.py"))]
    facts = (
        *(sys.modules["hetero"].__version__, versions, sys.implementation.cache_tag, cpu.model()),
        [(file.st_size, file.st_mtime_ns) for file in files],  # as Numba sees that they changed
        sorted(item for item in os.environ.items() if item[0].startswith("NUMBA_CPU_")),
    )
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:40]


def vectors_for(family: str, dtype: np.dtype, size: int = _MANY) -> ModuleType:
    """The compiled loops of a family for vectors of ``size`` elements; where they are not ready the
    same by NumPy. Few elements do without Numba until somebody else imports it, which takes 0.4 s.
    """
    few = size < _MANY and "numba" not in sys.modules
    compiled = not few and is_ready(named(family, dtype))
    return load(f"{_LOOPS}.{'vectors' if compiled else 'plain'}")


def as_loops_take(array: np.ndarray) -> np.ndarray:
    """The array, or another one of its memory that counts as writable; loops only read it.

    One that is not aligned is copied.
    """
    flags = array.flags
    if not flags.aligned:
        return array.copy()
    if flags.writeable:
        return array
    interface = array.__array_interface__
    interface["data"] = interface["data"][0], False
    # The array that is made keeps what it is made of, and so the memory, alive.
    return np.asarray(SimpleNamespace(__array_interface__=interface, array=array))
