/* The model's batch and sequence length are training's. A validation sample that is shorter stands at the start of a
 * row, where causal attention keeps what follows from reaching it; rows and places that are left over have no target,
 * so that the loss does not count them. */
#include "train/validate.h"
#include "base/error.h"
#include "base/memory.h"

struct mx8_validator {
    struct mx8_data *data;
    struct mx8_dist *dist;            /* NULL: one process; else ranks take turns at batches */
    int64_t rows, width;              /* of the model's microbatch */
    int64_t length, samples;          /* of a sample; of one validation */
    int32_t *tokens, *targets, *docs; /* (rows, width); docs NULL unless the mask wants them */
};

int mx8i_is_validation_step(const struct mx8_job *job, int64_t step) {
    const struct mx8_validation *v = &job->validation;
    return v->enabled && (step == 1 || step % v->freq == 0 || step == job->steps);
}

size_t mx8i_count_validation_bytes(const struct mx8_job *job) {
    size_t arrays = job->config.attn_mask == MX8_MASK_DOCUMENT ? 3 : 2;
    if (!job->validation.enabled) return 0;
    return arrays * sizeof(int32_t) * (size_t)job->local_batch_size * (size_t)job->model.seq_len;
}

static enum mx8_status open_set(const struct mx8_job *job, struct mx8_validator *v) {
    const struct mx8_validation *o = &job->validation;
    struct mx8_data_options options = {.dataset = o->dataset,
        .path = o->dataset_path,
        .name = "validation.dataset_path",
        .seq_len = o->seq_len,
        .vocab_size = job->config.vocab_size,
        .document_end = job->document_end,
        .seed = job->seed + 1}; /* random tokens that are not those of training */
    return mx8i_open_data(&options, &v->data);
}

static enum mx8_status fill_validator(const struct mx8_job *job, struct mx8_validator *v) {
    size_t bytes = (size_t)job->local_batch_size * (size_t)job->model.seq_len * sizeof(int32_t);
    int wants_docs = job->config.attn_mask == MX8_MASK_DOCUMENT;
    v->rows = job->local_batch_size;
    v->dist = job->model.dist;
    v->width = job->model.seq_len;
    v->length = job->validation.seq_len;
    v->tokens = mx8i_allocate(bytes, "validation tokens");
    v->targets = mx8i_allocate(bytes, "validation targets");
    v->docs = wants_docs ? mx8i_allocate(bytes, "validation document ids") : NULL;
    if (!v->tokens || !v->targets || (wants_docs && !v->docs)) return MX8_OUT_OF_MEMORY;
    MX8_TRY(open_set(job, v));
    v->samples =
        job->validation.steps < 0 ? mx8i_count_samples(v->data) : job->validation.steps * job->validation.batch;
    return MX8_OK;
}

enum mx8_status mx8i_open_validator(const struct mx8_job *job, struct mx8_validator **out) {
    *out = NULL;
    if (!job->validation.enabled) return MX8_OK;
    struct mx8_validator *v = mx8i_allocate(sizeof *v, "validation");
    if (!v) return MX8_OUT_OF_MEMORY;
    enum mx8_status status = fill_validator(job, v);
    if (status != MX8_OK) {
        mx8i_close_validator(v);
        return status;
    }
    *out = v;
    return MX8_OK;
}

void mx8i_close_validator(struct mx8_validator *v) {
    if (!v) return;
    mx8i_close_data(v->data);
    mx8i_release(v->tokens);
    mx8i_release(v->targets);
    mx8i_release(v->docs);
    mx8i_release(v);
}

const struct mx8_data *mx8i_get_validation_data(const struct mx8_validator *v) {
    return v->data;
}

int64_t mx8i_count_validation_samples(const struct mx8_validator *v) {
    return v->samples;
}

/* Row b holds sample `position`, or nothing when that is none. */
static enum mx8_status fill_row(struct mx8_validator *v, int64_t b, int64_t position) {
    int32_t *tokens = v->tokens + b * v->width, *targets = v->targets + b * v->width;
    int32_t *docs = v->docs ? v->docs + b * v->width : NULL;
    int64_t length = position < v->samples ? v->length : 0;
    if (length) MX8_TRY(mx8i_read_sample(v->data, position, tokens, targets, docs));
    for (int64_t i = length; i < v->width; i++) {
        tokens[i] = 0;
        targets[i] = -1;
        if (docs) docs[i] = length ? docs[length - 1] + 1 : 0;
    }
    return MX8_OK;
}

enum mx8_status mx8i_validate_model(struct mx8_validator *v, struct mx8_model *m, int (*should_stop)(void *user),
    void *user, struct mx8_validation_result *out) {
    double started = mx8i_get_seconds(), sum = 0;
    const int64_t ranks = v->dist ? v->dist->grid.world : 1, first = v->dist ? v->dist->grid.rank * v->rows : 0;
    *out = (struct mx8_validation_result){.tokens = v->samples * v->length};
    for (int64_t position = 0; position < v->samples; position += ranks * v->rows) {
        /* ranks would not hear of it at the same batch, and wait for each other */
        if (!v->dist && should_stop && should_stop(user)) return MX8_OK;
        for (int64_t b = 0; b < v->rows; b++) MX8_TRY(fill_row(v, b, position + first + b));
        MX8_TRY(mx8i_forward(m, v->tokens, v->targets, v->docs, 1.0f, &sum, NULL));
    }
    if (v->dist) MX8_TRY(mx8i_sum_doubles(&v->dist->host, &sum, 1));
    out->loss = sum / (double)out->tokens;
    out->finished = 1;
    out->seconds = mx8i_get_seconds() - started;
    return MX8_OK;
}
