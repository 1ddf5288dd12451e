"""`hetero report`: what is known of a machine, as one page for a browser that loads nothing.

=================  =================================================================================
`build`            the page
`machine`          what the machine is, and how far its profile can be trusted
`links`            curves of copies
`methods`          curves of methods, with their samples; `method_figures` their figures
`choices`          what is chosen over two sizes; `choice_figures` their figures
`errors`           how far predictions are off
`ladders`          ladders of kernels that were measured
`verified`         the last verification
`lines`            a picture of lines; `axes` their scales and ticks
`regions`          a picture of regions; `rows` of rows with marks
`marks`            dashes, markers and hatches, which tell them apart without colour
`svg`, `html`      markup; `style` how it looks
=================  =================================================================================

Pictures are SVG written here: with matplotlib's they could not follow the reader's light or dark
ground, nor keep their text readable on a phone, and the page would be ten times as large.
"""

from hetero.evaluation.page.build import Page, page

__all__ = ["Page", "page"]
