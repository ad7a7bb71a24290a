// For processors with AVX2 and FMA. Headers come first: what they define must not be built for that set.

#include <omp.h>

#include <cstdint>
#include <cstdlib>

#pragma GCC target("avx2,fma")
#define SET avx2
#define TOGETHER 1
#include "entry.inl"
