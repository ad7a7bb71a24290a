/* What the stand-in's files share: its settings, one lock, and the frame of every call.
 *
 * A call begins with BEGIN(name): it is counted, may be made to fail by a rule, and on success holds the lock until
 * RETURN. A call that is made to fail does nothing else. */
#ifndef STAND_IN_H
#define STAND_IN_H
#include "abi.h"
#include <pthread.h>

#define API __attribute__((visibility("default")))
#define MOST_DEVICES 16

struct settings {
    int devices;       /* how many the machine has */
    int version;       /* what cuDriverGetVersion says; newer entry points are missing */
    int vmm, posix;    /* the two attributes that a device needs */
    int poison;        /* a byte that new memory is full of, or -1 */
    int memory_type;   /* what a pointer's attribute says: host, because the CPU reaches it */
    size_t memory;     /* bytes of each device */
    size_t granule;
    char missing[256]; /* entry points that are not found */
};
extern struct settings settings;

/* visible[i] is the machine's number of the device that this process calls i (CUDA_VISIBLE_DEVICES) */
extern int visible[MOST_DEVICES], visible_count;

struct call { const char *name; u64 count; struct call *next; int listed; };
extern pthread_mutex_t lock;
CUresult begin(struct call *call, int needs_init);
void read_settings(void);

#define BEGIN_ANY(name, needs_init)                                                                                   \
    static struct call call_ = {name, 0, NULL, 0};                                                                    \
    do { CUresult begun_ = begin(&call_, needs_init); if (begun_) return begun_; } while (0)
#define BEGIN(name) BEGIN_ANY(name, 1)
#define RETURN(code) do { CUresult code_ = (code); pthread_mutex_unlock(&lock); return code_; } while (0)
#define CHECK(condition, code) do { if (!(condition)) RETURN(code); } while (0)
#define DEVICE_EXISTS(device) CHECK((device) >= 0 && (device) < visible_count, CUDA_ERROR_INVALID_DEVICE)

/* devices.c */
struct CUctx_st { int device; u64 retained; };
extern int initialized, forked;
CUcontext current(void);
#define NEEDS_CONTEXT() CHECK(current(), CUDA_ERROR_INVALID_CONTEXT)
int is_context(CUcontext context);

/* mapping.c */
int may_touch(CUdeviceptr address, size_t size, int write);
void keep_spare_mappings(void);

/* ledger.c: bytes created on a device and not freed, by all processes that share the settings' file */
size_t used_bytes(int device);
int charge(int device, size_t size);
void uncharge(int device, size_t size);

/* how many there are of what devices.c and work.c keep */
u64 events_alive(void), streams_alive(void), contexts_alive(void);

/* work.c */
void wait_for_all_work(void);
#endif
