/* An operator that the caller wrote: mx8_run_op holds it to what its own infer announces. */
#include "test.h"

static enum mx8_status infer_double(struct mx8_op_call *call) {
    call->n_out = 1;
    call->out[0] = mx8_make_tensor(NULL, MX8_F32, call->in[0].ndim, call->in[0].shape);
    call->workspace_size = 64;
    return call->in[0].ndim == 1 ? MX8_OK : MX8_INVALID_ARGUMENT;
}
static enum mx8_status run_double(struct mx8_context *ctx, const struct mx8_op_call *call) {
    (void)ctx;
    for (int64_t i = 0; i < call->out[0].shape[0]; i++)
        ((float *)call->out[0].data)[i] = 2 * ((const float *)call->in[0].data)[i];
    return MX8_OK;
}

static void test_own_row(void **state) {
    (void)state;
    static const struct mx8_op own = {.name = "double", .infer = infer_double, .forward = run_double};
    struct mx8_context *ctx;
    float x[3] = {1, 2, 3}, y[3] = {0};
    _Alignas(64) char workspace[64];
    int64_t three[] = {3}, two[] = {2}, huge[] = {INT64_MAX, 3};
    assert_ok(mx8_create_context(NULL, &ctx));
    struct mx8_op_call good = {.in = {mx8_make_tensor(x, MX8_F32, 1, three)},
        .out = {mx8_make_tensor(y, MX8_F32, 1, three)},
        .workspace = workspace,
        .workspace_size = sizeof workspace};
    assert_ok(mx8_run_op(ctx, &own, 0, &good));
    assert_true(y[0] == 2 && y[1] == 4 && y[2] == 6);
    assert_status(mx8_run_op(ctx, &own, 1, &good), MX8_INVALID_ARGUMENT);

    struct mx8_op_call bad = good;
    bad.out[0] = mx8_make_tensor(y, MX8_F32, 1, two);
    assert_status(mx8_run_op(ctx, &own, 0, &bad), MX8_INVALID_ARGUMENT);
    assert_message("double: output 1 has shape (2), expected (3)");
    bad = good;
    bad.out[0].dtype = MX8_F64;
    assert_status(mx8_run_op(ctx, &own, 0, &bad), MX8_INVALID_ARGUMENT);
    bad = good;
    bad.out[0].stride[0] = 2;
    assert_status(mx8_run_op(ctx, &own, 0, &bad), MX8_INVALID_ARGUMENT);
    bad = good;
    bad.in[0].data = NULL;
    assert_status(mx8_run_op(ctx, &own, 0, &bad), MX8_INVALID_ARGUMENT);
    bad = good;
    bad.in[0] = mx8_make_tensor(x, MX8_F32, 2, huge);
    assert_status(mx8_run_op(ctx, &own, 0, &bad), MX8_INVALID_ARGUMENT);
    assert_message("double: input 1 has more elements than memory can hold");
    bad = good;
    bad.workspace_size = 32;
    assert_status(mx8_run_op(ctx, &own, 0, &bad), MX8_WORKSPACE_TOO_SMALL);
    mx8_destroy_context(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_own_row)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
