/* Opening a tokenizer by what its file holds, and the way of a text through it. */
#include "train/tokenizer.h"
#include <errno.h>
#include <string.h>
#include <unistd.h>
#include "base/error.h"
#include "base/file.h"
#include "base/memory.h"
#include "train/data.h"
#include "train/sha256.h"
#include "train/tokenizer_private.h"

#define MAX_FILE ((size_t)1 << 30)

enum { MAX_ID = 1 << 24, ID_HOLES = 1 << 16 };

enum mx8_status mx8i_find_bytes(struct mx8_tokenizer *t) {
    for (int i = 0; i < 256; i++) {
        uint8_t byte = (uint8_t)i;
        t->byte_id[i] = mx8i_look_up_bytes(&t->vocab, &byte, 1);
        if (t->byte_id[i] < 0)
            return MX8_FAIL(
                MX8_UNSUPPORTED, "%s: byte 0x%02X has no token of its own; texts with it would lose it", t->path, i);
    }
    return MX8_OK;
}

static enum mx8_status open_bytes(struct mx8_tokenizer *t) {
    static const struct {
        int32_t id;
        const char *text;
    } marks[] = {{MX8_BOS, "<bos>"}, {MX8_EOS, "<eos>"}};
    for (int i = 0; i < 256; i++) {
        uint8_t byte = (uint8_t)i;
        MX8_TRY(mx8i_set_token(&t->vocab, i, &byte, 1, 1));
    }
    for (int i = 0; i < 2; i++) {
        MX8_TRY(mx8i_set_token(&t->vocab, marks[i].id, marks[i].text, strlen(marks[i].text), 0));
        t->vocab.token[marks[i].id].special = 1;
    }
    memcpy(t->hash, "bytes", sizeof "bytes");
    MX8_TRY(mx8i_index_vocab(&t->vocab));
    return mx8i_find_bytes(t);
}

static enum mx8_status open_file(struct mx8_tokenizer *t, const char *pattern) {
    char *text;
    size_t size, at = 0;
    struct mx8_sha256 hash;
    if (access(t->path, F_OK) != 0)
        return MX8_FAIL(MX8_IO_ERROR,
            "%s: cannot open: %s; a tokenizer is \"bytes\", a tokenizer.json or its folder, or a file of ranks",
            t->path, strerror(errno));
    MX8_TRY(mx8i_read_file(t->path, MAX_FILE, &text, &size));
    mx8i_begin_sha256(&hash);
    mx8i_add_sha256(&hash, text, size);
    mx8i_end_sha256(&hash, t->hash);
    /* A token takes more than a byte of the file; some ids may be free. A small file cannot ask for a large table. */
    t->id_limit = size < MAX_ID - ID_HOLES ? (int32_t)size + ID_HOLES : MAX_ID;
    while (at < size && strchr(" \t\r\n", text[at])) at++;
    t->kind = at < size && text[at] == '{' ? MX8_TOKENIZER_JSON : MX8_TOKENIZER_RANKS;
    enum mx8_status status;
    if (t->kind == MX8_TOKENIZER_RANKS)
        status = mx8i_read_ranks(t, text, size, pattern);
    else if (pattern)
        status =
            MX8_FAIL(MX8_INVALID_ARGUMENT, "%s: has its own split pattern, one is given for rank files only", t->path);
    else
        status = mx8i_read_tokenizer_json(t, text, size);
    mx8i_release(text);
    return status;
}

/* The id of a mark by what was asked for, by the configuration, or by the first usual name that exists. */
static enum mx8_status find_mark(
    const struct mx8_tokenizer *t, const char *asked, const char *configured, const char *const *names, int32_t *id) {
    *id = -1;
    if (asked && !strcmp(asked, "none")) return MX8_OK;
    if (asked || configured) {
        const char *text = asked ? asked : configured;
        *id = mx8i_find_token(t, text);
        return *id >= 0 ? MX8_OK : MX8_FAIL(MX8_INVALID_ARGUMENT, "%s: has no token \"%s\"", t->path, text);
    }
    for (; *names && *id < 0; names++) *id = mx8i_find_token(t, *names);
    return MX8_OK;
}

static enum mx8_status find_marks(struct mx8_tokenizer *t, const struct mx8_tokenizer_options *o) {
    static const char *const bos_names[] = {"<|begin_of_text|>", "<bos>", "<s>", NULL};
    static const char *const eos_names[] = {"<|end_of_text|>", "<|endoftext|>", "<eos>", "</s>", NULL};
    char *bos = NULL, *eos = NULL;
    const char *slash = strrchr(t->path, '/');
    char *config = mx8i_format_text("%.*stokenizer_config.json", slash ? (int)(slash - t->path) + 1 : 0, t->path);
    enum mx8_status status = config ? MX8_OK : MX8_OUT_OF_MEMORY;
    if (status == MX8_OK && t->kind == MX8_TOKENIZER_JSON) status = mx8i_read_marks(config, &bos, &eos);
    if (status == MX8_OK) status = find_mark(t, o->bos, bos, bos_names, &t->bos);
    if (status == MX8_OK) status = find_mark(t, o->eos, eos, eos_names, &t->eos);
    mx8i_release(config);
    mx8i_release(bos);
    mx8i_release(eos);
    return status;
}

static enum mx8_status fill_tokenizer(
    struct mx8_tokenizer *t, const char *name, const struct mx8_tokenizer_options *o) {
    static const char *const kinds[] = {[MX8_TOKENIZER_BYTES] = "bytes",
        [MX8_TOKENIZER_JSON] = "byte-level BPE",
        [MX8_TOKENIZER_RANKS] = "tiktoken ranks"};
    t->path = mx8i_is_folder(name) ? mx8i_format_text("%s/tokenizer.json", name) : mx8i_copy_text(name);
    if (!t->path) return MX8_OUT_OF_MEMORY;
    t->special_as_text = o->special_as_text;
    MX8_TRY(strcmp(name, "bytes") ? open_file(t, o->pattern) : open_bytes(t));
    MX8_TRY(find_marks(t, o));
    t->description = mx8i_format_text("%s, %lld tokens%s%s", kinds[t->kind], (long long)t->vocab.count,
        t->kind == MX8_TOKENIZER_BYTES ? "" : ", ", t->kind == MX8_TOKENIZER_BYTES ? "" : t->path);
    return t->description ? MX8_OK : MX8_OUT_OF_MEMORY;
}

enum mx8_status mx8i_open_tokenizer(
    const char *name, const struct mx8_tokenizer_options *options, struct mx8_tokenizer **out) {
    static const struct mx8_tokenizer_options defaults;
    *out = NULL;
    struct mx8_tokenizer *t = mx8i_allocate(sizeof *t, "a tokenizer");
    if (!t) return MX8_OUT_OF_MEMORY;
    enum mx8_status status = fill_tokenizer(t, name, options ? options : &defaults);
    if (status != MX8_OK) {
        mx8i_close_tokenizer(t);
        return status;
    }
    *out = t;
    return MX8_OK;
}

void mx8i_close_tokenizer(struct mx8_tokenizer *t) {
    if (!t) return;
    mx8i_close_vocab(&t->vocab);
    mx8i_release(t->merges.slot);
    mx8i_close_added(&t->added_raw);
    mx8i_close_added(&t->added_normalized);
    for (int32_t i = 0; i < t->n_splits; i++) mx8i_close_split(&t->split[i]);
    mx8i_release(t->path);
    mx8i_release(t->description);
    mx8i_release(t);
}

const char *mx8i_describe_tokenizer(const struct mx8_tokenizer *t) {
    return t->description;
}

const char *mx8i_get_tokenizer_hash(const struct mx8_tokenizer *t) {
    return t->hash;
}

int64_t mx8i_count_vocabulary(const struct mx8_tokenizer *t) {
    return t->vocab.count;
}

int32_t mx8i_get_bos(const struct mx8_tokenizer *t) {
    return t->bos;
}

int32_t mx8i_get_eos(const struct mx8_tokenizer *t) {
    return t->eos;
}

const uint8_t *mx8i_get_token(const struct mx8_tokenizer *t, int32_t id, size_t *size, int *special) {
    *size = 0;
    if (special) *special = 0;
    if (id < 0 || id >= t->vocab.count || !t->vocab.token[id].present) return NULL;
    *size = t->vocab.token[id].size;
    if (special) *special = t->vocab.token[id].special;
    return t->vocab.bytes.data + t->vocab.token[id].offset;
}

int32_t mx8i_find_token(const struct mx8_tokenizer *t, const char *text) {
    size_t length = strlen(text), size;
    int32_t found = -1;
    for (int32_t id = 0; id < t->vocab.count; id++) {
        int special;
        const uint8_t *bytes = mx8i_get_token(t, id, &size, &special);
        if (!bytes || size != length || memcmp(bytes, text, size) != 0) continue;
        if (special) return id;
        found = id;
    }
    return found;
}

enum mx8_status mx8i_open_encoder(const struct mx8_tokenizer *t, struct mx8_encoder **out) {
    *out = NULL;
    struct mx8_encoder *e = mx8i_allocate(sizeof *e, "an encoder");
    if (!e) return MX8_OUT_OF_MEMORY;
    e->t = t;
    enum mx8_status status = MX8_OK;
    if (t->kind != MX8_TOKENIZER_BYTES) {
        status = mx8i_open_cache(e);
        if (status == MX8_OK) status = mx8i_open_matches(e);
    }
    if (status != MX8_OK) {
        mx8i_close_encoder(e);
        return status;
    }
    *out = e;
    return MX8_OK;
}

void mx8i_close_encoder(struct mx8_encoder *e) {
    if (!e) return;
    mx8i_close_matches(e);
    mx8i_release(e->repaired.data);
    mx8i_release(e->normalized.data);
    mx8i_release(e->prefixed.data);
    mx8i_release(e->cache);
    mx8i_release(e->merge_block);
    mx8i_release(e);
}

int64_t mx8i_count_replaced(const struct mx8_encoder *e) {
    return e->replaced;
}

/* Added tokens as they are, what is between them through `other`. */
static enum mx8_status cut_added(struct mx8_encoder *e, const struct mx8_added *added, const uint8_t *text, size_t size,
    enum mx8_status (*other)(struct mx8_encoder *e, const uint8_t *text, size_t size)) {
    struct mx8_added_match match;
    size_t at = 0;
    while (mx8i_match_added(added, text, size, at, !e->t->special_as_text, &match)) {
        if (match.start > at) MX8_TRY(other(e, text + at, match.start - at));
        MX8_TRY(mx8i_append_token(e->out, match.id));
        at = match.stop;
    }
    return at < size ? other(e, text + at, size - at) : MX8_OK;
}

static enum mx8_status encode_plain(struct mx8_encoder *e, const uint8_t *text, size_t size) {
    return mx8i_split_text(e, 0, text, size);
}

static enum mx8_status encode_between(struct mx8_encoder *e, const uint8_t *text, size_t size) {
    if (e->t->nfc && !mx8i_is_nfc(text, size)) {
        MX8_TRY(mx8i_normalize_nfc(&e->normalized, text, size));
        text = e->normalized.data;
        size = e->normalized.size;
    }
    return cut_added(e, &e->t->added_normalized, text, size, encode_plain);
}

static enum mx8_status encode(struct mx8_encoder *e, const uint8_t *text, size_t size) {
    if (e->t->kind == MX8_TOKENIZER_BYTES) {
        for (size_t i = 0; i < size; i++) MX8_TRY(mx8i_append_token(e->out, text[i]));
        return MX8_OK;
    }
    size_t bad;
    mx8i_check_utf8(text, size, &bad);
    if (bad) {
        MX8_TRY(mx8i_repair_utf8(&e->repaired, text, size, &e->replaced));
        text = e->repaired.data;
        size = e->repaired.size;
    }
    return cut_added(e, &e->t->added_raw, text, size, encode_between);
}

enum mx8_status mx8i_encode_text(struct mx8_encoder *e, const void *text, size_t size, struct mx8_tokens *out) {
    int64_t before = out->count;
    e->out = out;
    enum mx8_status status = encode(e, text, size);
    e->out = NULL;
    if (status != MX8_OK) out->count = before;
    return status;
}
