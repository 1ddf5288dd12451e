"""Jacobi's sweeps in one launch whose blocks wait for each other: several blocks, with no GPU.

A block is a thread of the CPU; a device's own are simulated in tests/kernels/test_rung_kernels.py.
"""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess

import numpy as np
import pytest
from test_matmul_rungs import TODAY

from hetero import kernels
from hetero.errors import MethodNotAvailable
from hetero.kernels.jacobi import rungs
from hetero.kernels.jacobi.plan import GridSlab
from hetero.ops.linear_systems.types import Stencil
from hetero.ops.poisson import jacobi_cpu, jacobi_device
from hetero.ops.poisson.methods import sweeper

HEADER = """
#include <cmath>
#include <thread>
#include <vector>
typedef long long index_t;
static thread_local struct { unsigned int x; } blockIdx;
static const struct { unsigned int x; } threadIdx = {0};
static unsigned int atomicAdd(unsigned int *at, unsigned int value)
{
    return __atomic_fetch_add(at, value, __ATOMIC_SEQ_CST);
}
using std::fma;
#define KERNEL(threads, blocks) static void
#define DEVICE static inline
#define GLOBAL
#define RESTRICT __restrict__
#define __syncthreads()
#define __threadfence() __atomic_thread_fence(__ATOMIC_SEQ_CST)
#define __ldcg(pointer) (*(pointer))
"""
LAUNCH = """
extern "C" void launch(int blocks, REAL *u, const REAL *f, REAL *v, unsigned int *arrivals,
                       const index_t *sizes, const double *factors)
{
    std::vector<std::thread> running;
    for (int block = 0; block < blocks; ++block)
        running.emplace_back([=] {
            blockIdx.x = block;
            jacobi_persistent(u, f, v, arrivals, sizes[0], sizes[1], sizes[2], sizes[3], sizes[4],
                              sizes[5], factors[0], factors[1], factors[2], factors[3]);
        });
    for (auto &one : running) one.join();
}
"""


def built(directory, dims, dtype):
    if not shutil.which("g++"):
        pytest.skip("no g++ to compile the kernel for the CPU")
    text, number = re.subn(
        r"extern __shared__ double memory\[\];",
        "static thread_local double memory[4096];",
        kernels.source("jacobi_persistent.cu"),
    )
    assert number == 1
    (directory / "kernel.cpp").write_text(HEADER + text + LAUNCH)
    options = [f"-DREAL={dtype}", f"-DDIMS={dims}", "-DBX=1", "-DBY=1", "-ffp-contract=off"]
    command = ["g++", "-O1", "-shared", "-fPIC", "-pthread", *options, "-o", "kernel.so"]
    subprocess.run([*command, "kernel.cpp"], check=True, cwd=directory)
    return ctypes.CDLL(str(directory / "kernel.so")).launch


@pytest.mark.parametrize("shape", [(11, 13), (4, 3, 8)], ids=str)
def test_blocks_that_wait_for_each_other_sweep_as_one(shape, tmp_path):
    """Five blocks, or fewer for the lines; an odd and an even number of sweeps."""
    launch = built(tmp_path, len(shape), "double")
    rng = np.random.default_rng(0)
    grid = GridSlab.of(shape, (0.5, 1.0, 2.0)[: len(shape)], "float64")
    plan = rungs.sweep_rung("persistent", grid, card=TODAY, blocks=5)
    share = -(-grid.held * grid.lines // 5)
    assert plan.grid == -(-grid.held * grid.lines // share) > 2
    assert plan.shared_bytes == rungs.held_bytes(grid, 5) == share * grid.columns * 8
    for sweeps in (1, 6, 7):
        f, u = np.zeros((2, *shape[:-1], grid.pitch))
        f[..., : grid.columns] = rng.random(shape)
        u[..., : grid.columns] = rng.random(shape)
        expected = u[..., : grid.columns].copy()
        v, arrivals = np.zeros_like(u), np.zeros(1, np.uint32)
        sizes = np.array([grid.held, grid.lines, grid.columns, grid.pitch, share, sweeps])
        factors = np.array(grid.factors())
        arrays = [a.ctypes.data_as(ctypes.c_void_p) for a in (u, f, v, arrivals, sizes, factors)]
        stencil = Stencil(shape, grid.spacing)
        jacobi_cpu.solve(stencil, f[..., : grid.columns].copy(), expected, sweeps=sweeps)
        launch(plan.grid, *arrays)
        result = (v if sweeps % 2 else u)[..., : grid.columns]
        np.testing.assert_allclose(result, expected, rtol=1e-14)
        assert arrivals == sweeps * plan.grid


def test_blocks_that_cannot_run_at_once_are_refused():
    """As where CUDA has no cooperative launch: nothing starts that would never end."""
    import runtimes

    device = runtimes.opencl_device()
    several = sweeper("persistent")._replace(
        plan=lambda _, grid: rungs.sweep_rung("persistent", grid, card=TODAY, blocks=2)
    )
    f, u = np.ones((2, 20, 20))
    stencil = Stencil((20, 20), (1.0, 1.0))
    with pytest.raises(MethodNotAvailable, match="2 blocks of jacobi_persistent cannot run at"):
        jacobi_device.solve([device], stencil, f, u, sweeps=3, sweeper=several)
