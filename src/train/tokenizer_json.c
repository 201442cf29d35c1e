/* Hugging Face tokenizer.json, its byte-level BPE family. Every setting that changes ids is either obeyed or refused
 * with its name; truncation, padding and the post-processor are the caller's business and are not looked at. */
#include <jansson.h>
#include <string.h>
#include "base/error.h"
#include "base/file.h"
#include "base/memory.h"
#include "train/tokenizer_private.h"

enum { MAX_CONFIG = 16 << 20 };

#define REFUSE(t, ...) MX8_FAIL(MX8_UNSUPPORTED, "%s: %s", (t)->path, __VA_ARGS__)

static const char *get_text(const json_t *object, const char *key) {
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : "";
}

static int is_empty(const json_t *value) {
    return !value || json_is_null(value) || (json_is_string(value) && json_string_length(value) == 0);
}

/* Normalizers: none, NFC, or a sequence of these. */
static enum mx8_status read_normalizer(struct mx8_tokenizer *t, const json_t *n) {
    if (is_empty(n)) return MX8_OK;
    const char *type = get_text(n, "type");
    if (!strcmp(type, "NFC")) {
        t->nfc = 1;
        return MX8_OK;
    }
    if (strcmp(type, "Sequence") != 0)
        return MX8_FAIL(MX8_UNSUPPORTED, "%s: normalizer \"%s\" is not supported, NFC is", t->path, type);
    size_t index;
    json_t *item;
    json_array_foreach(json_object_get(n, "normalizers"), index, item) MX8_TRY(read_normalizer(t, item));
    return MX8_OK;
}

static enum mx8_status read_split(struct mx8_tokenizer *t, struct mx8_split *s, const json_t *p) {
    static const char *const behaviors[] = {[MX8_SPLIT_ISOLATED] = "Isolated",
        [MX8_SPLIT_REMOVED] = "Removed",
        [MX8_SPLIT_CONTIGUOUS] = "Contiguous",
        [MX8_SPLIT_MERGED_WITH_PREVIOUS] = "MergedWithPrevious",
        [MX8_SPLIT_MERGED_WITH_NEXT] = "MergedWithNext"};
    const char *behavior = get_text(p, "behavior");
    size_t found = 0, count = sizeof behaviors / sizeof behaviors[0];
    while (found < count && strcmp(behaviors[found], behavior) != 0) found++;
    if (found == count) return MX8_FAIL(MX8_UNSUPPORTED, "%s: Split has behavior \"%s\"", t->path, behavior);
    s->behavior = (enum mx8_split_behavior)found;
    s->invert = json_is_true(json_object_get(p, "invert"));
    const json_t *pattern = json_object_get(p, "pattern");
    const json_t *regex = json_object_get(pattern, "Regex"), *text = json_object_get(pattern, "String");
    if (!json_is_string(regex) && !json_is_string(text))
        return MX8_FAIL(MX8_FORMAT_ERROR, "%s: Split without a pattern, expected \"Regex\" or \"String\"", t->path);
    const json_t *used = json_is_string(regex) ? regex : text;
    return mx8i_compile_split(s, json_string_value(used), json_string_length(used),
        used == regex ? MX8_REGEX_ONIGURUMA : MX8_REGEX_LITERAL, t->path);
}

static enum mx8_status read_byte_level(struct mx8_tokenizer *t, struct mx8_split *s, const json_t *p) {
    const json_t *use_regex = json_object_get(p, "use_regex"), *prefix = json_object_get(p, "add_prefix_space");
    s->prefix_space = !prefix || json_is_true(prefix); /* both are true when left out, as there */
    if (use_regex && !json_is_true(use_regex)) return MX8_OK;
    return mx8i_compile_split(s, mx8i_gpt2_pattern, strlen(mx8i_gpt2_pattern), MX8_REGEX_ONIGURUMA, t->path);
}

static enum mx8_status read_digits(struct mx8_tokenizer *t, struct mx8_split *s, const json_t *p) {
    int single = json_is_true(json_object_get(p, "individual_digits"));
    s->behavior = single ? MX8_SPLIT_ISOLATED : MX8_SPLIT_CONTIGUOUS;
    return mx8i_compile_split(s, "\\p{N}", 5, MX8_REGEX_ONIGURUMA, t->path);
}

/* Adds the splits of a pre-tokenizer. *done is set by ByteLevel, after which nothing may follow. */
static enum mx8_status read_pre_tokenizer(struct mx8_tokenizer *t, const json_t *p, int *done) {
    const char *type = get_text(p, "type");
    if (!strcmp(type, "Sequence")) {
        size_t index;
        json_t *item;
        json_array_foreach(json_object_get(p, "pretokenizers"), index, item) MX8_TRY(read_pre_tokenizer(t, item, done));
        return MX8_OK;
    }
    if (*done)
        return MX8_FAIL(
            MX8_UNSUPPORTED, "%s: pre-tokenizer \"%s\" stands after ByteLevel, expected ByteLevel last", t->path, type);
    if (t->n_splits == MX8_MAX_SPLITS) return REFUSE(t, "more than 8 pre-tokenizers");
    struct mx8_split *s = &t->split[t->n_splits++];
    if (!strcmp(type, "ByteLevel")) {
        *done = 1;
        return read_byte_level(t, s, p);
    }
    if (!strcmp(type, "Split")) return read_split(t, s, p);
    if (!strcmp(type, "Digits")) return read_digits(t, s, p);
    return MX8_FAIL(MX8_UNSUPPORTED,
        "%s: pre-tokenizer \"%s\" is not supported; Split, Digits, ByteLevel and sequences are", t->path, type);
}

/* Refuses what would change merges. */
static enum mx8_status check_model(struct mx8_tokenizer *t, const json_t *model) {
    const char *type = get_text(model, "type");
    if (*type && strcmp(type, "BPE") != 0)
        return MX8_FAIL(MX8_UNSUPPORTED, "%s: model \"%s\" is not supported, byte-level BPE is", t->path, type);
    if (!json_is_object(json_object_get(model, "vocab")) || !json_is_array(json_object_get(model, "merges")))
        return MX8_FAIL(
            MX8_FORMAT_ERROR, "%s: no model with \"vocab\" and \"merges\", is it a tokenizer.json?", t->path);
    if (json_number_value(json_object_get(model, "dropout")) > 0) return REFUSE(t, "model.dropout makes ids random");
    if (!is_empty(json_object_get(model, "continuing_subword_prefix")))
        return REFUSE(t, "model.continuing_subword_prefix is not supported");
    if (!is_empty(json_object_get(model, "end_of_word_suffix")))
        return REFUSE(t, "model.end_of_word_suffix is not supported");
    if (json_is_true(json_object_get(model, "byte_fallback")))
        return REFUSE(t, "model.byte_fallback (SentencePiece style) is not supported");
    return MX8_OK;
}

static enum mx8_status read_vocab(struct mx8_tokenizer *t, json_t *vocab, struct mx8_bytes *scratch) {
    const char *text;
    json_t *value;
    json_object_foreach(vocab, text, value) {
        json_int_t id = json_integer_value(value);
        size_t size = strlen(text);
        if (!json_is_integer(value) || id < 0 || id >= t->id_limit)
            return MX8_FAIL(
                MX8_FORMAT_ERROR, "%s: vocab: the id of \"%s\" is no integer below %d", t->path, text, t->id_limit);
        if (id < t->vocab.count && t->vocab.token[id].present)
            return MX8_FAIL(MX8_FORMAT_ERROR, "%s: vocab: id %lld stands twice", t->path, (long long)id);
        if (mx8i_unmap_bytes(text, size, scratch))
            MX8_TRY(mx8i_set_token(&t->vocab, id, scratch->data, scratch->size, 1));
        else
            MX8_TRY(mx8i_set_token(&t->vocab, id, text, size, 0));
    }
    return mx8i_index_vocab(&t->vocab);
}

/* A merge is "left right" or ["left", "right"]. */
static int get_halves(
    const json_t *merge, const char **left, size_t *left_size, const char **right, size_t *right_size) {
    if (json_is_array(merge) && json_array_size(merge) == 2) {
        const json_t *a = json_array_get(merge, 0), *b = json_array_get(merge, 1);
        *left = json_string_value(a);
        *right = json_string_value(b);
        *left_size = json_string_length(a);
        *right_size = json_string_length(b);
        return *left && *right;
    }
    *left = json_string_value(merge);
    const char *space = *left ? strchr(*left, ' ') : NULL;
    if (!space) return 0;
    *right = space + 1;
    *left_size = (size_t)(space - *left);
    *right_size = strlen(*right);
    return 1;
}

static int32_t look_up(const struct mx8_tokenizer *t, struct mx8_bytes *scratch, const char *text, size_t size) {
    return mx8i_unmap_bytes(text, size, scratch) ? mx8i_look_up_bytes(&t->vocab, scratch->data, scratch->size) : -1;
}

static enum mx8_status read_merges(struct mx8_tokenizer *t, const json_t *merges, struct mx8_bytes *scratch) {
    size_t index;
    json_t *merge;
    struct mx8_bytes both = {0};
    enum mx8_status status = mx8i_open_merges(&t->merges, (int64_t)json_array_size(merges));
    json_array_foreach(merges, index, merge) {
        const char *left, *right;
        size_t left_size, right_size;
        if (status != MX8_OK) break;
        if (!get_halves(merge, &left, &left_size, &right, &right_size)) {
            status = MX8_FAIL(MX8_FORMAT_ERROR, "%s: merge %zu is no pair of tokens", t->path, index);
            break;
        }
        both.size = 0;
        status = mx8i_append_bytes(&both, left, left_size);
        if (status == MX8_OK) status = mx8i_append_bytes(&both, right, right_size);
        if (status != MX8_OK) break;
        int32_t a = look_up(t, scratch, left, left_size), b = look_up(t, scratch, right, right_size);
        int32_t id = look_up(t, scratch, (const char *)both.data, both.size);
        if (a < 0 || b < 0 || id < 0)
            status =
                MX8_FAIL(MX8_FORMAT_ERROR, "%s: merge %zu (\"%.*s\" and \"%.*s\"): a part or the whole is not in vocab",
                    t->path, index, (int)left_size, left, (int)right_size, right);
        else
            status = mx8i_add_merge(&t->merges, a, b, (uint32_t)index, id);
    }
    mx8i_release(both.data);
    return status;
}

static enum mx8_status add_token(struct mx8_tokenizer *t, const json_t *item, struct mx8_bytes *scratch) {
    const json_t *content = json_object_get(item, "content"), *id = json_object_get(item, "id");
    if (!json_is_string(content) || !json_is_integer(id) || json_integer_value(id) < 0 ||
        json_integer_value(id) >= t->id_limit)
        return MX8_FAIL(MX8_FORMAT_ERROR, "%s: added_tokens: an entry without content or id", t->path);
    const char *text = json_string_value(content);
    size_t size = json_string_length(content);
    if (json_is_true(json_object_get(item, "single_word")))
        return MX8_FAIL(
            MX8_UNSUPPORTED, "%s: added token \"%s\" has single_word, which is not supported", t->path, text);
    struct mx8_added_token token = {.id = (int32_t)json_integer_value(id),
        .lstrip = json_is_true(json_object_get(item, "lstrip")),
        .rstrip = json_is_true(json_object_get(item, "rstrip")),
        .special = json_is_true(json_object_get(item, "special"))};
    const struct mx8_vocab_token *known = token.id < t->vocab.count ? &t->vocab.token[token.id] : NULL;
    if (!known || known->size != size || memcmp(t->vocab.bytes.data + known->offset, text, size) != 0)
        MX8_TRY(mx8i_set_token(&t->vocab, token.id, text, size, 0));
    t->vocab.token[token.id].special = token.special != 0;
    int normalized = json_is_true(json_object_get(item, "normalized"));
    if (!normalized || !t->nfc)
        return mx8i_add_added(normalized ? &t->added_normalized : &t->added_raw, text, size, token);
    MX8_TRY(mx8i_normalize_nfc(scratch, (const uint8_t *)text, size));
    return mx8i_add_added(&t->added_normalized, scratch->data, scratch->size, token);
}

static enum mx8_status read_root(struct mx8_tokenizer *t, const json_t *root, struct mx8_bytes *scratch) {
    const json_t *model = json_object_get(root, "model"), *before = json_object_get(root, "pre_tokenizer");
    int byte_level = 0;
    size_t index;
    json_t *item;
    MX8_TRY(check_model(t, model));
    MX8_TRY(read_normalizer(t, json_object_get(root, "normalizer")));
    if (!is_empty(before)) MX8_TRY(read_pre_tokenizer(t, before, &byte_level));
    if (!byte_level)
        return REFUSE(
            t, "no ByteLevel pre-tokenizer: its vocabulary is not one of bytes, and only those are supported");
    MX8_TRY(read_vocab(t, json_object_get(model, "vocab"), scratch));
    MX8_TRY(mx8i_find_bytes(t));
    MX8_TRY(read_merges(t, json_object_get(model, "merges"), scratch));
    t->whole_first = json_is_true(json_object_get(model, "ignore_merges"));
    json_array_foreach(json_object_get(root, "added_tokens"), index, item) MX8_TRY(add_token(t, item, scratch));
    mx8i_sort_added(&t->added_raw);
    mx8i_sort_added(&t->added_normalized);
    return MX8_OK;
}

enum mx8_status mx8i_read_tokenizer_json(struct mx8_tokenizer *t, const char *text, size_t size) {
    json_error_t error;
    struct mx8_bytes scratch = {0};
    json_t *root = json_loadb(text, size, 0, &error);
    if (!root)
        return MX8_FAIL(MX8_FORMAT_ERROR, "%s: line %d, column %d: %s", t->path, error.line, error.column, error.text);
    enum mx8_status status = read_root(t, root, &scratch);
    json_decref(root);
    mx8i_release(scratch.data);
    return status;
}

/* "text", {"content": "text"}, or nothing. */
static enum mx8_status copy_mark(const json_t *mark, char **out) {
    const char *text = json_string_value(json_is_object(mark) ? json_object_get(mark, "content") : mark);
    if (!text) return MX8_OK;
    *out = mx8i_copy_text(text);
    return *out ? MX8_OK : MX8_OUT_OF_MEMORY;
}

enum mx8_status mx8i_read_marks(const char *path, char **bos, char **eos) {
    char *text;
    size_t size;
    json_error_t error;
    *bos = *eos = NULL;
    if (!mx8i_is_file(path)) return MX8_OK;
    MX8_TRY(mx8i_read_file(path, MAX_CONFIG, &text, &size));
    json_t *root = json_loadb(text, size, 0, &error);
    mx8i_release(text);
    if (!root)
        return MX8_FAIL(MX8_FORMAT_ERROR, "%s: line %d, column %d: %s", path, error.line, error.column, error.text);
    enum mx8_status status = copy_mark(json_object_get(root, "bos_token"), bos);
    if (status == MX8_OK) status = copy_mark(json_object_get(root, "eos_token"), eos);
    json_decref(root);
    return status;
}
