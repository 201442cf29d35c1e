/* Advice is tried, not guessed: the job is planned again with one option after the other, those that cost the least
 * speed first, then with all of them. */
#include "train/memory_advice.h"
#include <stdio.h>
#include <string.h>
#include "base/error.h"
#include "train/describe.h"

enum change { OPS = 1, MOMENTS = 2, FULL = 4, HALVE = 8, ONE = 16 };

static const int32_t tries[] = {OPS, MOMENTS, OPS | MOMENTS, FULL, HALVE, FULL | MOMENTS, ONE, FULL | MOMENTS | ONE};

/* The job with the changes; 0 when it has one of them already. */
static int32_t change_job(struct mx8_job *job, int32_t changes) {
    struct mx8_model_options *m = &job->model;
    if (changes & (OPS | FULL)) {
        const int32_t mode = changes & FULL ? MX8_AC_FULL : MX8_AC_OPS;
        if (m->ac_mode == MX8_AC_FULL || m->ac_mode == mode) return 0;
        m->ac_mode = mode;
    }
    if (changes & MOMENTS) {
        if (m->moment_dtype == MX8_BF16) return 0;
        m->moment_dtype = MX8_BF16;
    }
    if (changes & (HALVE | ONE)) {
        if (job->local_batch_size == 1 || (changes & HALVE && job->local_batch_size % 2)) return 0;
        const int64_t smaller = changes & HALVE ? job->local_batch_size / 2 : 1;
        job->accumulation *= job->local_batch_size / smaller;
        job->local_batch_size = m->batch = smaller;
    }
    return 1;
}

/* Bytes of the context's memory; 0 when it cannot be planned. On a device the context holds its own scratch already. */
static int64_t count_needed(const struct mx8_job *job, struct mx8_context *ctx, struct mx8_model *m) {
    if (ctx->exec.ordinal >= 0) return (int64_t)mx8i_get_memory_plan(m, NULL)->total;
    return mx8i_count_job_bytes(job, mx8i_get_memory_plan(m, ctx));
}

static int64_t plan_job(const struct mx8_job *job, struct mx8_context *ctx) {
    struct mx8_model *m = NULL;
    if (mx8i_plan_model(&job->config, &job->recipe, &job->model, &m) != MX8_OK) return 0;
    const int64_t bytes = count_needed(job, ctx, m);
    mx8i_free_model(m);
    return bytes;
}

static void name_changes(char *text, size_t size, const struct mx8_job *job, int32_t changes) {
    char batch[120] = "";
    const int64_t ranks = job->model.dist ? job->grid.world : 1,
                  global = job->local_batch_size * job->accumulation * ranks;
    if (changes & (HALVE | ONE))
        snprintf(batch, sizeof batch, "training.local_batch_size=%lld with training.global_batch_size=%lld",
            (long long)job->local_batch_size, (long long)global);
    const char *parts[] = {changes & OPS ? "activation_checkpoint.selective_ac_option=op" : "",
        changes & FULL ? "activation_checkpoint.mode=full" : "",
        changes & MOMENTS ? "optimizer.state_dtype=bfloat16" : "", batch};
    text[0] = 0;
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        const size_t used = strlen(text);
        if (parts[i][0]) snprintf(text + used, size - used, "%s%s", used ? ", " : "", parts[i]);
    }
}

static void advise(const struct mx8_job *job, struct mx8_context *ctx, int64_t available, char *text, size_t size) {
    const double GiB = 1 << 30;
    char names[300] = "";
    int64_t least = 0;
    for (size_t i = 0; i < sizeof tries / sizeof tries[0]; i++) {
        struct mx8_job other = *job;
        if (!change_job(&other, tries[i])) continue;
        const int64_t bytes = plan_job(&other, ctx);
        if (bytes <= 0 || (least && bytes >= least)) continue;
        least = bytes;
        name_changes(names, sizeof names, &other, tries[i]);
        if (bytes > available) continue;
        snprintf(text, size, "%s would make it fit, with %.2f GiB", names, (double)bytes / GiB);
        return;
    }
    if (least)
        snprintf(text, size, "with %s it still needs %.2f GiB: a shorter training.seq_len or a smaller model", names,
            (double)least / GiB);
    else
        snprintf(text, size, "a shorter training.seq_len or a smaller model would need less");
}

enum mx8_status mx8i_check_memory(
    const struct mx8_job *job, struct mx8_context *ctx, struct mx8_model *m, int64_t available) {
    const int64_t needed = count_needed(job, ctx, m);
    if (available <= 0 || needed <= available) return MX8_OK;
    char advice[512];
    advise(job, ctx, available, advice, sizeof advice);
    return MX8_FAIL(MX8_OUT_OF_MEMORY,
        "the job needs %.2f GiB, the %s has %.2f GiB left (--dry-run shows the plan): %s", (double)needed / (1 << 30),
        ctx->exec.ordinal >= 0 ? "device" : "machine", (double)available / (1 << 30), advice);
}

enum mx8_status mx8i_advise_on_memory(const struct mx8_job *job, struct mx8_context *ctx, int64_t available) {
    char what[700], advice[512];
    snprintf(what, sizeof what, "%s", mx8_get_last_error());
    advise(job, ctx, available, advice, sizeof advice);
    return MX8_FAIL(MX8_OUT_OF_MEMORY, "%s; %s", what, advice);
}
