/* Block quantization, both orientations: the oracle of every quantizer.
 *
 * Rows of one group, or of the whole matrix, form a plane: lines that blocks run along. In the row orientation a line
 * is a row, in the column orientation it is a column; everything below knows lines and positions only. */
#include "formats/elements.h"
#include "formats/jobs.h"

/* Strides and offsets count elements. `source` is an offset into job->src, which has one of two types. */
struct plane {
    int64_t lines, length;
    int64_t source, source_line, source_step;
    uint8_t *codes;
    int64_t code_line, code_step;
    uint8_t *scales;
    int64_t scale_line, scale_step; /* scale_step: from block to block */
};

static int64_t smaller(int64_t a, int64_t b) {
    return a < b ? a : b;
}
static int64_t round_up(int64_t n, int64_t unit) {
    return (n + unit - 1) / unit * unit;
}

static float read_source(const struct mx8_quant_job *j, int64_t offset) {
    if (j->src_dtype == MX8_F32) return ((const float *)j->src)[offset];
    return mx8_decode_bf16(((const uint16_t *)j->src)[offset]);
}

/* Largest magnitude of a tile, as bits: these order as the values do, Inf above every number and NaN above Inf. */
static float find_amax(const struct mx8_quant_job *j, const struct plane *p, int64_t line, int64_t line_end,
    int64_t position, int64_t position_end) {
    uint32_t amax = 0;
    for (int64_t l = line; l < line_end; l++) {
        for (int64_t i = position; i < position_end; i++) {
            float value = read_source(j, p->source + l * p->source_line + i * p->source_step);
            uint32_t magnitude = mx8i_get_float_bits(value) & 0x7FFFFFFFu;
            if (magnitude > amax) amax = magnitude;
        }
    }
    return mx8i_make_float(amax);
}

/* One tile: one amax, one byte in each of its blocks. Returns how many values were clipped. A block with byte 255 holds
 * 0x7F throughout, whatever the signs were: torchao leaves NaN signs open, and one rule keeps all kernels equal. */
static int64_t quantize_tile(const struct mx8_quant_job *j, const struct plane *p, int64_t line, int64_t line_end,
    int64_t position, int64_t position_end) {
    uint8_t byte = mx8_compute_scale(find_amax(j, p, line, line_end, position, position_end), j->rule, j->format);
    float factor = mx8_invert_e8m0(byte);
    int64_t total = 0;

    for (int64_t l = line; l < line_end; l++) {
        for (int64_t i = position; i < position_end; i += MX8_BLOCK) {
            p->scales[l * p->scale_line + i / MX8_BLOCK * p->scale_step] = byte;
        }
        for (int64_t i = position; i < position_end; i++) {
            float value = read_source(j, p->source + l * p->source_line + i * p->source_step);
            int clipped = 0;
            uint8_t code = byte == 255 ? 0x7F : mx8i_encode_element(value * factor, j->format, &clipped);
            p->codes[l * p->code_line + i * p->code_step] = code;
            total += clipped;
        }
    }
    return total;
}

/* Tiles start at the plane's first line and position, so they never reach into a neighbouring group. */
static int64_t quantize_plane(const struct mx8_quant_job *j, const struct plane *p, int64_t tile) {
    int64_t group = j->group > MX8_BLOCK ? j->group : MX8_BLOCK, clipped = 0;
    for (int64_t l = 0; l < p->lines; l += tile) {
        for (int64_t i = 0; i < p->length; i += group) {
            clipped += quantize_tile(j, p, l, smaller(l + tile, p->lines), i, smaller(i + group, p->length));
        }
    }
    return clipped;
}

static void clear_bytes(uint8_t *bytes, int64_t rows, int64_t row_stride, int64_t cols, int64_t col_stride) {
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t c = 0; c < cols; c++) bytes[r * row_stride + c * col_stride] = 0;
    }
}

static int64_t get_row_tile(const struct mx8_quant_job *j) {
    return j->tile > 1 ? j->tile : 1;
}

static int64_t get_col_tile(const struct mx8_quant_job *j) {
    return j->col_tile > 0 ? j->col_tile : get_row_tile(j);
}

static int64_t get_padding(const struct mx8_quant_job *j) {
    return j->padding > 0 ? j->padding : MX8_BLOCK;
}

static int32_t count_groups(const struct mx8_quant_job *j) {
    return j->n_groups > 0 ? j->n_groups : 1;
}

static int64_t find_group_end(const struct mx8_quant_job *j, int32_t g) {
    return j->n_groups > 0 ? j->offsets[g] : j->rows;
}

/* Blocks along cols. Rows stay where they are; those past the last group become zero. */
static int64_t quantize_rows(const struct mx8_quant_job *j, int64_t b) {
    const int64_t *cs = j->row_code_stride, *ss = j->row_scale_stride;
    uint8_t *codes = j->row_codes + b * cs[0], *scales = j->row_scales + b * ss[0];
    int64_t start = 0, clipped = 0;

    for (int32_t g = 0; g < count_groups(j); g++) {
        int64_t end = find_group_end(j, g);
        struct plane p = {
            .lines = end - start,
            .length = j->cols,
            .source = b * j->src_stride[0] + start * j->src_stride[1],
            .source_line = j->src_stride[1],
            .source_step = j->src_stride[2],
            .codes = codes + start * cs[1],
            .code_line = cs[1],
            .code_step = cs[2],
            .scales = scales + start * ss[1],
            .scale_line = ss[1],
            .scale_step = ss[2],
        };
        clipped += quantize_plane(j, &p, get_row_tile(j));
        start = end;
    }
    clear_bytes(codes + start * cs[1], j->rows - start, cs[1], j->cols, cs[2]);
    clear_bytes(scales + start * ss[1], j->rows - start, ss[1], round_up(j->cols, MX8_BLOCK) / MX8_BLOCK, ss[2]);
    return clipped;
}

/* Blocks along rows. Each group moves down to a multiple of 32; what lies between and behind the groups is zero. */
static int64_t quantize_cols(const struct mx8_quant_job *j, int64_t b) {
    const int64_t *cs = j->col_code_stride, *ss = j->col_scale_stride;
    uint8_t *codes = j->col_codes + b * cs[0], *scales = j->col_scales + b * ss[0];
    int64_t length = j->n_groups == 0 && j->padded_rows < j->rows ? j->rows : j->padded_rows;
    int64_t start = 0, padded = 0, clipped = 0;

    for (int32_t g = 0; g < count_groups(j); g++) {
        int64_t end = find_group_end(j, g), filled = padded + end - start;
        int64_t padded_end = smaller(round_up(filled, get_padding(j)), length);
        struct plane p = {
            .lines = j->cols,
            .length = end - start,
            .source = b * j->src_stride[0] + start * j->src_stride[1],
            .source_line = j->src_stride[2],
            .source_step = j->src_stride[1],
            .codes = codes + padded * cs[1],
            .code_line = cs[2],
            .code_step = cs[1],
            .scales = scales + padded / MX8_BLOCK * ss[1],
            .scale_line = ss[2],
            .scale_step = ss[1],
        };
        clipped += quantize_plane(j, &p, get_col_tile(j));
        int64_t block = round_up(filled, MX8_BLOCK) / MX8_BLOCK, last = round_up(padded_end, MX8_BLOCK) / MX8_BLOCK;
        clear_bytes(codes + filled * cs[1], padded_end - filled, cs[1], j->cols, cs[2]);
        clear_bytes(scales + block * ss[1], last - block, ss[1], j->cols, ss[2]);
        start = end;
        padded = padded_end;
    }
    int64_t blocks = round_up(padded, MX8_BLOCK) / MX8_BLOCK, all_blocks = round_up(length, MX8_BLOCK) / MX8_BLOCK;
    clear_bytes(codes + padded * cs[1], length - padded, cs[1], j->cols, cs[2]);
    clear_bytes(scales + blocks * ss[1], all_blocks - blocks, ss[1], j->cols, ss[2]);
    return clipped;
}

static void write_padded_ends(const struct mx8_quant_job *j) {
    int64_t start = 0, padded = 0;
    for (int32_t g = 0; g < j->n_groups; g++) {
        padded += round_up(j->offsets[g] - start, get_padding(j));
        j->padded_ends[g] = (int32_t)padded;
        start = j->offsets[g];
    }
}

void mx8i_reference_quantize(const struct mx8_quant_job *j) {
    for (int64_t b = 0; b < j->batch; b++) {
        int64_t rows_clipped = j->row_codes ? quantize_rows(j, b) : 0;
        int64_t cols_clipped = j->col_codes ? quantize_cols(j, b) : 0;
        if (j->saturated) *j->saturated += j->row_codes ? rows_clipped : cols_clipped;
    }
    if (j->padded_ends) write_padded_ends(j);
}
