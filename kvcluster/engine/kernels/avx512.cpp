// For processors with AVX-512.

#include <omp.h>

#include <cstdint>
#include <cstdlib>

#pragma GCC target("avx2,fma,avx512f,avx512bw,avx512vl,avx512dq,prefer-vector-width=512")
#define SET avx512
#define TOGETHER 4
#include "entry.inl"
