"""Costs of a machine other than computing: links, overheads, BLAS's threads, equal GPUs."""
