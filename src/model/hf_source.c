/* Opening weights under whatever names, and checking every tensor before one is read. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/complaints.h"
#include "base/error.h"
#include "base/file.h"
#include "base/memory.h"
#include "model/hf_private.h"

enum { MOST_JSON = 64 << 20, MOST_FILES = 100000 };

/* ---- files ---- */

static int exists(const char *folder, const char *name) {
    char path[4096];
    return snprintf(path, sizeof path, "%s/%s", folder, name) < (int)sizeof path && mx8i_is_file(path);
}

static enum mx8_status read_text(const char *folder, const char *name, char **text) {
    size_t size;
    char *path = mx8i_format_text("%s/%s", folder, name);
    enum mx8_status status = path ? mx8i_read_file(path, MOST_JSON, text, &size) : MX8_OUT_OF_MEMORY;
    mx8i_release(path);
    return status;
}

static enum mx8_status open_file(struct mx8_weights *s, const char *folder, const char *name) {
    struct mx8_safetensors *more = mx8i_reallocate(s->file, (size_t)(s->n_files + 1) * sizeof *more, "weight files");
    if (!more) return MX8_OUT_OF_MEMORY;
    s->file = more;
    char *path = folder ? mx8i_format_text("%s/%s", folder, name) : mx8i_copy_text(name);
    enum mx8_status status = path ? mx8i_open_safetensors(path, &s->file[s->n_files]) : MX8_OUT_OF_MEMORY;
    if (status == MX8_OK) s->n_files++;
    mx8i_release(path);
    return status;
}

/* The files that an index names, each once, none outside the folder. */
static enum mx8_status open_shards(struct mx8_weights *s, const char *folder, const json_t *map) {
    const char *key;
    json_t *value, *seen = json_object();
    enum mx8_status status = seen ? MX8_OK : MX8_OUT_OF_MEMORY;
    json_object_foreach((json_t *)(uintptr_t)map, key, value) {
        const char *name = json_string_value(value);
        if (status != MX8_OK || (name && json_object_get(seen, name))) continue;
        if (!name || strchr(name, '/') || s->n_files >= MOST_FILES)
            status = MX8_FAIL(
                MX8_FORMAT_ERROR, "%s/model.safetensors.index.json: \"%s\" has no file beside the index", folder, key);
        else if (json_object_set_new(seen, name, json_true()))
            status = MX8_OUT_OF_MEMORY;
        else
            status = open_file(s, folder, name);
    }
    json_decref(seen);
    if (status == MX8_OK && !s->n_files)
        status = MX8_FAIL(MX8_FORMAT_ERROR, "%s/model.safetensors.index.json names no file", folder);
    return status;
}

static enum mx8_status open_index(struct mx8_weights *s, const char *folder) {
    char *text;
    json_error_t error;
    MX8_TRY(read_text(folder, "model.safetensors.index.json", &text));
    json_t *index = json_loads(text, 0, &error);
    mx8i_release(text);
    const json_t *map = json_object_get(index, "weight_map");
    enum mx8_status status = json_is_object(map)
                                 ? open_shards(s, folder, map)
                                 : MX8_FAIL(MX8_FORMAT_ERROR,
                                       "%s/model.safetensors.index.json has no \"weight_map\": %s", folder, error.text);
    json_decref(index);
    return status;
}

static enum mx8_status open_files(struct mx8_weights *s) {
    if (!mx8i_is_folder(s->path)) return open_file(s, NULL, s->path);
    if (exists(s->path, "model.safetensors.index.json")) return open_index(s, s->path);
    if (exists(s->path, "model.safetensors")) return open_file(s, s->path, "model.safetensors");
    return MX8_FAIL(MX8_IO_ERROR, "%s: neither model.safetensors nor model.safetensors.index.json is there%s", s->path,
        exists(s->path, "manifest.json") ? " (a checkpoint to resume from, not one of final weights)" : "");
}

/* ---- entries by name ---- */

static int compare_entries(const void *a, const void *b) {
    return strcmp((*(const struct mx8_st_entry *const *)a)->name, (*(const struct mx8_st_entry *const *)b)->name);
}

static int compare_name(const void *name, const void *entry) {
    return strcmp(name, (*(const struct mx8_st_entry *const *)entry)->name);
}

static enum mx8_status sort_entries(struct mx8_weights *s) {
    for (int64_t i = 0; i < s->n_files; i++) s->n_entries += s->file[i].count;
    s->sorted = mx8i_allocate((size_t)(s->n_entries + 1) * sizeof *s->sorted, "tensor names");
    if (!s->sorted) return MX8_OUT_OF_MEMORY;
    int64_t n = 0;
    for (int64_t i = 0; i < s->n_files; i++) {
        for (int64_t k = 0; k < s->file[i].count; k++) s->sorted[n++] = &s->file[i].entry[k];
    }
    qsort(s->sorted, (size_t)n, sizeof *s->sorted, compare_entries);
    for (int64_t i = 1; i < n; i++) {
        if (!strcmp(s->sorted[i - 1]->name, s->sorted[i]->name))
            return MX8_FAIL(MX8_FORMAT_ERROR, "%s: two files hold %s", s->path, s->sorted[i]->name);
    }
    return MX8_OK;
}

/* Place in s->sorted, -1 when there is no such tensor. */
static int64_t find_index(const struct mx8_weights *s, const char *name) {
    const struct mx8_st_entry **at = bsearch(name, s->sorted, (size_t)s->n_entries, sizeof *s->sorted, compare_name);
    return at ? at - s->sorted : -1;
}

const struct mx8_st_entry *mx8i_find_weights_entry(const struct mx8_weights *s, const char *name) {
    const int64_t i = find_index(s, name);
    return i < 0 ? NULL : s->sorted[i];
}

/* ---- checking ---- */

struct check {
    const struct mx8_weights *s;
    uint8_t *met; /* one an entry */
    struct mx8_complaints bad;
};

static void expect_entry(struct check *c, const char *name, int32_t ndim, const int64_t *shape, const char *dtypes) {
    char got[64], want[64];
    const int64_t i = find_index(c->s, name);
    if (i < 0) {
        mx8i_complain(&c->bad, "%s is missing", name);
        return;
    }
    const struct mx8_st_entry *e = c->s->sorted[i];
    c->met[i] = 1;
    mx8i_format_shape(got, e->ndim, e->shape);
    mx8i_format_shape(want, ndim, shape);
    if (strcmp(got, want)) mx8i_complain(&c->bad, "%s has shape %s, expected %s", name, got, want);
    if (!strstr(dtypes, mx8_get_dtype_name(e->dtype)))
        mx8i_complain(&c->bad, "%s is %s, expected one of %s", name, mx8_get_dtype_name(e->dtype), dtypes);
}

/* Codes have their scales beside them, a block of 32 along the rows each, as mx8 quantize writes them. */
static void expect_scales(struct check *c, const struct mx8_param *p) {
    char name[128];
    int64_t shape[3];
    snprintf(name, sizeof name, "%s.scale", p->name);
    memcpy(shape, p->shape, sizeof shape);
    shape[p->ndim - 1] = (shape[p->ndim - 1] + MX8_BLOCK - 1) / MX8_BLOCK;
    expect_entry(c, name, p->ndim, shape, "f8_e8m0 u8");
}

static void expect_ours(struct check *c, const struct mx8_param *p) {
    const struct mx8_st_entry *e = mx8i_find_weights_entry(c->s, p->name);
    const int codes = e && (e->dtype == MX8_F8_E4M3 || e->dtype == MX8_F8_E5M2) && p->ndim > 1;
    expect_entry(c, p->name, p->ndim, p->shape, codes ? "f8_e4m3 f8_e5m2" : "f32 bf16");
    if (codes) expect_scales(c, p);
}

static void expect_theirs(struct check *c, const struct mx8_param *p) {
    int64_t layer;
    char name[128];
    const struct mx8_hf_rule *rule = mx8i_find_hf_rule(c->s->family, p->name, &layer);
    if (!rule) {
        mx8i_complain(&c->bad, "%s has no place for %s", c->s->family->architecture, p->name);
        return;
    }
    const int64_t *s = p->shape, E = p->ndim == 3 ? s[0] : 1;
    const int transposed = rule->layout == MX8_HF_TRANSPOSED;
    if (strchr(rule->theirs, '#')) {
        for (int64_t e = 0; e < E; e++) {
            mx8i_format_weights_name(c->s, rule, layer, e, name);
            expect_entry(c, name, 2, s + 1, "f32 bf16");
        }
        return;
    }
    mx8i_format_weights_name(c->s, rule, layer, 0, name);
    const int64_t turned[3] = {E, s[2], transposed ? s[1] : 2 * s[1]};
    const int same = rule->layout == MX8_HF_SAME || rule->layout == MX8_HF_HALVES;
    expect_entry(c, name, p->ndim, same ? s : turned, "f32 bf16");
}

/* Tables that follow from the configuration, counters, and of a model that sees images what is not its text model. */
static int is_ignored(const struct mx8_weights *s, const char *name) {
    if (s->prefix[0] && strncmp(name, s->prefix, strlen(s->prefix))) return 1;
    return strstr(name, "rotary_emb.inv_freq") || strstr(name, "tokens_per_expert") || strstr(name, "freqs_cis");
}

static enum mx8_status check_tensors(const struct mx8_weights *s) {
    struct check c = {.s = s, .met = mx8i_allocate((size_t)s->n_entries + 1, "tensors met")};
    if (!c.met) return MX8_OUT_OF_MEMORY;
    for (int64_t i = 0; i < s->params.count; i++)
        s->family ? expect_theirs(&c, &s->params.param[i]) : expect_ours(&c, &s->params.param[i]);
    for (int64_t i = 0; i < s->params.buffer_count && !s->family; i++) {
        const struct mx8_buffer *b = &s->params.buffer[i];
        if (find_index(s, b->name) >= 0) expect_entry(&c, b->name, 1, &b->count, "f32 bf16");
    }
    for (int64_t i = 0; i < s->n_entries; i++) {
        if (!c.met[i] && !is_ignored(s, s->sorted[i]->name))
            mx8i_complain(&c.bad, "%s is left over", s->sorted[i]->name);
    }
    mx8i_release(c.met);
    if (!c.bad.count) return MX8_OK;
    return MX8_FAIL(MX8_FORMAT_ERROR, "%s: %lld tensors do not fit the architecture: %s", s->path,
        (long long)c.bad.count, c.bad.text);
}

/* ---- opening ---- */

static const char *find_metadata(const struct mx8_weights *s, const char *key) {
    for (int64_t i = 0; i < s->n_files; i++) {
        const struct mx8_safetensors *st = &s->file[i];
        for (int64_t k = 0; k < st->meta_count; k++) {
            if (!strcmp(st->meta_key[k], key)) return st->meta_value[k];
        }
    }
    return NULL;
}

static enum mx8_status find_config(struct mx8_weights *s, const struct mx8_model_config *given) {
    s->prefix = "";
    if (mx8i_is_folder(s->path) && exists(s->path, "config.json")) {
        char *text, where[512];
        struct mx8_hf_config hf;
        snprintf(where, sizeof where, "%s/config.json", s->path);
        MX8_TRY(read_text(s->path, "config.json", &text));
        enum mx8_status status = mx8i_read_hf_config(where, text, &hf);
        mx8i_release(text);
        s->idle = hf.idle;
        s->family = hf.family;
        s->config = hf.config;
        s->prefix = hf.prefix;
        return status;
    }
    const char *text = find_metadata(s, MX8_CONFIG_KEY), *idle = find_metadata(s, MX8_IDLE_KEY);
    if (idle && !(s->idle = mx8i_copy_text(idle))) return MX8_OUT_OF_MEMORY;
    if (given) {
        s->config = *given;
        return MX8_OK;
    }
    if (text) return mx8i_parse_config(s->path, text, &s->config);
    return MX8_FAIL(MX8_UNSUPPORTED,
        "%s says nothing about its architecture: there is no config.json and no \"%s\" in its metadata; give it as "
        "options "
        "(--model.flavor and what else differs)",
        s->path, MX8_CONFIG_KEY);
}

static enum mx8_status open_source(struct mx8_weights *s, const struct mx8_model_config *given) {
    MX8_TRY(open_files(s));
    MX8_TRY(find_config(s, given));
    MX8_TRY(sort_entries(s));
    MX8_TRY(mx8i_build_params(&s->config, 1, &s->params));
    return check_tensors(s);
}

enum mx8_status mx8i_open_weights(const char *path, const struct mx8_model_config *config, struct mx8_weights *out) {
    *out = (struct mx8_weights){.path = mx8i_copy_text(path), .prefix = ""};
    enum mx8_status status = out->path ? open_source(out, config) : MX8_OUT_OF_MEMORY;
    if (status != MX8_OK) mx8i_close_weights(out);
    return status;
}

enum mx8_status mx8i_read_weights_config(const char *path, struct mx8_model_config *out) {
    struct mx8_weights s = {.path = mx8i_copy_text(path), .prefix = ""};
    enum mx8_status status = s.path ? open_files(&s) : MX8_OUT_OF_MEMORY;
    if (status == MX8_OK) status = find_config(&s, NULL);
    *out = s.config;
    mx8i_close_weights(&s);
    return status;
}

enum mx8_status mx8i_wrap_weights(const char *path, const struct mx8_model_config *config,
    const struct mx8_weights_reader *reader, struct mx8_weights *out) {
    *out = (struct mx8_weights){.path = mx8i_copy_text(path), .prefix = "", .reader = *reader, .config = *config};
    enum mx8_status status = out->path ? mx8i_build_params(config, 1, &out->params) : MX8_OUT_OF_MEMORY;
    for (int64_t i = 0; i < out->params.count && status == MX8_OK; i++) {
        if (!reader->has(reader->user, out->params.param[i].name))
            status = MX8_FAIL(MX8_FORMAT_ERROR, "%s: %s is missing", path, out->params.param[i].name);
    }
    if (status != MX8_OK) mx8i_close_weights(out);
    return status;
}

void mx8i_close_weights(struct mx8_weights *s) {
    if (s->reader.close) s->reader.close(s->reader.user);
    for (int64_t i = 0; i < s->n_files; i++) mx8i_close_safetensors(&s->file[i]);
    mx8i_free_params(&s->params);
    mx8i_release(s->file);
    mx8i_release(s->sorted);
    mx8i_release(s->path);
    mx8i_release(s->idle);
    *s = (struct mx8_weights){0};
}

int32_t mx8i_get_weights_dtype(const struct mx8_weights *s) {
    if (s->reader.read) return s->reader.dtype;
    for (int64_t i = 0; i < s->params.count; i++) {
        int64_t layer;
        char name[128];
        const struct mx8_param *p = &s->params.param[i];
        snprintf(name, sizeof name, "%s", p->name);
        const struct mx8_hf_rule *rule = s->family ? mx8i_find_hf_rule(s->family, p->name, &layer) : NULL;
        if (rule) mx8i_format_weights_name(s, rule, layer, 0, name);
        if (mx8i_find_weights_entry(s, name)->dtype == MX8_F32) return MX8_F32;
    }
    return MX8_BF16;
}
