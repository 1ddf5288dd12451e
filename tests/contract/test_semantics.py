"""hetero.matmul and hetero.matvec behave as numpy.matmul and numpy.matvec, bit for bit on the CPU.

Every case runs with the default placement and forced to an OpenCL device; only there may values
differ, by rounding.
"""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from layouts import LAYOUTS
from scipy.sparse import coo_array, csr_array, csr_matrix

import hetero
from hetero import devices

rng = np.random.default_rng(11)
PAIRS = {"matmul": (np.matmul, hetero.matmul), "matvec": (np.matvec, hetero.matvec)}


def outcome(function, *args, **options):
    """The result, or the type of the exception."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # NaN, Inf and overflow are wanted
            return function(*args, **options)
    except Exception as error:
        return type(error)


def same(ours, numpys, rounding=0.0):
    """Equal in type, dtype, shape and value; values to ``rounding`` times the dtype's epsilon."""
    if isinstance(numpys, type):
        assert ours is numpys
        return
    assert type(ours) is type(numpys), f"{ours!r} for {numpys!r}"
    if not isinstance(numpys, (np.ndarray, np.generic)):
        assert ours == numpys
        return
    assert ours.dtype == numpys.dtype
    assert ours.shape == numpys.shape
    if rounding and numpys.dtype.kind == "f":
        bound = rounding * np.finfo(numpys.dtype).eps
        np.testing.assert_allclose(ours, numpys, rtol=bound, atol=bound)
    else:
        np.testing.assert_array_equal(ours, numpys)


def check(name, *args, rounding=0.0, **options):
    numpys, ours = PAIRS[name]
    expected = outcome(numpys, *args, **options)
    same(outcome(ours, *args, **options), expected)
    same(outcome(ours, *args, **options), expected)  # the second time from memory
    return expected


def check_forced(name, device, *args, rounding=64.0, **options):
    numpys, ours = PAIRS[name]
    same(
        outcome(ours, *args, device=device, **options), outcome(numpys, *args, **options), rounding
    )
    assert not devices.troubles(), "the device failed, the CPU answered"


# -- Shapes --------------------------------------------------------------------------------------

MATMUL_SHAPES = [
    ((3,), (3,)),
    ((3,), (3, 4)),
    ((2, 3), (3,)),
    ((2, 3), (3, 4)),
    ((1, 1), (1, 1)),
    ((1, 5), (5, 6)),
    ((5, 6), (6, 1)),
    ((4, 1), (1, 4)),
    ((7, 2, 3), (3, 4)),
    ((2, 3), (7, 3, 4)),
    ((7, 2, 3), (7, 3, 4)),
    ((7, 1, 2, 3), (5, 3, 4)),
    ((1, 2, 3), (7, 3, 4)),
    ((2, 2, 2, 3), (2, 1, 3, 2)),
    ((7, 2, 3), (3,)),
    ((3,), (7, 3, 4)),
    ((2, 5, 1, 3), (5, 3, 1)),
    ((0, 3), (3, 4)),
    ((2, 0), (0, 4)),
    ((2, 3), (3, 0)),
    ((0,), (0,)),
    ((0, 2, 3), (3, 4)),
    ((0, 2, 3), (1, 3, 4)),
    # what NumPy refuses
    ((), (3,)),
    ((3,), ()),
    ((), ()),
    ((3,), (4,)),
    ((2, 3), (4, 2)),
    ((2, 3), (2,)),
    ((2, 2, 3), (3, 3, 2)),
    ((0, 3), (4, 0)),
]
MATVEC_SHAPES = [
    ((2, 3), (3,)),
    ((1, 1), (1,)),
    ((1, 5), (5,)),
    ((5, 1), (1,)),
    ((7, 2, 3), (3,)),
    ((7, 2, 3), (7, 3)),
    ((2, 3), (7, 3)),
    ((5, 1, 2, 3), (7, 3)),
    ((4, 4), (4, 4)),
    ((0, 3), (3,)),
    ((2, 0), (0,)),
    ((0, 2, 3), (3,)),
    ((3,), (3,)),
    ((), (3,)),
    ((2, 3), ()),
    ((2, 3), (2,)),
    ((7, 2, 3), (6, 3)),
]
SHAPES = [("matmul", *s) for s in MATMUL_SHAPES] + [("matvec", *s) for s in MATVEC_SHAPES]


@pytest.mark.parametrize(("name", "a", "b"), SHAPES)
def test_shapes(name, a, b, opencl):
    for dtype in (np.float32, np.float64):
        A, B = rng.random(a, dtype), rng.random(b, dtype)
        A, B = np.asarray(A, dtype), np.asarray(B, dtype)
        check(name, A, B)
        check_forced(name, opencl, A, B)


@pytest.mark.parametrize("layout_b", LAYOUTS)
@pytest.mark.parametrize("layout_a", LAYOUTS)
def test_layouts(layout_a, layout_b, opencl):
    A = LAYOUTS[layout_a](rng.random((3, 6, 5)))
    B = LAYOUTS[layout_b](rng.random((3, 5, 5)))
    for first, second in ((A, B), (A[0], B[1])):
        check("matmul", first, second)
        check_forced("matmul", opencl, first, second)
    x = B[:, :, 1]
    check("matvec", A, x)
    check_forced("matvec", opencl, A, x)


# -- Dtypes --------------------------------------------------------------------------------------

DTYPES = [
    "float32", "float64", "float16", "longdouble", "complex64", "complex128", "bool", "int8",
    "uint8", "int32", "int64", "uint64", ">f4", ">f8", ">i4", "object",
]  # fmt: skip


@pytest.mark.parametrize("b", DTYPES)
@pytest.mark.parametrize("a", DTYPES)
def test_dtypes(a, b, opencl):
    A = (5 * rng.random((4, 6))).astype(a)
    B = (5 * rng.random((6, 3))).astype(b)
    for name, second in (("matmul", B), ("matvec", B.T[0])):
        check(name, A, second)
        check_forced(name, opencl, A, second)


@pytest.mark.parametrize("dtype", ["M8[s]", "m8[s]", "U3", "S3", "V4", [("x", "f4")]])
def test_dtypes_that_numpy_refuses(dtype):
    A = np.zeros((2, 2), dtype)
    for first, second in ((A, A), (A, np.ones((2, 2))), (np.ones((2, 2)), A)):
        check("matmul", first, second)
        check("matvec", first, second[0])


def test_nan_and_inf(opencl):
    A = rng.random((5, 6))
    A[1, 2], A[2, 3], A[3, 4], A[4, :2] = np.nan, np.inf, -np.inf, (np.inf, -np.inf)
    B = rng.random((6, 4))
    B[0, 0], B[1, 1] = np.nan, -0.0
    for dtype in ("float32", "float64"):
        check("matmul", A.astype(dtype), B.astype(dtype))
        check_forced("matmul", opencl, A.astype(dtype), B.astype(dtype))
        check_forced("matvec", opencl, A.astype(dtype), B[:, 1].astype(dtype))


def test_overflow(opencl):
    A = np.full((3, 3), 3e38, np.float32)
    check_forced("matmul", opencl, A, A)
    check("matmul", np.full((3, 3), 100, np.int8), np.full((3, 3), 100, np.int8))


# -- Types ---------------------------------------------------------------------------------------


class Tagged(np.ndarray):
    """A subclass that NumPy carries through."""


class Overriding:
    """Takes ufuncs into its own hands."""

    def __array_ufunc__(self, ufunc, method, *inputs, **options):
        return ufunc.__name__, method, len(inputs)


class Convertible:
    """No array, but NumPy can make one of it."""

    def __array__(self, dtype=None, copy=None):
        return np.arange(4.0, dtype=dtype).reshape(2, 2)


def test_types():
    square = rng.random((2, 2))
    masked = np.ma.masked_array(square, [[True, False], [False, False]])
    cases = [
        [[1, 2], [3, 4]],
        ((1.5, 2.0), (3.0, 4.0)),
        square.view(np.matrix),
        square.view(Tagged),
        masked,
        Overriding(),
        Convertible(),
        range(2),
        2.0,
        np.float64(2.0),
        "text",
        None,
        [[1, 2], [3]],
        object(),
    ]
    for other in cases:
        for first, second in ((other, square), (square, other), (other, other)):
            check("matmul", first, second)
            check("matvec", first, second)


def test_types_with_a_device_forced(opencl):
    for other in ([[1.0, 2.0], [3.0, 4.0]], np.eye(2).view(np.matrix), np.eye(2).view(Tagged)):
        check_forced("matmul", opencl, other, np.ones((2, 2)))


# -- out= ----------------------------------------------------------------------------------------


class Wrapping:
    """As CPU tensors of other libraries: an array whose results are of its own type."""

    def __init__(self, values):
        self.values = values

    def __array__(self, dtype=None, copy=None):
        return np.array(self.values, dtype)

    def __array_wrap__(self, values, context=None, return_scalar=False):
        return Wrapping(values)

    def __eq__(self, other):
        return bool((self.values == other.values).all())


@pytest.mark.parametrize("name", PAIRS)
def test_types_that_wrap_results(name):
    values = np.array([[3.0, 2], [1, 4]])
    for a, b in [(Wrapping(values), values), (values, Wrapping(values))]:
        assert type(check(name, a, b)) is Wrapping
        check(name, a, b, out=np.zeros((2, 2)))


@pytest.mark.parametrize("make", [csr_array, csr_matrix, coo_array])
@pytest.mark.parametrize("name", PAIRS)
def test_sparse_operands_are_named(name, make):
    sparse, values = make(np.eye(3)), np.ones((3, 3))
    for a, b in [(sparse, values), (values, sparse)]:
        assert outcome(PAIRS[name][0], a, b) is ValueError
        for _ in range(2):
            with pytest.raises(ValueError, match=rf"{name} takes dense.*{make.__name__}.*A @ x"):
                PAIRS[name][1](a, b)


def out_cases(dtype):
    """Name -> out for a (4, 3) result, of every right and wrong kind."""
    readonly = np.zeros((4, 3), dtype)
    readonly.flags.writeable = False
    return {
        "right": np.zeros((4, 3), dtype),
        "F": np.zeros((3, 4), dtype).T,
        "strided": np.zeros((8, 9), dtype)[::2, ::3],
        "reversed": np.zeros((4, 3), dtype)[::-1, ::-1],
        "wider": np.zeros((4, 3), "float64"),
        "complex": np.zeros((4, 3), complex),
        "big-endian": np.zeros((4, 3), ">f8"),
        "narrower": np.zeros((4, 3), "float16"),
        "integer": np.zeros((4, 3), int),
        "object": np.zeros((4, 3), object),
        "wrong shape": np.zeros((3, 4), dtype),
        "too many axes": np.zeros((1, 4, 3), dtype),
        "broadcastable": np.zeros((2, 4, 3), dtype),
        "read-only": readonly,
        "subclass": np.zeros((4, 3), dtype).view(Tagged),
        "tuple": (np.zeros((4, 3), dtype),),
        "no array": [[0.0] * 3] * 4,
    }


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("case", out_cases("float32"))
def test_out(case, dtype, opencl):
    A, B = rng.random((4, 5)).astype(dtype), rng.random((5, 3)).astype(dtype)
    for options, rounding in (({}, 0.0), ({"device": opencl}, 64.0)):
        theirs, ours = out_cases(dtype)[case], out_cases(dtype)[case]
        expected = outcome(np.matmul, A, B, out=theirs)
        result = outcome(hetero.matmul, A, B, out=ours, **options)
        same(result, expected, rounding)
        if isinstance(expected, np.ndarray):
            assert result is (ours[0] if isinstance(ours, tuple) else ours)
        else:
            np.testing.assert_array_equal(ours, theirs)
    positional = np.zeros((4, 3), dtype)
    assert hetero.matmul(A, B, positional) is positional


@pytest.mark.parametrize("name", PAIRS)
def test_out_in_a_tuple(name, opencl):
    """By keyword as it is by itself, where it is one; by its place an error."""
    A, x, C = np.eye(3) + 1, np.arange(3.0), np.empty(3)
    for outs in ((C,), (C, C), (), (None,), [C], ((C,),)):
        check(name, A, x, out=outs)
        check_forced(name, opencl, A, x, out=outs)
        check(name, A, x, outs)
        check_forced(name, opencl, A, x, outs)
    check(name, A, x, C, C)
    check(name, A, x, C, out=C)
    assert PAIRS[name][1](A, x, out=(C,), device=opencl) is C
    assert PAIRS[name][1](A, x, C, device=opencl) is C
    with pytest.raises(hetero.errors.MethodNotAvailable):
        PAIRS[name][1](A, x, out=(C,), device=opencl, method="blas")


def test_out_of_a_dot():
    x = rng.random(5)
    for out in (np.zeros(()), np.zeros(1), np.zeros((), np.float32)):
        check("matmul", x, x, out=out)


ALIASES = {
    "A": lambda A, B: A,
    "B": lambda A, B: B,
    "A reversed": lambda A, B: A[::-1],
    "A transposed": lambda A, B: A.T,
}


@pytest.mark.parametrize("alias", ALIASES)
def test_out_that_is_an_operand(alias, opencl):
    for options, rounding in (({}, 0.0), ({"device": opencl}, 64.0)):
        A, B = rng.random((5, 5)), rng.random((5, 5))
        expected = A @ B
        out = ALIASES[alias](A, B)
        assert hetero.matmul(A, B, out=out, **options) is out
        same(out, expected, rounding)
        A, x = rng.random((5, 5)), rng.random(5)
        expected = A @ x
        hetero.matvec(A, x, out=x, **options)
        same(x, expected, rounding)


def test_out_that_overlaps_in_part(opencl):
    for options, rounding in (({}, 0.0), ({"device": opencl}, 64.0)):
        whole, B = rng.random((8, 5)), rng.random((5, 5))
        expected = whole[:5] @ B
        hetero.matmul(whole[:5], B, out=whole[2:7], **options)
        same(whole[2:7].copy(), expected, rounding)


def test_kinds_of_call_do_not_share_a_plan(opencl):
    """Equal operands and results that lie alike may still belong to different functions."""
    A, X = rng.random((1, 4)), rng.random((4, 4))
    for options in ({}, {"device": opencl}):
        result = hetero.matvec(A, X, out=np.empty((4, 1)), **options)
        np.testing.assert_allclose(result, np.matvec(A, X), rtol=1e-14)
        result = hetero.matmul(A, X, out=np.empty((4, 1)).T, **options)
        np.testing.assert_allclose(result, np.matmul(A, X), rtol=1e-14)


# -- NumPy's own options -------------------------------------------------------------------------

OPTIONS = [
    {"dtype": "float64"},
    {"dtype": "float32"},
    {"dtype": "float32", "casting": "unsafe"},
    {"dtype": "int64", "casting": "unsafe"},
    {"casting": "no"},
    {"casting": "nonsense"},
    {"order": "F"},
    {"subok": False},
    {"axes": [(-2, -1), (-2, -1), (-2, -1)]},
    {"axes": [(0, 1), (1, 0), (0, 1)]},
    {"signature": "dd->d"},
    {"where": True},
    {"nonsense": 1},
]


@pytest.mark.parametrize("options", OPTIONS, ids=repr)
def test_options(options):
    A, B = rng.random((4, 4)), rng.random((4, 4), np.float32)
    result = check("matmul", A, B, **options)
    if not isinstance(result, type):
        assert hetero.matmul(A, B, **options).flags.c_contiguous == result.flags.c_contiguous
    check("matvec", A, B[0], **{k: v for k, v in options.items() if k != "axes"})


def test_keywords_for_the_operands_are_refused():
    with pytest.raises(TypeError):
        np.matmul(x1=np.eye(2), x2=np.eye(2))
    with pytest.raises(TypeError):
        hetero.matmul(A=np.eye(2), B=np.eye(2))


# -- Placement that is not available -------------------------------------------------------------

WHATEVER = {
    "plain": (np.eye(2), np.eye(2), {}),
    "integer": (np.eye(2, dtype=int), np.eye(2, dtype=int), {}),
    "list": ([[1.0]], [[1.0]], {}),
    "matrix": (np.eye(2).view(np.matrix), np.eye(2), {}),
    "nothing": (np.ones((0, 3)), np.ones((3, 0)), {}),
    "options": (np.eye(2), np.eye(2), {"dtype": "float64"}),
    "out subclass": (np.eye(2), np.eye(2), {"out": np.eye(2).view(Tagged)}),
}


@pytest.mark.parametrize("case", WHATEVER)
@pytest.mark.parametrize("how", ["device", "method"])
def test_unknown_placement_is_an_error_for_every_operand(case, how):
    A, B, options = WHATEVER[case]
    valid = "'cpu'" if how == "device" else "'blas'"
    with pytest.raises(ValueError, match=f"must be one of .*{valid}.*, got 'nonsense'"):
        hetero.matmul(A, B, **options, **{how: "nonsense"})


# -- Anything ------------------------------------------------------------------------------------

extents = st.integers(0, 5)
dtypes = st.sampled_from(["float32", "float64", "float64", "int16", "complex64", ">f4", "bool"])


@st.composite
def arrays(draw, shape):
    """An array of a given shape, of any dtype and layout; whole numbers, so that sums are exact."""
    layout = draw(st.sampled_from(["C", "F", "padded", "strided", "reversed"]))
    seed = draw(st.integers(0, 2**16))
    values = np.random.default_rng(seed).integers(-4, 5, shape).astype(draw(dtypes))
    return LAYOUTS[layout](values) if values.ndim > 1 and values.size else values


@st.composite
def products(draw):
    """Name of a function and two operands, most of which fit."""
    m, n, k, batch = draw(extents), draw(extents), draw(extents), draw(st.integers(1, 3))
    wrong = draw(st.integers(0, 9)) == 0
    name = draw(st.sampled_from(sorted(PAIRS)))
    front = [(), (batch,), (1,), (2, batch), (2, 1), (batch + 1,)]
    a = (*draw(st.sampled_from(front[:5])), m, k)
    if name == "matmul":
        b = draw(st.sampled_from([(*f, k + wrong, n) for f in front] + [(k + wrong,)]))
        a = draw(st.sampled_from([a, (k,)]))
    else:
        b = (*draw(st.sampled_from(front)), k + wrong)
    return name, draw(arrays(a)), draw(arrays(b))


@settings(max_examples=300, deadline=None, derandomize=True, database=None)
@given(products(), st.booleans())
def test_anything(product, forced):
    """Sums of small whole numbers are exact in every dtype, so equality holds on devices too."""
    name, A, B = product
    numpys, ours = PAIRS[name]
    options = {}
    if forced:
        options["device"] = next(iter([*devices.available(), "cpu"]))
    same(outcome(ours, A, B, **options), outcome(numpys, A, B))


@pytest.mark.parametrize("dtype", ["U3", "S3", "M8[s]", "m8[s]", "V8", "f4,f4"])
@pytest.mark.parametrize("name", PAIRS)
def test_a_plan_refuses_the_dtypes_that_a_call_refuses(name, dtype):
    A, other = np.eye(4), np.zeros((4, 4), dtype)
    for operands in ((A, other), (other, A), (other, other)):
        refused = outcome(PAIRS[name][1], *operands)
        assert outcome(hetero.plan, name, *operands) is refused
        if isinstance(refused, type):
            assert issubclass(refused, TypeError)
        specs = [hetero.spec(x.shape, x.dtype) for x in operands]
        assert outcome(hetero.plan, name, *specs) is refused
