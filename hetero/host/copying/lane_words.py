"""Words in which the loops of `lane` are written for LLVM: variables, conditions, repetitions."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from llvmlite import ir

from hetero.host.copying import lane_task

__all__ = ["I32", "I64", "Code"]

I32, I64 = ir.IntType(32), ir.IntType(64)


class Variable:
    """A number of a function's own."""

    def __init__(self, at: ir.IRBuilder, value: Any) -> None:
        self._at = at
        with at.goto_entry_block():  # once, wherever it is used
            self._place = at.alloca(value.type)
        self.set(value)

    def get(self) -> Any:
        return self._at.load(self._place)

    def set(self, value: Any) -> None:
        self._at.store(value, self._place)

    def add(self, value: int) -> None:
        self.set(self._at.add(self.get(), I64(value)))


class Code:
    """A function of 64-bit integers that is being written."""

    def __init__(self, module: ir.Module, name: str, result: Any, arguments: int) -> None:
        kind = ir.FunctionType(result, [I64] * arguments)
        self.function = ir.Function(module, kind, name=name)
        if name not in lane_task.LOOPS:
            self.function.linkage = "internal"
        self.at = ir.IRBuilder(self.function.append_basic_block())
        self.arguments = self.function.args

    def variable(self, value: Any) -> Variable:
        return Variable(self.at, value)

    def word(self, begin: Any, number: Any) -> Any:
        """Pointer to a word."""
        at = self.at
        place = I64(8 * number) if isinstance(number, int) else at.mul(number, I64(8))
        return at.inttoptr(at.add(begin, place), I64.as_pointer())

    def read(self, begin: Any, number: Any) -> Any:
        """A word that others write."""
        return self.at.load_atomic(self.word(begin, number), "seq_cst", 8)

    def write(self, value: Any, begin: Any, number: Any) -> None:
        value = I64(value) if isinstance(value, int) else value
        self.at.store_atomic(value, self.word(begin, number), "seq_cst", 8)

    def count(self, step: int, begin: Any, number: Any) -> Any:
        """Add to a word that others add to; what it was before."""
        return self.at.atomic_rmw("add", self.word(begin, number), I64(step), "seq_cst")

    def exchanged(self, begin: Any, number: Any, before: Any, after: Any) -> Any:
        """Whether a word held one value, and now holds the other."""
        place = self.word(begin, number)
        return self.at.extract_value(self.at.cmpxchg(place, before, after, "seq_cst"), 1)

    def field(self, task: Any, name: str) -> Any:
        return self.at.load(self.word(task, lane_task.FIELDS[name]))

    def call(self, address: Any, result: Any, *arguments: Any) -> Any:
        """Call a C function by its address."""
        kind = ir.FunctionType(result, [I64] * len(arguments)).as_pointer()
        return self.at.call(self.at.inttoptr(address, kind), arguments)

    def least(self, one: Any, other: Any) -> Any:
        return self.at.select(self.at.icmp_unsigned("<", one, other), one, other)

    def quotient(self, value: Any, by: Any) -> Any:
        """Rounded up."""
        at = self.at
        return at.udiv(at.sub(at.add(value, by), I64(1)), by)

    def holds(self, one: Any, what: str, other: Any) -> Any:
        """A comparison."""
        other = one.type(other) if isinstance(other, int) else other
        return self.at.icmp_signed(what, one, other)

    @contextlib.contextmanager
    def forever(self) -> Iterator[tuple[Any, Any]]:
        """What is repeated: where that begins, and where it goes on after that."""
        body, end = self.function.append_basic_block(), self.function.append_basic_block()
        self.at.branch(body)
        self.at.position_at_end(body)
        yield body, end
        if not self.at.block.is_terminated:
            self.at.branch(body)
        self.at.position_at_end(end)

    @contextlib.contextmanager
    def when(self, *conditions: Any, then: Any = None) -> Iterator[None]:
        """What is done if conditions hold, and where that goes on, if not behind it."""
        condition = conditions[0]
        for other in conditions[1:]:
            condition = self.at.and_(condition, other)
        with self.at.if_then(condition):
            yield
            if then is not None:
                self.at.branch(then)
