/* Tokens of a shard, or ids from standard input, as text. */
#include <stdlib.h>
#include <string.h>
#include "base/error.h"
#include "base/memory.h"
#include "cli/token_tools.h"
#include "train/source.h"

enum { PIECE = 4096 };

static const char usage[] =
    "usage: mx8 detokenize SHARD --tokenizer NAME [--from N] [--count N] [--skip-special]\n"
    "       mx8 detokenize - --tokenizer NAME        ids from standard input, as `mx8 tokenize -` prints them\n\n"
    "Writes the text of a shard's tokens to standard output, byte for byte.\n";

static const struct mx8_option table[] = {
    MX8_TOKENIZER_ROW,
    MX8_PATTERN_ROW,
    {"from", MX8_OPT_INT, "0", NULL, 0, 2147483647, "first token", NULL},
    {"count", MX8_OPT_INT, "all", "all", 0, 2147483647, "number of tokens", NULL},
    {"skip_special", MX8_OPT_BOOL, "false", NULL, 0, 0, "leave out BOS, EOS and other special tokens", NULL},
};
#define TABLE_COUNT ((int32_t)(sizeof table / sizeof table[0]))

static enum mx8_status print_shard(const struct mx8_options *o, const struct mx8_tokenizer *t, const char *path) {
    struct mx8_shard shard;
    MX8_TRY(mx8i_open_shard(path, &shard));
    int64_t at = mx8i_get_int(o, "from"), count = mx8i_get_int(o, "count"), vocabulary = mx8i_count_vocabulary(t);
    int64_t end = count < 0 || count > shard.count - at ? shard.count : at + count;
    enum mx8_status status = MX8_OK;
    if (at > shard.count)
        status = MX8_FAIL(MX8_INVALID_ARGUMENT, "%s: from is %lld, expected at most the shard's %lld tokens", path,
            (long long)at, (long long)shard.count);
    while (at < end && status == MX8_OK) {
        int32_t ids[PIECE], n = 0;
        for (; n < PIECE && at < end && status == MX8_OK; at++) {
            int64_t token = mx8i_load_token(&shard, at);
            if (token >= vocabulary)
                status = MX8_FAIL(MX8_INVALID_ARGUMENT,
                    "%s: token %lld is %lld, expected less than the tokenizer's %lld: it is another one's shard", path,
                    (long long)at, (long long)token, (long long)vocabulary);
            else
                ids[n++] = (int32_t)token;
        }
        mx8i_print_tokens(stdout, t, ids, n, mx8i_get_bool(o, "skip_special"));
    }
    mx8i_close_shard(&shard);
    return status;
}

static enum mx8_status print_ids(const struct mx8_options *o, const struct mx8_tokenizer *t, const char *text) {
    for (int64_t index = 0;; index++) {
        char *end;
        while (*text && strchr(" \t\r\n,[]", *text)) text++;
        if (!*text) return MX8_OK;
        long long id = strtoll(text, &end, 10);
        if (end == text || id < 0 || id >= mx8i_count_vocabulary(t))
            return MX8_FAIL(MX8_INVALID_ARGUMENT, "standard input: \"%.20s\", number %lld, is no id below %lld", text,
                (long long)index, (long long)mx8i_count_vocabulary(t));
        int32_t narrow = (int32_t)id;
        mx8i_print_tokens(stdout, t, &narrow, 1, mx8i_get_bool(o, "skip_special"));
        text = end;
    }
}

static enum mx8_status run(const struct mx8_options *o, const struct mx8_tokenizer *t, const char *path) {
    char *text;
    size_t size;
    if (strcmp(path, "-") != 0) return print_shard(o, t, path);
    MX8_TRY(mx8i_read_input(&text, &size));
    enum mx8_status status = print_ids(o, t, text);
    mx8i_release(text);
    return status;
}

int mx8i_run_detokenize(int argc, char **argv) {
    struct mx8_options o;
    const char *path;
    int n_paths, code = MX8_EXIT_OK;
    if (mx8i_wants_help(argc, argv)) return mx8i_print_help(usage, table, TABLE_COUNT);
    if (!mx8i_parse_command(&o, table, TABLE_COUNT, argc, argv, &path, &n_paths, 1, 1, "a shard", &code)) return code;
    struct mx8_tokenizer_options options = {.pattern = mx8i_get_given(&o, "pattern")};
    struct mx8_tokenizer *t;
    enum mx8_status status = mx8i_open_tokenizer(mx8i_get_text(&o, "tokenizer"), &options, &t);
    if (status == MX8_OK) status = run(&o, t, path);
    mx8i_close_tokenizer(t);
    if (status != MX8_OK) code = mx8i_report_failure("detokenize", status, MX8_EXIT_FAILURE);
    mx8i_close_options(&o);
    return code;
}
