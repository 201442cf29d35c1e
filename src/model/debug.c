/* What experiments add to a model, and training never needs: outlier channels planted at the start, a recipe made worse
 * on purpose (negative control), and the operands of linears written to files. */
#include <stdio.h>
#include <string.h>
#include "model/internal.h"
#include "base/error.h"
#include "base/memory.h"
#include "base/safetensors.h"
#include "mx8/formats.h"

/* ---- outlier channels ---- */

/* Every norm divides by its row's length, so that a wide channel of the residual stream is an outlier in all that
 * linears read, and the others shrink beside it. */
enum mx8_status mx8i_plant_outliers(struct mx8_model *m, int64_t every, double factor) {
    const struct mx8_exec *x = &m->ctx->exec;
    const int64_t D = m->config.dim, most = 4096 * D;
    const struct mx8_part_of part = mx8i_get_part(m, m->embedding);
    float *values = mx8i_allocate((size_t)most * sizeof *values, "rows of the embedding");
    if (!values) return MX8_OUT_OF_MEMORY;
    enum mx8_status status = MX8_OK;
    for (int64_t from = 0; from < part.count && status == MX8_OK; from += most) {
        int64_t n = part.count - from < most ? part.count - from : most;
        float *place = m->masters + m->embedding->at + from;
        size_t bytes = (size_t)n * sizeof *values;
        status = x->k->download(x, values, place, bytes);
        for (int64_t i = 0; i < n; i++) {
            if ((part.first + from + i) % D % every == 0) values[i] *= (float)factor;
        }
        if (status == MX8_OK) status = x->k->upload(x, place, values, bytes);
    }
    mx8i_release(values);
    return status == MX8_OK ? mx8i_refresh_weights(m, 0) : status;
}

/* ---- negative controls ---- */

int32_t mx8i_choose_format(const struct mx8_model *m, int32_t is_gradient) {
    if (is_gradient && m->options.control == MX8_CONTROL_E5M2_GRADIENTS) return MX8_F8_E5M2;
    return m->recipe.format;
}

/* Quantizes along one axis and dequantizes again: (rows, cols) along rows, or along columns, which leaves a transposed
 * view. Scales are powers of two, so that a second quantization changes only what fell below a block's normal numbers.
 */
static enum mx8_status round_values(
    struct mx8_model *m, struct mx8_tensor *t, const struct mx8_op_options *quantizer, int32_t along_rows) {
    const enum mx8_row row = along_rows ? MX8_OP_QUANTIZE_ROWS : MX8_OP_QUANTIZE_COLS;
    struct mx8_op_call call = {.in = {*t}, .n_in = 1, .options = *quantizer};
    MX8_TRY(mx8_infer_op(mx8_get_op((int32_t)row), 0, &call));
    for (int32_t i = 0; i < 2; i++)
        call.out[i] = mx8i_take(&m->scratch, call.out[i].dtype, call.out[i].ndim, call.out[i].shape);
    MX8_TRY(mx8i_call(m, row, 0, &call));
    struct mx8_tensor rounded = mx8i_take(&m->scratch, t->dtype, 2, call.out[0].shape);
    struct mx8_op_call back = {.in = {call.out[0], call.out[1]},
        .n_in = 2,
        .out = {rounded},
        .n_out = 1,
        .options = {.out_dtype = 1 + t->dtype}};
    MX8_TRY(mx8i_call(m, MX8_OP_DEQUANTIZE, 0, &back));
    t->data = rounded.data;
    t->stride[0] = along_rows ? rounded.stride[0] : 1;
    t->stride[1] = along_rows ? 1 : rounded.stride[0];
    return MX8_OK;
}

enum mx8_status mx8i_round_for_control(
    struct mx8_model *m, struct mx8_tensor *t, const struct mx8_op_options *quantizer, int32_t is_gradient) {
    if (m->options.control != MX8_CONTROL_REUSED_CODES) return MX8_OK;
    const int64_t cols = t->shape[t->ndim - 1], rows = mx8_count_elements(t) / (cols ? cols : 1);
    struct mx8_tensor matrix = mx8_make_tensor(t->data, t->dtype, 2, (const int64_t[]){rows, cols});
    MX8_TRY(round_values(m, &matrix, quantizer, !is_gradient));
    if (is_gradient)
        *t = matrix;
    else
        t->data = matrix.data;
    return MX8_OK;
}

int32_t mx8i_looks_at_values(const struct mx8_model *m) {
    return m->dump || m->options.control == MX8_CONTROL_REUSED_CODES;
}

/* ---- tensors in files ---- */

void mx8i_set_dump(struct mx8_model *m, struct mx8_dump *dump) {
    m->dump = dump;
}

/* The tensor's bytes on the host; data stays NULL where it is absent. */
static enum mx8_status fetch_tensor(struct mx8_model *m, struct mx8_st_entry *e, const struct mx8_tensor *t) {
    const struct mx8_exec *x = &m->ctx->exec;
    e->dtype = t->dtype;
    e->ndim = t->ndim;
    for (int32_t i = 0; i < t->ndim; i++) e->shape[i] = t->shape[i];
    e->size = (size_t)mx8_count_elements(t) * mx8_get_dtype_size(t->dtype);
    void *data = mx8i_allocate(e->size, "a tensor for debug.dump_tensors");
    if (!data) return MX8_OUT_OF_MEMORY;
    e->data = data;
    return x->k->download(x, data, t->data, e->size);
}

/* A weight that is there as codes and masters alone, as its quantizer sees it. */
static enum mx8_status fetch_rounded_weight(struct mx8_model *m, const struct mx8_param *p, struct mx8_st_entry *e) {
    if (m->parallel) {
        return MX8_FAIL(MX8_UNSUPPORTED,
            "debug.dump_tensors: %s comes to this process as codes, expected parallelism.fsdp_gather_dtype=bfloat16",
            p->name);
    }
    const struct mx8_tensor t = mx8_make_tensor(m->masters + p->at, MX8_F32, p->ndim, p->shape);
    MX8_TRY(fetch_tensor(m, e, &t));
    const float *values = e->data;
    uint16_t *bits = (uint16_t *)(uintptr_t)e->data; /* element i lands on what was read before it */
    for (int64_t i = 0; i < p->count; i++) {
        const uint16_t rounded = mx8_encode_bf16(values[i]);
        memcpy((uint8_t *)bits + (size_t)i * sizeof rounded, &rounded, sizeof rounded);
    }
    e->dtype = MX8_BF16;
    e->size = (size_t)p->count * sizeof *bits;
    return MX8_OK;
}

static enum mx8_status write_entries(const char *path, const char *name, const struct mx8_st_entry *e, int64_t n) {
    const char *const metadata[] = {"weight", name, NULL};
    struct mx8_st_writer w;
    MX8_TRY(mx8i_begin_safetensors(path, e, n, metadata, &w));
    enum mx8_status status = MX8_OK;
    for (int64_t i = 0; i < n && status == MX8_OK; i++) status = mx8i_write_tensor(&w, e[i].data, e[i].size);
    if (status == MX8_OK) return mx8i_commit_safetensors(&w);
    mx8i_abandon_safetensors(&w);
    return status;
}

enum mx8_status mx8i_dump_linear(struct mx8_model *m, const struct mx8_param *p, struct mx8_tensor x,
    struct mx8_tensor dy, struct mx8_tensor offsets) {
    struct mx8_dump *dump = m->dump;
    if (!dump || m->planning || !x.ndim || (dump->names[0] && !mx8i_param_matches(p, dump->names))) return MX8_OK;
    struct mx8_tensor w = mx8i_view_weight(m, p).hp;
    struct mx8_st_entry entry[4] = {{.name = "x"}, {.name = "w"}, {.name = "dy"}, {.name = "offsets"}};
    const struct mx8_tensor *source[4] = {&x, &w, &dy, &offsets};
    const int64_t n = offsets.ndim ? 4 : 3;
    char name[sizeof p->name];
    snprintf(name, sizeof name, "%s", p->name);
    char *suffix = strstr(name, ".weight");
    if (suffix) *suffix = 0;
    char *path = mx8i_format_text("%s/%s.safetensors", dump->folder, name);
    enum mx8_status status = path ? mx8i_make_folders(dump->folder) : MX8_OUT_OF_MEMORY;
    for (int64_t i = 0; i < n && status == MX8_OK; i++)
        status = source[i]->ndim ? fetch_tensor(m, &entry[i], source[i]) : fetch_rounded_weight(m, p, &entry[i]);
    if (status == MX8_OK) status = write_entries(path, p->name, entry, n);
    if (status == MX8_OK) dump->count++;
    for (int64_t i = 0; i < n; i++) mx8i_release((void *)(uintptr_t)entry[i].data);
    mx8i_release(path);
    return status;
}
