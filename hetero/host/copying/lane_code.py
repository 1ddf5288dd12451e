"""The loops of `lane` in LLVM's own language.

Each function is written top to bottom in the words of `lane_words.Code`: variables, words of memory
that threads share, loops, conditions. Words that several threads write are read and written in
order. Here is what helpers do, in `lane_leader` what the one does who leads.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from llvmlite import ir

from hetero.host.copying import lane_task
from hetero.host.copying.lane_leader import download, upload
from hetero.host.copying.lane_words import I32, I64, Code

__all__ = ["assembly"]

_VECTOR = 64  # bytes that are stored at once past the caches


def assembly() -> str:
    """The module's text."""
    module = ir.Module()
    for write in (_take, _leave, _wake, _past, _copy, upload, download, _serve):
        write(module)
    return str(module)


def _take(module: ir.Module) -> None:
    """take(task): the number of a chunk that nobody has taken, or -1."""
    code = Code(module, "take", I64, 1)
    (task,) = code.arguments
    with code.forever():
        number = code.read(task, lane_task.NEXT)
        with code.when(code.holds(number, ">=", code.read(task, lane_task.LIMIT))):
            code.at.ret(I64(-1))
        following = code.at.add(number, I64(1))
        with code.when(code.exchanged(task, lane_task.NEXT, number, following)):
            code.at.ret(number)
    code.at.unreachable()


def _leave(module: ir.Module) -> None:
    """leave(task): let no chunk be taken any longer; returns when nobody copies."""
    code = Code(module, "leave", ir.VoidType(), 1)
    (task,) = code.arguments
    code.write(0, task, lane_task.OPEN)
    code.count(-1, code.field(task, "team"), lane_task.SHARED["open"])
    code.write(0, task, lane_task.LIMIT)
    with code.forever() as (_, end):
        with code.when(code.holds(code.read(task, lane_task.USERS), "==", 0), then=end):
            pass
        code.call(code.field(task, "yield"), I32)
    code.at.ret_void()


def _wake(module: ir.Module) -> None:
    """wake(task, most): wake so many of those who sleep, while too few for all tasks are awake."""
    code = Code(module, "wake", ir.VoidType(), 2)
    task, most = code.arguments
    team, left = code.field(task, "team"), code.variable(most)
    threads = code.read(team, lane_task.SHARED["threads"])
    of_all = code.read(team, lane_task.SHARED["open"])
    idle = code.at.sub(threads, code.at.mul(of_all, code.field(task, "most")))  # who are too many
    semaphore = code.at.add(team, I64(8 * lane_task.SHARED["semaphore"]))
    with code.forever() as (again, end):
        asleep = code.read(team, lane_task.SHARED["asleep"])
        enough = code.at.or_(code.holds(asleep, "<=", 0), code.holds(left.get(), "<=", 0))
        enough = code.at.or_(enough, code.holds(asleep, "<=", idle))
        with code.when(enough, then=end):
            pass
        fewer = code.at.sub(asleep, I64(1))
        with code.when(code.exchanged(team, lane_task.SHARED["asleep"], asleep, fewer), then=again):
            code.call(code.field(task, "post"), I32, semaphore)
            left.add(-1)
    code.at.ret_void()


def _past(module: ir.Module) -> None:
    """past(to, from, bytes): copy whole vectors to where one begins, past the caches."""
    code = Code(module, "past", ir.VoidType(), 3)
    to, source, nbytes = code.arguments
    at, vector = code.at, ir.VectorType(I64, _VECTOR // 8).as_pointer()
    mark = module.add_metadata([I32(1)])
    done = code.variable(I64(0))
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
    code = Code(module, "copy", ir.VoidType(), 2)
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
                head = at.and_(at.sub(I64(0), to), I64(_VECTOR - 1))
                middle = at.and_(at.sub(size, head), I64(-_VECTOR))
                behind = at.add(head, middle)
                code.call(memcpy, I64, to, source, head)
                aligned = at.add(to, head), at.add(source, head), middle
                at.call(module.get_global("past"), aligned)
                rest = at.sub(size, behind)
                code.call(memcpy, I64, at.add(to, behind), at.add(source, behind), rest)
            with small:
                code.call(memcpy, I64, to, source, size)
    at.fence("seq_cst")  # stores past the caches come in no order
    code.count(1, at.add(task, at.mul(buffer, I64(8))), lane_task.DONE)
    at.ret_void()


def _serve(module: ir.Module) -> None:
    """Copy chunks of whatever tasks there are; sleep when there were none for a while."""
    code = Code(module, "serve", I32, 1)
    (team,) = code.arguments
    at, shared = code.at, lane_task.SHARED
    looks, found = code.variable(I64(0)), code.variable(I64(0))
    semaphore = at.add(team, I64(8 * shared["semaphore"]))

    @contextlib.contextmanager
    def each_task() -> Iterator[Any]:
        number = code.variable(I64(0))
        first = at.add(team, I64(8 * lane_task.TASKS_AT))
        with code.forever() as (_, end):
            task = at.add(first, at.mul(number.get(), I64(8 * lane_task.TASK)))
            with code.when(code.holds(code.read(task, lane_task.OPEN), "!=", 0)):
                yield task
            number.add(1)
            with code.when(code.holds(number.get(), "==", lane_task.TASKS), then=end):
                pass

    def has_room(task: Any) -> contextlib.AbstractContextManager[None]:
        users = code.read(task, lane_task.USERS)
        return code.when(code.holds(users, "<", code.field(task, "most")))

    with code.forever() as (again, end):
        with code.when(code.holds(code.read(team, shared["stop"]), "!=", 0), then=end):
            pass
        with each_task() as task, has_room(task):
            # What is open now stays until this is taken back.
            users = code.count(1, task, lane_task.USERS)
            is_open = code.holds(code.read(task, lane_task.OPEN), "!=", 0)
            is_wanted = code.holds(users, "<", code.field(task, "most"))
            with code.when(is_open, is_wanted), code.forever() as (_, none):
                chunk = at.call(module.get_global("take"), [task])
                with code.when(code.holds(chunk, "<", 0), then=none):
                    pass
                at.call(module.get_global("copy"), [task, chunk])
                looks.set(I64(0))
            code.count(-1, task, lane_task.USERS)
        looks.add(1)
        most = at.load(code.word(team, shared["looks"]))
        with code.when(code.holds(looks.get(), "<", most), then=again):
            code.call(at.load(code.word(team, shared["yield"])), I32)
        looks.set(I64(0))
        found.set(I64(0))
        code.count(1, team, shared["asleep"])
        with each_task() as task:  # whoever gave a chunk before did not see that this one sleeps
            limit = code.read(task, lane_task.LIMIT)
            is_left = code.holds(code.read(task, lane_task.NEXT), "<", limit)
            with code.when(is_left), has_room(task):
                found.set(I64(1))
        with code.when(code.holds(found.get(), "!=", 0)), code.forever() as (once_more, woken):
            asleep = code.read(team, shared["asleep"])
            with code.when(code.holds(asleep, "<=", 0), then=woken):
                pass
            fewer = at.sub(asleep, I64(1))
            is_awake = code.exchanged(team, shared["asleep"], asleep, fewer)
            with code.when(is_awake, then=again):
                pass
            at.branch(once_more)
        with code.forever() as (_, woken):
            status = code.call(at.load(code.word(team, shared["sleep"])), I32, semaphore)
            with code.when(code.holds(status, "==", 0), then=woken):  # else: a signal came
                pass
    at.ret(I32(0))
