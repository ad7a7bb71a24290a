/* Settings, counting, and faults on demand.
 *
 * Environment, all with the prefix STAND_IN_CUDA_ (in one process: stand_in_set with the rest of the name):
 *   DEVICES=2  MEMORY=256M  GRANULE=64K  VERSION=13000  VMM=1  POSIX=1  POISON=  MEMORY_TYPE=1  MISSING=cuMemMap,...
 *   FAIL=RULE;RULE...   RULE = NAME@N=CODE | NAME@N+=CODE | NAME@N-M=CODE   (N counts that function's calls from 1
 *                       since the rules were set; NAME may be *; CODE is a number, or ~US: sleep so many microseconds
 *                       and then do the call)
 *   SHARED=FILE         processes with the same file share the devices' memory (ledger.c)
 * CUDA_VISIBLE_DEVICES is honoured: indices or UUIDs, the first that is none ends the list. */
#define _GNU_SOURCE
#include "memory.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MOST_RULES 64

struct settings settings = {2, 13000, 1, 1, -1, CU_MEMORYTYPE_HOST, (size_t)256 << 20, (size_t)64 << 10, ""};
int visible[MOST_DEVICES], visible_count;
pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct call *calls;
static struct rule { char name[48]; u64 first, last; int code; struct call *call; u64 passed; } rules[MOST_RULES];
static int rule_count;

static void refuse(const char *what, const char *text) {
    fprintf(stderr, "stand-in libcuda: %s: '%s'\n", what, text);
    abort();
}

static size_t bytes_of(const char *text) {
    char *end;
    size_t bytes = (size_t)strtoull(text, &end, 10);
    switch (*end) {
    case 'K': return bytes << 10;
    case 'M': return bytes << 20;
    case 'G': return bytes << 30;
    case 0: return bytes;
    }
    refuse("not a size", text);
    return 0;
}

static void add_rule(const char *text) {
    char name[48], code[32], range[64], *end;
    int parts = sscanf(text, "%47[^@]@%63[^=]=%31s", name, range, code);
    if (rule_count == MOST_RULES || parts != 3) refuse("no rule", text);
    struct rule *rule = &rules[rule_count++];
    memset(rule, 0, sizeof *rule);
    rule->first = rule->last = strtoull(range, &end, 10);
    if (*end == '+') rule->last = ~(u64)0;
    if (*end == '-') rule->last = strtoull(end + 1, NULL, 10);
    rule->code = *code == '~' ? -atoi(code + 1) : atoi(code);
    strcpy(rule->name, name);
}

static void set_rules(const char *text) {
    rule_count = 0;
    char *copy = strdup(text), *rest = NULL;
    for (char *rule = strtok_r(copy, ";", &rest); rule; rule = strtok_r(NULL, ";", &rest)) add_rule(rule);
    free(copy);
}

static int set(const char *name, const char *value) {
    const struct { const char *name; int *number; } numbers[] = {
        {"DEVICES", &settings.devices}, {"VERSION", &settings.version}, {"VMM", &settings.vmm},
        {"POSIX", &settings.posix},     {"POISON", &settings.poison},   {"MEMORY_TYPE", &settings.memory_type}};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (!strcmp(name, numbers[i].name)) { *numbers[i].number = atoi(value); return 1; }
    if (!strcmp(name, "MEMORY")) { settings.memory = bytes_of(value); return 1; }
    if (!strcmp(name, "GRANULE")) { settings.granule = bytes_of(value); return 1; }
    if (!strcmp(name, "FAIL")) { set_rules(value); return 1; }
    if (!strcmp(name, "MISSING")) { snprintf(settings.missing, sizeof settings.missing, "%s", value); return 1; }
    return 0;
}

static int device_named(const char *word) {
    char *end, uuid[64];
    long number = strtol(word, &end, 10);
    if (end != word && !*end) return number >= 0 && number < settings.devices ? (int)number : -1;
    for (int i = 0; i < settings.devices; i++) {
        snprintf(uuid, sizeof uuid, "GPU-7374616e-642d-696e-2047-5055000000%02x", i);
        if (!strncmp(word, uuid, strlen(word)) && strlen(word) > 4) return i;
    }
    return -1;
}

static void find_visible(void) {
    const char *text = getenv("CUDA_VISIBLE_DEVICES");
    visible_count = 0;
    if (!text) {
        for (; visible_count < settings.devices; visible_count++) visible[visible_count] = visible_count;
        return;
    }
    char *copy = strdup(text), *rest = NULL;
    for (char *word = strtok_r(copy, ",", &rest); word; word = strtok_r(NULL, ",", &rest)) {
        int device = device_named(word);
        if (device < 0 || visible_count == MOST_DEVICES) break;
        visible[visible_count++] = device;
    }
    free(copy);
}

static void after_fork(void) {
    forked = initialized;
    pthread_mutex_init(&lock, NULL);
}

static void read_once(void) {
    const char *names[] = {"DEVICES", "MEMORY", "GRANULE",     "VERSION", "VMM",
                           "POSIX",   "POISON", "MEMORY_TYPE", "MISSING", "FAIL"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char whole[64];
        snprintf(whole, sizeof whole, "STAND_IN_CUDA_%s", names[i]);
        const char *value = getenv(whole);
        if (value && *value) set(names[i], value);
    }
    if (settings.devices < 0 || settings.devices > MOST_DEVICES) refuse("too many devices", "DEVICES");
    if (settings.granule < 4096 || (settings.granule & (settings.granule - 1)))
        refuse("no power of two from a page up", "GRANULE");
    find_visible();
    pthread_atfork(NULL, NULL, after_fork);
}

void read_settings(void) { pthread_once(&once, read_once); }

/* The code that the rules give this call, 0 for none; the longest sleep that they ask for. */
static int ruled(const char *name, int *sleep_us) {
    int code = 0;
    for (int i = 0; i < rule_count; i++) {
        struct rule *rule = &rules[i];
        if (rule->name[0] != '*' && strcmp(rule->name, name)) continue;
        u64 number = ++rule->passed;
        if (number < rule->first || number > rule->last) continue;
        if (rule->code < 0) *sleep_us = -rule->code;
        else if (!code) code = rule->code;
    }
    return code;
}

CUresult begin(struct call *call, int needs_init) {
    read_settings();
    pthread_mutex_lock(&lock);
    if (!call->listed) { call->listed = 1; call->next = calls; calls = call; }
    call->count++;
    int sleep_us = 0;
    CUresult code = ruled(call->name, &sleep_us);
    if (sleep_us) {
        pthread_mutex_unlock(&lock);
        usleep((useconds_t)sleep_us);
        pthread_mutex_lock(&lock);
    }
    if (!code && needs_init && (!initialized || forked)) code = CUDA_ERROR_NOT_INITIALIZED;
    if (code) pthread_mutex_unlock(&lock);
    return code;
}

/* --- for the test process */

API void stand_in_fail(const char *text) {
    read_settings();
    pthread_mutex_lock(&lock);
    set_rules(text);
    pthread_mutex_unlock(&lock);
}

/* 1 if there is such a setting. Nothing may be alive when the granule changes. */
API int stand_in_set(const char *name, const char *value) {
    read_settings();
    pthread_mutex_lock(&lock);
    int found = set(name, value);
    if (found) find_visible();
    pthread_mutex_unlock(&lock);
    return found;
}

/* Calls of a function so far; of all of them for "*". */
API u64 stand_in_calls(const char *name) {
    u64 count = 0;
    pthread_mutex_lock(&lock);
    for (struct call *call = calls; call; call = call->next)
        if (*name == '*' || !strcmp(call->name, name)) count += call->count;
    pthread_mutex_unlock(&lock);
    return count;
}

static u64 count_of(const char *what) {
    if (!strcmp(what, "memories")) return memories_alive;
    if (!strcmp(what, "mappings")) return mappings_alive();
    if (!strcmp(what, "reservations")) return reservations_alive();
    if (!strcmp(what, "events")) return events_alive();
    if (!strcmp(what, "streams")) return streams_alive();
    if (!strcmp(what, "contexts")) return contexts_alive();
    return 0;
}

/* What is alive here: "memories", "mappings", "reservations", "events", "streams", "contexts". */
API u64 stand_in_alive(const char *what) {
    pthread_mutex_lock(&lock);
    u64 count = count_of(what);
    pthread_mutex_unlock(&lock);
    return count;
}
