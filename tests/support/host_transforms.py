"""`cufft.RealTransform` by NumPy, on a device of any kind."""

from __future__ import annotations

import numpy as np


class RealTransform:
    """Transforms along the last axes, in place: rows of spectra lie where rows of values did."""

    def __init__(self, device, lengths, batch, dtype):
        self.device, self.lengths = device, tuple(lengths)
        self.axes = tuple(range(-len(lengths), 0))
        self.values = np.empty((batch, *lengths[:-1], 2 * (lengths[-1] // 2 + 1)), dtype)
        self.spectra = self.values.view(np.result_type(dtype, np.complex64))

    def forward(self, buffer):
        self.device.download(buffer, self.values)
        self.spectra[...] = np.fft.rfftn(self.values[..., : self.lengths[-1]], axes=self.axes)
        self.device.upload(self.values, buffer)

    def inverse(self, buffer):
        self.device.download(buffer, self.values)
        found = np.fft.irfftn(self.spectra, self.lengths, self.axes, norm="forward")
        self.values[..., : self.lengths[-1]] = found
        self.device.upload(self.values, buffer)
