/* Clipping and AdamW over several steps against PyTorch's formulas in double. */
#include "train/job_testing.h"
#include <math.h>
#include "base/rng.h"
#include "train/optimizer.h"

enum { N = 1000, STEPS = 7 };

struct reference {
    double p[N], m[N], v[N];
};

static void step_reference(
    struct reference *r, const float *grad, double factor, const struct mx8_adamw *a, double lr, int t) {
    for (int i = 0; i < N; i++) {
        double g = (double)grad[i] * factor;
        r->m[i] = a->beta1 * r->m[i] + (1 - a->beta1) * g;
        r->v[i] = a->beta2 * r->v[i] + (1 - a->beta2) * g * g;
        r->p[i] -= lr * a->weight_decay * r->p[i];
        r->p[i] -= lr * (r->m[i] / (1 - pow(a->beta1, t))) / (sqrt(r->v[i] / (1 - pow(a->beta2, t))) + a->eps);
    }
}

static void fill_gradient(float *grad, int step, double size) {
    for (int i = 0; i < N; i++)
        grad[i] = (float)(size * mx8i_random_normal(7, (uint64_t)step, (uint64_t)i) * (i % 10 ? 1 : 0));
}

/* Small gradients pass, large ones are scaled down to max_norm. */
static void run_case(double size, double max_norm, double weight_decay, uint16_t *copy) {
    static float master[N], grad[N], m[N], v[N];
    static struct reference r;
    struct mx8_flat flat = {.master = master, .grad = grad, .m = m, .v = v, .copy = copy, .n = N};
    struct mx8_adamw a = {.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = weight_decay};
    struct mx8_context *ctx;
    struct mx8_optimizer o;
    memset(&r, 0, sizeof r);
    memset(m, 0, sizeof m);
    memset(v, 0, sizeof v);
    for (int i = 0; i < N; i++) r.p[i] = (double)(master[i] = (float)mx8i_random_normal(1, 1, (uint64_t)i));
    assert_ok(mx8_create_context(&(struct mx8_context_options){.threads = 2}, &ctx));
    assert_ok(mx8i_open_optimizer(ctx, &o));
    for (int t = 1; t <= STEPS; t++) {
        double norm = 0, sum = 0, lr = 1e-2 / t;
        fill_gradient(grad, t, size);
        for (int i = 0; i < N; i++) sum += (double)grad[i] * (double)grad[i];
        assert_ok(mx8i_clip_gradients(&o, &flat, max_norm, &norm));
        assert_true(fabs(norm - sqrt(sum)) < 1e-6 * sqrt(sum));
        step_reference(&r, grad, fmin(1, max_norm / (sqrt(sum) + 1e-6)), &a, lr, t);
        assert_ok(mx8i_begin_update(&o, &a, lr));
        assert_ok(mx8i_apply_adamw(&o, &flat, &a, lr));
    }
    assert_int_equal(o.updates, STEPS);
    for (int i = 0; i < N; i++) {
        assert_true(fabs((double)master[i] - r.p[i]) < 2e-6 * (1 + fabs(r.p[i])));
        if (copy) assert_int_equal(copy[i], mx8_encode_bf16(master[i]));
    }
    mx8i_close_optimizer(&o);
    mx8_destroy_context(ctx);
}

static void test_adamw(void **state) {
    (void)state;
    static uint16_t copy[N];
    run_case(1e-3, 1, 0, NULL);
    run_case(1e-3, 1, 0.1, copy);
    run_case(10, 1, 0.1, copy);
    run_case(10, 1e9, 0.5, NULL);
}

static void test_not_finite_norm(void **state) {
    (void)state;
    static float grad[N];
    struct mx8_flat flat = {.grad = grad, .n = N};
    struct mx8_context *ctx;
    struct mx8_optimizer o;
    double norm = 0;
    assert_ok(mx8_create_context(NULL, &ctx));
    assert_ok(mx8i_open_optimizer(ctx, &o));
    grad[N / 2] = NAN;
    assert_ok(mx8i_clip_gradients(&o, &flat, 1, &norm));
    assert_true(isnan(norm));
    grad[N / 2] = INFINITY;
    assert_ok(mx8i_clip_gradients(&o, &flat, 1, &norm));
    assert_true(isinf(norm));
    grad[N / 2] = 0;
    assert_ok(mx8i_clip_gradients(&o, &flat, 1, &norm)); /* nothing is left of the steps before */
    assert_true(norm == 0);
    mx8i_close_optimizer(&o);
    mx8_destroy_context(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_adamw),
        cmocka_unit_test(test_not_finite_norm),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
