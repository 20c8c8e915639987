/* A libcuda.so.1 that answers as the pretended GPU, or without one as a driver that finds no device. Images are checked
 * when they are loaded, launches when they are made; nothing is executed. */
#define _GNU_SOURCE
#include "pretended.h"
#include <dlfcn.h>

typedef int result_t;
struct module { int runs; char labels[256]; };
struct function { struct module *module; char name[MOST_FUNCTIONS_SHOWN]; long allowed; };

static result_t state(void) { return the_gpu()->present ? SUCCESS : NO_DEVICE; }

result_t cuInit(unsigned flags) { (void)flags; return state(); }
result_t cuDriverGetVersion(int *version) { *version = the_gpu()->present ? the_gpu()->driver : 13000; return SUCCESS; }
result_t cuGetErrorName(int error, const char **text) {
    switch (error) {
    case INVALID_VALUE: *text = "CUDA_ERROR_INVALID_VALUE"; break;
    case NO_DEVICE: *text = "CUDA_ERROR_NO_DEVICE"; break;
    case NO_IMAGE: *text = "CUDA_ERROR_NO_BINARY_FOR_GPU"; break;
    case FILE_NOT_FOUND: *text = "CUDA_ERROR_FILE_NOT_FOUND"; break;
    default: *text = "CUDA_ERROR_NOT_SUPPORTED by the pretended GPU";
    }
    return SUCCESS;
}
result_t cuGetErrorString(int error, const char **text) { return cuGetErrorName(error, text); }
result_t cuDeviceGetCount(int *count) { *count = the_gpu()->present; return state(); }
result_t cuDeviceGet(int *device, int ordinal) { *device = 0; return ordinal ? 101 : state(); }
result_t cuDeviceGetName(char *name, int room, int device) { (void)device; snprintf(name, (size_t)room, "%s", the_gpu()->name); return state(); }
result_t cuDeviceTotalMem_v2(size_t *size, int device) { (void)device; *size = the_gpu()->memory; return state(); }
result_t cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) { (void)device; *flags = 0, *active = 1; return state(); }
result_t cuDevicePrimaryCtxRetain(void **context, int device) { (void)device; *context = (void *)64; return state(); }
result_t cuCtxGetCurrent(void **context) { *context = (void *)64; return state(); }
result_t cuCtxSetCurrent(void *context) { (void)context; return state(); }
result_t cuCtxPushCurrent_v2(void *context) { (void)context; return state(); }
result_t cuCtxPopCurrent_v2(void **context) { if (context) *context = (void *)64; return state(); }
result_t cuCtxGetDevice(int *device) { *device = 0; return state(); }
result_t cuCtxSynchronize(void) { return state(); }
result_t cuStreamSynchronize(void *stream) { (void)stream; return state(); }
result_t cuPointerGetAttribute(void *value, int attribute, unsigned long long at) {
    if (attribute == 2) *(int *)value = 2;
    else if (attribute == 9) *(int *)value = 0;
    else *(unsigned long long *)value = at;
    return state();
}
/* The numbers of the attributes are those of the runtime. */
result_t cuDeviceGetAttribute(int *value, int attribute, int device) {
    (void)device;
    int (*ask)(int) = (int (*)(int))dlsym(RTLD_DEFAULT, "pretended_attribute");
    *value = ask ? ask(attribute) : 0;
    return state();
}

static result_t load(struct module **module, const unsigned char *image) {
    if (!the_gpu()->present) return NO_DEVICE;
    struct module *new = calloc(1, sizeof *new);
    if (!memcmp(image, "\xb1\x43\x62\x46", 4)) memcpy(&image, image + 8, sizeof image); /* the wrapper that nvcc makes */
    if (is_fatbin(image)) new->runs = scan_fatbin(image, new->labels, sizeof new->labels);
    else if (!memcmp(image, "\x7f" "ELF", 4)) {
        uint32_t flags;
        memcpy(&flags, image + 48, 4);
        int arch = image[8] >= 8 ? flags >> 8 & 0xff : flags & 0xff;
        snprintf(new->labels, sizeof new->labels, "sm_%d", arch);
        new->runs = loads(0, arch, 0, 0) ? RUNS_SASS : 0;
    } else {
        int major = 0, minor = 0, arch = 0;
        const char *version = strstr((const char *)image, ".version"), *target = strstr((const char *)image, ".target sm_");
        char suffix = 0;
        if (version) sscanf(version, ".version %d.%d", &major, &minor);
        if (target) sscanf(target, ".target sm_%d%c", &arch, &suffix);
        snprintf(new->labels, sizeof new->labels, "compute_%d", arch);
        new->runs = arch && loads(1, arch, suffix == 'a', suffix == 'f') && compiles(major, minor) ? RUNS_PTX : 0;
    }
    if (!new->runs) {
        note("load", "", new->labels, 0, 0, 0, NO_IMAGE);
        free(new);
        return NO_IMAGE;
    }
    *module = new;
    return SUCCESS;
}
result_t cuModuleLoadData(struct module **module, const void *image) { return load(module, image); }
result_t cuModuleLoad(struct module **module, const char *path) {
    FILE *file = fopen(path, "rbe");
    if (!file) return FILE_NOT_FOUND;
    fseek(file, 0, SEEK_END);
    size_t size = (size_t)ftell(file);
    unsigned char *image = calloc(1, size + 64);
    rewind(file);
    size = fread(image, 1, size, file);
    fclose(file);
    result_t done = size ? load(module, image) : INVALID_VALUE;
    free(image);
    return done;
}
result_t cuModuleLoadDataEx(struct module **module, const void *image, unsigned n, void *o, void *v) {
    (void)n, (void)o, (void)v;
    return load(module, image);
}
result_t cuModuleLoadFatBinary(struct module **module, const void *image) { return load(module, image); }
result_t cuLibraryLoadData(struct module **module, const void *image) { return load(module, image); }
result_t cuModuleUnload(struct module *module) { (void)module; return SUCCESS; }
result_t cuLibraryUnload(struct module *module) { (void)module; return SUCCESS; }
result_t cuModuleGetFunction(struct function **function, struct module *module, const char *name) {
    *function = calloc(1, sizeof **function);
    (*function)->module = module;
    snprintf((*function)->name, sizeof (*function)->name, "%s", name);
    return SUCCESS;
}
result_t cuLibraryGetKernel(struct function **f, struct module *module, const char *name) { return cuModuleGetFunction(f, module, name); }
result_t cuKernelGetFunction(struct function **f, struct function *kernel) { *f = kernel; return SUCCESS; }
result_t cuFuncSetAttribute(struct function *function, int attribute, int value) {
    if (attribute != 8) return SUCCESS;
    if (value > the_gpu()->shared_block) {
        note("attribute", function->name, function->module->labels, function->module->runs, 0, value, INVALID_VALUE);
        return INVALID_VALUE;
    }
    function->allowed = value;
    return SUCCESS;
}
result_t cuKernelSetAttribute(int attribute, int value, struct function *f, int device) { (void)device; return cuFuncSetAttribute(f, attribute, value); }
result_t cuFuncGetAttribute(int *value, int attribute, struct function *f) {
    (void)f;
    *value = attribute == 0 ? MOST_THREADS : attribute == 4 ? 32 : 0;
    return SUCCESS;
}
result_t cuFuncSetCacheConfig(struct function *f, int config) { (void)f, (void)config; return SUCCESS; }
result_t cuLaunchKernel(struct function *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                        unsigned dynamic, void *stream, void **arguments, void **extra) {
    (void)stream, (void)arguments, (void)extra;
    unsigned long threads = (unsigned long)bx * by * bz, blocks = (unsigned long)gx * gy * gz;
    result_t error = refusal(f->module->runs, threads, blocks, dynamic, (size_t)f->allowed);
    note("launch", f->name, f->module->labels, f->module->runs, threads, dynamic, error);
    return error;
}
struct launch_config { unsigned gx, gy, gz, bx, by, bz, dynamic; void *stream, *attributes; unsigned count; };
result_t cuLaunchKernelEx(const struct launch_config *c, struct function *f, void **arguments, void **extra) {
    return cuLaunchKernel(f, c->gx, c->gy, c->gz, c->bx, c->by, c->bz, c->dynamic, c->stream, arguments, extra);
}
result_t cuLaunchCooperativeKernel(struct function *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                                   unsigned bz, unsigned dynamic, void *stream, void **arguments) {
    return cuLaunchKernel(f, gx, gy, gz, bx, by, bz, dynamic, stream, arguments, NULL);
}
enum { TENSOR_MAP = 128 };
result_t cuTensorMapEncodeTiled(void *map) { memset(map, 0, TENSOR_MAP); return state(); }
static result_t unsupported(void) { return the_gpu()->present ? NOT_SUPPORTED : NO_DEVICE; }
result_t cuGetProcAddress_v2(const char *name, void **at, int version, unsigned long long flags, int *status) {
    (void)version, (void)flags;
    Dl_info own;
    void *self = dladdr((void *)unsupported, &own) ? dlopen(own.dli_fname, RTLD_LAZY | RTLD_NOLOAD) : NULL;
    *at = self ? dlsym(self, name) : NULL;
    if (!*at) *at = (void *)unsupported;
    if (status) *status = 0;
    return SUCCESS;
}
result_t cuGetProcAddress(const char *name, void **at, int version, unsigned long long flags) {
    return cuGetProcAddress_v2(name, at, version, flags, NULL);
}
#define UNSUPPORTED(name) result_t name(void) { return unsupported(); }
#include "driver_functions.inc"
