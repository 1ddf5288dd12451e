"""The documents' kernels as a course: each family's ladder compiled, checked and timed.

`ladder` times the steps of a family, or one step with every legal block, `probe` a pattern of
access to memory. Tables are in ``kernels/ladder.py``, kernels in a family's ``ladder*.cu``.
"""
