// Devices of one host that wait for each other by flags in their memory, without the host. CUDA with peer access.
//
// Each device has FLAGS + devices words (unsigned int). Meetings have numbers, which go on from launch to launch.
// Device d writes the number of the meeting that it has come to in word FLAGS + d of all devices. What it wrote to
// their memory before is then there for who reads past the L1. A device that waits for longer than `patience`
// nanoseconds sets its own word LOST, and its launches change nothing from then on.

#include "nanoseconds.cu"

#define LOST 0
#define TICKETS 1   // blocks that have done their part
#define MEETINGS 2  // meetings of the launches before
#define FLAGS 4

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
