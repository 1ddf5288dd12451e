"""The operations' public functions, with the methods that are priced for them."""

import typing as _typing

# isort: off
from hetero.ops.products.public import matmul as matmul, matvec as matvec
from hetero.ops.products import methods as _products  # noqa: F401
from hetero.ops.convolve2d import convolve2d as convolve2d
from hetero.ops.solvers.cg import solve_cg as solve_cg
from hetero.ops.solvers.poisson import solve_poisson as solve_poisson
from hetero.ops.kmeans import kmeans as kmeans

if _typing.TYPE_CHECKING:  # what operations make public in addition to their functions
    from hetero.ops.kmeans.estimator import KMeans as KMeans
