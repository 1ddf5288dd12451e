/* A libcuda.so.1 for tests on machines without a GPU: device memory is the host's, kernels do nothing.
 *
 * Any call can be made to fail by fake_fail(): the k-th of all calls, or the k-th of one function,
 * once or from then on. A copy to the host that fails has written rubbish to half of its target.
 * fake_live() tells what was made and not yet given back.
 *
 * PyCUDA links to it, cuda.bindings ask it for functions. Those that PyCUDA links to and that are not
 * here are generated as successful no-ops; see fake_cuda.py, which compiles this.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_FOUND = 500, LAUNCH_FAILED = 719 };
enum { MEMORY, PINNED, MODULE, STREAM, EVENT, CONTEXT, PUSHED, KINDS };
typedef unsigned long long Address;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char function_that_fails[64];
static long at, calls, failures;
static int for_good, code = LAUNCH_FAILED;
static char failed[64];
static long live[KINDS];
static size_t room = 1ull << 30, used;
static char names[8192][40]; /* of the calls since fake_fail */
static void *waits[1024][2]; /* since fake_fail: a stream, and the one whose event it waits for */
static long waits_made;

/* k = 0: nothing fails. function: "" for any. status: what the failing call returns. */
void fake_fail(long k, const char *function, int good, int status) {
    pthread_mutex_lock(&lock);
    at = k, for_good = good, code = status ? status : LAUNCH_FAILED;
    snprintf(function_that_fails, sizeof function_that_fails, "%s", function);
    calls = failures = waits_made = 0;
    failed[0] = 0;
    pthread_mutex_unlock(&lock);
}

const char *fake_name(long k) { return k > 0 && k <= 8192 ? names[k - 1] : ""; }
long fake_calls(void) { return calls; }
void *fake_wait(long k, int which) { return k < waits_made ? waits[k][which] : (void *)-1; }
long fake_failures(void) { return failures; }
const char *fake_failed(void) { return failed; }
long fake_live(int kind) { return live[kind]; }
void fake_room(size_t bytes) { room = bytes; }

int fake_gate(const char *name) {
    int status = SUCCESS;
    pthread_mutex_lock(&lock);
    if (!function_that_fails[0] || !strcmp(function_that_fails, name)) {
        if (++calls <= 8192) snprintf(names[calls - 1], sizeof names[0], "%s", name);
        if (at && (calls == at || (for_good && calls > at))) {
            status = code;
            if (!failures++) snprintf(failed, sizeof failed, "%s", name);
        }
    }
    pthread_mutex_unlock(&lock);
    return status;
}

#define GATE do { int status_ = fake_gate(__func__); if (status_) return status_; } while (0)
/* A function that does something unless it is to fail. */
#define CALL(name, parameters, ...) int name parameters { GATE; __VA_ARGS__; return SUCCESS; }

static void *new_object(int kind) {
    __atomic_add_fetch(&live[kind], 1, __ATOMIC_SEQ_CST);
    return calloc(1, 16);
}

static int drop(int kind, void *object) {
    __atomic_sub_fetch(&live[kind], 1, __ATOMIC_SEQ_CST);
    free(object);
    return SUCCESS;
}

/* The driver and its device */

int cuInit(unsigned flags) { GATE; return SUCCESS; }
int cuDriverGetVersion(int *version) { GATE; *version = 13000; return SUCCESS; }
int cuGetErrorString(int status, const char **text) {
    *text = status == OUT_OF_MEMORY ? "out of memory" : "planted failure";
    return SUCCESS;
}
int cuGetErrorName(int status, const char **text) { return cuGetErrorString(status, text); }
int cuDeviceGetCount(int *count) { GATE; *count = 1; return SUCCESS; }
int cuDeviceGet(int *device, int ordinal) { GATE; *device = ordinal; return SUCCESS; }
CALL(cuDeviceGetName, (char *name, int size, int device), snprintf(name, size, "fake device"))
CALL(cuDeviceGetPCIBusId, (char *name, int size, int device),
     snprintf(name, size, "0000:0%d:00.0", device))
int cuDeviceTotalMem_v2(size_t *bytes, int device) { GATE; *bytes = 1ull << 30; return SUCCESS; }
int cuDeviceGetAttribute(int *value, int attribute, int device) {
    GATE;
    switch (attribute) {
    case 1: *value = 1024; break;        /* threads of a block */
    case 8: *value = 48 << 10; break;    /* shared memory of a block */
    case 10: *value = 32; break;         /* warp */
    case 13: *value = 1980000; break;    /* clock, kHz */
    case 16: *value = 132; break;        /* multiprocessors */
    case 75: *value = 9; break;          /* compute capability */
    case 76: *value = 0; break;
    case 97: *value = 227 << 10; break;  /* shared memory of a block that asks for it */
    default: *value = 1;
    }
    return SUCCESS;
}

/* Contexts: a stack for each thread */

static __thread void *stack[64];
static __thread int depth;
static void *primary;
static long retained;

int cuDevicePrimaryCtxRetain(void **context, int device) {
    GATE;
    if (!retained++) primary = new_object(CONTEXT);
    *context = primary;
    return SUCCESS;
}
static int release(void) {
    if (retained && !--retained) /* they go with it */
        live[MODULE] = live[STREAM] = live[EVENT] = 0, drop(CONTEXT, primary), primary = NULL;
    return SUCCESS;
}
int cuDevicePrimaryCtxRelease_v2(int device) { GATE; return release(); }
CALL(cuDevicePrimaryCtxGetState, (int device, unsigned *flags, int *active),
     *flags = 0, *active = retained > 0)
int cuCtxPushCurrent_v2(void *context) {
    GATE;
    if (depth == 64) return INVALID_VALUE;
    stack[depth++] = context;
    __atomic_add_fetch(&live[PUSHED], 1, __ATOMIC_SEQ_CST);
    return SUCCESS;
}
int cuCtxPopCurrent_v2(void **context) {
    GATE;
    if (!depth) return 201;
    __atomic_sub_fetch(&live[PUSHED], 1, __ATOMIC_SEQ_CST);
    depth--;
    if (context) *context = stack[depth];
    return SUCCESS;
}
static int create(void **context) {
    if (depth == 64) return INVALID_VALUE;
    *context = stack[depth++] = new_object(CONTEXT);
    __atomic_add_fetch(&live[PUSHED], 1, __ATOMIC_SEQ_CST);
    return SUCCESS;
}
int cuCtxCreate_v4(void **context, void *parameters, unsigned flags, int device) {
    GATE;
    return create(context);
}
int cuCtxCreate_v2(void **context, unsigned flags, int device) { GATE; return create(context); }
static int end(void *context) {
    if (depth && stack[depth - 1] == context) {
        depth--;
        __atomic_sub_fetch(&live[PUSHED], 1, __ATOMIC_SEQ_CST);
    }
    return context == primary ? release() : drop(CONTEXT, context);
}
int cuCtxDetach(void *context) { GATE; return end(context); }
int cuCtxDestroy_v2(void *context) { GATE; return end(context); }
void fake_unstack(int primary_too) {
    __atomic_sub_fetch(&live[PUSHED], depth, __ATOMIC_SEQ_CST);
    depth = 0;
    if (primary_too) retained = 0, used = 0, memset(live, 0, sizeof live);
}
CALL(cuCtxGetCurrent, (void **context), *context = depth ? stack[depth - 1] : NULL)
int cuCtxGetDevice(int *device) { GATE; *device = 0; return SUCCESS; }
int cuCtxGetApiVersion(void *context, unsigned *version) { GATE; *version = 13000; return SUCCESS; }
int cuCtxSynchronize(void) { GATE; return SUCCESS; }

/* Memory */

CALL(cuMemGetInfo_v2, (size_t *free_bytes, size_t *total),
     *free_bytes = room > used ? room - used : 0, *total = room)
int cuMemAlloc_v2(Address *address, size_t bytes) {
    GATE;
    pthread_mutex_lock(&lock);
    int fits = used + bytes <= room;
    if (fits) used += bytes, live[MEMORY]++;
    pthread_mutex_unlock(&lock);
    if (!fits) return OUT_OF_MEMORY;
    size_t *block = NULL;
    if (posix_memalign((void **)&block, 512, bytes + 512)) return OUT_OF_MEMORY;
    block[0] = bytes;
    memset((char *)block + 512, 0x3F, bytes); /* small positive numbers: solves go on */
    *address = (Address)block + 512;
    return SUCCESS;
}
int cuMemFree_v2(Address address) {
    GATE;
    size_t *block = (size_t *)(address - 512);
    pthread_mutex_lock(&lock);
    used -= block[0], live[MEMORY]--;
    pthread_mutex_unlock(&lock);
    free(block);
    return SUCCESS;
}
CALL(cuMemHostRegister_v2, (void *memory, size_t bytes, unsigned flags),
     __atomic_add_fetch(&live[PINNED], 1, __ATOMIC_SEQ_CST))
CALL(cuMemHostUnregister, (void *memory), __atomic_sub_fetch(&live[PINNED], 1, __ATOMIC_SEQ_CST))
CALL(cuMemcpyHtoD_v2, (Address to, const void *from, size_t bytes), memcpy((void *)to, from, bytes))
CALL(cuMemcpyHtoDAsync_v2, (Address to, const void *from, size_t bytes, void *stream),
     memcpy((void *)to, from, bytes))
typedef struct {
    size_t x, y;
    unsigned type;
    char *host;
    Address device;
    void *array;
    size_t pitch;
} Side;
typedef struct { Side from, to; size_t width, height; } Copy2D;
int cuMemcpy2DAsync_v2(const Copy2D *copy, void *stream) {
    GATE;
    char *from = copy->from.type == 1 ? copy->from.host : (char *)copy->from.device;
    char *to = copy->to.type == 1 ? copy->to.host : (char *)copy->to.device;
    for (size_t row = 0; row < copy->height; ++row)
        memcpy(to + row * copy->to.pitch, from + row * copy->from.pitch, copy->width);
    return SUCCESS;
}
static int to_host(const char *name, void *to, Address from, size_t bytes) {
    int status = fake_gate(name);
    if (status) memset(to, 0xAB, bytes / 2);
    else memcpy(to, (void *)from, bytes);
    return status;
}
int cuMemcpyDtoH_v2(void *to, Address from, size_t bytes) {
    return to_host(__func__, to, from, bytes);
}
int cuMemcpyDtoHAsync_v2(void *to, Address from, size_t bytes, void *stream) {
    return to_host(__func__, to, from, bytes);
}
CALL(cuMemcpyDtoDAsync_v2, (Address to, Address from, size_t bytes, void *stream),
     memmove((void *)to, (void *)from, bytes))
CALL(cuMemsetD8Async, (Address to, unsigned char value, size_t bytes, void *stream),
     memset((void *)to, value, bytes))
CALL(cuPointerGetAttribute, (void *value, int attribute, Address address), *(int *)value = 0)

/* Kernels, streams, events */

CALL(cuModuleLoadData, (void **module, const void *image), *module = new_object(MODULE))
int cuModuleLoadDataEx(void **module, const void *image, unsigned n, int *options, void **values) {
    enum { INFO_LOG = 3, INFO_LOG_BYTES, ERROR_LOG, ERROR_LOG_BYTES };
    for (unsigned i = 0; i < n; ++i) { /* PyCUDA shows both logs of a module that is not loaded */
        if (options[i] == INFO_LOG || options[i] == ERROR_LOG) *(char *)values[i] = 0;
        if (options[i] == INFO_LOG_BYTES || options[i] == ERROR_LOG_BYTES) values[i] = 0;
    }
    GATE;
    *module = new_object(MODULE);
    return SUCCESS;
}
int cuModuleUnload(void *module) { GATE; return drop(MODULE, module); }
CALL(cuModuleGetFunction, (void **function, void *module, const char *name), *function = module)
CALL(cuFuncGetAttribute, (int *value, int attribute, void *function), *value = attribute ? 0 : 1024)
int cuFuncSetAttribute(void *function, int attribute, int value) { GATE; return SUCCESS; }
CALL(cuOccupancyMaxActiveBlocksPerMultiprocessor,
     (int *blocks, void *function, int block, size_t s), *blocks = 2)
static struct { unsigned grid[3], block[3], shared; void *stream; size_t bytes; char data[4096]; } last;
int cuLaunchKernel(void *function, unsigned x, unsigned y, unsigned z, unsigned bx, unsigned by,
                   unsigned bz, unsigned shared, void *stream, void **parameters, void **extra) {
    enum { END, BUFFER, SIZE };
    GATE;
    last = (typeof(last)){{x, y, z}, {bx, by, bz}, shared, stream};
    for (size_t at = 0; extra && (size_t)extra[at] != END; at += 2)
        if ((size_t)extra[at] == SIZE) last.bytes = *(size_t *)extra[at + 1];
    for (size_t at = 0; extra && (size_t)extra[at] != END; at += 2)
        if ((size_t)extra[at] == BUFFER) memcpy(last.data, extra[at + 1], last.bytes);
    return SUCCESS;
}
const void *fake_launch(void) { return &last; } /* the last one */
int cuLaunchCooperativeKernel(void) { GATE; return SUCCESS; }
CALL(cuStreamCreate, (void **stream, unsigned flags), *stream = new_object(STREAM))
int cuStreamDestroy_v2(void *stream) { GATE; return drop(STREAM, stream); }
int cuStreamSynchronize(void *stream) { GATE; return SUCCESS; }
int cuStreamGetCtx(void *stream, void **context) { GATE; *context = primary; return SUCCESS; }
int cuStreamWaitEvent(void *stream, void *event, unsigned flags) {
    GATE;
    pthread_mutex_lock(&lock);
    if (waits_made < 1024) {
        waits[waits_made][0] = stream;
        waits[waits_made++][1] = *(void **)event;
    }
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}
CALL(cuEventCreate, (void **event, unsigned flags), *event = new_object(EVENT))
int cuEventDestroy_v2(void *event) { GATE; return drop(EVENT, event); }
CALL(cuEventRecord, (void *event, void *stream), *(void **)event = stream)
int cuEventSynchronize(void *event) { GATE; return SUCCESS; }
int cuEventQuery(void *event) { GATE; return SUCCESS; }
int cuEventElapsedTime(float *ms, void *a, void *b) { GATE; *ms = 1.0f; return SUCCESS; }

/* How cuda.bindings finds functions */

int cuGetProcAddress_v2(const char *name, void **found, int version, unsigned long long flags,
                        int *how) {
    static const char *suffixes[] = {"_v4", "_v2", ""};
    char full[128];
    Dl_info here;
    *found = NULL;
    if (!dladdr((void *)cuInit, &here)) return NOT_FOUND;
    void *self = dlopen(here.dli_fname, RTLD_NOW | RTLD_NOLOAD);
    for (int i = version < 12050; i < 3 && !*found; i++) { /* from 12.5 on there is a v4 */
        snprintf(full, sizeof full, "%s%s", name, suffixes[i]);
        *found = self ? dlsym(self, full) : NULL;
    }
    if (self) dlclose(self);
    if (how) *how = *found ? 0 : 1;
    return *found ? SUCCESS : NOT_FOUND;
}
int cuGetProcAddress(const char *name, void **found, int version, unsigned long long flags) {
    return cuGetProcAddress_v2(name, found, version, flags, NULL);
}
