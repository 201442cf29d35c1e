/* Samples. A position picks a source and an index in it (mixture.c), a shuffle moves the index inside its pass, and the
 * sample is the source's tokens [index (S+1), (index+1) (S+1)), wrapping at its end: as in torchtitan the last token of
 * a sample is a target only and is not seen again, and a document may span samples. */
#include <stdio.h>
#include <string.h>
#include "base/error.h"
#include "base/memory.h"
#include "train/mixture.h"
#include "train/sha256.h"
#include "train/source.h"

struct mx8_data {
    int64_t seq_len, tokens, n_samples;
    uint64_t seed;
    int32_t shuffle;
    struct mx8_mixture mixture;
    struct mx8_data_files files;
    struct mx8_source *source; /* one for each path of the mixture */
    int64_t *samples;          /* whole samples of one pass over each */
    char *description, hash[65];
    int32_t *sample; /* seq_len + 1 tokens */
};

/* ---- opening ---- */

static enum mx8_status check_ids(const struct mx8_data *d, const char *option) {
    int64_t first = -1;
    for (int64_t i = 0; i < d->mixture.count; i++) {
        const struct mx8_ids *a = first < 0 ? NULL : &d->source[first].ids, *b = &d->source[i].ids;
        if (!b->tokenizer[0]) continue;
        if (a && (strcmp(a->tokenizer, b->tokenizer) != 0 || a->document_end != b->document_end))
            return MX8_FAIL(MX8_INVALID_ARGUMENT,
                "%s: %s was made by tokenizer %.16s (documents end with %lld) and %s by %.16s (%lld); expected the "
                "same for all",
                option, d->mixture.path[first], a->tokenizer, (long long)a->document_end, d->mixture.path[i],
                b->tokenizer, (long long)b->document_end);
        if (first < 0) first = i;
    }
    return MX8_OK;
}

static enum mx8_status open_sources(struct mx8_data *d, const struct mx8_data_options *o, const char *option) {
    MX8_TRY(mx8i_parse_mixture(strcmp(o->dataset, "random") ? o->path : "random", option, &d->mixture));
    d->source = mx8i_allocate((size_t)d->mixture.count * sizeof *d->source, "sources");
    d->samples = mx8i_allocate((size_t)d->mixture.count * sizeof *d->samples, "sources");
    if (!d->source || !d->samples) return MX8_OUT_OF_MEMORY;
    for (int64_t i = 0; i < d->mixture.count; i++) {
        MX8_TRY(mx8i_open_source(o, d->mixture.path[i], &d->files, &d->source[i]));
        int64_t samples = d->source[i].total / (d->seq_len + 1);
        d->samples[i] = samples > 0 ? samples : 1;
        d->n_samples += d->samples[i];
        d->tokens += d->source[i].total;
    }
    if (!d->mixture.sum) mx8i_set_weights(&d->mixture, d->samples);
    return check_ids(d, option);
}

/* "70.0 % of 3 files, ... under a; 30.0 % of ... under b" */
static enum mx8_status describe(struct mx8_data *d) {
    char *text = mx8i_copy_text(d->mixture.count == 1 ? d->source[0].description : "");
    for (int64_t i = 0; d->mixture.count > 1 && i < d->mixture.count && text; i++) {
        double share = 100 * (double)d->mixture.weight[i] / (double)d->mixture.sum;
        char *longer = mx8i_format_text("%s%s%.1f %% of %s", text, i ? "; " : "", share, d->source[i].description);
        mx8i_release(text);
        text = longer;
    }
    d->description = text && d->shuffle ? mx8i_format_text("%s, shuffled", text) : text;
    if (d->description != text) mx8i_release(text);
    return d->description ? MX8_OK : MX8_OUT_OF_MEMORY;
}

static void hash_number(struct mx8_sha256 *h, uint64_t value) {
    uint8_t bytes[8];
    for (int i = 0; i < 8; i++) bytes[i] = (uint8_t)(value >> 8 * i);
    mx8i_add_sha256(h, bytes, sizeof bytes);
}

/* Names without their folders: the same files may lie elsewhere on another machine. */
static void hash_data(struct mx8_data *d, const struct mx8_data_options *o) {
    struct mx8_sha256 h;
    int random = !strcmp(o->dataset, "random");
    mx8i_begin_sha256(&h);
    hash_number(&h, (uint64_t)d->seq_len);
    hash_number(&h, d->shuffle ? 1 : 0);
    hash_number(&h, d->shuffle || random ? d->seed : 0);
    for (int64_t i = 0; i < d->mixture.count; i++) {
        hash_number(&h, (uint64_t)d->mixture.weight[i]);
        hash_number(&h, (uint64_t)d->source[i].total);
        hash_number(&h, (uint64_t)d->source[i].ids.document_end);
        hash_number(&h, random ? (uint64_t)o->vocab_size : 0);
        const struct mx8_source *text = d->source[i].part && d->source[i].part->width == 1 ? &d->source[i] : NULL;
        for (int64_t k = 0; text && k < text->n_parts; k++) hash_number(&h, (uint64_t)text->part[k].count - 2);
    }
    for (int64_t i = 0; i < d->files.count; i++) {
        const char *slash = strrchr(d->files.file[i].path, '/'), *name = slash ? slash + 1 : d->files.file[i].path;
        mx8i_add_sha256(&h, name, strlen(name) + 1);
        hash_number(&h, (uint64_t)d->files.file[i].size);
    }
    mx8i_end_sha256(&h, d->hash);
}

static enum mx8_status fill_data(struct mx8_data *d, const struct mx8_data_options *o) {
    d->seq_len = o->seq_len;
    d->seed = o->seed;
    d->shuffle = o->shuffle;
    d->sample = mx8i_allocate(((size_t)o->seq_len + 1) * sizeof *d->sample, "a sample");
    if (!d->sample) return MX8_OUT_OF_MEMORY;
    MX8_TRY(open_sources(d, o, o->name ? o->name : "training.dataset_path"));
    hash_data(d, o);
    return describe(d);
}

enum mx8_status mx8i_open_data(const struct mx8_data_options *o, struct mx8_data **out) {
    *out = NULL;
    if (o->seq_len < 1 || o->vocab_size < 1 || o->vocab_size > INT32_MAX)
        return MX8_FAIL(MX8_INVALID_ARGUMENT,
            "mx8i_open_data: sequence length %lld, vocabulary %lld, expected at least 1", (long long)o->seq_len,
            (long long)o->vocab_size);
    struct mx8_data *d = mx8i_allocate(sizeof *d, "data");
    if (!d) return MX8_OUT_OF_MEMORY;
    enum mx8_status status = fill_data(d, o);
    if (status != MX8_OK) {
        mx8i_close_data(d);
        return status;
    }
    *out = d;
    return MX8_OK;
}

void mx8i_close_data(struct mx8_data *d) {
    if (!d) return;
    for (int64_t i = 0; d->source && i < d->mixture.count; i++) mx8i_close_source(&d->source[i]);
    mx8i_release(d->source);
    mx8i_release(d->samples);
    mx8i_release_mixture(&d->mixture);
    mx8i_close_data_files(&d->files);
    mx8i_release(d->description);
    mx8i_release(d->sample);
    mx8i_release(d);
}

int64_t mx8i_count_tokens(const struct mx8_data *d) {
    return d->tokens;
}

int64_t mx8i_count_samples(const struct mx8_data *d) {
    return d->n_samples;
}

int64_t mx8i_get_sample_length(const struct mx8_data *d) {
    return d->seq_len;
}

const char *mx8i_describe_data(const struct mx8_data *d) {
    return d->description;
}

const char *mx8i_get_data_hash(const struct mx8_data *d) {
    return d->hash;
}

/* ---- reading ---- */

/* Tokens from any index of a source on, which goes round. */
static enum mx8_status read_round(const struct mx8_source *s, int64_t at, int64_t n, int32_t *out) {
    for (int64_t done = 0; done < n;) {
        int64_t part = n - done < s->total - at ? n - done : s->total - at;
        MX8_TRY(s->read(s, at, part, out + done));
        done += part;
        at = 0;
    }
    return MX8_OK;
}

enum mx8_status mx8i_read_sample(
    struct mx8_data *d, int64_t position, int32_t *tokens, int32_t *targets, int32_t *docs) {
    int64_t length = d->seq_len + 1, most = INT64_MAX / 4 / length, source,
            index; /* / 4: a pass more overflows nothing */
    if (position < 0 || position > most)
        return MX8_FAIL(MX8_INVALID_ARGUMENT, "mx8i_read_sample: position %lld, expected 0 to %lld",
            (long long)position, (long long)most);
    mx8i_pick_source(&d->mixture, position, &source, &index);
    const struct mx8_source *s = &d->source[source];
    if (d->shuffle) {
        int64_t pass = index / d->samples[source], i = index % d->samples[source];
        index += mx8i_permute(d->seed, (uint64_t)source, (uint64_t)pass, d->samples[source], i) - i;
    }
    MX8_TRY(read_round(s, index * length % s->total, length, d->sample));
    memcpy(tokens, d->sample, (size_t)d->seq_len * sizeof *tokens);
    memcpy(targets, d->sample + 1, (size_t)d->seq_len * sizeof *targets);
    if (!docs) return MX8_OK;
    int32_t doc = 0;
    for (int64_t i = 0; i < d->seq_len; i++) {
        docs[i] = doc;
        doc += tokens[i] == s->ids.document_end;
    }
    return MX8_OK;
}
