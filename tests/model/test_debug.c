/* What experiments add to a model: planted outliers, negative controls, and operands in files. */
#include "model_helpers.h"
#include <ftw.h>
#include <unistd.h>
#include "base/safetensors.h"
#include "model/internal.h"

static const struct mx8_model_options small = {.batch = 2, .seq_len = 48};

static void test_outliers_are_planted(void **state) {
    (void)state;
    struct mx8_model_config c = make_tiny_config();
    struct subject plain = make_subject(&c, "bf16", small, 1), s = make_subject(&c, "bf16", small, 1);
    assert_ok(mx8i_plant_outliers(s.m, 24, 30));
    const struct mx8_param_table *t = mx8i_get_params(s.m);
    for (int64_t i = 0; i < t->count; i++) {
        const struct mx8_param *p = &t->param[i];
        const float *was = mx8i_get_masters(plain.m) + p->at, *is = mx8i_get_masters(s.m) + p->at;
        for (int64_t n = 0; n < p->count; n++) {
            int planted = p->kind == MX8_PARAM_EMBEDDING && n % c.dim % 24 == 0;
            if (is[n] != (planted ? 30 * was[n] : was[n]))
                fail_msg("%s: element %lld is %g", p->name, (long long)n, (double)is[n]);
            if (mx8i_get_copies(s.m)[p->at + n] != mx8_encode_bf16(is[n])) fail_msg("%s: old bf16 copy", p->name);
        }
    }
    free_subject(&plain);
    free_subject(&s);
}

/* A subject whose first layer reads channels so wide that the others fall below a row block's normal numbers. */
static struct subject make_wide_subject(const char *recipe, int32_t control) {
    struct mx8_model_config c = make_tiny_config();
    struct mx8_model_options o = small;
    o.control = control;
    struct subject s = make_subject(&c, recipe, o, 1);
    assert_ok(mx8i_plant_outliers(s.m, 24, 1e5));
    return s;
}

/* Gradient of a converted weight, its columns for ordinary channels: the caller frees, *n of them. */
static float *get_ordinary_gradient(struct mx8_model *m, int64_t *n) {
    int64_t count, D = m->config.dim;
    const float *gradient = find_gradient(m, "layers.0.attention.wq.weight", &count);
    float *out = calloc((size_t)count, sizeof *out);
    *n = 0;
    for (int64_t i = 0; i < count; i++)
        if (i % D % 24) out[(*n)++] = gradient[i];
    return out;
}

/* Against the same in f32, in dB. */
static double measure_gradient(const char *recipe, int32_t control, const float *want, double *loss) {
    struct subject s = make_wide_subject(recipe, control);
    int32_t *ids = make_tokens(s.T, s.m->config.vocab_size, 3);
    *loss = run_step(&s, ids, NULL);
    int64_t n;
    float *got = get_ordinary_gradient(s.m, &n);
    double sqnr = get_sqnr(got, want, n);
    free(got);
    free(ids);
    free_subject(&s);
    return sqnr;
}

/* Forward reads row codes, which no control touches: the same bits. The gradient gets worse by more than a decibel. */
static void test_controls_spoil_the_gradient(void **state) {
    (void)state;
    struct subject exact = make_wide_subject("f32", MX8_CONTROL_NONE);
    int32_t *ids = make_tokens(exact.T, exact.m->config.vocab_size, 3);
    run_step(&exact, ids, NULL);
    int64_t n;
    float *want = get_ordinary_gradient(exact.m, &n);
    double plain_loss, loss, plain = measure_gradient("mxfp8_moe", MX8_CONTROL_NONE, want, &plain_loss);
    static const int32_t controls[] = {MX8_CONTROL_E5M2_GRADIENTS, MX8_CONTROL_REUSED_CODES};
    for (int i = 0; i < 2; i++) {
        double sqnr = measure_gradient("mxfp8_moe", controls[i], want, &loss);
        assert_true(loss == plain_loss);
        if (!(sqnr < plain - 1)) fail_msg("control %d: %.2f dB, without it %.2f dB", controls[i], sqnr, plain);
        double high = measure_gradient("bf16", MX8_CONTROL_NONE, want, &loss);
        assert_true(measure_gradient("bf16", controls[i], want, &loss) == high); /* nothing is converted */
    }
    free(want);
    free(ids);
    free_subject(&exact);
}

/* Weights are rounded in the step's scratch memory, whatever the step left there. */
static void test_controls_stay_in_the_plan(void **state) {
    (void)state;
    struct mx8_model_config c = make_tiny_config();
    struct mx8_model_options o = {.batch = 1, .seq_len = 8, .control = MX8_CONTROL_REUSED_CODES};
    struct subject s = make_subject(&c, "mxfp8_moe", o, 1);
    int32_t *ids = make_tokens(s.T, c.vocab_size, 5);
    size_t planned = mx8i_get_memory_plan(s.m, NULL)->scratch;
    double loss = run_step(&s, ids, NULL);
    s.m->scratch.used = planned;
    assert_ok(mx8i_refresh_weights(s.m, 0));
    assert_true(run_step(&s, ids, NULL) == loss);
    assert_true(s.m->scratch.peak <= planned);
    free(ids);
    free_subject(&s);
}

/* dw (N,K) of rows [from, to) from what the file says, in f64, against the model's gradient. */
static double compare_gradient(const struct mx8_safetensors *st, int64_t from, int64_t to, const float *gradient) {
    const struct mx8_st_entry *x = mx8i_find_tensor(st, "x"), *dy = mx8i_find_tensor(st, "dy");
    const int64_t N = dy->shape[1], K = x->shape[1];
    const float *a = x->data, *b = dy->data;
    float *want = calloc((size_t)(N * K), sizeof *want);
    for (int64_t i = 0; i < N * K; i++) {
        double sum = 0;
        for (int64_t t = from; t < to; t++) sum += (double)b[t * N + i / K] * (double)a[t * K + i % K];
        want[i] = (float)sum;
    }
    double sqnr = get_sqnr(gradient, want, N * K);
    free(want);
    return sqnr;
}

static void check_dump(struct mx8_model *m, const char *folder, const char *linear, const char *weight) {
    char path[256];
    snprintf(path, sizeof path, "%s/%s.safetensors", folder, linear);
    struct mx8_safetensors st;
    assert_ok(mx8i_open_safetensors(path, &st));
    const struct mx8_st_entry *w = mx8i_find_tensor(&st, "w"), *offsets = mx8i_find_tensor(&st, "offsets");
    const struct mx8_param *p = mx8i_find_param(mx8i_get_params(m), weight);
    assert_memory_equal(w->data, mx8i_get_masters(m) + p->at, w->size);
    assert_int_equal(offsets != NULL, p->ndim == 3);
    const float *gradient = mx8i_get_gradients(m) + p->at;
    int64_t n = p->ndim == 3 ? p->shape[0] : 1, start = 0, checked = 0;
    for (int64_t e = 0; e < n; e++) {
        int64_t end = offsets ? ((const int32_t *)offsets->data)[e] : mx8i_find_tensor(&st, "x")->shape[0];
        if (end > start && compare_gradient(&st, start, end, gradient + e * p->count / n) < 100)
            fail_msg("%s: x and dy of matrix %lld do not give its gradient", path, (long long)e);
        checked += end - start;
        start = end;
    }
    assert_true(checked > 0);
    mx8i_close_safetensors(&st);
}

static int remove_entry(const char *path, const struct stat *info, int type, struct FTW *place) {
    (void)info, (void)type, (void)place;
    return remove(path);
}

static void test_dumped_operands_give_the_gradient(void **state) {
    (void)state;
    char folder[] = "/tmp/mx8-dump-XXXXXX", inner[64];
    assert_non_null(mkdtemp(folder));
    snprintf(inner, sizeof inner, "%s/new", folder);
    struct mx8_model_config c = make_tiny_config();
    struct mx8_model_options o = small;
    o.ac_mode = MX8_AC_FULL;
    struct subject s = make_subject(&c, "f32", o, 1);
    int32_t *ids = make_tokens(s.T, c.vocab_size, 4);
    struct mx8_dump dump = {.folder = inner, .names = "attention.wq,experts.w2"};
    mx8i_set_dump(s.m, &dump);
    run_step(&s, ids, NULL);
    mx8i_set_dump(s.m, NULL);
    assert_int_equal(dump.count, 2 * 3); /* wq, the experts' w2 and the shared expert's, of two layers */
    check_dump(s.m, inner, "layers.1.attention.wq", "layers.1.attention.wq.weight");
    check_dump(s.m, inner, "layers.0.moe.experts.w2", "layers.0.moe.experts.w2");
    check_dump(s.m, inner, "layers.1.moe.shared_experts.w2", "layers.1.moe.shared_experts.w2.weight");

    struct mx8_dump nowhere = {.folder = "/proc/none", .names = ""};
    mx8i_set_dump(s.m, &nowhere);
    double loss = 0;
    assert_status(mx8i_forward_backward(s.m, ids, ids + s.T, NULL, 1, 0, &loss), MX8_IO_ERROR);
    free(ids);
    free_subject(&s);
    nftw(folder, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
}

/* A converted weight is written as its quantizer sees it: its master, rounded to bf16. */
static void test_dumped_weights_are_rounded_masters(void **state) {
    (void)state;
    char folder[] = "/tmp/mx8-dump-XXXXXX", path[64];
    assert_non_null(mkdtemp(folder));
    struct mx8_model_config c = make_tiny_config();
    struct mx8_recipe r = make_recipe("mxfp8_moe");
    struct mx8_model_options o = small;
    r.wgrad_hp = o.training = 1; /* inputs stay in high precision */
    struct subject s = {.ctx = make_context(1), .T = o.batch * o.seq_len};
    assert_ok(mx8i_plan_model(&c, &r, &o, &s.m));
    assert_ok(mx8i_allocate_model(s.m, s.ctx));
    assert_ok(mx8i_init_weights(s.m, 7));
    int32_t *ids = make_tokens(s.T, c.vocab_size, 4);
    struct mx8_dump dump = {.folder = folder, .names = "layers.0.moe.experts.w2"};
    mx8i_set_dump(s.m, &dump);
    run_step(&s, ids, NULL);
    assert_int_equal(dump.count, 1);
    snprintf(path, sizeof path, "%s/layers.0.moe.experts.w2.safetensors", folder);
    struct mx8_safetensors st;
    assert_ok(mx8i_open_safetensors(path, &st));
    const struct mx8_st_entry *w = mx8i_find_tensor(&st, "w");
    const struct mx8_param *p = mx8i_find_param(mx8i_get_params(s.m), "layers.0.moe.experts.w2");
    assert_true(p->mxfp8 && w->dtype == MX8_BF16 && w->size == 2 * (size_t)p->count);
    for (int64_t i = 0; i < p->count; i++)
        assert_int_equal(((const uint16_t *)w->data)[i], mx8_encode_bf16(mx8i_get_masters(s.m)[p->at + (size_t)i]));
    mx8i_close_safetensors(&st);
    free(ids);
    free_subject(&s);
    nftw(folder, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_outliers_are_planted),
        cmocka_unit_test(test_controls_spoil_the_gradient), cmocka_unit_test(test_controls_stay_in_the_plan),
        cmocka_unit_test(test_dumped_operands_give_the_gradient),
        cmocka_unit_test(test_dumped_weights_are_rounded_masters)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
