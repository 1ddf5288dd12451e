"""`hetero ladder --source`: a rung as it is compiled, without macros."""

import re
import struct

import numpy as np
import pytest
from command_line import OK, refused

import hetero.ops  # noqa: F401
from hetero import kernels, registry
from hetero.devices.cuda import cubin
from hetero.evaluation import kernel_source
from hetero.ops import benchmark

RUNGS = [
    (operation.function, row.method)
    for operation in registry.operations()
    for row in registry.lookup(operation.name)
    if row.rung and row.kind == "cuda"
]


def machine_code(elf):
    """Kernel -> its machine code, of a cubin: a file of 64-bit ELF."""
    (at,) = struct.unpack_from("<Q", elf, 0x28)
    size, number, names = struct.unpack_from("<HHH", elf, 0x3A)
    sections = [struct.unpack_from("<II4Q", elf, at + i * size) for i in range(number)]
    strings = sections[names][4]
    found = {}
    for name, _, _, _, begin, length in sections:
        name = elf[strings + name : elf.index(b"\0", strings + name)].decode()
        if name.startswith(".text."):
            found[name.removeprefix(".text.")] = elf[begin : begin + length]
    return found


@pytest.mark.parametrize(("function", "method"), RUNGS)
def test_it_is_what_the_rung_compiles_to(function, method, monkeypatch):
    files = []
    expand = kernel_source.expanded
    monkeypatch.setattr(
        kernel_source, "expanded", lambda *given: files.append(given) or expand(*given)
    )
    text = kernel_source.of_rung(registry.operation(function), method)
    assert not any(line.startswith(("#if", "#define", "#else")) for line in text.splitlines())
    assert len(text.splitlines()) <= 120
    if not cubin._nvrtc_version():
        pytest.skip("no NVRTC")
    before = {}
    for file, defines in files:
        options = [f"-D{name}={value}" for name, value in defines]
        whole = kernels.prelude("cuda") + "\n" + kernels.source(file)
        before |= machine_code(cubin.nvrtc_compile(whole, "sm_90", options)[0])
    after = machine_code(cubin.nvrtc_compile(text, "sm_90", ())[0])
    assert after
    assert after.items() <= before.items()


def test_a_rung_is_printed(run):
    code, out, _ = run("ladder", "matmul", "--source", "rows4", "--dtype", "float64")
    assert code == OK
    assert "matmul_rows( const double *" in " ".join(out.split())
    assert "rung 4, rows4: a thread has four elements of a column (Jensen 2017, gpu4)." in out


def test_another_name_is_refused_with_those_that_there_are(run):
    refused(run, "ladder", "matvec", "--source", "nonsense", naming=["--source", "'naive', "])


@pytest.mark.parametrize(
    ("function", "method"),
    [(o.function, r.method) for o in registry.operations() for r in benchmark.rungs(o, "cpu")],
)
def test_a_loop_of_the_cpu_is_whole(function, method):
    """With what decorates and is called, and nothing else: it computes by itself."""
    from hetero.host.compiled.parts import helper, part
    from hetero.host.threads import serial, threaded

    text = kernel_source.of_loop(registry.operation(function), method)
    assert text.startswith(f"# {function}, rung ")
    space = {"np": np, "helper": helper, "part": part, "serial": serial, "threaded": threaded}
    before = {*space}
    exec(text, space)
    names = space.keys() - before - {"__builtins__"}
    assert {*re.findall(r"\b_[a-z]\w*\b", text)} <= names
    (whole,) = [name for name in names if name.endswith(f"_{method}")]
    assert all(len(re.findall(rf"\b{name}\b", text)) > 1 for name in names - {whole})
    A = np.random.default_rng(0).random((5, 5))
    if function == "matmul":
        C = np.zeros_like(A)
        space[whole](A, A, C)
        np.testing.assert_allclose(C, A @ A)


def test_a_loop_is_printed(run):
    code, out, _ = run("ladder", "matmul", "--device", "cpu", "--source", "blocked")
    assert code == OK
    assert "# matmul, rung 4, blocked: tiles of B" in out
    assert "DEPTH, WIDTH = " in out
    assert "@helper\ndef _add_rows(a, B, c, first):" in out
    assert "_matmul_rows" not in out
    args = "ladder", "solve_poisson", "--device", "cpu", "--source", "naive"
    refused(run, *args, naming=["--source of solve_poisson must be one of 'sequential', 'para"])
