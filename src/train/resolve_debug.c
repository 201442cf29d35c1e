/* The debug section: experiments that a study needs and training does not. What makes a model worse says so. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "base/error.h"
#include "train/resolve.h"

/* "NUMBER:REST", NUMBER a whole number >= 1. Returns the start of REST, NULL for anything else. */
static const char *split_number(const char *text, int64_t *number) {
    char *end;
    *number = strtoll(text, &end, 10);
    return end != text && *end == ':' && end[1] && *number >= 1 ? end + 1 : NULL;
}

static enum mx8_status resolve_outliers(const struct mx8_options *o, struct mx8_job *job, const struct mx8_log *notes) {
    const char *text = mx8i_get_text(o, "debug.outlier_channels");
    struct mx8_job_debug *d = &job->debug;
    if (!text[0]) return MX8_OK;
    const char *factor = split_number(text, &d->outlier_every);
    char *end = NULL;
    if (factor) d->outlier_factor = strtod(factor, &end);
    if (!factor || *end || !(d->outlier_factor > 0) || isinf(d->outlier_factor))
        return MX8_FAIL(MX8_INVALID_ARGUMENT,
            "debug.outlier_channels is \"%s\", expected EVERY:FACTOR such as 24:30: every 24th channel times 30", text);
    if (d->outlier_every > job->config.dim)
        return MX8_FAIL(MX8_INVALID_ARGUMENT,
            "debug.outlier_channels: every %lld-th channel of %lld, expected at most all", (long long)d->outlier_every,
            (long long)job->config.dim);
    if (job->checkpoint.initial_load_path[0])
        return MX8_FAIL(MX8_INVALID_ARGUMENT, "debug.outlier_channels changes initial weights, and "
                                              "checkpoint.initial_load_path loads them: expected one");
    mx8i_log(notes, "warning: debug.outlier_channels: every %lld-th channel of the embedding starts %g times as wide",
        (long long)d->outlier_every, d->outlier_factor);
    return MX8_OK;
}

static enum mx8_status resolve_dump(const struct mx8_options *o, struct mx8_job *job) {
    const char *text = mx8i_get_text(o, "debug.dump_tensors");
    struct mx8_job_debug *d = &job->debug;
    MX8_TRY(mx8i_join_list(o, "debug.dump_fqns", d->dump_names, sizeof d->dump_names));
    if (!text[0]) return MX8_OK;
    d->dump_folder = split_number(text, &d->dump_step);
    if (!d->dump_folder || d->dump_step > job->steps)
        return MX8_FAIL(MX8_INVALID_ARGUMENT,
            "debug.dump_tensors is \"%s\", expected STEP:FOLDER with a step from 1 to training.steps, which is %lld",
            text, (long long)job->steps);
    if (job->compile && job->device)
        return MX8_FAIL(MX8_UNSUPPORTED, "debug.dump_tensors with compile.enable: a captured step cannot write files; "
                                         "expected one of them");
    return MX8_OK;
}

static enum mx8_status resolve_control(const struct mx8_options *o, struct mx8_job *job, const struct mx8_log *notes) {
    const char *control = mx8i_get_text(o, "debug.mx_control");
    if (!strcmp(control, "none")) return MX8_OK;
    if (!job->recipe.convert_linear && !job->recipe.convert_experts)
        return MX8_FAIL(MX8_INVALID_ARGUMENT,
            "debug.mx_control is %s, but nothing is converted to MXFP8: expected a converter in model.converters",
            control);
    job->model.control = !strcmp(control, "e5m2_gradients") ? MX8_CONTROL_E5M2_GRADIENTS : MX8_CONTROL_REUSED_CODES;
    mx8i_log(notes, "warning: debug.mx_control %s makes MXFP8 worse on purpose; this is no training recipe", control);
    return MX8_OK;
}

enum mx8_status mx8i_resolve_debug(const struct mx8_options *o, struct mx8_job *job, const struct mx8_log *notes) {
    MX8_TRY(resolve_outliers(o, job, notes));
    MX8_TRY(resolve_dump(o, job));
    return resolve_control(o, job, notes);
}
