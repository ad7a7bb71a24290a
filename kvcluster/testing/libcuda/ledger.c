/* Bytes created on each device and not freed. With STAND_IN_CUDA_SHARED=FILE all processes that name the same file
 * count together: a slot a process, and the slot of a process that is gone counts no more, as a driver frees what a
 * dead process held (memory that somebody imported lives on, uncounted). Importers do not count. */
#define _GNU_SOURCE
#include "stand_in.h"
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

#define MOST_PROCESSES 256

struct slot { pid_t process; size_t used[MOST_DEVICES]; };

static struct slot mine, *slots = &mine, *slot = &mine;
static int slot_count = 1, file = -1, is_open;
static pid_t owner;

static int is_gone(pid_t process) { return process && process != getpid() && kill(process, 0); }

static void take_slot(void) {
    for (int i = 0; i < slot_count && slot == &mine; i++)
        if (!slots[i].process || is_gone(slots[i].process)) slot = &slots[i];
    if (slot == &mine) abort(); /* more processes than slots */
    memset(slot, 0, sizeof *slot);
    slot->process = getpid();
}

static void open_file(void) {
    const char *path = getenv("STAND_IN_CUDA_SHARED");
    is_open = 1;
    owner = getpid();
    if (!path || !*path) return;
    size_t size = MOST_PROCESSES * sizeof(struct slot);
    file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0 || flock(file, LOCK_EX) || ftruncate(file, (off_t)size)) abort();
    slots = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (slots == MAP_FAILED) abort();
    slot_count = MOST_PROCESSES;
    take_slot();
    flock(file, LOCK_UN);
}

static size_t sum(int device) {
    size_t used = 0;
    for (int i = 0; i < slot_count; i++)
        if (!is_gone(slots[i].process)) used += slots[i].used[device];
    return used;
}

size_t used_bytes(int device) {
    if (!is_open) open_file();
    return sum(device);
}

int charge(int device, size_t size) {
    if (!is_open) open_file();
    if (file >= 0) flock(file, LOCK_EX);
    size_t used = sum(device);
    int fits = used <= settings.memory && size <= settings.memory - used;
    if (fits) slot->used[device] += size;
    if (file >= 0) flock(file, LOCK_UN);
    return fits;
}

void uncharge(int device, size_t size) {
    if (owner == getpid()) slot->used[device] -= size;
}
