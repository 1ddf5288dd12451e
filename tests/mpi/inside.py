"""A solve on each rank, planned in a `use` block that names another operation's method."""

import numpy as np

import hetero.mpi
from hetero.profile import inventory

inventory.is_host_alone = lambda device: False
with hetero.use(method="blas"):
    assert hetero.mpi.solve_poisson(np.ones((3, 4)), return_info=True)[1]["converged"]
