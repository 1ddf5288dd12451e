/* Loops in which threads copy together between an array and a device; `lane.py` tells the idea.

   lane.ll is this file as LLVM's text, for any processor; `make lane` writes it anew.
   The structures have the layout that lane_task.py writes down. */

typedef long long word;

enum { BUFFERS = 16, TASKS = 16 };   /* lane_task.BUFFERS, TASKS */
enum { CANCELLED = -1 };             /* lane_task.CANCELLED */
enum { NOT_READY = 600 };            /* CUDA_ERROR_NOT_READY */
enum { LOOKS = 1000 };               /* for an event, of 1 us each, before the driver waits */
enum { VECTOR = 64 };                /* bytes that are stored at once past the caches */

typedef struct { word value, rest[7]; } line;   /* what several threads write has a cache line */

struct team;

struct task {
    line open;                       /* whether helpers may join */
    line users;                      /* how many there are */
    line next, limit;                /* chunks that were taken, and that may be */
    word done[BUFFERS];              /* of each buffer, the chunks that were copied */
    void *(*memcpy)(char *to, const char *from, word bytes);
    int (*send)(char *to, char *from, word bytes, word stream);
    int (*record)(word event, word stream);
    int (*query)(word event);
    int (*await)(word event);
    int (*drain)(word stream);
    int (*yield)(void);
    int (*post)(word *semaphore);
    int (*nap)(word microseconds);
    char *host, *device;
    word bytes;
    word lead;                       /* bytes that the first slice lacks */
    word slice, chunk;               /* bytes */
    word stream;
    word row, pitch;                 /* bytes of a row, and from one to the next on the host */
    char *base;                      /* of the buffers, one after the other */
    word buffers;
    word *cancel;                    /* not 0 when nobody wants the copy any longer */
    struct team *team;
    word past;                       /* bytes of a row from which on it is stored past the caches */
    word download;
    word rest;                       /* microseconds that the leader sleeps, 0: it copies instead */
    word patience;                   /* how often it does so while nobody takes a chunk */
    word most;                       /* who help, at most */
    word event[BUFFERS];
    word unused[5];
};

struct team {
    line stop;                       /* whether helpers are to end */
    line asleep;                     /* how many sleep */
    word looks;                      /* how often they look for a task before that */
    int (*sleep)(word *semaphore);
    int (*yield)(void);
    word threads;                    /* how many there are */
    word unused[4];
    word semaphore[8];
    line open;                       /* tasks */
    struct task tasks[TASKS];
};

_Static_assert(sizeof(struct task) == 96 * 8, "lane_task.TASK");
_Static_assert(sizeof(struct team) == (40 + TASKS * 96) * 8, "lane_task.BLOCK");

/* Words that several threads write, in one order for all. */

static word read(const word *place) { return __atomic_load_n(place, __ATOMIC_SEQ_CST); }

static void write(word *place, word value) { __atomic_store_n(place, value, __ATOMIC_SEQ_CST); }

static word add(word *place, word step)
{
    return __atomic_fetch_add(place, step, __ATOMIC_SEQ_CST);
}

static int exchanged(word *place, word before, word after)
{
    return __atomic_compare_exchange_n(
        place, &before, after, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}

static word least(word one, word other) { return one < other ? one : other; }

static word quotient(word value, word by) { return (value + by - 1) / by; }

/* -- Chunks */

/* The number of a chunk that nobody has taken, or -1. */
static word take(struct task *task)
{
    for (;;) {
        word number = read(&task->next.value);
        if (number >= read(&task->limit.value)) return -1;
        if (exchanged(&task->next.value, number, number + 1)) return number;
    }
}

/* Copy whole vectors to where one begins, past the caches. */
static void copy_past(char *to, const char *from, word bytes)
{
    typedef word vector __attribute__((vector_size(VECTOR)));
    for (word i = 0; i < bytes; i += VECTOR) {
        vector value;
        __builtin_memcpy(&value, from + i, VECTOR);
        __builtin_nontemporal_store(value, (vector *)(to + i));
    }
}

/* Copy a chunk, and count it. */
static __attribute__((noinline)) void copy(struct task *task, word number)
{
    word slice = task->slice, chunk = task->chunk, lead = task->lead, row = task->row;
    word of_slice = quotient(slice, chunk);
    word which = number / of_slice, inside = number % of_slice * chunk;
    word buffer = which % task->buffers;
    /* Places are counted from `lead` bytes before the array. */
    word start = which * slice;
    word end = least(start + least(slice, inside + chunk), task->bytes + lead);
    word place = start + inside < lead ? lead : start + inside;
    while (place < end) {
        word there = place - lead, column = there % row;
        word size = least(row - column, end - place);
        char *host = task->host + there / row * task->pitch + column;
        char *packed = task->base + buffer * slice + (place - start);
        char *to = task->download ? host : packed, *from = task->download ? packed : host;
        if (size >= task->past) {
            word head = -(word)to & (VECTOR - 1), middle = (size - head) & -VECTOR;
            task->memcpy(to, from, head);
            copy_past(to + head, from + head, middle);
            to += head + middle, from += head + middle;
            task->memcpy(to, from, size - head - middle);
        } else {
            task->memcpy(to, from, size);
        }
        place += size;
    }
    __atomic_thread_fence(__ATOMIC_SEQ_CST);   /* stores past the caches come in no order */
    add(&task->done[buffer], 1);
}

/* -- Those who help */

/* Take back that the calling thread sleeps, unless somebody has woken it already. */
static int stays_awake(struct team *team)
{
    for (;;) {
        word asleep = read(&team->asleep.value);
        if (asleep <= 0) return 0;
        if (exchanged(&team->asleep.value, asleep, asleep - 1)) return 1;
    }
}

static int is_chunk_left(struct team *team)
{
    int found = 0;
    for (struct task *task = team->tasks; task < team->tasks + TASKS; task++)
        if (read(&task->open.value) && read(&task->next.value) < read(&task->limit.value) &&
            read(&task->users.value) < task->most)
            found = 1;
    return found;
}

/* Copy chunks of whatever tasks there are; sleep when there were none for a while. */
int serve(struct team *team)
{
    word looks = 0;
    while (!read(&team->stop.value)) {
        for (struct task *task = team->tasks; task < team->tasks + TASKS; task++) {
            if (!read(&task->open.value) || read(&task->users.value) >= task->most) continue;
            /* What is open now stays until this is taken back. */
            word users = add(&task->users.value, 1), number;
            if (read(&task->open.value) && users < task->most)
                while ((number = take(task)) >= 0) {
                    copy(task, number);
                    looks = 0;
                }
            add(&task->users.value, -1);
        }
        if (++looks < team->looks) {
            team->yield();
            continue;
        }
        looks = 0;
        add(&team->asleep.value, 1);
        /* Whoever gave a chunk before did not see that this one sleeps. */
        if (is_chunk_left(team) && stays_awake(team)) continue;
        while (team->sleep(team->semaphore)) {}   /* until no signal has ended it */
    }
    return 0;
}

/* -- The one who leads */

struct leader {
    struct task *task;
    word end, slices;                /* bytes with `lead`; slices */
    word of_slice, of_last;          /* chunks of a slice */
    int status;                      /* the driver's first error, or CANCELLED */
    word idle;                       /* looks since there was something to do */
    word seen, alone;                /* chunks taken at the last look; looks since one was */
};

static void lead(struct leader *self, struct task *task)
{
    self->task = task;
    self->end = task->bytes + task->lead;
    self->slices = quotient(self->end, task->slice);
    self->of_slice = quotient(task->slice, task->chunk);
    self->of_last = quotient(self->end - (self->slices - 1) * task->slice, task->chunk);
    self->status = 0;
    self->idle = self->seen = self->alone = 0;
}

/* Let others help. */
static void open(struct task *task)
{
    add(&task->team->open.value, 1);
    write(&task->open.value, 1);
}

/* Let no chunk be taken any longer; returns when nobody copies. */
static void leave(struct task *task)
{
    write(&task->open.value, 0);
    add(&task->team->open.value, -1);
    write(&task->limit.value, 0);
    while (read(&task->users.value)) task->yield();
}

/* Wake so many of those who sleep, while too few for all tasks are awake. */
static void wake(struct task *task, word most)
{
    struct team *team = task->team;
    word idle = read(&team->threads) - read(&team->open.value) * task->most;   /* too many */
    for (;;) {
        word asleep = read(&team->asleep.value);
        if (asleep <= 0 || most <= 0 || asleep <= idle) return;
        if (exchanged(&team->asleep.value, asleep, asleep - 1)) {
            task->post(team->semaphore);
            most--;
        }
    }
}

/* Let the chunks of so many slices be taken. */
static void allow(struct leader *self, word slices)
{
    struct task *task = self->task;
    word limit = 0;
    if (slices)
        limit = (slices - 1) * self->of_slice +
                (slices == self->slices ? self->of_last : self->of_slice);
    write(&task->limit.value, limit);
    self->idle = 0;
    wake(task, limit - read(&task->next.value));
}

/* Whether all chunks of a slice were copied; then those of its buffer are counted anew. */
static int is_copied(struct leader *self, word number)
{
    word *done = &self->task->done[number % self->task->buffers];
    if (read(done) != (number + 1 == self->slices ? self->of_last : self->of_slice)) return 0;
    write(done, 0);
    return 1;
}

static word event_of(struct leader *self, word number)
{
    return self->task->event[number % self->task->buffers];
}

/* Let the driver send or fetch a slice, unless it has failed. */
static void move(struct leader *self, word number)
{
    struct task *task = self->task;
    word start = number * task->slice, begin = start < task->lead ? task->lead : start;
    word bytes = least(start + task->slice, self->end) - begin;
    char *packed = task->base + number % task->buffers * task->slice + (begin - start);
    char *device = task->device + (begin - task->lead);
    if (self->status) return;
    if (task->download) self->status = task->send(packed, device, bytes, task->stream);
    else self->status = task->send(device, packed, bytes, task->stream);
    if (!self->status) self->status = task->record(event_of(self, number), task->stream);
}

/* Whether the driver says that a slice has arrived; a failure counts as such. */
static int arrived(struct leader *self, word number)
{
    int found = self->task->query(event_of(self, number));
    if (found == NOT_READY) return 0;
    if (!self->status) self->status = found;
    return 1;
}

/* Wait for a slice, asleep, if nothing has come for long. */
static void sleep_for(struct leader *self, word number)
{
    if (self->idle >= LOOKS && !self->status)
        self->status = self->task->await(event_of(self, number));
}

/* Whether the driver failed or nobody wants the copy any longer. */
static int is_over(struct leader *self)
{
    if (read(self->task->cancel) && !self->status) self->status = CANCELLED;
    return self->status != 0;
}

/* Copy a chunk, if there is one to be taken and nobody else does; else leave the core. */
static void help(struct leader *self)
{
    struct task *task = self->task;
    word taken = read(&task->next.value), number;
    if (taken != self->seen) {
        self->seen = taken;
        self->alone = 0;
    }
    if (self->alone >= (task->rest ? task->patience : 0) && (number = take(task)) >= 0) {
        copy(task, number);
        self->idle = 0;
        self->seen = number + 1;   /* and so on, until others take one */
        return;
    }
    self->alone++;
    self->idle++;
    if (task->rest) task->nap(task->rest);
    else task->yield();
}

/* What a loop returns, when nobody copies and nothing is on its way. */
static int finished(struct leader *self)
{
    struct task *task = self->task;
    leave(task);
    if (!task->download) {
        word last = self->slices - 1;
        self->idle = 0;
        if (!self->status)
            while (!arrived(self, last)) {
                task->yield();
                self->idle++;
                sleep_for(self, last);
            }
    }
    if (self->status) task->drain(task->stream);
    return self->status;
}

int upload(struct task *task)
{
    struct leader self;
    lead(&self, task);
    word sent = 0, free = least(self.slices, task->buffers);   /* slices; those with a buffer */
    open(task);
    allow(&self, free);
    while (!is_over(&self)) {
        if (sent < free && is_copied(&self, sent)) {
            move(&self, sent);
            if (++sent == self.slices) break;
            continue;
        }
        word before = free - task->buffers;   /* the slice that had the buffer */
        if (free < self.slices && before < sent) {
            if (arrived(&self, before)) {
                allow(&self, ++free);
                continue;
            }
            sleep_for(&self, before);
        }
        help(&self);
    }
    return finished(&self);
}

int download(struct task *task)
{
    struct leader self;
    lead(&self, task);
    word fetched = 0, there = 0, emptied = 0;   /* slices */
    while (fetched < least(self.slices, task->buffers)) move(&self, fetched++);
    open(task);
    while (!is_over(&self)) {
        if (emptied < there && is_copied(&self, emptied)) {
            if (++emptied == self.slices) break;
            if (fetched < self.slices) move(&self, fetched++);
            continue;
        }
        if (there < fetched) {
            if (arrived(&self, there)) {
                allow(&self, ++there);
                continue;
            }
            sleep_for(&self, there);
        }
        help(&self);
    }
    return finished(&self);
}
