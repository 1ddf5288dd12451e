"""From cases to samples: timing, repetition and outliers."""
