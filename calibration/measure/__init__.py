"""From cases to samples: timing, what is repeated, and what is kept out."""
