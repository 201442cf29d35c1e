/* One job on two backends: every operand is a pair, host memory for the CPU's kernels and a guarded device buffer for
 * CUDA's. RUN runs the CPU's kernel once and CUDA's twice, each from what the pairs held before, and insists that the
 * two device runs gave the same bits. Then CLOSE compares a pair. Afterwards both sides of a comparison use the CPU's
 * result, so that the next kernel of a test starts from equal inputs. */
#ifndef MX8_PAIRS_H
#define MX8_PAIRS_H

#include <math.h>
#include "cuda_test.h"
#include "base/memory.h"
#include "base/rng.h"

enum { CPU, CUDA, SIDES, MAX_PAIRS = 32 };

struct pair {
    void *at[SIDES];    /* what jobs point to */
    void *before, *got; /* host copies: what both sides start from; the device's result */
    int32_t dtype;
    int64_t n;
    size_t bytes[SIDES];
    int is_space; /* workspace: poisoned before each run, never compared */
};

static struct pair pairs[MAX_PAIRS];
static int n_pairs;
static struct mx8_exec cpu;

static inline int open_both(void **state) {
    char reason[160];
    if (mx8i_find_cpu_kernels(NULL, &cpu.k, reason, sizeof reason) != MX8_OK) return -1;
    cpu.threads = 2;
    cpu.ordinal = -1;
    cpu.scratch_bytes = cpu.k->scratch_size(cpu.threads);
    cpu.scratch = mx8i_allocate_aligned(cpu.scratch_bytes + 1, 4096, "scratch");
    return cpu.scratch ? open_cuda(state) : -1;
}

static inline int close_both(void **state) {
    mx8i_release(cpu.scratch);
    return close_cuda(state);
}

/* Gives back the pairs of the case before. */
static inline void begin_case(void) {
    for (int i = 0; i < n_pairs; i++) {
        free(pairs[i].at[CPU]);
        free(pairs[i].before);
        free(pairs[i].got);
    }
    n_pairs = 0;
    rewind_buffers();
}

static inline struct pair *make_pair_of_bytes(int32_t dtype, int64_t n, size_t cpu_bytes, size_t cuda_bytes) {
    assert_true(n_pairs < MAX_PAIRS);
    struct pair *p = &pairs[n_pairs++];
    *p = (struct pair){.dtype = dtype, .n = n, .bytes = {cpu_bytes, cuda_bytes}};
    p->at[CPU] = aligned_alloc(64, (cpu_bytes + 63) / 64 * 64 + 64);
    assert_non_null(p->at[CPU]);
    memset(p->at[CPU], CUDA_POISON, cpu_bytes);
    p->before = make_host(cpu_bytes, CUDA_POISON);
    p->at[CUDA] = make_buffer(cuda_bytes, CUDA_POISON);
    return p;
}

/* n poisoned elements: an output. */
static inline struct pair *make_output(int32_t dtype, int64_t n) {
    size_t bytes = (size_t)n * mx8_get_dtype_size(dtype);
    return make_pair_of_bytes(dtype, n, bytes, bytes);
}

static inline struct pair *make_space(size_t cpu_bytes, size_t cuda_bytes) {
    struct pair *p = make_pair_of_bytes(MX8_U8, 0, cpu_bytes, cuda_bytes);
    p->is_space = 1;
    return p;
}

static inline void set_value(struct pair *p, int64_t i, double value) {
    if (p->dtype == MX8_F32)
        ((float *)p->at[CPU])[i] = (float)value;
    else if (p->dtype == MX8_F64)
        ((double *)p->at[CPU])[i] = value;
    else if (p->dtype == MX8_I32)
        ((int32_t *)p->at[CPU])[i] = (int32_t)value;
    else
        ((uint16_t *)p->at[CPU])[i] = mx8_encode_bf16((float)value);
}

static inline double get_value(const struct pair *p, const void *data, int64_t i) {
    if (p->dtype == MX8_F32) return (double)((const float *)data)[i];
    if (p->dtype == MX8_F64) return ((const double *)data)[i];
    if (p->dtype == MX8_I32) return ((const int32_t *)data)[i];
    return (double)mx8_decode_bf16(((const uint16_t *)data)[i]);
}

/* n normal numbers times scale: an input, or an output that is added to. */
static inline struct pair *make_normal(int32_t dtype, int64_t n, double scale) {
    struct pair *p = make_output(dtype, n);
    uint64_t stream = (uint64_t)n_pairs;
    for (int64_t i = 0; i < n; i++) set_value(p, i, scale * mx8i_random_normal(11, stream, (uint64_t)i));
    return p;
}

/* n integers in [low, high). */
static inline struct pair *make_integers(int64_t n, int32_t low, int32_t high) {
    struct pair *p = make_output(MX8_I32, n);
    uint32_t state = (uint32_t)n + 5;
    for (int64_t i = 0; i < n; i++) set_value(p, i, low + (int32_t)(draw(&state) % (uint32_t)(high - low)));
    return p;
}

/* NULL stands for an operand that the job does not have. */
static inline void *side_of(const struct pair *p, int side) {
    return p ? p->at[side] : NULL;
}

static inline void begin_cuda_run(void) {
    for (int i = 0; i < n_pairs; i++) {
        struct pair *p = &pairs[i];
        if (p->is_space)
            assert_ok(cuda.exec.k->fill(&cuda.exec, p->at[CUDA], CUDA_POISON, p->bytes[CUDA]));
        else if (p->n)
            assert_ok(cuda.exec.k->upload(&cuda.exec, p->at[CUDA], p->before, p->bytes[CUDA]));
    }
    assert_ok(cuda.exec.k->fill(&cuda.exec, cuda.exec.scratch, CUDA_POISON, cuda.exec.scratch_bytes));
}

static inline void end_cuda_run(const char *kernel, int run) {
    for (int i = 0; i < n_pairs; i++) {
        struct pair *p = &pairs[i];
        void *got = fetch_buffer(p->at[CUDA], p->bytes[CUDA], kernel);
        if (run > 0 && !p->is_space) expect_same_bytes(kernel, "second run", got, p->got, p->bytes[CUDA]);
        free(p->got);
        p->got = got;
    }
}

static inline void begin_cpu_run(void) {
    for (int i = 0; i < n_pairs; i++) memcpy(pairs[i].before, pairs[i].at[CPU], pairs[i].bytes[CPU]);
}

/* Runs a kernel of the table; `arguments` name `side` and begin with a comma. */
#define RUN(kernel, ...)                                                                                               \
    do {                                                                                                               \
        begin_cpu_run();                                                                                               \
        for (int side = CPU, run_ = 0; run_ < 3; side = CUDA, run_++) {                                                \
            const struct mx8_exec *exec_ = side == CPU ? &cpu : &cuda.exec;                                            \
            if (side == CUDA) begin_cuda_run();                                                                        \
            assert_ok(exec_->k->kernel(exec_, __VA_ARGS__));                                                           \
            if (side == CUDA) end_cuda_run(#kernel, run_ - 1);                                                         \
        }                                                                                                              \
    } while (0)

/* |cuda - cpu| <= relative * |cpu| + absolute, and one bf16 unit more for bf16; a NaN, poison included, matches a NaN.
 */
static inline void expect_close(
    const char *what, const char *name, const struct pair *p, double relative, double absolute, int units) {
    if (!p) return;
    if (p->dtype == MX8_BF16 && units) relative += 1.0 / 128;
    for (int64_t i = 0; i < p->n; i++) {
        double want = get_value(p, p->at[CPU], i), got = get_value(p, p->got, i);
        if (isnan(want) ? isnan(got) : got == want || fabs(got - want) <= relative * fabs(want) + absolute) continue;
        fail_msg("%s: %s (%s): element %lld of %lld is %.9g, the CPU has %.9g", what, name,
            mx8_get_dtype_name(p->dtype), (long long)i, (long long)p->n, got, want);
    }
}

#define CLOSE(what, p, relative, absolute) expect_close(what, #p, p, relative, absolute, 1)
#define EXACT(what, p)                     expect_close(what, #p, p, 0, 0, 0)

/* Root mean square of the difference over that of the CPU's values: an error of structure shows here, whatever the
 * largest rounding error is. Poison is left out. */
static inline void expect_small_error(const char *what, const char *name, const struct pair *p, double limit) {
    double error = 0, size = 0;
    for (int64_t i = 0; i < p->n; i++) {
        double want = get_value(p, p->at[CPU], i), got = get_value(p, p->got, i);
        if (isnan(want)) continue;
        error += (got - want) * (got - want);
        size += want * want;
    }
    if (!(sqrt(error) <= limit * sqrt(size) + 1e-12))
        fail_msg("%s: %s: relative error %.4g, expected at most %.4g", what, name, sqrt(error / size), limit);
}
#define SMALL_ERROR(what, p, limit) expect_small_error(what, #p, p, limit)

#endif
