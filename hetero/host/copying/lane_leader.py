"""The loops of `lane` that lead a copy, in LLVM's own language."""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from hetero.host.copying import lane_task
from hetero.host.copying.lane_words import I32, I64, Code

__all__ = ["download", "upload"]

_NOT_READY = 600  # CUDA_ERROR_NOT_READY
_LOOKS = 1000  # for an event, of a microsecond each, before the driver is left to wait for it


class _Leader(Code):
    """What both directions have in common."""

    def __init__(self, module: ir.Module, name: str) -> None:
        super().__init__(module, name, I32, 1)
        (self.task,) = self.arguments
        self.module, self.is_upload = module, name == "upload"
        at, task = self.at, self.task
        self.slice, self.chunk = self.field(task, "slice"), self.field(task, "chunk")
        self.lead, self.buffers = self.field(task, "lead"), self.field(task, "buffers")
        self.end = at.add(self.field(task, "bytes"), self.lead)
        self.slices = self.quotient(self.end, self.slice)
        self.of_slice = self.quotient(self.slice, self.chunk)
        before = at.mul(at.sub(self.slices, I64(1)), self.slice)
        self.of_last = self.quotient(at.sub(self.end, before), self.chunk)
        self.status = self.variable(I32(0))
        self.idle = self.variable(I64(0))  # looks since there was something to do
        self.rest, self.patience = self.field(task, "rest"), self.field(task, "patience")
        self.seen = self.variable(I64(0))  # chunks that were taken, as of the last look
        self.alone = self.variable(I64(0))  # looks since others took one

    def open(self) -> None:
        """Let others help."""
        self.count(1, self.field(self.task, "team"), lane_task.SHARED["open"])
        self.write(1, self.task, lane_task.OPEN)

    def allow(self, slices: Any) -> None:
        """Let the chunks of so many slices be taken."""
        at = self.at
        is_all = self.holds(slices, "==", self.slices)
        before = at.mul(at.sub(slices, I64(1)), self.of_slice)
        more = at.select(is_all, self.of_last, self.of_slice)
        limit = at.select(self.holds(slices, "==", 0), I64(0), at.add(before, more))
        self.write(limit, self.task, lane_task.LIMIT)
        self.idle.set(I64(0))
        free = at.sub(limit, self.read(self.task, lane_task.NEXT))
        at.call(self.module.get_global("wake"), [self.task, free])

    def is_copied(self, number: Any) -> Any:
        """Whether all chunks of a slice were."""
        at = self.at
        is_last = self.holds(at.add(number, I64(1)), "==", self.slices)
        wanted = at.select(is_last, self.of_last, self.of_slice)
        return self.holds(self.read(self._done(number), lane_task.DONE), "==", wanted)

    def restart(self, number: Any) -> None:
        """Count the chunks of the buffer of a slice anew."""
        self.write(0, self._done(number), lane_task.DONE)

    def _done(self, number: Any) -> Any:
        return self.at.add(self.task, self.at.mul(self.at.urem(number, self.buffers), I64(8)))

    def event(self, number: Any) -> Any:
        buffer = self.at.urem(number, self.buffers)
        first = self.at.add(buffer, I64(lane_task.FIELDS["event 0"]))
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
            self.status.set(self.call(self.field(self.task, name), I32, *arguments))

    def arrived(self, number: Any) -> Any:
        """Whether the driver says that a slice has; a failure counts as such."""
        found = self.call(self.field(self.task, "query"), I32, self.event(number))
        late = self.holds(found, "==", _NOT_READY)
        with self.when(self.at.not_(late), self.holds(self.status.get(), "==", 0)):
            self.status.set(found)
        return self.at.not_(late)

    def is_over(self) -> Any:
        """Whether the driver failed or nobody wants the copy any longer."""
        cancel = self.at.inttoptr(self.field(self.task, "cancel"), I64.as_pointer())
        with self.when(
            self.holds(self.at.load_atomic(cancel, "seq_cst", 8), "!=", 0),
            self.holds(self.status.get(), "==", 0),
        ):
            self.status.set(I32(lane_task.CANCELLED))
        return self.holds(self.status.get(), "!=", 0)

    def help(self, again: Any) -> None:
        """Copy a chunk, if there is one to be taken and nobody else does; then leave the core."""
        at = self.at
        taken = self.read(self.task, lane_task.NEXT)
        with self.when(self.holds(taken, "!=", self.seen.get())):
            self.seen.set(taken)
            self.alone.set(I64(0))
        looks = at.select(self.holds(self.rest, "==", 0), I64(0), self.patience)
        with self.when(self.holds(self.alone.get(), ">=", looks)):
            number = at.call(self.module.get_global("take"), [self.task])
            with self.when(self.holds(number, ">=", 0), then=again):
                at.call(self.module.get_global("copy"), [self.task, number])
                self.idle.set(I64(0))
                self.seen.set(at.add(number, I64(1)))  # and so on, until others take one
        self.alone.add(1)
        self.idle.add(1)
        with at.if_else(self.holds(self.rest, "==", 0)) as (looks_again, sleeps):
            with looks_again:
                self.call(self.field(self.task, "yield"), I32)
            with sleeps:
                self.call(self.field(self.task, "nap"), I32, self.rest)

    def sleep(self, number: Any) -> None:
        """Wait for a slice, asleep, if nothing has come for long."""
        with self.when(self.holds(self.idle.get(), ">=", _LOOKS)):
            self.checked("await", self.event(number))

    def finish(self) -> None:
        """Return, when nobody copies and nothing is on its way."""
        self.at.call(self.module.get_global("leave"), [self.task])
        if self.is_upload:
            last = self.at.sub(self.slices, I64(1))
            self.idle.set(I64(0))
            with self.when(self.holds(self.status.get(), "==", 0)), self.forever() as (_, end):
                with self.when(self.arrived(last), then=end):
                    pass
                self.call(self.field(self.task, "yield"), I32)
                self.idle.add(1)
                self.sleep(last)
        with self.when(self.holds(self.status.get(), "!=", 0)):
            self.call(self.field(self.task, "drain"), I32, self.field(self.task, "stream"))
        self.at.ret(self.status.get())


def upload(module: ir.Module) -> None:
    """upload(task): as `lane` tells."""
    code = _Leader(module, "upload")
    at = code.at
    sent = code.variable(I64(0))
    free = code.variable(code.least(code.slices, code.buffers))  # slices that have a buffer
    code.open()
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


def download(module: ir.Module) -> None:
    """download(task): as `lane` tells."""
    code = _Leader(module, "download")
    fetched, there, emptied = (code.variable(I64(0)) for _ in range(3))
    ahead = code.least(code.slices, code.buffers)
    with code.forever() as (_, end):
        code.move(fetched.get())
        fetched.add(1)
        with code.when(code.holds(fetched.get(), "==", ahead), then=end):
            pass
    code.open()
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
