"""Rungs: methods that are taken by name only, which no plan looks at and nothing measures."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import fakes
import numpy as np
import pytest

import hetero
import hetero.ops
from hetero import cli, kernels, profile, registry
from hetero.arrays import spec
from hetero.calibration import request
from hetero.calling import planner
from hetero.errors import MethodNotAvailable
from hetero.ops.cases import Place

LADDERS = [o for o in registry.operations() if any(i.rung for i in registry.lookup(o.name))]
KINDS = ("cuda", "opencl")


def rows(operation):
    return [i for i in registry.lookup(operation.name) if i.rung is not None]


@pytest.mark.parametrize("operation", LADDERS, ids=lambda o: o.name)
def test_a_ladder_is_numbered_and_tells_its_ideas(operation):
    for kind in KINDS:
        found = registry.rungs(operation.name, kind)
        numbers = [row.rung.number for row in found if not row.rung.instead_of]
        assert numbers == [*range(1, len(numbers) + 1)], kind
        before = {}
        for row in found:
            before[row.method] = row.rung
            if row.rung.instead_of:  # a branch comes behind the rung that it is compared with
                assert row.rung.number == before[row.rung.instead_of].number
                assert not before[row.rung.instead_of].instead_of
            assert row.run is not None
            assert row.rung.idea
            assert row.rung.gain
    there = {i.method for i in registry.considered(operation.name)}
    assert operation.ladder
    assert set(operation.ladder) <= there


@pytest.mark.parametrize("name", [*profile.named("h200").dtypes(), "kmeans"])
def test_no_plan_has_a_rung(name):
    constants = profile.shipped("h200")
    machine = planner.OtherMachine(constants, constants.machine())
    operation = registry.operation(name)
    dims = (300,) * len(operation.dims[0].split())
    problem = operation.from_dims(dims, "float32", "host")
    plan = machine.plan(problem)
    assert plan.candidates
    assert not [c for c in plan.candidates if c.implementation.rung]
    assert not [c for c in machine.plan(problem, "cuda:0").candidates if c.implementation.rung]


def test_a_rung_is_taken_by_its_name_alone(monkeypatch):
    """No device need be named, and no constants are asked for."""
    (device,) = fakes.install(monkeypatch, 1)
    A = spec((20, 30), "float32")
    for operation, operands in (("matmul", (A, spec((30, 7), "float32"))), ("kmeans", (A, 4))):
        for row in registry.rungs(operation, "cuda"):
            chosen = hetero.plan(operation, *operands, method=row.method).chosen
            assert (chosen.device, chosen.method) == (device.name, row.method)
            with hetero.use(method=row.method):
                assert hetero.plan(operation, *operands).chosen.method == row.method


def test_a_product_with_one_row_or_column_is_a_matvec_whatever_is_named(monkeypatch):
    fakes.install(monkeypatch, 1)
    for a, b in (((1, 5), (5, 3)), ((4, 5), (5, 1)), ((5,), (5,)), ((1, 5), (5, 1))):
        operands = spec(a, "float32"), spec(b, "float32")
        for method in ("naive", None):
            assert hetero.plan("matmul", *operands, method=method).problem.operation == "matvec"
        with pytest.raises(MethodNotAvailable, match=r"one of 'blas', .*'rows2'"):
            hetero.plan("matmul", *operands, method="rows2")


@pytest.mark.parametrize("operation", LADDERS, ids=lambda o: o.name)
def test_nothing_is_measured_for_a_rung(operation, monkeypatch):
    (device,) = fakes.install(monkeypatch, 1)
    info = {**device.describe(), "arch": "sm_90", "shared_limit": 227 << 10}
    cases = importlib.import_module(operation.cases).cases
    found = list(cases(Place(device.name, info, (device,)), request.QUICK))
    assert found
    assert not [case for case in found if case.implementation.rung]


def test_explain_tells_that_there_are_rungs(capsys):
    words = ["explain", "kmeans", "1000", "3", "4", "--profile", "h200"]
    cli.main(words)
    told = "not listed: simpler kernels, see hetero ladder kmeans\n"
    assert told in capsys.readouterr().out
    cli.main([*words, "--method", "lloyd"])
    assert "not listed" not in capsys.readouterr().out


def test_each_kernel_of_a_ladder_is_in_its_first_comment():
    """A reader begins there: number, name and idea of every rung and branch of the files."""
    folder = Path(kernels.__file__).parent
    families = {"matvec": "matvec", "convolve2d": "convolution", "poisson": "jacobi"}
    for name, family in {"matmul": "matmul", **families}.items():
        text = "".join(f.read_text("utf-8") for f in sorted(folder.glob(f"{family}/*_rungs*.cu")))
        for row in registry.rungs(name, "cuda"):
            begin = f"{row.rung.number} or" if row.rung.instead_of else f"{row.rung.number}"
            assert re.search(rf"^// {begin} +{row.method} ", text, re.M), row


def test_results_of_a_rung_are_right_for_empty_operands():
    for row in registry.rungs("matmul", "opencl")[:1]:
        try:
            place = {"device": "opencl:0", "method": row.method}
            for a, b in (((0, 3), (3, 4)), ((2, 0), (0, 4)), ((2, 3), (3, 0))):
                result = hetero.matmul(np.ones(a), np.ones(b), **place)
                assert result.shape == (a[0], b[1])
                assert not result.any()
        except hetero.DeviceNotAvailable as error:
            pytest.skip(str(error))
