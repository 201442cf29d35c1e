/* Checks attention through cuDNN against the own CUDA kernels, then times both.
 *
 *   cc -std=gnu11 -O2 -Iinclude -Isrc bench/cuda_attention.c -ldl -lm -o cuda_attention
 *   ./cuda_attention [--library build/libmx8_cuda.so] [--sustain SECONDS] [--check | --time] [--shape B,S,H,KV,d]
 *
 * The backend is opened three times: own kernels, cuDNN in fixed order (the default), cuDNN with dq added up in any
 * order. Errors are root mean squares over that of the own kernels' result, both of which round to bf16. A second run
 * must give the same bits, "any order" excepted. TFLOP/s counts 4 d operations a visible pair forward and 10 d
 * backward; "burst" is the median of 9 batches, "sustained" without a pause for --sustain seconds (2). Exit 1 when a
 * check fails, or when cuDNN is there and refuses a shape. */
#include <math.h>

static const char program[] = "cuda_attention";
#include "cuda_open.h"

enum { OWN, FIXED, ANY, MODES, O = 0, LSE, DQ, DK, DV, RESULTS, BATCHES = 9 };
static const char *const mode_names[] = {"own", "cuDNN", "cuDNN, any order"};
static const char *const result_names[] = {"o", "lse", "dq", "dk", "dv"};

struct shape {
    int64_t B, S, H, KV, d;
};
static const struct shape checked[] = {
    {1, 64, 2, 2, 64},
    {2, 256, 4, 2, 64},
    {3, 384, 10, 2, 128},
    {2, 1000, 5, 1, 128},
    {1, 200, 4, 4, 96},
    {1, 512, 4, 2, 256},
    {2, 2048, 40, 8, 128},
};
static const struct shape timed[] = {{8, 8192, 40, 8, 128}, {8, 2048, 40, 8, 128}, {8, 4096, 32, 32, 64}};

static double sustain_seconds = 2;
static int failures;

/* ---- a job and its memory ---- */

struct run {
    struct mx8_attention_job job;
    void *memory[RESULTS + 3]; /* q k v, dout, results, workspace: what is released */
    int n_memory;
    size_t bytes[RESULTS], workspace[2];
    void *at[RESULTS];
};

static uint16_t draw_bf16(uint64_t *state) {
    float sum = 0;
    union {
        float f;
        uint32_t u;
    } x;
    for (int i = 0; i < 4; i++) {
        *state = *state * 6364136223846793005u + 1442695040888963407u;
        sum += (float)(*state >> 40) / 16777216.0f - 0.5f;
    }
    x.f = sum * 1.7320508f;
    return (uint16_t)((x.u + 0x7FFF + (x.u >> 16 & 1)) >> 16);
}

static void *keep(struct run *r, size_t bytes) {
    return r->memory[r->n_memory++] = reserve(bytes);
}

/* n normal numbers; a pattern repeats after 2^22. */
static void *make_numbers(struct run *r, size_t n, uint64_t seed) {
    static uint16_t host[1 << 22];
    const size_t pattern = sizeof host / sizeof *host;
    uint16_t *device = keep(r, n * sizeof *host);
    for (size_t i = 0; i < pattern && i < n; i++) host[i] = draw_bf16(&seed);
    for (size_t done = 0; done < n; done += pattern)
        require(exec.k->upload(&exec, device + done, host, (n - done < pattern ? n - done : pattern) * 2), "upload");
    return device;
}

static struct run start_run(const struct shape *s) {
    struct run r = {0};
    const int64_t T = s->B * s->S, q = s->H * s->d, kv = s->KV * s->d, ls = q + 2 * kv;
    char *qkv = make_numbers(&r, (size_t)(T * ls), 1), *dout = make_numbers(&r, (size_t)(T * q), 2);
    char *o = keep(&r, (size_t)(T * q) * 2), *lse = keep(&r, (size_t)(T * s->H) * 4);
    char *dq = keep(&r, (size_t)(T * q) * 2), *dk = keep(&r, (size_t)(T * kv) * 2),
         *dv = keep(&r, (size_t)(T * kv) * 2);
    r.job = (struct mx8_attention_job){.T = T,
        .S = s->S,
        .H = s->H,
        .KV = s->KV,
        .d = s->d,
        .dtype = MX8_BF16,
        .scale = 1.0f / sqrtf((float)s->d),
        .q = qkv,
        .k = qkv + q * 2,
        .v = qkv + (q + kv) * 2,
        .q_ls = ls,
        .k_ls = ls,
        .v_ls = ls,
        .o_ls = q,
        .o = o,
        .lse = (float *)lse,
        .dout = dout,
        .dq = dq,
        .dk = dk,
        .dv = dv,
        .do_ls = q,
        .dq_ls = q,
        .dk_ls = kv,
        .dv_ls = kv};
    const size_t bytes[RESULTS] = {
        (size_t)(T * q) * 2, (size_t)(T * s->H) * 4, (size_t)(T * q) * 2, (size_t)(T * kv) * 2, (size_t)(T * kv) * 2};
    memcpy(r.bytes, bytes, sizeof bytes);
    memcpy(r.at, (void *[RESULTS]){o, lse, dq, dk, dv}, sizeof r.at);
    for (int backward = 0; backward < 2; backward++)
        r.workspace[backward] = exec.k->attention_workspace(&r.job, backward, 1);
    r.job.workspace = keep(&r, r.workspace[0] > r.workspace[1] ? r.workspace[0] : r.workspace[1]);
    return r;
}

static void end_run(struct run *r) {
    while (r->n_memory > 0) exec.k->release(&exec, r->memory[--r->n_memory]);
}

/* Both passes on poisoned memory; results to the host. */
static void compute(struct run *r, void *(*results)[RESULTS]) {
    for (int i = 0; i < RESULTS; i++) require(exec.k->fill(&exec, r->at[i], 0xFF, r->bytes[i]), "fill");
    for (int backward = 0; backward < 2; backward++) {
        require(exec.k->fill(&exec, r->job.workspace, 0xFF, r->workspace[backward]), "fill");
        require(backward ? exec.k->attention_backward(&exec, &r->job) : exec.k->attention(&exec, &r->job), "attention");
    }
    for (int i = 0; i < RESULTS; i++) {
        (*results)[i] = malloc(r->bytes[i]);
        if (!(*results)[i]) exit(1);
        require(exec.k->download(&exec, (*results)[i], r->at[i], r->bytes[i]), "download");
    }
}

/* ---- checks ---- */

static double value_at(int which, const void *data, size_t i) {
    union {
        float f;
        uint32_t u;
    } x;
    if (which == LSE) return (double)((const float *)data)[i];
    x.u = (uint32_t)((const uint16_t *)data)[i] << 16;
    return (double)x.f;
}

static double find_error(int which, const void *got, const void *want, size_t bytes) {
    double error = 0, size = 0;
    for (size_t i = 0; i < bytes / (which == LSE ? 4 : 2); i++) {
        const double a = value_at(which, got, i), b = value_at(which, want, i);
        error += (a - b) * (a - b);
        size += b * b;
    }
    return sqrt(error / (size > 0 ? size : 1));
}

static void *wanted[sizeof checked / sizeof *checked][RESULTS];

static void check_shape(int mode, int number, const struct shape *s) {
    struct run r = start_run(s);
    void *results[RESULTS], *again[RESULTS];
    int same = 1;
    compute(&r, &results);
    compute(&r, &again);
    for (int i = 0; i < RESULTS; i++) same &= memcmp(results[i], again[i], r.bytes[i]) == 0;
    printf("%-17s B %lld S %-5lld H %-2lld KV %lld d %-3lld", mode_names[mode], (long long)s->B, (long long)s->S,
        (long long)s->H, (long long)s->KV, (long long)s->d);
    for (int i = 0; i < RESULTS; i++) {
        const double error = mode == OWN ? 0 : find_error(i, results[i], wanted[number][i], r.bytes[i]);
        const int wrong = !(error < (i == LSE ? 1e-4 : 0.01));
        failures += wrong;
        printf("  %s %.1e%s", result_names[i], error, wrong ? " WRONG" : "");
        if (mode == OWN)
            wanted[number][i] = results[i];
        else
            free(results[i]);
        free(again[i]);
    }
    failures += !same && mode != ANY;
    printf("  %s  workspace %.1f, %.1f MiB\n",
        same          ? "same bits twice"
        : mode == ANY ? "bits vary"
                      : "BITS VARY",
        (double)r.workspace[0] / 1048576.0, (double)r.workspace[1] / 1048576.0);
    fflush(stdout);
    end_run(&r);
}

/* ---- times ---- */

static void run_pass(struct run *r, int pass) {
    if (pass != 1) require(exec.k->attention(&exec, &r->job), "attention");
    if (pass != 0) require(exec.k->attention_backward(&exec, &r->job), "attention_backward");
}

static double time_batch(struct run *r, int pass, int launches) {
    double start = now();
    for (int i = 0; i < launches; i++) run_pass(r, pass);
    require(exec.k->synchronize(&exec), "synchronize");
    return (now() - start) / launches;
}

static int compare_doubles(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void time_shape(int mode, const struct shape *s) {
    static const char *const passes[] = {"forward", "backward", "forward+backward"};
    struct run r = start_run(s);
    const double pairs = (double)s->B * (double)s->H * (double)s->S * (double)(s->S + 1) / 2;
    double start = now();
    run_pass(&r, 2);
    require(exec.k->synchronize(&exec), "synchronize");
    printf("%-17s %lldx%lld, %lld/%lld heads of %lld: first call %.2f s, workspace %.0f and %.0f MiB\n",
        mode_names[mode], (long long)s->B, (long long)s->S, (long long)s->H, (long long)s->KV, (long long)s->d,
        now() - start, (double)r.workspace[0] / 1048576.0, (double)r.workspace[1] / 1048576.0);
    for (int pass = 0; pass < 3; pass++) {
        const double work = pairs * (double)s->d * (pass == 0 ? 4 : pass == 1 ? 10 : 14);
        double seconds[BATCHES], one = time_batch(&r, pass, 1), total = 0;
        const int launches = one < 5e-3 ? (int)(5e-3 / one) : 1;
        for (int i = 0; i < BATCHES; i++) seconds[i] = time_batch(&r, pass, launches);
        qsort(seconds, BATCHES, sizeof *seconds, compare_doubles);
        one = seconds[BATCHES / 2];
        int count = 0;
        for (start = now(); (total = now() - start) < sustain_seconds; count += (int)(0.2 / one) + 1)
            time_batch(&r, pass, (int)(0.2 / one) + 1);
        const double sustained = count ? total / count : one;
        printf("  %-17s %8.3f ms burst %6.0f TFLOP/s   sustained %8.3f ms %6.0f TFLOP/s\n", passes[pass], one * 1e3,
            work / one / 1e12, sustained * 1e3, work / sustained / 1e12);
        fflush(stdout);
    }
    end_run(&r);
}

/* ---- */

static void use_mode(const char *path, int mode, void (**close)(void *)) {
    static const char *const choices[] = {"own", "cudnn", "cudnn"};
    setenv("MX8_ATTENTION", choices[mode], 1);
    setenv("MX8_ATTENTION_ORDER", mode == ANY ? "any" : "fixed", 1);
    open_library(path, close);
}

int main(int argc, char **argv) {
    const char *library = "libmx8_cuda.so";
    int check = 1, measure = 1;
    struct shape one = {0};
    for (int i = 1; i < argc; i++) {
        long long n[5];
        if (strcmp(argv[i], "--check") == 0)
            measure = 0;
        else if (strcmp(argv[i], "--time") == 0)
            check = 0;
        else if (strcmp(argv[i], "--library") == 0 && i + 1 < argc)
            library = argv[++i];
        else if (strcmp(argv[i], "--sustain") == 0 && i + 1 < argc)
            sustain_seconds = atof(argv[++i]);
        else if (strcmp(argv[i], "--shape") == 0 && i + 1 < argc &&
                 sscanf(argv[i + 1], "%lld,%lld,%lld,%lld,%lld", &n[0], &n[1], &n[2], &n[3], &n[4]) == 5) {
            one = (struct shape){n[0], n[1], n[2], n[3], n[4]};
            i++;
        } else {
            fprintf(stderr, "cuda_attention: unknown or incomplete option %s\n", argv[i]);
            return 2;
        }
    }
    for (int mode = OWN; mode < MODES; mode++) {
        void (*close)(void *);
        use_mode(library, mode, &close);
        for (int i = 0; check && i < (int)(sizeof checked / sizeof *checked); i++) check_shape(mode, i, &checked[i]);
        if (measure && one.B) time_shape(mode, &one);
        for (int i = 0; measure && !one.B && i < (int)(sizeof timed / sizeof *timed); i++) time_shape(mode, &timed[i]);
        exec.k->release(&exec, exec.scratch);
        close(exec.backend);
    }
    printf("%d wrong\n", failures);
    return failures != 0;
}
