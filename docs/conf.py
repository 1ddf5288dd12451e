"""The site, for Sphinx: ``make docs``. Its pages are docs/*.md, kernels/*/README.md and the
Markdown files at the top, where they lie; lists and references that a page names are filled in."""

from __future__ import annotations

import re
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import generate  # noqa: E402

import hetero  # noqa: E402

project = "hetero"
version = release = hetero.__version__
copyright = "the authors of hetero"
root_doc = "docs/index"
include_patterns = ["docs/**.md", "kernels/*/README.md", "*.md"]
exclude_patterns = [".*", "build", "hetero", "tests", "calibration", "docs/examples"]
extensions = ["sphinx.ext.autodoc", "numpydoc", "myst_parser"]
myst_heading_anchors = 4
suppress_warnings = ["myst.header"]  # kernels' pages may begin at any level
default_role = "py:obj"
highlight_language = "none"
autodoc_typehints = "none"
autodoc_member_order = "bysource"
numpydoc_show_class_members = False

html_theme = "pydata_sphinx_theme"
html_title = "hetero"
html_static_path = ["static/site.css"]
html_css_files = ["site.css"]
html_extra_path = ["static/index.html"]
html_context = {"default_mode": "auto"}
html_show_sourcelink = False
html_sidebars = {"**": []}
WHOLE = ("README", "docs/index", "docs/start")  # pages that need all of the width
html_theme_options = {
    "navbar_align": "left",
    "header_links_before_dropdown": 7,
    "show_prev_next": False,
    "footer_start": ["copyright"],
    "footer_end": [],
    "secondary_sidebar_items": {"**": ["page-toc"], **{name: [] for name in WHOLE}},
}
# Pages that list others: what their lists link to is below them in the site's navigation.
LISTS = ("index", "kernels")


def fill_in(app, docname: str, source: list[str]) -> None:
    """Put generated text in its place, and the table of contents below a page that lists others."""
    text = re.sub(
        r"^<!-- generated: (\w+) -->$", lambda m: generate.GENERATED[m[1]](), source[0], flags=re.M
    )
    if docname.removeprefix("docs/") in LISTS:
        found = re.findall(r"^(?:- |\| )\[([^]]*)\]\(([^)#]+\.md)\)", text, re.M)
        links = [f"{name.replace('`', '')} <{link}>" for name, link in found]
        text += "\n```{toctree}\n:hidden:\n\n" + "\n".join(links) + "\n```\n"
    source[0] = text


def escape(app, what, name, obj, options, lines: list[str]) -> None:
    """A device such as "cuda:*" begins no emphasis."""
    lines[:] = [re.sub(r'"(\w+):\*"', r'"\1:\\*"', line) for line in lines]


def skip(app, what, name: str, obj, skipped: bool, options) -> bool:
    """Methods that scikit-learn makes for its own routing of metadata."""
    return skipped or re.fullmatch(r"set_\w+_request", name) is not None


def setup(app) -> None:
    """Connect the functions above."""
    app.connect("source-read", fill_in)
    app.connect("autodoc-process-docstring", escape)
    app.connect("autodoc-skip-member", skip)
