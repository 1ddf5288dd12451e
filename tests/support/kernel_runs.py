"""Launch plans run on an OpenCL device, on operands in every layout."""

from __future__ import annotations

import math

import numpy as np

from hetero import kernels
from hetero.kernels import Target

try:
    import pyopencl as cl
except ImportError:  # what needs it is skipped
    cl = None

DTYPES = ("float32", "float64")
MULTIPROCESSORS = 4


class Runner:
    """Runs plans on an OpenCL device, on arrays of shared virtual memory.

    Only there can an operand begin in the middle of an array, as it does on CUDA.
    """

    def __init__(self, device, *options):
        self.options = [*options, "-cl-std=CL1.2"]
        self.context = cl.Context([device])
        self.queue = cl.CommandQueue(self.context)
        self.kernels = {}

    def empty(self, size, dtype):
        return cl.csvm_empty(self.context, size, np.dtype(dtype))

    def kernel(self, launch):
        key = launch.source, launch.kernel, launch.defines
        if key not in self.kernels:
            text = kernels.kernel_text(launch.source, "opencl")
            options = [f"-D{name}={value}" for name, value in launch.defines]
            program = cl.Program(self.context, text)
            program.build([*options, *self.options], cache_dir=False)
            self.kernels[key] = cl.Kernel(program, launch.kernel)
        return self.kernels[key]

    def buffer(self, view):
        return cl.SVM(memory_of(view)[:1])

    def run(self, launch_plan, **given):
        """Run a plan on views of arrays made by `empty`, and on what kernels take beside them."""
        buffers = {
            name: self.buffer(value) if isinstance(value, np.ndarray) else value
            for name, value in given.items()
        }
        if launch_plan.workspace:
            partial = self.empty(launch_plan.workspace, next(iter(given.values())).dtype)
            partial.fill(np.nan)
            buffers["partial"] = self.buffer(partial)
        for launch in launch_plan.launches:
            kernel = self.kernel(launch)
            arguments = (
                buffers[a] if isinstance(a, str) else np.int64(a) for a in launch.arguments
            )
            kernel.set_args(*arguments)
            size = (launch.grid * launch.block,)
            cl.enqueue_nd_range_kernel(self.queue, kernel, size, (launch.block,))
        self.queue.finish()
        return buffers


class BufferRunner(Runner):
    """Runs plans on buffers just as long as the operands, which have no negative strides."""

    def empty(self, size, dtype):
        return np.empty(size, dtype)

    def buffer(self, view):
        flags = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR
        return cl.Buffer(self.context, flags, hostbuf=memory_of(view))

    def run(self, launch_plan, **given):
        buffers = super().run(launch_plan, **given)
        for name, value in given.items():
            if isinstance(value, np.ndarray):
                cl.enqueue_copy(self.queue, memory_of(value), buffers[name])


def memory_of(view):
    """Return the elements from a view's first to its last in memory, as one dimension."""
    last = sum((n - 1) * s for n, s in zip(view.shape, elements(view), strict=True))
    return np.lib.stride_tricks.as_strided(view, (max(last, 0) + 1,), (view.itemsize,))


# name -> (index into a padded array, axes swapped, row padding in elements)
LAYOUTS = {
    "row": ((1, 1), False, 0),
    "column": ((1, 1), True, 0),
    "row, padded": ((1, 1), False, 4),
    "column, padded": ((1, 1), True, 4),
    "row, odd padding": ((1, 1), False, 3),
    "column, odd padding": ((1, 1), True, 3),
    "row, strided": ((2, 3), False, 1),
    "column, strided": ((3, 2), True, 1),
    "row, reversed": ((1, -1), False, 0),
    "column, reversed": ((-1, -2), True, 2),
    "row, broadcast": ((0, 1), False, 0),
    "column, broadcast": ((1, 0), False, 0),
}

WRITABLE = [name for name in LAYOUTS if "broadcast" not in name]


def operand(runner, batch, rows, cols, dtype, layout="row", offset=0, shared_batch=False):
    """Return a (batch, rows, cols) view of an array that is NaN all around it."""
    (row_step, col_step), swapped, padding = LAYOUTS[layout]
    if swapped:
        rows, cols, row_step, col_step = cols, rows, col_step, row_step
    stored_rows = max(1, rows * abs(row_step))
    width = max(1, cols * abs(col_step)) + padding
    stored_batch = 1 if shared_batch else batch
    stored = runner.empty(offset + stored_batch * stored_rows * width + 8, dtype)
    stored.fill(np.nan)
    # Against the order of memory an axis begins with the last element that is stored.
    first = offset + (row_step < 0) * (stored_rows - 1) * width
    first += (col_step < 0) * (width - padding - 1)
    steps = 0 if shared_batch else stored_rows * width, row_step * width, col_step
    strides = [step * stored.itemsize for step in steps]
    view = np.lib.stride_tricks.as_strided(stored[first:], (batch, rows, cols), strides)
    return stored, view.swapaxes(1, 2) if swapped else view


def fill(view, seed):
    """Put random numbers in a view, also where it repeats elements."""
    generator = np.random.default_rng(seed)
    where = tuple(0 if s == 0 else slice(None) for s in view.strides)
    values = generator.uniform(-1, 1, view.shape)[where]
    view[where] = values


def elements(view):
    return tuple(s // view.itemsize for s in view.strides)


def alignment(*views):
    return math.gcd(16, *(view.__array_interface__["data"][0] for view in views))


def planned(plan, **options):
    """What ``plan`` gives for a target, whose fields are among the options."""
    limits = {name: options.pop(name) for name in Target._fields if name in options}
    return plan(target=Target(**limits), **options)


def run_matvec(runner, m, k, batch, dtype, layouts=("row", "row", "row"), *where, **plan):
    """`run_product` of vectors, which lie in a row each."""
    shapes, names = ((m, k), (1, k), (1, m)), "Axy"
    given = kernels.plan_matvec, {"m": m, "k": k}, shapes, names
    return run_product(runner, given, batch, dtype, layouts, *where, **plan)


def run_matmul(runner, m, n, k, batch, dtype, layouts=("row", "row", "row"), *where, **plan):
    """`run_product` of matrices."""
    shapes, names = ((m, k), (k, n), (m, n)), "ABC"
    given = kernels.plan_matmul, {"m": m, "n": n, "k": k}, shapes, names
    return run_product(runner, given, batch, dtype, layouts, *where, **plan)


def run_product(
    runner, given, batch, dtype, layouts, offset=0, shared=False, infinite=False, **plan
):
    """Run a product, check it and that nothing else was written; return the plan.

    Operands whose names are small letters are vectors. ``infinite``: some elements are.
    """
    plan_product, sizes, shapes, names = given
    made = [
        operand(runner, batch, *shape, dtype, layout, offset, shared and name == "A")
        for name, shape, layout in zip(names, shapes, layouts, strict=True)
    ]
    (kept, _), views = made[-1], [view for _, view in made]
    for seed, view in enumerate(views[:2], 1):
        fill(view, seed)
    if infinite:
        views[0][0, 3, 5] = views[0][0, -1, -1] = np.inf
        views[1][0, -1, -1] = -np.inf
    kept.fill(-7)
    views[2][...] = np.nan
    strides = {
        f"{name.lower()}_strides": elements(view)[:: 1 if name.isupper() else 2]
        for name, view in zip(names, views, strict=True)
    }
    plan = {"multiprocessors": MULTIPROCESSORS, "alignment": alignment(*views)} | plan
    launch_plan = planned(plan_product, batch=batch, dtype=dtype, **sizes, **strides, **plan)
    runner.run(launch_plan, **dict(zip(names, views, strict=True)))
    A, B, C = (v if n.isupper() else v.swapaxes(1, 2) for n, v in zip(names, views, strict=True))
    A, B = A.astype(float), B.astype(float)
    with np.errstate(invalid="ignore"):
        exact, magnitude = A @ B, abs(A) @ abs(B)
        far = abs(C - exact) - (np.sqrt(A.shape[2]) + 4) * 2 * np.finfo(dtype).eps * magnitude
    is_finite = np.isfinite(exact)
    assert np.all(far[is_finite] <= 0), np.max(far[is_finite])
    np.testing.assert_array_equal(C[~is_finite], exact[~is_finite])
    C[...] = -7
    assert np.all(kept == -7), f"wrote outside {names[2]}"
    return launch_plan
