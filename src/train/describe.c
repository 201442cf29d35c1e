/* Two tables for people: what a recipe does to each weight, and where the memory goes. */
#include <stdio.h>
#include <string.h>
#include "base/error.h"
#include "base/memory.h"
#include "train/checkpoint.h"
#include "train/describe.h"
#include "train/logline.h"
#include "train/optimizer.h"
#include "train/parallel.h"
#include "train/validate.h"

/* Tensors that differ only in their layer's number form a class: "layers.*.attention.wq.weight". */
static void get_class(const struct mx8_param *p, char name[sizeof p->name]) {
    const char *rest = p->layer < 0 ? NULL : strchr(p->name, '.');
    rest = rest ? strchr(rest + 1, '.') : NULL;
    if (rest)
        snprintf(name, sizeof p->name, "layers.*%s", rest);
    else
        snprintf(name, sizeof p->name, "%s", p->name);
}

static int is_same_class(const struct mx8_param *a, const struct mx8_param *b) {
    char name_a[sizeof a->name], name_b[sizeof b->name];
    get_class(a, name_a);
    get_class(b, name_b);
    return !strcmp(name_a, name_b) && a->mxfp8 == b->mxfp8 && a->ndim == b->ndim &&
           !memcmp(a->shape, b->shape, (size_t)a->ndim * sizeof a->shape[0]);
}

static const char *explain(const struct mx8_param *p) {
    if (p->mxfp8) return "mxfp8";
    switch (p->kind) {
    case MX8_PARAM_EMBEDDING:
        return "kept: a lookup";
    case MX8_PARAM_NORM:
        return "kept: a vector";
    case MX8_PARAM_EXPERT:
        return "kept: experts not named";
    case MX8_PARAM_LINEAR:
    case MX8_PARAM_ROUTER:
    case MX8_PARAM_HEAD:
        break;
    }
    return "kept: filtered";
}

static void format_shape(const struct mx8_param *p, char text[64]) {
    int used = snprintf(text, 64, "(");
    for (int32_t i = 0; i < p->ndim; i++)
        used += snprintf(text + used, (size_t)(64 - used), "%s%lld", i ? ", " : "", (long long)p->shape[i]);
    snprintf(text + used, (size_t)(64 - used), ")");
}

static void log_row(const struct mx8_log *out, const char *name, const struct mx8_param *p, int64_t n, double share) {
    char shape[64], count[24] = "";
    format_shape(p, shape);
    if (n > 1) snprintf(count, sizeof count, "%lld x ", (long long)n);
    mx8i_log(out, "  %-44s %5s%-20s %5.1f %% of FLOPs  %s", name, count, shape, 100 * share, explain(p));
}

/* The row of p's class, at its first tensor; later ones are in it already. */
static void log_class(const struct mx8_param_table *t, int64_t first, const struct mx8_log *out) {
    const struct mx8_param *p = &t->param[first];
    char name[sizeof p->name];
    double share = 0;
    int64_t n = 0;
    for (int64_t i = 0; i < first; i++)
        if (is_same_class(&t->param[i], p)) return;
    for (int64_t i = first; i < t->count; i++)
        if (is_same_class(&t->param[i], p)) {
            share += t->param[i].flops_share;
            n++;
        }
    get_class(p, name);
    log_row(out, name, p, n, share);
}

void mx8i_describe_conversion(const struct mx8_model *m, int32_t full, const struct mx8_log *out) {
    const struct mx8_param_table *t = mx8i_get_params(m);
    double share = 0;
    int64_t converted = 0;
    for (int64_t i = 0; i < t->count; i++)
        if (t->param[i].mxfp8) {
            share += t->param[i].flops_share;
            converted++;
        }
    mx8i_log(out, "Converted to MXFP8: %lld of %lld tensors, %.1f %% of the model's FLOPs", (long long)converted,
        (long long)t->count, 100 * share);
    for (int64_t i = 0; i < t->count; i++) {
        if (full)
            log_row(out, t->param[i].name, &t->param[i], 1, t->param[i].flops_share);
        else
            log_class(t, i, out);
    }
}

struct mx8_prefetch_options mx8i_get_prefetch_options(const struct mx8_job *job) {
    return (struct mx8_prefetch_options){
        .rows = job->local_batch_size, .docs = job->config.attn_mask == MX8_MASK_DOCUMENT, .threaded = job->prefetch};
}

size_t mx8i_count_batch_bytes(const struct mx8_job *job) {
    struct mx8_prefetch_options options = mx8i_get_prefetch_options(job);
    return mx8i_count_prefetch_bytes(&options, job->model.seq_len) + mx8i_count_validation_bytes(job);
}

/* Masters and moments with their gaps, then what a checkpoint has beside them: for each MoE layer a bias and counts,
 * and the losses of all steps. */
size_t mx8i_count_snapshot_plan(const struct mx8_job *job, const struct mx8_memory_plan *plan) {
    const struct mx8_model_config *c = &job->config;
    if (!job->checkpoint.enable || !job->checkpoint.async || mx8i_count_ranks(job) > 1) return 0;
    size_t layer = (size_t)c->num_experts * (sizeof(float) + sizeof(int64_t)) + MX8_SNAPSHOT_ALIGNMENT, layers = 0;
    for (int64_t i = 0; i < c->n_layers; i++) layers += mx8i_is_moe_layer(c, i) != 0;
    return plan->masters + plan->moments + layers * layer + (size_t)job->steps * sizeof(double) +
           4 * MX8_SNAPSHOT_ALIGNMENT;
}

int64_t mx8i_count_job_bytes(const struct mx8_job *job, const struct mx8_memory_plan *plan) {
    size_t snapshot = job->device ? 0 : mx8i_count_snapshot_plan(job, plan);
    return (int64_t)(plan->total + mx8i_count_batch_bytes(job) + MX8_OPTIMIZER_BYTES + snapshot);
}

static void log_bytes(const struct mx8_log *out, const char *purpose, const char *what, size_t bytes) {
    char text[64];
    mx8i_log(out, "%-10s %20s bytes %9.3f GiB  %s", purpose, mx8i_format_thousands(text, (double)bytes, 0),
        (double)bytes / (1 << 30), what);
}

enum mx8_status mx8i_describe_plan(const struct mx8_job *job, struct mx8_context *ctx, const struct mx8_log *out) {
    struct mx8_model *model = NULL;
    MX8_TRY(mx8i_plan_model(&job->config, &job->recipe, &job->model, &model));
    const struct mx8_memory_plan *p = mx8i_get_memory_plan(model, ctx);
    char tokens[64];
    mx8i_log(out, "Memory plan: llama4 %s, recipe %s, batch %lld x %lld = %s tokens", job->config.flavor,
        job->recipe.name, (long long)job->local_batch_size, (long long)job->model.seq_len,
        mx8i_format_thousands(tokens, (double)(job->local_batch_size * job->model.seq_len), 0));
    log_bytes(out, "masters", "weights in float32", p->masters);
    log_bytes(out, "copies", "weights in bfloat16", p->copies);
    log_bytes(out, "codes", "weights in MXFP8", p->codes);
    log_bytes(out, "gradients", "in float32", p->gradients);
    log_bytes(out, "moments", job->model.moment_dtype == MX8_BF16 ? "AdamW's, in bfloat16" : "AdamW's, in float32",
        p->moments);
    if (p->gathered) log_bytes(out, "gathered", "weights of whole layers, from all ranks", p->gathered);
    if (p->reduced) log_bytes(out, "reduced", "gradients of whole layers, and those that arrive", p->reduced);
    log_bytes(out, "saved", "activations kept for the backward pass", p->saved);
    log_bytes(out, "scratch", "inside one layer, operators' workspace included", p->scratch);
    log_bytes(out, "workspace", "of the device or the threads", p->workspace);
    log_bytes(out, "buffers", "expert bias and step inputs", p->buffers);
    log_bytes(out, "batch", "tokens being read, optimizer scalars", mx8i_count_batch_bytes(job) + MX8_OPTIMIZER_BYTES);
    size_t snapshot = mx8i_count_snapshot_plan(job, p);
    if (snapshot)
        log_bytes(out, "snapshot",
            job->device ? "host memory, a copy to be saved, not in the total" : "a copy to be saved in the background",
            snapshot);
    log_bytes(out, "total", "held from start to end", (size_t)mx8i_count_job_bytes(job, p));
    mx8i_free_model(model);
    return MX8_OK;
}
