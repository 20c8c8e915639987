// The NVFP4 number format, for host and device: value = E2M1 code * E4M3 block scale * fp32 global scale.
//
// A block is 16 consecutive elements of a row. Two codes share a byte, the even column in the low nibble. Everything here is
// exact or rounds once, to nearest even, so that host and device agree bit for bit.
#pragma once

#include <math.h>
#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#define NVFP4_FUNCTION __host__ __device__ __forceinline__
#else
#define NVFP4_FUNCTION static inline
#endif

namespace nvfp4 {

constexpr int kBlock = 16;
constexpr float kE2m1Max = 6.0f;
constexpr float kE4m3Max = 448.0f;
constexpr float kE4m3Smallest = 0x1p-9f;
constexpr uint8_t kE4m3NaN = 0x7f;

NVFP4_FUNCTION float float_of(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

NVFP4_FUNCTION uint32_t bits_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

// ±{0, 0.5, 1, 1.5, 2, 3, 4, 6}: the code's exponent and mantissa are put where fp32 has them, 126 powers of two too low.
NVFP4_FUNCTION float decode_e2m1(uint32_t code) {
    return float_of((code & 8u) << 28 | (code & 7u) << 22) * 0x1p126f;
}

// Nearest E2M1 code, ties to the even code; beyond 6 the largest code.
NVFP4_FUNCTION uint32_t encode_e2m1(float value) {
    const float size = fabsf(value);
    const uint32_t code = (size > 0.25f) + (size >= 0.75f) + (size > 1.25f) + (size >= 1.75f) + (size > 2.5f) +
                          (size >= 3.5f) + (size > 5.0f);
    return (bits_of(value) >> 28 & 8u) | code;
}

// Finite E4M3 ("FN": no infinities, 0x7f and 0xff are NaN), by the same shift: 120 powers of two too low.
NVFP4_FUNCTION float decode_e4m3(uint32_t byte) {
    const float value = float_of((byte & 0x80u) << 24 | (byte & 0x7fu) << 20) * 0x1p120f;
    return (byte & 0x7fu) == kE4m3NaN ? NAN : value;
}

// Nearest E4M3 byte of a value >= 0, ties to even, at most 448.
NVFP4_FUNCTION uint8_t encode_e4m3(float value) {
    if (value < 0x1p-6f) return static_cast<uint8_t>(rintf(value * 0x1p9f));
    const uint32_t bits = bits_of(fminf(value, kE4m3Max));
    return static_cast<uint8_t>(((bits + 0x7ffffu + (bits >> 20 & 1u)) >> 20) - (120u << 3));
}

// The block scale for the largest magnitude of a block; NaN or infinity in the block gives a NaN scale, never a number.
NVFP4_FUNCTION uint8_t block_scale(float largest, float global_scale) {
    if (!(largest < INFINITY)) return kE4m3NaN;
    const float scale = largest / (kE2m1Max * global_scale);
    return encode_e4m3(scale == 0.0f ? 1.0f : fmaxf(scale, kE4m3Smallest));
}

}  // namespace nvfp4
