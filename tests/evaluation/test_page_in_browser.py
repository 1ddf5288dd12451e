"""`hetero report` in a real browser: on a phone, on a desk, in the dark.

Where Chromium is installed; on Debian or Ubuntu: ``apt-get install chromium``.
"""

from __future__ import annotations

import json

import browser
import pytest
from kept_results import LADDER, VERIFIED

from hetero import profile
from hetero.evaluation.page import last, page

pytestmark = pytest.mark.skipif(browser.FOUND is None, reason="no Chromium is installed")

PHONE, DESK = 360, 1280
TILES = ["From where a GPU pays", "How far predictions are off"]
TILES += ["Time of the choice over the best", "Next"]
LIGHT, DARK = "rgb(255, 255, 255)", "rgb(22, 24, 26)"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A page with everything that there can be on one."""
    file = tmp_path_factory.mktemp("profile") / "here.json"
    profile.shipped("tesla-t10").save(file)
    kept = {last.VERIFY: {"matmul, on host": VERIFIED}, last.LADDER: {"matmul": LADDER}}
    last.file_of(file).write_text(json.dumps(kept), "utf-8")
    return page(str(file))


@pytest.mark.parametrize(
    ("width", "ground", "options"),
    [(PHONE, DARK, ("--force-dark-mode",)), (DESK, LIGHT, ())],
)
def test_everything_is_drawn_and_nothing_is_cut(made, tmp_path, width, ground, options):
    """All tables unfolded: pictures have a size, letters can be read and lie in their picture, one
    beside the other; nothing is wider than the window; the browser has nothing to complain of."""
    assert "…" not in made.html
    found = browser.look(made.html, tmp_path, width, *options)
    assert found["sections"][:4] == TILES
    assert found["sections"][-3:] == ["Ladders of kernels", "The last verification", "The machine"]
    assert found["stacked"] == (width == PHONE)
    assert found["log"] == found["problems"] == []
    assert (found["width"], found["scroll"]) == (width, width)
    assert found["cut"] == []
    assert len(found["pictures"]) == made.pictures > 10
    for one in found["pictures"]:
        wide, high = one["box"]
        assert 0.9 * min(width, 340) < wide <= width, one
        assert high > 60, one
        assert one["drawn"] > 4, one
        assert one["letters"] > 9.0, one
        assert one["outside"] == one["over"] == [], one
    assert found["ground"] == ground


def test_a_page_that_is_cut_or_loads_something_is_seen(made, tmp_path):
    """What the test above would not forgive."""
    wide = '<p style="width:2000px">wide</p><img src="https://example.org/none.png">'
    found = browser.look(made.html.replace("<nav", f"{wide}<nav", 1), tmp_path, PHONE)
    assert found["scroll"] > PHONE
    assert any("wide" in one for one in found["cut"])
    assert any("example.org" in one for one in found["problems"] + found["log"])
