/* Devices, their primary contexts, and names of errors. A context is current on a thread, as in CUDA. */
#include "stand_in.h"
#include <stdio.h>
#include <string.h>

int initialized, forked;
static struct CUctx_st primary[MOST_DEVICES];
static __thread CUcontext current_context;

CUcontext current(void) { return current_context && current_context->retained ? current_context : NULL; }
int is_context(CUcontext context) {
    return context >= primary && context < primary + MOST_DEVICES && context->retained;
}

static const struct { int code; const char *name; } errors[] = {
#define ERROR(name) {name, #name}
    ERROR(CUDA_SUCCESS), ERROR(CUDA_ERROR_INVALID_VALUE), ERROR(CUDA_ERROR_OUT_OF_MEMORY),
    ERROR(CUDA_ERROR_NOT_INITIALIZED), ERROR(CUDA_ERROR_DEINITIALIZED), ERROR(CUDA_ERROR_NO_DEVICE),
    ERROR(CUDA_ERROR_INVALID_DEVICE), ERROR(CUDA_ERROR_INVALID_CONTEXT), ERROR(CUDA_ERROR_MAP_FAILED),
    ERROR(CUDA_ERROR_UNMAP_FAILED), ERROR(CUDA_ERROR_ECC_UNCORRECTABLE), ERROR(CUDA_ERROR_OPERATING_SYSTEM),
    ERROR(CUDA_ERROR_INVALID_HANDLE), ERROR(CUDA_ERROR_ILLEGAL_STATE), ERROR(CUDA_ERROR_NOT_FOUND),
    ERROR(CUDA_ERROR_NOT_READY), ERROR(CUDA_ERROR_ILLEGAL_ADDRESS), ERROR(CUDA_ERROR_LAUNCH_TIMEOUT),
    ERROR(CUDA_ERROR_LAUNCH_FAILED), ERROR(CUDA_ERROR_NOT_PERMITTED), ERROR(CUDA_ERROR_NOT_SUPPORTED),
    ERROR(CUDA_ERROR_SYSTEM_NOT_READY), ERROR(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED), ERROR(CUDA_ERROR_UNKNOWN),
};

static const char *name_of(int code) {
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        if (errors[i].code == code) return errors[i].name;
    return NULL;
}

API CUresult cuGetErrorName(CUresult code, const char **name) {
    BEGIN_ANY("cuGetErrorName", 0);
    CHECK(name, CUDA_ERROR_INVALID_VALUE);
    *name = name_of(code);
    RETURN(*name ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}

API CUresult cuGetErrorString(CUresult code, const char **text) {
    BEGIN_ANY("cuGetErrorString", 0);
    CHECK(text, CUDA_ERROR_INVALID_VALUE);
    *text = name_of(code);
    RETURN(*text ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}

API CUresult cuInit(unsigned flags) {
    BEGIN_ANY("cuInit", 0);
    CHECK(!flags, CUDA_ERROR_INVALID_VALUE);
    CHECK(!forked, CUDA_ERROR_NOT_INITIALIZED);
    CHECK(visible_count, CUDA_ERROR_NO_DEVICE);
    initialized = 1;
    keep_spare_mappings();
    RETURN(CUDA_SUCCESS);
}

API CUresult cuDriverGetVersion(int *version) {
    BEGIN_ANY("cuDriverGetVersion", 0);
    CHECK(version, CUDA_ERROR_INVALID_VALUE);
    *version = settings.version;
    RETURN(CUDA_SUCCESS);
}

API CUresult cuDeviceGetCount(int *count) {
    BEGIN("cuDeviceGetCount");
    CHECK(count, CUDA_ERROR_INVALID_VALUE);
    *count = visible_count;
    RETURN(CUDA_SUCCESS);
}

API CUresult cuDeviceGet(CUdevice *device, int ordinal) {
    BEGIN("cuDeviceGet");
    CHECK(device, CUDA_ERROR_INVALID_VALUE);
    DEVICE_EXISTS(ordinal);
    *device = ordinal;
    RETURN(CUDA_SUCCESS);
}

API CUresult cuDeviceGetName(char *name, int size, CUdevice device) {
    BEGIN("cuDeviceGetName");
    CHECK(name && size > 0, CUDA_ERROR_INVALID_VALUE);
    DEVICE_EXISTS(device);
    snprintf(name, (size_t)size, "Stand-in %d", visible[device]);
    RETURN(CUDA_SUCCESS);
}

API CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device) {
    BEGIN("cuDeviceGetUuid");
    CHECK(uuid, CUDA_ERROR_INVALID_VALUE);
    DEVICE_EXISTS(device);
    memset(uuid, 0, sizeof *uuid);
    memcpy(uuid, "stand-in GPU", 12);
    uuid->bytes[15] = (char)visible[device];
    RETURN(CUDA_SUCCESS);
}

API CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) {
    BEGIN("cuDeviceTotalMem");
    CHECK(bytes, CUDA_ERROR_INVALID_VALUE);
    DEVICE_EXISTS(device);
    *bytes = settings.memory;
    RETURN(CUDA_SUCCESS);
}

static int attribute_of(int attribute, CUdevice device) {
    switch (attribute) {
    case ATTRIBUTE_VMM_SUPPORTED: return settings.vmm;
    case ATTRIBUTE_POSIX_FD_SUPPORTED: return settings.posix;
    case ATTRIBUTE_UNIFIED_ADDRESSING: return 1;
    case ATTRIBUTE_MAX_THREADS_PER_BLOCK: return 1024;
    case ATTRIBUTE_WARP_SIZE: return 32;
    case ATTRIBUTE_MULTIPROCESSOR_COUNT: return 1;
    case ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: return 9;
    case ATTRIBUTE_PCI_BUS_ID: return visible[device] + 1;
    }
    return 0;
}

API CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device) {
    BEGIN("cuDeviceGetAttribute");
    CHECK(value && attribute > 0, CUDA_ERROR_INVALID_VALUE);
    DEVICE_EXISTS(device);
    *value = attribute_of(attribute, device);
    RETURN(CUDA_SUCCESS);
}

API CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
    BEGIN("cuDevicePrimaryCtxRetain");
    CHECK(context, CUDA_ERROR_INVALID_VALUE);
    DEVICE_EXISTS(device);
    *context = &primary[device];
    primary[device].device = device;
    primary[device].retained++;
    RETURN(CUDA_SUCCESS);
}

API CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
    BEGIN("cuDevicePrimaryCtxRelease");
    DEVICE_EXISTS(device);
    CHECK(primary[device].retained, CUDA_ERROR_INVALID_CONTEXT);
    primary[device].retained--;
    RETURN(CUDA_SUCCESS);
}

API CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active) {
    BEGIN("cuDevicePrimaryCtxGetState");
    CHECK(flags && active, CUDA_ERROR_INVALID_VALUE);
    DEVICE_EXISTS(device);
    *flags = 0;
    *active = primary[device].retained != 0;
    RETURN(CUDA_SUCCESS);
}

API CUresult cuCtxSetCurrent(CUcontext context) {
    BEGIN("cuCtxSetCurrent");
    CHECK(!context || is_context(context), CUDA_ERROR_INVALID_CONTEXT);
    current_context = context;
    RETURN(CUDA_SUCCESS);
}

API CUresult cuCtxGetCurrent(CUcontext *context) {
    BEGIN("cuCtxGetCurrent");
    CHECK(context, CUDA_ERROR_INVALID_VALUE);
    *context = current();
    RETURN(CUDA_SUCCESS);
}

API CUresult cuCtxGetDevice(CUdevice *device) {
    BEGIN("cuCtxGetDevice");
    CHECK(device, CUDA_ERROR_INVALID_VALUE);
    NEEDS_CONTEXT();
    *device = current()->device;
    RETURN(CUDA_SUCCESS);
}

API CUresult cuCtxGetDevice_v2(CUdevice *device, CUcontext context) {
    BEGIN("cuCtxGetDevice");
    CHECK(device, CUDA_ERROR_INVALID_VALUE);
    if (!context) context = current();
    CHECK(is_context(context), CUDA_ERROR_INVALID_CONTEXT);
    *device = context->device;
    RETURN(CUDA_SUCCESS);
}

API CUresult cuCtxSynchronize(void) {
    BEGIN("cuCtxSynchronize");
    NEEDS_CONTEXT();
    wait_for_all_work();
    RETURN(CUDA_SUCCESS);
}

API CUresult cuCtxSynchronize_v2(CUcontext context) {
    BEGIN("cuCtxSynchronize");
    if (!context) context = current();
    CHECK(is_context(context), CUDA_ERROR_INVALID_CONTEXT);
    wait_for_all_work();
    RETURN(CUDA_SUCCESS);
}

u64 contexts_alive(void) {
    u64 count = 0;
    for (int i = 0; i < MOST_DEVICES; i++) count += primary[i].retained;
    return count;
}
