/* Address: reserve, map, set access, unmap, free.
 *
 * As strict as CUDA's documentation, and stricter where our caller keeps to more: a handle is mapped whole, an address
 * is freed with nothing in it, sizes are multiples of the granularity. Access is what mprotect makes of it, so that a
 * store to memory mapped for reading is a SIGSEGV. A forked child has none of the mappings (MADV_DONTFORK). */
#define _GNU_SOURCE
#include "memory.h"
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define SPARE_MAPPINGS 16
#define RESERVED (MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE)

struct reservation { uintptr_t address; size_t size; struct mapping **mappings; size_t count, room; };

static struct reservation **reservations; /* sorted by address, and so are the mappings on each */
static size_t reservation_count, reservation_room;
static u64 mapping_count;

u64 reservations_alive(void) { return reservation_count; }
u64 mappings_alive(void) { return mapping_count; }

static size_t first_mapping_from(const struct reservation *on, uintptr_t address) {
    size_t low = 0, high = on->count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (on->mappings[middle]->address < address) low = middle + 1;
        else high = middle;
    }
    return low;
}

static struct reservation *reservation_of(uintptr_t address, size_t size) {
    size_t low = 0, high = reservation_count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (reservations[middle]->address <= address) low = middle + 1;
        else high = middle;
    }
    if (!low) return NULL;
    struct reservation *found = reservations[low - 1];
    size_t offset = address - found->address;
    return offset < found->size && size <= found->size - offset ? found : NULL;
}

/* How many whole mappings fill the range exactly; 0 where one is cut or there is a hole. */
static size_t filling(const struct reservation *on, uintptr_t address, size_t size, size_t *first) {
    size_t index = *first = first_mapping_from(on, address);
    uintptr_t here = address;
    while (index < on->count && here < address + size && on->mappings[index]->address == here)
        here += on->mappings[index++]->size;
    return here == address + size ? index - *first : 0;
}

struct mapping *mapping_at(uintptr_t address) {
    struct reservation *on = reservation_of(address, 1);
    size_t after = on ? first_mapping_from(on, address + 1) : 0;
    if (!after) return NULL;
    struct mapping *found = on->mappings[after - 1];
    return address - found->address < found->size ? found : NULL;
}

static int vacant(const struct reservation *on, uintptr_t address, size_t size) {
    size_t index = first_mapping_from(on, address);
    if (index < on->count && on->mappings[index]->address < address + size) return 0;
    return !index || on->mappings[index - 1]->address + on->mappings[index - 1]->size <= address;
}

/* At vm.max_map_count even the mmap that puts a reservation in a mapping's place fails, so some are kept in spare and
 * given up for the moment of such a call. */
static char *spare;

void keep_spare_mappings(void) {
    if (spare) return;
    char *found = mmap(NULL, SPARE_MAPPINGS * 4096, PROT_NONE, RESERVED, -1, 0);
    if (found == MAP_FAILED) return;
    for (int i = 0; i < SPARE_MAPPINGS; i += 2) mprotect(found + i * 4096, 4096, PROT_READ);
    spare = found;
}

static int reserve_again(uintptr_t address, size_t size) {
    void *found = mmap((void *)address, size, PROT_NONE, RESERVED | MAP_FIXED, -1, 0);
    if (found == MAP_FAILED && spare) {
        munmap(spare, SPARE_MAPPINGS * 4096);
        spare = NULL;
        found = mmap((void *)address, size, PROT_NONE, RESERVED | MAP_FIXED, -1, 0);
    }
    if (found == MAP_FAILED) return 0;
    madvise(found, size, MADV_DONTFORK);
    keep_spare_mappings();
    return 1;
}

API CUresult cuMemAddressReserve(CUdeviceptr *address, size_t size, size_t alignment, CUdeviceptr hint, u64 flags) {
    BEGIN("cuMemAddressReserve");
    NEEDS_CONTEXT();
    CHECK(address && size && aligned(size) && aligned(hint) && !flags, CUDA_ERROR_INVALID_VALUE);
    CHECK(!(alignment & (alignment - 1)), CUDA_ERROR_INVALID_VALUE);
    size_t step = alignment > settings.granule ? alignment : settings.granule;
    CHECK(size + step > size, CUDA_ERROR_OUT_OF_MEMORY);
    char *raw = mmap(NULL, size + step, PROT_NONE, RESERVED, -1, 0); /* the hint is one: it may be ignored */
    CHECK(raw != MAP_FAILED, CUDA_ERROR_OUT_OF_MEMORY);
    char *start = (char *)(((uintptr_t)raw + step - 1) & ~(uintptr_t)(step - 1));
    if (start > raw) munmap(raw, (size_t)(start - raw));
    if (raw + step > start) munmap(start + size, (size_t)(raw + step - start));
    madvise(start, size, MADV_DONTFORK);
    struct reservation *made = calloc(1, sizeof *made);
    made->address = (uintptr_t)start;
    made->size = size;
    if (reservation_count == reservation_room) {
        reservation_room = reservation_room ? 2 * reservation_room : 16;
        reservations = realloc(reservations, reservation_room * sizeof *reservations);
    }
    size_t index = reservation_count++;
    for (; index && reservations[index - 1]->address > made->address; index--)
        reservations[index] = reservations[index - 1];
    reservations[index] = made;
    *address = made->address;
    RETURN(CUDA_SUCCESS);
}

API CUresult cuMemAddressFree(CUdeviceptr address, size_t size) {
    BEGIN("cuMemAddressFree");
    NEEDS_CONTEXT();
    struct reservation *found = reservation_of(address, 1);
    CHECK(found && found->address == address && found->size == size && !found->count, CUDA_ERROR_INVALID_VALUE);
    CHECK(!munmap((void *)found->address, found->size), CUDA_ERROR_OPERATING_SYSTEM);
    size_t index = 0;
    while (reservations[index] != found) index++;
    memmove(reservations + index, reservations + index + 1, (--reservation_count - index) * sizeof *reservations);
    free(found->mappings);
    free(found);
    RETURN(CUDA_SUCCESS);
}

static void add_mapping(struct reservation *on, uintptr_t address, struct memory *memory) {
    if (on->count == on->room) {
        on->room = on->room ? 2 * on->room : 16;
        on->mappings = realloc(on->mappings, on->room * sizeof *on->mappings);
    }
    struct mapping *made = calloc(1, sizeof *made);
    made->address = address;
    made->size = memory->size;
    made->memory = memory;
    size_t index = first_mapping_from(on, address);
    memmove(on->mappings + index + 1, on->mappings + index, (on->count++ - index) * sizeof *on->mappings);
    on->mappings[index] = made;
    memory->mappings++;
    mapping_count++;
}

API CUresult cuMemMap(CUdeviceptr address, size_t size, size_t offset, CUmemGenericAllocationHandle handle, u64 flags) {
    BEGIN("cuMemMap");
    NEEDS_CONTEXT();
    CHECK(address && aligned(address) && !offset && !flags, CUDA_ERROR_INVALID_VALUE);
    struct memory *memory = handle_of(handle);
    CHECK(memory && size == memory->size, CUDA_ERROR_INVALID_VALUE);
    struct reservation *on = reservation_of(address, size);
    CHECK(on && vacant(on, address, size), CUDA_ERROR_INVALID_VALUE);
    if (mmap((void *)address, size, PROT_NONE, MAP_SHARED | MAP_FIXED, memory->descriptor, 0) == MAP_FAILED) {
        reserve_again(address, size); /* the kernel may have taken the reservation away before it refused */
        RETURN(CUDA_ERROR_OUT_OF_MEMORY);
    }
    madvise((void *)address, size, MADV_DONTFORK);
    add_mapping(on, address, memory);
    RETURN(CUDA_SUCCESS);
}

/* Anything that any device may do with it the CPU may do. */
static int protection_of(const struct mapping *mapping) {
    int access = 0;
    for (int device = 0; device < MOST_DEVICES; device++) access |= mapping->access[device];
    return access == CU_MEM_ACCESS_FLAGS_PROT_READWRITE ? PROT_READ | PROT_WRITE : access ? PROT_READ : PROT_NONE;
}

static int is_access(const CUmemAccessDesc *wanted) {
    int flags = wanted->flags;
    return !flags || flags == CU_MEM_ACCESS_FLAGS_PROT_READ || flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
}

/* One mprotect for each run of mappings that become alike. */
static int protect(struct mapping **mappings, size_t count) {
    for (size_t first = 0, next; first < count; first = next) {
        int protection = protection_of(mappings[first]);
        size_t size = 0;
        for (next = first; next < count && protection_of(mappings[next]) == protection; next++)
            size += mappings[next]->size;
        if (mprotect((void *)mappings[first]->address, size, protection)) return 0;
    }
    return 1;
}

API CUresult cuMemSetAccess(CUdeviceptr address, size_t size, const CUmemAccessDesc *wanted, size_t count) {
    BEGIN("cuMemSetAccess");
    NEEDS_CONTEXT();
    CHECK(address && size && wanted && count, CUDA_ERROR_INVALID_VALUE);
    for (size_t i = 0; i < count; i++) {
        CHECK(is_access(&wanted[i]), CUDA_ERROR_INVALID_VALUE);
        CHECK(wanted[i].location.type == CU_MEM_LOCATION_TYPE_DEVICE, CUDA_ERROR_INVALID_VALUE);
        DEVICE_EXISTS(wanted[i].location.id);
    }
    struct reservation *on = reservation_of(address, size);
    CHECK(on, CUDA_ERROR_INVALID_VALUE);
    size_t first, many = filling(on, address, size, &first);
    CHECK(many, CUDA_ERROR_INVALID_VALUE);
    for (size_t i = first; i < first + many; i++)
        for (size_t k = 0; k < count; k++)
            on->mappings[i]->access[wanted[k].location.id] = (unsigned char)wanted[k].flags;
    CHECK(protect(on->mappings + first, many), CUDA_ERROR_OUT_OF_MEMORY);
    RETURN(CUDA_SUCCESS);
}

API CUresult cuMemGetAccess(u64 *flags, const CUmemLocation *location, CUdeviceptr address) {
    BEGIN("cuMemGetAccess");
    CHECK(flags && location && location->type == CU_MEM_LOCATION_TYPE_DEVICE, CUDA_ERROR_INVALID_VALUE);
    DEVICE_EXISTS(location->id);
    struct mapping *found = mapping_at(address);
    CHECK(found, CUDA_ERROR_INVALID_VALUE);
    *flags = found->access[location->id];
    RETURN(CUDA_SUCCESS);
}

API CUresult cuMemUnmap(CUdeviceptr address, size_t size) {
    BEGIN("cuMemUnmap");
    NEEDS_CONTEXT();
    CHECK(address && size, CUDA_ERROR_INVALID_VALUE);
    struct reservation *on = reservation_of(address, size);
    CHECK(on, CUDA_ERROR_INVALID_VALUE);
    size_t first, count = filling(on, address, size, &first);
    CHECK(count, CUDA_ERROR_INVALID_VALUE);
    CHECK(reserve_again(address, size), CUDA_ERROR_OPERATING_SYSTEM);
    for (size_t i = first; i < first + count; i++) {
        on->mappings[i]->memory->mappings--;
        free_if_unused(on->mappings[i]->memory);
        free(on->mappings[i]);
    }
    mapping_count -= count;
    memmove(on->mappings + first, on->mappings + first + count, (on->count - first - count) * sizeof *on->mappings);
    on->count -= count;
    RETURN(CUDA_SUCCESS);
}

API CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address) {
    BEGIN("cuMemRetainAllocationHandle");
    struct mapping *found = mapping_at((uintptr_t)address);
    CHECK(handle && found, CUDA_ERROR_INVALID_VALUE);
    found->memory->handles++;
    *handle = found->memory->id;
    RETURN(CUDA_SUCCESS);
}

API CUresult cuPointerGetAttribute(void *value, int attribute, CUdeviceptr address) {
    BEGIN("cuPointerGetAttribute");
    struct mapping *found = mapping_at(address);
    CHECK(value && found, CUDA_ERROR_INVALID_VALUE);
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE: *(unsigned *)value = (unsigned)settings.memory_type; RETURN(CUDA_SUCCESS);
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: *(int *)value = seen_as(found->memory->device); RETURN(CUDA_SUCCESS);
    }
    RETURN(CUDA_ERROR_NOT_SUPPORTED);
}

/* Whether the current device may read, or write, all of a range. */
int may_touch(CUdeviceptr address, size_t size, int write) {
    int wanted = write ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_READ;
    for (CUdeviceptr here = address; here < address + size;) {
        struct mapping *found = mapping_at(here);
        if (!found || (found->access[current()->device] & wanted) != wanted) return 0;
        here = found->address + found->size;
    }
    return 1;
}

/* For tests that leave things mapped on purpose: all of it goes, whoever thinks that he holds it. */
API void stand_in_clear(void) {
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < reservation_count; i++) {
        struct reservation *on = reservations[i];
        munmap((void *)on->address, on->size);
        for (size_t k = 0; k < on->count; k++) {
            on->mappings[k]->memory->mappings--;
            free(on->mappings[k]);
        }
        free(on->mappings);
        free(on);
    }
    reservation_count = mapping_count = 0;
    drop_all_memories();
    pthread_mutex_unlock(&lock);
}
