// What every rung of the matrix product is given: A of m x k, B of k x n and C of m x n elements, and the
// distances in elements from one matrix of the batch, one row and one column to the next.

#define MATRICES                                                                                            \
    GLOBAL const REAL *RESTRICT A, GLOBAL const REAL *RESTRICT B, GLOBAL REAL *RESTRICT C, index_t m,       \
        index_t n, index_t k, index_t a_batch, index_t a_row, index_t a_column, index_t b_batch,            \
        index_t b_row, index_t b_column, index_t c_batch, index_t c_row, index_t c_column

// The element at a row and a column of one matrix of the batch, as AT(A, a, item, row, column).
#define AT(X, x, item, row, column) (X)[(item) * x##_batch + (row) * x##_row + (column) * x##_column]
