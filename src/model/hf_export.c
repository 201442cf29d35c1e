/* Writing weights under a family's names, or under torchtitan's: what files there will be, then their bytes block by
 * block out of the source. config.json comes last, so that a folder with one is whole. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/error.h"
#include "base/file.h"
#include "base/memory.h"
#include "mx8/quant.h"
#include "model/hf_private.h"

enum { BLOCK_ELEMENTS = 1 << 21, QUANTIZED_ROWS = 128 /* a multiple of every tile */ };
static const size_t default_shard = (size_t)5000 * 1000 * 1000;

/* One tensor of the output. `p` is ours that it is made of; UP shares GATE's. */
enum target_kind { OURS, THEIRS, CODES, SCALES, BUFFER };
struct target {
    enum target_kind kind;
    const struct mx8_param *p, *up;
    const struct mx8_buffer *buffer;
    enum mx8_hf_layout layout;
    int64_t expert;
};

struct export {
    const struct mx8_weights *s;
    const struct mx8_export_options *o;
    const char *folder;
    struct mx8_param_table params; /* with the recipe applied, when there is one */
    struct target *target;
    struct mx8_st_entry *entry;
    int64_t count, capacity, shards;
    int64_t *shard; /* of each entry */
    uint64_t bytes;
    uint8_t *block, *scales; /* a block of rows; all scales of the tensor at hand */
};

/* ---- what will be written ---- */

static enum mx8_status add_target(
    struct export *x, struct target t, const char *name, int32_t dtype, int32_t ndim, const int64_t *shape) {
    if (x->count == x->capacity) {
        const int64_t capacity = x->capacity ? 2 * x->capacity : 256;
        struct target *targets = mx8i_reallocate(x->target, (size_t)capacity * sizeof *targets, "tensors to write");
        if (targets) x->target = targets;
        struct mx8_st_entry *entries =
            targets ? mx8i_reallocate(x->entry, (size_t)capacity * sizeof *entries, "tensors to write") : NULL;
        if (!entries) return MX8_OUT_OF_MEMORY;
        x->entry = entries;
        x->capacity = capacity;
    }
    struct mx8_st_entry e = {.name = mx8i_copy_text(name), .dtype = dtype, .ndim = ndim};
    if (!e.name) return MX8_OUT_OF_MEMORY;
    e.size = mx8_get_dtype_size(dtype);
    for (int32_t i = 0; i < ndim; i++) {
        e.shape[i] = shape[i];
        e.size *= (size_t)shape[i];
    }
    x->target[x->count] = t;
    x->entry[x->count++] = e;
    return MX8_OK;
}

static int32_t get_format(const struct export *x) {
    return x->o->mxfp8 && x->o->mxfp8->format ? x->o->mxfp8->format : MX8_F8_E4M3;
}

static enum mx8_status add_ours(struct export *x, const struct mx8_param *p) {
    struct target t = {.kind = p->mxfp8 ? CODES : OURS, .p = p};
    MX8_TRY(add_target(x, t, p->name, p->mxfp8 ? get_format(x) : x->o->dtype, p->ndim, p->shape));
    if (!p->mxfp8) return MX8_OK;
    char name[128];
    int64_t shape[3];
    snprintf(name, sizeof name, "%s.scale", p->name);
    memcpy(shape, p->shape, sizeof shape);
    shape[p->ndim - 1] /= MX8_BLOCK;
    t.kind = SCALES;
    return add_target(x, t, name, MX8_F8_E8M0, p->ndim, shape);
}

/* The tensor whose columns follow those of `gate` in the same file's tensor. */
static const struct mx8_param *find_up(const struct export *x, const struct mx8_hf_rule *gate, int64_t layer) {
    const struct mx8_hf_family *f = x->o->family;
    char name[128];
    for (int32_t i = 0; i < f->n_rules; i++) {
        if (f->rule[i].layout != MX8_HF_UP || strcmp(f->rule[i].theirs, gate->theirs)) continue;
        snprintf(name, sizeof name, "layers.%lld.%s", (long long)layer, f->rule[i].ours);
        return mx8i_find_param(&x->s->params, name);
    }
    return NULL;
}

static enum mx8_status add_theirs(struct export *x, const struct mx8_param *p) {
    int64_t layer;
    char name[128];
    const struct mx8_hf_rule *rule = mx8i_find_hf_rule(x->o->family, p->name, &layer);
    if (!rule) return MX8_FAIL(MX8_UNSUPPORTED, "%s has no place for %s", x->o->family->architecture, p->name);
    struct target t = {.kind = THEIRS, .p = p, .layout = rule->layout};
    if (rule->layout == MX8_HF_UP) return MX8_OK;
    const int64_t E = p->ndim == 3 ? p->shape[0] : 1, N = p->ndim == 1 ? 1 : p->shape[p->ndim - 2];
    if (strchr(rule->theirs, '#')) {
        for (t.expert = 0; t.expert < E; t.expert++) {
            mx8i_format_hf_name(rule, layer, t.expert, name);
            MX8_TRY(add_target(x, t, name, x->o->dtype, 2, p->shape + 1));
        }
        return MX8_OK;
    }
    mx8i_format_hf_name(rule, layer, 0, name);
    if (rule->layout < MX8_HF_TRANSPOSED) return add_target(x, t, name, x->o->dtype, p->ndim, p->shape);
    if (rule->layout == MX8_HF_GATE) t.up = find_up(x, rule, layer);
    const int64_t shape[3] = {E, p->shape[2], rule->layout == MX8_HF_GATE ? 2 * N : N};
    return add_target(x, t, name, x->o->dtype, 3, shape);
}

/* Only torchtitan's names have a place for expert biases, and routing depends on them. */
static enum mx8_status check_bias(struct export *x, const struct mx8_buffer *b, const struct mx8_log *log) {
    float *values = mx8i_allocate((size_t)b->count * sizeof *values, "expert bias");
    int32_t found, used = 0;
    if (!values) return MX8_OUT_OF_MEMORY;
    enum mx8_status status = mx8i_read_weights_bias(x->s, b, values, &found);
    for (int64_t i = 0; i < b->count; i++) used |= values[i] != 0;
    mx8i_release(values);
    if (status != MX8_OK || !used) return status;
    if (x->o->drop_expert_bias) {
        mx8i_log(log, "warning: %s is left out: %s has no place for it", b->name, x->o->family->architecture);
        return MX8_OK;
    }
    return MX8_FAIL(MX8_UNSUPPORTED,
        "%s is not zero, and %s has no place for it: the exported model would route otherwise; train with "
        "moe.load_balance_coeff=none, or drop the bias knowingly (--drop-expert-bias)",
        b->name, x->o->family->architecture);
}

static enum mx8_status list_targets(struct export *x, const struct mx8_log *log) {
    MX8_TRY(mx8i_build_params(&x->s->config, 1, &x->params));
    if (x->o->mxfp8) MX8_TRY(mx8i_apply_recipe(&x->params, x->o->mxfp8));
    for (int64_t i = 0; i < x->params.count; i++) {
        MX8_TRY(x->o->family ? add_theirs(x, &x->params.param[i]) : add_ours(x, &x->params.param[i]));
    }
    for (int64_t i = 0; i < x->params.buffer_count; i++) {
        const struct mx8_buffer *b = &x->params.buffer[i];
        if (x->o->family)
            MX8_TRY(check_bias(x, b, log));
        else
            MX8_TRY(add_target(x, (struct target){.kind = BUFFER, .buffer = b}, b->name, MX8_F32, 1, &b->count));
    }
    return MX8_OK;
}

/* In order, a new file where the next tensor does not fit; a tensor is never cut, and codes stay with their scales. */
static enum mx8_status cut_shards(struct export *x) {
    const size_t most = x->o->shard_bytes ? x->o->shard_bytes : default_shard;
    size_t used = 0;
    x->shard = mx8i_allocate((size_t)(x->count + 1) * sizeof *x->shard, "shards");
    if (!x->shard) return MX8_OUT_OF_MEMORY;
    for (int64_t i = 0; i < x->count; i++) {
        size_t size = x->entry[i].size;
        if (x->target[i].kind == CODES) size += x->entry[i + 1].size;
        if (used && x->target[i].kind != SCALES && used + size > most) {
            x->shards++;
            used = 0;
        }
        x->shard[i] = x->shards;
        used += x->entry[i].size;
        x->bytes += x->entry[i].size;
    }
    x->shards++;
    return MX8_OK;
}

/* ---- the bytes ---- */

static enum mx8_status write_flat(struct export *x, struct mx8_st_writer *w, const struct mx8_param *p) {
    for (int64_t from = 0; from < p->count; from += BLOCK_ELEMENTS) {
        const int64_t n = p->count - from < BLOCK_ELEMENTS ? p->count - from : BLOCK_ELEMENTS;
        MX8_TRY(mx8i_read_weights(x->s, p, from, n, x->o->dtype, x->block));
        MX8_TRY(mx8i_write_tensor(w, x->block, (size_t)n * mx8_get_dtype_size(x->o->dtype)));
    }
    return MX8_OK;
}

/* Rows of their matrix `expert`, whichever way it lies. */
static enum mx8_status write_rows(struct export *x, struct mx8_st_writer *w, const struct target *t, int64_t expert) {
    const struct mx8_param *p = t->p;
    const int64_t N = p->ndim == 1 ? p->shape[0] : p->shape[p->ndim - 2], K = p->ndim == 1 ? 1 : p->shape[p->ndim - 1];
    const int transposed = t->layout >= MX8_HF_TRANSPOSED;
    const int64_t rows = transposed ? K : N, cols = transposed ? N : K, width = t->up ? 2 * cols : cols;
    const int64_t step = BLOCK_ELEMENTS / width > 0 ? BLOCK_ELEMENTS / width : 1;
    const size_t size = mx8_get_dtype_size(x->o->dtype);
    struct mx8_window at = {
        .expert = expert, .c1 = cols, .transposed = transposed, .halves = t->layout == MX8_HF_HALVES};
    for (at.r0 = 0; at.r0 < rows; at.r0 = at.r1) {
        at.r1 = at.r0 + step < rows ? at.r0 + step : rows;
        MX8_TRY(mx8i_read_window(x->s, p, &at, x->o->dtype, x->block, width));
        if (t->up) MX8_TRY(mx8i_read_window(x->s, t->up, &at, x->o->dtype, x->block + (size_t)cols * size, width));
        MX8_TRY(mx8i_write_tensor(w, x->block, (size_t)((at.r1 - at.r0) * width) * size));
    }
    return MX8_OK;
}

static enum mx8_status write_theirs(
    struct export *x, struct mx8_st_writer *w, const struct target *t, const struct mx8_st_entry *e) {
    if (e->ndim < 3) return write_rows(x, w, t, t->expert);
    for (int64_t expert = 0; expert < e->shape[0]; expert++) MX8_TRY(write_rows(x, w, t, expert));
    return MX8_OK;
}

/* Row codes as `mx8 quantize --axis rows` makes them; the scales wait for their turn. */
static enum mx8_status write_codes(struct export *x, struct mx8_st_writer *w, const struct mx8_param *p) {
    const int64_t K = p->shape[p->ndim - 1], rows = p->count / K, blocks = K / MX8_BLOCK;
    const struct mx8_recipe *r = x->o->mxfp8;
    const struct mx8_op_options options = {.scale_rule = r->scale_rule,
        .scale_group = r->weight_scale_group,
        .tile_rows = r->weight_tile_rows,
        .format = r->format};
    mx8i_release(x->scales);
    x->scales = mx8i_allocate_aligned((size_t)(rows * blocks), 64, "scales");
    float *values = mx8i_allocate_aligned((size_t)(QUANTIZED_ROWS * K) * sizeof *values, 64, "rows to quantize");
    enum mx8_status status = x->scales && values ? MX8_OK : MX8_OUT_OF_MEMORY;
    for (int64_t r0 = 0; r0 < rows && status == MX8_OK; r0 += QUANTIZED_ROWS) {
        const int64_t n = rows - r0 < QUANTIZED_ROWS ? rows - r0 : QUANTIZED_ROWS;
        const int64_t shape[2] = {n, K}, scale_shape[2] = {n, blocks};
        status = mx8i_read_weights(x->s, p, r0 * K, n * K, MX8_F32, values);
        const struct mx8_tensor in = mx8_make_tensor(values, MX8_F32, 2, shape);
        const struct mx8_tensor codes = mx8_make_tensor(x->block, get_format(x), 2, shape);
        const struct mx8_tensor scales = mx8_make_tensor(x->scales + r0 * blocks, MX8_F8_E8M0, 2, scale_shape);
        if (status == MX8_OK) status = mx8_quantize_rows(x->o->ctx, &codes, &scales, &in, &options);
        if (status == MX8_OK) status = mx8i_write_tensor(w, x->block, (size_t)(n * K));
    }
    mx8i_release(values);
    return status;
}

static enum mx8_status write_target(struct export *x, struct mx8_st_writer *w, int64_t i) {
    const struct target *t = &x->target[i];
    const struct mx8_st_entry *e = &x->entry[i];
    int32_t found;
    switch (t->kind) {
    case OURS:
        return write_flat(x, w, t->p);
    case THEIRS:
        return write_theirs(x, w, t, e);
    case CODES:
        return write_codes(x, w, t->p);
    case SCALES:
        return mx8i_write_tensor(w, x->scales, e->size);
    case BUFFER:
        break;
    }
    MX8_TRY(mx8i_read_weights_bias(x->s, t->buffer, (float *)(void *)x->block, &found));
    return mx8i_write_tensor(w, x->block, e->size);
}

/* The block holds the widest row, a bias, or QUANTIZED_ROWS rows of codes. */
static enum mx8_status allocate_block(struct export *x) {
    size_t most = BLOCK_ELEMENTS * sizeof(float);
    for (int64_t i = 0; i < x->count; i++) {
        const struct mx8_st_entry *e = &x->entry[i];
        size_t row = (size_t)e->shape[e->ndim - 1] * sizeof(float);
        if (x->target[i].kind == CODES) row *= QUANTIZED_ROWS;
        if (most < row) most = row;
    }
    x->block = mx8i_allocate_aligned(most, 64, "a block of weights");
    return x->block ? MX8_OK : MX8_OUT_OF_MEMORY;
}

/* ---- files ---- */

static char *name_shard(const struct export *x, int64_t shard) {
    if (x->shards == 1) return mx8i_copy_text("model.safetensors");
    return mx8i_format_text("model-%05lld-of-%05lld.safetensors", (long long)shard + 1, (long long)x->shards);
}

static enum mx8_status write_shard(
    struct export *x, int64_t shard, const char *const *metadata, const struct mx8_log *log) {
    int64_t first = 0, n = 0;
    while (x->shard[first] != shard) first++;
    while (first + n < x->count && x->shard[first + n] == shard) n++;
    char *name = name_shard(x, shard), *path = name ? mx8i_format_text("%s/%s", x->folder, name) : NULL;
    struct mx8_st_writer w;
    enum mx8_status status = path ? mx8i_begin_safetensors(path, x->entry + first, n, metadata, &w) : MX8_OUT_OF_MEMORY;
    if (status == MX8_OK) {
        for (int64_t i = 0; i < n && status == MX8_OK; i++) status = write_target(x, &w, first + i);
        if (status == MX8_OK)
            status = mx8i_commit_safetensors(&w);
        else
            mx8i_abandon_safetensors(&w);
    }
    if (status == MX8_OK) mx8i_log(log, "%s: %lld tensors", path, (long long)n);
    mx8i_release(path);
    mx8i_release(name);
    return status;
}

static enum mx8_status write_text(const struct export *x, const char *name, const char *text) {
    char *path = mx8i_format_text("%s/%s", x->folder, name);
    enum mx8_status status = path ? mx8i_write_text(path, text) : MX8_OUT_OF_MEMORY;
    mx8i_release(path);
    return status;
}

static enum mx8_status write_index(const struct export *x) {
    if (x->shards == 1) return MX8_OK;
    json_t *map = json_object();
    int failed = !map;
    for (int64_t i = 0; i < x->count && !failed; i++) {
        char *name = name_shard(x, x->shard[i]);
        failed = !name || json_object_set_new(map, x->entry[i].name, json_string(name));
        mx8i_release(name);
    }
    json_t *index = json_pack("{s:{s:I}, s:o}", "metadata", "total_size", (json_int_t)x->bytes, "weight_map", map);
    char *text = index && !failed ? json_dumps(index, JSON_INDENT(2) | JSON_SORT_KEYS) : NULL;
    enum mx8_status status = text ? write_text(x, "model.safetensors.index.json", text)
                                  : MX8_FAIL(MX8_OUT_OF_MEMORY, "model.safetensors.index.json: no memory");
    free(text);
    json_decref(index);
    return status;
}

static enum mx8_status write_files(struct export *x, const char *config, const struct mx8_log *log) {
    const char *const theirs[] = {"format", "pt", NULL};
    const char *const ours[] = {
        "format", "pt", MX8_CONFIG_KEY, config, x->s->idle ? MX8_IDLE_KEY : NULL, x->s->idle, NULL};
    for (int64_t i = 0; i < x->shards; i++) MX8_TRY(write_shard(x, i, x->o->family ? theirs : ours, log));
    MX8_TRY(write_index(x));
    return x->o->family ? write_text(x, "config.json", config) : MX8_OK;
}

/* Old shards beside new ones would be read as one model. */
static enum mx8_status prepare_folder(const char *folder) {
    MX8_TRY(mx8i_make_folders(folder));
    DIR *d = opendir(folder);
    if (!d) return MX8_FAIL(MX8_IO_ERROR, "%s cannot be opened as a folder", folder);
    int n = 0;
    for (const struct dirent *e = readdir(d); e; e = readdir(d)) n += strcmp(e->d_name, ".") && strcmp(e->d_name, "..");
    closedir(d);
    if (n)
        return MX8_FAIL(MX8_INVALID_ARGUMENT, "%s has %d file%s in it, expected a new folder or an empty one", folder,
            n, n == 1 ? "" : "s");
    return MX8_OK;
}

static enum mx8_status run_export(struct export *x, char **config, const struct mx8_log *log) {
    const struct mx8_hf_family *f = x->o->family;
    if (f) {
        MX8_TRY(mx8i_write_hf_config(f, &x->s->config, x->o->dtype, x->s->idle, config));
    } else if (!(*config = mx8i_format_config(&x->s->config))) {
        return MX8_OUT_OF_MEMORY;
    }
    MX8_TRY(list_targets(x, log));
    MX8_TRY(cut_shards(x));
    MX8_TRY(allocate_block(x));
    MX8_TRY(prepare_folder(x->folder));
    return write_files(x, *config, log);
}

enum mx8_status mx8i_export_weights(
    const struct mx8_weights *s, const char *folder, const struct mx8_export_options *o, const struct mx8_log *log) {
    struct export x = {.s = s, .o = o, .folder = folder};
    char *config = NULL;
    if ((o->dtype != MX8_F32 && o->dtype != MX8_BF16) || (o->mxfp8 && (o->family || !o->ctx)))
        return MX8_FAIL(MX8_INVALID_ARGUMENT,
            "mx8i_export_weights: dtype %s%s, expected f32 or bf16, and codes only under torchtitan's names",
            mx8_get_dtype_name(o->dtype), o->mxfp8 ? " with codes" : "");
    enum mx8_status status = run_export(&x, &config, log);
    for (int64_t i = 0; i < x.count; i++) mx8i_release(x.entry[i].name);
    mx8i_free_params(&x.params);
    mx8i_release(x.target);
    mx8i_release(x.entry);
    mx8i_release(x.shard);
    mx8i_release(x.block);
    mx8i_release(x.scales);
    mx8i_release(config);
    return status;
}
