/* From the option table to the data of a job. mx8 downloads nothing: torchtitan's names of hosted data sets stand for
 * files that the user points at. */
#include <stdio.h>
#include <string.h>
#include "base/error.h"
#include "train/mixture.h"
#include "train/resolve.h"

#define DEFAULT_PATH  "/usr/include" /* text that every machine which can build mx8 has */
#define DEFAULT_BYTES (8 << 20)

/* *dataset: "auto", "text", "shards" or "random". section: "training" or "validation". */
static enum mx8_status resolve_kind(const char *section, const char *path, const char **dataset) {
    static const char *const known[] = {"auto", "text", "shards", "random"};
    int is_known = 0;
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) is_known |= !strcmp(*dataset, known[i]);
    if (!is_known && strncmp(*dataset, "c4", 2))
        return MX8_FAIL(
            MX8_INVALID_ARGUMENT, "%s.dataset is \"%s\", expected auto, text, shards or random", section, *dataset);
    if (!is_known && !path[0])
        return MX8_FAIL(MX8_UNSUPPORTED,
            "%s.dataset is \"%s\": mx8 downloads nothing; give the text or the token "
            "shards by %s.dataset_path",
            section, *dataset, section);
    if (!is_known) *dataset = "auto";
    if (!strcmp(*dataset, "shards") && !path[0])
        return MX8_FAIL(MX8_INVALID_ARGUMENT, "%s.dataset is shards: expected %s.dataset_path", section, section);
    return MX8_OK;
}

/* Paths and weights are read again where the data is opened; here they only have to make sense. */
static enum mx8_status check_mixture(const char *option, const char *text) {
    struct mx8_mixture mixture;
    enum mx8_status status = mx8i_parse_mixture(text, option, &mixture);
    mx8i_release_mixture(&mixture);
    return status;
}

static enum mx8_status resolve_training(const struct mx8_options *o, struct mx8_job *job, const struct mx8_log *notes) {
    job->dataset = mx8i_get_text(o, "training.dataset");
    job->dataset_path = mx8i_get_text(o, "training.dataset_path");
    MX8_TRY(resolve_kind("training", job->dataset_path, &job->dataset));
    job->shuffle = mx8i_get_bool(o, "training.shuffle");
    job->prefetch = mx8i_get_bool(o, "training.prefetch");
    job->document_end = mx8i_is_set(o, "training.eos_id") ? mx8i_get_int(o, "training.eos_id") : -1;
    job->dataset_bytes = mx8i_is_set(o, "training.dataset_bytes") ? mx8i_get_int(o, "training.dataset_bytes") : 0;
    if (!strcmp(job->dataset, "random")) return MX8_OK;
    if (job->dataset_path[0]) return check_mixture("training.dataset_path", job->dataset_path);
    job->dataset = "text";
    job->dataset_path = DEFAULT_PATH;
    if (!mx8i_is_set(o, "training.dataset_bytes")) job->dataset_bytes = DEFAULT_BYTES;
    mx8i_log(notes, "training.dataset_path is not set: training on the text under %s", DEFAULT_PATH);
    return MX8_OK;
}

static enum mx8_status resolve_validation(const struct mx8_options *o, struct mx8_job *job) {
    struct mx8_validation *v = &job->validation;
    v->enabled = mx8i_get_bool(o, "validation.enable");
    if (!v->enabled) return MX8_OK;
    v->dataset = mx8i_get_text(o, "validation.dataset");
    v->dataset_path = mx8i_get_text(o, "validation.dataset_path");
    MX8_TRY(resolve_kind("validation", v->dataset_path, &v->dataset));
    int is_random = !strcmp(v->dataset, "random");
    if (!is_random && !v->dataset_path[0])
        return MX8_FAIL(MX8_INVALID_ARGUMENT,
            "validation.enable is set, but validation.dataset_path is not: expected text or token shards that are "
            "not trained on");
    const struct mx8_option_default {
        const char *key;
        int64_t *value, unset;
    } sizes[] = {{"validation.local_batch_size", &v->batch, job->local_batch_size},
        {"validation.seq_len", &v->seq_len, job->model.seq_len}};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        *sizes[i].value = mx8i_is_set(o, sizes[i].key) ? mx8i_get_int(o, sizes[i].key) : sizes[i].unset;
    v->freq = mx8i_get_int(o, "validation.freq");
    v->steps = mx8i_get_int(o, "validation.steps");
    if (v->seq_len > job->model.seq_len)
        return MX8_FAIL(MX8_UNSUPPORTED, "validation.seq_len is %lld, expected at most training.seq_len, which is %lld",
            (long long)v->seq_len, (long long)job->model.seq_len);
    if (v->steps == 0) return MX8_FAIL(MX8_INVALID_ARGUMENT, "validation.steps is 0, expected -1 or at least 1");
    if (is_random && v->steps < 0)
        return MX8_FAIL(MX8_INVALID_ARGUMENT,
            "validation.dataset is random, which has no end: expected validation.steps of at least 1");
    return is_random ? MX8_OK : check_mixture("validation.dataset_path", v->dataset_path);
}

enum mx8_status mx8i_resolve_data(const struct mx8_options *o, struct mx8_job *job, const struct mx8_log *notes) {
    MX8_TRY(resolve_training(o, job, notes));
    return resolve_validation(o, job);
}
