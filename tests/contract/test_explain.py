"""What `hetero explain` prints, and what wrong inputs are answered, as whole texts.

The texts lie in `explain/`. Where they are meant to change, they are written anew by
``PYTHONPATH=tests/support python tests/contract/test_explain.py``, and the commit shows how.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import warnings
from pathlib import Path

import numpy as np
import pytest
from command_line import NO_CHOICE, OK
from scipy import signal

import hetero
from hetero import cli

FOLDER = Path(__file__).with_name("explain")
CALLS = {
    "matvec_h200": "matvec 4000 5000 --dtype float32 --profile h200",
    "matmul_h200": "matmul 2000 2000 2000 --profile h200",
    "matmul_several": "matmul 4000 4000 4000 --dtype float32 --device cuda:* --profile h100x2",
    "matmul_uncalibrated": "matmul 400 300 200 --device cpu --profile conservative",
    "convolve2d_several": "convolve2d 9000 9000 15 15 --mode same --dtype float32 --profile h100x2",
    "convolve2d_tesla": "convolve2d 2000 2000 31 31 --dtype float32 --profile tesla-t10",
    "matvec_tesla": "matvec 9999 9999 --dtype float32 --on cuda:0 --profile tesla-t10",
    "cg_grid": "cg 200 200 --profile h100x2",
    "cg_dense_on_device": "cg 2000 --on cuda:0 --profile h200",
    "poisson_h200": "poisson 1000 1000 --profile h200",
    "kmeans_several": "kmeans 100000 16 20 --dtype float32 --profile h100x2",
    "matmul_again": "matmul 3000 3000 3000 --again 10 --profile h200",
    "refused": "matmul 2000 2000 2000 --profile tesla-t10",
}


def explained(words):
    """Exit code and all that is printed, but for the line about rungs and this machine's cores."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = cli.main(["explain", *words.split()])
    text = re.sub(r"^   not listed: .*\n", "", out.getvalue(), flags=re.M)
    if words.endswith("conservative"):
        text = re.sub(r"on \d+ threads?$", "on N threads", text, flags=re.M)
    return code, f"$ hetero explain {words}\n{text}{err.getvalue()}"


@pytest.mark.parametrize("name", CALLS)
def test_what_explain_prints(name):
    code, text = explained(CALLS[name])
    assert code == (NO_CHOICE if name == "refused" else OK)
    assert text == (FOLDER / f"{name}.txt").read_text("utf-8")


def shape_of(value):
    """Keys of dictionaries, the first element of lists, the names of types."""
    if isinstance(value, dict):
        return {key: shape_of(one) for key, one in value.items()}
    if isinstance(value, list):
        return [shape_of(one) for one in value[:1]]
    return type(value).__name__


def keys_of_json():
    _, text = explained(f"--json {CALLS['matmul_several']}")
    return json.dumps(shape_of(json.loads(text.partition("\n")[2])), indent=1) + "\n"


def test_what_json_has():
    assert keys_of_json() == (FOLDER / "json.txt").read_text("utf-8")


A, v, words, z = np.ones((6, 6)), np.ones(6), np.full((6, 6), "a"), np.full((6, 6), 1j)
# (function, operands, options, the function that words the error where hetero does not).
WRONG = [
    ("matvec", (A, np.ones(4)), {}, np.matvec),
    ("matvec", (words, v), {}, np.matvec),
    ("matvec", (A, v), {"device": "tpu"}, None),
    ("matvec", (A, v), {"method": "lu"}, None),
    ("matvec", (A, v), {"device": "cpu", "method": "tiled"}, None),
    ("matvec", (A, v), {"out": np.ones(5)}, np.matvec),
    ("matmul", (A, np.ones((4, 4))), {}, np.matmul),
    ("matmul", (A, words), {}, np.matmul),
    ("matmul", (A, A), {"device": "tpu"}, None),
    ("matmul", (A, A), {"method": "lu"}, None),
    ("matmul", (A, A), {"device": "cpu", "method": "tiled"}, None),
    ("matmul", (A, A), {"out": np.ones((5, 6))}, np.matmul),
    ("convolve2d", (A, v), {}, None),
    ("convolve2d", (A, words), {}, signal.convolve2d),
    ("convolve2d", (A, A), {"device": "tpu"}, None),
    ("convolve2d", (A, A), {"method": "lu"}, None),
    ("convolve2d", (A, A), {"mode": "some"}, None),
    ("convolve2d", (A, A), {"boundary": "some"}, None),
    ("convolve2d", (np.ones((3, 5)), np.ones((4, 2))), {"mode": "valid"}, None),
    ("solve_cg", (A, np.ones(4)), {}, None),
    ("solve_cg", (words, v), {}, None),
    ("solve_cg", (A, v), {"device": "tpu"}, None),
    ("solve_cg", (A, v), {"method": "lu"}, None),
    ("solve_cg", (A, v), {"M": "ilu"}, None),
    ("solve_cg", (A, v), {"rtol": -1.0}, None),
    ("solve_poisson", (v,), {}, None),
    ("solve_poisson", (z,), {}, None),
    ("solve_poisson", (A,), {"device": "tpu"}, None),
    ("solve_poisson", (A,), {"method": "lu"}, None),
    ("solve_poisson", (A,), {"spacing": 0}, None),
    ("solve_poisson", (A,), {"boundary": (1, 2)}, None),
    ("kmeans", (v, 2), {}, None),
    ("kmeans", (z, 2), {}, None),
    ("kmeans", (A, 2), {"device": "tpu"}, None),
    ("kmeans", (A, 2), {"method": "lu"}, None),
    ("kmeans", (A, 9), {}, None),
    ("kmeans", (A, 2), {"init": "best"}, None),
]


RIGHT = {
    "matvec": (A, v), "matmul": (A, A), "convolve2d": (A, A), "solve_cg": (np.eye(6), v),
    "solve_poisson": (A,), "kmeans": (np.eye(6), 2),
}  # fmt: skip


def error_of(function, operands, options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            function(*operands, **options)
        except Exception as error:
            return type(error), str(error)
    raise AssertionError(f"{function.__name__} takes {options}")


def answer(name, operands, options, reference):
    """The call, and below it the error; without the names of this machine's devices and rungs."""
    kind, text = error_of(getattr(hetero, name), operands, options)
    if reference is not None and (kind, text) == error_of(reference, operands, options):
        text = f"as {reference.__module__.partition('.')[0]}'s {reference.__name__}"
    text = re.sub(r"(?<=^device must be one of 'cpu')(, '[^']+')*", ", ...", text)
    text = re.sub(r"; '[^']+' is all of a kind|; did you mean .*\?(?= \('hetero info)", "", text)
    text = text.replace(" ('hetero ladder' times simpler kernels)", "")
    shown = [f"{x.dtype}{x.shape}" if isinstance(x, np.ndarray) else repr(x) for x in operands]
    shown += [
        f"{key}={value.shape if isinstance(value, np.ndarray) else repr(value)}"
        for key, value in options.items()
    ]
    return f"{name}({', '.join(shown)})\n    {kind.__name__}: {text}\n"


def answers(name):
    return "".join(answer(*case) for case in WRONG if case[0] == name)


@pytest.mark.parametrize("name", dict.fromkeys(case[0] for case in WRONG))
def test_what_wrong_inputs_are_answered(name):
    text = (FOLDER / f"wrong_{name}.txt").read_text("utf-8")
    assert answers(name) == text
    getattr(hetero, name)(*RIGHT[name])
    assert answers(name) == text  # after a remembered call too


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    texts = {name: explained(call)[1] for name, call in CALLS.items()} | {"json": keys_of_json()}
    texts |= {f"wrong_{name}": answers(name) for name in dict.fromkeys(c[0] for c in WRONG)}
    for name, text in texts.items():
        (FOLDER / f"{name}.txt").write_text(text, "utf-8")
