/* Text out of trained weights. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/error.h"
#include "base/file.h"
#include "base/memory.h"
#include "base/safetensors.h"
#include "cli/token_tools.h"
#include "cli/weight_tools.h"
#include "train/generate.h"
#include "train/open_weights.h"

static const char usage[] =
    "usage: mx8 generate WEIGHTS [--prompt TEXT] [--max-new-tokens N] [--temperature T] [--top-p P] [--top-k K] "
    "[--seed N]\n\n"
    "WEIGHTS is a Hugging Face folder, a checkpoint of mx8 train (step-N), or a safetensors file. Text "
    "goes to\n"
    "standard output as it is made, always valid UTF-8; what is said about it goes to standard error. The same seed "
    "gives the\n"
    "same text, whatever the number of threads. Sampling ends at the tokenizer's end mark, at an eos_token_id of "
    "config.json\n"
    "or generation_config.json, or after --max-new-tokens. Each token costs a forward pass over all tokens so far.\n\n"
    "Files that do not say what architecture they hold need --model.flavor and what else differs from it.\n";

static const struct mx8_option own[] = {
    {"prompt", MX8_OPT_TEXT, "", NULL, 0, 0, "text to go on from; - reads standard input; empty: the start mark alone",
        NULL},
    {"ids", MX8_OPT_LIST, "", NULL, 0, 0, "the prompt as token ids, instead of --prompt and without a start mark",
        NULL},
    {"tokenizer", MX8_OPT_TEXT, "auto", NULL, 0, 0,
        "bytes, a tokenizer.json or its folder, a rank file; auto: that of WEIGHTS, else bytes", NULL},
    {"max_new_tokens", MX8_OPT_INT, "128", NULL, 0, 1e7, "tokens to make", NULL},
    {"temperature", MX8_OPT_FLOAT, "0.8", NULL, 0, 1e6, "0: always the likeliest token", NULL},
    {"top_p", MX8_OPT_FLOAT, "1", NULL, 1e-9, 1, "only the likeliest tokens that make up this share", NULL},
    {"top_k", MX8_OPT_INT, "0", NULL, 0, 1e9, "only this many of the likeliest tokens; 0: all", NULL},
    {"seed", MX8_OPT_INT, "0", NULL, 0, 9e15, "of the choices", NULL},
    {"stop_at_eos", MX8_OPT_BOOL, "true", NULL, 0, 0, "end at an end mark", NULL},
    {"echo", MX8_OPT_BOOL, "false", NULL, 0, 0, "write the prompt first", NULL},
    {"logits", MX8_OPT_TEXT, "", NULL, 0, 0, "write the prompt's ids and logits to this safetensors file, and stop",
        NULL},
    {"precision", MX8_OPT_CHOICE, "bf16", "bf16|f32", 0, 0, "to compute in", NULL},
    {"device", MX8_OPT_CHOICE, "cpu", "cpu|cuda", 0, 0, "where to compute", NULL},
    {"threads", MX8_OPT_INT, "0", NULL, 0, 4096, "CPU threads; 0: OMP_NUM_THREADS, else every core", NULL},
};
enum { OWN_COUNT = sizeof own / sizeof own[0], MOST_STOPS = 16 };

struct session {
    const struct mx8_options *o;
    const char *path;
    struct mx8_tokenizer *tokenizer;
    struct mx8_tokens tokens;
    struct mx8_context *ctx;
    struct mx8_model *model;
    int32_t stop[MOST_STOPS];
    int64_t n_stop;
};

/* ---- prompt ---- */

static enum mx8_status open_tokenizer(struct session *s) {
    const struct mx8_tokenizer_options options = {0};
    const char *name = mx8i_get_text(s->o, "tokenizer");
    if (strcmp(name, "auto")) return mx8i_open_tokenizer(name, &options, &s->tokenizer);
    char *beside = mx8i_format_text("%s/tokenizer.json", s->path);
    if (!beside) return MX8_OUT_OF_MEMORY;
    const int there = mx8i_is_folder(s->path) && mx8i_is_file(beside);
    enum mx8_status status = mx8i_open_tokenizer(there ? beside : "bytes", &options, &s->tokenizer);
    mx8i_release(beside);
    return status;
}

struct id_list {
    struct mx8_tokens *tokens;
    enum mx8_status status;
};

static void add_id(void *user, const char *text) {
    struct id_list *list = user;
    char *end;
    long long id = strtoll(text, &end, 10);
    if (list->status != MX8_OK) return;
    if (end == text || *end || id < 0 || id > INT32_MAX)
        list->status = MX8_FAIL(MX8_INVALID_ARGUMENT, "--ids: \"%s\" is no token id", text);
    else
        list->status = mx8i_append_token(list->tokens, (int32_t)id);
}

static enum mx8_status encode(struct session *s, const char *text, size_t size) {
    struct mx8_encoder *e;
    if (mx8i_get_bos(s->tokenizer) >= 0) MX8_TRY(mx8i_append_token(&s->tokens, mx8i_get_bos(s->tokenizer)));
    MX8_TRY(mx8i_open_encoder(s->tokenizer, &e));
    enum mx8_status status = mx8i_encode_text(e, text, size, &s->tokens);
    mx8i_close_encoder(e);
    if (status == MX8_OK && !s->tokens.count)
        status =
            MX8_FAIL(MX8_INVALID_ARGUMENT, "the prompt is empty and the tokenizer has no start mark: give --prompt");
    return status;
}

static enum mx8_status read_prompt(struct session *s) {
    const char *text = mx8i_get_text(s->o, "prompt");
    if (mx8i_is_set(s->o, "ids")) {
        if (*text) return MX8_FAIL(MX8_INVALID_ARGUMENT, "--prompt and --ids are both given, expected one of them");
        struct id_list list = {.tokens = &s->tokens};
        if (mx8i_get_list(s->o, "ids", add_id, &list) < 0) return MX8_OUT_OF_MEMORY;
        return list.status;
    }
    if (strcmp(text, "-")) return encode(s, text, strlen(text));
    char *input;
    size_t size;
    MX8_TRY(mx8i_read_input(&input, &size));
    enum mx8_status status = encode(s, input, size);
    mx8i_release(input);
    return status;
}

/* ---- end marks ---- */

static void add_stop(struct session *s, int64_t id) {
    if (id >= 0 && id <= INT32_MAX && s->n_stop < MOST_STOPS) s->stop[s->n_stop++] = (int32_t)id;
}

/* eos_token_id of a JSON file beside the weights: a number or a list. A file that is not there says nothing. */
static void add_stops_of(struct session *s, const char *name) {
    char *path = mx8i_format_text("%s/%s", s->path, name);
    json_t *object = path && mx8i_is_file(path) ? json_load_file(path, 0, NULL) : NULL, *item;
    const json_t *ids = json_object_get(object, "eos_token_id");
    size_t i;
    if (!ids) ids = json_object_get(json_object_get(object, "text_config"), "eos_token_id");
    if (json_is_integer(ids)) add_stop(s, json_integer_value(ids));
    json_array_foreach(ids, i, item) add_stop(s, json_is_integer(item) ? json_integer_value(item) : -1);
    json_decref(object);
    mx8i_release(path);
}

/* ---- model ---- */

static enum mx8_status open_model(struct session *s, int64_t length) {
    struct mx8_model_config config;
    int32_t given;
    const int f32 = !strcmp(mx8i_get_text(s->o, "precision"), "f32");
    const struct mx8_recipe recipe = {.name = "bf16", .dtype = f32 ? MX8_F32 : MX8_BF16};
    const struct mx8_model_options options = {.batch = 1, .seq_len = length};
    const struct mx8_context_options device = {
        .device = !strcmp(mx8i_get_text(s->o, "device"), "cuda"), .threads = (int32_t)mx8i_get_int(s->o, "threads")};
    MX8_TRY(mx8i_find_architecture(s->o, s->path, &config, &given));
    struct mx8_weights weights;
    MX8_TRY(mx8_create_context(&device, &s->ctx));
    MX8_TRY(mx8i_open_saved_weights(s->path, given ? &config : NULL, &weights));
    enum mx8_status status = mx8i_plan_model(&weights.config, &recipe, &options, &s->model);
    if (status == MX8_OK) status = mx8i_allocate_model(s->model, s->ctx);
    if (status == MX8_OK) status = mx8i_load_opened_weights(s->model, &weights, NULL);
    mx8i_close_weights(&weights);
    return status;
}

static enum mx8_status write_logits(struct session *s, const char *path) {
    const int64_t n = s->tokens.count, V = mx8i_get_config(s->model)->vocab_size;
    char ids_name[] = "ids", logits_name[] = "logits";
    const struct mx8_st_entry entries[] = {
        {.name = ids_name, .dtype = MX8_I32, .ndim = 1, .shape = {n}, .size = (size_t)n * sizeof(int32_t)},
        {.name = logits_name, .dtype = MX8_F32, .ndim = 2, .shape = {n, V}, .size = (size_t)(n * V) * sizeof(float)}};
    struct mx8_st_writer w;
    float *logits = mx8i_allocate(entries[1].size, "logits");
    enum mx8_status status = logits ? mx8i_compute_logits(s->model, s->tokens.id, n, 0, logits) : MX8_OUT_OF_MEMORY;
    if (status == MX8_OK) status = mx8i_begin_safetensors(path, entries, 2, NULL, &w);
    if (status == MX8_OK) {
        status = mx8i_write_tensor(&w, s->tokens.id, entries[0].size);
        if (status == MX8_OK) status = mx8i_write_tensor(&w, logits, entries[1].size);
        if (status == MX8_OK)
            status = mx8i_commit_safetensors(&w);
        else
            mx8i_abandon_safetensors(&w);
    }
    mx8i_release(logits);
    return status;
}

static void write_text(void *user, const char *text, size_t size) {
    fwrite(text, 1, size, user);
    fflush(user);
}

static int should_stop(void *user) {
    (void)user;
    return mx8i_is_stopping();
}

static enum mx8_status sample(struct session *s) {
    const struct mx8_text_sink sink = {.write = write_text, .user = stdout};
    struct mx8_utf8_stream text = {.sink = &sink};
    struct mx8_generated made;
    const struct mx8_generation g = {.sampling = {.temperature = mx8i_get_float(s->o, "temperature"),
                                         .top_p = mx8i_get_float(s->o, "top_p"),
                                         .top_k = mx8i_get_int(s->o, "top_k"),
                                         .seed = (uint64_t)mx8i_get_int(s->o, "seed")},
        .most = mx8i_get_int(s->o, "max_new_tokens"),
        .stop = s->stop,
        .n_stop = s->n_stop,
        .should_stop = should_stop};
    if (mx8i_get_bool(s->o, "echo")) mx8i_print_tokens(stdout, s->tokenizer, s->tokens.id, s->tokens.count, 1);
    MX8_TRY(mx8i_generate(s->model, s->tokenizer, &g, &s->tokens, &text, &made));
    putchar('\n');
    fflush(stdout);
    fprintf(stderr, "%lld tokens in %.1f s (%.1f tokens/s)%s\n", (long long)made.tokens, made.seconds,
        made.seconds > 0 ? (double)made.tokens / made.seconds : 0, made.stopped ? ", ended by an end mark" : "");
    return MX8_OK;
}

static enum mx8_status run(struct session *s) {
    const char *logits = mx8i_get_text(s->o, "logits");
    const int64_t most = mx8i_get_int(s->o, "max_new_tokens");
    MX8_TRY(open_tokenizer(s));
    MX8_TRY(read_prompt(s));
    if (mx8i_get_bool(s->o, "stop_at_eos")) {
        add_stop(s, mx8i_get_eos(s->tokenizer));
        if (mx8i_is_folder(s->path)) {
            add_stops_of(s, "config.json");
            add_stops_of(s, "generation_config.json");
        }
    }
    MX8_TRY(open_model(s, s->tokens.count + (*logits ? 0 : most)));
    return *logits ? write_logits(s, logits) : sample(s);
}

int mx8i_run_generate(int argc, char **argv) {
    struct mx8_options o;
    const char *path;
    int n_paths, code = MX8_EXIT_OK;
    static struct mx8_option table[OWN_COUNT + MX8_MODEL_OPTIONS]; /* help is asked for it after this returns */
    const int32_t count = mx8i_join_model_options(own, OWN_COUNT, table);
    if (mx8i_wants_help(argc, argv)) return mx8i_print_help(usage, table, count);
    if (mx8i_parse_command(&o, table, count, argc, argv, &path, &n_paths, 1, 1, "weights", &code)) {
        struct session s = {.o = &o, .path = path};
        mx8i_catch_signals();
        enum mx8_status status = run(&s);
        if (status != MX8_OK)
            code = mx8i_report_failure("generate", status, MX8_EXIT_FAILURE);
        else if (mx8i_is_stopping())
            code = MX8_EXIT_INTERRUPTED;
        mx8i_free_model(s.model);
        mx8_destroy_context(s.ctx);
        mx8i_close_tokenizer(s.tokenizer);
        mx8i_release(s.tokens.id);
        mx8i_close_options(&o);
    }
    return code;
}
