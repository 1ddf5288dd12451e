"""What measures the house sees what it is to see; prose is no wider than it may be."""

import house


def test_all_of_it_is_counted(tmp_path, monkeypatch):
    monkeypatch.setattr(house, "SECONDS", tmp_path / "seconds")
    house.SECONDS.write_text("480\n")
    found = house.measured()
    assert found["lines of source"] > found["of code"] > found["statements"] > found["modules"]
    assert found["modules"] == sum(map(len, house.rooms().values()))
    assert found["files entered by a first product"] > found["files entered by the second one"] > 0
    assert found["seconds of the last make test"] == 480


def test_code_is_what_is_neither_blank_nor_comment_nor_docstring():
    text = '"""Module."""\n\nx = (\n    1\n)  # one\n# two\n'
    assert house.code(text) == (3, 1)
    assert house.code(text + 'def f():\n    """F.\n\n    G."""\n    return x\n') == (5, 3)


def test_no_line_of_prose_is_too_long(tmp_path, monkeypatch):
    assert house.long_lines() == 0
    page = tmp_path / "page.md"
    long = "x" * 101
    page.write_text(f"{long}\n| {long}\n```\n{long}\n```\n\n    {long}\n")
    monkeypatch.setattr(house, "pages", lambda: [page])
    assert house.long_lines() == 1
