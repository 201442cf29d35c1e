/* infer of every operator with random shapes, dtypes, strides and options. Sizes are drawn for the letters of the
 * operator's ports, so that many calls are legal; then some are spoilt. A legal call that is small is also run, with
 * zeroed inputs in memory of exactly the size that was announced. */
#include "fuzz.h"
#include "ops/op_rows.h"

enum { SMALL = 1 << 16, MOST_BLOCKS = MX8_MAX_INPUTS + MX8_MAX_OUTPUTS + 1 };

static int64_t draw_size(struct fuzz_reader *r) {
    static const int64_t sizes[] = {0, 1, 2, 3, 4, 31, 32, 33, 64, 65, 96, 128, 160, 256, 2880, 65536, INT32_MAX,
        (int64_t)1 << 31, (int64_t)1 << 33, (int64_t)1 << 40, INT64_MAX / 32, INT64_MAX, -1, INT64_MIN};
    uint32_t b = fuzz_byte(r);
    if (b < 160) return sizes[b % 13];
    if (b < 224) return sizes[b % (sizeof sizes / sizeof sizes[0])];
    return fuzz_byte(r);
}

static int32_t draw_dtype(struct fuzz_reader *r, uint32_t takes) {
    uint32_t b = fuzz_byte(r);
    if (b >= 250) return (int32_t)b - 252;
    for (int32_t i = 0; i < 9; i++) {
        int32_t dtype = (int32_t)(b + (uint32_t)i) % 9;
        if (takes & MX8I_DTYPE(dtype)) return dtype;
    }
    return (int32_t)b % 9;
}

static struct mx8_tensor draw_tensor(struct fuzz_reader *r, const struct mx8_port *p, int64_t *letters) {
    int64_t shape[MX8_MAX_DIMS] = {0};
    uint32_t spoil = fuzz_byte(r);
    int32_t ndim = p->shape ? (int32_t)strlen(p->shape) : (int32_t)(fuzz_byte(r) % 5);
    if ((p->takes & MX8I_OPTIONAL) && spoil % 3 == 0) return (struct mx8_tensor){0};
    for (int32_t i = 0; i < ndim; i++) {
        char c = p->shape ? p->shape[i] : 0;
        if (c >= 'A' && c <= 'Z')
            shape[i] = letters[c - 'A'];
        else if (c >= 'a' && c <= 'z')
            shape[i] = letters[c - 'a'] / 32 + (letters[c - 'a'] % 32 > 0);
        else
            shape[i] = c ? c - '0' : draw_size(r);
    }
    if (spoil >= 248 && ndim > 0) shape[fuzz_byte(r) % (uint32_t)ndim] = draw_size(r);
    struct mx8_tensor t = mx8_make_tensor(NULL, draw_dtype(r, p->takes), ndim, shape);
    if (spoil == 247 && ndim > 0) t.stride[fuzz_byte(r) % (uint32_t)ndim] = draw_size(r);
    if (spoil == 246) t.ndim = (int32_t)fuzz_byte(r) - 3;
    return t;
}

static int32_t draw_option(struct fuzz_reader *r) {
    static const int32_t values[] = {0, 0, 0, 1, 1, 2, 3, 4, 32, 64, 128, 256, 33, -1, INT32_MAX, INT32_MIN};
    return values[fuzz_byte(r) % 16];
}

static void draw_options(struct fuzz_reader *r, struct mx8_op_options *o) {
    int32_t *field[] = {&o->precision, &o->scale_rule, &o->scale_group, &o->tile_rows, &o->col_tile_rows,
        &o->weight_scale_group, &o->weight_tile_rows, &o->format, &o->exact, &o->wgrad_hp, &o->accumulate,
        &o->out_dtype, &o->layout, &o->alignment, &o->n_heads, &o->n_kv_heads, &o->mask, &o->chunk, &o->top_k,
        &o->score_func, &o->route_norm, &o->chunk_rows};
    uint32_t n = fuzz_byte(r) % 8;
    for (uint32_t i = 0; i < n; i++) *field[fuzz_byte(r) % (sizeof field / sizeof field[0])] = draw_option(r);
    o->seq_len = fuzz_byte(r) % 4 ? draw_size(r) : 0;
}

/* Bytes from data to behind the last element; -1 when that is not small. */
static int64_t measure(const struct mx8_tensor *t) {
    int64_t last = 0;
    for (int32_t i = 0; i < t->ndim; i++)
        if (t->shape[i] > SMALL) return -1; /* long loops over nothing, where another size is 0 */
    if (mx8_count_elements(t) == 0) return 0;
    for (int32_t i = 0; i < t->ndim; i++) {
        if (t->stride[i] < 0 || t->stride[i] > SMALL) return -1;
        last += (t->shape[i] - 1) * t->stride[i];
    }
    last = (last + 1) * (int64_t)mx8_get_dtype_size(t->dtype);
    return last <= SMALL ? last : -1;
}

static void run_small(const struct mx8_op *op, int32_t backward, const struct mx8_op_call *inferred) {
    static struct mx8_context *ctx;
    struct mx8_op_call call = *inferred;
    void *block[MOST_BLOCKS];
    int n = 0, good = call.workspace_size <= SMALL;
    if (!ctx) {
        struct mx8_context_options one = {.threads = 1, .isa = getenv("MX8_ISA")};
        ALWAYS(mx8_create_context(&one, &ctx) == MX8_OK);
    }
    for (int i = 0; i < MX8_MAX_INPUTS + MX8_MAX_OUTPUTS && good; i++) {
        struct mx8_tensor *t = i < MX8_MAX_INPUTS ? &call.in[i] : &call.out[i - MX8_MAX_INPUTS];
        int64_t bytes = t->ndim ? measure(t) : 0;
        if (bytes < 0) good = 0;
        if (bytes <= 0) continue;
        t->data = block[n++] = malloc((size_t)bytes);
        memset(t->data, i < MX8_MAX_INPUTS ? 0 : 0xFF, (size_t)bytes);
    }
    if (good && call.workspace_size) {
        size_t size = (call.workspace_size + 63) / 64 * 64;
        call.workspace = block[n++] = aligned_alloc(64, size);
        memset(call.workspace, 0xFF, size);
    }
    if (good) {
        enum mx8_status status = mx8_run_op(ctx, op, backward, &call);
        ALWAYS(status == MX8_OK || status == MX8_INVALID_ARGUMENT || status == MX8_UNSUPPORTED);
    }
    while (n > 0) free(block[--n]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct fuzz_reader r = {data, data + size};
    struct mx8_op_call call;
    int64_t letters[26];
    memset(&call, 0, sizeof call);
    const struct mx8_op *op = mx8_get_op((int32_t)(fuzz_byte(&r) % (uint32_t)mx8_get_op_count()));
    int32_t backward = op->backward && (fuzz_byte(&r) & 1);
    const struct mx8_pass *pass = backward ? &mx8i_get_row(op)->backward : &mx8i_get_row(op)->forward;
    for (int i = 0; i < 26; i++) letters[i] = -2;
    for (int32_t i = 0; i < pass->n_in; i++)
        for (const char *c = pass->in[i].shape; c && *c; c++) {
            if (*c < 'A') continue;
            int letter = (*c | 0x20) - 'a'; /* large or small */
            if (letters[letter] == -2) letters[letter] = draw_size(&r);
        }
    draw_options(&r, &call.options);
    for (int32_t i = 0; i < pass->n_in; i++) call.in[i] = draw_tensor(&r, &pass->in[i], letters);
    for (int32_t i = 0; backward && i < pass->n_out; i++)
        if (fuzz_byte(&r) % 2 && pass->out[i].shape) call.out[i] = draw_tensor(&r, &pass->out[i], letters);

    struct mx8_op_call again = call;
    enum mx8_status status = mx8_infer_op(op, backward, &call);
    if (status != MX8_OK) {
        ALWAYS(status == MX8_INVALID_ARGUMENT || status == MX8_UNSUPPORTED);
        ALWAYS(strstr(mx8_get_last_error(), op->name));
        return 0;
    }
    /* the padding was copied: NOLINTNEXTLINE(bugprone-suspicious-memory-comparison) */
    ALWAYS(mx8_infer_op(op, backward, &again) == MX8_OK && memcmp(&call, &again, sizeof call) == 0);
    ALWAYS(call.n_out == pass->n_out && call.workspace_size < SIZE_MAX / 4);
    for (int32_t i = 0; i < MX8_MAX_OUTPUTS; i++) {
        const struct mx8_tensor *t = &call.out[i];
        ALWAYS(t->ndim >= 0 && t->ndim <= MX8_MAX_DIMS && mx8_get_dtype_size(t->dtype) > 0 && !t->data);
        for (int32_t k = 0; k < t->ndim; k++) ALWAYS(t->shape[k] >= 0);
    }
    run_small(op, backward, &call);
    return 0;
}
