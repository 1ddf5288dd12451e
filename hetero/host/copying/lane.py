"""Loops in which threads copy together between an array and a device, without the interpreter.

A driver's calls from several threads go one after the other, and a thread that needs the
interpreter's lock between any two steps waits for it longer than it copies. So one thread leads: it
alone calls the driver, for slices of a few MiB, each in a buffer of pinned memory. Any number of
others help: they take chunks of the slices and copy them, and know of no driver. The one who leads
does so too while there is nothing to send; in a long copy it sleeps for moments instead, so that it
takes no core from the program, and copies only what nobody else takes. What they share is a task
(`lane_task`).

The loops are written in C, `lane.c`, and shipped as what a compiler makes of it for any processor,
`lane.ll` (``make lane``). LLVM translates that here, so that who installs hetero needs no compiler.

    upload:    chunks of a slice may be copied when its buffer is free; the slice is sent when all
               of them were, and its buffer is free when it has arrived
    download:  slices are fetched ahead, as many as there are buffers; chunks may be copied when
               their slice is there; the buffer fetches another one when all of them were copied

Those who help look for tasks for a moment, then sleep until there is one.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import logging
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hetero.host.copying.lane_task import LOOPS
from hetero.imports import load

__all__ = ["address", "compile_ahead", "functions", "loop", "ready", "settled"]

log = logging.getLogger("hetero")
_compiled: dict[str, Callable[[Any], int]] = {}
_SWITCH = 1e-4  # seconds after which Python's lock is handed on while threads are set up
settled = threading.Event()  # once `compile_ahead` has finished or failed


def address(function: Any) -> int:
    """Of a C function."""
    return ctypes.cast(function, ctypes.c_void_p).value or 0


@functools.cache
def functions(driver: Any) -> dict[str, dict[str, int]]:
    """Addresses of a loaded CUDA driver's functions that a task names, by direction."""
    common = {
        "record": address(driver.cuEventRecord),
        "query": address(driver.cuEventQuery),
        "await": address(driver.cuEventSynchronize),
        "drain": address(driver.cuStreamSynchronize),
    }
    return {
        "upload": {**common, "send": address(driver.cuMemcpyHtoDAsync_v2)},
        "download": {**common, "send": address(driver.cuMemcpyDtoHAsync_v2)},
    }


def ready(name: str) -> Callable[[Any], int] | None:
    """A loop, None as long as `compile_ahead` has not finished or where it failed."""
    return _compiled.get(name)


def compile_ahead(begins: Callable[[], object] = lambda: None) -> None:
    """Compile the loops; who asks for them meanwhile does without.

    That is 40 ms of Python, in which whoever wants the interpreter, as each copy does at its end,
    would wait for its usual 5 ms; then ``begins`` is called, and 30 ms without it follow.
    """
    before = sys.getswitchinterval()
    sys.setswitchinterval(min(before, _SWITCH))
    here = sys.getswitchinterval()
    try:
        system = ctypes.CDLL(None)
        for name in ("memcpy", "sched_yield", "sem_init", "sem_post", "sem_wait", "usleep"):
            address(getattr(system, name))
        _load()
        load("llvmlite.binding")
        begins()
        found = {name: loop(name) for name in LOOPS}
    except Exception as error:  # of LLVM or the system, where these are others
        log.info("copies do without a compiled loop: %s", error)
    else:
        _compiled.update(found)
    finally:
        if sys.getswitchinterval() == here:  # nobody else has set it
            sys.setswitchinterval(before)
        settled.set()


def loop(name: str) -> Callable[[Any], int]:
    """A compiled loop.

    "upload" and "download" take the address of a task. They return 0, the driver's first error, or
    `lane_task.CANCELLED`; nothing is on its way any longer then, and nobody copies. "serve", for
    those who help, takes the address of `lane_task.SHARED` and returns when that says so.
    """
    return _loops()[name]


def _load() -> None:
    """Have LLVM's library loaded: Python, which will do so, keeps the interpreter for 10 ms."""
    package = importlib.util.find_spec("llvmlite")
    for folder in (package and package.submodule_search_locations) or ():
        path = os.path.join(folder, "binding", "libllvmlite.so")
        if os.path.exists(path):
            ctypes.CDLL(None).dlopen(os.fsencode(path), os.RTLD_NOW)


@functools.cache
def _loops() -> dict[str, Callable[[Any], int]]:
    binding = load("llvmlite.binding")

    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    module = binding.parse_assembly(Path(__file__).with_name("lane.ll").read_text("utf-8"))
    module.verify()
    machine = binding.Target.from_default_triple().create_target_machine(opt=2)
    engine = binding.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
    found = {name: kind(engine.get_function_address(name)) for name in LOOPS}
    # The code stays: at the process's end threads may run it, and LLVM's library is gone already.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(engine))
    return found
