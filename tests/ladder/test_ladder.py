"""`hetero ladder` and `hetero sweep`: rows, gains, what is left out, tables, pictures."""

from __future__ import annotations

import numba
import pytest

from hetero import cli
from hetero.errors import MethodNotAvailable
from hetero.kernels.cpu.ladder import LADDERS
from hetero.ladder import families, ladder, probe
from hetero.ladder.families import FAMILIES


@pytest.fixture(autouse=True)
def short(monkeypatch):
    for name, value in (("_POINT", 1e-3), ("_ROOF_ROUNDS_OTHERS", 1), ("_COPIED", 1 << 20)):
        monkeypatch.setattr(probe, name, value)


# -- Ladders ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "dims"),
    [("matmul", (20, 6, 20)), ("convolve2d", (20, 30, 3, 5)), ("kmeans", (300, 4, 3))],
)
def test_rows_of_every_rung(data, opencl, function, dims, tmp_path):
    """In their order, then hetero's own methods and the CPU's best; rates, gains and shares."""
    of, file = FAMILIES[function], tmp_path / "a.svg"
    given = "--device", opencl, "--dims", ",".join(map(str, dims)), "--plot", str(file)
    found = data("ladder", function, *given)
    rows, above = found["rows"], found["roof"]
    own = [name for name in of.methods if name not in ("library", "tensor")]
    assert [row["method"] for row in rows] == [*of.ladder.rungs, *own, "cpu's best"]
    left_out = {row["method"] for row in rows if "reason" in row}
    assert left_out == {name for name, rung in of.ladder.rungs.items() if rung.capability}
    assert (found["dtype"], found["what"]) == (of.dtype, of.what)
    work = dict(zip(("flops", "bytes"), of.work(*dims), strict=True))
    work["bytes"] *= 8 if of.dtype == "float64" else 4
    before, best = {}, rows[-1]["seconds"]
    for row in (row for row in rows if "reason" not in row):
        seconds, branch = row["seconds"], row.get("instead_of", "")
        for what, amount in work.items():
            assert row[f"{what}_per_second"] == pytest.approx(amount / seconds)
        shares = [row[f"{what}_per_second"] / above[f"{what}_per_second"] for what in work]
        assert row["share"] == pytest.approx(max(shares))
        assert row["over_cpu"] == pytest.approx(best / seconds)
        over = None if row is rows[-1] else before.get(branch)
        assert row["gain"] == (over and pytest.approx(over / seconds))
        before |= {row["method"]: seconds} | ({} if branch else {"": seconds})
    assert above["how"] == "multiply-adds"
    assert all(1e7 < above[f"{what}_per_second"] < 1e13 for what in work)
    numbers = [row["number"] for row in found["rows"] if not row.get("instead_of")]
    assert numbers == [*range(1, len(numbers) + 1)]
    assert file.read_text("utf-8").lstrip().startswith("<?xml")


def test_what_takes_long_or_fails_is_left_out(data, opencl, monkeypatch):
    """By what `too_long` says with the command's limit; the others are timed."""
    prepared = families.OnDevice.prepared

    def too_long(of, dims, limit, seconds):
        assert seconds((8, 8, 8)) > 0
        return f"would take about {limit} s" if dims[0] > 40 else None

    def or_fails(ground, name, block=None):
        if name == "rows2" and ground.dims[0] == 40:
            raise MethodNotAvailable("no such memory")
        return prepared(ground, name, block)

    monkeypatch.setattr(families, "too_long", too_long)
    monkeypatch.setattr(families.OnDevice, "prepared", or_fails)
    found = data("ladder", "matmul", "--device", opencl, "--sizes", "40,48", "--limit", "0.05")
    printed = ladder.text(found)
    assert printed.count("naive is left out: would take about 0.05 s") == 1
    assert printed.count("rows2 is left out: no such memory") == 1


def test_a_rung_that_is_wrong_is_told(opencl, monkeypatch):
    right = FAMILIES["matvec"]
    wrong = right._replace(expected=lambda a, repeats: {"y": a["A"] @ a["x"] + 1})
    monkeypatch.setitem(FAMILIES, "matvec", wrong)
    with pytest.raises(ValueError, match="naive's y is wrong by"):
        ladder.ladder("matvec", device=opencl)


def test_loops_on_some_threads(data, monkeypatch):
    monkeypatch.setattr(numba.config, "NUMBA_NUM_THREADS", 2)
    asked = ("--device", "cpu", "--sizes", "16", "--threads", "1,2", "--dtype", "float64")
    found = data("ladder", "solve_poisson", *asked)
    rows = [(row["method"], row.get("threads")) for row in found["rows"]]
    assert rows == [("sequential", None), ("parallel", 1), ("parallel", 2), ("cpu's best", None)]
    assert "parallel, 2 threads" in ladder.text(found)
    for function, of in FAMILIES.items():
        if of.ladder.family not in LADDERS:
            with pytest.raises(ValueError, match="has no loops on 'cpu'"):
                ladder.ladder(function, device="cpu")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("ladder", "matmul", "--sizes", "0"), "sizes must be 1 or more, got 0"),
        (("ladder", "kmeans", "--dims", "3,4"), "--dims are N,D,K, alone, got 3,4"),
        (("ladder", "matmul", "--device", "cpu", "--threads", "0"), "threads are of device 'cpu'"),
        (("sweep", "matmul"), "required: --method"),
        (("sweep", "matmul", "--method", "sequential"), "'naive'"),
        (("sweep", "matmul", "--method", "naive", "--device", "cpu"), "'cpu' runs none"),
        (("probe", "banks", "--device", "cpu"), "banks is a kernel of a device, and 'cpu' runs"),
    ],
)
def test_wrong_arguments(run, words, said):
    code, _, err = run(*words)
    assert code == cli.USAGE
    assert said in err


# -- Sweeps ----------------------------------------------------------------------------------------


def test_a_sweep_times_every_legal_block(data, opencl, tmp_path, monkeypatch):
    few, file = [(8, 1, 1), (8, 2, 1), (16, 1, 1), (32, 4, 1)], tmp_path / "a.svg"
    blocks = tuple(families.Block(*block) for block in few)
    monkeypatch.setattr(type(FAMILIES["matmul"].ladder), "blocks", lambda *_: blocks)
    asked = ("--method", "naive", "--device", opencl, "--sizes", "20,30", "--plot", str(file))
    found = data("sweep", "matmul", *asked)
    for size, n in zip(found["sizes"], (20, 30), strict=True):
        seconds = {tuple(one["block"]): one["seconds"] for one in size["blocks"]}
        assert list(seconds) == few
        for one in size["blocks"]:
            x, y, _ = one["block"]
            assert one["grid"] == [-(-n // x), -(-n // y)]
            assert one["flops_per_second"] == pytest.approx(2 * n**3 / one["seconds"])
        assert tuple(size["best"]) == min(seconds, key=seconds.get)
        assert size["chosen"] == [32, 4, 1]
        far = seconds[32, 4, 1] / min(seconds.values()) - 1
        assert size["distance"] == pytest.approx(far)
    assert file.read_text("utf-8").lstrip().startswith("<?xml")
    assert ladder.text_of_blocks(found, every=True).count("its own |") == 2


def test_groups_are_those_of_figure_3_7():
    """Of groups of equal n, then of equal parameters too, each time the one that leaves least."""
    times = {(1, 8): 4.0, (1, 16): 6.0, (2, 8): 1.0, (2, 16): 2.0}
    blocks = [{"grid": [gx, 1], "block": [x, 1, 1], "seconds": s} for (gx, x), s in times.items()]
    sizes = [{"dims": [8], "blocks": [*blocks, {"block": [64, 1, 1], "reason": "no"}]}]
    sizes.append({"dims": [16], "blocks": [{**one, "seconds": 3.0} for one in blocks[:1]]})
    found = ladder.groups(sizes)
    assert [one["by"][1:] for one in found[:2]] == [[], ["grid x"]]
    percents = [250, 100 * ((6 / 4 - 1) + (2 / 1 - 1) + 0) / 3, 0.0, 0.0]
    assert [one["percent"] for one in found] == pytest.approx(percents)
    assert found[2]["by"] == ["n", "grid x", "block x"]
