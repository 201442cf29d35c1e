/* Resolving a job: everything that options alone can get wrong is found here, before data is read or memory taken. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "base/error.h"
#include "train/parallel.h"
#include "train/resolve.h"

/* Whether the value means the default, whatever its spelling ("01", "True", "1.00"). */
static int is_default(const struct mx8_options *o, int32_t index) {
    const struct mx8_option *option = &o->table[index];
    if (!mx8i_is_set(o, option->key)) return 1;
    const char *text = mx8i_get_text(o, option->key);
    if (!strcmp(text, option->value)) return 1;
    if (option->type == MX8_OPT_BOOL) return mx8i_get_bool(o, option->key) == !strcmp(option->value, "true");
    if (option->type == MX8_OPT_INT) return mx8i_get_int(o, option->key) == strtoll(option->value, NULL, 10);
    if (option->type == MX8_OPT_LIST) return mx8i_get_list(o, option->key, NULL, NULL) == 0 && !option->value[0];
    return 0;
}

static enum mx8_status check_unsupported(const struct mx8_options *o) {
    size_t mark = strlen(MX8_MARK_ONLY);
    for (int32_t i = 0; i < o->count; i++) {
        const struct mx8_option *option = &o->table[i];
        if (strncmp(option->help, MX8_MARK_ONLY, mark) || is_default(o, i)) continue;
        return MX8_FAIL(MX8_UNSUPPORTED, "%s is \"%s\" (%s), but mx8 supports only \"%s\": %s", option->key,
            mx8i_get_text(o, option->key), o->value[i].source, option->value, option->help + mark);
    }
    return MX8_OK;
}

/* What is set for something that is not switched on: a TOML file may hold it for another day, so it is a note. */
static void note_idle(const struct mx8_options *o, const struct mx8_log *notes) {
    static const struct {
        const char *begin, *needs, *then;
    } rows[] = {
        {"mx.", "model.converters", "nothing is converted to MXFP8"},
        {"quantize.", "model.converters", "nothing is converted to MXFP8"},
        {"validation.", "validation.enable", "nothing is validated"},
        {"checkpoint.interval", "checkpoint.enable", "nothing is saved"},
    };
    for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
        if (mx8i_is_set(o, rows[r].needs)) continue;
        for (int32_t i = 0; i < o->count; i++) {
            const char *key = o->table[i].key;
            if (strncmp(key, rows[r].begin, strlen(rows[r].begin)) || !mx8i_is_set(o, key)) continue;
            mx8i_log(notes, "%s is set, but %s is not: %s", key, rows[r].needs, rows[r].then);
            break;
        }
    }
}

static enum mx8_status resolve_batch(const struct mx8_options *o, struct mx8_job *job) {
    int64_t global = mx8i_get_int(o, "training.global_batch_size"), local = job->local_batch_size;
    const int64_t ranks = mx8i_count_ranks(job), least = local * ranks;
    job->accumulation = 1;
    if (global == -1) return MX8_OK;
    if (global < least || global % least)
        return MX8_FAIL(MX8_INVALID_ARGUMENT,
            "training.global_batch_size is %lld, expected a multiple of training.local_batch_size, which is %lld%s",
            (long long)global, (long long)local, ranks > 1 ? ", times the number of processes" : "");
    job->accumulation = global / least;
    return MX8_OK;
}

static enum mx8_status resolve_optimizer(
    const struct mx8_options *o, struct mx8_job *job, const struct mx8_log *notes) {
    job->adamw = (struct mx8_adamw){.beta1 = mx8i_get_float(o, "optimizer.beta1"),
        .beta2 = mx8i_get_float(o, "optimizer.beta2"),
        .eps = mx8i_get_float(o, "optimizer.eps"),
        .weight_decay = mx8i_get_float(o, "optimizer.weight_decay")};
    if (job->adamw.beta1 >= 1 || job->adamw.beta2 >= 1)
        return MX8_FAIL(MX8_INVALID_ARGUMENT, "optimizer.beta1 is %g and optimizer.beta2 is %g, expected both below 1",
            job->adamw.beta1, job->adamw.beta2);
    job->model.moment_dtype = !strcmp(mx8i_get_text(o, "optimizer.state_dtype"), "bfloat16") ? MX8_BF16 : MX8_F32;
    job->max_norm = mx8i_get_float(o, "training.max_norm");
    if (!(job->max_norm > 0))
        return MX8_FAIL(MX8_INVALID_ARGUMENT, "training.max_norm is %g, expected more than 0", job->max_norm);

    const char *type = mx8i_get_text(o, "lr_scheduler.decay_type");
    double ratio =
        mx8i_is_set(o, "lr_scheduler.decay_ratio") ? mx8i_get_float(o, "lr_scheduler.decay_ratio") : (double)NAN;
    job->schedule = mx8i_make_schedule(mx8i_get_float(o, "optimizer.lr"), job->steps,
        mx8i_get_int(o, "lr_scheduler.warmup_steps"), ratio,
        !strcmp(type, "sqrt")     ? MX8_DECAY_SQRT
        : !strcmp(type, "cosine") ? MX8_DECAY_COSINE
                                  : MX8_DECAY_LINEAR,
        mx8i_get_float(o, "lr_scheduler.min_lr_factor"), notes);
    return MX8_OK;
}

static void resolve_rest(const struct mx8_options *o, struct mx8_job *job, const struct mx8_log *notes) {
    const char *on_nan = mx8i_get_text(o, "training.on_nan");
    job->on_nan = !strcmp(on_nan, "skip")       ? MX8_ON_NAN_SKIP
                  : !strcmp(on_nan, "continue") ? MX8_ON_NAN_CONTINUE
                                                : MX8_ON_NAN_STOP;
    job->log_freq = mx8i_get_int(o, "metrics.log_freq");
    job->color = !mx8i_get_bool(o, "metrics.disable_color_printing");
    job->tensorboard_folder =
        mx8i_get_bool(o, "metrics.enable_tensorboard") ? mx8i_get_text(o, "metrics.save_tb_folder") : "";
    job->seed = (uint64_t)mx8i_get_int(o, "training.seed");
    job->dump_folder = mx8i_get_text(o, "job.dump_folder");
    job->description = mx8i_get_text(o, "job.description");
    job->print_args = mx8i_get_bool(o, "job.print_args");
    job->dry_run = mx8i_get_bool(o, "job.dry_run");
    job->print_after_conversion = mx8i_get_bool(o, "model.print_after_conversion");
    job->threads = (int32_t)mx8i_get_int(o, "job.threads");
    job->device = !strcmp(mx8i_get_text(o, "job.device"), "cuda");
    job->model.count_gaps = mx8i_get_bool(o, "metrics.enable_scale_gaps");
    job->profile = mx8i_get_bool(o, "profiling.enable_profiling");
    job->compile = mx8i_get_bool(o, "compile.enable");
    if (job->compile && job->device == 0) mx8i_log(notes, "compile.enable: nothing to compile on the CPU");
    if (job->compile && job->profile && job->device)
        mx8i_log(notes, "compile.enable: a profile times calls one by one, so no graph is captured");
    if (job->compile && job->device && mx8i_count_ranks(job) > 1)
        mx8i_log(notes, "compile.enable: messages between processes are no part of a graph, so none is captured");
}

/* Each chunk of the head adds to all of its weight's gradient (4 V D bytes read and written): on CUDA, where that is
 * what a small chunk waits for, a chunk is as large as the memory of later gradients allows, or, where gradients
 * accumulate, 2 GiB of bf16 logits. The CPU keeps the operator's own choice, which stays in its caches. */
static int64_t choose_loss_chunk(const struct mx8_job *job) {
    if (job->device == 0) return 0;
    if (job->accumulation == 1 && mx8i_count_ranks(job) == 1) return -1;
    int64_t rows = 8192;
    while (rows > 512 && rows * job->config.vocab_size * 2 > INT64_C(2) << 30) rows /= 2;
    return rows;
}

enum mx8_status mx8i_resolve_job(const struct mx8_options *o, struct mx8_job *out, const struct mx8_log *notes) {
    struct mx8_launch launch;
    MX8_TRY(mx8i_find_launch(&launch));
    return mx8i_resolve_job_as(o, &launch, out, notes);
}

enum mx8_status mx8i_resolve_job_as(
    const struct mx8_options *o, const struct mx8_launch *launch, struct mx8_job *out, const struct mx8_log *notes) {
    static const struct mx8_log silent;
    if (!notes) notes = &silent;
    *out = (struct mx8_job){.options = o, .steps = mx8i_get_int(o, "training.steps")};
    MX8_TRY(check_unsupported(o));
    note_idle(o, notes);
    MX8_TRY(mx8i_resolve_parallel(o, launch, out));
    MX8_TRY(mx8i_resolve_model(o, out));
    MX8_TRY(mx8i_resolve_recipe(o, out, notes));
    MX8_TRY(resolve_batch(o, out));
    MX8_TRY(resolve_optimizer(o, out, notes));
    MX8_TRY(mx8i_resolve_data(o, out, notes));
    MX8_TRY(mx8i_resolve_checkpoint(o, out, notes));
    resolve_rest(o, out, notes);
    out->model.loss_chunk_rows = choose_loss_chunk(out);
    return mx8i_resolve_debug(o, out, notes);
}
