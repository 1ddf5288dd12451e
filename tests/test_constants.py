"""docs/constants.md is what `make constants` writes, and each constant has a reason."""

import constants


def test_each_has_a_reason():
    assert not [c.where for c in constants.constants() if len(c.reason.split()) < 2]


def test_the_page_is_what_the_sources_say():
    assert constants.PAGE.read_text("utf-8") == constants.page(), "run: make constants"
