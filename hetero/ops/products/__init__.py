"""What the matrix products share."""
