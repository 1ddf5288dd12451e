"""What earlier versions had, and what to use instead."""

from __future__ import annotations

TEXT = "{} was removed in 0.2: {}"

# (operation, method) -> what to use instead.
METHODS = {
    ("matvec", "library"): "'tiled' is within 10 % of cuBLAS, or faster",
    ("matvec", "streamed"): "'tiled', or 'blas' where a matrix is larger than the device",
    ("poisson", "cg"): "use solve_cg(hetero.Poisson(shape, spacing), b)",
    ("kmeans", "library"): "'lloyd' is faster than products by cuBLAS",
    ("kmeans", "hamerly"): "'lloyd' keeps bounds where they save time",
    ("convolve2d", "overlap_save"): "use method='fft'",
    ("convolve2d", "library"): "'direct' is as fast; for OpenCV call cv2.filter2D",
}


def method(operation: str, name: str) -> str | None:
    """The message for a method that was removed, None for another one."""
    instead = METHODS.get((operation, name))
    return instead and TEXT.format(f"{operation}'s method {name!r}", instead)
