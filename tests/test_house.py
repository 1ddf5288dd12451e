"""Prose is no wider than it may be, by what measures the house."""

import house


def test_no_line_of_prose_is_too_long():
    assert house.long_lines() == 0
