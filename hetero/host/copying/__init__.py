"""Copies between ordinary host memory and pinned buffers, by threads without the GIL."""
