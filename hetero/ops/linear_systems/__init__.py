"""What the solves share: the system's types, compiled loops, scaling, row partition."""
