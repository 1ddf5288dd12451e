"""An image in few colours, by scikit-learn's KMeans."""

import sys

import numpy as np
from sklearn.cluster import KMeans

sizes = {"small": (60, 6), "large": (2048, 64)}
size, colours = sizes.get(sys.argv[-1], (1024, 48))
random = np.random.default_rng(0)
y, x = np.mgrid[0 : 1 : size * 1j, 0 : 1 : size * 1j]
image = np.stack([np.sin(9 * x * y), np.cos(7 * x), np.sin(5 * y + x)], axis=-1)
image += 0.05 * random.standard_normal(image.shape)
pixels = image.reshape(-1, 3)
found = KMeans(colours, n_init=1, max_iter=60, random_state=0).fit(pixels)
painted = found.cluster_centers_[found.labels_].reshape(image.shape)
print("difference", np.sqrt(((painted - image) ** 2).mean()))
