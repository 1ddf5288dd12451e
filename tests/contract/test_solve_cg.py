"""solve_cg keeps SciPy's contract, on every device that is here, and says what it does."""

from __future__ import annotations

import fakes
import numpy as np
import pytest
import scipy.sparse as sp
from scipy.sparse.linalg import LinearOperator, aslinearoperator, cg

import hetero
from hetero import devices

GRID = (13, 17)


def places():
    names = ["cpu", *devices.available()]
    return [
        pytest.param(n, marks=[pytest.mark.gpu] if n.startswith("cuda") else [], id=n)
        for n in names
    ]


def dense(n=40, dtype="float64", seed=0):
    rng = np.random.default_rng(seed)
    B = rng.random((n, n)) - 0.5
    return (B @ B.T + n * np.eye(n)).astype(dtype)


def systems(dtype="float64"):
    """Name -> (A as passed, the same matrix dense)."""
    operator = hetero.Poisson(GRID, spacing=(0.5, 0.25), dtype=dtype)
    csr = sp.csr_array(operator.tocsr())
    A = dense(dtype=dtype)
    return {
        "dense": (A, A),
        "dense F": (np.asfortranarray(A), A),
        "dense strided": (np.repeat(np.repeat(A, 2, 0), 2, 1)[::2, ::2], A),
        "csr array": (csr, csr.toarray()),
        "csc matrix": (sp.csc_matrix(csr), csr.toarray()),
        **{
            name: (csr.asformat(name), csr.toarray())
            for name in ("bsr", "coo", "dia", "dok", "lil")
        },
        "poisson": (operator, csr.toarray()),
        "poisson 3d": (
            (box := hetero.Poisson((5, 6, 7), dtype=dtype)),
            box.tocsr().toarray(),
        ),
    }


@pytest.mark.parametrize("place", places())
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", list(systems()))
def test_every_matrix_on_every_device(place, dtype, name):
    A, whole = systems(dtype)[name]
    b = np.random.default_rng(1).random(len(whole)).astype(dtype)
    rtol = 1e-4 if dtype == "float32" else 1e-9
    x, info = hetero.solve_cg(A, b, rtol=rtol, device=place)
    assert info == 0
    assert x.dtype == dtype
    assert x.shape == b.shape
    residual = b.astype("f8") - whole.astype("f8") @ x.astype("f8")
    assert np.linalg.norm(residual) <= 1.01 * rtol * np.linalg.norm(b) + 1e-6 * (dtype == "float32")


@pytest.mark.parametrize("place", places())
@pytest.mark.parametrize("M", [None, "jacobi", "multigrid", "vector"])
def test_preconditioners(place, M):
    A = hetero.Poisson((33, 29))
    b = np.random.default_rng(2).random(A.shape[0])
    if M == "vector":
        M = np.full(A.shape[0], 0.25)
    x, info = hetero.solve_cg(A, b, rtol=1e-10, M=M, device=place)
    assert info == 0
    assert np.linalg.norm(b - A @ x) <= 1e-10 * np.linalg.norm(b)


@pytest.mark.parametrize("kind", ["array", "csr", "dok", "operator"])
def test_a_matrix_as_preconditioner(kind):
    A = dense()
    inverse = np.diag(1 / np.diag(A))
    M = {"array": inverse, "operator": aslinearoperator(inverse)}
    M |= {"csr": sp.csr_array(inverse), "dok": sp.dok_array(inverse)}
    b = np.random.default_rng(3).random(len(A))
    expected, _ = cg(A, b, rtol=1e-9, M=inverse)
    x, info = hetero.solve_cg(A, b, rtol=1e-9, M=M[kind])
    assert info == 0
    np.testing.assert_allclose(x, expected, rtol=1e-6)
    line = str(hetero.plan("cg", sp.dok_array(A), b, M=M[kind])).partition(" -> ")[0]
    assert line == "solve_cg float64: CSR 40 x 40, 1600 entries on host, (40,) on host"


def test_a_linear_operator_computes_on_the_cpu():
    A = dense()
    calls = []

    def matvec(v):
        calls.append(1)
        return A @ v

    b = np.ones(len(A))
    x, info = hetero.solve_cg(LinearOperator(A.shape, matvec, dtype=A.dtype), b)
    assert info == 0
    assert calls
    np.testing.assert_allclose(A @ x, b, rtol=1e-4)


def test_the_answer_is_scipys():
    A = systems()["csr array"][0]
    b = np.random.default_rng(4).random(A.shape[0])
    for options in ({}, {"rtol": 1e-9}, {"rtol": 0.0, "atol": 1e-3}, {"x0": b.copy()}):
        expected, _ = cg(A, b, **options)
        x, info = hetero.solve_cg(A, b, **options)
        assert info == 0
        np.testing.assert_allclose(x, expected, rtol=1e-5)


def test_iterations_run_out_as_with_scipy():
    A = systems()["csr array"][0]
    b = np.random.default_rng(5).random(A.shape[0])
    seen, theirs = [], []
    expected, info = cg(A, b, rtol=1e-12, maxiter=7, callback=lambda x: theirs.append(x.copy()))
    x, mine = hetero.solve_cg(A, b, rtol=1e-12, maxiter=7, callback=lambda x: seen.append(x.copy()))
    assert (mine, info) == (7, 7)
    np.testing.assert_allclose(x, expected, rtol=1e-10)
    assert len(seen) == len(theirs) == 7
    for a, b in zip(seen, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9)


def test_shapes_and_dtypes_as_scipy():
    A = dense(dtype="int64")
    b = np.arange(40)
    for rhs in (b, b[:, None], b.astype("f4"), b.tolist()):
        expected, _ = cg(A.astype(float), np.asarray(rhs, float))
        x, info = hetero.solve_cg(A, rhs)
        assert (info, x.shape, x.dtype) == (0, expected.shape, np.float64)
        np.testing.assert_allclose(x, expected, rtol=1e-4, atol=1e-8)
    x, _ = hetero.solve_cg(A.astype("f4"), b.astype("f4"))
    assert x.dtype == np.float32


def test_nothing_is_changed_and_zero_stays_zero():
    A, b, x0 = dense(), np.zeros(40), np.ones(40)
    x, info = hetero.solve_cg(A, b, x0)
    assert info == 0
    assert not x.any()
    assert (x0 == 1).all()
    b = np.ones(40)
    before = (A.copy(), b.copy())
    hetero.solve_cg(A, b, x0)
    assert (before[0] == A).all()
    assert (b == before[1]).all()
    x, info = hetero.solve_cg(np.zeros((0, 0)), np.zeros(0))
    assert (x.shape, info) == ((0,), 0)


@pytest.mark.parametrize("place", places())
def test_an_indefinite_matrix_is_named(place):
    A = np.diag([1.0, -2.0, 3.0, 4.0])
    with pytest.warns(RuntimeWarning, match="not positive definite"):
        x, info = hetero.solve_cg(A, np.ones(4), device=place)
    assert info == -1
    assert np.isfinite(x).all()


@pytest.mark.parametrize("place", places())
@pytest.mark.parametrize("where", ["A", "b"])
def test_what_is_not_finite_is_named(place, where):
    A, b = dense(), np.ones(40)
    (A if where == "A" else b)[3] = np.nan
    with pytest.warns(RuntimeWarning, match="not finite"):
        x, info = hetero.solve_cg(A, b, device=place)
    assert info == -2
    assert np.isfinite(x).all()


def test_zero_residual_is_true():
    """A tolerance below rounding is not claimed."""
    A = systems("float32")["poisson"][0]
    b = np.random.default_rng(6).random(A.shape[0]).astype("f4")
    _, info = hetero.solve_cg(A, b, rtol=1e-14)
    assert info > 0


BAD = {
    "not square": (
        lambda: (np.ones((3, 4)), np.ones(3)),
        {},
        r"A must be square, got shape \(3, 4\)",
    ),
    "one axis": (lambda: (np.ones(3), np.ones(3)), {}, "A must be square"),
    "b too long": (lambda: (np.eye(3), np.ones(4)), {}, r"b must have shape \(3,\)"),
    "b a matrix": (lambda: (np.eye(3), np.ones((3, 2))), {}, r"b must have shape"),
    "A of objects": (lambda: (np.eye(3).astype(object), np.ones(3)), {}, "A must be real or"),
    "b of strings": (lambda: (np.eye(3), np.array(["a"] * 3)), {}, "b must be real or complex"),
    "complex x0": (lambda: (np.eye(3), np.ones(3)), {"x0": np.ones(3) * 1j}, "x0 must be real"),
    "x0 too short": (lambda: (np.eye(3), np.ones(3)), {"x0": np.ones(2)}, r"x0 must have shape"),
    "rtol": (lambda: (np.eye(3), np.ones(3)), {"rtol": -1.0}, r"rtol must be at least 0, got -1.0"),
    "atol": (lambda: (np.eye(3), np.ones(3)), {"atol": float("nan")}, r"atol must be at least 0"),
    "no rtol": (lambda: (np.eye(3), np.ones(3)), {"rtol": None}, r"rtol must be a number"),
    "no atol": (lambda: (np.eye(3), np.ones(3)), {"atol": None}, r"atol must be a number"),
    "legacy": (lambda: (np.eye(3), np.ones(3)), {"atol": "legacy"}, r"atol must be a number"),
    "maxiter": (lambda: (np.eye(3), np.ones(3)), {"maxiter": -1}, r"maxiter must be at least 0"),
    "maxiter 2.5": (
        lambda: (np.eye(3), np.ones(3)),
        {"maxiter": 2.5},
        "maxiter must be a whole number, got 2.5",
    ),
    "x0's name": (lambda: (np.eye(3), np.ones(3)), {"x0": "Ab"}, "x0 must be a vector or 'Mb'"),
    "complex M": (lambda: (np.eye(3), np.ones(3)), {"M": np.ones(3) * 1j}, "M must be real where"),
    "M": (lambda: (np.eye(3), np.ones(3)), {"M": "ilu"}, r"M must be 'jacobi', 'multigrid'"),
    "M of a matrix": (lambda: (np.eye(3), np.ones(3)), {"M": "multigrid"}, r"hetero\.Poisson"),
    "M's shape": (lambda: (np.eye(3), np.ones(3)), {"M": np.eye(2)}, r"M must have shape"),
    "device": (lambda: (np.eye(3), np.ones(3)), {"device": "tpu"}, r"device must be one of"),
    "method": (lambda: (np.eye(3), np.ones(3)), {"method": "lu"}, r"method must be one of"),
}


@pytest.mark.parametrize("case", list(BAD))
def test_bad_input(case):
    make, options, message = BAD[case]
    A, b = make()
    for _ in range(2):  # what is wrong once is wrong again, also beside a remembered call
        with pytest.raises(ValueError, match=message):
            hetero.solve_cg(A, b, **options)
        if A.shape == (3, 3) and A.dtype == b.dtype == float and b.shape == (3,):
            hetero.solve_cg(A, b, maxiter=2)


def test_the_operator_is_scipys_too():
    A = hetero.Poisson((9, 8), spacing=0.1)
    b = np.random.default_rng(7).random(72)
    x, info = cg(A, b, rtol=1e-10)
    assert info == 0
    np.testing.assert_allclose(A.tocsr() @ x, b, rtol=1e-6)
    for bad in ({"shape": (3,)}, {"shape": (3, 0)}, {"spacing": 0.0}, {"spacing": (1.0, -1.0)}):
        with pytest.raises(ValueError, match=next(iter(bad))):
            hetero.Poisson(**{"shape": (3, 3), **bad})


def test_plans_of_solves():
    A = hetero.Poisson((512, 512))
    b = hetero.spec((512 * 512,))
    loose, tight = (hetero.plan("cg", A, b, rtol=rtol) for rtol in (1e-2, 1e-10))
    assert loose.problem.options.iterations < tight.problem.options.iterations
    assert loose.seconds < tight.seconds
    assert hetero.plan("cg", A, b, rtol=1e-10, maxiter=5).problem.options.iterations == 5
    assert hetero.plan("cg", A, b, M="multigrid").problem.layout == "stencil2-multigrid"
    reasons = {c.method: c.reason for c in tight.candidates if c.device == "cpu"}
    assert "dense" in reasons["blas"]
    shapes = hetero.plan("cg", hetero.spec((64, 64)), hetero.spec((64,)))
    assert shapes.chosen.method == "blas"


def test_equal_results_run_to_run(opencl):
    A = systems()["csr array"][0]
    b = np.random.default_rng(8).random(A.shape[0])
    for place in ("cpu", opencl):
        first, again = (hetero.solve_cg(A, b, device=place)[0] for _ in range(2))
        assert (first == again).all()


class Foreign:
    """An array on a device whose dtype is its library's own, as torch's are."""

    dtype = "library.float32"

    def __init__(self, array):
        self.shape, self._array = array.shape, array

    @property
    def __cuda_array_interface__(self):
        return self._array.__cuda_array_interface__


def test_dtypes_of_other_libraries(cuda):
    A, f, b = (
        Foreign(fakes.Cupy.of(np.ones(shape, "f4"), cuda)) for shape in ((30, 30), (3, 10), (30,))
    )
    for operation, operands in {
        "matvec": (A, b),
        "matmul": (A, A),
        "convolve2d": (A, f),
        "cg": (A, b, b),
        "poisson": (A,),
    }.items():
        assert hetero.plan(operation, *operands).problem.dtype == "float32"


@pytest.mark.gpu
@pytest.mark.parametrize("library", ["own", "cupy", "torch"])
def test_device_arrays_stay_where_they_are(library):
    b = np.random.default_rng(10).random(40)
    A = dense()
    if library == "own":  # PyCUDA's, where that calls the driver
        here = [devices.get("cuda:0").array_of(v) for v in (A, b)]
    elif library == "cupy":
        here = [pytest.importorskip("cupy").asarray(v) for v in (A, b)]
    else:
        here = [pytest.importorskip("torch").as_tensor(v, device="cuda:0") for v in (A, b)]
    for place in (None, "cuda:0", "cpu"):
        x, info = hetero.solve_cg(*here, rtol=1e-9, device=place)
        assert info == 0
        assert type(x) is type(here[1])
        assert np.linalg.norm(b - A @ hetero.to_host(x)) <= 1e-9 * np.linalg.norm(b)


@pytest.mark.parametrize("place", places())
@pytest.mark.parametrize(
    "name", ["airfoil", "bar", "knot", "local_disc_galerkin_diffusion", "unit_cube"]
)
def test_real_matrices(place, name):
    """Finite elements on an airfoil's mesh, elasticity, a graph: PyAMG's example files."""
    gallery = pytest.importorskip("pyamg.gallery")
    A = sp.csr_array(gallery.load_example(name)["A"])
    b = np.random.default_rng(11).random(A.shape[0])
    for M in (None, "jacobi"):
        x, info = hetero.solve_cg(A, b, rtol=1e-8, M=M, device=place)
        assert info == 0
        assert np.linalg.norm(b - A @ x) <= 1e-8 * np.linalg.norm(b)


@pytest.mark.parametrize("place", places())
@pytest.mark.parametrize("name", ["recirc_flow", "unit_square"])
@pytest.mark.filterwarnings("ignore:solve_cg stopped:RuntimeWarning")
def test_real_matrices_that_are_not_positive_definite(place, name):
    """One is not symmetric, one singular: whatever happens, no success is claimed."""
    gallery = pytest.importorskip("pyamg.gallery")
    A = sp.csr_array(gallery.load_example(name)["A"])
    b = np.random.default_rng(11).random(A.shape[0])
    x, info = hetero.solve_cg(A, b, rtol=1e-8, maxiter=2000, device=place)
    assert info != 0
    assert np.isfinite(x).all()
