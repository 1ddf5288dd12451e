"""Conjugate gradients and Poisson's equation, on the CPU, on devices and on several of them."""
