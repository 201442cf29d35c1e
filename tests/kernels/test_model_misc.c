/* SwiGLU, embedding, cross entropy, AdamW, elementwise kernels and reductions against plain references. */
#include "model_testing.h"
#include "formats/stochastic.h"

static double sigmoid(double x) { return 1 / (1 + exp(-x)); }

/* ---- swiglu ---- */

static void check_swiglu(const struct mx8_kernels *k, int64_t M, int64_t F, int32_t dtype) {
    int64_t ls = 2 * F + 3, n = M * ls; /* gate and up side by side, as a fused product leaves them */
    size_t e = mx8_get_dtype_size(dtype), bytes = (size_t)n * e;
    void *gate_up = make_normal(dtype, n, 1, 2.0), *dh = make_normal(dtype, M * F, 2, 1.0);
    void *h = make_zeros(dtype, M * F);
    if (n > 0) set_value(gate_up, dtype, 0, -120); /* e^120 overflows: silu must be a zero, not NaN */
    double *want = make_reference(M * F), *want_d = make_reference(n);
    for (int64_t i = 0; i < n; i++) want_d[i] = value_at(gate_up, dtype, i);
    for (int64_t i = 0; i < M * F; i++) {
        int64_t at = i / F * ls + i % F;
        double g = value_at(gate_up, dtype, at), u = value_at(gate_up, dtype, at + F), d = value_at(dh, dtype, i);
        want[i] = g * sigmoid(g) * u;
        want_d[at] = d * u * sigmoid(g) * (1 + g * (1 - sigmoid(g)));
        want_d[at + F] = d * g * sigmoid(g);
    }
    void *up = (char *)gate_up + (size_t)F * e;
    struct mx8_swiglu_job job = {.M = M, .F = F, .dtype = dtype, .gate = gate_up, .up = up, .h = h, .dh = dh,
        .dgate = gate_up, .dup = up, .gate_ls = ls, .up_ls = ls, .h_ls = F, .dh_ls = F, .dgate_ls = ls, .dup_ls = ls};
    struct replay r;
    begin_replay(&r, k, (struct span[]){{h, (size_t)(M * F) * e}}, 1);
    while (next_replay(&r)) assert_ok(k->swiglu(&r.exec, &job));
    check_values("h", h, dtype, want, M * F, 1e-6, 1e-37);
    begin_replay(&r, k, (struct span[]){{gate_up, bytes}}, 1);
    while (next_replay(&r)) assert_ok(k->swiglu_backward(&r.exec, &job));
    check_values("dgate, dup", gate_up, dtype, want_d, n, 4e-6, 1e-6);
    void *owned[] = {gate_up, dh, h, want, want_d};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++) free(owned[i]);
}

static void swiglu(const struct mx8_kernels *k) {
    static const int64_t sizes[][2] = {{0, 8}, {1, 1}, {33, 65}, {3, 128}, {300, 72}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        for (int a = 0; a < 2; a++) check_swiglu(k, sizes[i][0], sizes[i][1], both_dtypes[a]);
    }
}

/* ---- embedding ---- */

static void check_embedding(const struct mx8_kernels *k, int64_t T, int64_t V, int64_t D, int32_t dtype,
    int32_t w_dtype) {
    void *w = make_normal(w_dtype, V * D, 1, 1.0), *y = make_normal(dtype, T * D, 2, 1.0);
    void *dy = make_normal(dtype, T * D, 3, 1.0);
    float *dw = make_normal(MX8_F32, V * D, 4, 1.0), *want_dw = make_zeros(MX8_F32, V * D);
    int32_t *tokens = make_zeros(MX8_I32, T);
    double *want = make_reference(T * D);
    memcpy(want_dw, dw, (size_t)(V * D) * 4);
    for (int64_t t = 0; t < T; t++) {
        tokens[t] = (int32_t)(t % 11 == 7 ? -1 : t % 13 == 9 ? V : t * t * 7 % V);
        if (tokens[t] < 0 || tokens[t] >= V) continue;
        for (int64_t i = 0; i < D; i++) {
            want[t * D + i] = value_at(w, w_dtype, tokens[t] * D + i);
            want_dw[tokens[t] * D + i] += (float)value_at(dy, dtype, t * D + i); /* the order is part of the contract */
        }
    }
    struct mx8_embedding_job job = {.T = T, .V = V, .D = D, .tokens = tokens, .w = w, .w_dtype = w_dtype, .y = y,
        .dtype = dtype, .dy = dy, .dw = dw};
    size_t workspace = k->embedding_workspace(&job);
    job.workspace = mx8i_allocate_aligned(workspace + 1, 64, "workspace");
    struct replay r;
    begin_replay(&r, k, (struct span[]){{y, (size_t)(T * D) * mx8_get_dtype_size(dtype)}}, 1);
    while (next_replay(&r)) assert_ok(k->embedding(&r.exec, &job));
    check_values("y", y, dtype, want, T * D, 0, 0);
    begin_replay(&r, k, (struct span[]){{dw, (size_t)(V * D) * 4}}, 1);
    while (next_replay(&r)) assert_ok(k->embedding_backward(&r.exec, &job));
    assert_memory_equal(dw, want_dw, (size_t)(V * D) * 4);
    mx8i_release(job.workspace);
    void *owned[] = {w, y, dy, dw, want_dw, tokens, want};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++) free(owned[i]);
}

static void embedding(const struct mx8_kernels *k) {
    static const int64_t sizes[][3] = {{0, 5, 8}, {1, 1, 1}, {33, 7, 65}, {400, 50, 96}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        for (int a = 0; a < 4; a++) {
            check_embedding(k, sizes[i][0], sizes[i][1], sizes[i][2], both_dtypes[a / 2], both_dtypes[a % 2]);
        }
    }
}

/* ---- clamp ---- */

static void check_clamp(const struct mx8_kernels *k, int64_t n, int32_t dtype) {
    void *x = make_normal(dtype, n + 3, 1, 2.0), *y = make_zeros(dtype, n), *dy = make_normal(dtype, n, 2, 1.0);
    double *want = make_reference(n), *want_d = make_reference(n);
    for (int64_t i = 0; i < n; i++) {
        if (i % 7 == 3) set_value(x, dtype, i, i % 2 ? 1.5 : -1.5); /* on the limit: passes */
        double v = value_at(x, dtype, i);
        want[i] = v > 1.5 ? 1.5 : v < -1.5 ? -1.5 : v;
        want_d[i] = v > 1.5 || v < -1.5 ? 0 : value_at(dy, dtype, i);
    }
    struct mx8_clamp_job job = {.n = n, .dtype = dtype, .limit = 1.5f, .x = x, .y = y, .dy = dy, .dx = dy};
    struct replay r;
    size_t bytes = (size_t)n * mx8_get_dtype_size(dtype);
    begin_replay(&r, k, (struct span[]){{y, bytes}}, 1);
    while (next_replay(&r)) assert_ok(k->clamp(&r.exec, &job));
    check_values("y", y, dtype, want, n, 0, 0);
    begin_replay(&r, k, (struct span[]){{dy, bytes}}, 1); /* in place */
    while (next_replay(&r)) assert_ok(k->clamp_backward(&r.exec, &job));
    check_values("dx", dy, dtype, want_d, n, 0, 0);
    void *owned[] = {x, y, dy, want, want_d};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++) free(owned[i]);
}

static void clamp(const struct mx8_kernels *k) {
    static const int64_t sizes[] = {0, 1, 33, 4097, 40000};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        for (int a = 0; a < 2; a++) check_clamp(k, sizes[i], both_dtypes[a]);
    }
}

/* ---- cross entropy ---- */

static void check_loss(const struct mx8_kernels *k, int64_t T, int64_t V, int32_t dtype, int grad) {
    int64_t ls = V + 3, n = T * ls;
    void *logits = make_normal(dtype, n, 1, 4.0);
    float *losses = make_normal(MX8_F32, T, 2, 1.0);
    int32_t *targets = make_zeros(MX8_I32, T);
    double *want = make_reference(n), *want_loss = make_reference(T);
    for (int64_t i = 0; i < n; i++) want[i] = value_at(logits, dtype, i);
    for (int64_t t = 0; t < T; t++) {
        double *l = want + t * ls, max = -INFINITY, sum = 0;
        targets[t] = (int32_t)(t % 5 == 3 ? -1 - t : t * 31 % V);
        for (int64_t i = 0; i < V; i++) max = l[i] > max ? l[i] : max;
        for (int64_t i = 0; i < V; i++) sum += exp(l[i] - max);
        if (targets[t] >= 0) want_loss[t] = log(sum) + max - l[targets[t]];
        for (int64_t i = 0; grad && i < V; i++) {
            l[i] = targets[t] < 0 ? 0 : (exp(l[i] - max) / sum - (i == targets[t])) * (double)0.01f;
        }
    }
    struct mx8_cross_entropy_job job = {.T = T, .V = V, .ls = ls, .dtype = dtype, .grad = grad, .scale = 0.01f,
        .logits = logits, .targets = targets, .losses = losses};
    struct replay r;
    begin_replay(&r, k, (struct span[]){{logits, (size_t)n * mx8_get_dtype_size(dtype)}, {losses, (size_t)T * 4}}, 2);
    while (next_replay(&r)) assert_ok(k->cross_entropy(&r.exec, &job));
    check_values("losses", losses, MX8_F32, want_loss, T, 2e-6, 1e-6);
    check_values("dlogits", logits, dtype, want, n, 4e-6, 1e-12);
    void *owned[] = {logits, losses, targets, want, want_loss};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++) free(owned[i]);
}

static void cross_entropy(const struct mx8_kernels *k) {
    static const int64_t sizes[][2] = {{0, 9}, {1, 1}, {33, 65}, {7, 5000}, {300, 100}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        for (int a = 0; a < 4; a++) check_loss(k, sizes[i][0], sizes[i][1], both_dtypes[a / 2], a % 2);
    }
}

/* ---- AdamW ---- */

/* Plain floats in PyTorch's order: the kernel must give these bits. p, m, v: what was there before, in f32; m and v are
 * left as they are stored. */
static void adamw_reference(const struct mx8_adamw_job *j, float factor, float *p, float *m, float *v) {
    for (int64_t i = 0; i < j->n; i++) {
        float g = j->grad[i] * factor;
        m[i] = j->beta1 * m[i] + (1.0f - j->beta1) * g;
        v[i] = j->beta2 * v[i] + (1.0f - j->beta2) * g * g;
        p[i] *= 1.0f - j->lr * j->weight_decay;
        p[i] -= j->lr / j->bias1 * m[i] / (sqrtf(v[i]) / sqrtf(j->bias2) + j->eps);
        if (j->moment_dtype != MX8_BF16) continue;
        uint32_t bits, random = mx8i_make_rounding_bits(j->rounding, j->first + (uint64_t)i);
        memcpy(&bits, &m[i], sizeof bits);
        m[i] = mx8_decode_bf16(mx8i_round_bf16_randomly(bits, random & 0xFFFF));
        memcpy(&bits, &v[i], sizeof bits);
        v[i] = mx8_decode_bf16(mx8i_round_bf16_randomly(bits, random >> 16));
    }
}

static void check_adamw(
    const struct mx8_kernels *k, int64_t n, int32_t copy_dtype, int32_t moment_dtype, int with_factor, int with_copy) {
    size_t bytes = (size_t)n * 4, moment_bytes = (size_t)n * mx8_get_dtype_size(moment_dtype);
    float factor = 0.37f, *p = make_normal(MX8_F32, n, 1, 1.0), *grad = make_normal(MX8_F32, n, 4, 1.0);
    void *m = make_normal(moment_dtype, n, 2, 0.1), *v = make_normal(moment_dtype, n, 3, 0.1);
    float *want_p = make_zeros(MX8_F32, n), *want_m = make_zeros(MX8_F32, n), *want_v = make_zeros(MX8_F32, n);
    void *copy = make_zeros(copy_dtype, n);
    if (n > 40) grad[40] = NAN;
    for (int64_t i = 0; i < n; i++) {
        set_value(v, moment_dtype, i, fabs(value_at(v, moment_dtype, i)));
        want_p[i] = p[i];
        want_m[i] = (float)value_at(m, moment_dtype, i);
        want_v[i] = (float)value_at(v, moment_dtype, i);
    }
    /* `first`: the low word of the elements' numbers wraps inside */
    struct mx8_adamw_job job = {.n = n, .lr = 3e-3f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .weight_decay = 0.1f,
        .bias1 = 1 - 0.9f * 0.9f, .bias2 = 1 - 0.95f * 0.95f, .grad_scale = with_factor ? &factor : NULL, .master = p,
        .m = m, .v = v, .grad = grad, .copy = with_copy ? copy : NULL, .copy_dtype = copy_dtype,
        .moment_dtype = moment_dtype, .rounding = 0xDEADBEEF, .first = ((uint64_t)1 << 32) - 21};
    adamw_reference(&job, with_factor ? factor : 1.0f, want_p, want_m, want_v);
    struct replay r;
    size_t copy_bytes = (size_t)n * mx8_get_dtype_size(copy_dtype);
    begin_replay(&r, k, (struct span[]){{p, bytes}, {m, moment_bytes}, {v, moment_bytes}, {copy, copy_bytes}}, 4);
    const struct mx8_adamw_state state = {job.lr, job.bias1, job.bias2, job.rounding};
    if (n % 2) { /* the same from memory */
        job.state = &state;
        job.lr = job.bias1 = job.bias2 = NAN;
        job.rounding = 0;
    }
    while (next_replay(&r)) assert_ok(k->adamw(&r.exec, &job));
    for (int64_t i = 0; i < n; i++) {
        const double got[] = {(double)p[i], value_at(m, moment_dtype, i), value_at(v, moment_dtype, i)};
        const float want[] = {want_p[i], want_m[i], want_v[i]};
        for (int a = 0; a < 3; a++)
            if (i == 40 ? !isnan(got[a]) : got[a] != (double)want[a])
                fail_msg("adamw, n %d: array %d, element %d is %.9g, expected %.9g", (int)n, a, (int)i, got[a],
                    (double)want[a]);
        if (i == 40) continue;
        float rounded = copy_dtype == MX8_BF16 ? mx8_decode_bf16(mx8_encode_bf16(p[i])) : p[i];
        assert_true(value_at(copy, copy_dtype, i) == (with_copy ? (double)rounded : 0));
    }
    void *owned[] = {p, m, v, grad, want_p, want_m, want_v, copy};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++) free(owned[i]);
}

static void adamw(const struct mx8_kernels *k) {
    static const int64_t sizes[] = {0, 1, 33, 4097, 50001};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        for (int a = 0; a < 16; a++)
            check_adamw(k, sizes[i], both_dtypes[a / 8], both_dtypes[a / 4 % 2], a / 2 % 2, a % 2);
    }
}

/* ---- elementwise ---- */

static void check_elementwise(const struct mx8_kernels *k, int64_t n, int32_t dtype) {
    int32_t other = dtype == MX8_F32 ? MX8_BF16 : MX8_F32;
    size_t bytes = (size_t)n * mx8_get_dtype_size(dtype), other_bytes = (size_t)n * mx8_get_dtype_size(other);
    void *a = make_normal(dtype, n, 1, 1.0), *b = make_normal(dtype, n, 2, 1.0), *y = make_zeros(other, n);
    void *same = make_zeros(dtype, n), *exact = make_zeros(other, n);
    for (int64_t i = 0; i < n; i++) set_value(exact, other, i, value_at(a, dtype, i));
    struct replay r;
    begin_replay(&r, k, (struct span[]){{y, other_bytes}, {same, bytes}}, 2);
    while (next_replay(&r)) {
        assert_ok(k->cast(&r.exec, y, other, a, dtype, n));
        assert_ok(k->cast(&r.exec, same, dtype, a, dtype, n));
    }
    assert_memory_equal(y, exact, other_bytes);
    assert_memory_equal(same, a, bytes);
    for (int64_t i = 0; i < n; i++) { /* the sum of two floats, rounded to dtype */
        set_value(same, dtype, i, (double)((float)value_at(a, dtype, i) + (float)value_at(b, dtype, i)));
    }
    begin_replay(&r, k, (struct span[]){{a, bytes}}, 1);
    while (next_replay(&r)) assert_ok(k->add(&r.exec, a, a, b, dtype, n));
    assert_memory_equal(a, same, bytes);
    void *owned[] = {a, b, y, same, exact};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++) free(owned[i]);
}

static void check_scale(const struct mx8_kernels *k, int64_t n, int by_pointer) {
    float factor = 1.7f, *y = make_normal(MX8_F32, n, 1, 1.0), *want = make_zeros(MX8_F32, n);
    for (int64_t i = 0; i < n; i++) want[i] = y[i] * (by_pointer ? 1.7f : 0.3f);
    struct replay r;
    begin_replay(&r, k, (struct span[]){{y, (size_t)n * 4}}, 1);
    while (next_replay(&r)) assert_ok(k->scale(&r.exec, y, by_pointer ? &factor : NULL, 0.3f, n));
    assert_memory_equal(y, want, (size_t)n * 4);
    free(y);
    free(want);
}

static void elementwise(const struct mx8_kernels *k) {
    static const int64_t sizes[] = {0, 1, 33, 4096, 20001};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        for (int a = 0; a < 2; a++) {
            check_elementwise(k, sizes[i], both_dtypes[a]);
            check_scale(k, sizes[i], a);
        }
    }
}

/* ---- reductions ---- */

static void check_sums(const struct mx8_kernels *k, int64_t n) {
    float *a = make_normal(MX8_F32, n, 1, 1e20); /* squares overflow f32: the sum must be double from the start */
    double want = 3, want_squares = 5, size = 0, sums[2] = {3, 5};
    for (int64_t i = 0; i < n; i++) {
        want += (double)a[i];
        size += fabs((double)a[i]);
        want_squares += (double)a[i] * (double)a[i];
    }
    struct replay r;
    begin_replay(&r, k, (struct span[]){{sums, sizeof sums}}, 1);
    while (next_replay(&r)) {
        assert_ok(k->sum(&r.exec, &sums[0], a, n));
        assert_ok(k->sum_squares(&r.exec, &sums[1], a, n));
    }
    assert_true(fabs(sums[0] - want) <= 1e-12 * size);
    assert_true(fabs(sums[1] - want_squares) <= 1e-12 * want_squares);
    free(a);
}

static void check_finite(const struct mx8_kernels *k, int64_t n, int32_t dtype, int64_t at, double value) {
    void *a = make_normal(dtype, n, 1, 1.0);
    int32_t flag = 0;
    struct replay r;
    for (int bad = 0; bad < 2; bad++) {
        if (bad && n > 0) set_value(a, dtype, at, value);
        begin_replay(&r, k, (struct span[]){{&flag, sizeof flag}}, 1);
        while (next_replay(&r)) assert_ok(k->check_finite(&r.exec, &flag, a, dtype, n));
        assert_int_equal(flag, bad && n > 0);
    }
    free(a);
}

static void check_colsum(const struct mx8_kernels *k, int64_t M, int64_t N, int32_t dtype, int groups, int accumulate) {
    int64_t ls = N + 2, rows = groups ? M * 2 / 3 : M;
    const int32_t offsets[] = {(int32_t)(M / 3), (int32_t)(M / 3), (int32_t)rows};
    void *x = make_normal(dtype, M * ls, 1, 1.0);
    float *out = make_normal(MX8_F32, N, 2, 1.0);
    double *want = make_reference(N);
    for (int64_t c = 0; c < N; c++) {
        want[c] = accumulate ? (double)out[c] : 0;
        for (int64_t r = 0; r < rows; r++) want[c] += value_at(x, dtype, r * ls + c);
    }
    struct mx8_colsum_job job = {.out = out, .x = x, .dtype = dtype, .M = M, .N = N, .ls = ls, .accumulate = accumulate,
        .offsets = groups ? offsets : NULL, .n_groups = groups ? 3 : 0};
    struct replay r;
    begin_replay(&r, k, (struct span[]){{out, (size_t)N * 4}}, 1);
    while (next_replay(&r)) assert_ok(k->colsum(&r.exec, &job));
    check_values("colsum", out, MX8_F32, want, N, 1e-6, 1e-6 * sqrt((double)M + 1));
    void *owned[] = {x, out, want};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++) free(owned[i]);
}

static void check_clip(const struct mx8_kernels *k, double squares, float max_norm, float want_factor) {
    float got[2] = {7, 7};
    struct replay r;
    begin_replay(&r, k, (struct span[]){{got, sizeof got}}, 1);
    while (next_replay(&r)) assert_ok(k->clip_factor(&r.exec, &got[0], &got[1], &squares, max_norm));
    if (isnan(squares)) {
        assert_true(isnan(got[0]) && isnan(got[1]));
        return;
    }
    assert_true(fabs((double)(got[0] - want_factor)) < 1e-6);
    assert_true(got[1] == (float)sqrt(squares));
}

static void reductions(const struct mx8_kernels *k) {
    static const int64_t sizes[] = {0, 1, 7, 4096, 4099, 400003};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) check_sums(k, sizes[i]);
    static const int64_t shapes[][2] = {{0, 3}, {1, 1}, {33, 65}, {400, 64}, {130, 300}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        for (int a = 0; a < 8; a++) check_colsum(k, shapes[i][0], shapes[i][1], both_dtypes[a % 2], a / 2 % 2, a / 4);
    }
    for (int a = 0; a < 2; a++) {
        check_finite(k, 0, both_dtypes[a], 0, 0);
        check_finite(k, 1, both_dtypes[a], 0, NAN);
        check_finite(k, 33, both_dtypes[a], 32, -INFINITY);
        check_finite(k, 20000, both_dtypes[a], 19999, INFINITY);
        check_finite(k, 20000, both_dtypes[a], 4096, -NAN);
    }
    check_clip(k, 0, 1, 1);
    check_clip(k, 16, 1, 0.25f);
    check_clip(k, 0.25, 1, 1);
    check_clip(k, INFINITY, 1, 0);
    check_clip(k, NAN, 1, 0);
}

static void test_clamp(void **state) {
    (void)state;
    for_every_isa(clamp);
}

static void test_swiglu(void **state) {
    (void)state;
    for_every_isa(swiglu);
}

static void test_embedding(void **state) {
    (void)state;
    for_every_isa(embedding);
}

static void test_cross_entropy(void **state) {
    (void)state;
    for_every_isa(cross_entropy);
}

static void test_adamw(void **state) {
    (void)state;
    for_every_isa(adamw);
}

static void test_elementwise(void **state) {
    (void)state;
    for_every_isa(elementwise);
}

static void test_reductions(void **state) {
    (void)state;
    for_every_isa(reductions);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_swiglu),
        cmocka_unit_test(test_clamp),
        cmocka_unit_test(test_embedding),
        cmocka_unit_test(test_cross_entropy),
        cmocka_unit_test(test_adamw),
        cmocka_unit_test(test_elementwise),
        cmocka_unit_test(test_reductions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
