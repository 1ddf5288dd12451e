"""How much time a calibration may take."""

from hetero.runtime.cases import Budget

QUICK = Budget(
    quick=True,
    point=0.004,
    longest=0.03,
    step=2.0,
    device_step=4.0,
    held_out=8,
    largest_transfer=2**27,
    link_step=2.0,
)
FULL = Budget(
    quick=False,
    point=0.008,
    longest=0.2,
    step=2.0,
    device_step=2.0,
    held_out=32,
    largest_transfer=2**30,
    link_step=2.0,
)
