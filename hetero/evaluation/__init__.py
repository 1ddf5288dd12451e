"""How good the choices are: verify, bench, demo and their reports."""

from hetero.ops import functions  # noqa: F401  # every operation is registered
