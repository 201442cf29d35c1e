/* tiktoken's rank files: "base64 rank" a line. They hold neither a split pattern nor special tokens; both are Llama 3's
 * unless a pattern is given. A pair of tokens merges when its bytes are a token, whose rank is also its id; all such
 * pairs are found once, when the file is read. */
#include <stdio.h>
#include <string.h>
#include "base/error.h"
#include "base/memory.h"
#include "base/number.h"
#include "train/tokenizer_private.h"

enum { LLAMA3_SPECIALS = 256 };

static int decode_digit(char c) {
    if (c >= 'A' && c <= 'Z') return c - 'A';
    if (c >= 'a' && c <= 'z') return c - 'a' + 26;
    if (c >= '0' && c <= '9') return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

/* Base64 with its padding; 0: it is none. */
static int decode_base64(struct mx8_bytes *out, const char *text, size_t size) {
    uint32_t bits = 0;
    int held = 0;
    out->size = 0;
    if (size == 0 || size % 4) return 0;
    while (size > 0 && text[size - 1] == '=') size--;
    for (size_t i = 0; i < size; i++) {
        int digit = decode_digit(text[i]);
        if (digit < 0) return 0;
        bits = bits << 6 | (uint32_t)digit;
        held += 6;
        if (held < 8) continue;
        held -= 8;
        uint8_t byte = (uint8_t)(bits >> held);
        if (mx8i_append_bytes(out, &byte, 1) != MX8_OK) return 0;
    }
    return 1;
}

static enum mx8_status read_line(
    struct mx8_tokenizer *t, struct mx8_bytes *bytes, const char *line, size_t size, int64_t number) {
    const char *space = memchr(line, ' ', size);
    size_t left = space ? (size_t)(space - line) : size;
    int64_t rank;
    if (!space || !decode_base64(bytes, line, left) ||
        mx8i_parse_integer(space + 1, size - left - 1, &rank) != MX8_NUMBER_OK || rank < 0 || rank >= t->id_limit)
        return MX8_FAIL(MX8_FORMAT_ERROR, "%s: line %lld is \"%.*s\", expected base64, a space and a rank below %d",
            t->path, (long long)number, size < 60 ? (int)size : 60, line, t->id_limit);
    if (rank < t->vocab.count && t->vocab.token[rank].present)
        return MX8_FAIL(
            MX8_FORMAT_ERROR, "%s: line %lld: rank %lld stands twice", t->path, (long long)number, (long long)rank);
    return mx8i_set_token(&t->vocab, rank, bytes->data, bytes->size, 1);
}

static enum mx8_status read_lines(struct mx8_tokenizer *t, struct mx8_bytes *bytes, const char *text, size_t size) {
    for (int64_t number = 1; size > 0; number++) {
        const char *end = memchr(text, '\n', size);
        size_t length = end ? (size_t)(end - text) : size, used = length;
        if (used > 0 && text[used - 1] == '\r') used--;
        if (used > 0) MX8_TRY(read_line(t, bytes, text, used, number));
        length += end != NULL;
        text += length;
        size -= length;
    }
    return MX8_OK;
}

static enum mx8_status find_merges(struct mx8_tokenizer *t) {
    const struct mx8_vocab *v = &t->vocab;
    MX8_TRY(mx8i_open_merges(&t->merges, 2 * v->count));
    for (int64_t id = 0; id < v->count; id++) {
        const struct mx8_vocab_token *token = &v->token[id];
        const uint8_t *bytes = v->bytes.data + token->offset;
        for (uint32_t cut = 1; cut < token->size; cut++) {
            int32_t left = mx8i_look_up_bytes(v, bytes, cut);
            int32_t right = left < 0 ? -1 : mx8i_look_up_bytes(v, bytes + cut, token->size - cut);
            if (right >= 0) MX8_TRY(mx8i_add_merge(&t->merges, left, right, (uint32_t)id, (int32_t)id));
        }
    }
    return MX8_OK;
}

/* Names and order of Llama 3's 256 special tokens, which follow the ranks. */
static void name_special(char name[64], int index) {
    static const char *const known[] = {"<|begin_of_text|>", "<|end_of_text|>", "<|reserved_special_token_0|>",
        "<|reserved_special_token_1|>", "<|reserved_special_token_2|>", "<|reserved_special_token_3|>",
        "<|start_header_id|>", "<|end_header_id|>", "<|reserved_special_token_4|>", "<|eot_id|>"};
    int n_known = (int)(sizeof known / sizeof known[0]);
    if (index < n_known)
        snprintf(name, 64, "%s", known[index]);
    else
        snprintf(name, 64, "<|reserved_special_token_%d|>", index - 5);
}

static enum mx8_status add_specials(struct mx8_tokenizer *t) {
    int64_t first = t->vocab.count;
    for (int i = 0; i < LLAMA3_SPECIALS; i++) {
        char name[64];
        name_special(name, i);
        MX8_TRY(mx8i_set_token(&t->vocab, first + i, name, strlen(name), 0));
        t->vocab.token[first + i].special = 1;
    }
    return MX8_OK;
}

enum mx8_status mx8i_read_ranks(struct mx8_tokenizer *t, const char *text, size_t size, const char *pattern) {
    struct mx8_bytes bytes = {0};
    enum mx8_status status = read_lines(t, &bytes, text, size);
    mx8i_release(bytes.data);
    MX8_TRY(status);
    if (t->vocab.count == 0) return MX8_FAIL(MX8_FORMAT_ERROR, "%s: no tokens", t->path);
    MX8_TRY(mx8i_index_vocab(&t->vocab));
    MX8_TRY(mx8i_find_bytes(t));
    MX8_TRY(find_merges(t));
    t->whole_first = 1;
    t->n_splits = 1;
    if (!pattern) {
        MX8_TRY(add_specials(t)); /* the pattern is Llama 3's, so are they; they are never found in text */
        pattern = mx8i_llama3_pattern;
    }
    return mx8i_compile_split(&t->split[0], pattern, strlen(pattern), MX8_REGEX_TIKTOKEN, t->path);
}
