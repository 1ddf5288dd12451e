"""What a rung launches, for `hetero ladder --source`."""
