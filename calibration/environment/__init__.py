"""What a machine does around calls: links, overheads, BLAS's threads, equal GPUs."""
