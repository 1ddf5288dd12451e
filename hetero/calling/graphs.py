"""Batches of calls on device arrays, captured once and launched together."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from hetero import devices
from hetero.calling import planner
from hetero.devices.cuda.cooperative import LEGACY_STREAM, check
from hetero.errors import DeviceNotAvailable, GraphError, one_of
from hetero.imports import INSTALL, load
from hetero.profile import inventory

_CUDA = "cuda"


class Graph:
    """What `graph` gives: a ``with`` block that captures, then `launch`."""

    def __init__(self, name: str) -> None:
        self._executable: Any = None
        self._stack: ExitStack | None = None
        self._kept: Any = None
        self._context: int | None = None
        self.name = name
        self._device: Any = devices.get(name)

    def __enter__(self) -> Graph:
        if self._stack is not None or self._executable is not None:
            raise GraphError("a graph is captured once; make another one")
        if self._device.capturing:
            raise GraphError("another graph is being captured in this thread")
        driver = _driver()
        with ExitStack() as stack:
            stack.enter_context(self._device.active())
            stack.enter_context(planner.use(device=self.name))
            token = planner.capturing.set(self.name)
            stack.callback(planner.capturing.reset, token)
            self._context = self._device.context_handle()
            self._queue = self._device.new_stream()
            mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
            check(driver.cuStreamBeginCapture(self._queue.handle, mode))
            self._device.begin_capture(self._queue)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        driver = _driver()
        assert self._stack is not None
        with self._stack:
            self._kept = self._device.end_capture()
            status, captured = driver.cuStreamEndCapture(self._queue.handle)
            del self._queue  # in this thread, as streams want it
            if error is not None:
                if int(status) == 0:
                    check(driver.cuGraphDestroy(captured))
                return
            check((status,))
            try:
                self._executable = check(driver.cuGraphInstantiate(captured, 0))
            finally:
                check(driver.cuGraphDestroy(captured))

    def launch(self) -> None:
        """Run all captured work, in order, in the device's default stream; returns at once.

        Raises
        ------
        GraphError
            Before the ``with`` block has ended, or after it ended in an error; in another CUDA
            context.
        DeviceError
            What the driver says.
        """
        if self._executable is None:
            raise GraphError("there is nothing to launch before the with block has ended well")
        driver = _driver()
        with self._device.active():
            if self._device.context_handle() != self._context:
                raise GraphError("a graph is launched in the CUDA context that it was captured in")
            check(driver.cuGraphLaunch(self._executable, LEGACY_STREAM))

    def __del__(self) -> None:
        if self._executable is not None:
            try:
                with self._device.active():
                    _driver().cuGraphExecDestroy(self._executable)
            except Exception:  # the process is ending, and the driver frees it
                return


def graph(device: str | None = None) -> Graph:
    """Capture calls on an NVIDIA GPU's arrays in a ``with`` block, to launch them all at once.

    Inside the block `matmul`, `matvec` and `convolve2d` compute nothing yet; their arrays hold
    results after `Graph.launch`, which reads the operands anew each time. A hundred small products
    take the host 12 to 19 us to launch and the device 160 us to compute (H200).

    Parameters
    ----------
    device : str, optional
        The CUDA device to capture on, such as "cuda:0". Default: the first one.

    Returns
    -------
    Graph
        It keeps the arrays, and the workspaces of the kernels, until it is dropped.

    Raises
    ------
    DeviceNotAvailable
        Without an NVIDIA GPU or such a device; or if ``cuda-bindings`` is not installed.
    GraphError
        Inside the block, for what cannot be captured: operands on the host or on another device,
        a solve, which looks at its residuals, or arrays of another stream than the default one.

    Notes
    -----
    The block holds for its thread alone. All work in it goes to the device, also what would be
    faster on the CPU. A filter of `convolve2d` that lies on the host keeps the values it had.
    Host arrays of dtypes that run on the CPU only are no part of a graph: they are computed at
    once.

    Examples
    --------
    >>> import hetero
    >>> with hetero.graph() as g:  # doctest: +SKIP
    ...     for A, x, y in work:
    ...         hetero.matvec(A, x, out=y)
    >>> g.launch()  # doctest: +SKIP
    """
    names = [name for name in inventory.devices() if name.partition(":")[0] == _CUDA]
    if not names:
        raise DeviceNotAvailable(
            "graphs need a CUDA device, and there is none ('hetero info' tells what is missing)"
        )
    device = device or names[0]
    if device not in names:
        raise DeviceNotAvailable(one_of("device", names, device))
    _driver()
    return Graph(device)


def _driver() -> Any:
    try:
        driver = load("cuda.bindings.driver")
    except ImportError as error:
        needed = f"graphs need cuda-bindings; {INSTALL['cuda']} ({error})"
        raise DeviceNotAvailable(needed) from None
    return driver
