"""From cases to samples: timing and repetition."""
