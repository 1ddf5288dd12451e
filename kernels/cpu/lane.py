"""A loop that copies slice after slice between an array and a device, without the interpreter.

A thread that copies needs the interpreter's lock between any two steps of a slice, and eight such
threads wait for it longer than they copy: 130 us a slice. In this loop they need it once for many
slices. And it makes no call to the driver that it can do without: such calls of several threads go
one after the other. It is a page of LLVM's instructions, compiled in 15 ms.

    upload:    wait until buffer k % 2 is free; copy slice k to it; begin to send it; k + 1
    download:  begin to fetch slice k + 1 to the other buffer; wait for slice k; copy it from its
               buffer; k + 1
"""

from __future__ import annotations

import ctypes
import functools
import logging
from collections.abc import Callable
from typing import Any

__all__ = ["FIELDS", "compile_ahead", "functions", "loop", "ready"]

log = logging.getLogger("hetero")
_compiled: dict[str, Callable[[Any], int]] = {}

# What the loop is told: an array of 64-bit integers. Addresses of C functions come first. Row and
# pitch: bytes of a row, and from one to the next on the host; a slice has some rows.
FIELDS = (
    *("memcpy", "send", "record", "await", "drain"),  # send(to, from, bytes, stream), as drivers do
    *("host", "device", "bytes", "slice", "stream"),
    *("row", "pitch"),
    *("buffer 0", "buffer 1", "event 0", "event 1"),
)


@functools.cache
def functions(driver: Any) -> dict[str, dict[str, int]]:
    """Addresses of the C functions by direction, of a loaded CUDA driver."""

    def address(function: Any) -> int:
        return ctypes.cast(function, ctypes.c_void_p).value or 0

    common = {
        "memcpy": address(ctypes.CDLL(None).memcpy),
        "record": address(driver.cuEventRecord),
        "await": address(driver.cuEventSynchronize),
        "drain": address(driver.cuStreamSynchronize),
    }
    return {
        "upload": {**common, "send": address(driver.cuMemcpyHtoDAsync_v2)},
        "download": {**common, "send": address(driver.cuMemcpyDtoHAsync_v2)},
    }


def ready(direction: str) -> Callable[[Any], int] | None:
    """The loop, None as long as `compile_ahead` has not finished or where it failed."""
    return _compiled.get(direction)


def compile_ahead() -> None:
    """Compile both loops; who asks for them meanwhile does without."""
    for direction in ("upload", "download"):
        try:
            _compiled[direction] = loop(direction)
        except Exception as error:  # of LLVM, on a machine that it does not know
            log.info("copies do without a compiled loop: %s", error)


@functools.cache
def loop(direction: str) -> Callable[[Any], int]:
    """The compiled loop, which takes an array of `FIELDS` and returns the first error, or 0.

    Nothing is on its way any longer when it returns.
    """
    from llvmlite import binding

    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    module = binding.parse_assembly(_assembly(direction))
    module.verify()
    machine = binding.Target.from_default_triple().create_target_machine(opt=2)
    engine = binding.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    found = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(engine.get_function_address(direction))
    found.engine = engine  # the code lives as long
    return found


def _assembly(direction: str) -> str:
    """The loop in LLVM's own language."""
    from llvmlite import ir

    i32, i64 = ir.IntType(32), ir.IntType(64)
    function = ir.Function(ir.Module(), ir.FunctionType(i32, [i64.as_pointer()]), name=direction)
    at = ir.IRBuilder(function.append_basic_block())
    field = {
        name: at.load(at.gep(function.args[0], [i64(number)])) for number, name in enumerate(FIELDS)
    }
    status, number, done = at.alloca(i32), at.alloca(i64), at.alloca(i64)
    at.store(i32(0), status)
    at.store(i64(0), number)
    slices = at.udiv(at.sub(at.add(field["bytes"], field["slice"]), i64(1)), field["slice"])

    def call(name: str, result: Any, *arguments: Any) -> Any:
        kind = ir.FunctionType(result, [i64] * len(arguments)).as_pointer()
        return at.call(at.inttoptr(field[name], kind), arguments)

    def checked(name: str, *arguments: Any) -> None:
        """Call a function of the driver, unless one has failed."""
        with at.if_then(at.icmp_signed("==", at.load(status), i32(0))):
            at.store(call(name, i32, *arguments), status)

    def chosen(name: str, k: Any) -> Any:
        odd = at.trunc(k, ir.IntType(1))
        return at.select(odd, field[f"{name} 1"], field[f"{name} 0"])

    def extent(k: Any) -> tuple[Any, Any]:
        """Where a slice begins, and how many bytes it has."""
        begin = at.mul(k, field["slice"])
        rest = at.sub(field["bytes"], begin)
        return begin, at.select(at.icmp_unsigned("<", rest, field["slice"]), rest, field["slice"])

    def send(k: Any) -> None:
        begin, nbytes = extent(k)
        device = at.add(field["device"], begin)
        ends = (
            (device, chosen("buffer", k))
            if direction == "upload"
            else (chosen("buffer", k), device)
        )
        checked("send", *ends, nbytes, field["stream"])
        checked("record", chosen("event", k), field["stream"])

    def copy(k: Any) -> None:
        begin, nbytes = extent(k)
        first = at.udiv(begin, field["row"])
        with at.if_then(at.icmp_signed("==", at.load(status), i32(0))):
            at.store(i64(0), done)
            rows, rest = function.append_basic_block(), function.append_basic_block()
            at.branch(rows)
            at.position_at_end(rows)
            now = at.load(done)
            row = at.add(first, at.udiv(now, field["row"]))
            host = at.add(field["host"], at.mul(row, field["pitch"]))
            packed = at.add(chosen("buffer", k), now)
            left = at.sub(nbytes, now)
            fits = at.icmp_unsigned("<", left, field["row"])
            ends = (packed, host) if direction == "upload" else (host, packed)
            call("memcpy", i64, *ends, at.select(fits, left, field["row"]))
            following = at.add(now, field["row"])
            at.store(following, done)
            at.cbranch(at.icmp_unsigned("<", following, nbytes), rows, rest)
            at.position_at_end(rest)

    if direction == "download":
        send(i64(0))
    body, end = function.append_basic_block(), function.append_basic_block()
    at.branch(body)
    at.position_at_end(body)
    k = at.load(number)
    following = at.add(k, i64(1))
    if direction == "upload":
        with at.if_then(at.icmp_unsigned(">", k, i64(1))):  # else it was not used yet
            checked("await", chosen("event", k))
        copy(k)
        send(k)
    else:
        with at.if_then(at.icmp_unsigned("<", following, slices)):
            send(following)
        checked("await", chosen("event", k))
        copy(k)
    at.store(following, number)
    more = at.icmp_unsigned("<", following, slices)
    at.cbranch(at.and_(more, at.icmp_signed("==", at.load(status), i32(0))), body, end)
    at.position_at_end(end)
    if direction == "upload":
        checked("await", chosen("event", at.sub(slices, i64(1))))  # the others come before
    with at.if_then(at.icmp_signed("!=", at.load(status), i32(0))):
        call("drain", i32, field["stream"])
    at.ret(at.load(status))
    return str(function.module)
