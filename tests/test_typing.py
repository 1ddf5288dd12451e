"""What type checkers and notebooks are told: arrays in, arrays of the same kind out."""

from __future__ import annotations

import re
import sys

import processes
import pytest
import release

PAGE = """
import numpy as np
from numpy.typing import NDArray

import hetero

image: NDArray[np.float64] = np.ones((64, 64))
f32: NDArray[np.float32] = np.ones((20, 30), np.float32)
reveal_type(hetero.convolve2d(image, image, mode="same"))  # NDArray[float64]
reveal_type(hetero.solve_poisson(f32, spacing=0.1))  # NDArray[float32]
u, how = hetero.solve_poisson(f32, return_info=True)
x, info = hetero.solve_cg(hetero.Poisson((20, 30)), image, rtol=1e-8)
reveal_type(x)  # NDArray[float64]
reveal_type(info)  # int
centroids, labels, details = hetero.kmeans(image, 8, random_state=0)
reveal_type(centroids)  # NDArray[float64]
reveal_type(hetero.matmul(image, image))  # NDArray[float64]
reveal_type(hetero.matvec(image, f32))  # NDArray[float32]
reveal_type(hetero.plan("matmul", image, image, profile="h100").chosen.device)  # str
with hetero.use(device="cpu"):
    reveal_type(hetero.to_host(image))  # NDArray
reveal_type(hetero.keep(image))  # NDArray[float64]
reveal_type(hetero.empty_pinned((3, 4), "float32"))  # NDArray
model = hetero.KMeans(3).fit(image)
hetero.calibrate(quick=True)
try:
    hetero.matmul(image, image, device="cuda")
except hetero.errors.DeviceNotAvailable as error:
    print(error, hetero.machine()["cpu"], hetero.memory(), hetero.spec((3, 4)))
reveal_type(hetero.spec((3, 4)).shape)  # tuple[int]
"""


def check(printed: str, pattern: str) -> None:
    """What a checker printed has the type that each line of `PAGE` names."""
    types = dict(re.findall(pattern, printed))
    wanted = [(n, line) for n, line in enumerate(PAGE.splitlines(), 1) if "reveal_type" in line]
    assert len(types) == len(wanted) > 10, printed
    for number, line in wanted:
        expected = line.partition("# ")[2]
        shown = re.sub(r"floating\[[\w.]*_32Bit\]", "float32", types[str(number)])
        for part in re.findall(r"\w+", expected.replace("NDArray", "ndarray")):
            assert part in shown, (line, shown)


def test_a_page_of_user_code_is_strictly_typed(tmp_path):
    page = tmp_path / "page.py"
    page.write_text(PAGE)
    command = ["-m", "mypy", "--strict", "--follow-imports=silent"]
    command += ["--cache-dir", tmp_path / "cache", page]
    found = processes.python(*command, cwd=release.ROOT, timeout=None)
    check(found.stdout, r"page\.py:(\d+): note: Revealed type is \"(.*)\"")


def test_a_page_of_user_code_is_strictly_typed_for_pyright(tmp_path):
    """It reads packages where they were installed to, so ``make release`` runs this."""
    pytest.importorskip("basedpyright", reason="make release installs it and runs this")
    (tmp_path / "page.py").write_text(PAGE)
    (tmp_path / "pyrightconfig.json").write_text('{"typeCheckingMode": "strict"}')
    found = processes.python("-m", "basedpyright", "--pythonpath", sys.executable, cwd=tmp_path)
    assert "0 errors, 0 warnings" in found.stdout
    check(found.stdout, r"page\.py:(\d+):\d+ - information: Type of .* is \"(.*)\"")
