"""float32 products by 16-bit pieces: launch plans, the choice of pieces, and what they promise."""

import ctypes

import cuda_on_cpu
import numpy as np
import pytest
import tensor_core

import hetero
from hetero import registry
from hetero.kernels import Target, plan_tensor
from hetero.profile import inventory

HOPPER = Target(132, 1024, True, 232448, (9, 0))
BY_FLOAT16, BY_BFLOAT16, BY_TILED = range(3)


def planned(m, n, k, batch=1, a=None, b=None, c=None, alignment=16, target=HOPPER):
    given = {"m": m, "n": n, "k": k, "batch": batch, "dtype": "float32", "target": target}
    given |= {"a_strides": a or (m * k, k, 1), "b_strides": b or (k * n, n, 1)}
    return plan_tensor(c_strides=c or (m * n, n, 1), alignment=alignment, **given)


class Finding(ctypes.Structure):
    _fields_ = [("tiny", ctypes.c_uint), ("large", ctypes.c_uint)]


def finding(rows):
    """What tensor_split.cu finds in rows."""
    x = np.abs(tensor_core.scaled(rows)[0])
    tiny, large = ((x > 0) & (x < 2.0**-13)).sum(1), (x >= 1).sum(1)
    is_bad = (tiny > rows.shape[1] // 16 * 15).any()
    return Finding(1 << 30 if is_bad else int(tiny.max()), int(large.min()))


# -- Launches --------------------------------------------------------------------------------------


def test_a_result_by_columns_is_the_product_transposed():
    plan = planned(300, 500, 700, c=(0, 1, 300))
    assert plan.launches[0].arguments[:3] == ("B", "A", "partial")
    assert plan.launches[2].arguments[2:4] == (500, 300)
    assert plan.launches[3].arguments[:4] == ("B", "A", "C", "partial")


def test_where_pieces_do_not_serve_the_plan_is_that_of_the_other_kernels():
    older = planned(300, 500, 700, target=HOPPER._replace(capability=(8, 0)))
    for plan in (older, planned(300, 500, 127)):
        assert all(launch.source.startswith(("matmul", "partial")) for launch in plan.launches)
    assert planned(300, 500, 128).launches[0].source == "tensor_split.cu"


# -- Cutting, on the CPU ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def splits():
    """tensor_split.cu for two and three pieces."""
    return [cuda_on_cpu.kernel("tensor_split.cu", "split", {"PIECES": n}) for n in (2, 3)]


class Cut:
    """Operands A, (batch, m, k), and B, (batch, k, n), as tensor_split.cu leaves them."""

    def __init__(self, splits, A, B):
        (batch, m, k), n = A.shape, B.shape[2]
        strides = [tuple(s // 4 for s in X.strides) for X in (A, B)]
        a, b = ((s[0] if len(X) > 1 else 0, *s[1:]) for X, s in zip((A, B), strides, strict=True))
        plan = planned(m, n, k, max(batch, len(B)), a, b, alignment=4 if k % 4 else 16)
        self.workspace = np.full(4 * plan.workspace, 0xAA, np.uint8)
        for launch, run in zip(plan.launches[:2], splits, strict=True):
            blocks = min(launch.grid, 5)
            assert run(blocks, A, B, self.workspace, *launch.arguments[3:]) is None
        *_, of_a, of_b, at_a, at_b = plan.launches[0].arguments
        self.who = int(self.workspace[:4].view(np.int32)[0])
        if self.who != BY_TILED:
            self.A = self._values(of_a, at_a, m, k, len(A))
            self.B = self._values(of_b, at_b, n, k, len(B))

    def _values(self, exponents_at, at, rows, k, matrices):
        """The rows that the pieces add up to, in float64."""
        panels, steps, count = -(-rows // 128), -(-k // 64) * 2, 2 if self.who == BY_FLOAT16 else 3
        shape = matrices, panels, steps, count, 128, 4, 8
        size = 2 * int(np.prod(shape))
        laid = self.workspace[at : at + size].view(np.uint16).reshape(shape)
        whole = tensor_core.put_together(laid)
        of_rows = self.workspace[exponents_at : exponents_at + 4 * matrices * panels * 128]
        scale = np.exp2(of_rows.view(np.int32).astype(float) - tensor_core.TOP)
        assert not whole[:, rows:].any()
        assert not whole[:, :, k:].any()
        return whole[:, :rows, :k] * scale.reshape(matrices, -1, 1)[:, :rows]


@pytest.mark.parametrize(
    ("layout", "m", "n", "k"), [("CC", 130, 70, 200), ("CF", 5, 129, 131), ("FC", 66, 3, 200)]
)
def test_pieces_add_up_to_the_operands(splits, layout, m, n, k):
    random = np.random.default_rng(k)
    A = random.standard_normal((1, m, k), np.float32)
    B = random.standard_normal((1, k, n), np.float32)
    A, B = (
        x if order == "C" else np.ascontiguousarray(x.transpose(0, 2, 1)).transpose(0, 2, 1)
        for x, order in zip((A, B), layout, strict=True)
    )
    cut = Cut(splits, A, B)
    assert cut.who == BY_FLOAT16
    np.testing.assert_allclose(cut.A[0], A[0], rtol=2.0**-21, atol=0)
    np.testing.assert_allclose(cut.B[0], B[0].T, rtol=2.0**-21, atol=0)


def test_three_pieces_hold_every_bit_of_a_wide_range(splits):
    random = np.random.default_rng(0)
    A, B = numbers("4", (2, 40, 300), random), numbers("4", (1, 300, 30), random)
    cut = Cut(splits, A, B)
    assert cut.who == BY_BFLOAT16
    assert np.array_equal(cut.A, A)
    assert np.array_equal(cut.B[0], B[0].T)


@pytest.mark.parametrize(
    ("first", "others", "who"),
    [
        (-np.inf, 1.0, BY_TILED),
        (np.nan, 1.0, BY_TILED),
        (1e-40, 1e-41, BY_TILED),
        (1.0, 1e-12, BY_TILED),
        (0.0, 0.0, BY_FLOAT16),
    ],
)
def test_rows_that_pieces_do_not_hold(splits, first, others, who):
    A, B = np.ones((1, 40, 150), np.float32), np.ones((1, 150, 30), np.float32)
    A[0, 39], A[0, 39, 149] = others, first
    assert Cut(splits, A, B).who == who


# -- What the pieces promise -----------------------------------------------------------------------


def numbers(kind, shape, random):
    if kind == "uniform":
        return random.random(shape, np.float32)
    if kind == "normal":
        return random.standard_normal(shape, np.float32)
    spread = np.exp(float(kind) * random.standard_normal(shape))
    return ((random.random(shape) - 0.5) * spread).astype(np.float32)


def errors(found, A, B):
    """Largest error relative to the sum of |a||b|."""
    products = A.astype(np.longdouble) * B.astype(np.longdouble)
    return float((abs(found - products.sum(1)) / abs(products).sum(1)).max())


@pytest.mark.parametrize(
    ("kind", "chosen"),
    [(kind, BY_FLOAT16) for kind in ("uniform", "normal", "0.5", "1")]
    + [(kind, BY_BFLOAT16) for kind in ("3", "4")],
)
def test_errors_are_below_those_of_float32(kind, chosen):
    pieces, random = cuda_on_cpu.functions("tensor_pieces.cu"), np.random.default_rng(0)
    A, B = (numbers(kind, (400, 1024), random) for _ in range(2))
    assert pieces.method_for(finding(A), finding(B), ctypes.c_longlong(1024)) == chosen
    ours = errors(tensor_core.dots(A, B, chosen == BY_FLOAT16), A, B)
    assert ours <= errors(tensor_core.chained(A, B), A, B)


# -- The method ------------------------------------------------------------------------------------


def test_ieee_precision_excludes_it(monkeypatch):
    (row,) = (r for r in registry.lookup("matmul") if r.method == "tensor")
    problem = registry.operation("matmul").problem(*[hetero.spec((256, 256), "float32")] * 2)
    assert row.excludes(problem, {"arch": "sm_90"}) is None
    monkeypatch.setenv("HETERO_PRECISION", "ieee")
    assert row.obstacle(problem, {"arch": "sm_90"}) == "HETERO_PRECISION=ieee"


@pytest.mark.gpu
class TestOnHopper:
    """On a GPU of compute capability 9.0."""

    @pytest.fixture(autouse=True)
    def _hopper(self):
        if inventory.devices().get("cuda:0", {}).get("arch") != "sm_90":
            pytest.skip("no GPU of compute capability 9.0")

    @staticmethod
    def product(A, B):
        return hetero.matmul(A, B, device="cuda:0", method="tensor")

    def error(self, A, B):
        """Largest error relative to the sum of |a||b|."""
        A, B, found = A.astype(float), B.astype(float), self.product(A, B)
        return (abs(found - A @ B) / (abs(A) @ abs(B))).max()

    @pytest.mark.parametrize(
        ("m", "n", "k"), [(256, 256, 128), (300, 521, 200), (129, 127, 1500), (1000, 1030, 777)]
    )
    @pytest.mark.parametrize("layout", ["CC", "CF", "FC", "FF"])
    def test_shapes_and_layouts(self, m, n, k, layout):
        random = np.random.default_rng(m)
        A = np.asarray(random.standard_normal((m, k), np.float32), order=layout[0])
        B = np.asarray(random.standard_normal((k, n), np.float32), order=layout[1])
        assert self.error(A, B) < 3e-7
        assert np.array_equal(self.product(A, B), self.product(A, B))

    def test_batches_and_strides(self):
        random = np.random.default_rng(1)
        A = random.standard_normal((3, 200, 600), np.float32)[:, ::2, ::2]
        B = random.standard_normal((300, 130), np.float32)[:, ::-1]
        assert self.error(A, B) < 3e-7

    @pytest.mark.parametrize("spread", ["2", "4", "8"])
    def test_wide_ranges(self, spread):
        random = np.random.default_rng(2)
        A, B = numbers(spread, (300, 2048), random), numbers(spread, (2048, 200), random)
        assert self.error(A, B) < 4e-6

    def test_rows_of_other_magnitudes(self):
        random = np.random.default_rng(3)
        scales = np.exp2(random.integers(-60, 61, (300, 1))).astype(np.float32)
        A, B = random.standard_normal((300, 256), np.float32), np.eye(256, dtype=np.float32)
        assert np.array_equal(self.product(A * scales, B), self.product(A, B) * scales)

    def test_special_values(self):
        A, B = np.ones((200, 256), np.float32), np.ones((256, 130), np.float32)
        A[3, 4], A[6, 5], A[8, 8], A[9] = np.inf, np.nan, -np.inf, 1e-42
        found = self.product(A, B)
        assert np.isposinf(found[3]).all()
        assert np.isneginf(found[8]).all()
        assert np.isnan(found[6]).all()
        assert (found[[0, 199]] == 256).all()
        np.testing.assert_allclose(found[9], 256e-42, rtol=1e-3)
