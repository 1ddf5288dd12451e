"""Geometric multigrid: a method of its own, and a preconditioner."""
