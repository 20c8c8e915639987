/* A CUDA runtime for LD_PRELOAD that answers as the pretended GPU: memory is the host's, copies are copies, launches are
 * checked as the real runtime checks them, logged, and not executed. It serves libraries that link libcudart
 * dynamically (torch, kernel packages, JIT extensions). Functions that are not here are the real runtime's. */
#define _GNU_SOURCE
#include "pretended.h"
#include <pthread.h>
#include <sys/mman.h>

typedef int error_t;
struct dim3 { unsigned x, y, z; };
struct kernel { const void *host; const char *name; int runs; const char *labels; long allowed; struct kernel *next; };
struct launch_config { struct dim3 grid, block; size_t dynamic; void *stream; void *attributes; unsigned count; };

static __thread error_t last_error;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
enum { BUCKETS = 1 << 16 };
static struct kernel *kernels[BUCKETS];

static error_t answer(error_t error) {
    if (error) last_error = error;
    return error;
}

/* Fat binaries and the kernels in them */
struct image { int runs; char labels[256]; };

void **__cudaRegisterFatBinary(const void *wrapper) {
    const struct { int magic, version; const unsigned char *data; void *name; } *segment = wrapper;
    struct image *image = calloc(1, sizeof *image);
    if (is_fatbin(segment->data)) image->runs = scan_fatbin(segment->data, image->labels, sizeof image->labels);
    return (void **)image;
}
void __cudaRegisterFatBinaryEnd(void **image) { (void)image; }
void __cudaUnregisterFatBinary(void **image) { (void)image; }
char __cudaInitModule(void **image) { (void)image; return 1; }
void __cudaRegisterVar(void **i, char *h, char *a, const char *n, int e, size_t s, int c, int g) {
    (void)i, (void)h, (void)a, (void)n, (void)e, (void)s, (void)c, (void)g;
}

static struct kernel **bucket_of(const void *host) { return &kernels[((uintptr_t)host >> 4) * 2654435761u % BUCKETS]; }
static struct kernel *find(const void *host) {
    struct kernel *kernel = *bucket_of(host);
    while (kernel && kernel->host != host) kernel = kernel->next;
    return kernel;
}
void __cudaRegisterFunction(void **registered, const char *host, char *stub, const char *name, int limit, void *tid,
                            void *bid, void *block, void *grid, int *warp) {
    (void)stub, (void)limit, (void)tid, (void)bid, (void)block, (void)grid, (void)warp;
    struct image *image = (struct image *)registered;
    struct kernel *kernel = malloc(sizeof *kernel);
    pthread_mutex_lock(&lock);
    *kernel = (struct kernel){host, name, image->runs, image->labels, 0, *bucket_of(host)};
    *bucket_of(host) = kernel;
    pthread_mutex_unlock(&lock);
}

/* Launches */
static __thread struct { struct dim3 grid, block; size_t dynamic; void *stream; } pushed[16];
static __thread int depth;

unsigned __cudaPushCallConfiguration(struct dim3 grid, struct dim3 block, size_t dynamic, void *stream) {
    if (depth == 16) return 1;
    pushed[depth].grid = grid, pushed[depth].block = block;
    pushed[depth].dynamic = dynamic, pushed[depth].stream = stream;
    depth++;
    return 0;
}
error_t __cudaPopCallConfiguration(struct dim3 *grid, struct dim3 *block, size_t *dynamic, void *stream) {
    if (!depth) return INVALID_CONFIGURATION;
    depth--;
    *grid = pushed[depth].grid, *block = pushed[depth].block;
    *dynamic = pushed[depth].dynamic, *(void **)stream = pushed[depth].stream;
    return SUCCESS;
}
static error_t launch(const void *host, struct dim3 grid, struct dim3 block, size_t dynamic) {
    struct kernel *kernel = find(host);
    if (!the_gpu()->present) return answer(NO_DEVICE);
    if (!kernel) return answer(INVALID_DEVICE_FUNCTION);
    unsigned long threads = (unsigned long)block.x * block.y * block.z, blocks = (unsigned long)grid.x * grid.y * grid.z;
    error_t error = refusal(kernel->runs, threads, blocks, dynamic, (size_t)kernel->allowed);
    note("launch", kernel->name, kernel->labels, kernel->runs, threads, (long)dynamic, error);
    return answer(error);
}
error_t cudaLaunchKernel(const void *f, struct dim3 g, struct dim3 b, void **a, size_t dynamic, void *stream) {
    (void)a, (void)stream;
    return launch(f, g, b, dynamic);
}
error_t cudaLaunchCooperativeKernel(const void *f, struct dim3 g, struct dim3 b, void **a, size_t dynamic, void *s) {
    return cudaLaunchKernel(f, g, b, a, dynamic, s);
}
error_t cudaLaunchKernelExC(const struct launch_config *c, const void *f, void **a) {
    return cudaLaunchKernel(f, c->grid, c->block, a, c->dynamic, c->stream);
}
/* CUDA 13's host code launches by a handle; ours is the host function itself. */
error_t __cudaGetKernel(const void **handle, const void *f) { *handle = f; return SUCCESS; }
error_t __cudaLaunchKernel(const void *k, struct dim3 g, struct dim3 b, void **a, size_t dynamic, void *stream) {
    return cudaLaunchKernel(k, g, b, a, dynamic, stream);
}
error_t cudaFuncSetAttribute(const void *host, int attribute, int value) {
    struct kernel *kernel = find(host);
    if (!the_gpu()->present) return answer(NO_DEVICE);
    if (!kernel) return answer(INVALID_DEVICE_FUNCTION);
    error_t error = kernel->runs ? SUCCESS : NO_IMAGE;
    if (!error && attribute == 8) {
        if (value > the_gpu()->shared_block) error = INVALID_VALUE;
        else kernel->allowed = value;
    }
    if (error) note("attribute", kernel->name, kernel->labels, kernel->runs, 0, value, error);
    return answer(error);
}
error_t cudaFuncGetAttributes(void *attributes, const void *host) {
    struct kernel *kernel = find(host);
    int *numbers = memset(attributes, 0, 144);
    numbers[6] = MOST_THREADS, numbers[7] = 32, numbers[8] = numbers[9] = the_gpu()->capability;
    numbers[11] = DEFAULT_SHARED;
    return answer(!the_gpu()->present ? NO_DEVICE : kernel && !kernel->runs ? NO_IMAGE : SUCCESS);
}
error_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *f, int threads, size_t dynamic) {
    (void)f, (void)threads;
    *blocks = dynamic > (size_t)the_gpu()->shared_block ? 0 : 1;
    return SUCCESS;
}
error_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *n, const void *f, int t, size_t s, unsigned flags) {
    (void)flags;
    return cudaOccupancyMaxActiveBlocksPerMultiprocessor(n, f, t, s);
}

/* The device */
error_t cudaGetDeviceCount(int *count) { *count = the_gpu()->present; return answer(*count ? SUCCESS : NO_DEVICE); }
error_t cudaGetDevice(int *device) { *device = 0; return answer(the_gpu()->present ? SUCCESS : NO_DEVICE); }
error_t cudaSetDevice(int device) { return answer(device == 0 && the_gpu()->present ? SUCCESS : 101); }
error_t cudaDriverGetVersion(int *version) { *version = the_gpu()->driver; return SUCCESS; }
error_t cudaDeviceSynchronize(void) { return SUCCESS; }
error_t cudaDeviceReset(void) { return SUCCESS; }
error_t cudaDeviceCanAccessPeer(int *can, int a, int b) { (void)a, (void)b; *can = 0; return SUCCESS; }
error_t cudaDeviceEnablePeerAccess(int a, unsigned flags) { (void)a, (void)flags; return SUCCESS; }
error_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) { *least = 0, *greatest = -5; return SUCCESS; }
error_t cudaDeviceGetPCIBusId(char *text, int room, int device) {
    (void)device;
    snprintf(text, (size_t)room, "0000:01:00.0");
    return SUCCESS;
}
error_t cudaDeviceGetDefaultMemPool(void **pool, int device) { (void)device; *pool = (void *)8; return SUCCESS; }
error_t cudaMemGetInfo(size_t *unused, size_t *total) {
    *total = the_gpu()->memory, *unused = the_gpu()->memory - (1ULL << 29);
    return SUCCESS;
}

/* `struct cudaDeviceProp` of CUDA 12 and 13: the offsets of the same fields */
struct layout { int size, sms, l2, threads_sm, shared_sm, registers_sm, cooperative, optin, reserved, cluster, bus, unified; };
static const struct layout CUDA_12 = {1032, 388, 616, 624, 640, 648, 688, 696, 720, 772, 612, 604};
static const struct layout CUDA_13 = {1008, 384, 596, 604, 624, 632, 668, 672, 696, 748, 592, 588};

static void put(char *at, int offset, int value) { memcpy(at + offset, &value, 4); }
static void put_size(char *at, int offset, unsigned long long value) { memcpy(at + offset, &value, 8); }
static error_t properties(char *at, const struct layout *layout) {
    const struct gpu *gpu = the_gpu();
    memset(at, 0, (size_t)layout->size);
    snprintf(at, 256, "%s", gpu->name);
    put_size(at, 288, gpu->memory), put_size(at, 296, DEFAULT_SHARED);
    put(at, 304, (int)gpu->registers), put(at, 308, 32), put(at, 320, MOST_THREADS);
    put(at, 324, 1024), put(at, 328, 1024), put(at, 332, 64);
    put(at, 336, 2147483647), put(at, 340, 65535), put(at, 344, 65535);
    put_size(at, 352, 65536), put(at, 360, gpu->capability / 10), put(at, 364, gpu->capability % 10);
    put_size(at, 368, 512);
    put(at, layout->sms, gpu->sms), put(at, layout->l2, 64 << 20), put(at, layout->threads_sm, 1536);
    put_size(at, layout->shared_sm, (unsigned long long)gpu->shared_sm), put(at, layout->registers_sm, (int)gpu->registers);
    put(at, layout->cooperative, 1), put_size(at, layout->optin, (unsigned long long)gpu->shared_block);
    put_size(at, layout->reserved, 1024), put(at, layout->cluster, gpu->capability >= 90);
    put(at, layout->bus, 512), put(at, layout->unified, 1);
    return answer(gpu->present ? SUCCESS : NO_DEVICE);
}
error_t cudaGetDeviceProperties_v2(void *at, int device) { (void)device; return properties(at, &CUDA_12); }
error_t cudaGetDeviceProperties(void *at, int device) { (void)device; return properties(at, &CUDA_13); }
int pretended_attribute(int attribute) {
    const struct gpu *gpu = the_gpu();
    switch (attribute) {
    case 1: case 2: case 3: return MOST_THREADS;
    case 4: return 64;
    case 5: return 2147483647;
    case 6: case 7: return 65535;
    case 8: return DEFAULT_SHARED;
    case 10: return 32;
    case 12: case 82: return (int)gpu->registers;
    case 16: return gpu->sms;
    case 38: return 64 << 20;
    case 39: return 1536;
    case 41: case 95: case 115: return 1;
    case 75: return gpu->capability / 10;
    case 76: return gpu->capability % 10;
    case 81: return (int)gpu->shared_sm;
    case 97: return (int)gpu->shared_block;
    case 106: return 24;
    case 111: return 1024;
    case 120: return gpu->capability >= 90;
    default: return 0;
    }
}
error_t cudaDeviceGetAttribute(int *value, int attribute, int device) {
    (void)device;
    *value = pretended_attribute(attribute);
    return answer(the_gpu()->present ? SUCCESS : NO_DEVICE);
}

/* Memory: the host's, committed when touched. Its size stands in a page before it. */
enum { PAGE = 4096 };
static error_t allocate(void **at, size_t size) {
    size = (size + 2 * PAGE - 1) / PAGE * PAGE;
    if (size > the_gpu()->memory) return answer(OUT_OF_MEMORY);
    size_t *start = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (start == MAP_FAILED) return answer(OUT_OF_MEMORY);
    *start = size;
    *at = (char *)start + PAGE;
    return SUCCESS;
}
static error_t release(void *at) {
    if (at) munmap((char *)at - PAGE, *(size_t *)((char *)at - PAGE));
    return SUCCESS;
}
static error_t fill(void *at, int value, size_t size) {
    if (size <= 1 << 20) memset(at, value, size);
    else if (!value) {
        uintptr_t start = ((uintptr_t)at + PAGE - 1) / PAGE * PAGE, end = ((uintptr_t)at + size) / PAGE * PAGE;
        madvise((void *)start, end - start, MADV_DONTNEED);
    }
    return SUCCESS;
}
error_t cudaMalloc(void **at, size_t n) { return the_gpu()->present ? allocate(at, n) : answer(NO_DEVICE); }
error_t cudaMallocAsync(void **at, size_t n, void *s) { (void)s; return cudaMalloc(at, n); }
error_t cudaHostAlloc(void **at, size_t n, unsigned flags) { (void)flags; return allocate(at, n); }
error_t cudaMallocHost(void **at, size_t n) { return allocate(at, n); }
error_t cudaFree(void *at) { return release(at); }
error_t cudaFreeAsync(void *at, void *s) { (void)s; return release(at); }
error_t cudaFreeHost(void *at) { return release(at); }
error_t cudaHostRegister(void *at, size_t n, unsigned flags) { (void)at, (void)n, (void)flags; return SUCCESS; }
error_t cudaHostUnregister(void *at) { (void)at; return SUCCESS; }
error_t cudaHostGetDevicePointer(void **device, void *host, unsigned f) { (void)f; *device = host; return SUCCESS; }
error_t cudaMemcpy(void *to, const void *from, size_t n, int kind) { (void)kind; memmove(to, from, n); return SUCCESS; }
error_t cudaMemcpyAsync(void *to, const void *from, size_t n, int kind, void *s) { (void)s; return cudaMemcpy(to, from, n, kind); }
error_t cudaMemcpyPeerAsync(void *to, int a, const void *from, int b, size_t n, void *s) {
    (void)a, (void)b;
    return cudaMemcpyAsync(to, from, n, 3, s);
}
error_t cudaMemcpy2DAsync(char *to, size_t step, const char *from, size_t pitch, size_t width, size_t height, int k, void *s) {
    (void)k, (void)s;
    for (size_t row = 0; row < height; row++) memmove(to + row * step, from + row * pitch, width);
    return SUCCESS;
}
error_t cudaMemcpyToSymbol(void *symbol, const void *from, size_t n, size_t offset, int kind) {
    (void)symbol, (void)from, (void)n, (void)offset, (void)kind;
    return SUCCESS;
}
error_t cudaGetSymbolAddress(void **at, const void *symbol) { *at = (void *)symbol; return SUCCESS; }
error_t cudaMemset(void *at, int value, size_t n) { return fill(at, value, n); }
error_t cudaMemsetAsync(void *at, int value, size_t n, void *s) { (void)s; return fill(at, value, n); }
error_t cudaMemPoolGetAttribute(void *pool, int a, void *value) { (void)pool, (void)a; *(uint64_t *)value = 0; return SUCCESS; }
error_t cudaMemPoolSetAttribute(void *pool, int a, void *value) { (void)pool, (void)a, (void)value; return SUCCESS; }
error_t cudaPointerGetAttributes(void *attributes, const void *at) {
    struct { int type, device; const void *on_device, *on_host; } *kind = attributes;
    kind->type = 2, kind->device = 0, kind->on_device = kind->on_host = at;
    return SUCCESS;
}

/* Streams and events: everything is done at once. */
static error_t create(void **at) { *at = malloc(64); return SUCCESS; }
error_t cudaStreamCreate(void **s) { return create(s); }
error_t cudaStreamCreateWithFlags(void **s, unsigned f) { (void)f; return create(s); }
error_t cudaStreamCreateWithPriority(void **s, unsigned f, int p) { (void)f, (void)p; return create(s); }
error_t cudaStreamDestroy(void *s) { free(s); return SUCCESS; }
error_t cudaStreamSynchronize(void *s) { (void)s; return SUCCESS; }
error_t cudaStreamQuery(void *s) { (void)s; return SUCCESS; }
error_t cudaStreamWaitEvent(void *s, void *e, unsigned f) { (void)s, (void)e, (void)f; return SUCCESS; }
error_t cudaStreamGetPriority(void *s, int *p) { (void)s; *p = 0; return SUCCESS; }
error_t cudaStreamIsCapturing(void *s, int *status) { (void)s; *status = 0; return SUCCESS; }
error_t cudaStreamGetCaptureInfo(void *s, int *status, unsigned long long *id) { (void)s; *status = 0; if (id) *id = 0; return SUCCESS; }
error_t cudaStreamGetCaptureInfo_v2(void *s, int *status, unsigned long long *id) { return cudaStreamGetCaptureInfo(s, status, id); }
error_t cudaStreamAddCallback(void *s, void (*f)(void *, int, void *), void *data, unsigned flags) { (void)flags; f(s, 0, data); return SUCCESS; }
error_t cudaLaunchHostFunc(void *s, void (*f)(void *), void *data) { (void)s; f(data); return SUCCESS; }
error_t cudaThreadExchangeStreamCaptureMode(int *mode) { (void)mode; return SUCCESS; }
error_t cudaEventCreate(void **e) { return create(e); }
error_t cudaEventCreateWithFlags(void **e, unsigned f) { (void)f; return create(e); }
error_t cudaEventDestroy(void *e) { free(e); return SUCCESS; }
error_t cudaEventRecord(void *e, void *s) { (void)e, (void)s; return SUCCESS; }
error_t cudaEventRecordWithFlags(void *e, void *s, unsigned f) { (void)e, (void)s, (void)f; return SUCCESS; }
error_t cudaEventQuery(void *e) { (void)e; return SUCCESS; }
error_t cudaEventSynchronize(void *e) { (void)e; return SUCCESS; }
error_t cudaEventElapsedTime(float *ms, void *a, void *b) { (void)a, (void)b; *ms = 1; return SUCCESS; }
error_t cudaProfilerStart(void) { return SUCCESS; }
error_t cudaProfilerStop(void) { return SUCCESS; }

/* Errors; their texts are the real runtime's. */
error_t cudaGetLastError(void) { error_t error = last_error; last_error = 0; return error; }
error_t cudaPeekAtLastError(void) { return last_error; }

/* The driver through the runtime: torch asks for some functions by name. */
extern void *dlopen(const char *, int), *dlsym(void *, const char *);
static error_t unsupported(void) { return NOT_SUPPORTED; }
error_t cudaGetDriverEntryPointByVersion(const char *name, void **at, unsigned v, unsigned long long flags, int *found) {
    (void)v, (void)flags;
    void *driver = dlopen("libcuda.so.1", 1);
    *at = driver ? dlsym(driver, name) : NULL;
    if (!*at) *at = (void *)unsupported;
    if (found) *found = 0;
    return SUCCESS;
}
error_t cudaGetDriverEntryPoint(const char *name, void **at, unsigned long long flags, int *found) {
    return cudaGetDriverEntryPointByVersion(name, at, 0, flags, found);
}
