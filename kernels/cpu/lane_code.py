"""The loops of `lane` in LLVM's own language.

Each function is written top to bottom in the words of `_Code`: variables, words of memory that
threads share, loops, conditions. Words that several threads write are read and written in order.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from llvmlite import ir

from . import lane_task

__all__ = ["assembly"]

_NOT_READY = 600  # CUDA_ERROR_NOT_READY
_LOOKS = 1000  # for an event, of a microsecond each, before the driver is left to wait for it
_VECTOR = 64  # bytes that are stored at once past the caches
_I32, _I64 = ir.IntType(32), ir.IntType(64)


def assembly() -> str:
    """The module's text."""
    module = ir.Module()
    for write in (_take, _leave, _wake, _past, _copy, _upload, _download, _serve):
        write(module)
    return str(module)


class _Variable:
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
        self.set(self._at.add(self.get(), _I64(value)))


class _Code:
    """A function of 64-bit integers that is being written."""

    def __init__(self, module: ir.Module, name: str, result: Any, arguments: int) -> None:
        kind = ir.FunctionType(result, [_I64] * arguments)
        self.function = ir.Function(module, kind, name=name)
        if name not in lane_task.LOOPS:
            self.function.linkage = "internal"
        self.at = ir.IRBuilder(self.function.append_basic_block())
        self.arguments = self.function.args

    def variable(self, value: Any) -> _Variable:
        return _Variable(self.at, value)

    def word(self, begin: Any, number: Any) -> Any:
        """Pointer to a word."""
        at = self.at
        place = _I64(8 * number) if isinstance(number, int) else at.mul(number, _I64(8))
        return at.inttoptr(at.add(begin, place), _I64.as_pointer())

    def read(self, begin: Any, number: Any) -> Any:
        """A word that others write."""
        return self.at.load_atomic(self.word(begin, number), "seq_cst", 8)

    def write(self, value: Any, begin: Any, number: Any) -> None:
        value = _I64(value) if isinstance(value, int) else value
        self.at.store_atomic(value, self.word(begin, number), "seq_cst", 8)

    def count(self, step: int, begin: Any, number: Any) -> None:
        """Add to a word that others add to."""
        self.at.atomic_rmw("add", self.word(begin, number), _I64(step), "seq_cst")

    def exchanged(self, begin: Any, number: Any, before: Any, after: Any) -> Any:
        """Whether a word held one value, and now holds the other."""
        place = self.word(begin, number)
        return self.at.extract_value(self.at.cmpxchg(place, before, after, "seq_cst"), 1)

    def field(self, task: Any, name: str) -> Any:
        return self.at.load(self.word(task, lane_task.FIELDS[name]))

    def call(self, address: Any, result: Any, *arguments: Any) -> Any:
        """Call a C function by its address."""
        kind = ir.FunctionType(result, [_I64] * len(arguments)).as_pointer()
        return self.at.call(self.at.inttoptr(address, kind), arguments)

    def least(self, one: Any, other: Any) -> Any:
        return self.at.select(self.at.icmp_unsigned("<", one, other), one, other)

    def quotient(self, value: Any, by: Any) -> Any:
        """Rounded up."""
        at = self.at
        return at.udiv(at.sub(at.add(value, by), _I64(1)), by)

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

    def both(self, one: Any, other: Any) -> Any:
        return self.at.and_(one, other)


def _take(module: ir.Module) -> None:
    """take(task): the number of a chunk that nobody has taken, or -1."""
    code = _Code(module, "take", _I64, 1)
    (task,) = code.arguments
    with code.forever():
        number = code.read(task, lane_task.NEXT)
        with code.when(code.holds(number, ">=", code.read(task, lane_task.LIMIT))):
            code.at.ret(_I64(-1))
        following = code.at.add(number, _I64(1))
        with code.when(code.exchanged(task, lane_task.NEXT, number, following)):
            code.at.ret(number)
    code.at.unreachable()


def _leave(module: ir.Module) -> None:
    """leave(task): let no chunk be taken any longer; returns when nobody copies."""
    code = _Code(module, "leave", ir.VoidType(), 1)
    (task,) = code.arguments
    code.write(0, task, lane_task.OPEN)
    code.write(0, task, lane_task.LIMIT)
    with code.forever() as (_, end):
        with code.when(code.holds(code.read(task, lane_task.USERS), "==", 0), then=end):
            pass
        code.call(code.field(task, "yield"), _I32)
    code.at.ret_void()


def _wake(module: ir.Module) -> None:
    """wake(task, most): wake so many of those who sleep, if there are as many."""
    code = _Code(module, "wake", ir.VoidType(), 2)
    task, most = code.arguments
    team, left = code.field(task, "team"), code.variable(most)
    semaphore = code.at.add(team, _I64(8 * lane_task.SHARED["semaphore"]))
    with code.forever() as (again, end):
        asleep = code.read(team, lane_task.SHARED["asleep"])
        enough = code.at.or_(code.holds(asleep, "<=", 0), code.holds(left.get(), "<=", 0))
        with code.when(enough, then=end):
            pass
        fewer = code.at.sub(asleep, _I64(1))
        with code.when(code.exchanged(team, lane_task.SHARED["asleep"], asleep, fewer), then=again):
            code.call(code.field(task, "post"), _I32, semaphore)
            left.add(-1)
    code.at.ret_void()


def _past(module: ir.Module) -> None:
    """past(to, from, bytes): copy whole vectors to where one begins, past the caches."""
    code = _Code(module, "past", ir.VoidType(), 3)
    to, source, nbytes = code.arguments
    at, vector = code.at, ir.VectorType(_I64, _VECTOR // 8).as_pointer()
    mark = module.add_metadata([_I32(1)])
    done = code.variable(_I64(0))
    with code.forever() as (_, end):
        begin = done.get()
        with code.when(code.holds(begin, ">=", nbytes), then=end):
            pass
        value = at.load(at.inttoptr(at.add(source, begin), vector), align=1)
        stored = at.store(value, at.inttoptr(at.add(to, begin), vector), align=_VECTOR)
        stored.set_metadata("nontemporal", mark)
        done.add(_VECTOR)
    at.ret_void()


def _copy(module: ir.Module) -> None:
    """copy(task, number): copy a chunk, and count it."""
    code = _Code(module, "copy", ir.VoidType(), 2)
    task, number = code.arguments
    at, memcpy = code.at, code.field(task, "memcpy")
    slice_, chunk, row = (code.field(task, name) for name in ("slice", "chunk", "row"))
    lead, past = code.field(task, "lead"), code.field(task, "past")
    of_slice = code.quotient(slice_, chunk)
    which = at.udiv(number, of_slice)
    inside = at.mul(at.urem(number, of_slice), chunk)
    buffer = at.urem(which, code.field(task, "buffers"))
    # Places are counted from ``lead`` bytes before the array.
    start = at.mul(which, slice_)
    stop = at.add(start, code.least(slice_, at.add(inside, chunk)))
    end = code.least(stop, at.add(code.field(task, "bytes"), lead))
    begin = at.add(start, inside)
    begin = at.select(code.holds(begin, "<", lead), lead, begin)
    shift = at.sub(at.add(code.field(task, "base"), at.mul(buffer, slice_)), start)
    place = code.variable(begin)
    with code.forever() as (_, finish):
        now = place.get()
        with code.when(code.holds(now, ">=", end), then=finish):
            pass
        there = at.sub(now, lead)
        first, column = at.udiv(there, row), at.urem(there, row)
        size = code.least(at.sub(row, column), at.sub(end, now))
        down = at.mul(first, code.field(task, "pitch"))
        host = at.add(at.add(code.field(task, "host"), down), column)
        packed = at.add(shift, now)
        is_download = code.holds(code.field(task, "download"), "!=", 0)
        to, source = at.select(is_download, host, packed), at.select(is_download, packed, host)
        place.set(at.add(now, size))
        with at.if_else(code.holds(size, ">=", past)) as (large, small):
            with large:
                head = at.and_(at.sub(_I64(0), to), _I64(_VECTOR - 1))
                middle = at.and_(at.sub(size, head), _I64(-_VECTOR))
                behind = at.add(head, middle)
                code.call(memcpy, _I64, to, source, head)
                aligned = at.add(to, head), at.add(source, head), middle
                at.call(module.get_global("past"), aligned)
                rest = at.sub(size, behind)
                code.call(memcpy, _I64, at.add(to, behind), at.add(source, behind), rest)
            with small:
                code.call(memcpy, _I64, to, source, size)
    at.fence("seq_cst")  # stores past the caches come in no order
    code.count(1, at.add(task, at.mul(buffer, _I64(8))), lane_task.DONE)
    at.ret_void()


class _Leader(_Code):
    """What both directions have in common."""

    def __init__(self, module: ir.Module, name: str) -> None:
        super().__init__(module, name, _I32, 1)
        (self.task,) = self.arguments
        self.module, self.is_upload = module, name == "upload"
        at, task = self.at, self.task
        self.slice, self.chunk = self.field(task, "slice"), self.field(task, "chunk")
        self.lead, self.buffers = self.field(task, "lead"), self.field(task, "buffers")
        self.end = at.add(self.field(task, "bytes"), self.lead)
        self.slices = self.quotient(self.end, self.slice)
        self.of_slice = self.quotient(self.slice, self.chunk)
        before = at.mul(at.sub(self.slices, _I64(1)), self.slice)
        self.of_last = self.quotient(at.sub(self.end, before), self.chunk)
        self.status = self.variable(_I32(0))
        self.idle = self.variable(_I64(0))  # looks since there was something to do

    def allow(self, slices: Any) -> None:
        """Let the chunks of so many slices be taken."""
        at = self.at
        is_all = self.holds(slices, "==", self.slices)
        before = at.mul(at.sub(slices, _I64(1)), self.of_slice)
        more = at.select(is_all, self.of_last, self.of_slice)
        limit = at.select(self.holds(slices, "==", 0), _I64(0), at.add(before, more))
        self.write(limit, self.task, lane_task.LIMIT)
        self.idle.set(_I64(0))
        free = at.sub(limit, self.read(self.task, lane_task.NEXT))
        at.call(self.module.get_global("wake"), [self.task, free])

    def is_copied(self, number: Any) -> Any:
        """Whether all chunks of a slice were."""
        at = self.at
        is_last = self.holds(at.add(number, _I64(1)), "==", self.slices)
        wanted = at.select(is_last, self.of_last, self.of_slice)
        return self.holds(self.read(self._done(number), lane_task.DONE), "==", wanted)

    def restart(self, number: Any) -> None:
        """Count the chunks of the buffer of a slice anew."""
        self.write(0, self._done(number), lane_task.DONE)

    def _done(self, number: Any) -> Any:
        return self.at.add(self.task, self.at.mul(self.at.urem(number, self.buffers), _I64(8)))

    def event(self, number: Any) -> Any:
        buffer = self.at.urem(number, self.buffers)
        first = self.at.add(buffer, _I64(lane_task.FIELDS["event 0"]))
        return self.at.load(self.word(self.task, first))

    def move(self, number: Any) -> None:
        """Let the driver send or fetch a slice."""
        at, task = self.at, self.task
        start = at.mul(number, self.slice)
        begin = at.select(self.holds(start, "<", self.lead), self.lead, start)
        nbytes = at.sub(self.least(at.add(start, self.slice), self.end), begin)
        buffer = at.mul(at.urem(number, self.buffers), self.slice)
        packed = at.add(self.field(task, "base"), at.add(buffer, at.sub(begin, start)))
        device = at.add(self.field(task, "device"), at.sub(begin, self.lead))
        ends = (device, packed) if self.is_upload else (packed, device)
        stream = self.field(task, "stream")
        self.checked("send", *ends, nbytes, stream)
        self.checked("record", self.event(number), stream)

    def checked(self, name: str, *arguments: Any) -> None:
        """Call a function of the driver, unless one has failed."""
        with self.when(self.holds(self.status.get(), "==", 0)):
            self.status.set(self.call(self.field(self.task, name), _I32, *arguments))

    def arrived(self, number: Any) -> Any:
        """Whether the driver says that a slice has; a failure counts as such."""
        found = self.call(self.field(self.task, "query"), _I32, self.event(number))
        late = self.holds(found, "==", _NOT_READY)
        with self.when(self.at.not_(late), self.holds(self.status.get(), "==", 0)):
            self.status.set(found)
        return self.at.not_(late)

    def is_over(self) -> Any:
        """Whether the driver failed or nobody wants the copy any longer."""
        cancel = self.at.inttoptr(self.field(self.task, "cancel"), _I64.as_pointer())
        with self.when(
            self.holds(self.at.load_atomic(cancel, "seq_cst", 8), "!=", 0),
            self.holds(self.status.get(), "==", 0),
        ):
            self.status.set(_I32(lane_task.CANCELLED))
        return self.holds(self.status.get(), "!=", 0)

    def help(self, again: Any) -> None:
        """Copy a chunk, if there is one to be taken, else let others use the core."""
        number = self.at.call(self.module.get_global("take"), [self.task])
        with self.when(self.holds(number, ">=", 0), then=again):
            self.at.call(self.module.get_global("copy"), [self.task, number])
            self.idle.set(_I64(0))
        self.idle.add(1)
        self.call(self.field(self.task, "yield"), _I32)

    def sleep(self, number: Any) -> None:
        """Wait for a slice, asleep, if nothing has come for long."""
        with self.when(self.holds(self.idle.get(), ">=", _LOOKS)):
            self.checked("await", self.event(number))

    def finish(self) -> None:
        """Return, when nobody copies and nothing is on its way."""
        self.at.call(self.module.get_global("leave"), [self.task])
        if self.is_upload:
            last = self.at.sub(self.slices, _I64(1))
            self.idle.set(_I64(0))
            with self.when(self.holds(self.status.get(), "==", 0)), self.forever() as (_, end):
                with self.when(self.arrived(last), then=end):
                    pass
                self.call(self.field(self.task, "yield"), _I32)
                self.idle.add(1)
                self.sleep(last)
        with self.when(self.holds(self.status.get(), "!=", 0)):
            self.call(self.field(self.task, "drain"), _I32, self.field(self.task, "stream"))
        self.at.ret(self.status.get())


def _upload(module: ir.Module) -> None:
    code = _Leader(module, "upload")
    at, task = code.at, code.task
    sent = code.variable(_I64(0))
    free = code.variable(code.least(code.slices, code.buffers))  # slices that have a buffer
    code.write(1, task, lane_task.OPEN)
    code.allow(free.get())
    with code.forever() as (again, end):
        with code.when(code.is_over(), then=end):
            pass
        is_open = code.holds(sent.get(), "<", free.get())
        with code.when(is_open, code.is_copied(sent.get())):
            code.restart(sent.get())
            code.move(sent.get())
            sent.add(1)
            with code.when(code.holds(sent.get(), "==", code.slices), then=end):
                pass
            at.branch(again)
        before = at.sub(free.get(), code.buffers)  # the slice that had the buffer
        is_away = code.holds(before, "<", sent.get())
        with code.when(code.holds(free.get(), "<", code.slices), is_away):
            with code.when(code.arrived(before), then=again):
                free.add(1)
                code.allow(free.get())
            code.sleep(before)
        code.help(again)
    code.finish()


def _download(module: ir.Module) -> None:
    code = _Leader(module, "download")
    task = code.task
    fetched, there, emptied = (code.variable(_I64(0)) for _ in range(3))
    ahead = code.least(code.slices, code.buffers)
    with code.forever() as (_, end):
        code.move(fetched.get())
        fetched.add(1)
        with code.when(code.holds(fetched.get(), "==", ahead), then=end):
            pass
    code.write(1, task, lane_task.OPEN)
    with code.forever() as (again, end):
        with code.when(code.is_over(), then=end):
            pass
        is_open = code.holds(emptied.get(), "<", there.get())
        with code.when(is_open, code.is_copied(emptied.get()), then=again):
            code.restart(emptied.get())
            emptied.add(1)
            with code.when(code.holds(emptied.get(), "==", code.slices), then=end):
                pass
            with code.when(code.holds(fetched.get(), "<", code.slices)):
                code.move(fetched.get())
                fetched.add(1)
        with code.when(code.holds(there.get(), "<", fetched.get())):
            with code.when(code.arrived(there.get()), then=again):
                there.add(1)
                code.allow(there.get())
            code.sleep(there.get())
        code.help(again)
    code.finish()


def _serve(module: ir.Module) -> None:
    """Copy chunks of whatever tasks there are; sleep when there were none for a while."""
    code = _Code(module, "serve", _I32, 1)
    (team,) = code.arguments
    at, shared = code.at, lane_task.SHARED
    looks, found = code.variable(_I64(0)), code.variable(_I64(0))
    semaphore = at.add(team, _I64(8 * shared["semaphore"]))

    @contextlib.contextmanager
    def each_task() -> Iterator[Any]:
        number = code.variable(_I64(0))
        first = at.add(team, _I64(8 * lane_task.TASKS_AT))
        with code.forever() as (_, end):
            task = at.add(first, at.mul(number.get(), _I64(8 * lane_task.TASK)))
            with code.when(code.holds(code.read(task, lane_task.OPEN), "!=", 0)):
                yield task
            number.add(1)
            with code.when(code.holds(number.get(), "==", lane_task.TASKS), then=end):
                pass

    with code.forever() as (again, end):
        with code.when(code.holds(code.read(team, shared["stop"]), "!=", 0), then=end):
            pass
        with each_task() as task:
            code.count(1, task, lane_task.USERS)  # what is open now stays until this is taken back
            is_open = code.holds(code.read(task, lane_task.OPEN), "!=", 0)
            with code.when(is_open), code.forever() as (_, none):
                chunk = at.call(module.get_global("take"), [task])
                with code.when(code.holds(chunk, "<", 0), then=none):
                    pass
                at.call(module.get_global("copy"), [task, chunk])
                looks.set(_I64(0))
            code.count(-1, task, lane_task.USERS)
        looks.add(1)
        most = at.load(code.word(team, shared["looks"]))
        with code.when(code.holds(looks.get(), "<", most), then=again):
            code.call(at.load(code.word(team, shared["yield"])), _I32)
        looks.set(_I64(0))
        found.set(_I64(0))
        code.count(1, team, shared["asleep"])
        with each_task() as task:  # whoever gave a chunk before did not see that this one sleeps
            limit = code.read(task, lane_task.LIMIT)
            with code.when(code.holds(code.read(task, lane_task.NEXT), "<", limit)):
                found.set(_I64(1))
        with code.when(code.holds(found.get(), "!=", 0)), code.forever() as (once_more, woken):
            asleep = code.read(team, shared["asleep"])
            with code.when(code.holds(asleep, "<=", 0), then=woken):
                pass
            fewer = at.sub(asleep, _I64(1))
            is_awake = code.exchanged(team, shared["asleep"], asleep, fewer)
            with code.when(is_awake, then=again):
                pass
            at.branch(once_more)
        with code.forever() as (_, woken):
            status = code.call(at.load(code.word(team, shared["sleep"])), _I32, semaphore)
            with code.when(code.holds(status, "==", 0), then=woken):  # else: a signal came
                pass
    at.ret(_I32(0))
