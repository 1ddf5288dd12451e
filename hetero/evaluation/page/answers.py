"""What the page opens with: from where a device pays, how far predictions are off, how good the
choices were, and the command that comes next."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from statistics import fmean, median
from typing import Any

from hetero import registry
from hetero.calibration.measure import timing
from hetero.evaluation import report
from hetero.evaluation.break_even import break_even
from hetero.evaluation.page.drawing import whole
from hetero.evaluation.page.figures import fastest
from hetero.evaluation.page.markup import heading, paragraph, table
from hetero.evaluation.page.methods import Curve, Devices
from hetero.host.compiled import loops
from hetero.ops.over_sizes import Axis
from hetero.pricing.plan import CPU
from hetero.profile import Profile
from hetero.profile.constants import OFF
from hetero.registry.models import ModelKey

_COSTLY = 1.1  # chosen over best, geometric mean, from which on new constants are worth their time
_VERIFY = "`hetero verify`, run on that machine, measures calls."
Verified = Mapping[str, Mapping[str, Any]]


def pays(curves: Sequence[Curve], axis: Axis) -> str:
    """From which size on a device is faster than the CPU, copies included; without a device, which
    method of the CPU's is the fastest."""
    here, there = ([c for c in curves if (c.device == CPU) is on] for on in (True, False))
    if not here or not there:
        return fastest(curves, axis, short=True)
    cpu, device = _least(here), _least(there)
    turn = break_even(cpu, device, axis.sizes())
    if turn.extent is None:
        return f"not up to {axis.name} = {whole(turn.largest)}"
    gain = (cpu(turn.largest) or math.nan) / (device(turn.largest) or math.nan)
    begin = "at every size" if turn.extent == turn.smallest else f"from {axis.name} = {turn.extent}"
    return f"{begin}, {report.rounded(gain, 2)} times as fast at {whole(turn.largest)}"


def _least(curves: Iterable[Curve]) -> Callable[[int], float | None]:
    curves = [*curves]
    return lambda n: min((t for c in curves if (t := c.at(n)) is not None), default=None)


def tiles(
    constants: Profile,
    devices: Devices,
    where: Sequence[tuple[str, str]],
    verified: Verified,
    command: tuple[str, str],
) -> str:
    """All four; markup.

    ``where`` has a row for each operation, by `pays`; ``command`` what to run next, and why.
    """
    several = any(n != CPU and not i.get("is_host_cpu") for n, i in devices.items())
    title = "From where a GPU pays" if several else "No GPU here: the fastest on the CPU"
    page = "<code>hetero report --profile h200 h200.html</code>"
    other = "" if several else f"<p>From where one would pay: {page}</p>"
    parts = [
        heading(2, title) + table("", ("", ""), where, words=(0, 1)) + other,
        heading(2, "How far predictions are off") + _errors(verified, constants),
        heading(2, "Time of the choice over the best") + _ratio(verified),
        heading(2, "Next") + _big(f"<code>{escape(command[0])}</code>") + paragraph(command[1]),
    ]
    return '<div class="tiles">' + "".join(f"<div>{one}</div>" for one in parts) + "</div>"


def _big(markup: str) -> str:
    return f'<p class="big">{markup}</p>'


def _calls(verified: Verified) -> int:
    return sum(one["problems"] for one in verified.values())


def _random(verified: Verified) -> str:
    """Their number, and of which operations they are."""
    names = dict.fromkeys(name.partition(",")[0] for name in verified)
    return f"{_calls(verified)} random calls of {', '.join(names)}"


def _errors(verified: Verified, constants: Profile) -> str:
    """Of the methods that were chosen, in calls that were measured; else of the fitted models."""
    named = {name: one for name, one in verified.items() if "chosen_error" in one}
    known = named.values()
    if calls := _calls(named):
        mean = sum(one["problems"] * one["chosen_error"]["mean"] for one in known) / calls
        worst = max(one["chosen_error"]["worst"] for one in known)
        text = f"in the mean of {_random(named)}, measured; {worst:.0%} at worst."
        return _big(f"{mean:.0%}") + paragraph(text)
    of_models = [error["mean"] for _, error in _models(constants)]
    if not of_models:
        return _big("not known") + paragraph(_VERIFY)
    text = f"in the median of {len(of_models)} models, at shapes that were not fitted;"
    return _big(f"{median(of_models):.0%}") + paragraph(f"{text} {_VERIFY}")


def _models(constants: Profile) -> Iterable[tuple[ModelKey, Mapping[str, float]]]:
    """Those of methods, with their errors where these are known."""
    for text, error in constants.residuals().items():
        if text.count("|") == len(ModelKey._fields) - 1 and "mean" in error:
            yield ModelKey.parse(text), error


def _mean_ratio(verified: Verified) -> float:
    """Geometric mean over all calls."""
    means = [math.log(one["chosen_over_best"]["geometric_mean"]) for one in verified.values()]
    return math.exp(fmean(means, [one["problems"] for one in verified.values()]))


def _ratio(verified: Verified) -> str:
    if not _calls(verified):
        return _big("not measured") + paragraph(_VERIFY)
    worst = max(one["chosen_over_best"]["worst"] for one in verified.values())
    text = f"geometric mean of {_random(verified)}; {worst:.3g} at worst."
    return _big(f"{_mean_ratio(verified):.3f}") + paragraph(text)


def advice(
    constants: Profile, named: str | None, verified: Verified, is_compared: bool
) -> tuple[str, str]:
    """The command that comes next, and why.

    ``named`` is the profile of another machine, None for this one.
    """
    data = constants.data
    if named is not None:
        why = "prices the calls of your script, as it runs here, on that machine."
        return f"hetero advise --on {shlex.quote(named)} script.py", why
    if not data.get("fingerprint"):
        return "hetero calibrate", "This machine is not calibrated; its constants are a guess."
    if not all(map(loops.is_ready, loops.every())):
        return "hetero compile", "Not all of the CPU's loops are compiled."
    if (load := data.get("load")) and not timing.is_trusted(load):
        return "hetero calibrate", "Other load disturbed the last calibration: run it when idle."
    models = {key.operation for key, error in _models(constants) if not error["mean"] < OFF}
    if off := [one.function for one in registry.operations() if one.name in models]:
        options = " ".join(f"--only {name}" for name in off)
        return f"hetero calibrate {options}", "Predictions of these are off by a factor."
    if not _calls(verified):
        return "hetero verify", "No choice was measured yet."
    if _mean_ratio(verified) > _COSTLY:
        return "hetero calibrate", "The choices cost more than they should."
    if not is_compared:
        why = "adds NumPy, SciPy and scikit-learn to the pictures."
        return "hetero report --compare report.html", why
    return "python -m hetero.accel script.py", "All is measured: runs a script with these choices."
