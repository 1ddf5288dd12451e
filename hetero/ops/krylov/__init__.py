"""Conjugate gradients: the algorithm, for the CPU and for one device or several."""
