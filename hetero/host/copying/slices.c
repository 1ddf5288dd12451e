/* A copy between an array and a device through a ring of pinned buffers, by several threads.

   The array is cut into slices, each for one buffer, and a slice into chunks, which any thread
   copies. The calling thread alone calls the driver. An upload: the slice's buffer is free, its
   chunks are copied, it is sent. A download: it is fetched and has come, its chunks are copied.
   Threads that help are there from the first copy on, and sleep between copies.

   Nobody yields: where threads of BLAS spin, the core would come back after milliseconds. Who sleeps
   or has short time slices goes first on a core when there is something to do. */
#define _GNU_SOURCE
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

enum { NOT_READY = 600, BUFFERS = 16, PLACES = 16 };
enum { LOOKS = 1000, QUERY = 50, REST = 20, TURN = 100000, KEEP_POLICY = 8 };
/* before a rest; that one at the driver, which holds its lock, counts for; us; ns of a time slice */

struct job {                                       /* as in slices.py */
    char *host, *ring, *device;
    long row, pitch, bytes, slice, chunk, buffers, helpers, threads, past, download;
    void *stream, *event[BUFFERS];
    int (*send)(char *to, char *from, long bytes, void *stream);
    int (*record)(void *event, void *stream), (*query)(void *event), (*drain)(void *stream);
    atomic_long copied[BUFFERS];                   /* chunks */
};

/* A job that wants help. Whoever counts himself among the users may use the job that he then sees.
   Chunks that are taken and that may be had: who only looks for them writes nothing. */
static struct place {
    _Alignas(64) _Atomic(struct job *) job;
    atomic_long taken, users, most;
    _Alignas(64) atomic_long next;
    _Alignas(64) atomic_long limit;
} places[PLACES];
static atomic_int jobs, threads, news;             /* news: counts jobs, wakes who sleeps */

static void rest(long looks)                       /* after so many in vain */
{
#ifdef __SSE2__
    if (looks < LOOKS) _mm_pause();
    else
#endif
        usleep(REST);
}

static void be_prompt(void)                        /* short time slices, rests that end in time */
{
    static _Thread_local int is_prompt;
    if (is_prompt++) return;
    struct { unsigned size, policy; long flags; int nice; unsigned priority; long turn[3]; } wanted =
        {sizeof wanted, 0, KEEP_POLICY, getpriority(PRIO_PROCESS, 0), 0, {TURN, 0, 0}};
    syscall(SYS_sched_setattr, 0, &wanted, 0);     /* an older kernel takes no notice */
    prctl(PR_SET_TIMERSLACK, 1000, 0, 0, 0);
}

static long least(long a, long b) { return a < b ? a : b; }

static long chunks(struct job *job, long slices)   /* of the first slices */
{
    return (least(slices * job->slice, job->bytes) + job->chunk - 1) / job->chunk;
}

/* What was not in the caches before is stored past them: it need not be read first. */
static void copy_past(char *to, const char *from, long bytes)
{
#ifdef __SSE2__
    for (; bytes > 64 && (long)to % 16; bytes--) *to++ = *from++;
    for (; bytes >= 64; bytes -= 64, to += 64, from += 64)
        for (int i = 0; i < 64; i += 16)
            _mm_stream_si128((__m128i *)(to + i), _mm_loadu_si128((const __m128i *)(from + i)));
    _mm_sfence();
#endif
    memcpy(to, from, bytes);
}

static int copy_one(struct place *at, struct job *job)   /* whether there was a chunk to be had */
{
    long number = atomic_load(&at->next);
    do if (number >= atomic_load(&at->limit)) return 0;
    while (!atomic_compare_exchange_weak(&at->next, &number, number + 1));
    long place = number * job->chunk, end = least(place + job->chunk, job->bytes), size;
    for (; place < end; place += size) {
        char *host = job->host + place / job->row * job->pitch + place % job->row;
        char *packed = job->ring + place % (job->buffers * job->slice);
        char *to = job->download ? host : packed, *from = job->download ? packed : host;
        size = least(job->row - place % job->row, end - place);
        if (size < job->past) memcpy(to, from, size);
        else copy_past(to, from, size);
    }
    atomic_fetch_add(&job->copied[number * job->chunk / job->slice % job->buffers], 1);
    return 1;
}

static void *help(void *unused)
{
    be_prompt();
    for (long looks = 0;;) {
        int seen = atomic_load(&news);
        for (struct place *at = places; at < places + PLACES; at++) {
            if (atomic_load(&at->next) >= atomic_load(&at->limit)) continue;
            if (atomic_load(&at->users) >= atomic_load(&at->most)) continue;
            atomic_fetch_add(&at->users, 1);
            struct job *job = atomic_load(&at->job);
            while (job && copy_one(at, job)) looks = 0;
            atomic_fetch_sub(&at->users, 1);
        }
        if (++looks < LOOKS || atomic_load(&jobs)) rest(looks);
        else syscall(SYS_futex, &news, FUTEX_WAIT_PRIVATE, seen, 0), looks = 0;
    }
    return unused;
}

static struct place *join_in(struct job *job)      /* its place, or none: then nobody helps */
{
    pthread_t thread;
    struct place *at = places;
    while (at < places + PLACES && atomic_exchange(&at->taken, 1)) at++;
    if (at == places + PLACES) return 0;
    atomic_store(&at->next, 0), atomic_store(&at->most, job->helpers), atomic_store(&at->job, job);
    for (long wanted = least(job->helpers * (atomic_fetch_add(&jobs, 1) + 1), job->threads);;) {
        int count = atomic_load(&threads);
        if (count >= wanted) break;
        if (!atomic_compare_exchange_strong(&threads, &count, count + 1)) continue;
        if (pthread_create(&thread, 0, help, 0)) { atomic_fetch_sub(&threads, 1); break; }
        pthread_detach(thread);
    }
    atomic_fetch_add(&news, 1);
    syscall(SYS_futex, &news, FUTEX_WAKE_PRIVATE, (int)job->helpers);
    return at;
}

int copy_slices(struct job *job)                   /* 0, or the driver's first error */
{
    long slices = (job->bytes + job->slice - 1) / job->slice, buffers = job->buffers;
    long moved = 0, open = 0, copied = 0;          /* slices; open: its chunks may be copied */
    long looks = 0;
    int status = 0, down = job->download, found;
    struct place alone = {0}, *helped = job->helpers ? join_in(job) : 0, *at = helped ? helped : &alone;
    if (helped) be_prompt();
    while (!status && (down ? copied : moved) < slices) {
        long wanted = chunks(job, copied + 1) - chunks(job, copied), next = moved % buffers;
        if (moved < (down ? least(slices, copied + buffers) : copied)) {
            long begin = moved++ * job->slice, bytes = least(job->slice, job->bytes - begin);
            char *there = job->device + begin, *packed = job->ring + next * job->slice;
            status = job->send(down ? packed : there, down ? there : packed, bytes, job->stream);
            if (!status) status = job->record(job->event[next], job->stream);
        } else if (copied < open && atomic_load(&job->copied[copied % buffers]) == wanted)
            atomic_store(&job->copied[copied++ % buffers], 0);
        else if (open < (down ? moved : least(slices, moved + buffers)) &&
                 (found = job->query(job->event[open % buffers])) != NOT_READY)
            status = found, atomic_store(&at->limit, chunks(job, ++open));
        else if (!copy_one(at, job)) {
            rest(looks += QUERY);
            continue;
        }
        looks = 0;
    }
    atomic_store(&at->limit, 0), atomic_store(&at->job, 0);
    for (looks = 0; atomic_load(&at->users);) rest(looks++);
    if (helped) atomic_store(&at->taken, 0), atomic_fetch_sub(&jobs, 1);
    if (status) job->drain(job->stream);
    return status;
}
