    // In the body of a kernel, after all tiles: of the threads that share a row, the one with the least
    // distance, and of several with equal ones the lowest centroid.
    __syncthreads();
    for (int r = thread; r < TILE_M; r += THREADS) {
        const int in_warp = r % (8 * THREAD_M);
        const int i = in_warp / (8 * WIDTH) * WIDTH + in_warp % WIDTH;
        const int first = i * THREADS + r / (8 * THREAD_M) * WARPS_N * 32 + in_warp % (8 * WIDTH) / WIDTH * 2;
        REAL smallest = least[first];
        int whose = nearest[first];
        UNROLL
        for (int other = 1; other < 4 * WARPS_N; ++other) {
            const int at = first + other / 4 * 32 + (other & 1) + (other >> 1 & 1) * 16;
            if (least[at] < smallest || (least[at] == smallest && nearest[at] < whose)) {
                smallest = least[at];
                whose = nearest[at];
            }
        }
        if (tile_m + r < n) write_label(labels, state, ROW(tile_m + r), whose);
    }
