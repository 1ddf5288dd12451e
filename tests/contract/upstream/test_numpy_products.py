"""NumPy's own tests of matmul and matvec, over hetero's functions.

They stand among those of arrays and of universal functions; what names neither is not run.
"""

from __future__ import annotations

import ast
import re
from fnmatch import fnmatchcase
from pathlib import Path

import installed
import numpy as np

import hetero

OURS = {"numpy.matmul": hetero.matmul, "numpy.matvec": hetero.matvec}
arrays = installed.load("numpy._core.tests.test_multiarray", OURS)
ufuncs = installed.load("numpy._core.tests.test_ufunc", OURS)
# A class that takes NumPy's function as its attribute calls it as a method.
TestMatmul = arrays.TestMatmul
test_matmul_axes = arrays.test_matmul_axes


class TestMethods:
    test_arr_mult = arrays.TestMethods.test_arr_mult
    test_no_dgemv = arrays.TestMethods.test_no_dgemv
    test_dot_matmul_out = arrays.TestMethods.test_dot_matmul_out
    test_dot_matmul_inner_array_casting_fails = (
        arrays.TestMethods.test_dot_matmul_inner_array_casting_fails
    )
    test_matmul_out = arrays.TestMethods.test_matmul_out


class TestUfunc:
    test_axes_argument = ufuncs.TestUfunc.test_axes_argument
    test_matvec = ufuncs.TestUfunc.test_matvec
    test_vecmatvec_identity = ufuncs.TestUfunc.test_vecmatvec_identity
    test_vecdot_matvec_vecmat_complex = ufuncs.TestUfunc.test_vecdot_matvec_vecmat_complex
    test_matvec_vecmat_out = ufuncs.TestUfunc.test_matvec_vecmat_out
    compare_matrix_multiply_results = ufuncs.TestUfunc.compare_matrix_multiply_results
    test_matrix_multiply = ufuncs.TestUfunc.test_matrix_multiply
    test_matrix_multiply_umath_empty = ufuncs.TestUfunc.test_matrix_multiply_umath_empty


# Tests that name matmul or matvec and are not run, and why.
NOT_RUN = {
    "TestDot.test_dotmatvec*": "of numpy.dot",
    "TestBinop.test_ufunc_binop_interaction": "of operators",
    "TestMatmulOperator.*": "of the operator @",
    "TestUfunc.test_at_not_none_signature": "of ufunc.at, which a function has not",
    "test_ufunc_types": "of the loops for each dtype that universal functions list",
    "TestUfunc.test_can_ignore_signature": "of universal functions made for NumPy's tests",
    "TestUfunc.test_signature5": "of universal functions made for NumPy's tests",
    "TestUFuncInspectSignature.*": "of the signatures of universal functions; hetero's has more",
}


def test_every_test_is_run_or_has_a_reason():
    run = {f"{cls.__name__}.{name}" for cls in (TestMethods, TestUfunc) for name in vars(cls)}
    run |= {f"TestMatmul.{name}" for name in dir(TestMatmul)} | set(globals())
    run |= {name.replace("TestMatmul.", "MatmulCommon.") for name in run}
    left = {name for suite in (arrays, ufuncs) for name in _naming(suite)} - run
    assert {name for name in left if not any(fnmatchcase(name, p) for p in NOT_RUN)} == set()
    assert {p for p in NOT_RUN if not any(fnmatchcase(name, p) for name in left)} == set()


def _naming(suite):
    """Tests of a module in whose text matmul or matvec stands."""
    text = Path(suite.__spec__.origin).read_text()
    for node in ast.parse(text).body:
        members = node.body if isinstance(node, ast.ClassDef) else [node]
        for test in members:
            if not getattr(test, "name", "").startswith("test"):
                continue
            lines = text.splitlines()[test.lineno - 1 - len(test.decorator_list) : test.end_lineno]
            if re.search("matmul|matvec", "\n".join(lines)):
                yield test.name if test is node else f"{node.name}.{test.name}"


def test_that_heteros_functions_are_called():
    for suite, function, test in (
        (arrays, "numpy.matmul", TestMatmul().test_matmul_empty),
        (ufuncs, "numpy.matvec", TestUfunc().test_matvec),
    ):
        before = suite.calls[function]
        test()
        assert suite.calls[function] > before
    assert isinstance(TestMatmul.matmul, installed._Counted)
    np.testing.assert_array_equal(TestMatmul().matmul(np.eye(2), np.eye(2)), np.eye(2))
