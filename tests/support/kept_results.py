"""What `hetero verify` and `hetero ladder` keep, for pages of tests."""

from __future__ import annotations

VERIFIED = {
    "created": "2026-01-01T00:00:00+00:00",
    "problems": 3,
    "chosen_over_best": {"geometric_mean": 1.01, "p95": 1.1, "p99": 1.2, "worst": 1.3},
    "fastest": {"matmul blas on cpu": 3},
    "prediction_error": {"matmul blas on cpu": {"mean": 0.1, "p95": 0.2, "worst": 0.3}},
    "chosen_error": {"mean": 0.2, "p95": 0.3, "worst": 0.4},
    "left_out": {"cuda:1": "broken"},
    "worst_choices": ["1.30x a < b"],
}

_ROW = {"size": 64, "dims": [64, 64, 64], "instead_of": "", "over_cpu": 2.0}
_LEFT_OUT = {"method": "library", "idea": "", "reason": "it is not here"}
LADDER = {
    "created": "2026-01-01T00:00:00+00:00",
    "operation": "matmul",
    "device": "cuda:0",
    "name": "A <card>",
    "dtype": "float32",
    "what": "call",
    "roof": {
        "flops_per_second": 5e13,
        "bytes_per_second": 3e12,
        "how": "multiply-adds",
    },
    "rows": [
        {**_ROW, "number": 1, "method": "naive", "idea": "a < b", "gain": None, "share": 0.001}
        | {"seconds": 1e-3, "flops_per_second": 1e9, "bytes_per_second": 1.32e7},
        {**_ROW, "number": 2, "method": "shared", "idea": "", "gain": 10.0, "share": 0.25}
        | {"seconds": 1e-4, "flops_per_second": 1e10, "bytes_per_second": 1e8},
        {**_ROW, **_LEFT_OUT, "number": 3},
    ],
}
