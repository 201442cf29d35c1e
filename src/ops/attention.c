/* Causal attention with grouped heads. */
#include <math.h>

#include "base/error.h"
#include "ops/device.h"
#include "ops/op_rows.h"

static const struct mx8_port forward_in[] = {
    {"q", "TQ", MX8I_HP | MX8I_ROWS},
    {"k", "TC", MX8I_HP | MX8I_SAME | MX8I_ROWS},
    {"v", "TC", MX8I_HP | MX8I_SAME | MX8I_ROWS},
    {"doc", "T", MX8I_I32 | MX8I_PACKED | MX8I_OPTIONAL},
};
static const struct mx8_port forward_out[] = {
    {"o", "TQ", MX8I_HP | MX8I_ROWS},
    {"lse", "TH", MX8I_F32 | MX8I_PACKED},
};
static const struct mx8_port backward_in[] = {
    {"do", "TQ", MX8I_HP | MX8I_ROWS},
    {"q", "TQ", MX8I_HP | MX8I_SAME | MX8I_ROWS},
    {"k", "TC", MX8I_HP | MX8I_SAME | MX8I_ROWS},
    {"v", "TC", MX8I_HP | MX8I_SAME | MX8I_ROWS},
    {"o", "TQ", MX8I_HP | MX8I_SAME | MX8I_ROWS},
    {"lse", "TH", MX8I_F32 | MX8I_PACKED},
    {"doc", "T", MX8I_I32 | MX8I_PACKED | MX8I_OPTIONAL},
};
static const struct mx8_port backward_out[] = {
    {"dq", "TQ", MX8I_HP | MX8I_ROWS},
    {"dk", "TC", MX8I_HP | MX8I_ROWS},
    {"dv", "TC", MX8I_HP | MX8I_ROWS},
};
static const struct mx8_pass forward_pass = MX8I_PASS(forward_in, forward_out);
static const struct mx8_pass backward_pass = MX8I_PASS(backward_in, backward_out);

/* Sizes of the job from q and k and the options; n_kv_heads 0 means n_heads, seq_len 0 one sequence. */
static struct mx8_attention_job start_job(const struct mx8_op_options *o, const struct mx8_tensor *q,
    const struct mx8_tensor *k, const struct mx8_tensor *v) {
    struct mx8_attention_job j = {
        .T = q->shape[0],
        .S = o->seq_len > 0 ? o->seq_len : q->shape[0],
        .H = o->n_heads,
        .KV = o->n_kv_heads ? o->n_kv_heads : o->n_heads,
        .dtype = q->dtype,
        .chunk = o->chunk,
        .q = q->data,
        .k = k->data,
        .v = v->data,
        .q_ls = q->stride[0],
        .k_ls = k->stride[0],
        .v_ls = v->stride[0],
    };
    j.d = j.H > 0 ? q->shape[1] / j.H : 0;
    j.scale = o->attn_scale != 0 ? o->attn_scale : 1.0f / sqrtf((float)(j.d > 0 ? j.d : 1));
    return j;
}

static enum mx8_status check_heads(
    const struct mx8_op_options *o, const struct mx8_attention_job *j, int64_t q_cols, int64_t kv_cols) {
    if (o->n_heads < 1 || o->n_kv_heads < 0 || j->H % j->KV != 0)
        return MX8_FAIL(MX8_INVALID_ARGUMENT,
            "attention: n_heads is %d and n_kv_heads %d, expected a multiple of the latter", (int)o->n_heads,
            (int)o->n_kv_heads);
    if (q_cols != j->H * j->d || j->d == 0)
        return MX8_FAIL(MX8_INVALID_ARGUMENT, "attention: q has %lld columns, expected a multiple of n_heads (%d)",
            (long long)q_cols, (int)o->n_heads);
    if (kv_cols != j->KV * j->d)
        return MX8_FAIL(MX8_INVALID_ARGUMENT, "attention: k has %lld columns, expected %lld (%lld heads of %lld)",
            (long long)kv_cols, (long long)(j->KV * j->d), (long long)j->KV, (long long)j->d);
    return MX8_OK;
}

static enum mx8_status check_masks(
    const struct mx8_op_options *o, const struct mx8_attention_job *j, const struct mx8_tensor *doc) {
    MX8_TRY(mx8i_check_choice("attention", "mask", o->mask, MX8_MASK_DOCUMENT + 1));
    if ((o->mask == MX8_MASK_DOCUMENT) != mx8i_is_present(doc))
        return MX8_FAIL(MX8_INVALID_ARGUMENT, "attention: doc is %s, but mask is %s",
            mx8i_is_present(doc) ? "given" : "missing", o->mask == MX8_MASK_DOCUMENT ? "document" : "causal");
    if (o->chunk < 0)
        return MX8_FAIL(MX8_INVALID_ARGUMENT, "attention: chunk is %d, expected 0 or more", (int)o->chunk);
    if (o->seq_len < 0 || (j->S > 0 && j->T % j->S != 0))
        return MX8_FAIL(MX8_INVALID_ARGUMENT, "attention: q has %lld rows, expected a multiple of seq_len (%lld)",
            (long long)j->T, (long long)o->seq_len);
    return MX8_OK;
}

static enum mx8_status infer(struct mx8_op_call *call) {
    struct mx8_dims d;
    MX8_TRY(mx8i_bind_inputs(&d, "attention", call, &forward_pass, 0, forward_pass.n_in));
    struct mx8_attention_job j = start_job(&call->options, &call->in[0], &call->in[1], &call->in[2]);
    MX8_TRY(check_heads(&call->options, &j, mx8i_get_dim(&d, 'Q'), mx8i_get_dim(&d, 'C')));
    MX8_TRY(check_masks(&call->options, &j, &call->in[3]));
    MX8_TRY(mx8i_set_dim(&d, 'H', j.H, "n_heads"));
    mx8i_clear_outputs(call, &forward_pass, mx8i_bound_attention(&j, 0));
    mx8i_put_output(call, &forward_pass, 0, &d, j.dtype);
    mx8i_put_output(call, &forward_pass, 1, &d, MX8_F32);
    return MX8_OK;
}

static enum mx8_status infer_backward(struct mx8_op_call *call) {
    struct mx8_dims d;
    MX8_TRY(mx8i_bind_inputs(&d, "attention", call, &backward_pass, 0, backward_pass.n_in));
    struct mx8_attention_job j = start_job(&call->options, &call->in[1], &call->in[2], &call->in[3]);
    MX8_TRY(check_heads(&call->options, &j, mx8i_get_dim(&d, 'Q'), mx8i_get_dim(&d, 'C')));
    MX8_TRY(check_masks(&call->options, &j, &call->in[6]));
    MX8_TRY(mx8i_set_dim(&d, 'H', j.H, "n_heads"));
    mx8i_clear_outputs(call, &backward_pass, mx8i_bound_attention(&j, 1));
    for (int32_t i = 0; i < 3; i++) mx8i_put_output(call, &backward_pass, i, &d, j.dtype);
    return MX8_OK;
}

/* infer counted on the threads of the machine; a context with more of them uses as many as the workspace serves. */
static struct mx8_exec fit_threads(
    const struct mx8_context *ctx, const struct mx8_attention_job *j, int32_t backward, size_t workspace_size) {
    struct mx8_exec exec = ctx->exec;
    while (exec.threads > 1 && exec.k->attention_workspace(j, backward, exec.threads) > workspace_size) exec.threads--;
    return exec;
}

static enum mx8_status forward(struct mx8_context *ctx, const struct mx8_op_call *call) {
    const struct mx8_tensor *in = call->in, *out = call->out;
    struct mx8_attention_job j = start_job(&call->options, &in[0], &in[1], &in[2]);
    j.doc = in[3].data;
    j.o = out[0].data;
    j.o_ls = out[0].stride[0];
    j.lse = out[1].data;
    j.workspace = call->workspace;
    struct mx8_exec exec = fit_threads(ctx, &j, 0, call->workspace_size);
    return exec.k->attention(&exec, &j);
}

static enum mx8_status backward(struct mx8_context *ctx, const struct mx8_op_call *call) {
    const struct mx8_tensor *in = call->in, *out = call->out;
    struct mx8_attention_job j = start_job(&call->options, &in[1], &in[2], &in[3]);
    j.dout = in[0].data;
    j.do_ls = in[0].stride[0];
    j.o = in[4].data;
    j.o_ls = in[4].stride[0];
    j.lse = in[5].data;
    j.doc = in[6].data;
    j.dq = out[0].data;
    j.dk = out[1].data;
    j.dv = out[2].data;
    j.dq_ls = out[0].stride[0];
    j.dk_ls = out[1].stride[0];
    j.dv_ls = out[2].stride[0];
    j.workspace = call->workspace;
    struct mx8_exec exec = fit_threads(ctx, &j, 1, call->workspace_size);
    return exec.k->attention_backward(&exec, &j);
}

const struct mx8_op_row mx8i_attention_row = {
    .op =
        {
            .name = "attention",
            .schema = "attention(Tensor q, Tensor k, Tensor v, Tensor? doc) -> (Tensor o, Tensor lse)",
            .backward_schema =
                "attention_backward(Tensor do, Tensor q, Tensor k, Tensor v, Tensor o, Tensor lse, Tensor? doc) -> "
                "(Tensor dq, Tensor dk, Tensor dv)",
            .description =
                "Causal attention over T / options.seq_len sequences (0: one): q (T, H*d) with H = options.n_heads, k "
                "and v (T, KV*d) with KV = options.n_kv_heads (0: n_heads); query head h uses key head h / (H/KV). "
                "Scores are multiplied by options.attn_scale (0: 1 / sqrt(d)). A query sees keys at and before its "
                "position; with options.mask document only those with its own number in doc (T); with options.chunk > "
                "0 only those of its own chunk of that length. lse (T,H) f32 is the natural logarithm of each "
                "softmax's sum, saved for backward. Row strides are free, so q, k and v may be parts of one tensor.",
            .infer = infer,
            .infer_backward = infer_backward,
            .forward = forward,
            .backward = backward,
        },
    .forward = MX8I_PASS(forward_in, forward_out),
    .backward = MX8I_PASS(backward_in, backward_out),
};
