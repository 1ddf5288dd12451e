"""Costs of a machine other than computing: links, overheads, equal GPUs."""
