/* Text as a token stream: every byte is its own token, every file a document between BOS and EOS, files in the byte
 * order of their paths, so that the same files give the same stream on every machine. */
#include <string.h>
#include "base/error.h"
#include "base/memory.h"
#include "train/source.h"

/* Smaller files are kept whole: a source tree has more of them than can be open at a time. */
#define KEEP_BELOW ((int64_t)1 << 20)

static const struct mx8_text_file *find_file(const struct mx8_text *t, int64_t at) {
    int64_t low = 0, high = t->count - 1;
    while (low < high) {
        int64_t middle = (low + high + 1) / 2;
        if (t->file[middle].start <= at)
            low = middle;
        else
            high = middle - 1;
    }
    return &t->file[low];
}

/* n bytes of a file as tokens. */
static enum mx8_status read_bytes(
    const struct mx8_source *s, const struct mx8_text_file *f, int64_t at, int64_t n, int32_t *out) {
    uint8_t *bytes = (uint8_t *)(out + n) - n;
    if (f->bytes)
        memcpy(bytes, f->bytes + at, (size_t)n);
    else
        MX8_TRY(mx8i_read_data_file(s->files, f->file, at, bytes, (size_t)n));
    mx8i_widen_tokens(out, n, 1);
    return MX8_OK;
}

static enum mx8_status read_text(const struct mx8_source *s, int64_t at, int64_t n, int32_t *out) {
    const struct mx8_text_file *f = find_file(&s->text, at);
    for (int64_t i = at - f->start; n > 0; f++, i = 0) {
        if (i == 0) {
            *out++ = MX8_BOS;
            i++, n--;
        }
        int64_t bytes = f->size + 1 - i < n ? f->size + 1 - i : n;
        if (bytes > 0) MX8_TRY(read_bytes(s, f, i - 1, bytes, out));
        out += bytes;
        n -= bytes;
        if (n == 0) break;
        *out++ = MX8_EOS;
        n--;
    }
    return MX8_OK;
}

/* At most `limit` bytes of the file at path become the next document; an empty file is none. */
static enum mx8_status add_file(struct mx8_source *s, const char *path, int64_t limit) {
    struct mx8_text_file *f = &s->text.file[s->text.count];
    int64_t index;
    MX8_TRY(mx8i_add_data_file(s->files, path, &index));
    int64_t size = s->files->file[index].size < limit ? s->files->file[index].size : limit;
    enum mx8_status status = MX8_OK;
    *f = (struct mx8_text_file){.size = size, .start = s->total, .file = index};
    if (size > 0 && size < KEEP_BELOW) {
        f->bytes = mx8i_allocate((size_t)size, path);
        status = f->bytes ? mx8i_read_data_file(s->files, index, 0, f->bytes, (size_t)size) : MX8_OUT_OF_MEMORY;
    }
    if (size < KEEP_BELOW) mx8i_drop_data_file(s->files);
    if (size == 0) return MX8_OK;
    s->total += size + 2;
    s->text.count++; /* released from here on */
    return status;
}

static enum mx8_status add_files(struct mx8_source *s, char **paths, int64_t count) {
    int64_t left = s->options->max_bytes > 0 ? s->options->max_bytes : INT64_MAX;
    s->text.file = mx8i_allocate((size_t)count * sizeof *s->text.file, "the table of text files");
    if (!s->text.file) return MX8_OUT_OF_MEMORY;
    for (int64_t i = 0; i < count && left > 0; i++) {
        int64_t before = s->text.count;
        MX8_TRY(add_file(s, paths[i], left));
        if (s->text.count > before) left -= s->text.file[before].size;
    }
    if (s->text.count == 0)
        return MX8_FAIL(MX8_FORMAT_ERROR, "%s: no text, %lld empty files", s->path, (long long)count);
    return MX8_OK;
}

enum mx8_status mx8i_open_text(struct mx8_source *s) {
    if (s->vocab_size <= MX8_EOS)
        return MX8_FAIL(MX8_INVALID_ARGUMENT,
            "%s: bytes of text with document marks need model.vocab_size >= %d, it is %lld", s->path, MX8_EOS + 1,
            (long long)s->vocab_size);
    char **paths;
    int64_t count;
    MX8_TRY(mx8i_list_files(s->path, NULL, &paths, &count));
    enum mx8_status status = add_files(s, paths, count);
    mx8i_release_list(paths, count);
    if (status != MX8_OK) return status;

    double bytes = (double)(s->total - 2 * s->text.count);
    const char *unit = bytes < 1e6 ? "kB" : "MB";
    s->description = mx8i_format_text("%lld %s, %.1f %s of text under %s", (long long)s->text.count,
        s->text.count == 1 ? "file" : "files", bytes / (bytes < 1e6 ? 1e3 : 1e6), unit, s->path);
    s->ids = (struct mx8_ids){.tokenizer = "bytes", .vocabulary = MX8_EOS + 1, .document_end = MX8_EOS};
    s->read = read_text;
    return MX8_OK;
}

void mx8i_close_text(struct mx8_text *t) {
    for (int64_t i = 0; i < t->count; i++) mx8i_release(t->file[i].bytes);
    mx8i_release(t->file);
}
