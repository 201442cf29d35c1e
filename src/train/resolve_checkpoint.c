/* The checkpoint section of the options, by torchtitan's rules. */
#include <string.h>
#include "base/error.h"
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
        .export_dtype = strcmp(mx8i_get_text(o, "checkpoint.export_dtype"), "bfloat16") ? MX8_F32 : MX8_BF16,
        .goes_on = !strcmp(mx8i_get_text(o, "checkpoint.on_save_error"), "continue")};
    if (c->enable && !strcmp(async, "async_with_pinned_mem"))
        mx8i_log(notes, "checkpoint.async_mode: the copy lies in ordinary host memory, as with async");
    MX8_TRY(resolve_exclusions(o, c));
    return check_numbers(c);
}
