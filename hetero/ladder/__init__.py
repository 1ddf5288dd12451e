"""The documents' kernels as a course: each family's ladder compiled, checked and timed.

`ladder` times the steps of a family, `sweep` one step with every legal block, `probe` a pattern of
access to memory. Kernels and tables are in ``kernels/<family>/ladder.*``; no plan takes them.
"""
