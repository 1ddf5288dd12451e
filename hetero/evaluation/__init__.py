"""How good the choices are: verify, bench, demo and their reports."""
