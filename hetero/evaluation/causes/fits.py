"""How well swept times follow from input parameters, and from execution metrics: what figure 3.7 of
A. White, "Modeling and Optimization of Parallel Matrix-based Computations on GPU", 2013, is for."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hetero.evaluation.report import markdown

PICTURE = (10.0, 5.0)  # inches
_SAME = ("operation", "method", "dtype", "name")
_INPUTS = ("x", "y", "results of a thread")
_METRICS = {  # of equations 3.1 to 3.11, and what takes the place of 3.2 to 3.6
    "active threads": "active_threads",
    "waves": "waves",
    "fragmented threads": "fragmented_threads",
    "wavefronts of the cache": "cache",
    "of shared memory": "banks",
}


def read(files: Sequence[str], operation: str) -> list[dict[str, Any]]:
    """Sweeps of an operation that `hetero sweep --json` printed; ValueError for other files."""
    result = []
    for file in files:
        try:
            one = json.loads(Path(file).read_text("utf-8"))
            _samples(one)
            if {key: one[key] for key in _SAME}["operation"] != operation:
                raise ValueError(f"it is of {one['operation']}")
        except (ValueError, KeyError, TypeError) as error:
            text = f"{file} has no sweep of {operation} as hetero sweep --json prints it"
            raise ValueError(f"{text}: {error!r}") from None
        result.append(one)
    return result


def _samples(sweep: dict[str, Any]) -> list[tuple[dict[str, float], dict[str, float], float]]:
    """Input parameters, metrics and seconds of each block that ran; ValueError for no numbers."""
    result = []
    for one in sweep["shapes"]:
        if "seconds" in one and one.get("metrics"):
            inputs = dict(zip(_INPUTS, one["shape"], strict=False)) | {"n": sweep["size"]}
            known = {**one["metrics"], **one["metrics"].get("wavefronts", {})}
            metrics = {name: known.get(key, 0.0) for name, key in _METRICS.items()}
            both = ({name: float(x) for name, x in of.items()} for of in (inputs, metrics))
            result.append((*both, float(one["seconds"])))
            if not 0.0 < result[-1][-1] < math.inf or [*inputs] != [*result[0][0]]:
                raise ValueError(f"{one['shape']} took {one['seconds']!r} s")
    return result


def fits(sweeps: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Fit products of powers of the input parameters, and of the metrics, to the times of sweeps.

    Each time is predicted by the fit to all others, so that more powers are no advantage.

    Returns
    -------
    dict
        operation, method, dtype, name, sizes, measured (seconds), fits: of "input parameters" and
        "execution metrics" each powers, predicted (seconds), error (mean factor off, less 1) and
        correlation of the logarithms.

    Raises
    ------
    ValueError
        If the sweeps are not of one kernel and device, or too few blocks ran.
    """
    for key in _SAME:
        if len(values := {sweep[key] for sweep in sweeps}) > 1:
            raise ValueError(f"all sweeps must be of one {key}, got {', '.join(sorted(values))}")
    samples = [sample for one in sweeps for sample in _samples(one)]
    if not samples:
        raise ValueError("no block of the sweeps has its time and its metrics")
    inputs, metrics, seconds = zip(*samples, strict=True)
    if min(seconds) == max(seconds):
        raise ValueError(f"all blocks of the sweeps took {seconds[0]} s: nothing follows from that")
    return {
        **{key: sweeps[0][key] for key in _SAME},
        "sizes": sorted({sweep["size"] for sweep in sweeps}),
        "measured": [*seconds],
        "fits": {
            "input parameters": _fit(inputs, seconds),
            "execution metrics": _fit(metrics, seconds),
        },
    }


def _fit(values: Sequence[dict[str, float]], seconds: Sequence[float]) -> dict[str, Any]:
    columns = {name: np.log([max(one[name], 1.0) for one in values]) for name in values[0]}
    columns = {name: column for name, column in columns.items() if np.ptp(column) > 0.0}
    if len(seconds) < len(columns) + 3:
        raise ValueError(f"{len(seconds)} blocks are too few for {len(columns)} powers")
    X, y = np.column_stack([np.ones(len(seconds)), *columns.values()]), np.log(seconds)
    inverse = np.linalg.pinv(X)
    leverage = np.minimum(np.einsum("ij,ji->i", X, inverse), 1.0 - 1e-9)
    left_out = (y - X @ (inverse @ y)) / (1.0 - leverage)  # of the fit without the sample itself
    predicted = y - left_out
    return {
        "powers": dict(zip(columns, map(float, inverse[1:] @ y), strict=True)),
        "predicted": np.exp(predicted).tolist(),
        "error": float(np.exp(np.abs(left_out).mean()) - 1.0),
        "correlation": float(np.corrcoef(predicted, y)[0, 1]),
    }


def text(result: dict[str, Any]) -> str:
    """Both fits as a table."""
    cells = [
        [f"{n}: {', '.join(fit['powers'])}", f"{fit['correlation']:.3f}", f"{fit['error']:.1%}"]
        for n, fit in result["fits"].items()
    ]
    head = ("times by", "correlation", "mean error")
    title = f"{_title(result)}: each of {len(result['measured'])} times predicted from the others"
    return "\n".join([title, "", *markdown(head, cells)])


def _title(result: dict[str, Any]) -> str:
    sizes = ", ".join(map(str, result["sizes"]))
    what = f"{result['operation']} {result['dtype']} by {result['method']}"
    return f"{what} on {result['name']}, n = {sizes}"


def draw(result: dict[str, Any], picture: Any) -> None:
    """Draw predicted over measured times, a panel for each fit, on a figure of matplotlib's."""
    measured = result["measured"]
    ends = min(measured), max(measured)
    for axes, (name, fit) in zip(picture.subplots(1, 2), result["fits"].items(), strict=True):
        axes.plot(ends, ends, color="black", linewidth=0.8)
        axes.plot(measured, fit["predicted"], linestyle="", marker="o", markersize=3)
        axes.set(xscale="log", yscale="log", xlabel="measured, s", ylabel="predicted, s")
        axes.set_title(f"{name}\ncorrelation {fit['correlation']:.3f}, error {fit['error']:.1%}")
    picture.suptitle(_title(result))
