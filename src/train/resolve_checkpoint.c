/* The checkpoint section of the options, by torchtitan's rules. */
#include <math.h>
#include <string.h>
#include "base/error.h"
#include "model/hf.h"
#include "train/resolve.h"

struct exclusion {
    int32_t mask;
    char unknown[64];
};

static void add_exclusion(void *user, const char *word) {
    static const struct {
        const char *name;
        int32_t bit;
    } words[] = {{"model", MX8_EXCLUDE_MODEL}, {"optimizer", MX8_EXCLUDE_OPTIMIZER},
        {"lr_scheduler", MX8_EXCLUDE_LR_SCHEDULER}, {"dataloader", MX8_EXCLUDE_DATALOADER},
        {"train_state", MX8_EXCLUDE_TRAIN_STATE}};
    struct exclusion *e = user;
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        if (strcmp(words[i].name, word)) continue;
        e->mask |= words[i].bit;
        return;
    }
    if (!e->unknown[0]) snprintf(e->unknown, sizeof e->unknown, "%s", word);
}

static enum mx8_status resolve_exclusions(const struct mx8_options *o, struct mx8_checkpoint_options *c) {
    struct exclusion e = {0};
    if (mx8i_get_list(o, "checkpoint.exclude_from_loading", add_exclusion, &e) < 0) return MX8_OUT_OF_MEMORY;
    if (e.unknown[0])
        return MX8_FAIL(MX8_INVALID_ARGUMENT,
            "checkpoint.exclude_from_loading names \"%s\", expected model, optimizer, lr_scheduler, dataloader or "
            "train_state",
            e.unknown);
    c->exclude = e.mask;
    return MX8_OK;
}

static enum mx8_status check_numbers(const struct mx8_checkpoint_options *c) {
    if (c->keep == 1)
        return MX8_FAIL(MX8_INVALID_ARGUMENT, "checkpoint.keep_latest_k is 1, expected 0 (all) or at least 2: one must "
                                              "be left when the newest is damaged");
    if (c->load_step >= 0 && !c->enable)
        return MX8_FAIL(MX8_INVALID_ARGUMENT,
            "checkpoint.load_step is %lld, but checkpoint.enable is off: expected both or none",
            (long long)c->load_step);
    return MX8_OK;
}

/* What cannot be written at the end is told at the start. */
static enum mx8_status check_hf(const struct mx8_job *job) {
    const struct mx8_checkpoint_options *c = &job->checkpoint;
    const struct mx8_hf_family *family;
    if (c->initial_in_hf && !c->initial_load_path[0])
        return MX8_FAIL(MX8_INVALID_ARGUMENT,
            "checkpoint.initial_load_in_hf is on, expected the folder as checkpoint.initial_load_path");
    if (c->initial_in_hf && !c->initial_model_only)
        return MX8_FAIL(MX8_INVALID_ARGUMENT, "checkpoint.initial_load_in_hf is on, and a Hugging Face folder holds "
                                              "weights only: expected checkpoint.initial_load_model_only");
    if (!c->last_in_hf) return MX8_OK;
    if (!c->enable)
        return MX8_FAIL(MX8_INVALID_ARGUMENT, "checkpoint.last_save_in_hf is on, expected checkpoint.enable too");
    if (!isnan(job->config.load_balance_coeff))
        return MX8_FAIL(MX8_INVALID_ARGUMENT,
            "checkpoint.last_save_in_hf is on, and moe.load_balance_coeff is %g: no Hugging Face family has a place "
            "for the "
            "expert bias that it makes; expected moe.load_balance_coeff=none",
            job->config.load_balance_coeff);
    enum mx8_status status = mx8i_guess_hf_family(&job->config, &family);
    return status == MX8_OK ? status : mx8i_fail_prefix(status, "checkpoint.last_save_in_hf is on");
}

enum mx8_status mx8i_resolve_checkpoint(const struct mx8_options *o, struct mx8_job *job, const struct mx8_log *notes) {
    const char *async = mx8i_get_text(o, "checkpoint.async_mode");
    struct mx8_checkpoint_options *c = &job->checkpoint;
    *c = (struct mx8_checkpoint_options){.folder = mx8i_get_text(o, "checkpoint.folder"),
        .initial_load_path = mx8i_get_text(o, "checkpoint.initial_load_path"),
        .interval = mx8i_get_int(o, "checkpoint.interval"),
        .keep = mx8i_get_int(o, "checkpoint.keep_latest_k"),
        .load_step = mx8i_get_int(o, "checkpoint.load_step"),
        .shard_bytes = (size_t)mx8i_get_int(o, "checkpoint.shard_mib") << 20,
        .enable = mx8i_get_bool(o, "checkpoint.enable"),
        .async = strcmp(async, "disabled") != 0,
        .first_step = mx8i_get_bool(o, "checkpoint.enable_first_step_checkpoint"),
        .initial_model_only = mx8i_get_bool(o, "checkpoint.initial_load_model_only"),
        .last_model_only = mx8i_get_bool(o, "checkpoint.last_save_model_only"),
        .initial_in_hf = mx8i_get_bool(o, "checkpoint.initial_load_in_hf"),
        .last_in_hf = mx8i_get_bool(o, "checkpoint.last_save_in_hf"),
        .export_dtype = strcmp(mx8i_get_text(o, "checkpoint.export_dtype"), "bfloat16") ? MX8_F32 : MX8_BF16,
        .goes_on = !strcmp(mx8i_get_text(o, "checkpoint.on_save_error"), "continue")};
    if (c->enable && !strcmp(async, "async_with_pinned_mem"))
        mx8i_log(notes, "checkpoint.async_mode: the copy lies in ordinary host memory, as with async");
    MX8_TRY(resolve_exclusions(o, c));
    MX8_TRY(check_hf(job));
    return check_numbers(c);
}
