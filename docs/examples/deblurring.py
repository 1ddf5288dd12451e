"""Deblurring an image with scikit-image's Richardson-Lucy iterations."""

import sys

import numpy as np
from scipy.signal import convolve2d
from skimage.restoration import richardson_lucy

size, steps = (160, 5) if "small" in sys.argv else (2048, 40)
random = np.random.default_rng(0)
y, x = np.mgrid[-1 : 1 : size * 1j, -1 : 1 : size * 1j]
image = 0.5 + 0.4 * np.sin(20 * x * y) * (x**2 + y**2 < 0.8)
j, i = np.mgrid[-7:8, -7:8]
blur = (i**2 + j**2 <= 50).astype(float)
blur /= blur.sum()
blurred = convolve2d(image, blur, mode="same", boundary="symm")
blurred += 0.001 * random.standard_normal(image.shape)
restored = richardson_lucy(blurred, blur, num_iter=steps, clip=False)
print(
    "error",
    abs(blurred - image)[20:-20, 20:-20].mean(),
    abs(restored - image)[20:-20, 20:-20].mean(),
)
