#include "train/events.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>
#include "base/error.h"
#include "base/file.h"
#include "base/folder.h"
#include "base/memory.h"

enum { MAX_SCALARS = 64, MAX_TAG = 127, MAX_VALUE = MAX_TAG + 16, MAX_EVENT = 64 + MAX_SCALARS * (MAX_VALUE + 4) };
static const char file_name[] = "events.out.tfevents.";

/* ---- TFRecord ---- */

uint32_t mx8i_compute_crc32c(const void *data, size_t size) {
    const uint8_t *bytes = data;
    uint32_t crc = 0xFFFFFFFFu;
    for (size_t i = 0; i < size; i++) {
        crc ^= bytes[i];
        for (int bit = 0; bit < 8; bit++) crc = (crc >> 1) ^ (0x82F63B78u & (0u - (crc & 1)));
    }
    return ~crc;
}

uint32_t mx8i_mask_crc32c(uint32_t crc) {
    return ((crc >> 15) | (crc << 17)) + 0xA282EAD8u;
}

static void put_little(uint8_t *out, uint64_t value, int bytes) {
    for (int i = 0; i < bytes; i++) out[i] = (uint8_t)(value >> (8 * i));
}

void mx8i_frame_record(uint8_t *out, const void *data, size_t size) {
    put_little(out, size, 8);
    put_little(out + 8, mx8i_mask_crc32c(mx8i_compute_crc32c(out, 8)), 4);
    memcpy(out + 12, data, size);
    put_little(out + 12 + size, mx8i_mask_crc32c(mx8i_compute_crc32c(data, size)), 4);
}

/* ---- protobuf ---- */

enum wire { VARINT = 0, FIXED64 = 1, BYTES = 2, FIXED32 = 5 };

struct message {
    uint8_t *data;
    size_t size;
};

static void put_varint(struct message *m, uint64_t value) {
    for (; value >= 0x80; value >>= 7) m->data[m->size++] = (uint8_t)(value | 0x80);
    m->data[m->size++] = (uint8_t)value;
}

static void put_key(struct message *m, int field, enum wire wire) {
    put_varint(m, (uint64_t)field << 3 | wire);
}

static void put_bytes(struct message *m, int field, const void *data, size_t size) {
    put_key(m, field, BYTES);
    put_varint(m, size);
    memcpy(m->data + m->size, data, size);
    m->size += size;
}

static void put_double(struct message *m, int field, double value) {
    uint64_t bits;
    memcpy(&bits, &value, 8);
    put_key(m, field, FIXED64);
    put_little(m->data + m->size, bits, 8);
    m->size += 8;
}

static void put_float(struct message *m, int field, float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    put_key(m, field, FIXED32);
    put_little(m->data + m->size, bits, 4);
    m->size += 4;
}

/* Summary.Value: tag = 1, simple_value = 2. */
static void put_value(struct message *summary, const struct mx8_scalar *s) {
    uint8_t data[MAX_VALUE];
    struct message value = {data, 0};
    put_bytes(&value, 1, s->tag, strlen(s->tag));
    put_float(&value, 2, (float)s->value);
    put_bytes(summary, 1, data, value.size);
}

/* ---- the file ---- */

static double get_wall_time(void) {
    struct timeval now;
    gettimeofday(&now, NULL);
    return (double)now.tv_sec + (double)now.tv_usec * 1e-6;
}

static enum mx8_status write_record(struct mx8_events *e, const struct message *event) {
    uint8_t record[MAX_EVENT + 16];
    mx8i_frame_record(record, event->data, event->size);
    if (fwrite(record, 1, event->size + 16, e->file) == event->size + 16 && fflush(e->file) == 0) return MX8_OK;
    return MX8_FAIL(MX8_IO_ERROR, "%s: cannot be written: %s", e->path, strerror(errno));
}

/* TensorBoard reads the files of a folder by name: a second after the newest one's, should that be of this second too.
 */
static enum mx8_status choose_time(const char *folder, int64_t now, int64_t *out) {
    char **names;
    int64_t count;
    MX8_TRY(mx8i_list_folder(folder, &names, &count));
    *out = now;
    for (int64_t i = 0; i < count; i++) {
        if (strncmp(names[i], file_name, sizeof file_name - 1) != 0) continue;
        int64_t time = strtoll(names[i] + sizeof file_name - 1, NULL, 10);
        if (time >= *out && time < INT32_MAX) *out = time + 1;
    }
    mx8i_release_list(names, count);
    return MX8_OK;
}

/* Event: wall_time = 1, step = 2, file_version = 3, summary = 5, session_log = 7 { status = 1 { START = 1 } }. */
enum mx8_status mx8i_open_events(const char *folder, int64_t first_step, struct mx8_events *out) {
    static const char version[] = "brain.Event:2";
    static const uint8_t start[] = {1 << 3 | VARINT, 1};
    char host[65] = "localhost";
    uint8_t data[64];
    struct message event = {data, 0};
    double now = get_wall_time();
    int64_t time;
    *out = (struct mx8_events){0};
    if (gethostname(host, sizeof host - 1) != 0) snprintf(host, sizeof host, "localhost");
    MX8_TRY(mx8i_make_folders(folder));
    MX8_TRY(choose_time(folder, (int64_t)now, &time));
    out->path = mx8i_format_text("%s/%s%lld.%s.%d.0", folder, file_name, (long long)time, host, (int)getpid());
    if (!out->path) return MX8_OUT_OF_MEMORY;
    out->file = fopen(out->path, "we");
    if (!out->file) return MX8_FAIL(MX8_IO_ERROR, "%s: cannot be written: %s", out->path, strerror(errno));
    put_double(&event, 1, now);
    put_bytes(&event, 3, version, sizeof version - 1);
    MX8_TRY(write_record(out, &event));
    if (first_step <= 0) return MX8_OK;
    event.size = 0;
    put_double(&event, 1, now);
    put_key(&event, 2, VARINT);
    put_varint(&event, (uint64_t)first_step);
    put_bytes(&event, 7, start, sizeof start);
    return write_record(out, &event);
}

enum mx8_status mx8i_write_events(struct mx8_events *e, int64_t step, const struct mx8_scalar *scalars, int n) {
    uint8_t data[MAX_EVENT], summary_data[MAX_EVENT];
    struct message event = {data, 0}, summary = {summary_data, 0};
    if (n < 0 || n > MAX_SCALARS)
        return MX8_FAIL(MX8_INVALID_ARGUMENT, "%s: %d scalars, expected at most %d", e->path, n, MAX_SCALARS);
    for (int i = 0; i < n; i++) {
        if (strlen(scalars[i].tag) > MAX_TAG)
            return MX8_FAIL(
                MX8_INVALID_ARGUMENT, "%s: tag \"%s\" has more than %d bytes", e->path, scalars[i].tag, MAX_TAG);
        put_value(&summary, &scalars[i]);
    }
    put_double(&event, 1, get_wall_time());
    put_key(&event, 2, VARINT);
    put_varint(&event, (uint64_t)step);
    put_bytes(&event, 5, summary_data, summary.size);
    return write_record(e, &event);
}

void mx8i_close_events(struct mx8_events *e) {
    if (e->file) fclose(e->file); /* every record was flushed when it was written */
    mx8i_release(e->path);
    *e = (struct mx8_events){0};
}
