"""`hetero report`: what is known of a machine, as one page for a browser that loads nothing.

=============  =====================================================================================
`build`        the page, put together
`answers`      what the page opens with
`machine`      what the machine is, and how far its profile can be trusted
`links`        copies: their curves and figures
`methods`      curves of methods, with their samples; `figures` draws them, and errors
`choices`      what is chosen over two sizes
`compared`     NumPy, SciPy and others on the same lines
`last`         the ladders and verifications that were measured last
`charts`       pictures: lines, rows of marks, regions
`drawing`      what pictures are made of: elements, scales, axes, marks
`markup`       what is around pictures; `template.html` has how everything looks
=============  =====================================================================================

Pictures are SVG written here: with matplotlib's they could not follow the reader's light or dark
ground, nor keep their text readable on a phone, and the page would be ten times as large.
"""

from hetero.evaluation.page.build import Page, page

__all__ = ["Page", "page"]
