"""Conjugate gradients for small grids: many iterations in one cooperative launch."""

from __future__ import annotations

from hetero.devices.cuda.cooperative import CooperativeKernel
from hetero.kernels.cg import plan_stencil as plan_cg_stencil
from hetero.ops.krylov.cg_loops import Loop
from hetero.ops.krylov.cg_matrices import grid_of
from hetero.ops.krylov.cg_vectors import Vectors, new_records, read_record
from hetero.ops.linear_systems.types import Stencil


class Persistent(Loop):
    """A stencil on a 2-D grid whose vectors fit in the registers of one device.

    Use `persistent`, which knows whether they do. ``kernel`` has ``launch(grid, arguments)``.
    """

    # A launch takes 20 us to start, load and store; it ends by itself when the iteration does.
    first_batch = 64
    batch_seconds = 4e-3

    def __init__(
        self,
        vectors: Vectors,
        stencil: Stencil,
        plan: plan_cg_stencil.Cooperative,
        kernel: CooperativeKernel,
    ) -> None:
        super().__init__(vectors.exchange)
        (part,), dtype = self.parts, vectors.dtype
        self._part = part
        self._plan = plan.launch
        self._kernel = kernel
        self._done = self._turn = 0
        grid = grid_of(stencil, stencil.shape[0])
        part.allocate(grid.rows * grid.plane * dtype.itemsize, "r", "p0", "p1")
        part.allocate(8 * 4 * plan.launch.grid, "partial0", "partial1")
        part.allocate(16, "arrivals")
        residual, _ = plan_cg_stencil.stencil(
            grid,
            dtype=dtype.name,
            x_halo=0,
            r_start=0,
            p_start=0,
            pitch=grid.plane,
            scaled=False,
            multiprocessors=part.device.multiprocessors,
            block_limit=part.device.block_limit,
            tuning=vectors.tuning,
        )
        part.allocate(16 * residual.grid, "residual sums")
        self._blocks = [residual.grid]
        self._residual = part.bind(residual, p="p1", inverse="x", partial="residual sums")

    def residual(self) -> tuple[float, float]:
        self._part.start(self._residual)
        r_r, b_b = self.exchange.total("residual sums", self._blocks, 2)
        return float(r_r), float(b_b)

    def start(self, target: float) -> None:
        new_records(self.parts, -1, target)
        self._done = -1  # the first step only leads to iterate 0

    def advance(self, to: int) -> None:
        if to > self._done:
            self._part.device.fill(self._part.buffers["arrivals"], 4)
            arguments = self._part.values(
                self._plan,
                iterations=to - self._done,
                before=f"record{self._turn}",
                after=f"record{1 - self._turn}",
            )
            self._kernel.launch(self._plan.grid, arguments)
            self._done = to
            self._turn = 1 - self._turn

    def record(self) -> tuple[int, int]:
        return read_record(self._part, f"record{self._turn}")


def persistent(vectors: Vectors, stencil: Stencil) -> Persistent | None:
    """The iteration in cooperative launches; None if grid, device or software do not allow it."""
    (part,) = vectors.parts
    device = part.device
    plan = plan_cg_stencil.cooperative(
        grid_of(stencil, stencil.shape[0]),
        dtype=vectors.dtype.name,
        multiprocessors=device.multiprocessors,
        shared_limit=device.shared_limit,
        block_limit=device.block_limit,
        tuning=vectors.tuning,
    )
    if plan is None:
        return None
    launch = plan.launch
    kernel = device.cooperative(
        launch.source, launch.kernel, launch.defines, launch.block, plan.shared_bytes
    )
    if kernel is None or kernel.most_blocks < launch.grid:
        return None
    return Persistent(vectors, stencil, plan, kernel)
