/* Copies between arrays and devices through rings of pinned buffers. An array is cut into slices,
   each for one buffer, and a slice into chunks, which any thread may copy once the slice is open:
   in an upload when its buffer is free, in a download when it has come. The thread that leads calls
   the driver, and after an error sends no more. */
#include <semaphore.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

enum { NOT_READY = 600, BUFFERS = 16, JOBS = 16, LOOKS = 2000, QUERIES = 20, REST = 20 /* us */ };

struct job {                                       /* as in slices.py */
    char *host, *ring, *device;
    long row, pitch, bytes, slice, slices, chunk, each, chunks, buffers, helpers, past, down, first;
    void *stream, *event[BUFFERS];
    int (*send)(char *to, char *from, long bytes, void *stream);
    int (*record)(void *event, void *stream), (*query)(void *event);
    atomic_long next, limit, left[BUFFERS];        /* chunks, counted through all copies */
} jobs[JOBS];
static sem_t wanted;                               /* helpers */

static long least(long a, long b) { return a < b ? a : b; }

static int copy_chunk(struct job *job)             /* whether there was one */
{
    long number = atomic_load(&job->next);
    do if (number >= atomic_load(&job->limit)) return 0;
    while (!atomic_compare_exchange_weak(&job->next, &number, number + 1));
    long at = (number - job->first) * job->chunk, end = least(at + job->chunk, job->bytes);
    for (long size, done = 0; at < end; at += size, done = 0) {
        char *host = job->host + at / job->row * job->pitch + at % job->row;
        char *packed = job->ring + at % (job->buffers * job->slice);
        char *to = job->down ? host : packed, *from = job->down ? packed : host;
        size = least(job->row - at % job->row, end - at);
#ifdef __SSE2__                                    /* past the caches: it need not be read first */
        for (long most = size < job->past || (long)to % 16 ? 0 : size - 15; done < most; done += 16)
            _mm_stream_si128((__m128i *)(to + done), _mm_loadu_si128((__m128i *)(from + done)));
        _mm_sfence();
#endif
        memcpy(to + done, from + done, size - done);
    }
    atomic_fetch_sub(&job->left[(end - 1) / job->slice % job->buffers], 1);
    return 1;
}

void help(void)                                    /* with any copy, for ever */
{
    for (long looks = 0;; looks++) {
        for (struct job *job = jobs; job < jobs + JOBS; job++)
            while (copy_chunk(job)) looks = 0;
        if (looks > LOOKS) sem_wait(&wanted);
    }
}

int copy_slices(struct job *job)                   /* 0, or the driver's first error */
{
    int down = job->down, buffers = job->buffers, size = job->slice, status = 0, found, called;
    for (long step = 0; step < job->slices + buffers; step++) {
        long sent = step - (down ? 0 : (buffers + 1) / 2), open = step - (down ? buffers / 2 : 0);
        for (long looks = 0; sent >= 0 && atomic_load(&job->left[sent % buffers]); looks++)
            if (!copy_chunk(job) && looks > QUERIES) usleep(REST);
        if (sent >= 0 && sent < job->slices && !status) {
            char *there = job->device + sent * size, *packed = job->ring + sent % buffers * size;
            char *to = down ? packed : there, *from = down ? there : packed;
            status = job->send(to, from, least(size, job->bytes - sent * size), job->stream);
            if (!status) status = job->record(job->event[sent % buffers], job->stream);
        }
        if (open < 0 || open >= job->slices) continue;
        for (long looks = 0; (found = job->query(job->event[open % buffers])) == NOT_READY; looks++)
            if (!copy_chunk(job) && looks > QUERIES) usleep(REST);
        if (!status) status = found;
        atomic_store(&job->left[open % buffers], least(job->each, job->chunks - open * job->each));
        atomic_store(&job->limit, job->first + least(job->chunks, (open + 1) * job->each));
        for (sem_getvalue(&wanted, &called); called < job->helpers; called++) sem_post(&wanted);
    }
    return status;
}
