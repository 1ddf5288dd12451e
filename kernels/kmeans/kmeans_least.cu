        // In the body of a kernel, after a tile's products: the least distance of each of a thread's rows.
        {
            REAL smallest[THREAD_M];
            int whose[THREAD_M];
            const int column = tile * TILE_N + warp_n + LANE_N(lane);
            UNROLL
            for (int i = 0; i < THREAD_M; ++i) {
                smallest[i] = least[i * THREADS + thread];
                whose[i] = nearest[i * THREADS + thread];
            }
            UNROLL
            for (int j = 0; j < THREAD_N; j += WIDTH) {
                REAL norm[WIDTH];
                const VECTOR v = *(GLOBAL const VECTOR *)(norms + column + j * 4);
                UNPACK(norm, v);
                UNROLL
                for (int w = 0; w < WIDTH; ++w) {
                    UNROLL
                    for (int i = 0; i < THREAD_M; ++i) {
                        const REAL distance = norm[w] - 2 * sum[i][j + w];
                        if (distance < smallest[i]) {
                            smallest[i] = distance;
                            whose[i] = column + j * 4 + w;
                        }
                    }
                }
            }
            UNROLL
            for (int i = 0; i < THREAD_M; ++i) {
                least[i * THREADS + thread] = smallest[i];
                nearest[i * THREADS + thread] = whose[i];
            }
        }
