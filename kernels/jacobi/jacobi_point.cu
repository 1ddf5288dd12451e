// What a sweep makes of a point's neighbours, as in jacobi.cu.
DEVICE REAL swept(REAL given, REAL left, REAL right, REAL above, REAL below, REAL before, REAL after,
                  double row_factor, double line_factor, double column_factor, double f_factor)
{
    REAL sum = fma((REAL)column_factor, left + right, (REAL)f_factor * given);
    if (DIMS == 3) sum = fma((REAL)line_factor, above + below, sum);
    return fma((REAL)row_factor, before + after, sum);
}
