/* What a run leaves behind for people and programs: one JSON object a step, and what the run was. */
#include "train/metrics.h"
#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "base/error.h"
#include "base/file.h"
#include "base/memory.h"

/* PATH, or PATH-N before its suffix: "out/metrics-2.jsonl". */
static char *make_path(const char *folder, const char *stem, int n, const char *suffix) {
    return n ? mx8i_format_text("%s/%s-%d.%s", folder, stem, n, suffix)
             : mx8i_format_text("%s/%s.%s", folder, stem, suffix);
}

static enum mx8_status move_file(const char *folder, const char *stem, int n, const char *suffix) {
    char *from = make_path(folder, stem, 0, suffix), *to = make_path(folder, stem, n, suffix);
    enum mx8_status status = from && to ? MX8_OK : MX8_OUT_OF_MEMORY;
    if (status == MX8_OK && rename(from, to) != 0 && errno != ENOENT)
        status = MX8_FAIL(MX8_IO_ERROR, "%s: cannot be moved to %s: %s", from, to, strerror(errno));
    mx8i_release(from);
    mx8i_release(to);
    return status;
}

static int exists(const char *folder, const char *stem, int n, const char *suffix) {
    char *path = make_path(folder, stem, n, suffix);
    int found = path && mx8i_is_file(path);
    mx8i_release(path);
    return found;
}

static int find_free_number(const char *folder) {
    int n = 1;
    while (exists(folder, "metrics", n, "jsonl") || exists(folder, "run", n, "json")) n++;
    return n;
}

/* A run never overwrites another's results. */
static enum mx8_status move_earlier_run(const char *folder) {
    if (!exists(folder, "metrics", 0, "jsonl") && !exists(folder, "run", 0, "json")) return MX8_OK;
    int n = find_free_number(folder);
    MX8_TRY(move_file(folder, "metrics", n, "jsonl"));
    return move_file(folder, "run", n, "json");
}

/* Step of a line, -1 when it has none or is cut off. */
static int64_t parse_line(const char *line, size_t size) {
    static const char start[] = "{\"step\":";
    if (size < sizeof start || memcmp(line, start, sizeof start - 1) || line[size - 1] != '}') return -1;
    return strtoll(line + sizeof start - 1, NULL, 10);
}

/* Lines of steps up to `step`, written to w. *last: the step of the last one. */
static enum mx8_status copy_lines(const struct mx8_map *map, int64_t step, struct mx8_writer *w, int64_t *last) {
    for (size_t at = 0; at < map->size;) {
        const char *line = (const char *)map->data + at, *end = memchr(line, '\n', map->size - at);
        if (!end) break; /* cut off in the middle */
        int64_t found = parse_line(line, (size_t)(end - line));
        if (found >= 0 && found <= step) {
            MX8_TRY(mx8i_write(w, line, (size_t)(end - line) + 1));
            *last = found;
        }
        at += (size_t)(end - line) + 1;
    }
    return MX8_OK;
}

static enum mx8_status cut_file(const char *path, int64_t step, int64_t *last) {
    struct mx8_map map;
    struct mx8_writer w;
    MX8_TRY(mx8i_map_file(path, &map));
    enum mx8_status status = mx8i_open_writer(path, &w);
    if (status == MX8_OK) status = copy_lines(&map, step, &w, last);
    if (status == MX8_OK) status = mx8i_commit_writer(&w);
    mx8i_abandon_writer(&w);
    mx8i_unmap_file(&map);
    return status;
}

static enum mx8_status keep_copy(const char *folder, const char *path) {
    struct mx8_map map;
    char *copy = make_path(folder, "metrics", find_free_number(folder), "jsonl");
    if (!copy) return MX8_OUT_OF_MEMORY;
    enum mx8_status status = mx8i_map_file(path, &map);
    if (status == MX8_OK) {
        status = mx8i_write_file(copy, map.data, map.size);
        mx8i_unmap_file(&map);
    }
    mx8i_release(copy);
    return status;
}

static enum mx8_status go_on(const char *folder, const struct mx8_history *history, const struct mx8_log *log) {
    int64_t last = 0;
    enum mx8_status status = MX8_OK;
    char *path = make_path(folder, "metrics", 0, "jsonl");
    if (!path) return MX8_OUT_OF_MEMORY;
    if (mx8i_is_file(path)) {
        if (history->branched) status = keep_copy(folder, path);
        if (status == MX8_OK) status = cut_file(path, history->step, &last);
    }
    if (status == MX8_OK && last < history->step)
        mx8i_log(log, "warning: %s ends at step %lld: the metrics of steps up to %lld are missing", path,
            (long long)last, (long long)history->step);
    mx8i_release(path);
    return status;
}

static json_t *list_options(const struct mx8_options *o) {
    json_t *set = json_object();
    for (int32_t i = 0; i < o->count; i++)
        if (o->value[i].set) json_object_set_new(set, o->table[i].key, json_string(o->value[i].text));
    return set;
}

/* Numbers and texts at the top level are what a report shows; the options stand in an object of their own. */
static json_t *describe_run(const struct mx8_job *job, const struct mx8_context *ctx) {
    struct mx8_model_counts counts = mx8i_count_model(&job->config, job->model.seq_len);
    char started[32];
    mx8i_format_time(started);
    int64_t batch = job->local_batch_size * job->accumulation;
    return json_pack(
        "{s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:i, s:I, s:I, s:I, s:I, s:f, s:I, s:I, s:I, s:I, s:I, s:s, s:s, s:o}",
        "name", job->description[0] ? job->description : job->recipe.name, "recipe", job->recipe.name, "flavor",
        job->config.flavor, "dataset", job->dataset, "dataset_path", job->dataset_path, "device",
        job->device ? "cuda" : "cpu", "backend", ctx->backend_name, "threads", (int)ctx->exec.threads, "parameters",
        (json_int_t)counts.total, "dense_parameters", (json_int_t)counts.dense, "sparse_parameters",
        (json_int_t)counts.sparse, "active_parameters", (json_int_t)counts.active, "flops_per_token",
        counts.flops_per_token, "steps", (json_int_t)job->steps, "seq_len", (json_int_t)job->model.seq_len,
        "global_batch_size", (json_int_t)batch, "tokens_per_step", (json_int_t)batch * job->model.seq_len, "seed",
        (json_int_t)job->seed, "started", started, "version", mx8_get_version_text(), "options",
        list_options(job->options));
}

static enum mx8_status write_run(const struct mx8_job *job, const struct mx8_context *ctx, int64_t resumed_at) {
    json_t *run = describe_run(job, ctx);
    if (run && resumed_at) json_object_set_new(run, "resumed_at", json_integer((json_int_t)resumed_at));
    char *text = run ? json_dumps(run, JSON_INDENT(2)) : NULL;
    json_decref(run);
    if (!text)
        return MX8_FAIL(
            MX8_FORMAT_ERROR, "%s/run.json cannot be written: an option is no UTF-8 text", job->dump_folder);
    char *path = make_path(job->dump_folder, "run", 0, "json");
    enum mx8_status status = path ? mx8i_write_text(path, text) : MX8_OUT_OF_MEMORY;
    free(text);
    mx8i_release(path);
    return status;
}

enum mx8_status mx8i_open_metrics(const struct mx8_job *job, const struct mx8_context *ctx, struct mx8_model *model,
    const struct mx8_history *history, const struct mx8_log *log, struct mx8_metrics *out) {
    *out = (struct mx8_metrics){.capacity = out->capacity,
        .peak_flops = out->peak_flops,
        .model = model,
        .count_gaps = job->model.count_gaps,
        .layers = mx8i_count_moe_layers(model),
        .experts = job->config.num_experts};
    MX8_TRY(mx8i_make_folders(job->dump_folder));
    MX8_TRY(history->step ? go_on(job->dump_folder, history, log) : move_earlier_run(job->dump_folder));
    MX8_TRY(write_run(job, ctx, history->step));
    out->load = mx8i_allocate((size_t)(out->layers * out->experts) * sizeof *out->load, "expert load");
    out->path = make_path(job->dump_folder, "metrics", 0, "jsonl");
    if (!out->load || !out->path) return MX8_OUT_OF_MEMORY;
    out->file = fopen(out->path, "ae");
    if (!out->file) return MX8_FAIL(MX8_IO_ERROR, "%s: cannot be written: %s", out->path, strerror(errno));
    return job->tensorboard_folder[0] ? mx8i_open_board(job, history->step, out->peak_flops, &out->board) : MX8_OK;
}

void mx8i_close_metrics(struct mx8_metrics *m) {
    if (m->file) fclose(m->file); /* every line was flushed when it was written */
    mx8i_close_board(&m->board);
    mx8i_release(m->path);
    mx8i_release(m->load);
    *m = (struct mx8_metrics){0};
}

/* JSON has no NaN and no Inf. */
static void print_number(FILE *file, const char *name, double value, int digits) {
    if (isfinite(value))
        fprintf(file, ",\"%s\":%.*g", name, digits, value);
    else
        fprintf(file, ",\"%s\":null", name);
}

static void print_load(const struct mx8_metrics *m) {
    fputs(",\"expert_load\":[", m->file);
    for (int64_t i = 0; i < m->layers * m->experts; i++) {
        int64_t e = i % m->experts;
        fprintf(m->file, "%s%lld%s", e ? "," : i ? ",[" : "[", (long long)m->load[i], e == m->experts - 1 ? "]" : "");
    }
    fputc(']', m->file);
}

enum mx8_status mx8i_read_expert_load(struct mx8_metrics *m) {
    for (int64_t layer = 0; layer < m->layers; layer++)
        MX8_TRY(mx8i_get_expert_load(m->model, layer, m->load + layer * m->experts));
    return MX8_OK;
}

enum mx8_status mx8i_write_metrics(struct mx8_metrics *m, const struct mx8_step *s) {
    if (!m->file) return MX8_OK; /* another rank writes them */
    fprintf(m->file, "{\"step\":%lld", (long long)s->step);
    print_number(m->file, "loss", s->loss, 17);
    print_number(m->file, "grad_norm", s->grad_norm, 9); /* a float */
    print_number(m->file, "lr", s->lr, 17);
    fprintf(m->file, ",\"tokens\":%lld", (long long)s->tokens);
    print_number(m->file, "seconds", s->seconds, 9);
    print_number(m->file, "data_seconds", s->data_seconds, 9);
    print_number(m->file, "data_share", s->data_seconds / fmax(s->seconds, 1e-9), 4); /* waiting, of the step's time */
    print_number(m->file, "tokens_per_second", s->tokens_per_second, 9);
    fprintf(m->file, ",\"memory\":%lld,\"saturated\":%lld,\"skipped\":%s", (long long)s->memory,
        (long long)s->saturated, s->skipped ? "true" : "false");
    if (m->count_gaps) fprintf(m->file, ",\"wide_blocks\":%lld", (long long)s->wide_blocks);
    if (s->validated) {
        print_number(m->file, "validation_loss", s->validation_loss, 17);
        print_number(m->file, "validation_seconds", s->validation_seconds, 9);
        fprintf(m->file, ",\"validation_tokens\":%lld", (long long)s->validation_tokens);
    }
    print_load(m);
    fputs("}\n", m->file);
    if (fflush(m->file) != 0 || ferror(m->file))
        return MX8_FAIL(
            MX8_IO_ERROR, "%s: step %lld cannot be written: %s", m->path, (long long)s->step, strerror(errno));
    return m->board.events.file ? mx8i_write_board(&m->board, s, m->capacity) : MX8_OK;
}
