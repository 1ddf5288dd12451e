"""Real PyCUDA or cuda-bindings on a driver of our own, `fake_libcuda.c`, in processes of its own.

`build` compiles the driver; `Driver` is for scripts, which make one before anything else.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import os
import shutil
import struct
import subprocess
import tempfile
from pathlib import Path

_HERE = Path(__file__).parent
_LAUNCH = struct.Struct("@3I3IIPN4096s")  # `last` of fake_libcuda.c
_KINDS = ("memory", "pinned", "module", "stream", "event", "context", "pushed")


def obstacle(package: str) -> str | None:
    """Why "pycuda" or "bindings" cannot run on the fake driver here, None where it can."""
    if shutil.which("cc") is None or shutil.which("nm") is None:
        return "no C compiler (cc, nm) to build the fake libcuda.so.1 with"
    if package == "pycuda" and importlib.util.find_spec("pycuda") is None:
        return "PyCUDA is not installed: 'make pycuda' builds it where nvcc is"
    if importlib.util.find_spec("cuda") is None:
        return "no NVRTC to compile kernels with: pip install cuda-bindings nvidia-cuda-nvrtc"
    return None


@functools.cache
def build(directory: str) -> str:
    """Compile the driver into a directory; its path."""
    target = os.path.join(directory, "libcuda.so.1")
    wanted = set()  # that PyCUDA links to
    if (pycuda := importlib.util.find_spec("pycuda")) is not None:
        (extension,) = Path(pycuda.origin).parent.glob("_driver*.so")
        wanted = _symbols(extension, "--undefined-only")
    source = _HERE / "fake_libcuda.c"
    with tempfile.TemporaryDirectory() as scratch:
        first = os.path.join(scratch, "first.so")
        _compile(first, source)
        rest = sorted(wanted - _symbols(first, "--defined-only"))
        others = os.path.join(scratch, "others.c")
        lines = [f'int {name}(void) {{ return fake_gate("{name}"); }}' for name in rest]
        Path(others).write_text("\n".join(["int fake_gate(const char *);", *lines, ""]))
        _compile(target, source, others)
    return target


def _compile(target, *sources) -> None:
    options = ["-shared", "-fPIC", "-O1", "-w", "-Wl,-soname,libcuda.so.1"]
    subprocess.run(["cc", *options, "-o", target, *sources, "-lpthread", "-ldl"], check=True)


def _symbols(library, which: str) -> set[str]:
    listed = subprocess.run(
        ["nm", "-D", which, library], check=True, capture_output=True, text=True
    ).stdout
    names = (line.split()[-1] for line in listed.splitlines())
    return {name for name in names if name.startswith("cu") and name[2].isupper()}


class Driver:
    """The loaded driver, for the script that runs on it."""

    def __init__(self) -> None:
        # Loaded first, it is what all get for the name libcuda.so.1.
        path = os.environ.get("HETERO_FAKE_CUDA") or build(tempfile.mkdtemp())
        self._library = ctypes.CDLL(path, ctypes.RTLD_GLOBAL)
        for name in ("fake_calls", "fake_failures", "fake_live", "fake_wait"):
            getattr(self._library, name).restype = ctypes.c_long
        for name in ("fake_failed", "fake_name"):
            getattr(self._library, name).restype = ctypes.c_char_p
        self._library.fake_launch.restype = ctypes.c_void_p

    def fail(self, k: int, function: str = "", good: bool = False, status: int = 0) -> None:
        """Let the k-th call from now on fail, of any function or of one; 0: none."""
        self._library.fake_fail(ctypes.c_long(k), function.encode(), int(good), status)

    def gate(self, function: str) -> int:
        """Count a call of another library's function; its status, 0 for success."""
        return self._library.fake_gate(function.encode())

    def room(self, nbytes: int) -> None:
        """Set how much memory the device has."""
        self._library.fake_room(ctypes.c_size_t(nbytes))

    @property
    def calls(self) -> int:
        """How many calls there were since `fail`."""
        return self._library.fake_calls()

    def names(self) -> list[str]:
        """The functions that were called since `fail`, in order."""
        return [self._library.fake_name(k).decode() for k in range(1, self.calls + 1)]

    def waits(self) -> list[tuple[int, int]]:
        """(stream, stream whose work it waits for) since `fail`, in order; 0: the default one."""
        found = []
        while (stream := self._library.fake_wait(ctypes.c_long(len(found)), 0)) != -1:
            found.append((stream, self._library.fake_wait(ctypes.c_long(len(found)), 1)))
        return found

    def launch(self) -> tuple[tuple[int, ...], tuple[int, ...], int, int | None, bytes]:
        """Grid, block, shared bytes, stream and arguments of the last launch."""
        last = ctypes.string_at(self._library.fake_launch(), _LAUNCH.size)
        *extents, shared_bytes, stream, nbytes, data = _LAUNCH.unpack(last)
        return (*extents[:3],), (*extents[3:],), shared_bytes, stream or None, data[:nbytes]

    @property
    def failures(self) -> int:
        """How many of them failed."""
        return self._library.fake_failures()

    @property
    def failed(self) -> str:
        """The function whose call failed first."""
        return self._library.fake_failed().decode()

    def unstack(self, primary_too: bool) -> None:
        """Let no context be current in this thread; the primary one be gone, with all it held.

        A driver that refuses everything also refuses to take them back.
        """
        self._library.fake_unstack(int(primary_too))

    def live(self) -> dict[str, int]:
        """Kind of thing -> how many were made and not given back."""
        return {kind: self._library.fake_live(i) for i, kind in enumerate(_KINDS)}
