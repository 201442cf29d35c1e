/* The safetensors format: 8-byte little-endian header length, JSON header, tensor bytes. Reading maps the file and
 * checks everything before the first tensor is handed out: header size <= 100 MB, known dtypes, shapes that multiply
 * without overflow to the byte range's length, ranges inside the file, no overlap, no hole, no duplicate name. */
#ifndef MX8_BASE_SAFETENSORS_H
#define MX8_BASE_SAFETENSORS_H
#include <stddef.h>
#include <stdint.h>
#include "mx8/tensor.h"
#include "base/file.h"

struct mx8_st_entry { char *name; int32_t dtype; int32_t ndim; int64_t shape[8]; const void *data; size_t size; };
struct mx8_safetensors {
    struct mx8_map map; struct mx8_st_entry *entry; int64_t count;
    char **meta_key, **meta_value; int64_t meta_count; /* __metadata__ */
};
/* dtypes read: F64 F32 BF16 F8_E4M3 F8_E5M2 F8_E8M0 I64 I32 U8 BOOL(as U8). Others: FORMAT_ERROR naming tensor and dtype.
 * Entries keep the header's order. All messages begin with the path. */
enum mx8_status mx8i_open_safetensors(const char *path, struct mx8_safetensors *out);
void mx8i_close_safetensors(struct mx8_safetensors *st);
const struct mx8_st_entry *mx8i_find_tensor(const struct mx8_safetensors *st, const char *name); /* NULL */

/* Writing: describe all tensors first, then their bytes in the same order, then commit. Atomic (see file.h). Tensor data
 * starts 64-byte aligned in the file. Descriptions' data pointers are not used by begin. */
struct mx8_st_writer { struct mx8_writer file; int64_t count, next; size_t *size; size_t done; };
enum mx8_status mx8i_begin_safetensors(const char *path, const struct mx8_st_entry *entries, int64_t count,
                                       const char *const *metadata /* key, value, ..., NULL */, struct mx8_st_writer *w);
/* Bytes of the current tensor; may come in pieces; moves on when the tensor is full. */
enum mx8_status mx8i_write_tensor(struct mx8_st_writer *w, const void *data, size_t size);
enum mx8_status mx8i_commit_safetensors(struct mx8_st_writer *w); /* fails, and removes the file, when bytes are missing */
void mx8i_abandon_safetensors(struct mx8_st_writer *w);
#endif
