"""What solve_cg promises of its options: every info code, every dtype, operators that misbehave."""

from __future__ import annotations

import subprocess
import sys
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.sparse.linalg import LinearOperator, aslinearoperator, cg

import hetero
from hetero import devices

KINDS = ("dense", "csr", "operator")


def as_kind(kind, A):
    return {"dense": np.asarray, "csr": sp.csr_array, "operator": aslinearoperator}[kind](A)


def hermitian(n=30, dtype=complex, seed=0):
    rng = np.random.default_rng(seed)
    B = rng.standard_normal((n, n)) + 1j * rng.standard_normal((n, n))
    return (B @ B.conj().T + n * np.eye(n)).astype(dtype)


def residual(A, x, b):
    return float(np.linalg.norm(b - A @ x) / np.linalg.norm(b))


class CupySparse:
    """As cupyx.scipy.sparse.csr_matrix, as far as a solve looks at it."""

    __module__ = "cupyx.scipy.sparse._csr"

    def __init__(self, A):
        self._matrix, self.shape = sp.csr_matrix(A), A.shape

    def tocsr(self):
        return self

    def get(self):
        return self._matrix


def test_cupys_sparse_matrices_are_taken():
    A, b = hermitian().real, np.ones(30)
    x, info = hetero.solve_cg(CupySparse(A), b, rtol=1e-10)
    assert info == 0
    np.testing.assert_array_equal(x, hetero.solve_cg(sp.csr_matrix(A), b, rtol=1e-10)[0])


def test_cupys_linear_operators_compute_where_they_are(monkeypatch):
    """A and M, by their own `matvec`, on arrays of their own."""
    A, b = hermitian().real, np.ones(30)

    class Elsewhere(np.ndarray):
        pass

    class Operator:
        __module__ = "cupyx.scipy.sparse.linalg._interface"

        def __init__(self, values):
            self.values, self.shape, self.dtype = values, values.shape, values.dtype

        def matvec(self, v):
            assert type(v) is Elsewhere
            return (self.values @ np.asarray(v)).view(Elsewhere)

    cupy = SimpleNamespace(asarray=lambda v: np.asarray(v).view(Elsewhere), asnumpy=np.asarray)
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    for M in (None, np.linalg.inv(A)):
        expected, info = hetero.solve_cg(aslinearoperator(A), b, rtol=1e-10, M=M)
        x, _ = hetero.solve_cg(Operator(A), b, rtol=1e-10, M=None if M is None else Operator(M))
        assert info == 0
        np.testing.assert_allclose(x, expected, rtol=1e-12)


@pytest.mark.gpu
def test_what_torch_and_cupy_have_on_a_gpu():
    A = sp.csr_matrix(hetero.Poisson((30, 40)).tocsr())
    b = np.random.default_rng(0).standard_normal(1200)
    expected, _ = hetero.solve_cg(A, b, rtol=1e-10)
    torch = pytest.importorskip("torch")
    on_host = torch.sparse_csr_tensor(*map(torch.tensor, (A.indptr, A.indices, A.data)), A.shape)
    for matrix in (
        on_host,
        on_host.cuda(),
        on_host.cuda().to_sparse_coo(),
        on_host.to_sparse_csc(),
    ):
        x, info = hetero.solve_cg(matrix, torch.tensor(b, device="cuda"), rtol=1e-10)
        assert (info, type(x), x.is_cuda) == (0, torch.Tensor, True)
        np.testing.assert_allclose(x.cpu().numpy(), expected, rtol=1e-8)
    cupy = pytest.importorskip("cupy")
    linalg = pytest.importorskip("cupyx.scipy.sparse.linalg")
    on_device = pytest.importorskip("cupyx.scipy.sparse").csr_matrix(A)
    operator = linalg.LinearOperator(A.shape, matvec=lambda v: on_device @ v, dtype=A.dtype)
    for given in (operator, linalg.aslinearoperator(on_device)):
        x, info = hetero.solve_cg(given, cupy.asarray(b), rtol=1e-10, M=None)
        assert (info, type(x)) == (0, cupy.ndarray)
        np.testing.assert_allclose(x.get(), expected, rtol=1e-8)


@pytest.mark.gpu
def test_cupys_sparse_matrices_on_a_gpu():
    cupy = pytest.importorskip("cupy")
    sparse = pytest.importorskip("cupyx.scipy.sparse")
    A = hetero.Poisson((30, 40)).tocsr()
    b = cupy.asarray(np.random.default_rng(0).standard_normal(1200))
    for matrix in (sparse.csr_matrix(sp.csr_matrix(A)), sparse.coo_matrix(sp.coo_matrix(A))):
        x, info = hetero.solve_cg(matrix, b, rtol=1e-10)
        assert type(x) is type(b)
        assert (info, residual(A, x.get(), b.get()) < 1e-9) == (0, True)


# -- Info codes ----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "complex64"])
@pytest.mark.parametrize("kind", KINDS)
def test_converged_is_true_in_float64_too(kind, dtype):
    """Below the rounding error of float32, in which the residual is computed."""
    on = ["cpu", *(name for name in devices.available() if name.startswith("opencl"))]
    held = []
    for seed in range(250):
        rng = np.random.default_rng(seed)
        n = int(rng.integers(2, 60))
        A = hermitian(n, seed=seed) / n
        A = (A if dtype == "complex64" else A.real).astype(dtype)
        b, start = (rng.standard_normal(n).astype(dtype) for _ in range(2))
        tolerance = 1e-7 * np.linalg.norm(b.astype(complex))
        here = on if kind != "operator" and dtype == "float32" and seed < 60 else on[:1]
        for device in here:
            x, info = hetero.solve_cg(as_kind(kind, A), b, start, rtol=1e-7, device=device)
            if info == 0:
                held.append(np.linalg.norm(b - A.astype(complex) @ x.astype(complex)) / tolerance)
    assert len(held) > 5
    assert max(held) <= 1.0


@pytest.mark.parametrize("kind", KINDS)
def test_every_info_code(kind):
    whole = np.diag(np.linspace(1.0, 50.0, 30))
    A, b = as_kind(kind, whole), np.ones(30)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        x, info = hetero.solve_cg(A, b, rtol=1e-10)
        assert info == 0
        assert residual(whole, x, b) <= 1e-10
        assert hetero.solve_cg(A, b, rtol=1e-10, maxiter=5)[1] == 5
        assert hetero.solve_cg(A, b, maxiter=0)[1] == 1  # b is not solved by zero
        assert hetero.solve_cg(A, np.zeros(30), maxiter=0)[1] == 0
        assert 0 < hetero.solve_cg(A, b, rtol=1e-30)[1] < 300  # rounding has the last word
    for indefinite in (0.0 * whole, -whole):
        with pytest.warns(RuntimeWarning, match="not positive definite"):
            x, info = hetero.solve_cg(as_kind(kind, indefinite), b)
        assert info == -1
        assert not x.any()
    whole[3, 3] = np.nan
    with pytest.warns(RuntimeWarning, match="not finite"):
        assert hetero.solve_cg(as_kind(kind, whole), b)[1] == -2


def test_a_stencils_codes():
    A, b = hetero.Poisson((9, 8)), np.ones(72)
    assert hetero.solve_cg(A, b, maxiter=0)[1] == 1
    assert hetero.solve_cg(A, b, maxiter=3)[1] == 3
    assert hetero.solve_cg(A, b)[1] == 0
    with pytest.warns(RuntimeWarning, match="not finite"):
        assert hetero.solve_cg(A, np.full(72, np.inf))[1] == -2
    with pytest.warns(RuntimeWarning, match="not positive definite"):
        assert hetero.solve_cg(A, b, M=np.full(72, -1.0))[1] == -1


@pytest.mark.parametrize("kind", [*KINDS, "poisson"])
@pytest.mark.parametrize("as_matrix", [False, True])
def test_a_preconditioner_that_is_not_positive_definite(kind, as_matrix):
    A = hetero.Poisson((5, 6)) if kind == "poisson" else as_kind(kind, np.diag([3.0] * 30))
    M = np.diag(np.full(30, -1.0)) if as_matrix else np.full(30, -1.0)
    with pytest.warns(RuntimeWarning, match="not positive definite"):
        x, info = hetero.solve_cg(A, np.ones(30), M=M)
    assert info == -1
    assert not x.any()


@pytest.mark.parametrize("kind", KINDS)
def test_the_looser_of_two_tolerances_counts(kind):
    whole = np.diag(np.linspace(1.0, 50.0, 30))
    A, b = as_kind(kind, whole), np.ones(30)  # norm(b) = 5.5
    for rtol, atol in ((1e-1, 1e-9), (1e-9, 0.5)):
        x, info = hetero.solve_cg(A, b, rtol=rtol, atol=atol)
        assert info == 0
        assert 1e-3 < np.linalg.norm(b - whole @ x) <= max(rtol * np.linalg.norm(b), atol)


def test_multigrid_takes_few_iterations():
    for shape in ((65, 63), (15, 16, 17)):
        A = hetero.Poisson(shape)
        b = np.random.default_rng(0).standard_normal(A.shape[0])
        counts = {}
        for M in (None, "multigrid"):
            seen = []
            _, info = hetero.solve_cg(A, b, rtol=1e-10, M=M, callback=lambda x, s=seen: s.append(1))
            assert info == 0
            counts[M] = len(seen)
        assert counts["multigrid"] <= 12
        assert counts[None] >= 3 * counts["multigrid"]


# -- Types ---------------------------------------------------------------------------------------


def test_A_and_b_decide_the_dtype():
    A, b = np.diag([2.0, 3.0, 4.0]), np.ones(3)
    f4, f8, c8, c16 = np.float32, np.float64, np.complex64, np.complex128
    for of_A, of_b, of_x in (
        (f4, f4, f4), (f8, f4, f8), (f4, f8, f8), (f4, np.int64, f8), (np.int8, f4, f8),
        (np.float16, f4, f4), (c8, f4, c8), (f4, c8, c8), (f8, c8, c16), (c16, f4, c16),
    ):  # fmt: skip
        for kind in KINDS:
            if kind == "csr" and of_A is np.float16:
                continue  # SciPy has no such matrices
            for start in (None, np.ones(3), np.ones(3, f4)):
                for M in (None, np.ones(3), np.eye(3, dtype=f4)):
                    matrix = as_kind(kind, A.astype(of_A))
                    x, info = hetero.solve_cg(matrix, b.astype(of_b), start, M=M)
                    assert (x.dtype, info) == (np.dtype(of_x), 0), (of_A, of_b, kind)


def test_mixed_operands_are_solved_in_the_wider_dtype():
    rng = np.random.default_rng(0)
    A = np.diag(np.linspace(1.0, 2.0, 20))
    b = rng.standard_normal(20).astype("f4")
    x, info = hetero.solve_cg(A, b, rtol=1e-12)
    assert info == 0
    assert residual(A, x, b.astype(float)) <= 1e-12


@pytest.mark.filterwarnings("ignore:the matrix subclass:PendingDeprecationWarning")
def test_np_matrix():
    whole = np.diag([4.0, 2.0, 8.0]) + 0.5
    b = np.array([1.0, 2.0, 3.0])
    expected = np.linalg.solve(whole, b)
    for M in (None, "jacobi", np.asmatrix(np.eye(3))):
        x, info = hetero.solve_cg(np.asmatrix(whole), np.asmatrix(b).T, M=M, rtol=1e-12)
        assert (type(x), x.shape, info) == (np.ndarray, (3,), 0)
        np.testing.assert_allclose(x, expected, rtol=1e-10)


def test_maxiter_is_any_whole_number():
    A, b = np.diag([1.0, 2.0, 3.0]), np.ones(3)
    assert hetero.solve_cg(A, b, rtol=1e-12, maxiter=np.int32(2))[1] == 2


@pytest.mark.parametrize("kind", KINDS)
def test_x0_Mb(kind):
    whole = np.diag(np.linspace(1.0, 50.0, 30)) + 0.1
    b = np.random.default_rng(1).standard_normal(30)
    A = as_kind(kind, whole)
    inverse = 1.0 / np.diag(whole)
    for M, start in (
        (None, b),
        (inverse, inverse * b),
        (np.diag(inverse), inverse * b),
        (aslinearoperator(np.diag(inverse)), inverse * b),
        *([("jacobi", inverse * b)] if kind != "operator" else []),
    ):
        x, info = hetero.solve_cg(A, b, "Mb", M=M, maxiter=0)
        assert info == 1
        np.testing.assert_allclose(x, start, rtol=1e-15)
        if not isinstance(M, str):
            of_scipy = M if M is None or np.ndim(M) != 1 else np.diag(M)
            options = {"rtol": 1e-8, "maxiter": 4}
            expected, _ = cg(A, b, "Mb", M=of_scipy, **options)
            x, _ = hetero.solve_cg(A, b, "Mb", M=M, **options)
            np.testing.assert_allclose(x, expected, rtol=1e-9)


def test_x0_Mb_with_multigrid():
    A, b = hetero.Poisson((20, 30)), np.ones(600)
    x, _ = hetero.solve_cg(A, b, "Mb", M="multigrid", maxiter=0)
    assert np.linalg.norm(b - A @ x) < 0.2 * np.linalg.norm(b)


# -- Complex numbers -----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
@pytest.mark.parametrize("M", [None, "jacobi", "vector", "complex vector", "matrix"])
def test_hermitian(kind, dtype, M):
    whole = hermitian(dtype=dtype)
    A = as_kind(kind, whole)
    rng = np.random.default_rng(2)
    b, x0 = (rng.standard_normal((2, 30)) + 1j * rng.standard_normal((2, 30))).astype(dtype)
    inverse = 1.0 / np.diag(whole).real
    given = {
        "vector": inverse,
        "complex vector": inverse.astype(complex),
        "matrix": sp.diags_array(inverse),
    }.get(M, M)
    if kind == "operator" and M == "jacobi":
        with pytest.raises(ValueError, match="which a LinearOperator hides"):
            hetero.solve_cg(A, b, M=M)
        return
    rtol = 1e-10 if dtype == np.complex128 else 1e-4
    counts = {}
    for start in (None, x0, "Mb"):
        seen = []
        x, info = hetero.solve_cg(
            A, b, start, rtol=rtol, M=given, callback=lambda x, s=seen: s.append(x.copy())
        )
        assert info == 0
        assert x.dtype == dtype
        assert residual(whole.astype(complex), x, b.astype(complex)) <= 1.01 * rtol
        assert all(s.dtype == dtype and s.shape == (30,) for s in seen)
        np.testing.assert_array_equal(seen[-1], x)
        counts[str(type(start))] = len(seen)
    theirs = []
    of_scipy = None if M is None else np.diag(inverse)
    expected, _ = cg(A, b, rtol=rtol, M=of_scipy, callback=lambda x: theirs.append(1))
    assert abs(counts[str(type(None))] - len(theirs)) <= 1
    np.testing.assert_allclose(x, expected, rtol=1e3 * rtol, atol=10 * rtol * abs(expected).max())


def test_a_real_matrix_and_a_complex_b():
    rng = np.random.default_rng(3)
    grid = hetero.Poisson((12, 13))
    b = rng.standard_normal(156) + 1j * rng.standard_normal(156)
    full = grid.tocsr().toarray()
    for A in (grid, grid.tocsr(), full, aslinearoperator(full)):
        for M in (None, *(() if not isinstance(A, hetero.Poisson) else ("jacobi", "multigrid"))):
            x, info = hetero.solve_cg(A, b, rtol=1e-9, M=M)
            assert info == 0
            assert residual(full, x, b) <= 1e-9


@pytest.mark.parametrize("size", [1e-200, 1e-25, 1e25, 1e200])
def test_complex_b_of_any_size(size):
    A = hermitian()
    b = (np.ones(30) + 1j * np.arange(30.0)) * size
    x, info = hetero.solve_cg(A, b, rtol=1e-9)
    assert info == 0
    assert residual(A, x / size, b / size) <= 1e-9


def test_complex_plans_say_where_they_run():
    A = hermitian()
    plan = hetero.plan("cg", A, np.ones(30, complex))
    assert (plan.chosen.device, plan.chosen.method) == ("cpu", "operator")
    reasons = {(c.device.partition(":")[0], c.method): c.reason for c in plan.candidates}
    real = "does not apply: it is for real numbers"
    assert reasons["cpu", "blas"] == reasons["cpu", "numba"] == real
    assert reasons["cpu", "operator"] is None
    for (device, _), reason in reasons.items():
        assert device == "cpu" or reason is not None
    if "opencl:0" in devices.available():
        plan = hetero.plan("cg", A, np.ones(30, complex), device="opencl:0")
        assert plan.chosen.device == "cpu"
        assert "complex numbers compute on the CPU" in str(plan)


def test_complex_x0_and_M_need_a_complex_system():
    A, b = np.eye(3), np.ones(3)
    for bad in ({"x0": b * 1j}, {"M": np.eye(3) * 1j}, {"M": aslinearoperator(np.eye(3) * 1j)}):
        with pytest.raises(ValueError, match="must be real"):
            hetero.solve_cg(A, b, **bad)


def test_poisson_times_complex():
    grid = hetero.Poisson((5, 7), spacing=(0.5, 0.25))
    rng = np.random.default_rng(4)
    v = rng.standard_normal((35, 2)) + 1j * rng.standard_normal((35, 2))
    np.testing.assert_allclose(grid @ v, grid.tocsr() @ v, rtol=1e-12)
    np.testing.assert_allclose(grid @ v[:, 0], grid.tocsr() @ v[:, 0], rtol=1e-12)
    np.testing.assert_allclose(grid.rmatvec(v[:, 0]), grid.tocsr() @ v[:, 0], rtol=1e-12)
    single = hetero.Poisson((5, 7), dtype="f4")
    assert (single @ v[:, 0].astype(np.complex64)).dtype == np.complex64
    assert (grid @ v[:, 0]).dtype == np.complex128


def test_an_operator_that_returns_complex_numbers():
    """SciPy's cg raises a TypeError too, as it cannot add them to x."""
    b = np.ones(4)
    bad = LinearOperator((4, 4), matvec=lambda v: 2.0 * v + 1j * v, dtype=float)
    with pytest.raises(TypeError):
        cg(bad, b)
    with pytest.raises(TypeError, match="A times a vector must be real, got dtype complex128"):
        hetero.solve_cg(bad, b)
    for A in (np.diag([1.0, 2.0, 3.0, 4.0]), sp.csr_array(np.diag([1.0, 2.0, 3.0, 4.0]))):
        with pytest.raises(TypeError, match="M times a vector must be real, got dtype complex128"):
            hetero.solve_cg(A, b, M=bad)


# -- Remembered calls ----------------------------------------------------------------------------


def test_a_remembered_call_does_not_outlive_its_options():
    """Cold, warm, then each option changed by itself, in one process and for one shape."""
    rng = np.random.default_rng(5)
    whole = hermitian(23).real
    b = rng.standard_normal(23)
    exact = np.linalg.solve(whole, b)

    def check(A, b, *arguments, **options):
        rtol = options.setdefault("rtol", 1e-6)
        x, info = hetero.solve_cg(A, b, *arguments, **options)
        assert info == 0
        assert residual(whole, x, b) <= rtol
        return x

    for kind in KINDS:
        A = as_kind(kind, whole)
        for _ in range(2):
            check(A, b)
        tight = check(A, b, rtol=1e-12)
        np.testing.assert_allclose(tight, exact, rtol=1e-9)
        check(A, b)
        check(A, -b)
        check(A, b.astype("f4"), rtol=1e-5)
        check(as_kind(kind, whole.astype("f4")), b, rtol=1e-5)
        check(A, b[:, None].reshape(-1))
        check(A, exact * 0 + b, exact)
        check(A, b, "Mb")
        check(A, b, M=1.0 / np.diag(whole))
        check(A, b, M=np.diag(1.0 / np.diag(whole)))
        seen = []
        check(A, b, callback=lambda x, seen=seen: seen.append(1))
        assert seen
        assert hetero.solve_cg(A, b, rtol=1e-12, maxiter=2)[1] == 2
        assert hetero.solve_cg(A, b, atol=1e9)[0].any() == False  # noqa: E712
        for bad in ({"maxiter": 2.0}, {"rtol": -1}, {"atol": -1}, {"M": np.ones(3)}, {"x0": b[:3]}):
            with pytest.raises(ValueError, match="must"):
                hetero.solve_cg(A, b, **bad)
        for option in ({"device": "gpu:7"}, {"method": "lu"}):
            with pytest.raises(ValueError, match="must be one of"):
                hetero.solve_cg(A, b, **option)
        with hetero.use(device="cpu"):
            check(A, b)
    with hetero.use(method="numba"), pytest.raises(ValueError, match="is for sparse"):
        hetero.solve_cg(whole, b)


def test_a_plan_is_its_tolerances_own():
    """One shape, two tolerances: another number of iterations, another price."""
    A, b = hetero.Poisson((300, 300)), hetero.spec((90000,))
    plans = {rtol: hetero.plan("cg", A, b, rtol=rtol) for rtol in (1e-2, 1e-10, 1e-2)}
    assert plans[1e-2].problem.options.rtol == 1e-2
    assert plans[1e-10].problem.options.rtol == 1e-10
    assert plans[1e-2].seconds < plans[1e-10].seconds
    # A multigrid cycle's number of iterations follows from rtol alone.
    plans = [hetero.plan("cg", A, b, rtol=rtol, M="multigrid") for rtol in (1e-2, 1e-10)]
    assert plans[0].problem.options.iterations == plans[1].problem.options.iterations
    assert plans[0].seconds < plans[1].seconds


def test_a_plans_rows_are_the_registrys():
    """No row twice, none of another layout's as possible, whatever fell back."""
    b = np.ones(40)
    for A in (np.eye(40), sp.eye_array(40).tocsr(), aslinearoperator(np.eye(40))):
        for options in ({}, {"device": "cpu"}, {"M": np.eye(40)}):
            plan = hetero.plan("cg", A, b, **options)
            rows = [(c.device, c.method) for c in plan.candidates]
            assert len(rows) == len(set(rows))
            assert [
                c.method for c in plan.candidates if c.reason is None and c.device == "cpu"
            ] == [plan.chosen.method]
    # Asked for what a LinearOperator cannot have, it falls back; the row asked for stands once.
    plan = hetero.plan("cg", aslinearoperator(np.eye(40)), b, method="numba")
    rows = [(c.device, c.method) for c in plan.candidates]
    assert len(rows) == len(set(rows))
    assert plan.chosen.method == "operator"


SMALL = """
import numba, numpy, hetero
from scipy.sparse.linalg import aslinearoperator
grid = hetero.Poisson((30, 40))
for A in (grid, grid.tocsr(), grid.tocsr().toarray(), aslinearoperator(grid.tocsr())):
    for M in (None, numpy.ones(1200)):
        assert hetero.solve_cg(A, numpy.ones(1200), M=M)[1] == 0
try:
    print(numba.threading_layer())
except ValueError:
    print("no threads")
"""


def test_small_systems_stay_on_the_calling_thread():
    """Waking a thread for them took milliseconds on busy cores."""
    done = subprocess.run([sys.executable, "-c", SMALL], capture_output=True, text=True)
    assert done.stdout.strip() == "no threads", done.stderr


PLACES = [
    pytest.param(name, marks=[pytest.mark.gpu] if name.startswith("cuda") else [])
    for name in ("cpu", *devices.available())
]


@pytest.mark.parametrize("device", PLACES)
@pytest.mark.parametrize("form", ["dense", "csr", "stencil"])
@pytest.mark.parametrize("M", [None, "jacobi"])
def test_a_tolerance_of_zero_is_no_breakdown(device, form, M):
    """The recurrence's residual falls until its products vanish; A is definite all the same."""
    values = np.random.default_rng(0)
    for n in (10, 30):
        S = values.standard_normal((n, n))
        A = 1e-5 * (S @ S.T + n * np.eye(n))
        if form == "csr":
            A = sp.csr_array(A)
        elif form == "stencil":
            A = hetero.Poisson((n // 5, 5))
        b = values.standard_normal(n)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            x, info = hetero.solve_cg(A, b, rtol=0.0, M=M, device=device)
        assert info >= 0
        assert np.linalg.norm(b - A @ x) <= 1e-13 * np.linalg.norm(b)
