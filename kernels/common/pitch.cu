// Lines from one distance to another: target[line, column] = source[line, column].
//
// `lines` lines of `columns` elements, `source_pitch` and `target_pitch` elements apart. What lies
// between the lines of the target stays as it is. Any alignment.
// Per element: 2 elements moved.

KERNEL(THREADS, 1)
change_pitch(GLOBAL const REAL *RESTRICT source, GLOBAL REAL *RESTRICT target, index_t lines,
             index_t columns, index_t source_pitch, index_t target_pitch, index_t blocks)
{
    const index_t tiles = (columns + THREADS - 1) / THREADS;
    for (index_t tile = blockIdx.x; tile < lines * tiles; tile += blocks) {
        const index_t line = tile / tiles;
        const index_t column = tile % tiles * THREADS + threadIdx.x;
        if (column < columns)
            target[line * target_pitch + column] = source[line * source_pitch + column];
    }
}
