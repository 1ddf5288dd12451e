"""Who may import whom.

Each layer of `LAYERS` may use whatever lies below it, none above. No two files import each other,
by whatever way round: imports in functions, by `hetero.imports.load` and for types count too.
"""

from __future__ import annotations

import ast
import functools
from pathlib import Path

import pytest

import hetero
from hetero import calibration, kernels

LAYERS = (  # the lowest first
    ("errors", "html", "imports", "locks", "paths", "removed", "terminal", "times"),
    ("host",),
    ("kernels",),
    ("arrays",),
    ("devices",),
    ("registry",),
    ("profile",),
    ("pricing",),
    ("moving",),
    ("blocks",),
    ("calling",),
    ("ops",),
    ("dask", "mpi"),
    ("calibration",),
    ("evaluation",),
    ("accel",),
    ("cli",),
)
RANK = {unit: rank for rank, units in enumerate(LAYERS) for unit in units}
LOADING = {"load", "imports.load"}
# Files of commands, which are a process of their own.
COMMANDS = ("cli", "evaluation")
# The package itself and its entry point hand out what others define.
FREE = {"hetero", "__main__"}
HEAVY = {"pycuda", "pyopencl", "numba", "scipy", "sklearn", "threadpoolctl"}
HEAVY |= {"cupy", "torch", "nvmath", "cuda", "dask", "distributed", "mpi4py"}


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
# What is loaded before the first call computes: the names, every operation, the commands.
FIRST = [
    name
    for name, file in MODULES.items()
    if name in ("hetero", "hetero.accel", "hetero.ops", "hetero.cli", "hetero.calibration")
    or name.split(".")[1:2] in (["evaluation"], ["calibration"])
]
FILES = [pytest.param(name, id=name.removeprefix("hetero.")) for name in MODULES]


@functools.cache
def imports(name, file):
    """(modules that a statement may load, whether it runs at import, whether for types only)."""
    found = []
    package = name if file.name == "__init__.py" else name.rpartition(".")[0]

    def walk(node, eager, typing):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                found.append(([a.name for a in child.names], eager, typing))
            elif isinstance(child, ast.ImportFrom):
                base = child.module or ""
                if child.level:
                    above = package.split(".")[: -(child.level - 1) or None]
                    base = ".".join([*above, *filter(None, [child.module])])
                names = [f"{base}.{a.name}" for a in child.names]
                found.append(([n if n in MODULES else base for n in names], eager, typing))
            elif isinstance(child, ast.Call) and ast.unparse(child.func) in LOADING:
                loaded = [a.value for a in child.args if isinstance(a, ast.Constant)]
                if loaded:
                    found.append(([loaded[0]], eager, typing))
            inside = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
            guard = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
            walk(child, eager and not inside, typing or guard)

    walk(ast.parse(file.read_text(encoding="utf-8")), True, False)
    return found


def unit(name):
    """The part of hetero right below the top that a module belongs to; None for other packages."""
    parts = name.split(".")
    return None if parts[0] != "hetero" else parts[1] if len(parts) > 1 else "hetero"


def test_every_unit_has_its_place():
    assert set(map(unit, MODULES)) - FREE == set(RANK)


@pytest.mark.parametrize("name", FILES)
def test_layers(name):
    if unit(name) in FREE:
        return
    for names, *_ in imports(name, MODULES[name]):
        for used in filter(None, map(unit, names)):
            if used in FREE and unit(name) == "cli":
                continue
            assert used in RANK, f"{name} imports {used}"
            assert RANK[used] <= RANK[unit(name)], f"{name} imports {names}"


def test_no_circle_between_files():
    edges = {
        name: {used for names, *_ in imports(name, file) for used in names if used in MODULES}
        for name, file in MODULES.items()
        if unit(name) not in FREE
    }
    done = set()

    def visit(name, path):
        assert name not in path, " -> ".join([*path[path.index(name) :], name])
        if name not in done:
            for below in edges.get(name, set()) - {name}:
                visit(below, [*path, name])
            done.add(name)

    for name in edges:
        visit(name, [])


@pytest.mark.parametrize("name", FIRST)
def test_nothing_heavy_is_loaded_before_a_call_needs_it(name):
    """Neither by a module itself nor by any that it imports."""
    reached, new = set(), {name}
    while new:
        reached |= new
        loaded = {used for one in new for used in eager_imports(one)}
        new = {used for used in loaded if used in MODULES} - reached
    for one in reached:
        assert not HEAVY & {used.partition(".")[0] for used in eager_imports(one)}, one


@functools.cache
def eager_imports(name):
    return {
        used
        for names, eager, typing in imports(name, MODULES[name])
        for used in names
        if eager and not typing
    }


def in_functions(tree):
    """Import statements that run when a function is called."""
    return [
        statement
        for function in ast.walk(tree)
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef))
        for statement in ast.walk(function)
        if isinstance(statement, (ast.Import, ast.ImportFrom))
    ]


@pytest.mark.parametrize("name", FILES)
def test_what_is_imported_late_is_imported_by_load(name):
    """One thread at a time, see `hetero.imports`; kernels import Numba whole before its modules."""
    text = MODULES[name].read_text(encoding="utf-8")
    tree = ast.parse(text)
    if unit(name) == "kernels":
        dotted = [s for s in ast.walk(tree) if isinstance(s, ast.ImportFrom)
                  and (s.module or "").startswith("numba.")]  # fmt: skip
        whole = [s for s in ast.walk(tree) if isinstance(s, ast.Import)
                 and any(a.name == "numba" for a in s.names)]  # fmt: skip
        assert all(any(w.lineno < s.lineno for w in whole) for s in dotted)
    elif unit(name) not in COMMANDS and not name.endswith((".benchmarks", ".demonstration")):
        assert name == "hetero.imports" or "import_module" not in text
        assert [ast.unparse(statement) for statement in in_functions(tree)] == []


def test_kernels_know_nothing_of_hetero():
    """But the CPU's loops, whose threads are the host's."""
    for name, file in MODULES.items():
        if unit(name) == "kernels":
            known = {None, "kernels"} | (
                {"host"} if name.startswith("hetero.kernels.cpu.") else set()
            )
            for names, *_ in imports(name, file):
                assert {unit(used) for used in names} <= known, name


def test_this_test_sees_imports(tmp_path):
    file = tmp_path / "x.py"
    file.write_text(
        "import scipy.linalg\nfrom hetero import cli\nif TYPE_CHECKING:\n    import torch\n"
        "def f():\n    from hetero.ops.matmul import x\n    from .. import planner\n"
        "    load('scipy.signal').convolve2d\n"
    )
    assert imports("hetero.calling.deep.x", file) == [
        (["scipy.linalg"], True, False),
        (["hetero.cli"], True, False),
        (["torch"], True, True),
        (["hetero.ops.matmul"], False, False),
        (
            ["hetero.calling.planner" if "hetero.calling.planner" in MODULES else "hetero.calling"],
            False,
            False,
        ),
        (["scipy.signal"], False, False),
    ]
