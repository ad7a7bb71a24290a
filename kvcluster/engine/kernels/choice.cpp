// Which instruction sets this processor runs.

#include <cstring>

extern "C" int kvc_runs(const char* set) {
    __builtin_cpu_init();
    if (!strcmp(set, "portable")) return 1;
    if (!strcmp(set, "avx2")) return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (!strcmp(set, "avx512"))
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
    return 0;
}
