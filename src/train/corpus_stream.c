/* Files as byte streams. gzip and zstd files may hold several members one after the other, as `cat a.gz b.gz` makes. */
#include "train/corpus_stream.h"
#include <string.h>
#include "base/error.h"
#include "base/memory.h"

#ifdef MX8_HAVE_ZLIB
#include <zlib.h>
#endif
#ifdef MX8_HAVE_ZSTD
#include <zstd.h>
#endif

#if defined(MX8_HAVE_ZLIB) || defined(MX8_HAVE_ZSTD)
static enum mx8_status fail_data(const struct mx8_stream *s, const char *reason) {
    return MX8_FAIL(MX8_FORMAT_ERROR, "%s: byte %zu: %s", s->path, s->used, reason ? reason : "damaged data");
}
#endif

#ifdef MX8_HAVE_ZLIB

static enum mx8_status begin_gzip(struct mx8_stream *s) {
    z_stream *z = mx8i_allocate(sizeof *z, "a gzip decoder");
    if (!z) return MX8_OUT_OF_MEMORY;
    if (inflateInit2(z, 15 + 16) != Z_OK) {
        mx8i_release(z);
        return MX8_FAIL(MX8_OUT_OF_MEMORY, "%s: no memory for a gzip decoder", s->path);
    }
    s->decoder = z;
    return MX8_OK;
}

static void end_gzip(struct mx8_stream *s) {
    if (s->decoder) inflateEnd(s->decoder);
    mx8i_release(s->decoder);
}

static enum mx8_status step_gzip(struct mx8_stream *s, void *out, size_t size, size_t *got) {
    z_stream *z = s->decoder;
    size_t left = s->map.size - s->used;
    if (!s->inside) inflateReset(z);
    s->inside = 1;
    z->next_in = (Bytef *)(uintptr_t)(s->map.data + s->used);
    z->avail_in = left > 1U << 30 ? 1U << 30 : (uInt)left;
    z->next_out = out;
    z->avail_out = size > 1U << 30 ? 1U << 30 : (uInt)size;
    int code = inflate(z, Z_NO_FLUSH);
    *got = (size_t)(z->next_out - (Bytef *)out);
    s->used = (size_t)(z->next_in - s->map.data);
    if (code == Z_STREAM_END) s->inside = 0;
    return code == Z_OK || code == Z_STREAM_END || code == Z_BUF_ERROR ? MX8_OK : fail_data(s, z->msg);
}

#else

static enum mx8_status begin_gzip(struct mx8_stream *s) {
    return MX8_FAIL(MX8_UNSUPPORTED,
        "%s: is compressed with gzip, which needs zlib: install zlib1g-dev, configure and build again", s->path);
}
static void end_gzip(struct mx8_stream *s) {
    (void)s;
}
static enum mx8_status step_gzip(struct mx8_stream *s, void *out, size_t size, size_t *got) {
    (void)out, (void)size, (void)got;
    return begin_gzip(s);
}

#endif
#ifdef MX8_HAVE_ZSTD

static enum mx8_status begin_zstd(struct mx8_stream *s) {
    s->decoder = ZSTD_createDStream();
    return s->decoder ? MX8_OK : MX8_FAIL(MX8_OUT_OF_MEMORY, "%s: no memory for a zstd decoder", s->path);
}

static void end_zstd(struct mx8_stream *s) {
    ZSTD_freeDStream(s->decoder);
}

static enum mx8_status step_zstd(struct mx8_stream *s, void *out, size_t size, size_t *got) {
    ZSTD_inBuffer in = {.src = s->map.data, .size = s->map.size, .pos = s->used};
    ZSTD_outBuffer decoded = {.dst = out, .size = size};
    size_t code = ZSTD_decompressStream(s->decoder, &decoded, &in);
    *got = decoded.pos;
    s->used = in.pos;
    s->inside = code != 0;
    return ZSTD_isError(code) ? fail_data(s, ZSTD_getErrorName(code)) : MX8_OK;
}

#else

static enum mx8_status begin_zstd(struct mx8_stream *s) {
    return MX8_FAIL(MX8_UNSUPPORTED,
        "%s: is compressed with zstd, which needs libzstd: install libzstd-dev, configure and build again", s->path);
}
static void end_zstd(struct mx8_stream *s) {
    (void)s;
}
static enum mx8_status step_zstd(struct mx8_stream *s, void *out, size_t size, size_t *got) {
    (void)out, (void)size, (void)got;
    return begin_zstd(s);
}

#endif

static enum mx8_status begin_plain(struct mx8_stream *s) {
    (void)s;
    return MX8_OK;
}

static void end_plain(struct mx8_stream *s) {
    (void)s;
}

static enum mx8_status step_plain(struct mx8_stream *s, void *out, size_t size, size_t *got) {
    *got = size < s->map.size - s->used ? size : s->map.size - s->used;
    memcpy(out, s->map.data + s->used, *got);
    s->used += *got;
    return MX8_OK;
}

/* A row for each compression; `magic` are its first bytes. */
static const struct decoder {
    uint8_t magic[4];
    size_t magic_size;
    enum mx8_status (*begin)(struct mx8_stream *s);
    void (*end)(struct mx8_stream *s);
    enum mx8_status (*step)(struct mx8_stream *s, void *out, size_t size, size_t *got);
} decoders[] = {[MX8_PLAIN] = {{0}, 0, begin_plain, end_plain, step_plain},
    [MX8_GZIP] = {{0x1F, 0x8B}, 2, begin_gzip, end_gzip, step_gzip},
    [MX8_ZSTD] = {{0x28, 0xB5, 0x2F, 0xFD}, 4, begin_zstd, end_zstd, step_zstd}};

enum mx8_status mx8i_open_stream(const char *path, struct mx8_stream *s) {
    *s = (struct mx8_stream){.path = path};
    MX8_TRY(mx8i_map_file(path, &s->map));
    for (int i = MX8_GZIP; i <= MX8_ZSTD; i++)
        if (s->map.size >= decoders[i].magic_size && !memcmp(s->map.data, decoders[i].magic, decoders[i].magic_size))
            s->compression = (enum mx8_compression)i;
    enum mx8_status status = decoders[s->compression].begin(s);
    if (status != MX8_OK) mx8i_unmap_file(&s->map);
    return status;
}

void mx8i_close_stream(struct mx8_stream *s) {
    if (s->path) decoders[s->compression].end(s);
    mx8i_unmap_file(&s->map);
    *s = (struct mx8_stream){0};
}

enum mx8_status mx8i_read_stream(struct mx8_stream *s, void *out, size_t size, size_t *got) {
    *got = 0;
    while (*got == 0 && size > 0) {
        size_t before = s->used;
        if (before == s->map.size && !s->inside) return MX8_OK;
        MX8_TRY(decoders[s->compression].step(s, out, size, got));
        if (*got == 0 && s->used == before && s->inside)
            return MX8_FAIL(MX8_FORMAT_ERROR, "%s: byte %zu: the compressed data ends early", s->path, s->used);
    }
    return MX8_OK;
}
