// A device's copies to the memory of other devices, and a meeting of all of them: what follows in each one's stream
// finds what the others copied. One launch on each device. CUDA with peer access.
//
// copies: 3 integers each: addresses of target and source, and how many UNITs. words: addresses of all devices' words
// (peer_flags.cu), own included. Moved over the link: what is copied, and a word for each device.
// Preconditions: devices <= THREADS; UNIT divides all addresses.

#include "peer_flags.cu"

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
