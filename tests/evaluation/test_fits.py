"""`hetero sweep --metrics`: times by input parameters, and by execution metrics."""

from __future__ import annotations

import json

import numpy as np
import pytest
import runtimes

from hetero import cli, registry
from hetero.evaluation import report, sweep
from hetero.evaluation.causes import fits


def made_up(size=64, **changed):
    """A sweep whose times follow from waves and wavefronts, not from the shape's powers."""
    shapes = []
    for x in (8, 16, 32, 64):
        for y in (1, 2, 4, 8):
            waves, reads = -(-size * 7 // (x * y)), 100.0 * max(1, 32 // x)
            metrics = {"launches": 1, "active_threads": x * y, "waves": waves}
            metrics |= {"fragmented_threads": 0, "wavefronts": {"cache": reads, "banks": 0.0}}
            seconds = 1e-6 * waves**0.5 * reads
            shapes.append({"shape": [x, y, 1], "seconds": seconds, "metrics": metrics})
    shapes.append({"shape": [128, 1, 1], "reason": "too large"})
    same = {"operation": "matmul", "method": "tuned", "dtype": "float32", "name": "card"}
    return {**same, "size": size, "shapes": shapes, **changed}


def test_times_that_follow_from_metrics_are_predicted_by_them():
    found = fits.fits([made_up()])
    inputs, metrics = found["fits"]["input parameters"], found["fits"]["execution metrics"]
    assert [*inputs["powers"]] == ["x", "y"]  # the others are the same for all
    assert metrics["powers"]["waves"] == pytest.approx(0.5)
    assert metrics["powers"]["wavefronts of the cache"] == pytest.approx(1.0)
    assert metrics["error"] < 1e-6
    assert metrics["correlation"] == pytest.approx(1.0)
    assert metrics["predicted"] == pytest.approx(found["measured"])
    assert inputs["error"] > 0.05
    assert inputs["correlation"] < 0.995
    assert len(found["measured"]) == 16
    both = fits.fits([made_up(64), made_up(256)])
    assert both["sizes"] == [64, 256]
    assert "n" in both["fits"]["input parameters"]["powers"]


def test_a_time_is_predicted_by_the_fit_to_the_others():
    """As a fit without it predicts it."""
    one = made_up()
    one["shapes"][5]["seconds"] *= 3
    rows = [(s["shape"], s["seconds"]) for s in one["shapes"] if "seconds" in s]
    X = np.array([[1.0, *np.log(shape[:2])] for shape, _ in rows])
    y = np.log([seconds for _, seconds in rows])
    kept = np.arange(len(y)) != 5
    powers, *_ = np.linalg.lstsq(X[kept], y[kept], rcond=None)
    predicted = fits.fits([one])["fits"]["input parameters"]["predicted"]
    assert predicted[5] == pytest.approx(float(np.exp(X[5] @ powers)))


def test_a_sweep_has_the_metrics_of_each_block(monkeypatch):
    """Of a device whose driver tells registers, or none."""
    device = runtimes.opencl_device().name
    found = sweep.sweep(registry.operation("matmul"), "naive", 16, "float32", device=device)
    ran = [one for one in found["shapes"] if "seconds" in one]
    for one in ran:
        x, y, _ = one["shape"]
        metrics = one["metrics"]
        blocks = -(-16 // x) * -(-16 // y)
        assert metrics["launches"] == 1
        assert 0 < metrics["active_threads"] <= blocks * x * y
        assert metrics["waves"] == -(-blocks // (metrics["active_threads"] // (x * y)))
        rows = max(1.0, 32 / x)
        line = max(1.0, min(x, 32) / 32)
        assert metrics["wavefronts"]["cache"] == pytest.approx(16**3 / 32 * (rows + line))
    assert fits.fits([found])["fits"]["execution metrics"]["correlation"] > 0.0


def test_saved_sweeps_are_fitted_and_drawn(run, tmp_path):
    files = [tmp_path / "a.json", tmp_path / "b.json"]
    for file, size in zip(files, (64, 256), strict=True):
        file.write_text(json.dumps(made_up(size)), "utf-8")
    command = ["sweep", "matmul", "--metrics", *map(str, files)]
    code, out, _ = run(*command, "--markdown")
    assert code == cli.DONE
    assert "n = 64, 256: each of 32 times" in out
    assert out.count("\n| ") == 1 + 2
    code, out, _ = run(*command, "--json")
    assert json.loads(out)["fits"].keys() == {"input parameters", "execution metrics"}
    pytest.importorskip("matplotlib")
    picture = report.figure(*fits.PICTURE)
    fits.draw(fits.fits([made_up()]), picture)
    for axes in picture.axes:
        assert len(axes.lines[1].get_xdata()) == 16
    code, _, _ = run(*command, "--plot", str(tmp_path / "a.svg"))
    assert (code, (tmp_path / "a.svg").exists()) == (cli.DONE, True)


def test_what_cannot_be_fitted_is_said(run, tmp_path):
    other = tmp_path / "other.json"
    lacking = {key: value for key, value in made_up().items() if key != "shapes"}
    wrong = [lacking, {"shapes": [], "size": 1}, {**made_up(), "size": "many"}]
    blocks = {
        "seconds": (0.0, -1.0, float("nan"), "long"),
        "shape": ([8],),
        "metrics": ({"waves": "a"},),
    }
    for key, values in blocks.items():
        for value in values:
            wrong.append(made_up())
            wrong[-1]["shapes"][3][key] = value
    for content in ("[]", "{}", "nonsense", *map(json.dumps, wrong)):
        other.write_text(content, "utf-8")
        code, _, err = run("sweep", "matmul", "--metrics", str(other))
        assert code == cli.USAGE
        assert "other.json has no sweep of matmul as hetero sweep --json prints it" in err
    other.write_text(json.dumps(made_up()), "utf-8")
    code, _, err = run("sweep", "matvec", "--metrics", str(other))
    assert (code, "no sweep of matvec" in err and "it is of matmul" in err) == (cli.USAGE, True)
    code, _, err = run("sweep", "matmul", "--metrics", str(tmp_path / "missing"))
    assert code == cli.FAILED
    code, _, err = run("sweep", "matmul", "--metrics")
    assert (code, "--method names the rung" in err) == (cli.USAGE, True)
    with pytest.raises(ValueError, match="all sweeps must be of one method, got row, tuned"):
        fits.fits([made_up(), made_up(method="row")])
    few = made_up()
    for number, message in ((4, "4 blocks are too few for 2"), (5, "5 .* for 3 powers"), (6, None)):
        kept = [few["shapes"][i] for i in (0, 1, 4, 5, 10, 15)[:number]]
        if message is not None:
            with pytest.raises(ValueError, match=message):
                fits.fits([{**few, "shapes": kept}])
        else:
            assert len(fits.fits([{**few, "shapes": kept}])["measured"]) == 6
    alike = [{**one, "seconds": 1e-3} for one in few["shapes"][:-1]]
    with pytest.raises(ValueError, match=r"all blocks of the sweeps took 0\.001 s"):
        fits.fits([{**few, "shapes": alike}])
    with pytest.raises(ValueError, match="no block"):
        fits.fits([{**few, "shapes": few["shapes"][-1:]}])
