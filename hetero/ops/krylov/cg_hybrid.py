"""Conjugate gradients in turn: A p on a device, vectors and scalars on the CPU.

After A. White, "Modeling and Optimization of Parallel Matrix-based Computations on GPU", Auburn
University, 2013, section 5.2: the matrix goes to the device once; in every iteration p follows it,
and A p comes back. The iteration is that of `cg_cpu`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from hetero.devices.base import Device
from hetero.errors import DeviceError
from hetero.ops.krylov import cg_cpu, cg_matrices
from hetero.ops.krylov.cg_products import Product
from hetero.ops.krylov.cg_vectors import Vectors
from hetero.ops.linear_systems.types import Csr, Dense, DeviceFailed, Outcome, Stencil


def solve(
    device: Device,
    system: Stencil | Csr | Dense,
    b: np.ndarray,
    x: np.ndarray,
    *,
    callback: Callable[[np.ndarray], object] | None = None,
    **others: Any,
) -> Outcome:
    """Solve A x = b; see `cg_cpu.solve` for ``others`` and for what it returns.

    Parameters
    ----------
    device : Device
    system : Stencil, Csr or Dense
        Arrays on the host are uploaded for this call.
    b, x : (n,) ndarray of float32 or float64
        Right-hand side; start in, result out.
    callback : callable, optional
        Called after each iteration with x.

    Raises
    ------
    DeviceFailed
        If the device fails after an iteration; it carries the x of the last one.
    DeviceError
        If it fails before.
    """
    last: np.ndarray | None = None
    done = 0

    def after_each(iterate: np.ndarray) -> None:
        nonlocal last, done
        last, done = iterate, done + 1
        if callback is not None:
            callback(iterate)

    try:
        with device.active():
            vectors = Vectors((device,), system, b, x, b.dtype, None)
            matrix = cg_matrices.of_system(vectors, system, diagonal=False, plain=True)
            (part,) = matrix.parts

            def times(p: np.ndarray, q: np.ndarray) -> None:
                part.upload(p, "p")
                matrix.times()
                part.download("q", q)

            product = Product(times)
            return cg_cpu.solve(None, b, x, callback=after_each, product=product, **others)
    except DeviceError as error:
        if last is None:
            raise
        raise DeviceFailed(error, last.copy(), done) from error
