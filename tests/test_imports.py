"""Who may import whom.

    cli -> calibration, ops        calibration -> ops, registry, models, profile, inventory, devices
    ops -> planner, registry       ops -> devices, transfer, execution, kernels (in functions only)
    planner -> registry, models, profile, inventory
    devices -> kernels             kernels imports nothing of hetero

`pricing` belongs to planner, `overview` to profile and inventory; cli and calibration stand on top
and may use whatever those below them may. `errors`, `arrays`, `paths`, `locks`, `disk_cache`,
`models`, `problem` are leaves: words that everything is written in.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import hetero
from hetero import calibration, kernels

LEAVES = {"errors", "arrays", "paths", "locks", "disk_cache", "models", "problem"}
BELOW = {
    "errors": set(),
    "arrays": set(),
    "paths": set(),
    "locks": set(),
    "disk_cache": {"paths"},
    "models": set(),
    "problem": {"arrays"},
    "registry": set(),
    "terminal": set(),
    "kernels": set(),
    "devices": {"kernels", *LEAVES},
    "inventory": {"devices", *LEAVES},
    "profile": {"inventory", *LEAVES},
    "failures": {"devices", "inventory", *LEAVES},
    "overview": {"profile", "inventory", "devices", *LEAVES},
    "pricing": {"registry", "profile", *LEAVES},
    "planner": {"pricing", "registry", "profile", "inventory", *LEAVES},
    "transfer": {"devices", "failures", *LEAVES},
    "execution": {
        *("transfer", "failures", "planner", "registry", "inventory", "devices"),
        *LEAVES,
    },
    "graphs": {"devices", "inventory", "planner", *LEAVES},
    "solvers": {"devices", "transfer", "partition", "kernels", *LEAVES},
    "partition": {"devices", *LEAVES},
    "filtering": {"devices", "transfer", "kernels", *LEAVES},
    "ops": {"planner", "registry", *LEAVES},
}
EVERYTHING = {*BELOW, "hetero"}
BELOW["calibration"] = EVERYTHING - {"transfer", "kernels"}
BELOW["cli"] = {*EVERYTHING, "calibration"} - {"transfer", "kernels", "execution"}
# What may be imported inside functions besides, when it is needed.
LATER = {
    "ops": {
        *("devices", "inventory", "transfer", "failures", "execution"),
        *("kernels", "solvers", "filtering"),
    }
}
# The package itself and its entry point hand out what others define.
FREE = {"hetero", "__main__"}
LATE = {"cpu", "numba"}  # first words of the names of kernels that need Numba
HEAVY = {"pycuda", "pyopencl", "numba", "scipy", "threadpoolctl", "cupy", "torch", "nvmath", "cuda"}


def sources():
    """(unit, file) of every module: the unit is the name right below ``hetero``."""
    top = Path(hetero.__file__).parent
    for file in sorted(top.rglob("*.py")):
        parts = file.relative_to(top).with_suffix("").parts
        yield ("hetero" if parts == ("__init__",) else parts[0]), file
    for unit, package in (("kernels", kernels), ("calibration", calibration)):
        for file in sorted(Path(package.__file__).parent.rglob("*.py")):
            if top not in file.parents:
                yield unit, file


def imports(file):
    """(names that a statement may load, whether it runs at import, whether for types only)."""
    found = []

    def walk(node, eager, typing):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                found.append(([a.name for a in child.names], eager, typing))
            elif isinstance(child, ast.ImportFrom):
                base = "." * child.level + (child.module or "")
                names = [base]
                if base == "hetero":
                    names = [f"hetero.{a.name}" for a in child.names]
                found.append((names, eager, typing))
            inside = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
            guard = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
            walk(child, eager and not inside, typing or guard)

    walk(ast.parse(file.read_text(encoding="utf-8")), True, False)
    return found


def units(names):
    for name in names:
        parts = name.split(".")
        if parts[0] == "hetero":
            yield parts[1] if len(parts) > 1 else "hetero"


FILES = [pytest.param(u, f, id=f"{u}/{f.name}" if u != f.stem else u) for u, f in sources()]


def test_every_unit_has_its_place():
    assert {unit for unit, _ in sources()} - FREE == set(BELOW)


@pytest.mark.parametrize(("unit", "file"), FILES)
def test_arrows(unit, file):
    if unit in FREE:
        return
    for names, eager, typing in imports(file):
        allowed = BELOW[unit] | {unit} | (LATER.get(unit, set()) if not eager else set())
        for used in units(names):
            if not typing:
                when = "at import" if eager else "in a function"
                assert used in allowed, f"{file.name} imports hetero.{used} {when}"


@pytest.mark.parametrize(("unit", "file"), FILES)
def test_nothing_heavy_is_loaded_at_import(unit, file):
    heavy = HEAVY - {"numba", "scipy"} if loaded_late(unit, file.stem) else HEAVY
    for names, eager, typing in imports(file):
        if eager and not typing:
            assert not heavy & {name.partition(".")[0] for name in names}, (file.name, names)
            if not loaded_late(unit, file.stem):
                for name in names:
                    parts = name.lstrip(".").split(".")
                    assert not any(part.partition("_")[0] in LATE for part in parts[:1]), names


def loaded_late(unit, stem):
    """Solvers, filtering and the loops of Numba: nothing imports them before they are needed."""
    return unit in ("solvers", "filtering") or (
        unit == "kernels" and stem.partition("_")[0] in LATE
    )


def test_kernels_know_nothing_of_hetero():
    for unit, file in sources():
        if unit == "kernels":
            for names, *_ in imports(file):
                assert not list(units(names)), file.name
                assert not any(name.startswith("..") for name in names), file.name


def test_no_cycle():
    """Nothing that is loaded at import leads back to itself, whatever the table above allows."""
    edges = {}
    for unit, file in sources():
        for names, eager, typing in imports(file):
            if eager and not typing and unit not in FREE:
                edges.setdefault(unit, set()).update(set(units(names)) - {unit, "hetero"})

    def visit(unit, path):
        assert unit not in path, " -> ".join([*path, unit])
        for below in edges.get(unit, ()):
            visit(below, [*path, unit])

    for unit in edges:
        visit(unit, [])


def test_this_test_sees_imports(tmp_path):
    file = tmp_path / "x.py"
    file.write_text(
        "import scipy.linalg\nfrom hetero import cli\nif TYPE_CHECKING:\n    import torch\n"
        "def f():\n    from hetero.ops.matmul import x\n"
    )
    assert imports(file) == [
        (["scipy.linalg"], True, False),
        (["hetero.cli"], True, False),
        (["torch"], True, True),
        (["hetero.ops.matmul"], False, False),
    ]
