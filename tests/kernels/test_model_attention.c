/* Attention against a plain double reference: masks, grouped heads, strided rows, odd sizes, both dtypes; gradients
 * against the analytic backward in double, which is itself checked by central differences. */
#include "model_testing.h"

struct shape { int64_t B, S, H, KV, d, chunk; int docs; };

static const struct shape shapes[] = {
    {1, 1, 1, 1, 8, 0, 0},     {1, 1, 2, 1, 64, 4, 1},    {1, 33, 2, 2, 16, 0, 0},   {2, 33, 4, 2, 8, 0, 1},
    {2, 64, 4, 1, 16, 16, 0},  {1, 65, 2, 1, 6, 0, 0},    {1, 130, 4, 2, 32, 0, 0},  {2, 97, 4, 4, 64, 40, 1},
    {1, 200, 4, 2, 128, 0, 1}, {1, 260, 2, 1, 24, 96, 0}, {1, 291, 3, 1, 18, 100, 1}, {3, 7, 2, 2, 2, 3, 0},
};
enum { N_SHAPES = sizeof shapes / sizeof *shapes };

/* Everything of one case: rows of q, k, v lie in one buffer with a gap behind them, as the fused projection leaves
 * them; o, dout and the gradients have gaps of their own. */
struct fixture {
    struct shape s;
    int64_t T, ls, o_ls;
    int32_t dtype;
    float scale;
    void *qkv, *o, *dout, *dqkv;
    float *lse;
    int32_t *doc;
};

enum { GAP = 3 };

static void open_fixture(struct fixture *f, const struct shape *s, int32_t dtype) {
    *f = (struct fixture){.s = *s, .T = s->B * s->S, .dtype = dtype, .scale = 1.0f / sqrtf((float)s->d)};
    f->ls = (s->H + 2 * s->KV) * s->d + GAP;
    f->o_ls = s->H * s->d + GAP;
    f->qkv = make_normal(dtype, f->T * f->ls, 1, 1.0);
    f->dout = make_normal(dtype, f->T * f->o_ls, 2, 1.0);
    f->o = make_zeros(dtype, f->T * f->o_ls);
    f->dqkv = make_zeros(dtype, f->T * f->ls);
    f->lse = make_zeros(MX8_F32, f->T * s->H);
    for (int64_t i = 0; i < f->T * f->o_ls; i++) set_value(f->o, dtype, i, 7);
    for (int64_t i = 0; i < f->T * f->ls; i++) set_value(f->dqkv, dtype, i, 7);
    if (!s->docs) return;
    f->doc = make_zeros(MX8_I32, f->T);
    for (int64_t t = 0; t < f->T; t++) f->doc[t] = (int32_t)(t * t / (31 * 31)) + (t % s->S == 40 ? -5 : 0);
}

static void close_fixture(struct fixture *f) {
    free(f->qkv);
    free(f->o);
    free(f->dout);
    free(f->dqkv);
    free(f->lse);
    free(f->doc);
}

static struct mx8_attention_job job_of(const struct fixture *f) {
    const struct shape *s = &f->s;
    size_t e = mx8_get_dtype_size(f->dtype), k_at = (size_t)(s->H * s->d) * e, v_at = k_at + (size_t)(s->KV * s->d) * e;
    return (struct mx8_attention_job){.T = f->T, .S = s->S, .H = s->H, .KV = s->KV, .d = s->d, .dtype = f->dtype,
        .scale = f->scale, .chunk = s->chunk, .doc = f->doc, .q = f->qkv, .k = (char *)f->qkv + k_at,
        .v = (char *)f->qkv + v_at, .q_ls = f->ls, .k_ls = f->ls, .v_ls = f->ls, .o_ls = f->o_ls, .o = f->o,
        .lse = f->lse, .dout = f->dout, .dq = f->dqkv, .dk = (char *)f->dqkv + k_at, .dv = (char *)f->dqkv + v_at,
        .do_ls = f->o_ls, .dq_ls = f->ls, .dk_ls = f->ls, .dv_ls = f->ls};
}

static int visible(const struct fixture *f, int64_t start, int64_t i, int64_t j) {
    if (j > i) return 0;
    if (f->s.chunk > 0 && i / f->s.chunk != j / f->s.chunk) return 0;
    return !f->doc || f->doc[start + i] == f->doc[start + j];
}

/* Columns of q, k, v of a head inside a row of qkv. */
static int64_t q_col(const struct shape *s, int64_t h) { return h * s->d; }
static int64_t k_col(const struct shape *s, int64_t h) { return (s->H + h / (s->H / s->KV)) * s->d; }
static int64_t v_col(const struct shape *s, int64_t h) { return (s->H + s->KV + h / (s->H / s->KV)) * s->d; }

static double dot_at(const double *a, const double *b, int64_t n) {
    double sum = 0;
    for (int64_t c = 0; c < n; c++) sum += a[c] * b[c];
    return sum;
}

/* Probabilities of one query row; returns its log-sum-exp. */
static double reference_row(const struct fixture *f, const double *x, int64_t start, int64_t i, int64_t h, double *p) {
    const struct shape *s = &f->s;
    double max = -INFINITY, sum = 0;
    for (int64_t j = 0; j <= i; j++) {
        p[j] = -INFINITY;
        if (!visible(f, start, i, j)) continue;
        const double *k = x + (start + j) * f->ls + k_col(s, h);
        p[j] = (double)f->scale * dot_at(x + (start + i) * f->ls + q_col(s, h), k, s->d);
        if (p[j] > max) max = p[j];
    }
    for (int64_t j = 0; j <= i; j++) sum += exp(p[j] - max);
    for (int64_t j = 0; j <= i; j++) p[j] = exp(p[j] - max) / sum;
    return max + log(sum);
}

static void reference_forward(const struct fixture *f, const double *x, double *o, double *lse) {
    const struct shape *s = &f->s;
    double *p = make_reference(s->S);
    for (int64_t t = 0; t < f->T; t++) {
        for (int64_t h = 0; h < s->H; h++) {
            int64_t i = t % s->S, start = t - i;
            lse[t * s->H + h] = reference_row(f, x, start, i, h, p);
            double *out = o + t * f->o_ls + h * s->d;
            for (int64_t c = 0; c < s->d; c++) out[c] = 0;
            for (int64_t j = 0; j <= i; j++) {
                for (int64_t c = 0; c < s->d; c++) out[c] += p[j] * x[(start + j) * f->ls + v_col(s, h) + c];
            }
        }
    }
    free(p);
}

/* dx over the layout of qkv. `o` is what forward stored, because that is what the kernel's row term reads. */
static void reference_backward(const struct fixture *f, const double *x, const double *o, const double *dout,
    double *dx) {
    const struct shape *s = &f->s;
    double *p = make_reference(s->S);
    for (int64_t t = 0; t < f->T; t++) {
        for (int64_t h = 0; h < s->H; h++) {
            int64_t i = t % s->S, start = t - i;
            reference_row(f, x, start, i, h, p);
            const double *g = dout + t * f->o_ls + h * s->d, *q = x + t * f->ls + q_col(s, h);
            double delta = dot_at(g, o + t * f->o_ls + h * s->d, s->d);
            for (int64_t j = 0; j <= i; j++) {
                const double *k = x + (start + j) * f->ls + k_col(s, h), *v = x + (start + j) * f->ls + v_col(s, h);
                double ds = p[j] * (dot_at(g, v, s->d) - delta) * (double)f->scale;
                for (int64_t c = 0; c < s->d; c++) {
                    dx[t * f->ls + q_col(s, h) + c] += ds * k[c];
                    dx[(start + j) * f->ls + k_col(s, h) + c] += ds * q[c];
                    dx[(start + j) * f->ls + v_col(s, h) + c] += p[j] * g[c];
                }
            }
        }
    }
    free(p);
}

static double *widen(const void *data, int32_t dtype, int64_t n) {
    double *out = make_reference(n);
    for (int64_t i = 0; i < n; i++) out[i] = value_at(data, dtype, i);
    return out;
}

/* Columns [used, ls) of every row still hold what the fixture put there. */
static void check_gaps(const void *data, int32_t dtype, int64_t rows, int64_t used, int64_t ls) {
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t c = used; c < ls; c++) assert_true(value_at(data, dtype, r * ls + c) == 7.0);
    }
}

static void check_shape(const struct mx8_kernels *k, const struct shape *s, int32_t dtype) {
    struct fixture f;
    open_fixture(&f, s, dtype);
    struct mx8_attention_job job = job_of(&f);
    size_t e = mx8_get_dtype_size(dtype), o_bytes = (size_t)(f.T * f.o_ls) * e, x_bytes = (size_t)(f.T * f.ls) * e;
    double *x = widen(f.qkv, dtype, f.T * f.ls), *o = make_reference(f.T * f.o_ls), *lse = make_reference(f.T * s->H);
    for (int64_t i = 0; i < f.T * f.o_ls; i++) o[i] = 7;
    reference_forward(&f, x, o, lse);

    struct replay r;
    begin_replay(&r, k, (struct span[]){{f.o, o_bytes}, {f.lse, (size_t)(f.T * s->H) * 4}}, 2);
    while (next_replay(&r)) {
        job.workspace = mx8i_allocate_aligned(k->attention_workspace(&job, 0, r.exec.threads) + 1, 64, "workspace");
        assert_ok(k->attention(&r.exec, &job));
        mx8i_release(job.workspace);
    }
    check_values("o", f.o, dtype, o, f.T * f.o_ls, 1e-5, 1e-5);
    check_values("lse", f.lse, MX8_F32, lse, f.T * s->H, 1e-6, 2e-6);
    check_gaps(f.o, dtype, f.T, s->H * s->d, f.o_ls);

    double *dout = widen(f.dout, dtype, f.T * f.o_ls), *dx = make_reference(f.T * f.ls);
    double *stored = widen(f.o, dtype, f.T * f.o_ls);
    reference_backward(&f, x, stored, dout, dx);
    for (int64_t t = 0; t < f.T; t++) {
        for (int64_t c = f.ls - GAP; c < f.ls; c++) dx[t * f.ls + c] = 7;
    }
    begin_replay(&r, k, (struct span[]){{f.dqkv, x_bytes}}, 1);
    while (next_replay(&r)) {
        job.workspace = mx8i_allocate_aligned(k->attention_workspace(&job, 1, r.exec.threads) + 1, 64, "workspace");
        assert_ok(k->attention_backward(&r.exec, &job));
        mx8i_release(job.workspace);
    }
    check_values("dqkv", f.dqkv, dtype, dx, f.T * f.ls, 2e-5, 2e-5);
    free(x);
    free(o);
    free(lse);
    free(dout);
    free(dx);
    free(stored);
    close_fixture(&f);
}

static void compare_with_reference(const struct mx8_kernels *k) {
    for (int i = 0; i < N_SHAPES; i++) {
        check_shape(k, &shapes[i], MX8_F32);
        check_shape(k, &shapes[i], MX8_BF16);
    }
}

static void test_reference(void **state) {
    (void)state;
    for_every_isa(compare_with_reference);
}

/* The reference's own gradient, by central differences of sum(o * dout). */
static void test_reference_gradient(void **state) {
    (void)state;
    struct fixture f;
    open_fixture(&f, &(struct shape){2, 7, 4, 2, 4, 3, 1}, MX8_F32);
    int64_t n = f.T * f.ls, n_o = f.T * f.o_ls;
    double *x = widen(f.qkv, MX8_F32, n), *dout = widen(f.dout, MX8_F32, n_o), *dx = make_reference(n);
    double *o = make_reference(n_o), *lse = make_reference(f.T * f.s.H);
    reference_forward(&f, x, o, lse);
    reference_backward(&f, x, o, dout, dx);
    for (int64_t i = 0; i < n; i++) {
        double at = x[i], side[2];
        for (int up = 0; up < 2; up++) {
            x[i] = at + (up ? 1e-5 : -1e-5);
            reference_forward(&f, x, o, lse);
            side[up] = dot_at(o, dout, n_o);
        }
        x[i] = at;
        assert_true(fabs((side[1] - side[0]) / 2e-5 - dx[i]) < 1e-7);
    }
    free(x);
    free(dout);
    free(dx);
    free(o);
    free(lse);
    close_fixture(&f);
}

/* Logits of several thousand: the softmax is a one-hot and nothing overflows. */
static void sharp_softmax(const struct mx8_kernels *k) {
    enum { S = 100, D = 16 };
    float *q = make_zeros(MX8_F32, S * D), *v = make_zeros(MX8_F32, S * D), *o = make_zeros(MX8_F32, S * D);
    float *lse = make_zeros(MX8_F32, S);
    for (int i = 0; i < S; i++) {
        q[i * D] = 90.0f + (float)i; /* the key of the query itself is the longest so far */
        for (int c = 0; c < D; c++) v[i * D + c] = (float)(i + c);
    }
    struct mx8_attention_job job = {.T = S, .S = S, .H = 1, .KV = 1, .d = D, .dtype = MX8_F32, .scale = 1, .q = q,
        .k = q, .v = v, .q_ls = D, .k_ls = D, .v_ls = D, .o_ls = D, .o = o, .lse = lse};
    struct replay r;
    begin_replay(&r, k, (struct span[]){{o, S * D * 4}}, 1);
    while (next_replay(&r)) {
        job.workspace = mx8i_allocate_aligned(k->attention_workspace(&job, 0, r.exec.threads) + 1, 64, "workspace");
        assert_ok(k->attention(&r.exec, &job));
        mx8i_release(job.workspace);
    }
    for (int i = 0; i < S * D; i++) assert_true(fabs((double)(o[i] - v[i])) < 1e-4);
    free(q);
    free(v);
    free(o);
    free(lse);
}

static void test_sharp_softmax(void **state) {
    (void)state;
    for_every_isa(sharp_softmax);
}

/* The workspace is a matter of tiles and threads: a longer sequence may only add the backward's row terms. */
static void workspace_is_small(const struct mx8_kernels *k) {
    struct mx8_attention_job job = {.T = 1024, .S = 1024, .H = 4, .KV = 2, .d = 128, .dtype = MX8_BF16};
    size_t forward = k->attention_workspace(&job, 0, 4), backward = k->attention_workspace(&job, 1, 4);
    job.T = job.S = 32768;
    assert_true(k->attention_workspace(&job, 0, 4) == forward);
    assert_true(k->attention_workspace(&job, 1, 4) <= backward + (size_t)(job.T * job.H) * 8);
}

static void test_workspace(void **state) {
    (void)state;
    for_every_isa(workspace_is_small);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reference_gradient),
        cmocka_unit_test(test_reference),
        cmocka_unit_test(test_sharp_softmax),
        cmocka_unit_test(test_workspace),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
