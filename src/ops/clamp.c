/* clamp: what a model's clip_qkv does to queries, keys and values. */
#include <math.h>

#include "base/error.h"
#include "ops/op_rows.h"

static const struct mx8_port forward_in[] = {{"x", "MF", MX8I_HP | MX8I_PACKED}};
static const struct mx8_port forward_out[] = {{"y", "MF", MX8I_HP | MX8I_PACKED}};
static const struct mx8_port backward_in[] = {
    {"dy", "MF", MX8I_HP | MX8I_PACKED},
    {"x", "MF", MX8I_HP | MX8I_SAME | MX8I_PACKED},
};
static const struct mx8_port backward_out[] = {{"dx", "MF", MX8I_HP | MX8I_PACKED}};
static const struct mx8_pass forward_pass = MX8I_PASS(forward_in, forward_out);
static const struct mx8_pass backward_pass = MX8I_PASS(backward_in, backward_out);

static enum mx8_status infer_pass(struct mx8_op_call *call, const struct mx8_pass *pass) {
    struct mx8_dims d;
    MX8_TRY(mx8i_bind_inputs(&d, "clamp", call, pass, 0, pass->n_in));
    if (!(call->options.limit > 0) || isinf(call->options.limit))
        return MX8_FAIL(
            MX8_INVALID_ARGUMENT, "clamp: limit is %g, expected a positive number", (double)call->options.limit);
    mx8i_clear_outputs(call, pass, 0);
    mx8i_put_output(call, pass, 0, &d, call->in[0].dtype);
    return MX8_OK;
}

static enum mx8_status infer(struct mx8_op_call *call) {
    return infer_pass(call, &forward_pass);
}
static enum mx8_status infer_backward(struct mx8_op_call *call) {
    return infer_pass(call, &backward_pass);
}

static struct mx8_clamp_job start_job(const struct mx8_op_call *call) {
    return (struct mx8_clamp_job){
        .n = mx8_count_elements(&call->in[0]), .dtype = call->in[0].dtype, .limit = call->options.limit};
}

static enum mx8_status run(struct mx8_context *ctx, const struct mx8_op_call *call) {
    struct mx8_clamp_job j = start_job(call);
    j.x = call->in[0].data;
    j.y = call->out[0].data;
    return ctx->exec.k->clamp(&ctx->exec, &j);
}

static enum mx8_status run_backward(struct mx8_context *ctx, const struct mx8_op_call *call) {
    struct mx8_clamp_job j = start_job(call);
    j.dy = call->in[0].data;
    j.x = call->in[1].data;
    j.dx = call->out[0].data;
    return ctx->exec.k->clamp_backward(&ctx->exec, &j);
}

const struct mx8_op_row mx8i_clamp_row = {
    .op =
        {
            .name = "clamp",
            .schema = "clamp(Tensor x) -> Tensor y",
            .backward_schema = "clamp_backward(Tensor dy, Tensor x) -> Tensor dx",
            .description =
                "y = x where |x| <= options.limit, else the limit with the sign of x (M,F); NaN stays. dx is "
                "dy where |x| <= options.limit, else 0. y may be x, dx may be dy.",
            .infer = infer,
            .infer_backward = infer_backward,
            .forward = run,
            .backward = run_backward,
        },
    .forward = MX8I_PASS(forward_in, forward_out),
    .backward = MX8I_PASS(backward_in, backward_out),
};
