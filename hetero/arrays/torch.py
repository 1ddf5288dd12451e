"""torch's tensors."""

from __future__ import annotations

from typing import Any

import numpy as np

from hetero.arrays.interface import Interface
from hetero.arrays.library import Access, NewArray, each
from hetero.imports import load


class Torch(Interface):
    """PyTorch's tensors, on the host or on a CUDA device."""

    modules = frozenset({"torch"})
    pickles = True

    def on_device(self, array: Any) -> bool:
        return bool(getattr(array, "is_cuda", True))

    def stream(self, array: Any, interface: dict[str, Any]) -> int | None:
        stream = interface.get("stream")
        if stream is not None:
            return stream
        torch = load("torch")  # which exports version 2 of the interface, without a stream
        return int(torch.cuda.current_stream(array.device).cuda_stream) or None

    def empty(
        self, like: Any, shape: tuple[int, ...], dtype: np.dtype, new_array: NewArray
    ) -> tuple[Any, int]:
        torch = load("torch")
        made = torch.empty(shape, dtype=getattr(torch, dtype.name), device=like.device)
        return made, made.data_ptr()

    def access(self, kind: type, several: bool) -> Access | None:
        if kind.__name__ != "Tensor":
            return None
        torch = load("torch")
        stream, ordinal = torch._C._cuda_getCurrentRawStream, torch.cuda.current_device
        strided = torch.strided
        return Access(
            each(lambda array: (array.shape, array.stride(), array.dtype, array.get_device())),
            lambda array: array.data_ptr(),
            lambda array: (
                array.is_cuda
                and array.layout is strided
                and not (array.requires_grad or array.is_neg())
            ),
            lambda device: lambda shape, dtype, like: like.new_empty(shape),
            lambda: not stream(ordinal()),
            None,
        )
