// Attention over K and V where they lie: an online softmax over tiles of 64 keys.
//
// A task is up to 16 query rows of one slice that share a K head: a query's heads, or those of several queries. Tiles
// and chunks begin at multiples of their size, counted from the sequence's first token, and a row merges its chunks in
// their order. So what a row gets depends on its own position alone, not on how many are computed beside it nor on how
// a prompt was cut into steps. Where there are fewer tasks than threads want, the chunks of one are computed side by
// side, and merged in the same order.

constexpr int ROWS = 16;
constexpr int TILE = 64;
constexpr int CHUNK = 512;
constexpr int MOST_DIM = 512;

// A tile's keys, by their distance from its first: those in [first, stop) are there.
struct Keys {
    const char* k[TILE];
    int first;
    int stop;
};

// What rows have of some keys: sums of weights and of weighted values, each weight e^(score - highest).
struct Sums {
    float highest[ROWS];
    float weight[ROWS];
    alignas(64) float value[ROWS * MOST_DIM];  // [rows, head_dim]
};

// Lanes 4 i of the result are the sums of a, b, c, d: each by the same tree as `sum`.
static inline Floats sums_of_four(Floats a, Floats b, Floats c, Floats d) {
    const Ints near8 = {0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23};
    const Ints near4 = {0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27};
    Floats ab = __builtin_shuffle(a, b, near8) + __builtin_shuffle(a, b, near8 + 8);
    Floats cd = __builtin_shuffle(c, d, near8) + __builtin_shuffle(c, d, near8 + 8);
    Floats all4 = __builtin_shuffle(ab, cd, near4) + __builtin_shuffle(ab, cd, near4 + 4);
    all4 += __builtin_shuffle(all4, (Ints){2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13});
    return all4 + __builtin_shuffle(all4, (Ints){1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14});
}

// Scores of N rows for four keys, or for one.
template <typename T, int N>
static inline void score_four(const T* const* q, const char* const* k, int dim, float* scores) {
    Floats sums[N][4] = {};
    for (int d = 0; d < dim; d += LANES)
        for (int n = 0; n < N; n++)
            for (int j = 0; j < 4; j++) sums[n][j] += load(q[n] + d) * load((const T*)k[j] + d);
    for (int n = 0; n < N; n++) {
        Floats four = sums_of_four(sums[n][0], sums[n][1], sums[n][2], sums[n][3]);
        for (int j = 0; j < 4; j++) scores[n * TILE + j] = four[4 * j];
    }
}

template <typename T, int N>
static inline void score_one(const T* const* q, const char* k, int dim, float* scores) {
    for (int n = 0; n < N; n++) {
        Floats one = {};
        for (int d = 0; d < dim; d += LANES) one += load(q[n] + d) * load((const T*)k + d);
        scores[n * TILE] = sum(one);
    }
}

template <typename T, int N>
static inline void score(const T* const* q, const Keys& keys, int dim, float* scores) {
    int t = keys.first;
    for (; t + 4 <= keys.stop; t += 4) score_four<T, N>(q, keys.k + t, dim, scores + t);
    for (; t < keys.stop; t++) score_one<T, N>(q, keys.k[t], dim, scores + t);
}

// Adds the weighted values of N rows, 16 x M elements from `d` on.
template <typename T, int N, int M>
static inline void gather(const float* weights, const Keys& keys, int64_t side_step, int d, int dim, float* value) {
    Floats sums[N][M];
    for (int n = 0; n < N; n++)
        for (int m = 0; m < M; m++) sums[n][m] = load(value + n * dim + d + m * LANES);
    for (int t = keys.first; t < keys.stop; t++) {
        const T* v = (const T*)(keys.k[t] + side_step) + d;
        for (int m = 0; m < M; m++) {
            Floats one = load(v + m * LANES);
            for (int n = 0; n < N; n++) sums[n][m] += one * weights[n * TILE + t];
        }
    }
    for (int n = 0; n < N; n++)
        for (int m = 0; m < M; m++) store(value + n * dim + d + m * LANES, sums[n][m]);
}

template <typename T, int N>
static inline void gather_all(const float* weights, const Keys& keys, int64_t side_step, int dim, float* value) {
    int d = 0;
    for (; d + 4 * LANES <= dim; d += 4 * LANES) gather<T, N, 4>(weights, keys, side_step, d, dim, value);
    for (; d < dim; d += LANES) gather<T, N, 1>(weights, keys, side_step, d, dim, value);
}

// Scores become weights. Hidden keys, outside [first, stop), get none.
static inline void weigh(float* scores, int first, int stop, const Layer& layer, float& highest, float& weight,
                         float* value, int dim) {
    for (int t = 0; t < TILE; t++)
        if (t < first || t >= stop) scores[t] = NOTHING;
    Floats top = all(NOTHING);
    for (int t = 0; t < TILE; t += LANES) {
        Floats each = load(scores + t) * layer.scaling;
        if (layer.soft_cap > 0) {  // cap x tanh(each / cap), and minus infinity stays
            Floats twice = each * (2 / layer.soft_cap);
            twice = twice < all(80.0f) ? twice : all(80.0f);  // whose exponential is a number
            Floats capped = layer.soft_cap - 2 * layer.soft_cap / (1.0f + exponential(twice));
            each = each > all(NOTHING) ? capped : each;
        }
        store(scores + t, each);
        top = larger(top, each);
    }
    const float now = __builtin_fmaxf(largest(top), highest);
    if (now == NOTHING) {  // nothing was seen yet, and nothing is
        __builtin_memset(scores, 0, TILE * sizeof(float));
        return;
    }
    Floats sums = {};
    for (int t = 0; t < TILE; t += LANES) {
        Floats each = load(scores + t);
        each = each > all(NOTHING) ? exponential(each - now) : Floats{};
        store(scores + t, each);
        sums += each;
    }
    if (highest < now) {
        const float shrink = highest == NOTHING ? 0.0f : exponential(highest - now);
        weight *= shrink;
        for (int d = 0; d < dim; d += LANES) store(value + d, load(value + d) * shrink);
    }
    weight += sum(sums);
    highest = now;
}

// Adds `more` to `sums`, for keys behind those of `sums`.
static inline void merge(Sums& sums, const Sums& more, int rows, int dim) {
    for (int r = 0; r < rows; r++) {
        if (more.highest[r] == NOTHING) continue;
        const float now = __builtin_fmaxf(sums.highest[r], more.highest[r]);
        const float before = sums.highest[r] == NOTHING ? 0.0f : exponential(sums.highest[r] - now);
        const float added = exponential(more.highest[r] - now);
        for (int d = 0; d < dim; d += LANES) {
            float* value = sums.value + r * dim + d;
            store(value, load(value) * before + load(more.value + r * dim + d) * added);
        }
        sums.weight[r] = sums.weight[r] * before + more.weight[r] * added;
        sums.highest[r] = now;
    }
}

static inline void clear(Sums& sums, int rows, int dim) {
    for (int r = 0; r < rows; r++) sums.highest[r] = NOTHING, sums.weight[r] = 0;
    __builtin_memset(sums.value, 0, sizeof(float) * rows * dim);
}

// The query rows [first_row, first_row + rows) of a slice and a K head: row r is head r % group of query r / group.
template <typename T>
struct Task {
    const Layer& layer;
    const Run* runs;
    const Vectors& query;
    const Vectors& result;
    const Slice& slice;
    int kv_head;
    int64_t first_row;
    int rows;

    int group() const { return layer.heads / layer.kv_heads; }
    int64_t position(int row) const { return slice.stop - slice.rows + (first_row + row) / group(); }
    int64_t first_seen(int row) const {
        const int64_t at = position(row);
        return layer.window && at >= layer.window ? at + 1 - layer.window : 0;
    }
    int64_t first_chunk() const { return first_seen(0) / CHUNK; }
    int64_t chunks() const { return position(rows - 1) / CHUNK + 1 - first_chunk(); }

    T* vector(const Vectors& of, int row) const {
        const int64_t r = first_row + row;
        const int64_t head = kv_head * group() + r % group();
        return (T*)(of.address + (slice.row + r / group()) * of.row_step + head * of.head_step);
    }

    // The keys [from, to), of which the first lies in `run`, whose first token is `run_token`, or behind it.
    void find(Keys& keys, int64_t tile, int64_t from, int64_t to, const Run*& run, int64_t& run_token) const {
        const int64_t offset = offset_of(layer, slice) + kv_head * slice.head_step;
        keys.first = int(from - tile);
        keys.stop = int(to - tile);
        for (int64_t token = from; token < to;) {
            while (token >= run_token + run->tokens) run_token += (run++)->tokens;
            const char* at = (const char*)run->address + offset + (token - run_token) * slice.token_step;
            const int64_t stop = run_token + run->tokens < to ? run_token + run->tokens : to;
            for (; token < stop; token++, at += slice.token_step) keys.k[token - tile] = at;
        }
    }

    template <int N>
    void rows_of_tile(const T* const* q, const Keys& keys, int64_t tile, int row, float* scores, Sums& sums) const {
        const int dim = layer.head_dim;
        score<T, N>(q + row, keys, dim, scores);
        for (int n = 0; n < N; n++) {
            const int64_t first = first_seen(row + n) - tile, stop = position(row + n) + 1 - tile;
            weigh(scores + n * TILE, first > keys.first ? int(first < TILE ? first : TILE) : keys.first,
                  stop < keys.stop ? int(stop > 0 ? stop : 0) : keys.stop, layer, sums.highest[row + n],
                  sums.weight[row + n], sums.value + (row + n) * dim, dim);
        }
        gather_all<T, N>(scores, keys, slice.side_step, dim, sums.value + row * dim);
    }

    void chunk(int64_t number, Sums& sums) const {
        const T* q[ROWS];
        for (int r = 0; r < rows; r++) q[r] = vector(query, r);
        clear(sums, rows, layer.head_dim);
        const int64_t seen = first_seen(0), end = position(rows - 1) + 1;
        const int64_t from = number * CHUNK > seen ? number * CHUNK : seen;
        const int64_t to = (number + 1) * CHUNK < end ? (number + 1) * CHUNK : end;
        const Run* run = runs + slice.first_run;
        int64_t run_token = slice.first_token;
        alignas(64) float scores[TOGETHER * TILE];
        Keys keys;
        for (int64_t tile = from / TILE * TILE; tile < to; tile += TILE) {
            find(keys, tile, tile > from ? tile : from, tile + TILE < to ? tile + TILE : to, run, run_token);
            for (int t = keys.first; t < keys.stop; t++)
                for (unsigned b = 0; b < layer.head_dim * sizeof(T); b += 64) {
                    __builtin_prefetch(keys.k[t] + b);
                    __builtin_prefetch(keys.k[t] + slice.side_step + b);
                }
            int row = 0;
            for (; row + TOGETHER <= rows; row += TOGETHER) rows_of_tile<TOGETHER>(q, keys, tile, row, scores, sums);
            for (; row < rows; row++) rows_of_tile<1>(q, keys, tile, row, scores, sums);
        }
    }

    void finish(const Sums& sums) const {
        for (int r = 0; r < rows; r++) {
            T* to = vector(result, r);
            for (int d = 0; d < layer.head_dim; d += LANES)
                store(to + d, load(sums.value + r * layer.head_dim + d) / sums.weight[r]);
        }
    }

    void run_alone() const {
        Sums sums, more;
        chunk(first_chunk(), sums);
        for (int64_t number = 1; number < chunks(); number++) {
            chunk(first_chunk() + number, more);
            merge(sums, more, rows, layer.head_dim);
        }
        finish(sums);
    }
};

template <typename T>
static Task<T> task_of(const Layer& layer, const Slice* slices, int64_t count, const Run* runs, const Vectors& query,
                       const Vectors& result, int64_t number) {
    const int group = layer.heads / layer.kv_heads;
    for (int64_t i = 0; i < count; i++) {
        const int64_t rows = slices[i].rows * group, tiles = (rows + ROWS - 1) / ROWS;
        if (number < tiles * layer.kv_heads) {
            const int64_t first = number / layer.kv_heads * ROWS;
            const int taken = int(rows - first < ROWS ? rows - first : ROWS);
            return {layer, runs, query, result, slices[i], int(number % layer.kv_heads), first, taken};
        }
        number -= tiles * layer.kv_heads;
    }
    __builtin_unreachable();
}

template <typename T>
static void attend(const Layer& layer, const Slice* slices, int64_t count, const Run* runs, const Vectors& query,
                   const Vectors& result) {
    const int group = layer.heads / layer.kv_heads;
    int64_t tasks = 0, most_chunks = 1, work = 0;
    for (int64_t i = 0; i < count; i++) {
        tasks += (slices[i].rows * group + ROWS - 1) / ROWS * layer.kv_heads;
        int64_t seen = slices[i].stop - slices[i].first_token;
        most_chunks = (seen + CHUNK - 1) / CHUNK + 1 > most_chunks ? (seen + CHUNK - 1) / CHUNK + 1 : most_chunks;
        work += slices[i].rows * seen;
    }
    work *= layer.heads * int64_t(layer.head_dim);
    auto number = [&](int64_t task) { return task_of<T>(layer, slices, count, runs, query, result, task); };
    Sums* sums = nullptr;
    if (tasks < 4 * omp_get_max_threads() && most_chunks > 2)
        sums = (Sums*)aligned_alloc(alignof(Sums), tasks * most_chunks * sizeof(Sums));
    if (!sums) {  // enough tasks, too few chunks, or no memory to keep them apart
#pragma omp parallel for schedule(dynamic, 1) if (work > PARALLEL_WORK)
        for (int64_t task = 0; task < tasks; task++) number(task).run_alone();
        return;
    }
#pragma omp parallel for schedule(dynamic, 1)
    for (int64_t part = 0; part < tasks * most_chunks; part++) {
        const Task<T> task = number(part / most_chunks);
        if (part % most_chunks < task.chunks()) task.chunk(task.first_chunk() + part % most_chunks, sums[part]);
    }
    for (int64_t one = 0; one < tasks; one++) {
        const Task<T> task = number(one);
        Sums* parts = sums + one * most_chunks;
        for (int64_t more = 1; more < task.chunks(); more++) merge(parts[0], parts[more], task.rows, layer.head_dim);
        task.finish(parts[0]);
    }
    free(sums);
}
