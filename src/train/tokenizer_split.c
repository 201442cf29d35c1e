/* Splitting by regular expressions, with PCRE2. Patterns were written for other engines (Oniguruma in `tokenizers`,
 * Rust's regex crate in tiktoken); where PCRE2 would mean something else by the same text the pattern is rewritten, and
 * where that is not possible it is refused. Text passes through the splits depth first, so that no list of pieces is
 * kept. */
#include <string.h>
#include "base/error.h"
#include "base/memory.h"
#include "train/tokenizer_private.h"

#ifdef MX8_HAVE_PCRE2
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#endif

const char mx8i_gpt2_pattern[] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";
const char mx8i_llama3_pattern[] = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}"
                                   "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

#ifdef MX8_HAVE_PCRE2

/* White_Space, as it stands inside a class. PCRE2's own \s takes U+180E too, which Unicode no longer calls a space. */
#define WHITE "\\p{Z}\\t-\\r\\x{85}"

static enum mx8_status refuse(const char *file, const char *what, size_t at) {
    return MX8_FAIL(MX8_UNSUPPORTED, "%s: the split pattern uses %s at byte %zu, which is not read the same everywhere",
        file, what, at);
}

/* One escape at pattern[at]; *taken is its length. \v, \h, \w and \b are other sets in other engines. */
static enum mx8_status rewrite_escape(
    struct mx8_bytes *out, const char *pattern, size_t size, size_t at, int in_class, const char *file, size_t *taken) {
    char word[] = "\\?";
    char c = at + 1 < size ? pattern[at + 1] : 0;
    word[1] = c;
    *taken = 2;
    if (c == 's') {
        const char *white = in_class ? WHITE : "[" WHITE "]";
        return mx8i_append_bytes(out, white, strlen(white));
    }
    if (c == 'S' && !in_class) return mx8i_append_bytes(out, "[^" WHITE "]", strlen("[^" WHITE "]"));
    if (c == 'S') return mx8i_append_bytes(out, word, 2); /* differs for U+180E alone */
    int letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    if (c == 0 || (letter && !strchr("dDpPnrtfx", c))) return refuse(file, word, at);
    const char *brace = at + 2 < size && pattern[at + 2] == '{' ? memchr(pattern + at, '}', size - at) : NULL;
    if (brace && strchr("pPx", c)) *taken = (size_t)(brace - pattern) + 1 - at;
    return mx8i_append_bytes(out, pattern + at, *taken);
}

static enum mx8_status rewrite_pattern(
    struct mx8_bytes *out, const char *pattern, size_t size, enum mx8_regex_dialect dialect, const char *file) {
    int in_class = 0;
    for (size_t at = 0, taken; at < size; at += taken) {
        char c = pattern[at], next = at + 1 < size ? pattern[at + 1] : 0;
        taken = 1;
        if (c == '\\') {
            MX8_TRY(rewrite_escape(out, pattern, size, at, in_class, file, &taken));
            continue;
        }
        if (in_class && c == '[') return refuse(file, "a class within a class", at);
        if (in_class && c == '&' && next == '&') return refuse(file, "an intersection of classes", at);
        if (!in_class && c == '}' && next == '+' && dialect == MX8_REGEX_ONIGURUMA)
            return refuse(file, "\"}+\"", at); /* possessive for some, repeated for others */
        if (c == '[') in_class = 1;
        if (c == ']') in_class = 0;
        MX8_TRY(mx8i_append_bytes(out, &c, 1));
    }
    return MX8_OK;
}

static enum mx8_status compile(
    struct mx8_split *s, const uint8_t *pattern, size_t size, uint32_t options, const char *file) {
    int code;
    PCRE2_SIZE at;
    s->code = pcre2_compile(pattern, size, options, &code, &at, NULL);
    if (!s->code) {
        uint8_t text[200];
        pcre2_get_error_message(code, text, sizeof text);
        return MX8_FAIL(
            MX8_FORMAT_ERROR, "%s: the split pattern is wrong at byte %zu: %s", file, at, (const char *)text);
    }
    pcre2_jit_compile(s->code, PCRE2_JIT_COMPLETE); /* where it cannot, matching is interpreted */
    return MX8_OK;
}

enum mx8_status mx8i_compile_split(
    struct mx8_split *s, const char *pattern, size_t size, enum mx8_regex_dialect dialect, const char *file) {
    if (dialect == MX8_REGEX_LITERAL)
        return compile(s, (const uint8_t *)pattern, size, PCRE2_LITERAL | PCRE2_UTF, file);
    /* '^' and '$' stand at every line for Oniguruma, at the ends of the text for Rust */
    uint32_t lines = dialect == MX8_REGEX_ONIGURUMA ? PCRE2_MULTILINE : PCRE2_DOLLAR_ENDONLY;
    struct mx8_bytes rewritten = {0};
    enum mx8_status status = rewrite_pattern(&rewritten, pattern, size, dialect, file);
    if (status == MX8_OK) status = compile(s, rewritten.data, rewritten.size, PCRE2_UTF | PCRE2_UCP | lines, file);
    mx8i_release(rewritten.data);
    return status;
}

void mx8i_close_split(struct mx8_split *s) {
    pcre2_code_free(s->code);
}

enum mx8_status mx8i_open_matches(struct mx8_encoder *e) {
    e->match_context = pcre2_match_context_create(NULL);
    e->jit_stack = pcre2_jit_stack_create((size_t)32 << 10, (size_t)8 << 20, NULL);
    if (!e->match_context || !e->jit_stack) return MX8_FAIL(MX8_OUT_OF_MEMORY, "mx8i_open_encoder: the stack of PCRE2");
    pcre2_jit_stack_assign(e->match_context, NULL, e->jit_stack);
    for (int32_t i = 0; i < e->t->n_splits; i++) {
        if (!e->t->split[i].code) continue;
        e->match[i] = pcre2_match_data_create_from_pattern(e->t->split[i].code, NULL);
        if (!e->match[i]) return MX8_FAIL(MX8_OUT_OF_MEMORY, "mx8i_open_encoder: the matches of PCRE2");
    }
    return MX8_OK;
}

void mx8i_close_matches(struct mx8_encoder *e) {
    for (int32_t i = 0; i < MX8_MAX_SPLITS; i++) pcre2_match_data_free(e->match[i]);
    pcre2_match_context_free(e->match_context);
    pcre2_jit_stack_free(e->jit_stack);
}

/* The next match that is not empty; *start == size when there is none. */
static enum mx8_status find_match(
    struct mx8_encoder *e, int32_t level, const uint8_t *text, size_t size, size_t from, size_t *start, size_t *stop) {
    for (;; from++) {
        while (from < size && (text[from] & 0xC0) == 0x80) from++; /* after an empty match: the next character */
        int found = pcre2_match(
            e->t->split[level].code, text, size, from, PCRE2_NO_UTF_CHECK, e->match[level], e->match_context);
        if (found == PCRE2_ERROR_NOMATCH) {
            *start = *stop = size;
            return MX8_OK;
        }
        if (found < 0) {
            uint8_t reason[200];
            pcre2_get_error_message(found, reason, sizeof reason);
            return MX8_FAIL(
                MX8_LIBRARY_ERROR, "the split pattern fails at byte %zu of %zu: %s", from, size, (const char *)reason);
        }
        const PCRE2_SIZE *ends = pcre2_get_ovector_pointer(e->match[level]);
        *start = ends[0];
        *stop = ends[1];
        if (*stop > *start) return MX8_OK;
        from = *start;
    }
}

#else /* without PCRE2 */

enum mx8_status mx8i_compile_split(
    struct mx8_split *s, const char *pattern, size_t size, enum mx8_regex_dialect dialect, const char *file) {
    (void)s, (void)pattern, (void)size, (void)dialect;
    return MX8_FAIL(MX8_UNSUPPORTED,
        "%s: its split pattern needs PCRE2, which this build lacks: install libpcre2-dev, configure and build again",
        file);
}

void mx8i_close_split(struct mx8_split *s) {
    (void)s;
}

enum mx8_status mx8i_open_matches(struct mx8_encoder *e) {
    (void)e;
    return MX8_OK;
}

void mx8i_close_matches(struct mx8_encoder *e) {
    (void)e;
}

static enum mx8_status find_match(
    struct mx8_encoder *e, int32_t level, const uint8_t *text, size_t size, size_t from, size_t *start, size_t *stop) {
    (void)e, (void)level, (void)text, (void)from;
    *start = *stop = size;
    return MX8_OK;
}

#endif

/* A stretch of text between two cuts; `matched` after inversion. */
struct stretch {
    size_t start, stop;
    int matched;
};

static int joins(enum mx8_split_behavior behavior, const struct stretch *before, int matched) {
    switch (behavior) {
    case MX8_SPLIT_CONTIGUOUS:
        return before->matched == matched;
    case MX8_SPLIT_MERGED_WITH_PREVIOUS:
        return matched && !before->matched;
    case MX8_SPLIT_MERGED_WITH_NEXT:
        return !matched && before->matched;
    default:
        return 0;
    }
}

static enum mx8_status send(struct mx8_encoder *e, int32_t level, const uint8_t *text, const struct stretch *done) {
    if (done->stop == done->start) return MX8_OK;
    if (done->matched && e->t->split[level].behavior == MX8_SPLIT_REMOVED) return MX8_OK;
    return mx8i_split_text(e, level + 1, text + done->start, done->stop - done->start);
}

/* The next stretch joins the pending one, or sends that one on and takes its place. */
static enum mx8_status take(
    struct mx8_encoder *e, int32_t level, const uint8_t *text, struct stretch *pending, struct stretch next) {
    const struct mx8_split *s = &e->t->split[level];
    if (next.stop == next.start) return MX8_OK;
    next.matched ^= s->invert;
    if (pending->stop > pending->start && joins(s->behavior, pending, next.matched)) {
        pending->stop = next.stop;
        pending->matched = next.matched;
        return MX8_OK;
    }
    MX8_TRY(send(e, level, text, pending));
    *pending = next;
    return MX8_OK;
}

static enum mx8_status add_prefix(struct mx8_encoder *e, const uint8_t **text, size_t *size) {
    if (**text == ' ') return MX8_OK;
    e->prefixed.size = 0;
    MX8_TRY(mx8i_append_bytes(&e->prefixed, " ", 1));
    MX8_TRY(mx8i_append_bytes(&e->prefixed, *text, *size));
    *text = e->prefixed.data;
    *size = e->prefixed.size;
    return MX8_OK;
}

enum mx8_status mx8i_split_text(struct mx8_encoder *e, int32_t level, const uint8_t *text, size_t size) {
    if (level == e->t->n_splits) return mx8i_encode_piece(e, text, size);
    if (size == 0) return MX8_OK;
    const struct mx8_split *s = &e->t->split[level];
    if (s->prefix_space) MX8_TRY(add_prefix(e, &text, &size)); /* the last split alone has it: one buffer will do */
    if (!s->code) return mx8i_split_text(e, level + 1, text, size);
    struct stretch pending = {0};
    for (size_t at = 0, start = 0, stop = 0; at < size; at = stop) {
        MX8_TRY(find_match(e, level, text, size, at, &start, &stop));
        MX8_TRY(take(e, level, text, &pending, (struct stretch){at, start, 0}));
        MX8_TRY(take(e, level, text, &pending, (struct stretch){start, stop, 1}));
    }
    return send(e, level, text, &pending);
}
