// NVFP4 dequantise and quantise behind a C ABI. Pointers are device pointers; every function returns a cudaError_t as int.
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "nvfp4_format.h"

#define NVFP4_API extern "C" __attribute__((visibility("default")))

namespace nvfp4 {

constexpr int kThreads = 256;
constexpr int kBlocksPerSm = 8;
constexpr int kWords = 4;

__device__ __forceinline__ uint32_t bf16_pair(float low, float high) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    uint32_t bits;
    memcpy(&bits, &pair, sizeof bits);
    return bits;
}

// Eight codes of one word to eight bf16: 16 bytes. Code times block scale is exact in fp32; the global scale rounds once, and
// bf16 once more.
__device__ __forceinline__ uint4 dequantize_word(uint32_t codes, float block_scale, float global_scale) {
    float values[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) values[i] = decode_e2m1(codes >> 4 * i) * block_scale * global_scale;
    return make_uint4(bf16_pair(values[0], values[1]), bf16_pair(values[2], values[3]), bf16_pair(values[4], values[5]),
                      bf16_pair(values[6], values[7]));
}

// Rows are a multiple of a block and contiguous, so the tensor is one flat run of words, two of them per block scale. A thread
// keeps kWords loads in flight, and neighbouring threads store neighbouring 16 bytes.
__global__ void __launch_bounds__(kThreads)
    dequantize_kernel(const uint32_t *packed, const uint8_t *scales, const float *global, uint4 *out, int64_t words) {
    const float global_scale = *global;
    const int64_t tile = static_cast<int64_t>(kThreads) * kWords;
    for (int64_t first = blockIdx.x * tile + threadIdx.x; first < words; first += gridDim.x * tile) {
        uint32_t codes[kWords], scale[kWords];
#pragma unroll
        for (int i = 0; i < kWords; ++i) {
            const int64_t word = first + i * kThreads;
            codes[i] = word < words ? packed[word] : 0;
            scale[i] = word < words ? scales[word / 2] : 0;
        }
#pragma unroll
        for (int i = 0; i < kWords; ++i) {
            const int64_t word = first + i * kThreads;
            if (word < words) out[word] = dequantize_word(codes[i], decode_e4m3(scale[i]), global_scale);
        }
    }
}

__device__ __forceinline__ uint32_t quantize_word(uint4 values, float scale) {
    const uint32_t words[4] = {values.x, values.y, values.z, values.w};
    uint32_t codes = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        codes |= encode_e2m1(float_of(words[i] << 16) / scale) << 8 * i;
        codes |= encode_e2m1(float_of(words[i] & 0xffff0000u) / scale) << (8 * i + 4);
    }
    return codes;
}

// Magnitudes of bf16 order like their bits, NaN above infinity above all numbers: the largest is found on pairs of integers.
__device__ __forceinline__ float largest_of(uint4 a, uint4 b) {
    constexpr uint32_t kMagnitude = 0x7fff7fffu;
    uint32_t pair = __vmaxu2(__vmaxu2(a.x & kMagnitude, a.y & kMagnitude), __vmaxu2(a.z & kMagnitude, a.w & kMagnitude));
    pair = __vmaxu2(pair, __vmaxu2(__vmaxu2(b.x & kMagnitude, b.y & kMagnitude), __vmaxu2(b.z & kMagnitude, b.w & kMagnitude)));
    return float_of(max(pair & 0xffffu, pair >> 16) << 16);
}

__global__ void __launch_bounds__(kThreads)
    quantize_kernel(const uint4 *values, const float *global, uint2 *packed, uint8_t *scales, int64_t blocks) {
    const float global_scale = *global;
    const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
    for (int64_t block = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; block < blocks; block += stride) {
        const uint4 low = values[2 * block], high = values[2 * block + 1];
        const uint8_t code = block_scale(largest_of(low, high), global_scale);
        const float scale = decode_e4m3(code) * global_scale;
        scales[block] = code;
        packed[block] = make_uint2(quantize_word(low, scale), quantize_word(high, scale));
    }
}

bool aligned(const void *pointer, uintptr_t bytes) { return reinterpret_cast<uintptr_t>(pointer) % bytes == 0; }

cudaError_t grid_for(int64_t work, int *grid) {
    int device = 0, processors = 0;
    cudaError_t error = cudaGetDevice(&device);
    if (error == cudaSuccess) error = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
    const int64_t wanted = (work + kThreads - 1) / kThreads, most = static_cast<int64_t>(processors) * kBlocksPerSm;
    *grid = static_cast<int>(wanted < most ? wanted : most);
    return error;
}

bool bad_shape(int64_t rows, int64_t columns) { return rows < 0 || columns < 0 || columns % kBlock != 0; }

// The version of this C ABI.
NVFP4_API int nvfp4_kernels_version() { return 1; }

// The runtime's text for an error code that one of these functions returned.
NVFP4_API const char *nvfp4_error_string(int error) { return cudaGetErrorString(static_cast<cudaError_t>(error)); }

// packed u8 [rows, columns/2], scales E4M3 [rows, columns/16], global_scale f32 [1] -> out bf16 [rows, columns]; all contiguous.
// columns is a multiple of 16; packed is aligned to 4 bytes, out to 16.
NVFP4_API int nvfp4_dequantize_bf16(const void *packed, const void *scales, const void *global_scale, void *out, int64_t rows,
                                    int64_t columns, void *stream) {
    if (bad_shape(rows, columns)) return cudaErrorInvalidValue;
    if (!aligned(packed, 4) || !aligned(out, 16)) return cudaErrorMisalignedAddress;
    const int64_t words = rows * (columns / 8);
    if (words == 0) return cudaSuccess;
    int grid = 0;
    if (const cudaError_t error = grid_for((words + kWords - 1) / kWords, &grid)) return error;
    dequantize_kernel<<<grid, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
        static_cast<const uint32_t *>(packed), static_cast<const uint8_t *>(scales), static_cast<const float *>(global_scale),
        static_cast<uint4 *>(out), words);
    return cudaGetLastError();
}

// values bf16 [rows, columns], global_scale f32 [1] (> 0) -> packed u8 [rows, columns/2], scales E4M3 [rows, columns/16]; all
// contiguous. columns is a multiple of 16; values are aligned to 16 bytes, packed to 8.
NVFP4_API int nvfp4_quantize_bf16(const void *values, const void *global_scale, void *packed, void *scales, int64_t rows,
                                  int64_t columns, void *stream) {
    if (bad_shape(rows, columns)) return cudaErrorInvalidValue;
    if (!aligned(values, 16) || !aligned(packed, 8)) return cudaErrorMisalignedAddress;
    const int64_t blocks = rows * (columns / kBlock);
    if (blocks == 0) return cudaSuccess;
    int grid = 0;
    if (const cudaError_t error = grid_for(blocks, &grid)) return error;
    quantize_kernel<<<grid, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
        static_cast<const uint4 *>(values), static_cast<const float *>(global_scale), static_cast<uint2 *>(packed),
        static_cast<uint8_t *>(scales), blocks);
    return cudaGetLastError();
}

}  // namespace nvfp4
