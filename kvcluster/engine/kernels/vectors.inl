// Sixteen float32 numbers at a time, by the compiler's own vector types: one source for every instruction set.
// Loads widen bfloat16, stores round it to nearest even.

typedef float Floats __attribute__((vector_size(64)));
typedef int32_t Ints __attribute__((vector_size(64)));
typedef uint32_t Words __attribute__((vector_size(64)));
typedef uint16_t Halves __attribute__((vector_size(32)));

struct bfloat16 {
    uint16_t bits;
};

constexpr int LANES = 16;
constexpr float NOTHING = -__builtin_inff();

static inline Floats all(float value) {
    return value - Floats{};
}

static inline Floats load(const float* from) {
    Floats value;
    __builtin_memcpy(&value, from, sizeof value);
    return value;
}

static inline Floats load(const bfloat16* from) {
    Halves halves;
    __builtin_memcpy(&halves, from, sizeof halves);
    return (Floats)(__builtin_convertvector(halves, Words) << 16);
}

static inline void store(float* to, Floats value) {
    __builtin_memcpy(to, &value, sizeof value);
}

static inline Halves rounded(Floats value) {
    Words bits = (Words)value;
    Words even = bits + 0x7fff + ((bits >> 16) & 1);
    Words quiet = (bits >> 16) | 0x40;  // not a number stays one
    Words is_nan = (Words)(value != value);
    return __builtin_convertvector((is_nan & quiet) | (~is_nan & (even >> 16)), Halves);
}

static inline void store(bfloat16* to, Floats value) {
    Halves halves = rounded(value);
    __builtin_memcpy(to, &halves, sizeof halves);
}

// What `value` is once it was stored as a T.
template <typename T>
static inline Floats as_stored(Floats value) {
    if constexpr (sizeof(T) == sizeof(float)) return value;
    else return (Floats)(__builtin_convertvector(rounded(value), Words) << 16);
}

static inline Floats larger(Floats a, Floats b) {
    return a > b ? a : b;
}

static inline float sum(Floats value) {
    Floats half = value + __builtin_shuffle(value, (Ints){8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7});
    Floats quarter = half + __builtin_shuffle(half, (Ints){4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11});
    return (quarter[0] + quarter[2]) + (quarter[1] + quarter[3]);
}

static inline float largest(Floats value) {
    value = larger(value, __builtin_shuffle(value, (Ints){8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7}));
    value = larger(value, __builtin_shuffle(value, (Ints){4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11}));
    value = larger(value, __builtin_shuffle(value, (Ints){2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13}));
    return value[0] > value[1] ? value[0] : value[1];
}

// e^x to 2 units in the last place for x <= 88; below -87 it is e^-87, which no sum of ours can tell from 0.
static inline Floats exponential(Floats x) {
    x = larger(x, all(-87.0f));
    const float shift = 12582912.0f;  // 1.5 x 2^23: adding it rounds to a whole number
    Floats shifted = x * 1.44269504088896341f + shift;
    Ints power = (Ints)shifted - (Ints)all(shift);
    Floats n = shifted - shift;
    Floats r = x - n * 0.693359375f;
    r = r + n * 2.12194440e-4f;
    Floats p = all(1.9875691500e-4f);
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + (r + 1.0f);
    return (Floats)((Ints)p + (power << 23));
}

static inline float exponential(float x) {
    return exponential(all(x))[0];
}
