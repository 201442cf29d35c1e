/* What the tests of the model kernels share: values in either dtype, references in double, and a replay that runs one
 * job with 1, 2, 3 and 7 threads and insists on the same bits. Test bodies are called once per instruction set that
 * this machine has. */
#ifndef MX8_TESTS_MODEL_TESTING_H
#define MX8_TESTS_MODEL_TESTING_H

#include <math.h>
#include "guard.h"
#include "base/memory.h"
#include "base/rng.h"
#include "kernels/kernels.h"

static inline void for_every_isa(void (*body)(const struct mx8_kernels *k)) {
    static const char *const names[] = {"scalar", "avx2", "avx512"};
    int ran = 0;
    for (int i = 0; i < 3; i++) {
        const struct mx8_kernels *k = NULL;
        char reason[160];
        if (mx8i_find_cpu_kernels(names[i], &k, reason, sizeof reason) != MX8_OK) continue;
        body(k);
        ran++;
    }
    assert_true(ran > 0);
}

static const int32_t both_dtypes[] = {MX8_F32, MX8_BF16};

static inline double value_at(const void *data, int32_t dtype, int64_t i) {
    return dtype == MX8_F32 ? (double)((const float *)data)[i] : (double)mx8_decode_bf16(((const uint16_t *)data)[i]);
}

static inline void set_value(void *data, int32_t dtype, int64_t i, double value) {
    if (dtype == MX8_F32) ((float *)data)[i] = (float)value;
    else ((uint16_t *)data)[i] = mx8_encode_bf16((float)value);
}

/* n elements without room behind them: the first read past the end is seen (guard.h). `free` gives them back. */
static struct { void *data; size_t size; } guarded[256];

static inline void *make_zeros(int32_t dtype, int64_t n) {
    size_t size = (n > 0 ? (size_t)n : 0) * mx8_get_dtype_size(dtype), i = 0;
    while (i < 256 && guarded[i].data) i++;
    assert_true(i < 256);
    guarded[i].size = size;
    guarded[i].data = guard_allocate(size, 1);
    memset(guarded[i].data, 0, size);
    return guarded[i].data;
}

static inline void free_guarded(void *data) {
    for (size_t i = 0; data && i < 256; i++) {
        if (guarded[i].data != data) continue;
        guard_release(data, guarded[i].size, 1);
        guarded[i].data = NULL;
        return;
    }
    free(data);
}
#define free(data) free_guarded(data)

static inline void *make_normal(int32_t dtype, int64_t n, uint64_t stream, double scale) {
    void *data = make_zeros(dtype, n);
    for (int64_t i = 0; i < n; i++) {
        set_value(data, dtype, i, scale * mx8i_random_normal(17, stream, (uint64_t)i));
    }
    return data;
}

static inline double *make_reference(int64_t n) { return make_zeros(MX8_F64, n); }

/* |got - want| <= relative * |want| + absolute; a NaN matches a NaN. One more half bf16 unit when got is bf16. */
static inline void check_values(const char *what, const void *got, int32_t dtype, const double *want, int64_t n,
    double relative, double absolute) {
    if (dtype == MX8_BF16) relative += 1.0 / 256;
    for (int64_t i = 0; i < n; i++) {
        double g = value_at(got, dtype, i), w = want[i];
        if (isnan(w) ? isnan(g) : g == w || fabs(g - w) <= relative * fabs(w) + absolute) continue;
        fail_msg("%s (%s): element %lld is %.9g, expected %.9g", what, mx8_get_dtype_name(dtype), (long long)i, g, w);
    }
}

/* A replay: while (next_replay(&r)) assert_ok(k->kernel(&r.exec, &job)); Outputs start every run as they stood at
 * begin_replay, so in-place and accumulating kernels replay too. Afterwards they hold the result. */
enum { MAX_SPANS = 8 };
struct span { void *data; size_t bytes; };
struct replay {
    struct mx8_exec exec;
    struct span out[MAX_SPANS];
    void *before[MAX_SPANS], *first[MAX_SPANS];
    int n, run;
};

static const int32_t replay_threads[] = {1, 2, 3, 7};

static inline void begin_replay(struct replay *r, const struct mx8_kernels *k, const struct span *out, int n) {
    memset(r, 0, sizeof *r);
    assert_true(n <= MAX_SPANS);
    r->n = n;
    for (int i = 0; i < n; i++) {
        r->out[i] = out[i];
        r->before[i] = malloc(out[i].bytes + 1);
        r->first[i] = malloc(out[i].bytes + 1);
        assert_true(r->before[i] && r->first[i]);
        memcpy(r->before[i], out[i].data, out[i].bytes);
    }
    r->exec.k = k;
    r->exec.ordinal = -1;
    r->exec.scratch_bytes = k->scratch_size(7);
    r->exec.scratch = mx8i_allocate_aligned(r->exec.scratch_bytes + 1, 4096, "scratch");
    assert_non_null(r->exec.scratch);
}

static inline int next_replay(struct replay *r) {
    int last = (int)(sizeof replay_threads / sizeof *replay_threads);
    for (int i = 0; i < r->n; i++) {
        if (r->run == 1) memcpy(r->first[i], r->out[i].data, r->out[i].bytes);
        if (r->run > 1 && memcmp(r->first[i], r->out[i].data, r->out[i].bytes)) {
            fail_msg("output %d differs between 1 and %d threads", i, (int)replay_threads[r->run - 1]);
        }
        if (r->run < last) memcpy(r->out[i].data, r->before[i], r->out[i].bytes);
    }
    if (r->run == last) {
        for (int i = 0; i < r->n; i++) {
            free(r->before[i]);
            free(r->first[i]);
        }
        mx8i_release(r->exec.scratch);
        return 0;
    }
    r->exec.threads = replay_threads[r->run++];
    return 1;
}

#endif
