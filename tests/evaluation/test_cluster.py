"""`hetero explain --cluster`: its arithmetic, what it prints, and what it refuses."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from command_line import FAILED, OK, refused

from hetero import registry
from hetero.calling.planner import Machine
from hetero.evaluation import calls, cluster
from hetero.evaluation.cluster import Cluster, Link

DOCS = Path(__file__).parents[2] / "docs"
EXAMPLE = DOCS / "examples" / "cluster_h200.json"
FAST, SLOW = Link(370e9, 10e-6), Link(50e9, 5e-6)
H200S = Cluster(250, 4, "h200", FAST, SLOW)
US = 1e-6


def forecast(*given):
    return SimpleNamespace(**cluster.forecast(*given))


def solve(dims, machine=H200S, method="fused", function="solve_cg", dtype="float64"):
    call = calls.Call(registry.operation(function), dims, dtype)
    return cluster.solve_of(call, machine, method)


def test_memory_by_hand():
    """7 vectors x 8000 bytes a row; 0.9 x 20 MB hold 321 rows, 4 of them halo: 317 are its own."""

    def fits_from(*dims):
        one = solve(dims)
        return one._replace(info={**one.info, "memory_bytes": 20_000_000}).fits_from()

    assert fits_from(317, 1000) == 1
    assert fits_from(321, 1000) == 1  # alone it has no halo
    assert fits_from(322, 1000) == 2
    assert fits_from(1000, 1000) == 4  # 317 x 3 < 1000
    assert fits_from(8, 10**6) is None


def test_several_sweeps_in_a_pass_exchange_once():
    flat = solve((4096, 4096), method="jacobi", function="solve_poisson")
    every = flat.iteration.every
    assert every == flat.iteration.halo > 1
    apart = H200S._replace(host_seconds=24e-6)
    one = forecast(flat, apart, 2)
    assert one.halo == pytest.approx(every * 4096 * 8 / 370e9 / every + 10e-6 / every)
    assert one.launch == pytest.approx(flat.step(2048)[0] + 24e-6 / every)
    assert one.sums == 0.0


@pytest.mark.parametrize(
    ("function", "method", "dims"),
    [
        ("solve_cg", "fused", (300, 200, 100)),
        ("solve_cg", "fused", (64, 64)),
        ("solve_poisson", "jacobi", (9000, 700)),
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_one_device_costs_what_a_plan_says(function, method, dims, dtype):
    one = solve(dims, method=method, function=function, dtype=dtype)
    constants, devices = calls.known("h200")
    machine = Machine(constants, devices)
    plan = one.call.plan(machine, device="cuda:0", method=method)
    compute = plan.candidates[0].terms["compute"]
    steps = one.row.work(one.call.problem(), one.info).repeat
    assert forecast(one, H200S, 1).seconds == pytest.approx(compute / steps, rel=1e-12)
    assert forecast(one, H200S, 1).efficiency == 1.0


# Rows of the page: us of an iteration on one GPU, as forecast, how far off; and on two.
PAGE = (DOCS / "clusters.md").read_text("utf-8")
MEASURED = re.findall(r"^\| (H.00), (\d+)\^2 \| (.*) \|$", PAGE, re.MULTILINE)


@pytest.mark.parametrize(("card", "n", "cells"), MEASURED)
def test_the_page_says_how_far_it_is_off(card, n, cells):
    pair, cells = Cluster(1, 2, f"{card.lower()}x2", Link(370e9, 5e-6)), cells.split(" | ")
    grid = solve((int(n), int(n)), pair)
    for parts, measured in ((1, float(cells[0])), (2, float(cells[3]))):
        us = forecast(grid, pair, parts).seconds / US
        assert us == pytest.approx(measured, rel=0.1)
        said = [f"{us:.0f}", f"{us / measured - 1:+.0%}"]
        assert cells[3 * parts - 2 : 3 * parts] == said
    assert len(MEASURED) == 4


def test_json_has_what_the_text_has(run, data):
    asked = "explain", "solve_cg", 65536, 65536, "--cluster", EXAMPLE
    scaled, (code, out, _) = data(*asked), run(*asked, "--markdown")
    assert (code, scaled["method"], scaled["fits_from"]) == (OK, "fused", 2)
    assert [row["parts"] for row in scaled["rows"]] == [2**k for k in range(10)] + [1000]
    for row in scaled["rows"]:
        terms = {name: row[name] for name in ("compute", "launch", "halo", "sums")}
        assert sum(terms.values()) == pytest.approx(row["seconds"])
        assert row["binds"] == max(terms, key=terms.get)
        assert f"| {row['parts']:,} | {row['rows']:,} |" in out
    poisson = data("explain", "solve_poisson", 2048, 2048, "--cluster", EXAMPLE)
    assert poisson["method"] == "jacobi"
    few = data("explain", "solve_cg", 9, 5000, "--cluster", EXAMPLE)["rows"]
    assert [row["parts"] for row in few] == [1, 2, 4]  # each has two rows at least


def test_picture(run, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    file = tmp_path / "scaling.svg"
    asked = "explain", "solve_poisson", 8192, 8192, "--cluster", EXAMPLE, "--plot", file  # no sums
    assert run(*asked)[0] == OK
    assert file.read_bytes().startswith(b"<?xml")
    for name in ("matplotlib", "matplotlib.figure"):
        monkeypatch.setitem(sys.modules, name, None)
    code, out, err = run(*asked)  # the table still comes
    assert (code, "efficiency" in out, "matplotlib" in err) == (FAILED, True, True)


GOOD = json.loads(EXAMPLE.read_text("utf-8"))
LINK = GOOD["gpu_link"]


@pytest.mark.parametrize(
    ("wrong", "naming"),
    [
        ({"nodes": 0}, ("nodes", "from 1", "got 0")),
        ({"nodes": 2.0}, ("nodes", "whole number", "2.0")),
        ({"gpu_link": 5}, ("mapping", "bytes_per_second, seconds")),
        ({"gpu_link": {"seconds": 0}}, ("bytes_per_second",)),
        ({"gpu_link": {**LINK, "latency": 1}}, ("'latency'", "bytes_per_second")),
        ({"node_link": {**LINK, "bytes_per_second": 0}}, ("bytes_per_second", "from 1", "got 0")),
        ({"node_link": {**LINK, "seconds": float("nan")}}, ("seconds", "got nan")),
        ({"colour": 1}, ("'colour'", "nodes, gpus_per_node, profile")),
        ({"profile": "mars"}, ("'mars'", "'h200'")),
        ({"profile": "tesla-t10"}, ("'tesla-t10'", "no constants", "a GPU")),
        *(({name: None}, (name,)) for name in ("nodes", "gpus_per_node", "gpu_link", "node_link")),
        *((content, ()) for content in ("", "[]", "5", "[" * 100_000, '{"nodes": 9e999}')),
    ],
    ids=lambda value: str(value)[:40],
)
def test_wrong_files_are_refused(run, tmp_path, wrong, naming):
    """Wrong and missing values are named; of what is no cluster, the file."""
    file = tmp_path / "cluster.json"
    given = {k: v for k, v in (GOOD | wrong).items() if v is not None} if naming else None
    file.write_text(json.dumps(given) if naming else wrong)
    naming = naming or (str(file),)
    refused(run, "explain", "solve_cg", 99, 99, "--cluster", file, naming=naming)


@pytest.mark.parametrize(
    ("arguments", "naming"),
    [
        (("matmul", 9, 9, 9), ("solve_cg, solve_poisson", "matmul 9 9 9")),
        (("solve_cg", 9), ("solve_cg, solve_poisson", "solve_cg 9")),
        (("solve_poisson", 9, 9, "--method", "dst"), ("jacobi", "'dst'")),
        (("solve_poisson", 9, 9, "--device", "cuda:0"), ("--device",)),
    ],
    ids=str,
)
def test_other_arguments_that_do_not_fit_are_refused(run, arguments, naming):
    refused(run, "explain", *arguments, "--cluster", EXAMPLE, naming=naming)
    for named in ("nowhere.json", "/"):
        refused(run, "explain", "solve_cg", 9, 9, "--cluster", named, naming=(named,))
