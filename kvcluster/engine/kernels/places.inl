// Where a slice's K and V lie, and which bytes of them may be written.

// From a run's address to this layer's.
static inline int64_t offset_of(const Layer& layer, const Slice& slice) {
    return layer.index * slice.index_step + layer.number * slice.number_step;
}

// Where the K of a slice's token lies in head 0 of this layer.
static inline char* place_of(const Layer& layer, const Slice& slice, const Run* runs, int64_t token) {
    const Run* run = runs + slice.first_run;
    int64_t first = slice.first_token;
    while (token >= first + run->tokens) first += (run++)->tokens;
    return (char*)run->address + offset_of(layer, slice) + (token - first) * slice.token_step;
}

// Copies a vector to `to`, which is `offset` bytes from the K of head 0 of the group's first layer, but for what of it
// is sealed: it is there already, and equal.
static inline void put(char* to, const void* vector, int64_t bytes, const Slice& slice, int64_t token, int64_t offset) {
    int64_t kept = 0;
    if (token < slice.open_token) {
        kept = slice.sealed - token * slice.token_step - offset % slice.pitch;
        kept = kept < 0 ? 0 : kept;
    }
    if (kept < bytes) __builtin_memcpy(to + kept, (const char*)vector + kept, bytes - kept);
}
