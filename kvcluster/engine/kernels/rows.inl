// What stands between a decoder's linear layers, one pass over each row: norms, rotation, gates.
//
// Sums of squares are float32, and a residual is rounded to the element type as the model's own code rounds it.

template <typename T>
static inline float inverse_root_mean_square(const T* row, int64_t width, float epsilon) {
    Floats squares = {};
    for (int64_t i = 0; i < width; i += LANES) {
        Floats each = load(row + i);
        squares += each * each;
    }
    return 1.0f / __builtin_sqrtf(sum(squares) / width + epsilon);
}

// residual += added (through its norm, where `after` is given), then normed = norm(residual) x before.
template <typename T>
static void add_norm(int64_t rows, int64_t width, T* residual, const T* added, const float* after, const float* before,
                     T* normed, float epsilon) {
#pragma omp parallel for if (rows * width > PARALLEL_ELEMENTS)
    for (int64_t r = 0; r < rows; r++) {
        T* mine = residual + r * width;
        const T* more = added + r * width;
        if (added && after) {
            const float scale = inverse_root_mean_square(more, width, epsilon);
            for (int64_t i = 0; i < width; i += LANES)
                store(mine + i, load(mine + i) + as_stored<T>(load(more + i) * scale * load(after + i)));
        } else if (added) {
            for (int64_t i = 0; i < width; i += LANES) store(mine + i, load(mine + i) + load(more + i));
        }
        const float scale = inverse_root_mean_square(mine, width, epsilon);
        for (int64_t i = 0; i < width; i += LANES)
            store(normed + r * width + i, load(mine + i) * scale * load(before + i));
    }
}

// One head's vector: its norm, where there is a weight, and its rotation by halves.
template <typename T>
static inline void rotate(const T* from, T* to, int dim, const float* weight, float epsilon, const float* cosine,
                          const float* sine) {
    const int half = dim / 2;
    const float scale = weight ? inverse_root_mean_square(from, dim, epsilon) : 1.0f;
    for (int i = 0; i < half; i += LANES) {
        Floats a = load(from + i), b = load(from + half + i);
        if (weight) {
            a = as_stored<T>(a * scale * load(weight + i));
            b = as_stored<T>(b * scale * load(weight + half + i));
        }
        store(to + i, a * load(cosine + i) - b * load(sine + i));
        store(to + half + i, b * load(cosine + i) + a * load(sine + i));
    }
}

// The K and V of one token go where its slice lies.
static inline void write_token(const Layer& layer, const Slice& slice, const Run* runs, int64_t token, int64_t row,
                               const Vectors& key, const Vectors& value) {
    const int64_t bytes = layer.head_dim * (layer.type == FLOAT32 ? sizeof(float) : sizeof(bfloat16));
    char* to = place_of(layer, slice, runs, token);
    for (int h = 0; h < layer.kv_heads; h++) {
        const int64_t k = h * slice.head_step, v = k + slice.side_step, offset = offset_of(layer, slice);
        put(to + k, (char*)key.address + row * key.row_step + h * key.head_step, bytes, slice, token, offset + k);
        put(to + v, (char*)value.address + row * value.row_step + h * value.head_step, bytes, slice, token, offset + v);
    }
}

// `rows` are [rows, heads + 2 kv_heads, head_dim]: queries are rotated in place, K and V go where the slices lie.
template <typename T>
static void rotate_and_write(const Layer& layer, const Slice* slices, int64_t count, const Run* runs, T* rows,
                             const float* query_norm, const float* key_norm, float epsilon, const float* cosines,
                             const float* sines) {
    const int dim = layer.head_dim;
    const int64_t width = int64_t(layer.heads + 2 * layer.kv_heads) * dim;
    for (int64_t s = 0; s < count; s++) {
        const Slice& slice = slices[s];
#pragma omp parallel for if (slice.rows * width > PARALLEL_ELEMENTS)
        for (int64_t i = 0; i < slice.rows; i++) {
            T* row = rows + (slice.row + i) * width;
            const float* cosine = cosines + (slice.row + i) * dim / 2;
            const float* sine = sines + (slice.row + i) * dim / 2;
            for (int h = 0; h < layer.heads; h++)
                rotate(row + h * dim, row + h * dim, dim, query_norm, epsilon, cosine, sine);
            T* k = row + layer.heads * dim;
            for (int h = 0; h < layer.kv_heads; h++)
                rotate(k + h * dim, k + h * dim, dim, key_norm, epsilon, cosine, sine);
            const Vectors key = {int64_t(k), 0, dim * int64_t(sizeof(T))};
            const Vectors value = {int64_t(k + layer.kv_heads * dim), 0, dim * int64_t(sizeof(T))};
            write_token(layer, slice, runs, slice.stop - slice.rows + i, 0, key, value);
        }
    }
}

static void write(const Layer& layer, const Slice* slices, int64_t count, const Run* runs, const Vectors& key,
                  const Vectors& value) {
    for (int64_t s = 0; s < count; s++)
        for (int64_t i = 0; i < slices[s].rows; i++)
            write_token(layer, slices[s], runs, slices[s].stop - slices[s].rows + i, slices[s].row + i, key, value);
}

// `both` is [rows, 2 (gate, up), width], `result` [rows, width]: silu(gate) x up, or by gelu's tanh form.
template <typename T>
static void gated(int64_t rows, int64_t width, const T* both, T* result, bool gelu) {
#pragma omp parallel for if (rows * width > PARALLEL_ELEMENTS)
    for (int64_t r = 0; r < rows; r++) {
        const T* gate = both + r * 2 * width;
        const T* up = gate + width;
        for (int64_t i = 0; i < width; i += LANES) {
            Floats x = load(gate + i);
            Floats z = gelu ? 1.5957691216057308f * (x + 0.044715f * x * x * x) : x;
            z = z < all(-87.0f) ? all(-87.0f) : z;  // so that no exponential overflows
            Floats y = as_stored<T>(x / (1.0f + exponential(larger(all(0.0f) - z, all(-87.0f)))));
            store(result + r * width + i, y * load(up + i));
        }
    }
}
