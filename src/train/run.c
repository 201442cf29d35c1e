/* Opening and closing a job: what happens before the first step and after the last. */
#include "train/parallel.h"
#include "train/run.h"
#include "base/error.h"
#include "base/folder.h"
#include "base/memory.h"
#include "train/describe.h"
#include "train/logline.h"
#include "train/memory_advice.h"
#include "train/peak.h"
#include "train/run_state.h"

static enum mx8_status allocate_host(struct mx8_run *r) {
    size_t steps = (size_t)r->job->steps;
    r->losses = mx8i_allocate(steps * sizeof *r->losses, "the losses of all steps");
    r->speeds = mx8i_allocate(steps * sizeof *r->speeds, "the speeds of all steps");
    return r->losses && r->speeds ? MX8_OK : MX8_OUT_OF_MEMORY;
}

enum mx8_status mx8i_open_run(struct mx8_run *r) {
    const struct mx8_job *job = r->job;
    if (mx8i_is_first_rank(job) || job->save_for_all_ranks)
        MX8_TRY(mx8i_check_folder(job->dump_folder, "job.dump_folder"));
    MX8_TRY(mx8i_begin_compiling(job, r->ctx, &r->compiled));
    MX8_TRY(mx8i_plan_model(&job->config, &job->recipe, &job->model, &r->model));
    r->memory = mx8i_count_job_bytes(job, mx8i_get_memory_plan(r->model, r->ctx));
    r->capacity = r->ctx->exec.k->get_free_memory(&r->ctx->exec);
    MX8_TRY(mx8i_check_memory(job, r->ctx, r->model, r->capacity));
    MX8_TRY(mx8i_open_run_data(r));
    MX8_TRY(mx8i_check_agreement(r));
    MX8_TRY(allocate_host(r));
    enum mx8_status status = mx8i_allocate_model(r->model, r->ctx);
    if (status == MX8_OUT_OF_MEMORY) return mx8i_advise_on_memory(job, r->ctx, r->capacity);
    MX8_TRY(status);
    MX8_TRY(mx8i_open_optimizer(r->ctx, &r->optimizer));
    MX8_TRY(mx8i_find_peak(r->ctx, job->recipe.dtype, &r->peak_flops));
    struct mx8_device_facts facts = {r->memory, r->capacity, r->peak_flops};
    mx8i_log_start(&r->watch->log, job, r->ctx, r->data, &facts);
    if (r->validator) mx8i_log_validation_set(&r->watch->log, r->validator);
    if (job->print_after_conversion || job->recipe.convert_linear || job->recipe.convert_experts)
        mx8i_describe_conversion(r->model, job->print_after_conversion, &r->watch->log);
    MX8_TRY(mx8i_start_state(r));
    r->started_at = r->step;
    if (r->complete) return MX8_OK;
    r->flat = mx8i_view_flat(r->model, job->model.dist);
    r->optimizer.seed = job->seed;
    struct mx8_history history = {r->resumed ? r->step : 0, r->branched};
    r->metrics.capacity = r->capacity;
    r->metrics.peak_flops = r->peak_flops;
    r->optimizer.scalars_on_device = r->compiled.on;
    if (r->compiled.on) mx8i_use_graphs(r->model, &r->watch->log);
    const int is_reporting = mx8i_is_first_rank(job) || job->save_for_all_ranks;
    if (is_reporting) MX8_TRY(mx8i_open_step_profile(job, r->ctx, &r->profile));
    if (is_reporting) MX8_TRY(mx8i_open_metrics(job, r->ctx, r->model, &history, &r->watch->log, &r->metrics));
    return mx8i_start_saving(r); /* files last: a job that cannot start leaves none */
}

void mx8i_close_run(struct mx8_run *r) {
    mx8i_end_compiling(&r->compiled, r->ctx);
    mx8i_close_step_profile(&r->profile, r->ctx);
    mx8i_close_saver(r->saver);
    mx8i_close_store(&r->store);
    mx8i_close_metrics(&r->metrics);
    mx8i_close_optimizer(&r->optimizer);
    mx8i_free_model(r->model);
    mx8i_close_run_data(r);
    mx8i_release(r->checkpoint_folder);
    mx8i_release(r->losses);
    mx8i_release(r->speeds);
}
