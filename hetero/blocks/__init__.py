"""One call cut into ranges for several devices, or for the CPU and one: cut, price, run."""
