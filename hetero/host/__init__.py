"""The process's own CPU side: threads, BLAS, pages of results, compiled loops, copies."""
