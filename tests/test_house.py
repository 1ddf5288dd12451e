"""Prose is no wider than it may be, by what measures the house."""

import house


def test_no_line_of_prose_is_too_long(tmp_path, monkeypatch):
    assert house.long_lines() == 0
    page = tmp_path / "page.md"
    long = "x" * 101
    page.write_text(f"{long}\n| {long}\n```\n{long}\n```\n\n    {long}\n")
    monkeypatch.setattr(house, "pages", lambda: [page])
    assert house.long_lines() == 1
