/* Text as a token stream: every byte is its own token, every file a document between BOS and EOS, files in the byte
 * order of their paths, so that the same files give the same stream on every machine. */
#include <stdio.h>
#include <string.h>
#include "base/error.h"
#include "base/memory.h"
#include "train/source.h"

/* Smaller files are kept whole: a source tree has more of them than can be open at a time. */
#define KEEP_BELOW ((int64_t)1 << 20)

/* n bytes of a file as tokens. */
static enum mx8_status read_bytes(
    const struct mx8_source *s, const struct mx8_data_part *p, int64_t at, int64_t n, int32_t *out) {
    uint8_t *bytes = (uint8_t *)(out + n) - n;
    if (p->bytes)
        memcpy(bytes, p->bytes + at, (size_t)n);
    else
        MX8_TRY(mx8i_read_data_file(s->files, p->file, at, bytes, (size_t)n));
    mx8i_widen_tokens(out, n, 1);
    return MX8_OK;
}

/* Token 0 of a part is BOS, its last one EOS; between them lie the file's bytes. */
static enum mx8_status read_text(const struct mx8_source *s, int64_t at, int64_t n, int32_t *out) {
    const struct mx8_data_part *p = mx8i_find_data_part(s, at);
    for (int64_t i = at - p->start; n > 0; p++, i = 0) {
        if (i == 0) {
            *out++ = MX8_BOS;
            i++, n--;
        }
        int64_t left = p->count - 1 - i, bytes = left < n ? left : n;
        if (bytes > 0) MX8_TRY(read_bytes(s, p, i - 1, bytes, out));
        out += bytes;
        n -= bytes;
        if (n == 0) break;
        *out++ = MX8_EOS;
        n--;
    }
    return MX8_OK;
}

static int64_t count_bytes(const struct mx8_source *s) {
    return s->total - 2 * s->n_parts;
}

/* Whether a file begins like no text: with a zero byte among the first, as git tells them apart. */
static enum mx8_status find_zero_byte(
    const struct mx8_source *s, const struct mx8_data_part *p, int64_t size, int *found) {
    uint8_t start[4096];
    const size_t n = size < (int64_t)sizeof start ? (size_t)size : sizeof start;
    if (!p->bytes) MX8_TRY(mx8i_read_data_file(s->files, p->file, 0, start, n));
    *found = memchr(p->bytes ? p->bytes : start, 0, n) != NULL;
    return MX8_OK;
}

/* The file becomes the next document, as far as the limit allows; an empty one is none, and in a folder one that is no
 * text. A file that was named by itself is taken as it is. */
static enum mx8_status add_document(struct mx8_source *s, const char *path, struct mx8_data_part *p) {
    const int64_t limit = s->options->max_bytes > 0 ? s->options->max_bytes - count_bytes(s) : INT64_MAX;
    const int64_t size = s->files->file[p->file].size < limit ? s->files->file[p->file].size : limit;
    enum mx8_status status = MX8_OK;
    if (size > 0 && size < KEEP_BELOW) {
        p->bytes = mx8i_allocate((size_t)size, path);
        status = p->bytes ? mx8i_read_data_file(s->files, p->file, 0, p->bytes, (size_t)size) : MX8_OUT_OF_MEMORY;
    }
    int is_binary = 0;
    if (status == MX8_OK && size > 0 && s->in_folder) status = find_zero_byte(s, p, size, &is_binary);
    if (size < KEEP_BELOW || is_binary) mx8i_drop_data_file(s->files);
    if (is_binary) {
        mx8i_release(p->bytes);
        s->binary++;
        return status;
    }
    s->full = size == limit;
    p->width = 1;
    p->count = size + 2;
    if (size > 0) mx8i_append_data_part(s, p); /* released from here on */
    return status;
}

enum mx8_status mx8i_open_text(struct mx8_source *s) {
    if (s->vocab_size <= MX8_EOS)
        return MX8_FAIL(MX8_INVALID_ARGUMENT,
            "%s: bytes of text with document marks need model.vocab_size >= %d, it is %lld", s->path, MX8_EOS + 1,
            (long long)s->vocab_size);
    int64_t count;
    s->in_folder = mx8i_is_folder(s->path);
    MX8_TRY(mx8i_add_data_parts(s, NULL, add_document, &count));
    if (s->n_parts == 0)
        return MX8_FAIL(MX8_FORMAT_ERROR, "%s: no text, %lld empty file%s, %lld with zero bytes", s->path,
            (long long)(count - s->binary), count - s->binary == 1 ? "" : "s", (long long)s->binary);

    double bytes = (double)count_bytes(s);
    const char *unit = bytes < 1e6 ? "kB" : "MB";
    char left_out[80] = "";
    if (s->binary)
        snprintf(left_out, sizeof left_out, " (left out: %lld with zero bytes, no text)", (long long)s->binary);
    s->description = mx8i_format_text("%lld %s, %.1f %s of text under %s%s", (long long)s->n_parts,
        s->n_parts == 1 ? "file" : "files", bytes / (bytes < 1e6 ? 1e3 : 1e6), unit, s->path, left_out);
    s->ids = (struct mx8_ids){.tokenizer = "bytes", .vocabulary = MX8_EOS + 1, .document_end = MX8_EOS};
    s->read = read_text;
    return MX8_OK;
}
