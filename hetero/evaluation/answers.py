"""What the page of `hetero report` opens with: from where a device pays, how far predictions are
off, how good the choices were, and the command that comes next."""

from __future__ import annotations

import functools
import math
import shlex
from collections.abc import Mapping, Sequence
from html import escape
from statistics import fmean, median
from typing import Any

from hetero import registry
from hetero.arrays import HOST
from hetero.calibration.measure import timing
from hetero.calling.planner import OtherMachine
from hetero.evaluation.break_even import break_even
from hetero.evaluation.markup import boxes, paragraph, table
from hetero.evaluation.report import rounded
from hetero.host.compiled import loops
from hetero.ops.over_sizes import Axis
from hetero.pricing.plan import CPU
from hetero.profile import Profile
from hetero.profile.constants import OFF
from hetero.registry import Operation
from hetero.registry.models import ModelKey

_COSTLY = 1.1  # chosen over best, geometric mean, from which on new constants are worth their time
_VERIFY = "`hetero verify`, run on that machine, measures calls."
Verified = Mapping[
    str, Mapping[str, Any]
]  # what was verified -> `hetero.evaluation.verify.summary`
Prices = dict[str, float]  # "method, device" -> seconds


def prices(operation: Operation, dims: Sequence[int], dtype: str, machine: OtherMachine) -> Prices:
    """Seconds of each candidate of a call on host operands, what it moves included; the fastest
    first."""
    plan = machine.plan(operation.from_dims(tuple(dims), dtype, HOST))
    possible = (c for c in plan.candidates if c.reason is None and c.seconds)
    return {f"{c.method}, {c.device}": c.seconds for c in possible}


def is_on_cpu(name: str) -> bool:
    """Whether a key of prices is of the CPU."""
    return name.endswith(f", {CPU}")


def pays(at: Mapping[int, Prices], axis: Axis, priced: Any) -> str:
    """From which size on a device is faster than the CPU, copies included; without a device, which
    methods of the CPU's are the fastest at the smallest and at the largest size.

    ``at`` has prices at some sizes, ``priced(size)`` gives those of any.
    """

    def least(size: int, on_cpu: bool) -> float | None:
        known = at.get(size) or priced(size)
        return min((t for name, t in known.items() if is_on_cpu(name) is on_cpu), default=None)

    if not all(any(least(n, on_cpu) for n in at) for on_cpu in (True, False)):
        fastest = (next(iter(at[n])).partition(",")[0] for n in (min(at), max(at)))
        return " to ".join(dict.fromkeys(fastest))
    cpu, device = (functools.partial(least, on_cpu=on_cpu) for on_cpu in (True, False))
    turn = break_even(cpu, device, sorted(at))
    if turn.extent is None:
        return f"not up to {axis.name} = {turn.largest}"
    gain = (cpu(turn.largest) or math.nan) / (device(turn.largest) or math.nan)
    begin = f"from {axis.name} = {turn.extent}" if turn.extent > turn.smallest else "at every size"
    return f"{begin}, {rounded(gain, 2)} times as fast at {turn.largest}"


def first(
    constants: Profile,
    named: str | None,
    has_device: bool,
    where: Sequence[tuple[str, str]],
    verified: Verified,
) -> str:
    """All four; markup.

    ``named`` is the profile of another machine, None for this one; ``where`` has a row for each
    operation, by `pays`.
    """
    title = "From where a GPU pays" if has_device else "No GPU here: the fastest on the CPU"
    other = paragraph("From where one would pay: `hetero report --profile h200 h200.html`")
    calls = sum(one["problems"] for one in verified.values())
    of_calls = f"{calls} random calls of {', '.join(n.partition(',')[0] for n in verified)}"
    errors = {key: e["mean"] for key, e in _of_methods(constants).items()}
    if calls:
        weights = [one["problems"] for one in verified.values()]
        means = [one["chosen_error"]["mean"] for one in verified.values()]
        worst = max(one["chosen_error"]["worst"] for one in verified.values())
        off = f"{fmean(means, weights):.0%}", f"in the mean of {of_calls}; {worst:.0%} at worst."
        logs = [math.log(v["chosen_over_best"]["geometric_mean"]) for v in verified.values()]
        ratio = math.exp(fmean(logs, weights))
        worst = max(one["chosen_over_best"]["worst"] for one in verified.values())
        best = f"{ratio:.3f}", f"geometric mean of {of_calls}; {worst:.3g} at worst."
    else:
        of_models = f"in the median of {len(errors)} models, at shapes that were not fitted;"
        known = f"{median(errors.values()):.0%}" if errors else "not known"
        off, ratio = (known, f"{of_models * bool(errors)} {_VERIFY}"), 1.0
        best = "not measured", _VERIFY
    answers = {
        title: [table("", ("", ""), where, words=(0, 1)), other * (not has_device)],
        "How far predictions are off": [paragraph(off[0], "big"), paragraph(off[1])],
        "Time of the choice over the best": [paragraph(best[0], "big"), paragraph(best[1])],
    }
    command, why = advice(constants, named, errors, calls, ratio)
    answers["Next"] = [paragraph(f"`{command}`", "big"), paragraph(why)]
    return boxes(f"<h2>{escape(head)}</h2>{''.join(text)}" for head, text in answers.items())


def _of_methods(constants: Profile) -> dict[ModelKey, Mapping[str, float]]:
    """The errors of models of methods, where these are known."""
    return {
        ModelKey.parse(text): error
        for text, error in constants.residuals().items()
        if text.count("|") == len(ModelKey._fields) - 1 and "mean" in error
    }


def advice(
    constants: Profile,
    named: str | None,
    errors: Mapping[ModelKey, float],
    calls: int,
    ratio: float,
) -> tuple[str, str]:
    """The command that comes next, and why: the first thing that is missing, or wrong."""
    if named is not None:
        why = "prices the calls of your script, as it runs here, on that machine."
        return f"hetero advise --on {shlex.quote(named)} script.py", why
    if not constants.data.get("fingerprint"):
        return "hetero calibrate", "This machine is not calibrated; its constants are a guess."
    if not all(map(loops.is_ready, loops.every())):
        return "hetero compile", "Not all of the CPU's loops are compiled."
    if (load := constants.data.get("load")) and not timing.is_trusted(load):
        return "hetero calibrate", "Other load disturbed the last calibration: run it when idle."
    models = {key.operation for key, mean in errors.items() if not mean < OFF}
    if off := [f" --only {one.function}" for one in registry.operations() if one.name in models]:
        return f"hetero calibrate{''.join(off)}", "Predictions of these are off by a factor."
    if not calls:
        return "hetero verify", "No choice was measured yet."
    if ratio > _COSTLY:
        return "hetero calibrate", "The choices cost more than they should."
    return "python -m hetero.accel script.py", "All is measured: runs a script with these choices."
