/* Copies between arrays and devices through rings of pinned buffers. An array is cut into slices,
   each for one buffer, and a slice into chunks, which any thread may copy once the slice is open:
   when its buffer is free (upload), or it has come (download). A query counts as QUERY looks. */
#include <semaphore.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

enum { NOT_READY = 600, BUFFERS = 16, JOBS = 16, LOOKS = 6000, QUERY = 300, REST = 20 /* us */ };
struct job {                                       /* as in slices.py */
    char *host, *ring, *device;
    long row, pitch, bytes, slice, chunk, each, first, last, buffers, helpers, pool, past, down;
    void *stream, *event[BUFFERS];
    int (*send)(char *, char *, long, void *), (*record)(void *, void *), (*query)(void *);
    atomic_long next, limit, left[BUFFERS];        /* chunks, counted through all copies */
} jobs[JOBS];
static atomic_long needed, awake;                  /* helpers */
static sem_t called;
static long least(long a, long b) { return a < b ? a : b; }

static int copy_chunk(struct job *job)             /* whether there was one */
{
    long number = job->next;
    do if (number >= job->limit) return 0;
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
    job->left[(end - 1) / job->slice % job->buffers]--;
    return 1;
}

void help(void)                                    /* with any copy, for ever */
{
    for (;; awake--) {
        while (sem_wait(&called));
        for (long looks = 0; looks < LOOKS; looks++)
            for (struct job *job = jobs; job < jobs + JOBS; job++)
                while (copy_chunk(job)) looks = 0;
    }
}

int copy_slices(struct job *job)                   /* 0, or the driver's first error */
{
    long sent = 0, open = 0, copied = 0, size = job->slice, slices = (job->bytes + size - 1) / size;
    int down = job->down, buffers = job->buffers, status = 0, found;
    needed += job->helpers;
    for (long looks = 0; copied < open || (down ? copied : sent) < slices;) {
        long next = sent % buffers, most = least(slices, down ? sent : sent + buffers);
        if (sent < least(slices, down ? copied + buffers : copied)) {
            char *there = job->device + sent * size, *packed = job->ring + next * size;
            char *to = down ? packed : there, *from = down ? there : packed;
            status = job->send(to, from, least(size, job->bytes - sent++ * size), job->stream);
            if (!status) status = job->record(job->event[next], job->stream);
        } else if (open < most && (found = job->query(job->event[open % buffers])) != NOT_READY) {
            status = found;                        /* after an error no more is copied or sent */
            job->left[open % buffers] = status ? 0 : least(job->each, job->last - job->limit);
            job->limit += job->left[open++ % buffers];
            looks = 0;
        } else if (!copy_chunk(job) && (looks += open < most ? QUERY : 1) > LOOKS) usleep(REST);
        while (copied < open && !job->left[copied % buffers]) copied++;
        if (status) slices = 0;
        for (; !looks && awake < least(needed, job->pool); awake++) sem_post(&called);
    }
    needed -= job->helpers;
    return status;
}
