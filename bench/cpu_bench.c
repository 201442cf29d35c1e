/* Measures the CPU kernels beside what bounds them, in one process: bench/run_cpu builds and runs it.
 *
 *   bench_cpu [--quick] [--threads N] [--only WORD] [--json FILE]      WORD: in a part, a name or a shape
 *
 * Nothing but ratios is reported, and each is taken inside a pair: ours and what it is compared with run in turn, so
 * that a neighbour who takes the machine's bandwidth or clock takes it from both. The figure is the median of the
 * pairs' ratios, with quartiles. One thread is timed by its own CPU clock, several by the wall.
 *
 *   quantizers  against memcpy of half the bytes they move, which moves the same; sources and outputs are taken in turn
 *               from sets larger than the caches
 *   products    bf16 against OpenBLAS in fp32 (its SGEMM, opened at run time; OPENBLAS_CORETYPE should name the true
 *               core), MXFP8 with weights quantized before (once per optimizer step) against our bf16
 *   operators   forward and backward, against memcpy or, where multiplications count, against fused multiply-adds on
 *               registers in as many threads */
#include <dlfcn.h>
#include <jansson.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "base/cpu.h"
#include "base/file.h"
#include "base/memory.h"
#include "cli/bench.h"

#define MAX_PAIRS 64
#define MAX_SETS  48
#define COLD      ((size_t)96 << 20) /* bytes that a set of problems has to exceed */

static int quick, threads = 1;
static const char *only = "";
static struct mx8_context *context;
static json_t *rows;

static void require(enum mx8_status status, const char *what) {
    if (status == MX8_OK) return;
    fprintf(stderr, "bench_cpu: %s: %s\n", what, mx8_get_last_error());
    exit(1);
}

/* ---- pairs ---- */

static double now(void) {
    struct timespec t;
    clock_gettime(threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

struct side {
    void (*run)(void *data, int turn);
    void *data;
};

struct ratio {
    double median, low, high; /* quartiles */
};

static double time_side(const struct side *s, int turn) {
    double start = now();
    s->run(s->data, turn);
    return now() - start;
}

static int compare_numbers(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* How fast `ours` is in units of `other`, whose work counts `worth` times. */
static struct ratio compare_sides(const struct side *ours, const struct side *other, double worth) {
    double ratio[MAX_PAIRS], spent = 0, most = quick ? 0.4 : 2.5;
    int n = 0;
    time_side(ours, 0);
    time_side(other, 0);
    for (; n < MAX_PAIRS && (n < (quick ? 3 : 7) || spent < most); n++) {
        double a = n % 2 ? 0 : time_side(ours, n), b = time_side(other, n);
        if (n % 2) a = time_side(ours, n);
        ratio[n] = a > 0 ? worth * b / a : 0;
        spent += a + b;
    }
    qsort(ratio, (size_t)n, sizeof *ratio, compare_numbers);
    return (struct ratio){(ratio[(n - 1) / 2] + ratio[n / 2]) / 2, ratio[n / 4], ratio[n - 1 - n / 4]};
}

static void report(
    const char *part, const char *name, const char *shape, const char *against, struct ratio r, double wanted) {
    printf("%-10s  %-24s %-22s %-22s %5.2f  (%.2f to %.2f)  %.2f%s\n", part, name, shape, against, r.median, r.low,
        r.high, wanted, r.median < wanted ? "  below" : "");
    fflush(stdout);
    json_array_append_new(rows,
        json_pack("{s:s, s:s, s:s, s:s, s:i, s:f, s:f, s:f, s:f}", "part", part, "name", name, "shape", shape,
            "against", against, "threads", threads, "ratio", r.median, "low", r.low, "high", r.high, "wanted", wanted));
}

static void report_missing(const char *part, const char *name, const char *why) {
    printf("%-10s  %-24s not measured: %s\n", part, name, why);
    json_array_append_new(
        rows, json_pack("{s:s, s:s, s:i, s:s}", "part", part, "name", name, "threads", threads, "missing", why));
}

static int is_wanted(const char *part, const char *name, const char *shape) {
    return strstr(part, only) || strstr(name, only) || strstr(shape, only);
}

/* ---- ceilings ---- */

struct copy {
    char *to, *from;
    size_t bytes, room; /* room: what the turns move through */
};

static void run_copy(void *data, int turn) {
    struct copy *c = data;
    size_t places = c->room / c->bytes, at = places ? (size_t)turn % places * c->bytes : 0;
#pragma omp parallel num_threads(threads)
    {
        size_t n = (size_t)omp_get_num_threads(), i = (size_t)omp_get_thread_num();
        size_t first = c->bytes * i / n & ~(size_t)63,
               last = i + 1 == n ? c->bytes : c->bytes * (i + 1) / n & ~(size_t)63;
        memcpy(c->to + at + first, c->from + at + first, last - first);
    }
}

static struct copy make_copy(size_t bytes) {
    struct copy c = {.bytes = bytes, .room = bytes > COLD / 2 ? bytes : COLD / 2};
    c.to = mx8i_allocate_aligned(c.room, 4096, "copy");
    c.from = mx8i_allocate_aligned(c.room, 4096, "copy");
    if (!c.to || !c.from) require(MX8_OUT_OF_MEMORY, "copy");
    memset(c.to, 1, c.room);
    memset(c.from, 2, c.room);
    return c;
}

static void free_copy(struct copy *c) {
    mx8i_release(c->to);
    mx8i_release(c->from);
}

/* Multiply-adds on registers, eight lanes, ten independent sums: what two pipes of latency four or five need. */
typedef float lanes __attribute__((vector_size(32)));

__attribute__((target("avx2,fma"), optimize("fp-contract=fast"), noinline)) static float spin_fma(long steps) {
    lanes s0 = {0}, s1 = s0, s2 = s0, s3 = s0, s4 = s0, s5 = s0, s6 = s0, s7 = s0, s8 = s0, s9 = s0;
    lanes a = s0 + 0.999f, b = s0 + 0.001f;
    for (long i = 0; i < steps; i++) {
        s0 = s0 * a + b, s1 = s1 * a + b, s2 = s2 * a + b, s3 = s3 * a + b, s4 = s4 * a + b;
        s5 = s5 * a + b, s6 = s6 * a + b, s7 = s7 * a + b, s8 = s8 * a + b, s9 = s9 * a + b;
        __asm__ volatile("" : "+x"(s0), "+x"(s1), "+x"(s2), "+x"(s3), "+x"(s4));
    }
    lanes sum = s0 + s1 + s2 + s3 + s4 + s5 + s6 + s7 + s8 + s9;
    return sum[0];
}

static void run_fma(void *data, int turn) {
    long steps = *(long *)data;
    float sum = 0;
    (void)turn;
#pragma omp parallel num_threads(threads) reduction(+ : sum)
    sum += spin_fma(steps);
    if (sum < 0) printf("%g", (double)sum); /* keeps the loop */
}

static double count_fma_flops(long steps) {
    return (double)steps * 10 * 8 * 2 * threads;
}

/* ---- problems ---- */

/* As many of one problem as it takes to be out of the caches when its turn comes again. */
struct set {
    struct mx8_bench bench[MAX_SETS];
    int n;
};

static void run_set(void *data, int turn) {
    struct set *s = data;
    require(mx8i_run_pass(&s->bench[turn % s->n]), s->bench[0].problem->name);
}

static void start_bench(struct mx8_bench *b, const char *name, const char *shape, int32_t dtype, int mxfp8, int back) {
    *b = (struct mx8_bench){.seed = 1, .ctx = context, .dtype = dtype, .mxfp8 = mxfp8, .backward = back};
    b->problem = mx8i_find_problem(name);
    if (!b->problem) require(MX8_INVALID_ARGUMENT, name);
    b->options = (struct mx8_op_options){.scale_group = 32, .weight_scale_group = 32};
    require(mx8i_parse_shape(b, shape), name);
    require(mx8i_prepare_bench(b), name);
}

static void make_set(struct set *s, const char *name, const char *shape, int32_t dtype, int back) {
    size_t bytes = 0;
    for (s->n = 0; s->n < MAX_SETS && (s->n == 0 || bytes < COLD); s->n++) {
        start_bench(&s->bench[s->n], name, shape, dtype, 0, back);
        bytes += (size_t)mx8i_count_bench_bytes(&s->bench[s->n]);
    }
}

static void free_set(struct set *s) {
    for (int i = 0; i < s->n; i++) mx8i_release_bench(&s->bench[i]);
}

/* Ours against a copy that moves the same bytes. */
static struct ratio compare_with_copy(struct set *s) {
    double bytes = mx8i_count_bench_bytes(&s->bench[0]);
    struct copy c = make_copy((size_t)(bytes / 2));
    struct ratio r = compare_sides(&(struct side){run_set, s}, &(struct side){run_copy, &c}, 1);
    free_copy(&c);
    return r;
}

static struct ratio compare_with_fma(struct set *s) {
    double flops = s->bench[0].problem->count_flops(&s->bench[0]);
    long steps = quick ? 200000 : 1000000;
    return compare_sides(&(struct side){run_set, s}, &(struct side){run_fma, &steps}, flops / count_fma_flops(steps));
}

/* ---- parts ---- */

static struct set set; /* large */

static void measure_quantizers(void) {
    static const char *const names[] = {"quantize_rows", "quantize_cols", "quantize_both"};
    for (int n = 1024; n <= (quick ? 1024 : 4096); n *= 2)
        for (int i = 0; i < 3; i++)
            for (int f32 = 0; f32 < 2; f32++) {
                char shape[32], name[32];
                snprintf(shape, sizeof shape, "%dx%d", n, n);
                if (!is_wanted("quantizer", names[i], shape)) continue;
                snprintf(name, sizeof name, "%s %s", names[i], f32 ? "f32" : "bf16");
                make_set(&set, names[i], shape, f32 ? MX8_F32 : MX8_BF16, 0);
                report("quantizer", name, shape, "memcpy, same bytes", compare_with_copy(&set), 0.7);
                free_set(&set);
            }
}

static void measure_operators(void) {
    const struct mx8_problem *lists[] = {mx8i_layer_problems, mx8i_memory_problems};
    for (int l = 0; l < 2; l++)
        for (const struct mx8_problem *p = lists[l]; p->name; p++)
            for (int back = 0; back <= p->has_backward; back++) {
                char name[48];
                if (strcmp(p->name, "memcpy") == 0 || !is_wanted("operator", p->name, p->example)) continue;
                snprintf(name, sizeof name, "%s%s", p->name, back ? " backward" : "");
                make_set(&set, p->name, p->example, MX8_BF16, back);
                int by_flops = p->count_flops != NULL;
                report("operator", name, p->example, by_flops ? "multiply-adds" : "memcpy, same bytes",
                    by_flops ? compare_with_fma(&set) : compare_with_copy(&set), 0.6);
                free_set(&set);
            }
}

/* ---- products ---- */

typedef void sgemm(int order, int ta, int tb, int M, int N, int K, float alpha, const float *A, int lda, const float *B,
    int ldb, float beta, float *C, int ldc);

struct blas {
    sgemm *multiply;
    const char *core;
};

/* Casts of dlsym go through memory: ISO C has no conversion from a data pointer. */
static void *find(void *library, const char *name, void *to) {
    void *symbol = dlsym(library, name);
    memcpy(to, &symbol, sizeof symbol);
    return symbol;
}

static int open_blas(struct blas *b) {
    void (*set_threads)(int);
    char *(*get_core)(void);
    void *library = dlopen("libopenblas.so.0", RTLD_NOW | RTLD_LOCAL);
    if (!library || !find(library, "cblas_sgemm", &b->multiply)) return 0;
    if (find(library, "openblas_set_num_threads", &set_threads)) set_threads(threads);
    b->core = find(library, "openblas_get_corename", &get_core) ? get_core() : "?";
    return 1;
}

struct sgemm_job {
    const struct blas *blas;
    float *a, *b, *c;
    int M, N, K;
    const int32_t *ends; /* groups of rows, or NULL */
    int groups;
};

static void run_sgemm(void *data, int turn) {
    const struct sgemm_job *j = data;
    int start = 0;
    (void)turn;
    for (int g = 0; g < j->groups; g++) {
        int end = j->ends ? j->ends[g] : j->M;
        j->blas->multiply(101, 111, 112, end - start, j->N, j->K, 1, j->a + (size_t)start * (size_t)j->K, j->K,
            j->b + (size_t)g * (size_t)j->N * (size_t)j->K, j->K, 0, j->c + (size_t)start * (size_t)j->N, j->N);
        start = end;
    }
}

static float *make_floats(size_t n) {
    float *f = mx8i_allocate_aligned(n * sizeof *f, 4096, "operand");
    if (!f) require(MX8_OUT_OF_MEMORY, "operand");
    for (size_t i = 0; i < n; i++) f[i] = (float)((i * 2654435761u >> 8) % 1024) / 1024 - 0.5f;
    return f;
}

static struct ratio compare_with_blas(struct set *ours, const struct blas *blas) {
    struct mx8_bench *b = &ours->bench[0];
    struct sgemm_job j = {blas, NULL, NULL, NULL, (int)b->dim[0], (int)b->dim[1], (int)b->dim[2], NULL, 1};
    if (strcmp(b->problem->name, "grouped_linear") == 0) {
        j.groups = (int)b->dim[3];
        j.ends = b->forward.in[2].data;
    }
    j.a = make_floats((size_t)j.M * (size_t)j.K);
    j.b = make_floats((size_t)j.groups * (size_t)j.N * (size_t)j.K);
    j.c = make_floats((size_t)j.M * (size_t)j.N);
    struct ratio r = compare_sides(&(struct side){run_set, ours}, &(struct side){run_sgemm, &j}, 1);
    mx8i_release(j.a);
    mx8i_release(j.b);
    mx8i_release(j.c);
    return r;
}

/* The weight's codes, made before: an optimizer step quantizes once and multiplies often. */
static void quantize_weights(struct mx8_bench *b) {
    int grouped = strcmp(b->problem->name, "grouped_linear") == 0, at = grouped ? 6 : 5;
    struct mx8_tensor *in = b->call.in, w = in[1], codes, scales;
    int64_t shape[3] = {w.shape[0], w.shape[1], w.shape[w.ndim - 1]}, lines = mx8_count_elements(&w) / shape[2];
    int64_t flat[] = {lines, shape[2]}, flat_scales[] = {lines, shape[2] / MX8_BLOCK};
    w = mx8_make_tensor(w.data, w.dtype, 2, flat);
    require(mx8i_make_input(b, &codes, MX8_F8_E4M3, 0, 2, flat), "weights");
    require(mx8i_make_input(b, &scales, MX8_F8_E8M0, 0, 2, flat_scales), "weights");
    require(mx8_quantize_rows(context, &codes, &scales, &w, &b->options), "weights");
    in[at] = mx8_make_tensor(codes.data, MX8_F8_E4M3, in[1].ndim, in[1].shape);
    shape[in[1].ndim - 1] = flat_scales[1];
    in[at + 1] = mx8_make_tensor(scales.data, MX8_F8_E8M0, in[1].ndim, shape);
    b->call.n_in = grouped ? 8 : 7;
}

static void measure_products(void) {
    static const char *const shapes[][2] = {{"linear", "1024x1024x1024"}, {"grouped_linear", "4096x1024x512xG8"},
        {"linear", "2048x2048x2048"}, {"linear", "4096x4096x4096"}};
    struct blas blas;
    int has_blas = open_blas(&blas);
    char against[64];
    snprintf(against, sizeof against, "OpenBLAS f32 (%s)", has_blas ? blas.core : "");
    if (!has_blas)
        report_missing("product", "OpenBLAS", "libopenblas.so.0 is not there (Debian: libopenblas0-pthread)");
    for (int i = 0; i < (quick ? 2 : 4); i++) {
        const char *name = shapes[i][0], *shape = shapes[i][1];
        struct set mxfp8 = {.n = 1};
        char label[48];
        if (!is_wanted("product", name, shape)) continue;
        set.n = 1;
        start_bench(&set.bench[0], name, shape, MX8_BF16, 0, 0);
        start_bench(&mxfp8.bench[0], name, shape, MX8_BF16, 1, 0);
        quantize_weights(&mxfp8.bench[0]);
        snprintf(label, sizeof label, "%s bf16", name);
        if (has_blas) report("product", label, shape, against, compare_with_blas(&set, &blas), 0.9);
        report("product", label, shape, "multiply-adds", compare_with_fma(&set), 0.6);
        snprintf(label, sizeof label, "%s mxfp8", name);
        report("product", label, shape, "our bf16",
            compare_sides(&(struct side){run_set, &mxfp8}, &(struct side){run_set, &set}, 1), 0.9);
        free_set(&mxfp8);
        free_set(&set);
    }
}

/* ---- the program ---- */

static const char *take_value(char **argv, int *i) {
    if (argv[*i + 1]) return argv[++*i];
    fprintf(stderr, "bench_cpu: %s needs a value\n", argv[*i]);
    exit(2);
}

int main(int argc, char **argv) {
    const char *json = NULL;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--quick") == 0)
            quick = 1;
        else if (strcmp(argv[i], "--threads") == 0)
            threads = atoi(take_value(argv, &i));
        else if (strcmp(argv[i], "--only") == 0)
            only = take_value(argv, &i);
        else if (strcmp(argv[i], "--json") == 0)
            json = take_value(argv, &i);
        else
            return fprintf(stderr, "bench_cpu: unknown argument %s\n", argv[i]), 2;
    }
    if (threads < 1 || threads > 256) return fprintf(stderr, "bench_cpu: --threads must be 1 to 256\n"), 2;
    struct mx8_context_options options = {.threads = threads};
    struct mx8_cpu cpu = mx8i_get_cpu();
    require(mx8_create_context(&options, &context), "context");
    rows = json_array();
    printf("%s, %s, %d thread%s; speed of ours in units of what it is compared with, quartiles, what is wanted\n",
        cpu.brand, mx8_get_backend_name(context), threads, threads > 1 ? "s" : "");
    measure_quantizers();
    measure_products();
    measure_operators();
    json_t *root = json_pack("{s:s, s:s, s:i, s:b, s:o}", "device", cpu.brand, "backend", mx8_get_backend_name(context),
        "threads", threads, "quick", quick, "rows", rows);
    if (json && json_dump_file(root, json, JSON_INDENT(1)) != 0)
        return fprintf(stderr, "bench_cpu: %s cannot be written\n", json), 1;
    json_decref(root);
    mx8_destroy_context(context);
    return 0;
}
