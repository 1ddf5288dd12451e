"""The documents' kernels as a course: each family's ladder compiled, checked and timed.

`ladder` times the steps of a family side by side, `sweep` one step with every legal block, `probe`
a pattern of access to memory. The kernels and their tables are in ``kernels/<family>/ladder.*``; no
plan takes them.
"""
