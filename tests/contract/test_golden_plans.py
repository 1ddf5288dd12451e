"""Today's choices, judged by the seconds that the golden plans have for them.

A choice is compared with that of the golden plan, or with the least of what is left of it where the
chosen method is gone.
"""

from __future__ import annotations

import gzip
import json
import math
from collections import Counter, defaultdict
from functools import cache

import golden
import pytest

import hetero

MEAN, WORST, UNKNOWN = 1.01, 1.5, 0.02
# A method that does what several did: its name -> theirs.
MERGED = {"fft": ("fft", "overlap_save")}


@cache
def kept():
    return json.loads(gzip.decompress(golden.FILE.read_bytes()))


def seconds(name, known):
    """Those of a candidate by the golden plans; None where they have none."""
    method, on, device = name.partition(" on ")
    names = [f"{one}{on}{device}" for one in MERGED.get(method, (method,))]
    return min((known[one] for one in names if one in known), default=None)


@pytest.mark.parametrize("profile", golden.PROFILES)
def test_choices_lose_little_by_the_golden_seconds(profile):
    """Among the methods that are still there: those that any plan of the operation names."""
    chosen, offered = defaultdict(list), defaultdict(set)
    for key, operation, operands, options in golden.problems():
        if key not in kept()[profile]:
            continue
        plan = golden.whole(hetero.plan(operation, *operands, profile=profile, **options))
        names = {f"{c.method} on {c.device}" for c in plan.candidates}
        offered[operation] |= names
        chosen[operation].append((key, f"{plan.chosen.method} on {plan.chosen.device}"))
    assert sum(map(len, chosen.values())) == len(kept()[profile])
    for operation, plans in chosen.items():
        ratios, unknown = {}, Counter()
        for key, name in plans:
            before, known = kept()[profile][key]
            left = {one: seconds(one, known) for one in offered[operation]}
            least = min(value for value in left.values() if value is not None)
            if left[name] is None:
                unknown[name] += 1
            else:
                ratios[key] = left[name] / (left.get(before) or least)
        worst = max(ratios, key=ratios.get)
        mean = math.exp(sum(map(math.log, ratios.values())) / len(ratios))
        print(
            profile, operation, len(ratios), f"mean {mean:.4f}, worst {ratios[worst]:.2f}: {worst}"
        )
        assert mean <= MEAN
        assert ratios[worst] <= WORST, worst
        assert unknown.total() <= UNKNOWN * len(plans), unknown
