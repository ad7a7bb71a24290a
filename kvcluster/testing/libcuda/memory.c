/* Handles: create, release, export, import. A memory is one memfd, whose name says whose it is, so that another process
 * can import it; an exported descriptor is the memfd's own, so that memory outlives whoever created it while anybody
 * holds or maps it. Every call wants a current context, which CUDA does not ask for everywhere. */
#define _GNU_SOURCE
#include "memory.h"
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define BUCKETS 4096

static struct memory *buckets[BUCKETS];
static u64 next_id = 0x5700000000000001ull;
u64 memories_alive;

struct memory *handle_of(u64 id) {
    for (struct memory *memory = buckets[id % BUCKETS]; memory; memory = memory->next)
        if (memory->id == id) return memory->handles ? memory : NULL;
    return NULL;
}

static u64 add_memory(int descriptor, int device, size_t size) {
    struct memory *memory = calloc(1, sizeof *memory);
    memory->id = next_id++;
    memory->descriptor = descriptor;
    memory->device = device;
    memory->size = size;
    memory->handles = 1;
    memory->next = buckets[memory->id % BUCKETS];
    buckets[memory->id % BUCKETS] = memory;
    memories_alive++;
    return memory->id;
}

void free_if_unused(struct memory *memory) {
    if (memory->handles || memory->mappings) return;
    struct memory **link = &buckets[memory->id % BUCKETS];
    while (*link != memory) link = &(*link)->next;
    *link = memory->next;
    close(memory->descriptor);
    if (!memory->is_imported) uncharge(memory->device, memory->size);
    memories_alive--;
    free(memory);
}

void drop_all_memories(void) {
    for (int i = 0; i < BUCKETS; i++)
        while (buckets[i]) {
            buckets[i]->handles = buckets[i]->mappings = 0;
            free_if_unused(buckets[i]);
        }
}

static CUresult unfit(const CUmemAllocationProp *property) {
    if (!property || property->type != CU_MEM_ALLOCATION_TYPE_PINNED) return CUDA_ERROR_INVALID_VALUE;
    if (property->location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_NOT_SUPPORTED;
    if (property->location.id < 0 || property->location.id >= visible_count) return CUDA_ERROR_INVALID_DEVICE;
    if (property->requestedHandleTypes & ~CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_NOT_SUPPORTED;
    if (property->requestedHandleTypes && !settings.posix) return CUDA_ERROR_NOT_SUPPORTED;
    if (property->win32HandleMetaData) return CUDA_ERROR_INVALID_VALUE;
    return settings.vmm ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
}

API CUresult cuMemGetAllocationGranularity(size_t *granule, const CUmemAllocationProp *property, int option) {
    BEGIN("cuMemGetAllocationGranularity");
    CHECK(granule && (option == 0 || option == 1), CUDA_ERROR_INVALID_VALUE);
    CUresult code = unfit(property);
    CHECK(!code, code);
    *granule = settings.granule;
    RETURN(CUDA_SUCCESS);
}

API CUresult cuMemGetInfo_v2(size_t *left, size_t *total) {
    BEGIN("cuMemGetInfo");
    CHECK(left && total, CUDA_ERROR_INVALID_VALUE);
    NEEDS_CONTEXT();
    size_t used = used_bytes(visible[current()->device]);
    *total = settings.memory;
    *left = used < settings.memory ? settings.memory - used : 0;
    RETURN(CUDA_SUCCESS);
}

static int poisoned(int descriptor, size_t size) {
    void *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    if (at == MAP_FAILED) return 0;
    memset(at, settings.poison, size);
    munmap(at, size);
    return 1;
}

static int new_file(int device, size_t size) {
    char name[64];
    snprintf(name, sizeof name, "kvcluster-stand-in-gpu:%d", device);
    int descriptor = memfd_create(name, MFD_CLOEXEC);
    if (descriptor < 0) return -1;
    if (!ftruncate(descriptor, (off_t)size) && (settings.poison < 0 || poisoned(descriptor, size))) return descriptor;
    close(descriptor);
    return -1;
}

API CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *property,
                         u64 flags) {
    BEGIN("cuMemCreate");
    NEEDS_CONTEXT();
    CHECK(handle && size && aligned(size) && !flags, CUDA_ERROR_INVALID_VALUE);
    CUresult code = unfit(property);
    CHECK(!code, code);
    int device = visible[property->location.id];
    CHECK(charge(device, size), CUDA_ERROR_OUT_OF_MEMORY);
    int descriptor = new_file(device, size);
    if (descriptor < 0) uncharge(device, size);
    CHECK(descriptor >= 0, CUDA_ERROR_OPERATING_SYSTEM);
    *handle = add_memory(descriptor, device, size);
    handle_of(*handle)->can_export = property->requestedHandleTypes;
    RETURN(CUDA_SUCCESS);
}

API CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
    BEGIN("cuMemRelease");
    NEEDS_CONTEXT();
    struct memory *memory = handle_of(handle);
    CHECK(memory, CUDA_ERROR_INVALID_VALUE);
    memory->handles--;
    free_if_unused(memory);
    RETURN(CUDA_SUCCESS);
}

int seen_as(int device) {
    for (int ordinal = 0; ordinal < visible_count; ordinal++)
        if (visible[ordinal] == device) return ordinal;
    return -1;
}

API CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *property,
                                                    CUmemGenericAllocationHandle handle) {
    BEGIN("cuMemGetAllocationPropertiesFromHandle");
    struct memory *memory = handle_of(handle);
    CHECK(property && memory, CUDA_ERROR_INVALID_VALUE);
    memset(property, 0, sizeof *property);
    property->type = CU_MEM_ALLOCATION_TYPE_PINNED;
    property->requestedHandleTypes = memory->can_export;
    property->location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    property->location.id = seen_as(memory->device);
    RETURN(CUDA_SUCCESS);
}

API CUresult cuMemExportToShareableHandle(void *descriptor, CUmemGenericAllocationHandle handle, int type, u64 flags) {
    BEGIN("cuMemExportToShareableHandle");
    NEEDS_CONTEXT();
    struct memory *memory = handle_of(handle);
    CHECK(descriptor && !flags && memory, CUDA_ERROR_INVALID_VALUE);
    CHECK(type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, CUDA_ERROR_NOT_SUPPORTED);
    CHECK(memory->can_export & type, CUDA_ERROR_INVALID_VALUE);
    int made = fcntl(memory->descriptor, F_DUPFD_CLOEXEC, 0);
    CHECK(made >= 0, CUDA_ERROR_OPERATING_SYSTEM);
    *(int *)descriptor = made;
    RETURN(CUDA_SUCCESS);
}

static int device_of_file(int descriptor) {
    char path[64], target[128];
    int device;
    snprintf(path, sizeof path, "/proc/self/fd/%d", descriptor);
    ssize_t length = readlink(path, target, sizeof target - 1);
    if (length < 0) return -1;
    target[length] = 0;
    return sscanf(target, "/memfd:kvcluster-stand-in-gpu:%d", &device) == 1 ? device : -1;
}

API CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *descriptor, int type) {
    BEGIN("cuMemImportFromShareableHandle");
    NEEDS_CONTEXT();
    CHECK(handle, CUDA_ERROR_INVALID_VALUE);
    CHECK(type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, CUDA_ERROR_NOT_SUPPORTED);
    int given = (int)(intptr_t)descriptor, device = device_of_file(given);
    CHECK(device >= 0, CUDA_ERROR_INVALID_VALUE);
    CHECK(seen_as(device) >= 0, CUDA_ERROR_INVALID_DEVICE);
    struct stat found;
    CHECK(!fstat(given, &found), CUDA_ERROR_INVALID_VALUE);
    int kept = fcntl(given, F_DUPFD_CLOEXEC, 0);
    CHECK(kept >= 0, CUDA_ERROR_OPERATING_SYSTEM);
    *handle = add_memory(kept, device, (size_t)found.st_size);
    handle_of(*handle)->is_imported = 1;
    handle_of(*handle)->can_export = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    RETURN(CUDA_SUCCESS);
}
