"""The devices beside the CPU: the kinds there are, those at hand, and which of them work.

A kind of device is a module that subclasses `hetero.devices.base.Device` and has a function
``find()``, and a line of `kinds.KINDS`. Methods for it are rows that name the kind, or `PORTABLE`
(`hetero.registry.register_method`). What a kind can do is a field of `kinds.Traits`.
"""

from __future__ import annotations

import os
from functools import partial

from hetero.devices.kinds import KINDS
from hetero.devices.registry import Registry, of_module

here = Registry({kind: partial(of_module, kind) for kind in KINDS})

available = here.available
only_host = here.only_host
believed = here.believed
proven = here.proven
broken = here.broken
newly_broken = here.newly_broken
everything = here.everything
missing = here.missing
get = here.get
not_available = here.not_available
disabled = here.disabled
inherited = here.inherited
failures = here.failures
count_failure = here.count_failure
troubles = here.troubles
was_short = here.was_short
reset_failures = here.reset_failures

os.register_at_fork(after_in_child=here.after_fork)
