/* The pretended GPU, from ENVBUILD_GPU: `capability;shared memory per block;per SM;registers;SMs;memory;driver;name`,
 * such as `120;101376;102400;65536;188;102641958912;13010;NVIDIA RTX PRO 6000 Blackwell Workstation Edition`.
 * Without the variable there is no GPU: every function that needs one answers "no device". */
#ifndef PRETENDED_H
#define PRETENDED_H
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, INVALID_CONFIGURATION = 9, INVALID_DEVICE_FUNCTION = 98,
       NO_DEVICE = 100, NO_IMAGE = 209, FILE_NOT_FOUND = 301, NOT_SUPPORTED = 801 };
enum { DEFAULT_SHARED = 49152, MOST_THREADS = 1024, MOST_FUNCTIONS_SHOWN = 512 };

struct gpu {
    int present, capability, sms, driver;
    long shared_block, shared_sm, registers;
    unsigned long long memory;
    char name[256];
};

static const struct gpu *the_gpu(void) {
    static struct gpu gpu;
    static int read;
    if (!read) {
        const char *text = getenv("ENVBUILD_GPU");
        gpu.present = text && sscanf(text, "%d;%ld;%ld;%ld;%d;%llu;%d;%255[^\n]", &gpu.capability, &gpu.shared_block,
                                     &gpu.shared_sm, &gpu.registers, &gpu.sms, &gpu.memory, &gpu.driver, gpu.name) == 8;
        read = 1;
    }
    return &gpu;
}

static FILE *the_log(void) {
    static FILE *log;
    if (!log) {
        const char *path = getenv("ENVBUILD_DRY_LOG");
        log = fopen(path ? path : "/dev/null", "ae");
        if (!log) log = stderr;
        setvbuf(log, NULL, _IOLBF, 0);
    }
    return log;
}

enum { RUNS_SASS = 1, RUNS_PTX = 2 };

/* What the driver's CUDA version can compile: PTX 9.0 came with CUDA 13.0; 12.x reads up to 8.(x - (x >= 6)). */
static int compiles(int major, int minor) {
    int cuda = the_gpu()->driver / 10, newest_major = cuda / 100 - 4, newest_minor = cuda % 100;
    if (cuda / 100 == 12 && newest_minor >= 6) newest_minor--;
    return major < newest_major || (major == newest_major && minor <= newest_minor);
}

static int loads(int is_ptx, int arch, int exact, int family) {
    int own = the_gpu()->capability;
    if (exact) return arch == own;
    return arch <= own && ((is_ptx && !family) || arch / 10 == own / 10);
}

/* Walks a fat binary (docs/explanation/device-code.md), notes its architectures, returns how the GPU runs it. */
static int scan_fatbin(const unsigned char *start, char *labels, size_t room) {
    uint16_t header;
    uint64_t size;
    size_t used = 0;
    int runs = 0;
    labels[0] = 0;
    memcpy(&header, start + 6, 2);
    memcpy(&size, start + 8, 8);
    for (const unsigned char *entry = start + header, *end = entry + size; entry + 64 <= end;) {
        uint16_t kind, minor, major;
        uint32_t own_header, arch;
        uint64_t payload, flags;
        memcpy(&kind, entry, 2);
        memcpy(&own_header, entry + 4, 4);
        memcpy(&payload, entry + 8, 8);
        memcpy(&minor, entry + 24, 2);
        memcpy(&major, entry + 26, 2);
        memcpy(&arch, entry + 28, 4);
        memcpy(&flags, entry + 40, 8);
        int exact = !!(flags & 0x100000), family = !!(flags & 0x200000);
        if (kind == 2 && loads(0, (int)arch, exact, family)) runs |= RUNS_SASS;
        if (kind == 1 && loads(1, (int)arch, exact, family) && compiles(major, minor)) runs |= RUNS_PTX;
        if ((kind == 1 || kind == 2) && used + 24 < room)
            used += (size_t)snprintf(labels + used, room - used, "%s%s_%u%s", used ? " " : "",
                                     kind == 1 ? "compute" : "sm", arch, exact ? "a" : family ? "f" : "");
        if (own_header < 64) break;
        entry += own_header + payload;
    }
    return runs;
}

static int is_fatbin(const void *data) { return data && !memcmp(data, "\x50\xed\x55\xba", 4); }

/* What one launch may not ask for; the codes are the runtime's and the driver's alike. */
static int refusal(int runs, unsigned long threads, unsigned long blocks, size_t dynamic, size_t allowed) {
    if (!runs) return NO_IMAGE;
    if (!threads || !blocks || threads > MOST_THREADS) return INVALID_CONFIGURATION;
    return dynamic > (allowed > DEFAULT_SHARED ? allowed : DEFAULT_SHARED) ? INVALID_VALUE : SUCCESS;
}

static void note(const char *event, const char *kernel, const char *labels, int runs, unsigned long threads,
                 long shared, int error) {
    fprintf(the_log(),
            "{\"event\": \"%s\", \"kernel\": \"%s\", \"archs\": \"%s\", \"via\": \"%s\", \"threads\": %lu, "
            "\"shared\": %ld, \"error\": %d}\n",
            event, kernel, labels, runs & RUNS_SASS ? "sass" : runs ? "ptx" : "none", threads, shared, error);
}
#endif
