/* Jobs of the quantizers, dequantizer, scale layouts and group padding: what is read, what is written, where. The scalar
 * reference below and every backend's kernels take the same structs, so that a test can run one job on both. */
#ifndef MX8_FORMATS_JOBS_H
#define MX8_FORMATS_JOBS_H

#include <stdint.h>
#include <stddef.h>
#include "mx8/formats.h"
#include "mx8/ops.h"

/* One source, batch x rows x cols, read once; either or both orientations are written (a NULL codes pointer leaves one
 * out). Row orientation: blocks of 32 along cols. Column orientation: blocks of 32 along rows. Code (b,r,c) is at
 * code_stride[0]*b + [1]*r + [2]*c; the scale of its block at scale_stride[0]*b + [1]*(r or r'/32) + [2]*(c/32 or c).
 * With n_groups > 0 (batch must be 1) rows form groups with cumulative ends `offsets`: in the column orientation row r of
 * group g lies at r' = padded_start[g] + (r - start[g]), padded_start a running sum of sizes rounded up to `padding`; codes and
 * scales of every r' in [0, padded_rows) that holds no row are zero bytes; `padded_ends` (may be NULL) receives the
 * cumulative padded ends. Rows at and past offsets[n_groups-1] get zero codes and zero scales in the row orientation.
 * Without groups r' = r, and codes at r' in [rows, padded_rows) are written as zero: padded_rows is what a stored line
 * has room for, rows itself (or 0) where lines are exactly that long, at most roundup(rows, 32).
 * A tile whose byte is 255 gets code 0x7F for all its elements, whatever their signs; padding stays zero.
 * `group` (32, 128, 256): consecutive elements along the block axis, counted from the axis' start (the group's start),
 * whose scale bytes are equal: the byte of their common amax. `tile` (1, 32, 128): consecutive lines across the block
 * axis that share it too, likewise counted from the group's start; with tile > 1 both orientations get the scales of the
 * same tile when group == tile. */
struct mx8_quant_job {
    const void *src; int32_t src_dtype; int64_t batch, rows, cols, src_stride[3];
    uint8_t *row_codes; int64_t row_code_stride[3]; uint8_t *row_scales; int64_t row_scale_stride[3];
    uint8_t *col_codes; int64_t col_code_stride[3]; uint8_t *col_scales; int64_t col_scale_stride[3];
    const int32_t *offsets; int32_t n_groups; int64_t padded_rows; int32_t *padded_ends;
    int32_t rule, format, group, tile;
    int32_t col_tile; /* tile of the column orientation where it differs from the row orientation's; 0: `tile` */
    int32_t padding;  /* multiple of 32 that group sizes are rounded up to in the column orientation; 0: 32 */
    int64_t *saturated; /* may be NULL: += number of values of finite blocks whose magnitude was clipped (row orientation
                         * where present, else column); a device counter */
};

/* dst (rows, cols) = codes * 2^(scale-127), blocks along cols. */
struct mx8_dequant_job {
    void *dst; int32_t dst_dtype; int64_t rows, cols, dst_stride[2];
    const uint8_t *codes; int64_t code_stride[2]; const uint8_t *scales; int64_t scale_stride[2]; int32_t format;
};

/* Scale layouts: see mx8_block_scales. `plain` is (E,R,C) row-major (E = 1 but for PER_EXPERT). */
struct mx8_layout_job {
    uint8_t *plain, *blocked; /* to_blocked reads plain, from_blocked writes it */
    int64_t E, R, C; int32_t layout; const int32_t *offsets; int32_t n_groups; int64_t *starts;
    int64_t plain_stride[3];
};

/* Group padding: see mx8_pad_groups. Elements are moved as bytes (elem_size each, rows contiguous). */
struct mx8_pad_job {
    void *padded; void *x; int64_t rows, padded_rows, cols; size_t elem_size; int64_t x_stride, padded_stride;
    const int32_t *offsets; int32_t n_groups, alignment; int32_t *starts, *ends;
};

/* The scalar reference (src/formats): the oracle of every quantize, dequantize, layout and padding kernel. Same job
 * structs, one thread, never optimised. */
void mx8i_reference_quantize(const struct mx8_quant_job *j);
void mx8i_reference_dequantize(const struct mx8_dequant_job *j);
void mx8i_reference_block_scales(const struct mx8_layout_job *j);
void mx8i_reference_unblock_scales(const struct mx8_layout_job *j);
void mx8i_reference_pad_groups(const struct mx8_pad_job *j);
void mx8i_reference_unpad_groups(const struct mx8_pad_job *j);

#endif
