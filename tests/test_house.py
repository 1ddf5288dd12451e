"""The house keeps within its limits, and what measures it sees what it is to see."""

import house
import pytest


def test_it_keeps_within_its_limits():
    beyond = {name: both for name, both in house.measured().items() if both[0] > both[1]}
    assert not beyond, "tests/house.toml says how much is allowed"


@pytest.mark.parametrize("name", ["lines of source", "modules", "'told'", "modules in hetero"])
def test_more_than_allowed_fails(name, monkeypatch, capsys):
    now, _ = house.measured()[name]
    monkeypatch.setattr(house, "measured", lambda: {name: (now, now - 1)})
    assert house.main() == 1
    assert "TOO MANY" in capsys.readouterr().out


def test_every_room_is_counted():
    rooms = house.rooms()
    assert {"hetero/host/copying", "calibration/fit", "kernels/cg"} <= rooms.keys()
    assert sum(map(len, rooms.values())) == len(house.python(*house.SOURCE))
    assert "problem" in house.glossary()
    assert len(house.glossary()) > 20


def test_a_line_that_is_too_long_is_seen(tmp_path, monkeypatch):
    page = tmp_path / "page.md"
    long = "x" * 101
    page.write_text(f"{long}\n| {long}\n```\n{long}\n```\n\n    {long}\n")
    monkeypatch.setattr(house, "pages", lambda: [page])
    assert house.long_lines() == 1
