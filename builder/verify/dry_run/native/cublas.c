/* cuBLAS and cuBLASLt for LD_PRELOAD, as far as torch links them: nothing is computed. The real ones carry the CUDA
 * runtime inside and would look for a GPU; what they would do with one, no dry run can know. */
#include <stdlib.h>
#include <string.h>

typedef int status_t;
enum { OPAQUE = 512, HEURISTIC = 96 };
static status_t create(void **at) { *at = calloc(1, OPAQUE); return 0; }
status_t cublasCreate_v2(void **h) { return create(h); }
status_t cublasLtCreate(void **h) { return create(h); }
status_t cublasLtMatmulDescCreate(void **d, int compute, int scale) { (void)compute, (void)scale; return create(d); }
status_t cublasLtMatrixLayoutCreate(void **d, int type, unsigned long rows, unsigned long columns, long step) {
    (void)type, (void)rows, (void)columns, (void)step;
    return create(d);
}
status_t cublasLtMatmulPreferenceCreate(void **p) { return create(p); }
status_t cublasLtMatmulAlgoGetHeuristic(void *h, void *d, void *a, void *b, void *c, void *e, void *p, int most,
                                        void *results, int *found) {
    (void)h, (void)d, (void)a, (void)b, (void)c, (void)e, (void)p, (void)most;
    memset(results, 0, HEURISTIC);
    *found = 1;
    return 0;
}
status_t cublasGetVersion_v2(void *h, int *version) { (void)h; *version = 130000; return 0; }
status_t cublasGetProperty(int property, int *value) { (void)property; *value = 13; return 0; }
const char *cublasGetStatusString(int status) { (void)status; return "a status of the pretended cuBLAS"; }
#define DOES_NOTHING(name) status_t name(void) { return 0; }
#include "cublas_functions.inc"
