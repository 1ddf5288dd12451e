"""Who may import whom.

Each layer of `LAYERS` may use whatever lies below it, none above. No two files import each other,
by whatever way round: imports in functions, by `hetero.imports.load` and for types count too.
"""

from __future__ import annotations

import ast
import functools
import graphlib
from importlib.util import resolve_name
from pathlib import Path

import processes
import pytest

import hetero
from hetero import calibration, kernels

LAYERS = (  # the lowest first
    ("errors", "imports", "locks", "paths", "tables", "terminal"),
    ("host",),
    ("kernels",),
    ("arrays",),
    ("devices",),
    ("registry",),
    ("profile",),
    ("pricing",),
    ("moving",),
    ("calling",),
    ("ops",),
    ("dask", "mpi"),
    ("calibration",),
    ("evaluation", "ladder"),
    ("accel",),
    ("cli",),
)
RANK = {unit: rank for rank, units in enumerate(LAYERS) for unit in units}
LOADING = {"load", "imports.load"}
# Files of commands, which are a process of their own.
COMMANDS = ("cli", "evaluation", "ladder")
# The package itself and its entry point hand out what others define.
FREE = {"hetero", "__main__"}
HEAVY = {"pycuda", "pyopencl", "numba", "scipy", "sklearn", "threadpoolctl"}
HEAVY |= {"cupy", "torch", "cuda", "nvmath", "dask", "distributed", "mpi4py"}


def modules():
    """Dotted name -> file of every module."""
    found = {}
    for package in (hetero, kernels, calibration):
        top = Path(package.__file__).parent
        for file in sorted(top.rglob("*.py")):
            parts = [package.__name__, *file.relative_to(top).with_suffix("").parts]
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return found


MODULES = modules()


@functools.cache
def tree_of(file):
    return ast.parse(file.read_text(encoding="utf-8"))


@functools.cache
def imports(name, file):
    """Modules that each statement of a file may load."""
    found = []
    package = name if file.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(tree_of(file)):
        if isinstance(node, ast.Import):
            found.append([a.name for a in node.names])
        elif isinstance(node, ast.ImportFrom):
            base = resolve_name("." * node.level + (node.module or ""), package)
            names = [f"{base}.{a.name}" for a in node.names if a.name != "__version__"]
            found.append([n if n in MODULES else base for n in names])
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in LOADING:
            found += [[a.value] for a in node.args[:1] if isinstance(a, ast.Constant)]
    return found


def unit(name):
    """The part of hetero right below the top that a module belongs to; None for other packages."""
    parts = name.split(".")
    return None if parts[0] != "hetero" else parts[1] if len(parts) > 1 else "hetero"


def test_layers():
    assert set(map(unit, MODULES)) - FREE == set(RANK)
    for name, file in MODULES.items():
        for names in imports(name, file) if unit(name) not in FREE else ():
            for used in filter(None, map(unit, names)):
                if used not in FREE or unit(name) != "cli":
                    assert RANK[used] <= RANK[unit(name)], f"{name} imports {names}"


def test_no_circle_between_files():
    files = graphlib.TopologicalSorter()
    for name, file in MODULES.items():
        used = {used for names in imports(name, file) for used in names if used in MODULES}
        files.add(name, *(used - {name} if unit(name) not in FREE else ()))
    files.prepare()  # or it raises CycleError, with the files


IMPORTING = """
import importlib, sys
for name in {first}:
    importlib.import_module(name)
found = {heavy} & sys.modules.keys()
assert not found, found
for name in {rest}:
    importlib.import_module(name)
"""


@pytest.mark.parametrize("step", [1, -1], ids=["forwards", "backwards"])
def test_modules_are_imported_in_any_order_and_what_is_first_loads_nothing_heavy(step):
    """First: the names, every operation, the commands, which are there before a call computes."""
    optional = ("hetero.dask", "hetero.mpi")  # need packages that may be missing
    names = [n for n in MODULES if not n.endswith("__main__") and not n.startswith(optional)]
    roots = ("hetero", "hetero.accel", "hetero.ops", "hetero.cli")
    first = [n for n in names if n in roots or unit(n) in ("evaluation", "calibration")]
    rest = [name for name in names if name not in first]
    code = IMPORTING.format(first=first[::step], heavy=HEAVY, rest=rest[::step])
    processes.python("-c", code)


def test_what_is_imported_late_is_imported_by_load():
    """One thread at a time, see `hetero.imports`; kernels import Numba whole before its modules."""
    for name, file in MODULES.items():
        text, tree = file.read_text(encoding="utf-8"), tree_of(file)
        if unit(name) == "kernels":
            dotted = [s for s in ast.walk(tree) if isinstance(s, ast.ImportFrom)
                      and (s.module or "").startswith("numba.")]  # fmt: skip
            whole = [s for s in ast.walk(tree) if isinstance(s, ast.Import)
                     and any(a.name == "numba" for a in s.names)]  # fmt: skip
            assert all(any(w.lineno < s.lineno for w in whole) for s in dotted), name
        elif unit(name) not in COMMANDS and not name.endswith(".benchmarks"):
            assert name == "hetero.imports" or "import_module" not in text, name
            functions = (ast.FunctionDef, ast.AsyncFunctionDef)
            within = [s for f in ast.walk(tree) if isinstance(f, functions) for s in ast.walk(f)]
            late = [ast.unparse(s) for s in within if isinstance(s, (ast.Import, ast.ImportFrom))]
            assert late == [], name


def test_kernels_know_nothing_of_hetero():
    """But the CPU's loops, whose threads are the host's."""
    for name, file in MODULES.items():
        for names in imports(name, file) if unit(name) == "kernels" else ():
            host = "host" if name.startswith("hetero.kernels.cpu.") else None
            assert set(map(unit, names)) <= {None, "kernels", host}, name


LOOKED = """
import sys
import numpy as np, hetero
from hetero.profile import inventory
A = np.ones((64, 64))
for call in (
    lambda: hetero.matmul(A, A),
    lambda: hetero.matvec(np.ones((512, 512)), np.ones(512)),
    lambda: hetero.convolve2d(A, A[:3, :3]),
    lambda: hetero.convolve2d(A[:9, :8], A[:5, :6], "same", "wrap"),
    lambda: hetero.solve_cg(np.eye(64) + 0.1, A[0]),
    lambda: hetero.solve_cg(hetero.Poisson((10, 10)), np.ones(100)),
    lambda: hetero.solve_poisson(A),
    lambda: hetero.kmeans(np.arange(1200.0).reshape(300, 4), 3, random_state=0),
):
    call()
    heavy = {"pycuda", "pyopencl", "numba", "nvmath", "scipy.signal", "cupy", "torch"}
    print(inventory.looked(), sorted(heavy & set(sys.modules)))
hetero.plan("matmul", A, A)
print(inventory.looked())
"""


@pytest.mark.parametrize("profile", [None, "h200.json"])
def test_small_first_calls_look_for_no_device_and_import_no_compiler(profile):
    """Also where loops are compiled; a plan that is printed knows all devices."""
    named = profile and str(Path(calibration.__file__).parent / "profiles" / profile)
    done = processes.python("-c", LOOKED, HETERO_COMPILE_AHEAD="0", HETERO_PROFILE=named)
    assert done.stdout.split("\n")[:-1] == ["False []"] * 8 + ["True"]
