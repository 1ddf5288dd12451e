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
    "links": {},
    "worst_choices": ["1.30x a < b"],
}

LADDER = {
    "created": "2026-01-01T00:00:00+00:00",
    "operation": "matmul",
    "device": "cuda:0",
    "name": "A <card>",
    "dtype": "float32",
    "what": "call",
    "roof": {"flops_per_second": 5e13, "bytes_per_second": 3e12, "how": "multiply-adds"},
    "rows": [
        {"size": 64, "dims": [64, 64, 64], "number": 1, "method": "naive", "idea": "a < b"}
        | {"seconds": 1e-3, "flops_per_second": 1e9, "bytes_per_second": 1.32e7}
        | {"gain": None, "share": 0.001},
        {"size": 64, "dims": [64, 64, 64], "number": 2, "method": "shared", "idea": ""}
        | {"seconds": 1e-4, "flops_per_second": 1e10, "bytes_per_second": 1e8}
        | {"gain": 10.0, "share": 0.25},
        {"size": 64, "dims": [64, 64, 64], "number": 3, "method": "library", "idea": ""}
        | {"reason": "it is not here"},
        {"size": 128, "dims": [128, 128, 128], "number": 1, "method": "naive", "idea": "a < b"}
        | {"reason": "would take 3 hours"},
    ],
}
