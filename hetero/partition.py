"""Row partitions over several devices, and the halos between them."""
