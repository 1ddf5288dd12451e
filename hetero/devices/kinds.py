"""The kinds of devices, and what is known of each before its module is loaded."""

from __future__ import annotations

from typing import NamedTuple


class Traits(NamedTuple):
    """What a kind of device can do.

    Attributes
    ----------
    portable : bool
        Its dialect compiles the portable kernels (`hetero.kernels.prelude`).
    own_clock : bool
        Events of its own tell how long its work takes, however busy the host is.
    warps : bool
        32 threads run in step and read each other's registers.
    cuda_libraries : bool
        CuPy, torch and CUDA's own libraries take its arrays.
    """

    portable: bool = False
    own_clock: bool = False
    warps: bool = False
    cuda_libraries: bool = False


KINDS = {
    "cuda": Traits(portable=True, own_clock=True, warps=True, cuda_libraries=True),
    "opencl": Traits(portable=True),
}
PORTABLE = tuple(kind for kind, traits in KINDS.items() if traits.portable)


def traits(kind: str) -> Traits:
    """Those of a kind; of the CPU, none."""
    return KINDS.get(kind, Traits())
