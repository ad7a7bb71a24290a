/* cuGetProcAddress: the one symbol that callers look up themselves. A name and a version are asked for, and the newest
 * entry point that both the version and the driver's own age allow is given: some changed their parameters. */
#include "stand_in.h"
#include <string.h>

#define ENTRIES /* those of one name stand oldest first */                                                            \
    PLAIN(cuGetErrorString, 6000) PLAIN(cuGetErrorName, 6000) PLAIN(cuInit, 2000) PLAIN(cuDriverGetVersion, 2020)     \
    PLAIN(cuDeviceGet, 2000) PLAIN(cuDeviceGetCount, 2000) PLAIN(cuDeviceGetName, 2000)                               \
    SECOND(cuDeviceGetUuid, 11040) SECOND(cuDeviceTotalMem, 3020) PLAIN(cuDeviceGetAttribute, 2000)                   \
    PLAIN(cuDevicePrimaryCtxRetain, 7000) SECOND(cuDevicePrimaryCtxRelease, 11000)                                    \
    PLAIN(cuDevicePrimaryCtxGetState, 7000) PLAIN(cuCtxSetCurrent, 4000) PLAIN(cuCtxGetCurrent, 4000)                 \
    PLAIN(cuCtxGetDevice, 2000) SECOND(cuCtxGetDevice, 13000)                                                         \
    PLAIN(cuCtxSynchronize, 2000) SECOND(cuCtxSynchronize, 13000)                                                     \
    SECOND(cuMemGetInfo, 3020) PLAIN(cuMemGetAllocationGranularity, 10020) PLAIN(cuMemAddressReserve, 10020)          \
    PLAIN(cuMemAddressFree, 10020) PLAIN(cuMemCreate, 10020) PLAIN(cuMemRelease, 10020) PLAIN(cuMemMap, 10020)        \
    PLAIN(cuMemUnmap, 10020) PLAIN(cuMemSetAccess, 10020) PLAIN(cuMemGetAccess, 10020)                                \
    PLAIN(cuMemRetainAllocationHandle, 11000) PLAIN(cuMemGetAllocationPropertiesFromHandle, 10020)                    \
    PLAIN(cuMemExportToShareableHandle, 10020) PLAIN(cuMemImportFromShareableHandle, 10020)                           \
    PLAIN(cuPointerGetAttribute, 4000) SECOND(cuMemcpyHtoD, 3020) SECOND(cuMemcpyDtoH, 3020)                          \
    SECOND(cuMemcpyDtoD, 3020) SECOND(cuMemsetD8, 3020) PLAIN(cuStreamCreate, 2000) SECOND(cuStreamDestroy, 4000)     \
    PLAIN(cuStreamSynchronize, 2000) PLAIN(cuStreamQuery, 2000) PLAIN(cuEventCreate, 2000)                            \
    PLAIN(cuEventRecord, 2000) PLAIN(cuEventQuery, 2000) PLAIN(cuEventSynchronize, 2000)                              \
    SECOND(cuEventDestroy, 4000) SECOND(cuGetProcAddress, 11030)

#define PLAIN(name, since) CUresult name();
#define SECOND(name, since) CUresult name##_v2();
ENTRIES
#undef PLAIN
#undef SECOND
#define PLAIN(name, since) {#name, since, (void *)name},
#define SECOND(name, since) {#name, since, (void *)name##_v2},

static const struct { const char *name; int since; void *function; } entries[] = {ENTRIES};

static int is_missing(const char *name) {
    const char *found = strstr(settings.missing, name);
    return found && (found[strlen(name)] == 0 || found[strlen(name)] == ',');
}

API CUresult cuGetProcAddress_v2(const char *name, void **function, int version, u64 flags, int *status) {
    read_settings();
    if (!name || !function || flags > 2) return CUDA_ERROR_INVALID_VALUE;
    int newest = version < settings.version ? version : settings.version;
    int found = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    *function = NULL;
    for (size_t i = 0; i < sizeof entries / sizeof *entries; i++) {
        if (strcmp(name, entries[i].name) || is_missing(name)) continue;
        if (newest >= entries[i].since) *function = entries[i].function;
        else if (!*function) found = CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
    }
    if (*function) found = CU_GET_PROC_ADDRESS_SUCCESS;
    if (status) *status = found;
    return *function ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
