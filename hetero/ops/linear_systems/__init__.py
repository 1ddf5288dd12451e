"""What the solves share: the system's types, grids, scaling, row partition."""
