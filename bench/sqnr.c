/* How much the scale geometries, the FP8 accumulator and some deliberate mistakes cost, in dB.
 *
 *   cmake --build build --target bench_sqnr
 *   build/bench_sqnr [--size 4096] [--tensors FOLDER]... [--only WORD] [--json FILE]
 *
 * A linear has three products: Y = X W^T, dX = dY W, dW = dY^T X. Each is computed from quantized operands for 128
 * lines of the left operand and 256 of the right one, over the whole contraction, and compared with the product of the
 * values before quantization in f64. SQNR of an output column: its squared sum over that of the error. A cell is the
 * median over columns / the worst column. Quantizers and scale rules are the library's own; sums are exact (f64) unless
 * a column says otherwise. --tensors adds the files of a folder that debug.dump_tensors wrote (of experts: the one with
 * the most tokens); --only WORD is of the formulas. Balanced: the weights of wide channels are as much smaller, so that
 * narrow channels count in Y as much as wide ones. Prints Markdown. */
#include <omp.h>
#include "base/file.h"
#include "formats/fp8_accumulator.h"
#include "mx8/mx8.h"
#include "sqnr_data.h"

enum { LEFT_LINES = 128, RIGHT_LINES = 256, MAX_SOURCES = 256 };
static const double allowed_loss = 0.1; /* dB */

/* ---- what is compared ---- */

enum sums { SUMS_EXACT, SUMS_PROMOTE_128, SUMS_PROMOTE_256, SUMS_UNPROMOTED };
enum mistake { MISTAKE_NONE, MISTAKE_E5M2, MISTAKE_REUSED };

/* The left operand is X, dY, dY^T (tokens and gradients), the right one W, W^T, X^T. */
struct config {
    const char *name;
    int32_t left_group, right_group, right_tile, rule;
    enum sums sums;
    enum mistake mistake; /* in the backward products */
};
enum { CANONICAL = 0, DEFAULT_EXACT = 3, FIRST_FP8 = 6, DEFAULT = 7, FIRST_MISTAKE = 10 };
static const struct config configs[] = {
    {"1x32", 32, 32, 1, MX8_SCALE_RCEIL, SUMS_EXACT, MISTAKE_NONE},
    {"1x128", 128, 128, 1, MX8_SCALE_RCEIL, SUMS_EXACT, MISTAKE_NONE},
    {"1x256", 256, 256, 1, MX8_SCALE_RCEIL, SUMS_EXACT, MISTAKE_NONE},
    {"1x256, 32x256", 256, 256, 32, MX8_SCALE_RCEIL, SUMS_EXACT, MISTAKE_NONE},
    {"1x256, 128x256", 256, 256, 128, MX8_SCALE_RCEIL, SUMS_EXACT, MISTAKE_NONE},
    {"1x128, 128x128", 128, 128, 128, MX8_SCALE_RCEIL, SUMS_EXACT, MISTAKE_NONE},
    {"32x256, FP8 sums of 128", 256, 256, 32, MX8_SCALE_RCEIL, SUMS_PROMOTE_128, MISTAKE_NONE},
    {"32x256, FP8 sums of 256 (default)", 256, 256, 32, MX8_SCALE_RCEIL, SUMS_PROMOTE_256, MISTAKE_NONE},
    {"1x128, FP8 sums of 128", 128, 128, 1, MX8_SCALE_RCEIL, SUMS_PROMOTE_128, MISTAKE_NONE},
    {"32x256, no promotion", 256, 256, 32, MX8_SCALE_RCEIL, SUMS_UNPROMOTED, MISTAKE_NONE},
    {"1x32 FLOOR", 32, 32, 1, MX8_SCALE_FLOOR, SUMS_EXACT, MISTAKE_NONE},
    {"1x32, dY in E5M2", 32, 32, 1, MX8_SCALE_RCEIL, SUMS_EXACT, MISTAKE_E5M2},
    {"1x32, codes of the other axis", 32, 32, 1, MX8_SCALE_RCEIL, SUMS_EXACT, MISTAKE_REUSED},
};
enum { CONFIGS = sizeof configs / sizeof configs[0], PRODUCTS = 3 };

struct product {
    const char *name;
    enum tensor left, right;
    int left_transposed, right_transposed;
};
static const struct product products[PRODUCTS] = {
    {"Y", TENSOR_X, TENSOR_W, 0, 0}, {"dX", TENSOR_DY, TENSOR_W, 0, 1}, {"dW", TENSOR_DY, TENSOR_X, 1, 1}};

static const struct source formulas[] = {
    {.name = "Gaussian", .shape = SHAPE_GAUSS},
    {.name = "Student t3", .shape = SHAPE_T3},
    {.name = "token spread", .shape = SHAPE_GAUSS, .spread = 1},
    {.name = "1 in 24 channels x30", .outlier = 30, .step = 24, .spread = 1},
    {.name = "1 in 24 channels x300", .outlier = 300, .step = 24, .spread = 1},
    {.name = "1 in 24 channels x1000", .outlier = 1000, .step = 24, .spread = 1},
    {.name = "1 in 97 channels x300, balanced", .outlier = 300, .step = 97, .spread = 1, .balanced = 1},
    {.name = "1 in 97 channels x1000, balanced", .outlier = 1000, .step = 97, .spread = 1, .balanced = 1},
    {.name = "1 in 97 channels x4000, balanced", .outlier = 4000, .step = 97, .spread = 1, .balanced = 1},
    {.name = "SwiGLU", .shape = SHAPE_SWIGLU, .spread = 1},
};
enum { FORMULAS = sizeof formulas / sizeof formulas[0] };

struct result {
    int measured;
    double median, worst, worst_row; /* dB; rows are tokens, but output features in dW */
    double sums_median, sums_worst;  /* FP8 sums against the exact product of the same codes */
};
struct study {
    struct source source[MAX_SOURCES];
    int n;
    struct result (*result)[PRODUCTS][CONFIGS];
    struct mx8_context *ctx;
    int64_t size;
    const char *only;
};

static void require(enum mx8_status status, const char *what) {
    if (status == MX8_OK) return;
    fprintf(stderr, "sqnr: %s: %s\n", what, mx8_get_last_error());
    exit(1);
}

static void *take(int64_t count, size_t element) {
    void *p = calloc((size_t)(count > 0 ? count : 1), element);
    if (p) return p;
    fprintf(stderr, "sqnr: no memory for %lld elements\n", (long long)count);
    exit(1);
}

/* ---- operands ---- */

struct operand {
    int64_t lines, depth, blocks;
    float *original, *rounded;
    uint8_t *codes, *scales;
};

static struct operand read_operand(const struct source *s, enum tensor which, int transposed, int64_t most) {
    const int64_t rows = which == TENSOR_W ? s->N : s->T, cols = which == TENSOR_DY ? s->N : s->K;
    struct operand o = {.lines = transposed ? cols : rows, .depth = transposed ? rows : cols};
    if (o.lines > most) o.lines = most;
    o.blocks = (o.depth + MX8_BLOCK - 1) / MX8_BLOCK;
    o.original = take(o.lines * o.depth, sizeof *o.original);
    o.rounded = take(o.lines * o.depth, sizeof *o.rounded);
    o.codes = take(o.lines * o.depth, 1);
    o.scales = take(o.lines * o.blocks, 1);
    read_lines(s, which, transposed, o.lines, o.depth, o.original);
    return o;
}

static void drop_operand(struct operand *o) {
    free(o->original);
    free(o->rounded);
    free(o->codes);
    free(o->scales);
}

static struct mx8_tensor view(void *data, int32_t dtype, int64_t rows, int64_t cols) {
    return mx8_make_tensor(data, dtype, 2, (const int64_t[]){rows, cols});
}

/* Quantizes `values` along the contraction; o->rounded is what the codes mean. */
static void quantize_operand(
    struct mx8_context *ctx, struct operand *o, const float *values, const struct mx8_op_options *options) {
    int32_t format = options->format ? options->format : MX8_F8_E4M3;
    struct mx8_tensor x = view((void *)(uintptr_t)values, MX8_F32, o->lines, o->depth);
    struct mx8_tensor codes = view(o->codes, format, o->lines, o->depth);
    struct mx8_tensor scales = view(o->scales, MX8_F8_E8M0, o->lines, o->blocks);
    struct mx8_tensor rounded = view(o->rounded, MX8_F32, o->lines, o->depth);
    require(mx8_quantize_rows(ctx, &codes, &scales, &x, options), "quantize_rows");
    require(mx8_dequantize(ctx, &rounded, &codes, &scales, &(struct mx8_op_options){.out_dtype = 1 + MX8_F32}),
        "dequantize");
}

/* The values after codes in blocks across the contraction: what "transposed" codes hold. */
static float *round_across(struct mx8_context *ctx, const struct operand *o) {
    struct operand t = {.lines = o->depth, .depth = o->lines, .blocks = (o->lines + MX8_BLOCK - 1) / MX8_BLOCK};
    float *turned = take(t.lines * t.depth, sizeof *turned), *out = take(t.lines * t.depth, sizeof *out);
    t.rounded = take(t.lines * t.depth, sizeof *t.rounded);
    t.codes = take(t.lines * t.depth, 1);
    t.scales = take(t.lines * t.blocks, 1);
    for (int64_t l = 0; l < o->lines; l++)
        for (int64_t d = 0; d < o->depth; d++) turned[d * o->lines + l] = o->original[l * o->depth + d];
    quantize_operand(ctx, &t, turned, &(struct mx8_op_options){0});
    for (int64_t l = 0; l < o->lines; l++)
        for (int64_t d = 0; d < o->depth; d++) out[l * o->depth + d] = t.rounded[d * o->lines + l];
    free(turned);
    drop_operand(&t);
    return out;
}

/* ---- products ---- */

/* out (lines of a, lines of b), in f64. */
static void multiply_exactly(
    const float *a, int64_t a_lines, const float *b, int64_t b_lines, int64_t depth, double *out) {
    double *turned = take(depth * b_lines, sizeof *turned);
#pragma omp parallel for schedule(static)
    for (int64_t d = 0; d < depth; d++)
        for (int64_t n = 0; n < b_lines; n++) turned[d * b_lines + n] = (double)b[n * depth + d];
#pragma omp parallel for schedule(static)
    for (int64_t m = 0; m < a_lines; m++) {
        double *row = out + m * b_lines;
        memset(row, 0, (size_t)b_lines * sizeof *row);
        for (int64_t d = 0; d < depth; d++) {
            double left = (double)a[m * depth + d];
            const double *right = turned + d * b_lines;
            for (int64_t n = 0; n < b_lines; n++) row[n] += left * right[n];
        }
    }
    free(turned);
}

/* A 13-bit accumulator that takes every product as it is: block exponents join those of the products, and nothing ever
 * goes to fp32. The sum is kept relative to the scales of the block at hand. */
static double multiply_unpromoted(const struct fp8_value *a, const struct fp8_value *b, int64_t depth,
    const uint8_t *a_scales, const uint8_t *b_scales) {
    struct fp8_sum sum = {0, 0};
    int32_t scale = 0;
    for (int64_t k = 0; k < depth; k += FP8_STEP) {
        int32_t next = a_scales[k / MX8_BLOCK] + b_scales[k / MX8_BLOCK];
        if (sum.mantissa) sum.exponent += scale - next;
        scale = next;
        fp8_add_products(&sum, a + k, b + k, depth - k < FP8_STEP ? depth - k : FP8_STEP);
    }
    return ldexp((double)sum.mantissa, sum.exponent - FP8_FRACTION + scale - 2 * 127);
}

static struct fp8_value *split_codes(const struct operand *o) {
    struct fp8_value *values = take(o->lines * o->depth, sizeof *values);
    for (int64_t i = 0; i < o->lines * o->depth; i++) values[i] = fp8_split(o->codes[i]);
    return values;
}

static void multiply_in_fp8(const struct operand *a, const struct operand *b, enum sums sums, double *out) {
    struct fp8_value *left = split_codes(a), *right = split_codes(b);
    const int64_t depth = a->depth, promote = sums == SUMS_PROMOTE_128 ? 128 : 256;
#pragma omp parallel for schedule(dynamic)
    for (int64_t m = 0; m < a->lines; m++) {
        for (int64_t n = 0; n < b->lines; n++) {
            const struct fp8_value *x = left + m * depth, *y = right + n * depth;
            const uint8_t *xs = a->scales + m * a->blocks, *ys = b->scales + n * b->blocks;
            out[m * b->lines + n] = sums == SUMS_UNPROMOTED ? multiply_unpromoted(x, y, depth, xs, ys)
                                                            : (double)fp8_multiply(x, y, depth, promote, xs, ys);
        }
    }
    free(left);
    free(right);
}

/* ---- figures ---- */

static int compare_doubles(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double to_decibel(double signal, double noise) {
    return 10 * log10(signal / (noise > signal * 1e-30 ? noise : signal * 1e-30));
}

/* SQNR of `lines` lines of `want` (got): element i of line l is at l * line + i * step. Lines of zeros are left out.
 * Sorted; returns how many. */
static int64_t measure_lines(
    const double *got, const double *want, int64_t lines, int64_t line, int64_t length, int64_t step, double *decibel) {
    int64_t count = 0;
    for (int64_t l = 0; l < lines; l++) {
        double signal = 0, noise = 0;
        for (int64_t i = 0; i < length; i++) {
            double w = want[l * line + i * step], error = got[l * line + i * step] - w;
            signal += w * w;
            noise += error * error;
        }
        if (signal > 0) decibel[count++] = to_decibel(signal, noise);
    }
    qsort(decibel, (size_t)count, sizeof *decibel, compare_doubles);
    return count;
}

static struct result measure(const double *got, const double *want, int64_t rows, int64_t cols) {
    struct result r = {.measured = 1};
    double decibel[LEFT_LINES + RIGHT_LINES];
    int64_t n = measure_lines(got, want, rows, cols, cols, 1, decibel);
    if (n > 0) r.worst_row = decibel[0];
    n = measure_lines(got, want, cols, 1, rows, cols, decibel);
    if (n > 0) {
        r.worst = decibel[0];
        r.median = (decibel[(n - 1) / 2] + decibel[n / 2]) / 2;
    }
    return r;
}

/* ---- the study ---- */

static struct result run_config(struct study *s, const struct config *c, int is_backward, struct operand *a,
    struct operand *b, const double *want) {
    if (c->mistake != MISTAKE_NONE && !is_backward) return (struct result){0};
    struct mx8_op_options left = {.scale_group = c->left_group, .scale_rule = c->rule};
    struct mx8_op_options right = {.scale_group = c->right_group, .tile_rows = c->right_tile, .scale_rule = c->rule};
    if (c->mistake == MISTAKE_E5M2) left.format = MX8_F8_E5M2;
    float *across[2] = {NULL, NULL};
    if (c->mistake == MISTAKE_REUSED) {
        across[0] = round_across(s->ctx, a);
        across[1] = round_across(s->ctx, b);
    }
    quantize_operand(s->ctx, a, across[0] ? across[0] : a->original, &left);
    quantize_operand(s->ctx, b, across[1] ? across[1] : b->original, &right);
    double *got = take(a->lines * b->lines, sizeof *got);
    if (c->sums == SUMS_EXACT)
        multiply_exactly(a->rounded, a->lines, b->rounded, b->lines, a->depth, got);
    else
        multiply_in_fp8(a, b, c->sums, got);
    struct result r = measure(got, want, a->lines, b->lines);
    if (c->sums != SUMS_EXACT) {
        double *exact = take(a->lines * b->lines, sizeof *exact);
        multiply_exactly(a->rounded, a->lines, b->rounded, b->lines, a->depth, exact);
        struct result alone = measure(got, exact, a->lines, b->lines);
        r.sums_median = alone.median;
        r.sums_worst = alone.worst;
        free(exact);
    }
    free(got);
    free(across[0]);
    free(across[1]);
    return r;
}

static void run_product(struct study *s, int source, int product) {
    const struct product *p = &products[product];
    const struct source *data = &s->source[source];
    struct operand a = read_operand(data, p->left, p->left_transposed, LEFT_LINES);
    struct operand b = read_operand(data, p->right, p->right_transposed, RIGHT_LINES);
    double *want = take(a.lines * b.lines, sizeof *want);
    multiply_exactly(a.original, a.lines, b.original, b.lines, a.depth, want);
    for (int c = 0; c < CONFIGS; c++)
        s->result[source][product][c] = run_config(s, &configs[c], product > 0, &a, &b, want);
    free(want);
    drop_operand(&a);
    drop_operand(&b);
}

static int64_t get_depth(const struct source *s, int product) {
    return product == 0 ? s->K : product == 1 ? s->N : s->T;
}

/* A table of the configurations `from` to `to` - 1; `sums`: of what the FP8 sums alone lose. */
static void print_table(const struct study *s, int from, int to, int sums) {
    printf("\n| data | product | depth |");
    for (int c = from; c < to; c++) printf(" %s |", configs[c].name);
    printf("\n|---|---|--:|");
    for (int c = from; c < to; c++) printf("--:|");
    for (int i = 0; i < s->n * PRODUCTS; i++) {
        const struct source *source = &s->source[i / PRODUCTS];
        printf("\n| %s | %s | %lld |", source->name, products[i % PRODUCTS].name,
            (long long)get_depth(source, i % PRODUCTS));
        for (int c = from; c < to; c++) {
            const struct result *r = &s->result[i / PRODUCTS][i % PRODUCTS][c];
            if (r->measured)
                printf(" %.2f / %.2f |", sums ? r->sums_median : r->median, sums ? r->sums_worst : r->worst);
            else
                printf(" |");
        }
    }
    printf("\n");
}

/* No minus before a zero. */
static double tidy(double loss) {
    return fabs(loss) < 0.005 ? 0 : loss;
}

/* The largest loss of the three products against 1x32, in the median / the worst / (of mistakes) the worst row. */
static void print_losses(const struct study *s, int from, int to) {
    printf("\n| data |");
    for (int c = from; c < to; c++) printf(" %s |", configs[c].name);
    printf("\n|---|");
    for (int c = from; c < to; c++) printf("--:|");
    for (int i = 0; i < s->n; i++) {
        printf("\n| %s |", s->source[i].name);
        for (int c = from; c < to; c++) {
            double median = -HUGE_VAL, worst = -HUGE_VAL, row = -HUGE_VAL;
            for (int p = 0; p < PRODUCTS; p++) {
                const struct result *base = s->result[i][p], *r = base + c;
                if (!r->measured) continue;
                median = fmax(median, base->median - r->median);
                worst = fmax(worst, base->worst - r->worst);
                row = fmax(row, base->worst_row - r->worst_row);
            }
            printf(" %.2f / %.2f", tidy(median), tidy(worst));
            printf(c < FIRST_MISTAKE ? " |" : " / %.2f |", tidy(row));
        }
    }
    printf("\n");
}

/* The most that each mistake costs against the same without it, and with which data. */
static void print_mistakes(const struct study *s) {
    static const char *const what[] = {"median column", "worst column", "worst row"};
    printf("\nMistakes, the most that each loses against 1x32 without it:\n");
    for (int c = FIRST_MISTAKE; c < CONFIGS; c++) {
        printf("- %s:", configs[c].name);
        for (int k = 0; k < 3; k++) {
            double most = -HUGE_VAL;
            int at = 0;
            for (int i = 0; i < s->n * PRODUCTS; i++) {
                const struct result *base = s->result[i / PRODUCTS][i % PRODUCTS], *r = base + c;
                double loss = k == 0   ? base->median - r->median
                              : k == 1 ? base->worst - r->worst
                                       : base->worst_row - r->worst_row;
                if (!r->measured || loss <= most) continue;
                most = loss;
                at = i;
            }
            printf("%s %s %.2f dB (%s of %s)", k ? "," : "", what[k], tidy(most), products[at % PRODUCTS].name,
                s->source[at / PRODUCTS].name);
        }
        printf("\n");
    }
}

/* Where the default loses more than is allowed, in the median or in the worst column. */
static void print_verdict(const struct study *s) {
    int within[2] = {0, 0}, all = s->n * PRODUCTS;
    printf(
        "\nThe Hopper default (tokens 1x256; weights, and X^T for dW, 32x256; FP8 sums of 256) against 1x32 in exact "
        "arithmetic:\n");
    for (int i = 0; i < all; i++) {
        const struct result *base = &s->result[i / PRODUCTS][i % PRODUCTS][CANONICAL];
        const struct result *r = &s->result[i / PRODUCTS][i % PRODUCTS][DEFAULT];
        const struct result *exact = &s->result[i / PRODUCTS][i % PRODUCTS][DEFAULT_EXACT];
        double median = base->median - r->median, worst = base->worst - r->worst;
        within[0] += median <= allowed_loss;
        within[1] += worst <= allowed_loss;
        if (median <= allowed_loss && worst <= allowed_loss) continue;
        printf(
            "- %s, %s: loses %.2f dB in the median, %.2f in the worst column (of these, geometry alone: %.2f, %.2f)\n",
            s->source[i / PRODUCTS].name, products[i % PRODUCTS].name, median, worst, base->median - exact->median,
            base->worst - exact->worst);
    }
    printf("\n%d of %d products lose at most %.1f dB in the median, %d of %d in the worst column.\n", within[0], all,
        allowed_loss, within[1], all);
}

static int write_json(const struct study *s, const char *path) {
    FILE *f = fopen(path, "w");
    if (!f) {
        perror(path);
        return 0;
    }
    const char *comma = "";
    fputs("[", f);
    for (int i = 0; i < s->n * PRODUCTS * CONFIGS; i++) {
        int source = i / CONFIGS / PRODUCTS, product = i / CONFIGS % PRODUCTS, c = i % CONFIGS;
        const struct result *r = &s->result[source][product][c];
        if (!r->measured) continue;
        fprintf(f,
            "%s\n  {\"data\": \"%s\", \"product\": \"%s\", \"depth\": %lld, \"config\": \"%s\", \"median\": %.4f, "
            "\"worst\": "
            "%.4f, \"worst_row\": %.4f",
            comma, s->source[source].name, products[product].name, (long long)get_depth(&s->source[source], product),
            configs[c].name, r->median, r->worst, r->worst_row);
        if (configs[c].sums != SUMS_EXACT)
            fprintf(f, ", \"sums_median\": %.4f, \"sums_worst\": %.4f", r->sums_median, r->sums_worst);
        fputs("}", f);
        comma = ",";
    }
    fputs("\n]\n", f);
    return fclose(f) == 0;
}

static int add_folder(struct study *s, const char *folder) {
    char **files;
    int64_t count;
    require(mx8i_list_files(folder, ".safetensors", &files, &count), "--tensors");
    if (!count)
        fprintf(stderr, "sqnr: %s holds no .safetensors file, expected what debug.dump_tensors wrote\n", folder);
    int opened = count > 0;
    for (int64_t i = 0; i < count && opened && s->n < MAX_SOURCES; i++)
        opened = open_source(files[i], &s->source[s->n++]);
    mx8i_release_list(files, count);
    return opened;
}

static int keep_source(const struct study *s, const struct source *source) {
    return !s->only || strstr(source->name, s->only);
}

int main(int argc, char **argv) {
    static struct study s = {.size = 4096};
    const char *json = NULL;
    for (int i = 1; i + 1 < argc; i++) {
        if (!strcmp(argv[i], "--size")) s.size = strtoll(argv[i + 1], NULL, 10);
        if (!strcmp(argv[i], "--only")) s.only = argv[i + 1];
    }
    for (int i = 0; i < FORMULAS; i++) {
        s.source[s.n] = formulas[i];
        s.source[s.n].T = s.source[s.n].N = s.source[s.n].K = s.size;
        s.n += keep_source(&s, &formulas[i]);
    }
    for (int i = 1; i < argc; i += 2) {
        int known = !strcmp(argv[i], "--size") || !strcmp(argv[i], "--only");
        if (!strcmp(argv[i], "--json") && i + 1 < argc) known = (json = argv[i + 1]) != NULL;
        if (!strcmp(argv[i], "--tensors") && i + 1 < argc && !add_folder(&s, argv[i + 1])) return 1;
        known |= !strcmp(argv[i], "--tensors");
        if (known && i + 1 < argc && s.size >= 32 && s.size <= 1 << 20) continue;
        fprintf(stderr, "usage: bench_sqnr [--size 32..1048576] [--tensors FOLDER]... [--only WORD] [--json FILE]\n");
        return 2;
    }
    if (!s.n) {
        fprintf(stderr, "sqnr: --only %s leaves nothing\n", s.only);
        return 2;
    }
    require(mx8_create_context(&(struct mx8_context_options){0}, &s.ctx), "context");
    s.result = take(s.n, sizeof *s.result);
    for (int i = 0; i < s.n * PRODUCTS; i++) run_product(&s, i / PRODUCTS, i % PRODUCTS);

    printf(
        "SQNR in dB, median over output columns / worst column; %d x %d outputs, depth is the contraction's length.\n",
        LEFT_LINES, RIGHT_LINES);
    printf("Tokens and gradients, then weights (for dW: X^T).\n");
    print_table(&s, 0, FIRST_FP8, 0);
    print_table(&s, FIRST_FP8, CONFIGS, 0);
    printf("\nThe FP8 sums alone, against the exact product of the same codes:\n");
    print_table(&s, FIRST_FP8, FIRST_MISTAKE, 1);
    printf("\nLosses against 1x32, the largest of the three products: median / worst column.\n");
    print_losses(&s, 1, FIRST_MISTAKE);
    printf("\nLosses of mistakes: median / worst column / worst row.\n");
    print_losses(&s, FIRST_MISTAKE, CONFIGS);
    print_mistakes(&s);
    print_verdict(&s);
    int written = !json || write_json(&s, json);
    for (int i = 0; i < s.n; i++) close_source(&s.source[i]);
    free(s.result);
    mx8_destroy_context(s.ctx);
    return written ? 0 : 1;
}
