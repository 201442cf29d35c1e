/* An operator of one's own: a row of the operator table, written outside of mx8 and run like any other. `infer` knows
 * shapes alone; mx8_run_op calls it before every run, so the passes never see a wrong shape.
 *
 * The operator: squared ReLU, y = max(x, 0)^2 elementwise, dx = 2 max(x, 0) dy.
 *
 *     cc add_operator.c $(pkg-config --cflags --libs mx8) -lm -o add_operator */
#include <math.h>
#include <mx8/mx8.h>
#include <stdio.h>
#include <stdlib.h>

/* Both passes give what looks like their last input: x (f32, packed). */
static enum mx8_status infer(struct mx8_op_call *call, int last) {
    const struct mx8_tensor *x = &call->in[last];
    if (x->dtype != MX8_F32 || x->ndim < 1) return MX8_INVALID_ARGUMENT;
    if (last == 1 && mx8_count_elements(&call->in[0]) != mx8_count_elements(x)) return MX8_INVALID_ARGUMENT;
    call->n_out = 1;
    call->out[0] = mx8_make_tensor(NULL, MX8_F32, x->ndim, x->shape);
    call->workspace_size = 0;
    return MX8_OK;
}
static enum mx8_status infer_forward(struct mx8_op_call *call) {
    return infer(call, 0);
}
static enum mx8_status infer_backward(struct mx8_op_call *call) {
    return infer(call, 1);
}

static enum mx8_status forward(struct mx8_context *ctx, const struct mx8_op_call *call) {
    const float *x = call->in[0].data;
    float *y = call->out[0].data;
    (void)ctx; /* where other operators would run: mx8_run_op(ctx, ...) */
    for (int64_t i = 0; i < mx8_count_elements(&call->out[0]); i++) y[i] = x[i] > 0 ? x[i] * x[i] : 0;
    return MX8_OK;
}

static enum mx8_status backward(struct mx8_context *ctx, const struct mx8_op_call *call) {
    const float *dy = call->in[0].data, *x = call->in[1].data;
    float *dx = call->out[0].data;
    (void)ctx;
    for (int64_t i = 0; i < mx8_count_elements(&call->out[0]); i++) dx[i] = x[i] > 0 ? 2 * x[i] * dy[i] : 0;
    return MX8_OK;
}

static const struct mx8_op squared_relu = {
    .name = "squared_relu",
    .schema = "squared_relu(Tensor x) -> Tensor y",
    .backward_schema = "squared_relu_backward(Tensor dy, Tensor x) -> Tensor dx",
    .description = "y = max(x, 0)^2, f32.",
    .infer = infer_forward,
    .infer_backward = infer_backward,
    .forward = forward,
    .backward = backward,
};

int main(void) {
    enum { N = 7 };
    float x[N] = {-2, -0.5f, 0, 0.25f, 1, 1.5f, 3}, dy[N] = {1, 1, 1, 1, 1, 1, 1}, y[N], dx[N];
    int64_t shape[] = {N};
    struct mx8_context *ctx;
    if (mx8_create_context(NULL, &ctx) != MX8_OK) return 1;

    struct mx8_op_call call = {.in = {mx8_make_tensor(x, MX8_F32, 1, shape)}};
    struct mx8_op_call back = {.in = {mx8_make_tensor(dy, MX8_F32, 1, shape), mx8_make_tensor(x, MX8_F32, 1, shape)}};
    call.out[0] = mx8_make_tensor(y, MX8_F32, 1, shape);
    back.out[0] = mx8_make_tensor(dx, MX8_F32, 1, shape);
    enum mx8_status status = mx8_run_op(ctx, &squared_relu, 0, &call);
    if (status == MX8_OK) status = mx8_run_op(ctx, &squared_relu, 1, &back);
    if (status != MX8_OK) {
        fprintf(stderr, "%s: %s\n", mx8_get_status_name(status), mx8_get_last_error());
        return 1;
    }
    for (int i = 0; i < N; i++) printf("x %5.2f  y %5.2f  dy/dx %5.2f\n", (double)x[i], (double)y[i], (double)dx[i]);

    /* what infer did not announce is refused before the operator runs */
    int64_t wrong[] = {N - 1};
    call.out[0] = mx8_make_tensor(y, MX8_F32, 1, wrong);
    status = mx8_run_op(ctx, &squared_relu, 0, &call);
    printf("an output that is too short: %s\n", mx8_get_last_error());
    mx8_destroy_context(ctx);
    return status == MX8_INVALID_ARGUMENT && y[6] == 9 && dx[6] == 6 && dx[0] == 0 ? 0 : 1;
}
