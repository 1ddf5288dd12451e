"""The former name of multigrid's grids."""

from hetero.ops.solvers import multigrid as grids

__all__ = ["grids"]
