/* Token shards as people read them: what a header says, what its tokens are, how its first documents begin. Checkpoints
 * are inspect_checkpoint.c's. */
#include <string.h>
#include "base/error.h"
#include "base/file.h"
#include "base/memory.h"
#include "cli/inspect.h"
#include "cli/token_tools.h"
#include "train/sha256.h"
#include "train/source.h"

enum { MAX_SHARDS = 4096 };

static const char usage[] =
    "usage: mx8 inspect SHARD... [--tokenizer NAME] [--documents N] [--tokens N] [--eos ID]\n"
    "       mx8 inspect CHECKPOINT... [--tensors] [--no-verify]\n\n"
    "Shows the format, size and SHA-256 of token shards, the range of their ids, how many documents they hold, and "
    "the\n"
    "first tokens of the first documents: ids, and with --tokenizer what each of them stands for.\n"
    "Of a checkpoint (a folder step-N, or the folder that holds them): where its run stood, what it holds, and "
    "whether\n"
    "every byte is as it was saved.\n";

static const struct mx8_option table[] = {
    {"tokenizer", MX8_OPT_TEXT, "", NULL, 0, 0, "shows text; as for mx8 tokenize", NULL},
    MX8_PATTERN_ROW,
    {"documents", MX8_OPT_INT, "3", NULL, 0, 2147483647, "how many to show", NULL},
    {"tokens", MX8_OPT_INT, "32", NULL, 1, 2147483647, "how many of each document", NULL},
    {"eos", MX8_OPT_INT, "auto", "auto", 0, 2147483647,
        "id that ends documents; auto: the tokenizer's, manifest.json's, else 257", NULL},
    {"tensors", MX8_OPT_BOOL, "false", NULL, 0, 0, "list every tensor of a checkpoint", NULL},
    {"verify", MX8_OPT_BOOL, "true", NULL, 0, 0, "read all of a checkpoint and compare its SHA-256 sums", NULL},
};
#define TABLE_COUNT ((int32_t)(sizeof table / sizeof table[0]))

struct facts {
    int64_t lowest, highest, documents, longest;
};

static struct facts gather_facts(const struct mx8_shard *s, int64_t eos) {
    struct facts f = {.lowest = INT64_MAX, .highest = -1};
    int64_t start = 0;
    for (int64_t i = 0; i < s->count; i++) {
        int64_t token = mx8i_load_token(s, i);
        if (token < f.lowest) f.lowest = token;
        if (token > f.highest) f.highest = token;
        if (token != eos) continue;
        f.documents++;
        if (i + 1 - start > f.longest) f.longest = i + 1 - start;
        start = i + 1;
    }
    return f;
}

/* A token on one line: text, with what does not print as escapes. */
static void print_visible(const struct mx8_tokenizer *t, int64_t id) {
    size_t size;
    int special;
    const uint8_t *bytes = mx8i_get_token(t, id > INT32_MAX ? -1 : (int32_t)id, &size, &special);
    if (!bytes) {
        printf("  (no such token)");
        return;
    }
    fputs(special ? "  " : "  \"", stdout);
    for (size_t i = 0; i < size; i++) {
        if (bytes[i] == '\n')
            fputs("\\n", stdout);
        else if (bytes[i] == '\t')
            fputs("\\t", stdout);
        else if (bytes[i] == '"' || bytes[i] == '\\')
            printf("\\%c", bytes[i]);
        else if (bytes[i] < 0x20 || bytes[i] >= 0x7F) /* parts of a character would not print by themselves */
            printf("\\x%02x", bytes[i]);
        else
            putchar(bytes[i]);
    }
    if (!special) putchar('"');
}

static void print_document(
    const struct mx8_shard *s, const struct mx8_tokenizer *t, int64_t start, int64_t end, int64_t limit) {
    char count[32];
    int64_t shown = end - start < limit ? end - start : limit;
    printf("\n  document at token %lld, %s tokens\n", (long long)start, mx8i_format_count(count, end - start));
    if (t) {
        fputs("    text  ", stdout);
        for (int64_t i = start; i < start + shown; i++) {
            int32_t id = (int32_t)mx8i_load_token(s, i);
            mx8i_print_tokens(stdout, t, &id, 1, 1);
        }
        putchar('\n');
    }
    for (int64_t i = start; i < start + shown; i++) {
        int64_t token = mx8i_load_token(s, i);
        printf("    %7lld", (long long)token);
        if (t) print_visible(t, token);
        putchar('\n');
    }
    if (shown < end - start) printf("    and %s more\n", mx8i_format_count(count, end - start - shown));
}

static void print_documents(
    const struct mx8_shard *s, const struct mx8_tokenizer *t, int64_t eos, int64_t documents, int64_t limit) {
    for (int64_t start = 0; start < s->count && documents > 0; documents--) {
        int64_t end = start;
        while (end < s->count && mx8i_load_token(s, end) != eos) end++;
        if (end < s->count) end++;
        print_document(s, t, start, end, limit);
        start = end;
    }
}

/* A manifest that lies is for the trainer to refuse: here one looks at what there is. */
static int64_t find_eos(const struct mx8_options *o, const struct mx8_tokenizer *t, const char *path) {
    struct mx8_ids ids;
    int found;
    int64_t eos = mx8i_get_int(o, "eos");
    if (eos >= 0) return eos;
    if (t) return mx8i_get_eos(t);
    return mx8i_read_shard_ids(path, 1, &found, &ids) == MX8_OK && found ? ids.document_end : MX8_EOS;
}

static enum mx8_status inspect(const struct mx8_options *o, const struct mx8_tokenizer *t, const char *path) {
    struct mx8_shard s;
    char hash[65], a[32], b[32];
    enum mx8_status status;
    const struct mx8_inspection how = {mx8i_get_bool(o, "verify"), mx8i_get_bool(o, "tensors")};
    if (mx8i_is_folder(path) && mx8i_inspect_checkpoint(path, &how, &status)) return status;
    if (mx8i_is_folder(path))
        return MX8_FAIL(
            MX8_FORMAT_ERROR, "%s: has no checkpoint in it, expected a token shard or a checkpoint's folder", path);
    MX8_TRY(mx8i_hash_file(path, hash));
    MX8_TRY(mx8i_open_shard(path, &s));
    int64_t eos = find_eos(o, t, path);
    struct facts f = gather_facts(&s, eos);
    int bare = s.tokens == s.map.data;
    printf("%s\n  format     %s uint%d tokens\n", path, bare ? "bare" : "llm.c,", 8 * s.width);
    printf("  tokens     %s (%s bytes)\n", mx8i_format_count(a, s.count), mx8i_format_count(b, (int64_t)s.map.size));
    if (s.count > 0) printf("  ids        %lld to %lld\n", (long long)f.lowest, (long long)f.highest);
    printf("  documents  %s that end with token %lld", mx8i_format_count(a, f.documents), (long long)eos);
    if (f.documents > 0) printf(", the longest %s tokens", mx8i_format_count(b, f.longest));
    printf("\n  sha256     %s\n", hash);
    print_documents(&s, t, eos, mx8i_get_int(o, "documents"), mx8i_get_int(o, "tokens"));
    status = MX8_OK;
    if (t && f.highest >= mx8i_count_vocabulary(t))
        status = MX8_FAIL(MX8_INVALID_ARGUMENT, "%s: token %lld, expected less than the tokenizer's %lld", path,
            (long long)f.highest, (long long)mx8i_count_vocabulary(t));
    mx8i_close_shard(&s);
    return status;
}

int mx8i_run_inspect(int argc, char **argv) {
    struct mx8_options o;
    const char *paths[MAX_SHARDS];
    int n_paths, code = MX8_EXIT_OK;
    if (mx8i_wants_help(argc, argv)) return mx8i_print_help(usage, table, TABLE_COUNT);
    if (!mx8i_parse_command(
            &o, table, TABLE_COUNT, argc, argv, paths, &n_paths, 1, MAX_SHARDS, "a shard or a checkpoint", &code))
        return code;
    struct mx8_tokenizer_options options = {.pattern = mx8i_get_given(&o, "pattern")};
    struct mx8_tokenizer *t = NULL;
    enum mx8_status status = MX8_OK;
    const char *name = mx8i_get_given(&o, "tokenizer");
    if (name) status = mx8i_open_tokenizer(name, &options, &t);
    for (int i = 0; i < n_paths && status == MX8_OK; i++) {
        if (i > 0) putchar('\n');
        status = inspect(&o, t, paths[i]);
    }
    mx8i_close_tokenizer(t);
    mx8i_close_options(&o);
    return status == MX8_OK ? MX8_EXIT_OK : mx8i_report_failure("inspect", status, MX8_EXIT_FAILURE);
}
