/* What a run does with data: opens it, reads its batches from r->position on, and validates. */
#include <math.h>
#include "base/error.h"
#include "train/describe.h"
#include "train/logline.h"
#include "train/parallel.h"

enum mx8_status mx8i_open_run_data(struct mx8_run *r) {
    const struct mx8_job *job = r->job;
    struct mx8_data_options options = {.dataset = job->dataset,
        .path = job->dataset_path,
        .max_bytes = job->dataset_bytes,
        .seq_len = job->model.seq_len,
        .vocab_size = job->config.vocab_size,
        .document_end = job->document_end,
        .seed = job->seed,
        .shuffle = job->shuffle};
    MX8_TRY(mx8i_open_data(&options, &r->data));
    return mx8i_open_validator(job, &r->validator);
}

void mx8i_close_run_data(struct mx8_run *r) {
    mx8i_close_prefetch(r->batches);
    mx8i_close_validator(r->validator);
    mx8i_close_data(r->data);
}

enum mx8_status mx8i_next_run_batch(struct mx8_run *r, struct mx8_step *s, struct mx8_batch *out) {
    double before = mx8i_get_seconds();
    if (!r->batches) {
        struct mx8_prefetch_options options = mx8i_get_prefetch_options(r->job);
        options.first = r->position + r->job->grid.rank * options.rows;
        options.stride = mx8i_count_ranks(r->job) * options.rows;
        MX8_TRY(mx8i_open_prefetch(r->data, &options, &r->batches));
    }
    MX8_TRY(mx8i_next_batch(r->batches, out));
    double seconds = mx8i_get_seconds() - before;
    s->data_seconds += seconds;
    r->data_seconds += seconds;
    return MX8_OK;
}

enum mx8_status mx8i_validate_run(struct mx8_run *r, struct mx8_step *s) {
    struct mx8_validation_result result;
    if (!mx8i_is_validation_step(r->job, s->step)) return MX8_OK;
    double before = mx8i_get_seconds();
    MX8_TRY(mx8i_validate_model(r->validator, r->model, r->watch->should_stop, r->watch->user, &result));
    r->line_time += mx8i_get_seconds() - before;
    s->validated = result.finished;
    s->validation_loss = result.loss;
    s->validation_seconds = result.seconds;
    s->validation_tokens = result.tokens;
    return MX8_OK;
}

void mx8i_finish_step_data(struct mx8_run *r, const struct mx8_step *s, struct mx8_summary *out) {
    char text[512];
    r->step_seconds += s->seconds;
    out->data_share = r->data_seconds / fmax(r->step_seconds, 1e-9);
    if (!s->validated) return;
    struct mx8_step_line line = {.step = s->step,
        .memory = r->memory,
        .capacity = r->capacity,
        .loss = s->validation_loss,
        .tokens_per_second = (double)s->validation_tokens / fmax(s->validation_seconds, 1e-9)};
    mx8i_format_validation(text, sizeof text, &line);
    mx8i_log(&r->watch->log, "%s", text);
    out->validation_loss = s->validation_loss;
    out->validation_step = s->step;
}
