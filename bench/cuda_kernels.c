/* Times the CUDA backend's quantizers and matrix products through its kernel table.
 *
 *   cc -std=gnu11 -O2 -Iinclude -Isrc bench/cuda_kernels.c -ldl -lm -o cuda_kernels
 *   ./cuda_kernels [--library build/libmx8_cuda.so] [--json FILE] [--sustain SECONDS] [--only WORD] [--quick]
 *
 * Every line is measured twice: "burst", the median of 15 batches of about 5 ms from a rested device, and "sustained",
 * launches without a pause for --sustain seconds (2), where the power cap decides; power and clock of the first GPU are
 * read meanwhile, where the driver's library tells them. GB/s counts each source byte and
 * each code and scale byte once; TFLOP/s counts 2 M N K of the rows that exist. Times are wall-clock between two
 * synchronisations around many launches, so what a launch costs the host is hidden unless a kernel is shorter than
 * that. Data are Gaussian: zeros and constants draw less power and run faster. --quick leaves out the second shape. */
#include "cuda_measure.h"

#define MAX_EXPERTS      8 /* of the large shapes; memory is sized by them */
#define MAX_GROUPS       128
#define PATTERN          ((size_t)1 << 22) /* numbers drawn on the host, repeated on the device */
#define DIVIDE_UP(n, by) (((n) + (by)-1) / (by))

/* ---- data ---- */

/* Device memory, sized for the largest case and shared by all. */
static struct {
    uint16_t *source; /* Gaussian bf16 */
    size_t source_elements;
    uint8_t *codes[2], *scales[2]; /* two operands, or two orientations */
    size_t code_bytes;
    void *out;
    int32_t *offsets, *padded_ends;
} buffers;

static uint16_t draw_bf16(uint64_t *state) {
    float sum = 0;
    for (int i = 0; i < 4; i++) {
        *state = *state * 6364136223846793005u + 1442695040888963407u;
        sum += (float)(uint32_t)(*state >> 40) / 8388608.0f - 1.0f;
    }
    uint32_t bits;
    memcpy(&bits, &sum, sizeof bits);
    return (uint16_t)(bits >> 16);
}

static void prepare_buffers(size_t elements, size_t code_bytes, size_t out_bytes) {
    uint16_t *pattern = malloc(PATTERN * sizeof *pattern);
    uint64_t state = 1;
    if (!pattern) exit(1);
    for (size_t i = 0; i < PATTERN; i++) pattern[i] = draw_bf16(&state);
    buffers.source_elements = DIVIDE_UP(elements, PATTERN) * PATTERN;
    buffers.source = reserve(buffers.source_elements * sizeof *pattern);
    require(exec.k->upload(&exec, buffers.source, pattern, PATTERN * sizeof *pattern), "upload");
    for (size_t done = PATTERN; done < buffers.source_elements; done += PATTERN)
        require(exec.k->copy(&exec, buffers.source + done, buffers.source, PATTERN * sizeof *pattern), "copy");
    free(pattern);
    buffers.code_bytes = code_bytes;
    for (int i = 0; i < 2; i++) {
        buffers.codes[i] = reserve(code_bytes);
        buffers.scales[i] = reserve(code_bytes / 32 + 4096);
    }
    buffers.out = reserve(out_bytes);
    buffers.offsets = reserve(MAX_GROUPS * sizeof(int32_t));
    buffers.padded_ends = reserve(MAX_GROUPS * sizeof(int32_t));
}

/* Cumulative ends of G groups of M rows: equal, or of sizes 1 : 2 : .. : G (and then not multiples of anything). */
static void set_groups(int64_t M, int32_t G, int skewed) {
    int32_t ends[MAX_GROUPS];
    for (int32_t g = 0; g < G; g++)
        ends[g] = (int32_t)(skewed ? M * (g + 1) * (g + 2) / (G * (G + 1)) : M * (g + 1) / G);
    require(exec.k->upload(&exec, buffers.offsets, ends, (size_t)G * sizeof *ends), "upload");
}

/* ---- quantizers ---- */

enum { ROWS = 1, COLS = 2 };

/* batch x rows x cols of the source; codes of the row orientation into operand `row`, of the column orientation into
 * `col`. */
static struct mx8_quant_job make_quant(int64_t batch, int64_t rows, int64_t cols, int sides, int row, int col,
    int32_t group, int32_t tile, int32_t col_tile, int32_t G) {
    int64_t padded = G > 0 ? rows + 128 * (int64_t)G : rows;
    struct mx8_quant_job j = {.src = buffers.source,
        .src_dtype = MX8_BF16,
        .batch = batch,
        .rows = rows,
        .cols = cols,
        .src_stride = {rows * cols, cols, 1},
        .padded_rows = padded,
        .format = MX8_F8_E4M3,
        .group = group,
        .tile = tile,
        .col_tile = col_tile,
        .padding = 128};
    if (G > 0) {
        j.offsets = buffers.offsets;
        j.n_groups = G;
        j.padded_ends = buffers.padded_ends;
    }
    if (sides & ROWS) {
        j.row_codes = buffers.codes[row];
        j.row_scales = buffers.scales[row];
        memcpy(j.row_code_stride, (int64_t[3]){rows * cols, cols, 1}, sizeof j.row_code_stride);
        memcpy(j.row_scale_stride, (int64_t[3]){rows * cols / 32, cols / 32, 1}, sizeof j.row_scale_stride);
    }
    if (sides & COLS) {
        j.col_codes = buffers.codes[col];
        j.col_scales = buffers.scales[col];
        memcpy(j.col_code_stride, (int64_t[3]){cols * padded, 1, padded}, sizeof j.col_code_stride);
        memcpy(j.col_scale_stride, (int64_t[3]){cols * padded / 32, 1, padded / 32}, sizeof j.col_scale_stride);
    }
    return j;
}

static void bench_quantizers(int64_t M, int64_t K, int64_t N) {
    static const struct {
        const char *name;
        int sides;
        int32_t group, tile, col_tile, G;
    } lines[] = {
        {"quantize rows, group 256", ROWS, 256, 1, 1, 0},
        {"quantize columns, group 256", COLS, 256, 1, 1, 0},
        {"quantize columns, group 256 x 32", COLS, 256, 1, 32, 0},
        {"quantize both, group 256", ROWS | COLS, 256, 1, 1, 0},
        {"quantize both, group 256, cols x 32", ROWS | COLS, 256, 1, 32, 0},
        {"quantize both, group 256, 8 groups", ROWS | COLS, 256, 1, 1, 8},
        {"quantize rows, group 128", ROWS, 128, 1, 1, 0},
        {"quantize both, group 128", ROWS | COLS, 128, 1, 1, 0},
        {"quantize rows, group 32", ROWS, 32, 1, 1, 0},
        {"quantize columns, group 32", COLS, 32, 1, 1, 0},
        {"quantize both, group 32", ROWS | COLS, 32, 1, 1, 0},
        {"quantize both, group 32, 8 groups", ROWS | COLS, 32, 1, 1, 8},
    };
    char shape[64];
    set_groups(M, 8, 1);
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        double n = (double)M * (double)K, sides = lines[i].sides == (ROWS | COLS) ? 2 : 1;
        struct mx8_quant_job j =
            make_quant(1, M, K, lines[i].sides, 0, 1, lines[i].group, lines[i].tile, lines[i].col_tile, lines[i].G);
        snprintf(shape, sizeof shape, "%lldx%lld", (long long)M, (long long)K);
        measure(&(struct task){.quant = &j}, lines[i].name, shape, n * (2 + sides * (1 + 1.0 / 32)), "GB/s");
    }
    double n = (double)MAX_EXPERTS * (double)N * (double)K;
    struct mx8_quant_job w = make_quant(MAX_EXPERTS, N, K, ROWS | COLS, 0, 1, 256, 32, 32, 0);
    snprintf(shape, sizeof shape, "%dx%lldx%lld", MAX_EXPERTS, (long long)N, (long long)K);
    measure(
        &(struct task){.quant = &w}, "quantize weights both, 32 x 256", shape, n * (2 + 2 * (1 + 1.0 / 32)), "GB/s");
    const struct mx8_quant_source floats = {.kind = MX8_FROM_FLOATS, .a = buffers.source, .a_ls = K, .a_bs = N * K};
    w = make_quant(MAX_EXPERTS / 2, N, K, ROWS | COLS, 0, 1, 256, 32, 32, 0); /* the source holds as much in f32 */
    snprintf(shape, sizeof shape, "%dx%lldx%lld", MAX_EXPERTS / 2, (long long)N, (long long)K);
    if (exec.k->quantize_from)
        measure(&(struct task){.quant = &w, .source = &floats}, "quantize f32 weights both, 32 x 256", shape,
            n / 2 * (4 + 2 * (1 + 1.0 / 32)), "GB/s");
    snprintf(shape, sizeof shape, "%dx%lldx%lld", MAX_EXPERTS, (long long)N, (long long)K);
    struct mx8_quant_job c = make_quant(MAX_EXPERTS, N, K, COLS, 0, 1, 32, 1, 1, 0);
    measure(&(struct task){.quant = &c}, "quantize weights columns, group 32", shape, n * (3 + 1.0 / 32), "GB/s");
}

/* The head's gradient, quantized as it is made: logits are read, codes written. */
static void bench_softmax(int64_t T, int64_t V) {
    struct mx8_row_softmax *rows = malloc((size_t)T * sizeof *rows);
    if (!exec.k->quantize_from || !rows) {
        free(rows);
        return;
    }
    for (int64_t t = 0; t < T; t++) rows[t] = (struct mx8_row_softmax){3, 1e-3f, -0.1f, (int32_t)(t * 977 % V)};
    require(exec.k->upload(&exec, buffers.out, rows, (size_t)T * sizeof *rows), "upload");
    free(rows);
    struct mx8_quant_job j = make_quant(1, T, V, ROWS | COLS, 0, 1, 256, 1, 1, 0);
    const struct mx8_quant_source source = {
        .kind = MX8_FROM_SOFTMAX, .a = buffers.source, .a_ls = V, .rows = (const struct mx8_row_softmax *)buffers.out};
    char shape[64];
    snprintf(shape, sizeof shape, "%lldx%lld", (long long)T, (long long)V);
    measure(&(struct task){.quant = &j, .source = &source}, "quantize softmax both, group 256", shape,
        (double)T * (double)V * (2 + 2 * (1 + 1.0 / 32)), "GB/s");
}

/* Codes without the values: gate and up, or tokens in another order times a score, are read; codes are written. */
static void bench_made(int64_t M, int64_t width, int64_t hidden) {
    static const struct {
        const char *name;
        int sides;
    } ways[] = {{"rows", ROWS}, {"columns", COLS}, {"both", ROWS | COLS}};
    int32_t *order = malloc((size_t)M * sizeof *order);
    float *weights = malloc((size_t)M * sizeof *weights);
    if (!exec.k->quantize_from || !order || !weights) goto done;
    for (int64_t p = 0; p < M; p++) {
        order[p] = (int32_t)(p * 40503 % M); /* odd and M a power of two: each token once */
        weights[p] = 0.5f;
    }
    int32_t *device_order = buffers.out;
    float *device_weights = (float *)buffers.out + M;
    require(exec.k->upload(&exec, device_order, order, (size_t)M * sizeof *order), "upload");
    require(exec.k->upload(&exec, device_weights, weights, (size_t)M * sizeof *weights), "upload");
    for (int source_kind = 0; source_kind < 2; source_kind++)
        for (int w = 0; w < 3; w++) {
            const int64_t cols = source_kind ? width : hidden;
            struct mx8_quant_job j = make_quant(1, M, cols, ways[w].sides, 0, 1, 256, 1, 32, 0);
            struct mx8_quant_source source = {.kind = source_kind ? MX8_FROM_PERMUTE : MX8_FROM_SWIGLU,
                .a = buffers.source,
                .b = buffers.source + 4096,
                .a_ls = cols,
                .b_ls = cols,
                .order = device_order,
                .weights = device_weights,
                .k = 1};
            char name[64], shape[64];
            snprintf(name, sizeof name, "quantize %s %s", source_kind ? "gathered" : "swiglu", ways[w].name);
            snprintf(shape, sizeof shape, "%lldx%lld", (long long)M, (long long)cols);
            const double codes = (ways[w].sides == (ROWS | COLS) ? 2 : 1) * (1 + 1.0 / 32);
            measure(&(struct task){.quant = &j, .source = &source}, name, shape,
                (double)M * (double)cols * ((source_kind ? 2 : 4) + codes), "GB/s");
        }
done:
    free(order);
    free(weights);
}

/* SwiGLU's gradients as codes of both orientations, and the same by three calls that store them. The rate of either is
 * that of the bytes which the first one moves: 6 read, 4.12 written an element. */
static void bench_gradients(int64_t M, int64_t F, int32_t G) {
    if (!exec.k->quantize_swiglu_backward) return;
    const int64_t n = M * F, padded = G > 0 ? M + 128 * (int64_t)G : M;
    uint16_t *values = reserve((size_t)n * 2 * sizeof *values);    /* dgate and dup */
    uint8_t *more = reserve((size_t)((n + F * padded) * 33 / 32)); /* dup's codes and scales */
    struct mx8_quant_job both[2];
    if (G) set_groups(M, G, 1);
    for (int i = 0; i < 2; i++) both[i] = make_quant(1, M, F, ROWS | COLS, 0, 1, 256, 1, 1, G);
    both[1].row_codes = more;
    both[1].col_codes = more + n;
    both[1].row_scales = both[1].col_codes + F * padded;
    both[1].col_scales = both[1].row_scales + n / 32;
    for (int i = 0; i < 2; i++) both[i].src = values + i * n;
    const struct mx8_swiglu_job j = {.M = M,
        .F = F,
        .dtype = MX8_BF16,
        .dh = buffers.source,
        .gate = buffers.source + 4096,
        .up = buffers.source + 8192,
        .dgate = values,
        .dup = values + n,
        .gate_ls = F,
        .up_ls = F,
        .dh_ls = F,
        .dgate_ls = F,
        .dup_ls = F};
    char shape[64];
    snprintf(shape, sizeof shape, "%lldx%lld", (long long)M, (long long)F);
    const double bytes = (double)n * (6 + 4 * (1 + 1.0 / 32));
    measure(&(struct task){.quant = both, .gradients = &j},
        G ? "quantize swiglu backward, 8 groups" : "quantize swiglu backward", shape, bytes, "GB/s");
    measure(&(struct task){.quant = both, .gradients = &j, .stored = 1},
        G ? "quantize stored gradients, 8 groups" : "quantize stored gradients", shape, bytes, "GB/s");
    exec.k->release(&exec, values);
    exec.k->release(&exec, more);
}

/* AdamW, AdamW and the quantizer behind it, both in one. Bytes: 28 a weight, and 2.06 (20 and 2.06 with moments in
 * bf16); the three calls with the cast between them are given the fused kernel's, so that rates compare as times do. */
static void bench_update(int64_t E, int64_t N, int64_t K, int32_t moment_dtype) {
    const int64_t n = E * N * K, moment = moment_dtype == MX8_BF16 ? 2 : 4;
    uint16_t *rounded = reserve((size_t)n * sizeof *rounded);
    float *grad = reserve((size_t)n * sizeof *grad), *master = buffers.out;
    uint8_t *moments = reserve((size_t)(2 * n * moment));
    require(exec.k->cast(&exec, grad, MX8_F32, buffers.source, MX8_BF16, n), "cast");
    require(exec.k->cast(&exec, master, MX8_F32, buffers.source + 4096, MX8_BF16, n), "cast");
    require(exec.k->fill(&exec, moments, 0, (size_t)(2 * n * moment)), "fill");
    const struct mx8_adamw_job update = {.n = n,
        .lr = 1e-4f,
        .beta1 = 0.9f,
        .beta2 = 0.95f,
        .eps = 1e-8f,
        .weight_decay = 0.1f,
        .bias1 = 0.5f,
        .bias2 = 0.5f,
        .master = master,
        .m = moments,
        .v = moments + n * moment,
        .grad = grad,
        .moment_dtype = moment_dtype,
        .rounding = 1};
    struct mx8_adamw_job with_copy = update; /* memory for backends that go by pieces */
    with_copy.copy = rounded;
    with_copy.copy_dtype = MX8_BF16;
    struct mx8_quant_job codes = make_quant(E, N, K, ROWS | COLS, 0, 1, 256, 32, 32, 0);
    codes.src = rounded;
    require(exec.k->adamw(&exec, &update), "adamw"); /* moments as they are in training */
    char shape[64];
    snprintf(shape, sizeof shape, "%lldx%lldx%lld%s", (long long)E, (long long)N, (long long)K,
        moment_dtype == MX8_BF16 ? ", bf16 moments" : "");
    const double each = (double)n, alone = 12 + 4 * (double)moment, both = alone + 2 * (1 + 1.0 / 32);
    measure(&(struct task){.update = &update}, "adamw", shape, each * alone, "GB/s");
    measure(&(struct task){.update = &update, .quant = &codes, .rounded = rounded}, "adamw, cast, quantize both", shape,
        each * both, "GB/s");
    measure(
        &(struct task){.update = &with_copy, .quant = &codes}, "adamw and quantize both", shape, each * both, "GB/s");
    exec.k->release(&exec, rounded);
    exec.k->release(&exec, grad);
    exec.k->release(&exec, moments);
}

/* ---- matrix products ---- */

static struct mx8_matrix use_codes(int operand, int64_t lines, int64_t depth, int32_t tile) {
    return (struct mx8_matrix){.data = buffers.codes[operand],
        .dtype = MX8_F8_E4M3,
        .ls = depth,
        .ks = 1,
        .gs = lines * depth,
        .scales = buffers.scales[operand],
        .sls = depth / 32,
        .sks = 1,
        .sgs = lines * depth / 32,
        .scale_group = 256,
        .tile = tile};
}

/* A view of the Gaussian source. `skip` keeps the operands of a product apart. */
static struct mx8_matrix use_bf16(size_t skip, int64_t ls, int64_t ks, int64_t gs) {
    return (struct mx8_matrix){.data = buffers.source + skip, .dtype = MX8_BF16, .ls = ls, .ks = ks, .gs = gs};
}

static void time_product(
    struct mx8_gemm_job *j, const char *name, int64_t M, int64_t N, int64_t K, int32_t G, int skewed) {
    char shape[64];
    snprintf(shape, sizeof shape, "%lldx%lldx%lld G %d%s", (long long)M, (long long)N, (long long)K, G,
        skewed ? " skewed" : "");
    measure(&(struct task){.gemm = j}, name, shape, 2.0 * (double)M * (double)N * (double)K, "TFLOP/s");
}

/* C (M,N) of M groups: rows of `lines` weights each. `cols`: the weights' blocks run along the middle dimension. */
static void bench_row_groups(const char *name, int64_t M, int64_t N, int64_t K, int32_t G, int skewed, int cols) {
    struct mx8_quant_job tokens = make_quant(1, M, K, ROWS, 0, 1, 256, 1, 1, 0);
    struct mx8_quant_job weights =
        cols ? make_quant(G, K, N, COLS, 0, 1, 256, 32, 32, 0) : make_quant(G, N, K, ROWS, 1, 1, 256, 32, 32, 0);
    require(exec.k->quantize(&exec, &tokens), "quantize");
    require(exec.k->quantize(&exec, &weights), "quantize");
    struct mx8_gemm_job j = {.mode = MX8_GEMM_M_GROUPS,
        .M = M,
        .N = N,
        .K = K,
        .G = G,
        .offsets = buffers.offsets,
        .a = use_codes(0, M, K, 1),
        .b = use_codes(1, N, K, 32),
        .c = buffers.out,
        .c_dtype = MX8_BF16,
        .c_ls = N};
    j.a.gs = j.a.sgs = 0;
    time_product(&j, name, M, N, K, G, skewed);
}

static void bench_weight_gradient(int64_t M, int64_t N, int64_t K, int32_t G, int skewed) {
    static const struct {
        const char *name;
        int32_t dtype, accumulate;
    } outputs[] = {{"mxfp8 wgrad, f32", MX8_F32, 0}, {"mxfp8 wgrad, f32 accumulate", MX8_F32, 1},
        {"mxfp8 wgrad, bf16", MX8_BF16, 0}};
    int64_t padded = M + 128 * (int64_t)G;
    struct mx8_quant_job dy = make_quant(1, M, N, COLS, 0, 0, 256, 1, 1, G),
                         x = make_quant(1, M, K, COLS, 1, 1, 256, 1, 32, G);
    require(exec.k->quantize(&exec, &dy), "quantize");
    require(exec.k->quantize(&exec, &x), "quantize");
    for (int i = 0; i < 3; i++) {
        struct mx8_gemm_job j = {.mode = MX8_GEMM_K_GROUPS,
            .M = N,
            .N = K,
            .K = padded,
            .G = G,
            .offsets = buffers.padded_ends,
            .a = use_codes(0, N, padded, 1),
            .b = use_codes(1, K, padded, 32),
            .c = buffers.out,
            .c_dtype = outputs[i].dtype,
            .c_ls = K,
            .c_gs = N * K,
            .accumulate = outputs[i].accumulate,
            .padding = 128};
        j.a.gs = j.a.sgs = j.b.gs = j.b.sgs = 0;
        time_product(&j, outputs[i].name, M, N, K, G, skewed);
    }
}

/* The same products of bf16 operands as training would store them. */
static void bench_bf16(int64_t M, int64_t N, int64_t K, int32_t G, int skewed) {
    struct mx8_gemm_job forward = {.mode = MX8_GEMM_M_GROUPS,
        .M = M,
        .N = N,
        .K = K,
        .G = G,
        .offsets = buffers.offsets,
        .a = use_bf16(0, K, 1, 0),
        .b = use_bf16(8192, K, 1, N * K),
        .c = buffers.out,
        .c_dtype = MX8_BF16,
        .c_ls = N};
    time_product(&forward, "bf16 forward", M, N, K, G, skewed);
    struct mx8_gemm_job wgrad = {.mode = MX8_GEMM_K_GROUPS,
        .M = N,
        .N = K,
        .K = M,
        .G = G,
        .offsets = buffers.offsets,
        .a = use_bf16(0, 1, N, 0),
        .b = use_bf16(8192, 1, K, 0),
        .c = buffers.out,
        .c_dtype = MX8_F32,
        .c_ls = K,
        .c_gs = N * K};
    time_product(&wgrad, "bf16 wgrad, f32", M, N, K, G, skewed);
}

static void bench_grouped(int64_t M, int64_t N, int64_t K) {
    static const struct {
        int32_t G;
        int skewed;
    } groups[] = {{1, 0}, {2, 0}, {4, 0}, {8, 0}, {8, 1}};
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++) {
        int32_t G = groups[i].G;
        set_groups(M, G, groups[i].skewed);
        bench_row_groups("mxfp8 forward", M, N, K, G, groups[i].skewed, 0);
        bench_row_groups("mxfp8 dgrad", M, K, N, G, groups[i].skewed, 1);
        bench_weight_gradient(M, N, K, G, groups[i].skewed);
        bench_bf16(M, N, K, G, groups[i].skewed);
    }
}

/* 128 experts with few tokens each, as in decoding-sized batches: bound by reading the weights. */
static void bench_many_groups(int64_t N, int64_t K) {
    static const int64_t tokens[] = {32, 64, 96, 128, 256};
    for (size_t i = 0; i < sizeof tokens / sizeof *tokens; i++) {
        set_groups(tokens[i] * MAX_GROUPS, MAX_GROUPS, 0);
        bench_row_groups("mxfp8 forward", tokens[i] * MAX_GROUPS, N, K, MAX_GROUPS, 0, 0);
    }
}

static void bench_dense(int64_t n) {
    struct mx8_quant_job a = make_quant(1, n, n, ROWS, 0, 0, 256, 1, 1, 0),
                         b = make_quant(1, n, n, ROWS, 1, 1, 256, 32, 32, 0);
    require(exec.k->quantize(&exec, &a), "quantize");
    require(exec.k->quantize(&exec, &b), "quantize");
    struct mx8_gemm_job j = {.mode = MX8_GEMM_DENSE,
        .M = n,
        .N = n,
        .K = n,
        .a = use_codes(0, n, n, 1),
        .b = use_codes(1, n, n, 32),
        .c = buffers.out,
        .c_dtype = MX8_BF16,
        .c_ls = n};
    j.a.gs = j.a.sgs = j.b.gs = j.b.sgs = 0;
    time_product(&j, "mxfp8 dense", n, n, n, 1, 0);
    struct mx8_gemm_job h = j;
    h.a = use_bf16(0, n, 1, 0);
    h.b = use_bf16(8192, n, 1, 0);
    time_product(&h, "bf16 dense", n, n, n, 1, 0);
}

int main(int argc, char **argv) {
    const char *library = "libmx8_cuda.so", *json_path = NULL;
    int quick = 0;
    void (*close)(void *);
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : NULL;
        if (strcmp(argv[i], "--quick") == 0) {
            quick = 1;
            continue;
        }
        if (!value) {
            fprintf(stderr, "cuda_kernels: %s needs a value, or is unknown\n", argv[i]);
            return 2;
        }
        if (strcmp(argv[i], "--library") == 0)
            library = value;
        else if (strcmp(argv[i], "--json") == 0)
            json_path = value;
        else if (strcmp(argv[i], "--sustain") == 0)
            sustain_seconds = atof(value);
        else if (strcmp(argv[i], "--only") == 0)
            only = value;
        else {
            fprintf(stderr, "cuda_kernels: unknown option %s\n", argv[i]);
            return 2;
        }
        i++;
    }
    if (json_path && !(json = fopen(json_path, "w"))) {
        perror(json_path);
        return 1;
    }
    open_library(library, &close);
    printf("%-34s %-34s %12s %8s %8s\n", "kernel", "shape", "burst", "burst", "sustained");
    meter = open_power_meter(0);
    size_t tokens = (size_t)(65536 + 128 * MAX_EXPERTS) * 8192;
    prepare_buffers(tokens + PATTERN, tokens, (size_t)MAX_EXPERTS * 8192 * 5120 * sizeof(float));
    bench_quantizers(65536, 5120, 8192);
    bench_softmax(2048, 163840);
    bench_softmax(2048, 202048);
    bench_made(65536, 5120, 8192);
    bench_gradients(65536, 8192, 0);
    bench_gradients(65536, 8192, 8);
    bench_update(MAX_EXPERTS, 8192, 5120, MX8_F32);
    bench_update(MAX_EXPERTS, 8192, 5120, MX8_BF16);
    bench_dense(8192);
    bench_grouped(65536, 8192, 5120);
    bench_many_groups(1024, 2048);
    if (!quick) {
        bench_quantizers(65536, 7168, 2048);
        bench_grouped(65536, 2048, 7168);
    }
    if (json) {
        fprintf(json, "%s\n]\n", json_lines ? "" : "[");
        fclose(json);
    }
    return 0;
}
