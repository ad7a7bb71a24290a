// The C functions of one instruction set, SET, whose registers hold the sums of TOGETHER rows.

#include <omp.h>

#include <cstdlib>

#include "kernels.h"

#define JOINED(a, b, c) a##b##_##c
#define NAME(set, function) JOINED(kvc_, set, function)

namespace kvc {
namespace {

constexpr int64_t PARALLEL_WORK = 20000;      // products: below, waking threads costs more
constexpr int64_t PARALLEL_ELEMENTS = 16384;

#include "vectors.inl"
#include "places.inl"
#include "attend.inl"
#include "rows.inl"

}  // namespace
}  // namespace kvc

using namespace kvc;

#define BY_TYPE(type, call)                                  \
    if ((type) == FLOAT32) {                                 \
        using T = float;                                     \
        call;                                                \
    } else {                                                 \
        using T = bfloat16;                                  \
        call;                                                \
    }

extern "C" void NAME(SET, attend)(const Layer* layer, const Slice* slices, int64_t count, const Run* runs,
                                  const Vectors* query, const Vectors* result) {
    BY_TYPE(layer->type, attend<T>(*layer, slices, count, runs, *query, *result))
}

extern "C" void NAME(SET, write)(const Layer* layer, const Slice* slices, int64_t count, const Run* runs,
                                 const Vectors* key, const Vectors* value) {
    write(*layer, slices, count, runs, *key, *value);
}

extern "C" void NAME(SET, rotate_and_write)(const Layer* layer, const Slice* slices, int64_t count, const Run* runs,
                                            void* rows, const float* query_norm, const float* key_norm, float epsilon,
                                            const float* cosines, const float* sines) {
    BY_TYPE(layer->type, rotate_and_write(*layer, slices, count, runs, (T*)rows, query_norm, key_norm, epsilon,
                                          cosines, sines))
}

extern "C" void NAME(SET, add_norm)(int32_t type, int64_t rows, int64_t width, void* residual, const void* added,
                                    const float* after, const float* before, void* normed, float epsilon) {
    BY_TYPE(type, add_norm(rows, width, (T*)residual, (const T*)added, after, before, (T*)normed, epsilon))
}

extern "C" void NAME(SET, gated)(int32_t type, int64_t rows, int64_t width, const void* both, void* result,
                                 int32_t gelu) {
    BY_TYPE(type, gated(rows, width, (const T*)both, (T*)result, gelu != 0))
}
