"""From samples to constants."""
