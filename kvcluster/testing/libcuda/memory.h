/* Memory and where it is mapped: the two structures that memory.c and mapping.c share. */
#ifndef STAND_IN_MEMORY_H
#define STAND_IN_MEMORY_H
#include "stand_in.h"

/* One memfd; it is alive while a handle, or a mapping here, is. */
struct memory {
    u64 id;
    int descriptor, device, can_export, is_imported;
    size_t size;
    u64 handles, mappings;
    struct memory *next;
};

/* The whole of a memory at an address, and what each device may do there. */
struct mapping {
    uintptr_t address;
    size_t size;
    struct memory *memory;
    unsigned char access[MOST_DEVICES];
};

extern u64 memories_alive;
struct memory *handle_of(u64 id);
void free_if_unused(struct memory *memory);
void drop_all_memories(void);
int seen_as(int device);

struct mapping *mapping_at(uintptr_t address);
u64 reservations_alive(void), mappings_alive(void);

static inline int aligned(u64 number) { return !(number & (settings.granule - 1)); }
#endif
