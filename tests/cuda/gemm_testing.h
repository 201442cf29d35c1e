/* Operands, results and bounds of matrix-product tests. An operand is built dense on the host, quantized by the scalar
 * reference where it is MXFP8, laid out with the strides under test, and read back as doubles. */
#ifndef MX8_GEMM_TESTING_H
#define MX8_GEMM_TESTING_H

#include <math.h>
#include "cuda_test.h"
#include "formats/jobs.h"
#include "formats/fp8_accumulator.h"

#define MAX_TEST_GROUPS 128

/* How an operand is stored. */
struct style {
    int32_t dtype, scale_group, tile;
    int transposed; /* lines are contiguous, not k */
    int odd;        /* pitches that fit no vector access */
};

struct problem {
    enum mx8_gemm_mode mode;
    int64_t M, N, K; /* in K groups K follows from the sizes */
    int32_t G, sizes[MAX_TEST_GROUPS];
    int64_t tail;    /* rows, or k, behind the last group; poisoned */
    int32_t padding; /* K groups: sizes are rounded up to this */
    struct style a, b;
    int32_t c_dtype, accumulate, bias; /* bias: 0 none, 1 bf16, 2 f32 */
    int32_t exact;
    int64_t nan_line; /* 1 + a line of A and of B that holds a NaN; 0: none */
};

struct operand {
    int64_t groups, lines, length, blocks;
    uint8_t *codes, *scales;  /* dense: (groups, lines, length) and (groups, lines, blocks); MXFP8 only */
    double *values;           /* (groups, lines, length) */
    struct mx8_matrix matrix; /* device pointers */
};

/* A problem made concrete. */
struct product {
    struct problem problem;
    char name[200];
    int32_t ends[MAX_TEST_GROUPS]; /* what the kernel reads */
    struct operand a, b;
    double *bias, *old, *want, *magnitude; /* want, magnitude: (outputs, M, N); old: what C held */
    int64_t outputs, pitch;
    size_t c_bytes;
    uint8_t *c_start; /* host bytes that C holds before the call */
    struct mx8_gemm_job job;
};

static inline int64_t round_up(int64_t n, int64_t unit) {
    return (n + unit - 1) / unit * unit;
}
static inline size_t size_of(int32_t dtype) {
    return mx8_get_dtype_size(dtype);
}
static inline int is_f8(int32_t dtype) {
    return dtype == MX8_F8_E4M3 || dtype == MX8_F8_E5M2;
}

static inline float draw_number(uint32_t *state) {
    float unit = (float)(draw(state) & 0xFFFF) / 32768.0f - 1.0f;
    return ldexpf(unit, (int)(draw(state) % 4) - 2);
}

static inline void store_number(void *at, int64_t i, int32_t dtype, double value) {
    if (dtype == MX8_F32)
        ((float *)at)[i] = (float)value;
    else
        ((uint16_t *)at)[i] = mx8_encode_bf16((float)value);
}

static inline double load_number(const void *at, int64_t i, int32_t dtype) {
    if (dtype == MX8_F32) return (double)((const float *)at)[i];
    return (double)mx8_decode_bf16(((const uint16_t *)at)[i]);
}

/* Ranges of k that are quantized each for itself: K groups, or one of everything. Writes their bounds; returns how
 * many. */
static inline int32_t list_segments(const struct problem *p, int64_t *start, int64_t *end) {
    if (p->mode != MX8_GEMM_K_GROUPS) {
        start[0] = 0;
        end[0] = p->K;
        return 1;
    }
    int64_t at = 0;
    for (int32_t g = 0; g < p->G; g++) {
        start[g] = at;
        end[g] = at + p->sizes[g];
        at = round_up(end[g], p->padding);
    }
    return p->G;
}

static inline void quantize_operand(
    const struct problem *p, const struct style *s, struct operand *o, const float *source) {
    int64_t start[MAX_TEST_GROUPS], end[MAX_TEST_GROUPS];
    int32_t segments = list_segments(p, start, end);
    for (int32_t i = 0; i < segments; i++) {
        struct mx8_quant_job j = {.src = source + start[i],
            .src_dtype = MX8_F32,
            .batch = o->groups,
            .rows = o->lines,
            .cols = end[i] - start[i],
            .src_stride = {o->lines * o->length, o->length, 1},
            .row_codes = o->codes + start[i],
            .row_code_stride = {o->lines * o->length, o->length, 1},
            .row_scales = o->scales + start[i] / MX8_BLOCK,
            .row_scale_stride = {o->lines * o->blocks, o->blocks, 1},
            .rule = MX8_SCALE_RCEIL,
            .format = s->dtype,
            .group = s->scale_group,
            .tile = s->tile};
        mx8i_reference_quantize(&j);
    }
    for (int64_t i = 0; i < o->groups * o->lines * o->length; i++) {
        uint8_t scale = o->scales[i / o->length * o->blocks + i % o->length / MX8_BLOCK];
        o->values[i] = (double)((s->dtype == MX8_F8_E5M2 ? mx8_decode_e5m2 : mx8_decode_e4m3)(o->codes[i])) *
                       (double)mx8_decode_e8m0(scale);
    }
}

/* Copies a dense (groups, lines, length) array of `element` bytes to the device, with the strides of the style. Lines
 * from `used_lines` on and positions from `used_length` on stay poison: nothing may read them. */
static inline void *place_operand(const struct style *s, const void *dense, size_t element, int64_t groups,
    int64_t lines, int64_t length, int64_t used_lines, int64_t used_length, int64_t *ls, int64_t *ks, int64_t *gs) {
    int64_t inner = s->transposed ? lines : length, outer = s->transposed ? length : lines;
    int64_t pitch = s->odd ? inner + 1 : round_up(inner, 16);
    size_t bytes = (size_t)(groups * outer * pitch) * element;
    uint8_t *host = make_host(bytes, CUDA_POISON);
    *ls = s->transposed ? 1 : pitch;
    *ks = s->transposed ? pitch : 1;
    *gs = outer * pitch;
    for (int64_t line = 0; line < groups * lines; line++) {
        const uint8_t *from = (const uint8_t *)dense + (size_t)(line * length) * element;
        uint8_t *to = host + (size_t)(line / lines * *gs + line % lines * *ls) * element;
        if (line % lines >= used_lines) continue;
        if (!s->transposed) memcpy(to, from, (size_t)used_length * element);
        for (int64_t k = 0; s->transposed && k < used_length; k++)
            memcpy(to + (size_t)(k * pitch) * element, from + (size_t)k * element, element);
    }
    void *device = copy_to_device(host, bytes);
    free(host);
    return device;
}

static inline void build_operand(const struct problem *p, const struct style *s, struct operand *o, int64_t groups,
    int64_t lines, int64_t length, int64_t used_lines, int64_t used_length, uint32_t seed) {
    int64_t n = groups * lines * length;
    *o = (struct operand){
        .groups = groups, .lines = lines, .length = length, .blocks = round_up(length, MX8_BLOCK) / MX8_BLOCK};
    float *source = make_host((size_t)n * sizeof(float), 0);
    for (int64_t i = 0; i < n; i++) source[i] = draw_number(&seed);
    if (p->nan_line > 0 && p->nan_line <= lines && length > 5) source[(p->nan_line - 1) * length + 5] = NAN;
    o->values = make_host((size_t)n * sizeof(double), 0);
    o->matrix = (struct mx8_matrix){.dtype = s->dtype, .scale_group = s->scale_group, .tile = s->tile};
    if (is_f8(s->dtype)) {
        o->codes = make_host((size_t)n, 0);
        o->scales = make_host((size_t)(groups * lines * o->blocks), 0);
        quantize_operand(p, s, o, source);
        o->matrix.data = place_operand(s, o->codes, 1, groups, lines, length, used_lines, used_length, &o->matrix.ls,
            &o->matrix.ks, &o->matrix.gs);
        o->matrix.scales = place_operand(s, o->scales, 1, groups, lines, o->blocks, used_lines,
            round_up(used_length, MX8_BLOCK) / MX8_BLOCK, &o->matrix.sls, &o->matrix.sks, &o->matrix.sgs);
    } else {
        void *dense = make_host((size_t)n * size_of(s->dtype), 0);
        for (int64_t i = 0; i < n; i++) {
            store_number(dense, i, s->dtype, (double)source[i]);
            o->values[i] = load_number(dense, i, s->dtype);
        }
        o->matrix.data = place_operand(s, dense, size_of(s->dtype), groups, lines, length, used_lines, used_length,
            &o->matrix.ls, &o->matrix.ks, &o->matrix.gs);
        free(dense);
    }
    if (groups == 1) o->matrix.gs = o->matrix.sgs = 0;
    free(source);
}

/* Output o of row m: which group's B, and the range of k. Returns 0 for a row behind the last group. */
struct reach {
    int64_t group, from, to;
};
static inline int find_reach(const struct product *c, int64_t output, int64_t m, struct reach *r) {
    const struct problem *p = &c->problem;
    *r = (struct reach){0, 0, p->K};
    if (p->mode == MX8_GEMM_K_GROUPS) {
        r->from = output ? c->ends[output - 1] : 0;
        r->to = c->ends[output];
    }
    if (p->mode != MX8_GEMM_M_GROUPS) return 1;
    while (r->group < p->G && m >= c->ends[r->group]) r->group++;
    return r->group < p->G;
}

static inline void compute_reference(struct product *c) {
    const struct problem *p = &c->problem;
    int64_t n_outputs = c->outputs * p->M * p->N;
    c->want = make_host((size_t)n_outputs * sizeof(double), 0);
    c->magnitude = make_host((size_t)n_outputs * sizeof(double), 0);
    for (int64_t line = 0; line < c->outputs * p->M; line++) {
        struct reach r;
        if (!find_reach(c, line / p->M, line % p->M, &r)) continue;
        const double *a = c->a.values + line % p->M * p->K, *b = c->b.values + r.group * p->N * p->K;
        for (int64_t n = 0; n < p->N; n++, b += p->K) {
            double sum = 0, magnitude = 0;
            for (int64_t k = r.from; k < r.to; k++) {
                sum += a[k] * b[k];
                magnitude += fabs(a[k] * b[k]);
            }
            int64_t i = line * p->N + n;
            c->want[i] = sum + c->bias[n] + c->old[i];
            c->magnitude[i] = magnitude;
        }
    }
}

static inline void name_product(struct product *c) {
    static const char *const modes[] = {"dense", "M groups", "K groups"};
    const struct problem *p = &c->problem;
    snprintf(c->name, sizeof c->name,
        "%s M %lld N %lld K %lld G %d, %s group %d tile %d x %s group %d tile %d%s%s, C %s%s%s%s", modes[p->mode],
        (long long)p->M, (long long)p->N, (long long)p->K, p->G, mx8_get_dtype_name(p->a.dtype), p->a.scale_group,
        p->a.tile, mx8_get_dtype_name(p->b.dtype), p->b.scale_group, p->b.tile,
        p->a.transposed || p->b.transposed ? ", transposed" : "", p->a.odd || p->b.odd ? ", odd" : "",
        mx8_get_dtype_name(p->c_dtype), p->accumulate ? ", accumulate" : "", p->bias ? ", bias" : "",
        p->exact ? ", exact" : "");
}

static inline void build_output(struct product *c, uint32_t seed) {
    const struct problem *p = &c->problem;
    int32_t bias_dtype = p->bias == 1 ? MX8_BF16 : MX8_F32;
    c->outputs = p->mode == MX8_GEMM_K_GROUPS ? p->G : 1;
    c->pitch = p->a.odd ? p->N + 1 : round_up(p->N, 16) + 16;
    c->c_bytes = (size_t)(c->outputs * p->M * c->pitch) * size_of(p->c_dtype);
    c->c_start = make_host(c->c_bytes, CUDA_POISON);
    c->old = make_host((size_t)(c->outputs * p->M * p->N) * sizeof(double), 0);
    c->bias = make_host((size_t)p->N * sizeof(double), 0);
    for (int64_t i = 0; p->accumulate && i < c->outputs * p->M * p->N; i++) {
        int64_t at = i / p->N * c->pitch + i % p->N;
        store_number(c->c_start, at, p->c_dtype, (double)draw_number(&seed));
        c->old[i] = load_number(c->c_start, at, p->c_dtype);
    }
    c->job = (struct mx8_gemm_job){.mode = p->mode,
        .M = p->M,
        .N = p->N,
        .K = p->K,
        .G = p->G,
        .a = c->a.matrix,
        .b = c->b.matrix,
        .c_dtype = p->c_dtype,
        .c_ls = c->pitch,
        .c_gs = p->M * c->pitch,
        .accumulate = p->accumulate,
        .bias_dtype = bias_dtype,
        .padding = p->padding,
        .exact = p->exact};
    c->job.c = copy_to_device(c->c_start, c->c_bytes);
    if (p->G > 0) c->job.offsets = copy_to_device(c->ends, (size_t)p->G * sizeof(int32_t));
    if (!p->bias) return;
    void *bias = make_host((size_t)p->N * size_of(bias_dtype), 0);
    for (int64_t n = 0; n < p->N; n++) {
        store_number(bias, n, bias_dtype, (double)draw_number(&seed));
        c->bias[n] = load_number(bias, n, bias_dtype);
    }
    c->job.bias = copy_to_device(bias, (size_t)p->N * size_of(bias_dtype));
    free(bias);
}

/* Everything on the device, nothing run. Rewinds the arena. */
static inline void build_product(struct product *c, const struct problem *p) {
    memset(c, 0, sizeof *c);
    c->problem = *p;
    int64_t last = 0;
    for (int32_t g = 0; g < p->G; g++) {
        last += p->mode == MX8_GEMM_K_GROUPS ? round_up(p->sizes[g], p->padding) : p->sizes[g];
        c->ends[g] = (int32_t)last;
    }
    if (p->mode == MX8_GEMM_K_GROUPS) c->problem.K = last + p->tail;
    if (p->mode == MX8_GEMM_M_GROUPS) c->problem.M = last + p->tail;
    p = &c->problem;
    int64_t used_rows = p->mode == MX8_GEMM_M_GROUPS ? last : p->M, used_k = p->mode == MX8_GEMM_K_GROUPS ? last : p->K;
    rewind_buffers();
    name_product(c);
    build_operand(p, &p->a, &c->a, 1, p->M, p->K, used_rows, used_k, 7);
    build_operand(p, &p->b, &c->b, p->mode == MX8_GEMM_M_GROUPS ? p->G : 1, p->N, p->K, p->N, used_k, 1234);
    build_output(c, 99);
}

static inline void drop_product(struct product *c) {
    void *all[] = {c->a.codes, c->a.scales, c->a.values, c->b.codes, c->b.scales, c->b.values, c->bias, c->old, c->want,
        c->magnitude, c->c_start};
    for (int i = 0; i < COUNT(all); i++) free(all[i]);
}

/* Whether the kernel may multiply codes in the FP8 tensor core. */
static inline int is_fast(const struct product *c) {
    const struct problem *p = &c->problem;
    return cuda.info.capability == 90 && p->a.dtype == MX8_F8_E4M3 && p->b.dtype == MX8_F8_E4M3 &&
           p->a.scale_group == 256 && p->b.scale_group == 256 && !p->exact;
}

/* What the result may differ by. In fp32 each of K products and the running sum are cut once, to 24 bits of the largest.
 * The FP8 core cuts 33 terms a step at 2^-13 of the largest; what is lost of random data was at most 1.4 * 2^-12 of the
 * sum of magnitudes on an H200 (2026-12-01), of which twice is allowed. Bits are checked by the emulator's test. */
static inline double bound_error(const struct product *c, int64_t i) {
    double magnitude = c->magnitude[i], want = fabs(c->want[i]), n = (double)c->problem.K + 32;
    double bound = ldexp(n * magnitude, -23) + ldexp(want + fabs(c->old[i]) + fabs(c->bias[i % c->problem.N]), -22);
    if (is_fast(c)) bound += ldexp(2.8 * magnitude, -12);
    if (c->problem.c_dtype == MX8_BF16) bound += ldexp(want + bound, -8) + ldexp(1.0, -133);
    return bound;
}

/* Every element within its bound, rows behind the groups zero (they mean nothing when C is added to), gaps between
 * lines untouched. */
static inline void check_product(struct product *c, const void *got) {
    const struct problem *p = &c->problem;
    size_t element = size_of(p->c_dtype);
    if (!c->want) compute_reference(c);
    for (int64_t line = 0; line < c->outputs * p->M; line++) {
        struct reach r;
        int inside = find_reach(c, line / p->M, line % p->M, &r);
        for (int64_t n = 0; n < p->N && (inside || !p->accumulate); n++) {
            int64_t i = line * p->N + n;
            double value = load_number(got, line * c->pitch + n, p->c_dtype), bound = inside ? bound_error(c, i) : 0.0;
            int right = isnan(c->want[i]) ? isnan(value) : fabs(value - c->want[i]) <= bound;
            if (!right)
                fail_msg("%s: output %lld row %lld column %lld is %.9g, expected %.9g within %.3g", c->name,
                    (long long)(line / p->M), (long long)(line % p->M), (long long)n, value, c->want[i], bound);
        }
        size_t from = (size_t)(line * c->pitch + p->N) * element, to = (size_t)((line + 1) * c->pitch) * element;
        expect_same_bytes(c->name, "between lines", (const uint8_t *)got + from, c->c_start + from, to - from);
    }
}

static inline struct fp8_value *split_codes(const struct operand *o) {
    int64_t n = o->groups * o->lines * o->length;
    struct fp8_value *values = make_host((size_t)n * sizeof *values, 0);
    for (int64_t i = 0; i < n; i++) values[i] = fp8_split(o->codes[i]);
    return values;
}

/* The bits that the emulated tensor core gives, for every `step`-th element. */
static inline void check_emulated(const struct product *c, const void *got, int64_t step) {
    const struct problem *p = &c->problem;
    struct fp8_value *a = split_codes(&c->a), *b = split_codes(&c->b);
    for (int64_t i = 0; i < c->outputs * p->M * p->N; i += step) {
        int64_t output = i / (p->M * p->N), m = i / p->N % p->M, n = i % p->N, at = i / p->N * c->pitch + n;
        struct reach r;
        if (!find_reach(c, output, m, &r)) continue;
        int64_t row = r.group * p->N + n;
        float want = fp8_multiply(a + m * p->K + r.from, b + row * p->K + r.from, r.to - r.from, FP8_PROMOTE,
            c->a.scales + m * c->a.blocks + r.from / MX8_BLOCK, c->b.scales + row * c->b.blocks + r.from / MX8_BLOCK);
        if (p->bias) want += (float)c->bias[n]; /* in fp32, before the output's rounding */
        double value = load_number(got, at, p->c_dtype),
               rounded = p->c_dtype == MX8_F32 ? (double)want : (double)mx8_decode_bf16(mx8_encode_bf16(want));
        if (value != rounded)
            fail_msg("%s: output %lld row %lld column %lld is %.9g, the emulated tensor core gives %.9g", c->name,
                (long long)output, (long long)m, (long long)n, value, rounded);
    }
    free(a);
    free(b);
}

static inline void run_problem(const struct problem *p) {
    if (is_left_out()) return;
    struct product c;
    build_product(&c, p);
    assert_ok(cuda.exec.k->gemm(&cuda.exec, &c.job));
    void *got = fetch_buffer(c.job.c, c.c_bytes, c.name);
    check_product(&c, got);
    free(got);
    drop_product(&c);
}

#endif
