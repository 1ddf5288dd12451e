"""How much time a calibration may take."""

from hetero.ops.cases import Budget

QUICK = Budget(
    quick=True,
    point=0.004,
    longest=0.03,
    step=8.0,
    solve_step=64.0,
    largest_solve=2**22,
    held_out=8,
    largest_transfer=2**27,
    link_step=2.0,
)
FULL = Budget(
    quick=False,
    point=0.005,
    longest=0.02,
    step=1.0,
    solve_step=1.0,
    largest_solve=2**24,
    held_out=16,
    largest_transfer=2**30,
    link_step=2.0,
)
