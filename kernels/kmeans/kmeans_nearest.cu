    // In the body of a kernel, after all tiles: of the threads that share a row, the one with the least
    // distance, and of several with equal ones the lowest centroid. FIRST_OF_ROW is where the first of them
    // has its least distance, OF_ROW how far from there the others have theirs.
    __syncthreads();
    for (int r = thread; r < TILE_M; r += THREADS) {
        const int first = FIRST_OF_ROW(r);
        REAL smallest = least[first];
        int whose = nearest[first];
        UNROLLED_RANGE(other, 1, 4 * WARPS_N, 1) {
            const int at = first + OF_ROW(other);
            if (least[at] < smallest || (least[at] == smallest && nearest[at] < whose)) {
                smallest = least[at];
                whose = nearest[at];
            }
        }
        if (tile_m + r < n) write_label(labels, state, ROW(tile_m + r), whose);
    }
