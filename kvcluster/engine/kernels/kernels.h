// The C interface of the engine's own operators, as kvcluster/engine/kernels/library.py calls them.
//
// Every function exists once for each instruction set, as kvc_<set>_<name>; kvc_runs(set) says whether this processor
// has it. Nothing here owns memory, allocates anything that outlives its call, or knows of torch. Addresses are bytes.
// Rows that a function computes do not depend on which other rows are computed by the same call, to the last bit.

#pragma once

#include <cstdint>

namespace kvc {

enum ElementType : int32_t { FLOAT32 = 0, BFLOAT16 = 1 };

// Tokens that lie at equal steps: `address` is that of the first one's K in head 0 of layer 0.
struct Run {
    int64_t address;
    int64_t tokens;
};

// One sequence's part of a step. Its new tokens are the last `rows` of [first_token, stop), in rows [row, row + rows)
// of the step; the table's runs from `first_run` on hold [first_token, stop) in order. Steps are in bytes: to the next
// layer of the group, to the next layer of the model (one of the two is 0), from K to V, to the next head and token.
// Of tokens below `open_token` the first `sealed` bytes of each fragment are read and never written; fragments follow
// each other at `pitch`, and the first of them begins with token 0.
struct Slice {
    int64_t row;
    int64_t rows;
    int64_t first_token;
    int64_t stop;
    int64_t first_run;
    int64_t index_step;
    int64_t number_step;
    int64_t side_step;
    int64_t head_step;
    int64_t token_step;
    int64_t open_token;
    int64_t sealed;
    int64_t pitch;
};

// A layer: its place in its group, its number in the model, and its attention. `window` 0: every earlier token;
// `soft_cap` 0: none.
struct Layer {
    int32_t type;
    int32_t index;
    int32_t number;
    int32_t heads;
    int32_t kv_heads;
    int32_t head_dim;
    int32_t window;
    float scaling;
    float soft_cap;
};

// Where vectors [rows, heads, head_dim] lie.
struct Vectors {
    int64_t address;
    int64_t row_step;
    int64_t head_step;
};

}  // namespace kvc
