/* A copy between an array and a device through a ring of pinned buffers, by several threads.

   The array is cut into slices, each for one buffer, and a slice into chunks, which any thread
   copies. The calling thread alone calls the driver. An upload: the slice's buffer is free, its
   chunks are copied, it is sent. A download: it is fetched and has come, its chunks are copied.
   Places are counted from `lead` bytes before the array: there its first chunk begins. */
#define _DEFAULT_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

enum { NOT_READY = 600, BUFFERS = 16, HELPERS = 8, LOOKS = 50, REST = 20, ROW = 4096 };

struct job {                                       /* as in slices.py */
    char *host, *ring, *device;
    long row, pitch, lead, end, slice, chunk, buffers, helpers, download;
    void *stream, *event[BUFFERS];
    int (*send)(char *to, char *from, long bytes, void *stream);
    int (*record)(void *event, void *stream), (*query)(void *event), (*drain)(void *stream);
    atomic_long next, limit, is_over, copied[BUFFERS];   /* chunks: taken, to be had, copied */
};

static long least(long a, long b) { return a < b ? a : b; }

static long chunks(struct job *job, long slices)   /* of the first slices */
{
    return (least(slices * job->slice, job->end) + job->chunk - 1) / job->chunk;
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

static int copy_one(struct job *job)               /* whether there was a chunk to be had */
{
    long number = atomic_load(&job->next);
    do if (number >= atomic_load(&job->limit)) return 0;
    while (!atomic_compare_exchange_weak(&job->next, &number, number + 1));
    long place = number ? number * job->chunk : job->lead, size;
    for (long end = least((number + 1) * job->chunk, job->end); place < end; place += size) {
        long row = (place - job->lead) / job->row, column = (place - job->lead) % job->row;
        char *host = job->host + row * job->pitch + column;
        char *packed = job->ring + place % (job->buffers * job->slice);
        size = least(job->row - column, end - place);
        if (!job->download) memcpy(packed, host, size);
        else if (size < ROW) memcpy(host, packed, size);
        else copy_past(host, packed, size);
    }
    atomic_fetch_add(&job->copied[number * job->chunk / job->slice % job->buffers], 1);
    return 1;
}

static int move(struct job *job, long number)      /* have the driver send or fetch a slice */
{
    long begin = number ? number * job->slice : job->lead;
    long bytes = least((number + 1) * job->slice, job->end) - begin;
    char *there = job->device + (begin - job->lead);
    char *packed = job->ring + begin % (job->buffers * job->slice);
    int status = job->download ? job->send(packed, there, bytes, job->stream)
                               : job->send(there, packed, bytes, job->stream);
    return status ? status : job->record(job->event[number % job->buffers], job->stream);
}

static void *help(void *of)
{
    struct job *job = of;
    for (long looks = 0; !atomic_load(&job->is_over);)
        if (copy_one(job)) looks = 0;
        else if (++looks < LOOKS) sched_yield();
        else usleep(REST);
    return 0;
}

int copy_slices(struct job *job)                   /* 0, or the driver's first error */
{
    pthread_t helpers[HELPERS];
    long slices = (job->end + job->slice - 1) / job->slice, buffers = job->buffers, count = 0;
    long moved = 0, open = 0, copied = 0;          /* slices; open: its chunks may be copied */
    int status = 0, down = job->download, found;
    while (count < job->helpers && !pthread_create(&helpers[count], 0, help, job)) count++;
    while (!status && (down ? copied : moved) < slices) {
        long wanted = chunks(job, copied + 1) - chunks(job, copied);
        if (moved < (down ? least(slices, copied + buffers) : copied))
            status = move(job, moved++);
        else if (copied < open && atomic_load(&job->copied[copied % buffers]) == wanted)
            atomic_store(&job->copied[copied++ % buffers], 0);
        else if (open < (down ? moved : least(slices, moved + buffers)) &&
                 (found = job->query(job->event[open % buffers])) != NOT_READY)
            status = found, atomic_store(&job->limit, chunks(job, ++open));
        else if (!copy_one(job))
            sched_yield();
    }
    atomic_store(&job->limit, 0), atomic_store(&job->is_over, 1);
    while (count) pthread_join(helpers[--count], 0);
    if (status) job->drain(job->stream);
    return status;
}
