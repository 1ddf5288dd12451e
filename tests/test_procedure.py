"""White's execution metrics and launch parameters (2013), against his printed equations."""

from __future__ import annotations

import pytest

from hetero.kernels.procedure import card as cards
from hetero.kernels.procedure import derive

T10 = cards.T10


def test_a_description_gives_its_card():
    assert cards.card(T10._asdict()) == T10


def test_fields_that_are_missing_are_named():
    lacking = {k: v for k, v in T10._asdict().items() if k not in ("registers", "blocks", "cache")}
    with pytest.raises(ValueError, match=r"lacks blocks, registers$"):
        cards.card(lacking)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"colour": "red"}, "got colour"),
        ({"threads": 0, "clock": -1.0}, "got threads 0, clock -1.0"),
        ({"transactions": (64, 32)}, r"got transactions \(64, 32\)"),
    ],
)
def test_fields_that_are_wrong_are_named(changed, message):
    with pytest.raises(ValueError, match=message):
        cards.card({**T10._asdict(), **changed})


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_shapes_are_legal_and_one_of_them_is_derived(dtype):
    item = {"float32": 4, "float64": 8}[dtype]
    for shapes, chosen in (
        (derive.shapes_matvec(T10, dtype), derive.matvec(T10, dtype, 1000, 700)),
        (derive.shapes_matmul(T10, dtype), derive.matmul(T10, dtype, 100, 300, 500)),
        (derive.shapes_convolve2d(T10, dtype), derive.convolve2d(T10, dtype, 100, 70, (3, 5))),
    ):
        assert chosen in shapes
        assert all(s.x * item >= 32 and s.x * s.y <= 512 for s in shapes)
        assert len(set(shapes)) == len(shapes)
