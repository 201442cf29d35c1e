/* Text to token shards, with a status line; or the ids of standard input, for a look at what a tokenizer does. */
#include <omp.h>
#include <string.h>
#include "base/memory.h"
#include "cli/token_tools.h"
#include "train/tokenize.h"

enum { MAX_INPUTS = 4096 };

static const char usage[] =
    "usage: mx8 tokenize INPUT... --tokenizer NAME --output FOLDER [FLAGS]\n"
    "       mx8 tokenize - --tokenizer NAME          prints the ids of the text on standard input\n\n"
    "Writes token shards (llm.c's format) and manifest.json to FOLDER. INPUT is a file or a folder: plain text, a\n"
    "document a file; text, a document a line (--format lines); JSON lines, a document in a field of each (*.jsonl,\n"
    "*.ndjson, *.json). All may be compressed with gzip or zstd. A document becomes BOS, its ids, EOS.\n\n"
    "A run that was stopped or killed goes on after its last finished shard when the same command is given again.\n"
    "Threads: OMP_NUM_THREADS or --threads; the shards do not depend on them.\n";

static const struct mx8_option table[] = {
    MX8_TOKENIZER_ROW,
    {"output", MX8_OPT_TEXT, "", NULL, 0, 0, "folder of the shards, a new one or that of an earlier run", NULL},
    {"format", MX8_OPT_CHOICE, "auto", "auto|text|lines|jsonl", 0, 0, "of the input; auto goes by names", NULL},
    {"field", MX8_OPT_TEXT, "text", NULL, 0, 0, "where the text is in JSON lines", NULL},
    {"dtype", MX8_OPT_CHOICE, "uint32", "uint32|uint16", 0, 0, "of the tokens in a shard", NULL},
    {"shard_tokens", MX8_OPT_INT, "100000000", NULL, 1, 2147483647, "a shard ends with the document that fills it",
        NULL},
    {"bos", MX8_OPT_TEXT, "", NULL, 0, 0,
        "token before each document, or none; when left out, what the tokenizer's files say", NULL},
    {"eos", MX8_OPT_TEXT, "", NULL, 0, 0, "token after each document; when left out, what the tokenizer's files say",
        NULL},
    {"special_as_text", MX8_OPT_BOOL, "false", NULL, 0, 0, "special tokens that stand in the text are text", NULL},
    MX8_PATTERN_ROW,
    {"threads", MX8_OPT_INT, "0", NULL, 0, 4096, "0: as many as OpenMP gives", NULL},
    {"overwrite", MX8_OPT_BOOL, "false", NULL, 0, 0, "drop the shards of an earlier run instead of going on", NULL},
};
#define TABLE_COUNT ((int32_t)(sizeof table / sizeof table[0]))

static enum mx8_status print_ids(const struct mx8_tokenizer *t) {
    char *text;
    size_t size;
    struct mx8_encoder *encoder;
    struct mx8_tokens tokens = {0};
    enum mx8_status status = mx8i_read_input(&text, &size);
    if (status != MX8_OK) return status;
    status = mx8i_open_encoder(t, &encoder);
    if (status == MX8_OK) status = mx8i_encode_text(encoder, text, size, &tokens);
    for (int64_t i = 0; status == MX8_OK && i < tokens.count; i++) printf("%s%d", i ? " " : "", tokens.id[i]);
    if (status == MX8_OK) putchar('\n');
    mx8i_release(tokens.id);
    mx8i_close_encoder(encoder);
    mx8i_release(text);
    return status;
}

static void show_progress(void *user, const struct mx8_tokenize_progress *p) {
    char tokens[32], left[32];
    double part = p->bytes_total > 0 ? (double)p->bytes_read / (double)p->bytes_total : 1;
    double speed = p->seconds > 0 ? (double)p->fresh_bytes / p->seconds / 1e6 : 0;
    int bar = (int)(20 * part);
    mx8i_show_status(user, 0, "[%.*s%.*s] %3.0f %%  %s tokens  %.1f MB/s  shard %lld  %s left", bar,
        "####################", 20 - bar, "....................", 100 * part,
        mx8i_format_count(tokens, p->counts.tokens), speed, (long long)p->shards,
        mx8i_format_duration(left, part > 0 ? p->seconds * (1 - part) / part : 0));
}

static void print_summary(struct mx8_terminal *t, const char *folder, const struct mx8_tokenize_progress *p) {
    char tokens[32], documents[32], bytes[32], replaced[32], duration[32];
    mx8i_print_line(t, "%s: %s tokens of %s document%s in %lld shard%s; %s bytes of text, %.2f bytes a token", folder,
        mx8i_format_count(tokens, p->counts.tokens), mx8i_format_count(documents, p->counts.documents),
        p->counts.documents == 1 ? "" : "s", (long long)p->shards, p->shards == 1 ? "" : "s",
        mx8i_format_count(bytes, p->counts.text_bytes), (double)p->counts.text_bytes / (double)p->counts.tokens);
    if (p->counts.replaced)
        mx8i_print_line(t, "%s invalid UTF-8 sequences became U+FFFD", mx8i_format_count(replaced, p->counts.replaced));
    if (p->fresh_bytes)
        mx8i_print_line(t, "%s, %.1f MB/s", mx8i_format_duration(duration, p->seconds),
            (double)p->fresh_bytes / 1e6 / (p->seconds > 1e-9 ? p->seconds : 1e-9));
}

static enum mx8_status write_shards(
    const struct mx8_options *o, const struct mx8_tokenizer *t, const char *const *paths, int n_paths) {
    static const char *const formats[] = {[MX8_CORPUS_AUTO] = "auto", "text", "lines", "jsonl"};
    struct mx8_terminal terminal;
    struct mx8_tokenize_progress progress;
    mx8i_open_terminal(&terminal);
    terminal.bare = 1;
    struct mx8_tokenize_options options = {.tokenizer = t,
        .paths = paths,
        .n_paths = n_paths,
        .field = mx8i_get_text(o, "field"),
        .folder = mx8i_get_text(o, "output"),
        .width = strcmp(mx8i_get_text(o, "dtype"), "uint16") ? 4 : 2,
        .shard_tokens = mx8i_get_int(o, "shard_tokens"),
        .special_as_text = mx8i_get_bool(o, "special_as_text"),
        .pattern = mx8i_get_given(o, "pattern"),
        .overwrite = mx8i_get_bool(o, "overwrite"),
        .is_stopping = mx8i_is_stopping,
        .show = show_progress,
        .user = &terminal,
        .log = mx8i_log_to_terminal(&terminal)};
    while (strcmp(formats[options.format], mx8i_get_text(o, "format")) != 0) options.format++;
    int64_t threads = mx8i_get_int(o, "threads");
    if (threads > 0) omp_set_num_threads((int)threads);
    mx8i_catch_signals();
    enum mx8_status status = mx8i_tokenize_corpus(&options, &progress);
    mx8i_clear_status(&terminal);
    if (status == MX8_OK) print_summary(&terminal, options.folder, &progress);
    return status;
}

int mx8i_run_tokenize(int argc, char **argv) {
    struct mx8_options o;
    const char *inputs[MAX_INPUTS];
    int n_inputs, code = MX8_EXIT_OK;
    if (mx8i_wants_help(argc, argv)) return mx8i_print_help(usage, table, TABLE_COUNT);
    if (!mx8i_parse_command(
            &o, table, TABLE_COUNT, argc, argv, inputs, &n_inputs, 1, MAX_INPUTS, "text to read", &code))
        return code;
    int from_stdin = n_inputs == 1 && !strcmp(inputs[0], "-");
    if (!from_stdin && !mx8i_get_given(&o, "output")) {
        code = mx8i_report_usage("tokenize", "needs --output, the folder of the shards");
    } else {
        struct mx8_tokenizer_options options = {.pattern = mx8i_get_given(&o, "pattern"),
            .bos = mx8i_get_given(&o, "bos"),
            .eos = mx8i_get_given(&o, "eos"),
            .special_as_text = mx8i_get_bool(&o, "special_as_text")};
        struct mx8_tokenizer *t;
        enum mx8_status status = mx8i_open_tokenizer(mx8i_get_text(&o, "tokenizer"), &options, &t);
        if (status == MX8_OK) status = from_stdin ? print_ids(t) : write_shards(&o, t, inputs, n_inputs);
        mx8i_close_tokenizer(t);
        if (status != MX8_OK) code = mx8i_report_failure("tokenize", status, MX8_EXIT_FAILURE);
    }
    mx8i_close_options(&o);
    return code;
}
