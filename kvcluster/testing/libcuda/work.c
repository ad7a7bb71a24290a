/* Copies, streams, events. Copies and sets are done at once; work that takes time is begun and ended by the test
 * (stand_in_begin_work, stand_in_end_work), and then events, streams and contexts wait for it as they would for a
 * kernel. Work in the default stream and work in other blocking streams wait for each other, so an event in the
 * default stream covers them all; a non-blocking stream is only its own. */
#include "stand_in.h"
#include <stdlib.h>
#include <string.h>

#define MOST_WORK 64

struct CUstream_st { CUstream next; unsigned flags; };
struct CUevent_st { CUevent next; u64 upto; CUstream stream; };

static CUstream streams;
static CUevent events;
static struct { u64 number; CUstream stream; } under_way[MOST_WORK];
static int under_way_count;
static u64 last_work;
static pthread_cond_t ended = PTHREAD_COND_INITIALIZER;

static int is_default(CUstream stream) { return (uintptr_t)stream <= 2; }

static int is_stream(CUstream stream) {
    CUstream here = streams;
    while (here && here != stream) here = here->next;
    return is_default(stream) || here;
}

static int is_event(CUevent event) {
    CUevent here = events;
    while (here && here != event) here = here->next;
    return here != NULL;
}

static int blocks(CUstream stream) { return is_default(stream) || !(stream->flags & CU_STREAM_NON_BLOCKING); }

static int covers(CUstream stream, CUstream other) {
    if (is_default(stream) || is_default(other)) return blocks(stream) && blocks(other);
    return stream == other;
}

/* Whether work numbered `upto` or less, that `stream` waits for, is still under way. */
static int is_busy(CUstream stream, u64 upto) {
    for (int i = 0; i < under_way_count; i++)
        if (under_way[i].number <= upto && covers(stream, under_way[i].stream)) return 1;
    return 0;
}

static void wait_for(CUstream stream, u64 upto) {
    while (is_busy(stream, upto)) pthread_cond_wait(&ended, &lock);
}

void wait_for_all_work(void) {
    while (under_way_count) pthread_cond_wait(&ended, &lock);
}

API u64 stand_in_begin_work(CUstream stream) {
    pthread_mutex_lock(&lock);
    if (under_way_count == MOST_WORK) abort();
    u64 number = ++last_work;
    under_way[under_way_count].number = number;
    under_way[under_way_count++].stream = stream;
    pthread_mutex_unlock(&lock);
    return number;
}

API void stand_in_end_work(u64 number) {
    pthread_mutex_lock(&lock);
    for (int i = 0; i < under_way_count; i++)
        if (under_way[i].number == number) under_way[i] = under_way[--under_way_count];
    pthread_cond_broadcast(&ended);
    pthread_mutex_unlock(&lock);
}

#define STREAM_EXISTS(stream) CHECK(is_stream(stream), CUDA_ERROR_INVALID_HANDLE)
#define EVENT_EXISTS(event) CHECK(is_event(event), CUDA_ERROR_INVALID_HANDLE)
#define COPY(to, from, size, allowed)                                                                                 \
    do {                                                                                                              \
        NEEDS_CONTEXT();                                                                                              \
        CHECK(allowed, CUDA_ERROR_INVALID_VALUE);                                                                     \
        memcpy((void *)(to), (const void *)(from), size);                                                             \
        RETURN(CUDA_SUCCESS);                                                                                         \
    } while (0)

API CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t size) {
    BEGIN("cuMemcpyHtoD");
    COPY(to, from, size, from && may_touch(to, size, 1));
}

API CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t size) {
    BEGIN("cuMemcpyDtoH");
    COPY(to, from, size, to && may_touch(from, size, 0));
}

API CUresult cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t size) {
    BEGIN("cuMemcpyDtoD");
    COPY(to, from, size, may_touch(to, size, 1) && may_touch(from, size, 0));
}

API CUresult cuMemsetD8_v2(CUdeviceptr to, unsigned char value, size_t size) {
    BEGIN("cuMemsetD8");
    NEEDS_CONTEXT();
    CHECK(may_touch(to, size, 1), CUDA_ERROR_INVALID_VALUE);
    memset((void *)to, value, size);
    RETURN(CUDA_SUCCESS);
}

API CUresult cuStreamCreate(CUstream *stream, unsigned flags) {
    BEGIN("cuStreamCreate");
    CHECK(stream && flags <= 1, CUDA_ERROR_INVALID_VALUE);
    NEEDS_CONTEXT();
    *stream = calloc(1, sizeof **stream);
    (*stream)->flags = flags;
    (*stream)->next = streams;
    streams = *stream;
    RETURN(CUDA_SUCCESS);
}

API CUresult cuStreamDestroy_v2(CUstream stream) {
    BEGIN("cuStreamDestroy");
    CHECK(!is_default(stream) && is_stream(stream), CUDA_ERROR_INVALID_HANDLE);
    CUstream *link = &streams;
    while (*link != stream) link = &(*link)->next;
    *link = stream->next;
    free(stream);
    RETURN(CUDA_SUCCESS);
}

API CUresult cuStreamSynchronize(CUstream stream) {
    BEGIN("cuStreamSynchronize");
    NEEDS_CONTEXT();
    STREAM_EXISTS(stream);
    wait_for(stream, last_work);
    RETURN(CUDA_SUCCESS);
}

API CUresult cuStreamQuery(CUstream stream) {
    BEGIN("cuStreamQuery");
    NEEDS_CONTEXT();
    STREAM_EXISTS(stream);
    RETURN(is_busy(stream, last_work) ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS);
}

API CUresult cuEventCreate(CUevent *event, unsigned flags) {
    BEGIN("cuEventCreate");
    CHECK(event && flags <= 7, CUDA_ERROR_INVALID_VALUE);
    NEEDS_CONTEXT();
    *event = calloc(1, sizeof **event);
    (*event)->next = events;
    events = *event;
    RETURN(CUDA_SUCCESS);
}

API CUresult cuEventRecord(CUevent event, CUstream stream) {
    BEGIN("cuEventRecord");
    NEEDS_CONTEXT();
    EVENT_EXISTS(event);
    STREAM_EXISTS(stream);
    event->upto = last_work;
    event->stream = stream;
    RETURN(CUDA_SUCCESS);
}

API CUresult cuEventQuery(CUevent event) {
    BEGIN("cuEventQuery");
    NEEDS_CONTEXT();
    EVENT_EXISTS(event);
    RETURN(is_busy(event->stream, event->upto) ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS);
}

API CUresult cuEventSynchronize(CUevent event) {
    BEGIN("cuEventSynchronize");
    NEEDS_CONTEXT();
    EVENT_EXISTS(event);
    wait_for(event->stream, event->upto);
    RETURN(CUDA_SUCCESS);
}

API CUresult cuEventDestroy_v2(CUevent event) {
    BEGIN("cuEventDestroy");
    NEEDS_CONTEXT();
    EVENT_EXISTS(event);
    CUevent *link = &events;
    while (*link != event) link = &(*link)->next;
    *link = event->next;
    free(event);
    RETURN(CUDA_SUCCESS);
}

u64 events_alive(void) {
    u64 count = 0;
    for (CUevent event = events; event; event = event->next) count++;
    return count;
}

u64 streams_alive(void) {
    u64 count = 0;
    for (CUstream stream = streams; stream; stream = stream->next) count++;
    return count;
}
