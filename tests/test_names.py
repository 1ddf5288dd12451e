"""No line outside the operations' own folders names an operation or a method.

What they are called is known to the registry alone: calibration, evaluation, the command line and
the runtime ask it, so that a new operation or method is a folder or a row, and no line elsewhere.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import NamedTuple

import pytest

import hetero
import hetero.ops
from hetero import calibration, registry

# The list, and the folders it leads to; what several operations share is named by what it is. And
# programs as users write them, who call operations by their names; and the functions by the same
# names on Dask's arrays and over MPI.
OWN = re.compile(
    r"hetero/(removed\.py$|ops/(functions\.py$|\w+/)|evaluation/programs\.py$|dask/|mpi/|accel/)"
)
# These describe machines and array libraries, in words that are methods' names too: the BLAS, the
# library of a device, the package numba. Operations are looked for here, methods are not.
DESCRIBING = re.compile(
    r"hetero/(devices/|host/|arrays/|imports\.py$|(profile/inventory|calling/overview)\.py$)"
)
# A curve of White's is constant, and so is a kind of memory that a method is named after.
OTHERWISE = {"hetero/registry/effective_bandwidth.py": frozenset({"constant"})}


class Names(NamedTuple):
    """What is looked for: names of operations and their public functions, and of methods."""

    operations: frozenset[str]
    methods: frozenset[str]


def registered():
    operations = registry.operations()
    return Names(
        frozenset(name for o in operations for name in (o.name, o.function)),
        frozenset(i.method for o in operations for i in registry.lookup(o.name)),
    )


def sources():
    """Path from the top -> file."""
    found = {}
    for package in (hetero, calibration):
        top = Path(package.__file__).parent
        found |= {f"{top.name}/{f.relative_to(top).as_posix()}": f for f in top.rglob("*.py")}
    return {path: file for path, file in sorted(found.items()) if not OWN.match(path)}


def lines(text, names):
    """Line number -> the name that stands there, but for docstrings and comments."""
    tree = ast.parse(text)
    statements = [node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)]
    docstrings = {id(value) for value in statements if isinstance(value, ast.Constant)}
    return {
        node.lineno: name
        for node in ast.walk(tree)
        if id(node) not in docstrings
        for name in said(node, names)
    }


def said(node, names):
    """The names in a piece of code: in a text, as a variable, an attribute or a module."""
    match node:
        case ast.Constant(value=str(text)):
            return in_text(text, names)
        case ast.Name(id=name) | ast.Attribute(attr=name) | ast.keyword(arg=name):
            return {name} & names.operations
        case ast.ImportFrom():
            words = {*(node.module or "").split("."), *(a.name for a in node.names)}
            return words & names.operations
        case ast.Import():
            return {word for a in node.names for word in a.name.split(".")} & names.operations
    return set()


def in_text(text, names):
    """Operations are looked for in every word; methods, many of them common words, in keys only."""
    words = set(re.findall(r"\w+", text))
    is_key = not re.search(r"\s", text)
    return words & (names.operations | names.methods if is_key else names.operations)


@pytest.mark.parametrize("path", sources())
def test_no_line_names_an_operation_or_a_method(path):
    names = registered()
    if DESCRIBING.match(path):
        names = names._replace(methods=frozenset())
    names = names._replace(methods=names.methods - OTHERWISE.get(path, frozenset()))
    found = lines(sources()[path].read_text("utf-8"), names)
    told = "; ".join(f"line {line}: {name}" for line, name in sorted(found.items()))
    assert not found, f"{path} names {told}"


SEEN = """
if operation == "cg": pass
sizes = {"matvec": 1}
rows = registry.lookup("poisson")
key = f"{device}|matmul|{method}"
key = "cpu|cg|other|float32"
text = f"--mode is an option of convolve2d, not of {name}"
found = np.matmul
hetero.solve_cg(A, b)
from hetero.ops.poisson import OPERATION
from hetero.ops import cg
import hetero.ops.matmul.methods
if method in ("direct", "none"): pass
weights[method == "fft"]
form = "stencil2-multigrid"
run(tiled=1, matvec=2)
"""
UNSEEN = '''
"""The docstring of a module on matmul."""
direct = copies  # of matmul
message = "direct copies go to the library"
def f():
    """As numpy.matmul."""
class Poisson: pass
fft.rfft(x)
'''


def test_what_this_test_sees():
    names = registered()
    seen = lines(SEEN, names)
    assert [n for n, line in enumerate(SEEN.splitlines(), 1) if line and n not in seen] == []
    assert lines(UNSEEN, names) == {}


def test_every_operation_is_in_the_list():
    """Its function is public, under the name that the registry has."""
    listed = [
        value for name, value in vars(hetero.ops.functions).items() if not name.startswith("_")
    ]
    assert listed == [o.call for o in registry.operations()]
    for operation in registry.operations():
        assert getattr(hetero, operation.function) is operation.call
        assert operation.function in hetero.__all__
    assert dir(hetero) == hetero.__all__


KINDS = {"cuda", "opencl"}


def compared_kinds(text):
    """Line numbers where code compares something with the name of a kind of device."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Compare):
            values = {v.value for v in ast.walk(node) if isinstance(v, ast.Constant)}
            if values & KINDS:
                yield node.lineno


def test_what_a_kind_of_device_can_do_is_no_question_of_its_name():
    for package in (hetero, calibration):
        top = Path(package.__file__).parent
        for file in top.rglob("*.py"):
            path = f"{top.name}/{file.relative_to(top).as_posix()}"
            if not path.startswith(("hetero/devices/", "hetero/arrays/")):
                assert not list(compared_kinds(file.read_text())), path


def test_a_compared_kind_is_seen():
    assert list(compared_kinds('x = 1\nif device.kind == "cuda":\n    pass')) == [2]
    assert list(compared_kinds('rows = {"cuda": 1}')) == []
