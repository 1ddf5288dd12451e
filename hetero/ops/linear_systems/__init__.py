"""What the solves share: systems, the solve of a call, compiled loops, row partition."""
