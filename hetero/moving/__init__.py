"""What moves between the host and devices: operands, results, kept copies; streams and failures."""
