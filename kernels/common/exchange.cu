// A device's copies to the memory of other devices, and a meeting of all of them: what follows in each one's stream
// finds what the others copied. One launch on each device. CUDA with peer access.
//
// copies: 3 integers each: addresses of target and source, and how many UNITs. words: addresses of all devices' words,
// own included. Moved over the link: what is copied, and a word for each device.
// Preconditions: devices <= THREADS; UNIT divides all addresses.
//
// The devices wait for each other by flags in their memory, without the host. Each has FLAGS + devices words (unsigned
// int). Meetings have numbers, which go on from launch to launch. Device d writes the number of the meeting that it has
// come to in word FLAGS + d of all devices. What it wrote to their memory before is then there for who reads past the
// L1. A device that waits for longer than `patience` nanoseconds sets its own word LOST, and its launches change
// nothing from then on.

#include "nanoseconds.cu"

enum { LOST, TICKETS, MEETINGS, FLAGS = 4 };  // tickets: blocks that have done their part; meetings of launches before

DEVICE unsigned int fresh_word(const unsigned int *word) { return *(const volatile unsigned int *)word; }

// By one thread, after a barrier of all that wrote. `words` are the other device's.
DEVICE void tell(unsigned int *words, index_t rank, unsigned int meeting)
{
    __threadfence_system();
    *(volatile unsigned int *)(words + FLAGS + rank) = meeting;
}

// By one thread; a barrier follows.
DEVICE void await(unsigned int *own, index_t device, unsigned int meeting, index_t patience)
{
    const unsigned long long begin = nanoseconds();
    while ((int)(fresh_word(own + FLAGS + device) - meeting) < 0) {
        if (fresh_word(own + LOST)) return;
        if (nanoseconds() - begin > (unsigned long long)patience) {
            own[LOST] = 1;
            return;
        }
    }
    __threadfence_system();
}

KERNEL(THREADS, 1)
exchange(const index_t *copies, const index_t *words, index_t count, index_t devices, index_t rank, index_t blocks,
         index_t patience)
{
    __shared__ int is_last;
    unsigned int *own = (unsigned int *)words[rank];
    const int thread = (int)threadIdx.x;
    if (fresh_word(own + LOST)) return;
    for (const index_t *copy = copies; copy < copies + 3 * count; copy += 3) {
        UNIT *target = (UNIT *)copy[0];
        const UNIT *source = (const UNIT *)copy[1];
        for (index_t at = blockIdx.x * THREADS + thread; at < copy[2]; at += blocks * THREADS)
            target[at] = source[at];
    }
    __syncthreads();
    if (thread == 0) {
        __threadfence_system();
        is_last = atomicAdd(own + TICKETS, 1u) == (unsigned int)blocks - 1;
    }
    __syncthreads();
    if (!is_last) return;

    const unsigned int meeting = own[MEETINGS] + 1;
    __syncthreads();
    if (thread == 0) {
        own[TICKETS] = 0;
        own[MEETINGS] = meeting;
    }
    if (thread < devices && thread != rank) {
        tell((unsigned int *)words[thread], rank, meeting);
        await(own, thread, meeting, patience);
    }
}
