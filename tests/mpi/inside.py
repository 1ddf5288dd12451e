"""As the contract's ``cases.py``, what concerns the inside: ``inside.py FILE FOLDER``."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

sys.path.append(str(Path(__file__).parents[1] / "contract" / "mpi"))

from cases import write

import hetero.mpi
from hetero.profile import inventory


def planned():
    """A use block that names another operation's method, where a solve is planned."""
    alone, inventory.is_host_alone = inventory.is_host_alone, lambda device: False
    with hetero.use(method="blas"):
        how = hetero.mpi.solve_poisson(np.ones((3, 4)), return_info=True)[1]
    inventory.is_host_alone = alone
    return how["converged"]


if __name__ == "__main__":
    write([planned])
