"""The algorithms behind solve_cg and solve_poisson: one method on one kind of device per module.

They know nothing of plans or prices. Each takes a system, a right-hand side and a start, and gives
an `Outcome`. Nothing here is imported before the first solve.
"""
