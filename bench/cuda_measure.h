/* How cuda_kernels times: one call of the kernel table, in bursts and without a pause, as a line and as JSON. What is
 * in this file is the program's own. */
#ifndef MX8_BENCH_CUDA_MEASURE_H
#define MX8_BENCH_CUDA_MEASURE_H

#include <math.h>
#include <unistd.h>
#include "power.h"

static const char program[] = "cuda_kernels";
#include "cuda_open.h"

#define BATCHES 15

static FILE *json;
static int json_lines;
static double sustain_seconds = 2;
static const char *only;
static struct power_meter meter;

/* One kernel call; exactly one of the jobs is meant. */
struct task {
    const struct mx8_quant_job *quant;
    const struct mx8_gemm_job *gemm;
    const struct mx8_quant_source *source;  /* with quant: what it reads */
    const struct mx8_swiglu_job *gradients; /* with quant, two of them: what they are made of */
    int stored;                             /* with gradients: by the three calls */
    const struct mx8_adamw_job *update;     /* alone, or with quant: and codes of what it makes */
    uint16_t *rounded;                      /* with update and quant: by three calls, in this memory */
};

static enum mx8_status run_stored(const struct task *t) {
    enum mx8_status status = exec.k->swiglu_backward(&exec, t->gradients);
    for (int i = 0; i < 2 && status == MX8_OK; i++) status = exec.k->quantize(&exec, &t->quant[i]);
    return status;
}

static enum mx8_status run_update(const struct task *t) {
    if (t->quant && !t->rounded) return exec.k->adamw_quantize(&exec, t->update, t->quant);
    enum mx8_status status = exec.k->adamw(&exec, t->update);
    if (!t->quant || status != MX8_OK) return status;
    status = exec.k->cast(&exec, t->rounded, MX8_BF16, t->update->master, MX8_F32, t->update->n);
    return status == MX8_OK ? exec.k->quantize(&exec, t->quant) : status;
}

static void run_task(const struct task *t) {
    require(t->update      ? run_update(t)
            : t->stored    ? run_stored(t)
            : t->gradients ? exec.k->quantize_swiglu_backward(&exec, t->gradients, &t->quant[0], &t->quant[1])
            : t->source    ? exec.k->quantize_from(&exec, t->source, t->quant)
            : t->quant     ? exec.k->quantize(&exec, t->quant)
                           : exec.k->gemm(&exec, t->gemm),
        "a kernel");
}

static double time_batch(const struct task *t, int launches) {
    double start = now();
    for (int i = 0; i < launches; i++) run_task(t);
    require(exec.k->synchronize(&exec), "synchronize");
    return (now() - start) / launches;
}

static int compare_doubles(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double time_burst(const struct task *t) {
    double seconds[BATCHES], one = time_batch(t, 3);
    int launches = one < 2.5e-3 ? (int)(5e-3 / one) : 2;
    if (launches > 2000) launches = 2000;
    usleep(100000); /* let the clock recover */
    time_batch(t, launches);
    for (int i = 0; i < BATCHES; i++) seconds[i] = time_batch(t, launches);
    qsort(seconds, BATCHES, sizeof *seconds, compare_doubles);
    return seconds[BATCHES / 2];
}

/* What one call takes without a pause, and what the card draws meanwhile: the last reading, taken while launches wait.
 */
struct sustained {
    double seconds, watts, mhz;
};

static struct sustained time_sustained(const struct task *t, double one) {
    int launches = (int)(0.1 / one) + 1, total = 0;
    double start = now(), last;
    struct sustained s;
    do {
        for (int i = 0; i < launches; i++) run_task(t);
        read_power_meter(&meter, &s.watts, &s.mhz);
        require(exec.k->synchronize(&exec), "synchronize");
        total += launches;
        last = now();
    } while (last - start < sustain_seconds);
    s.seconds = (last - start) / total;
    return s;
}

/* work: bytes or flops of one call. */
static void measure(const struct task *t, const char *name, const char *shape, double work, const char *unit) {
    char full[256];
    snprintf(full, sizeof full, "%s %s", name, shape);
    if (only && !strstr(full, only)) return;
    double divisor = strcmp(unit, "GB/s") == 0 ? 1e9 : 1e12, burst = time_burst(t);
    struct sustained s = {(double)NAN, 0, 0};
    if (sustain_seconds > 0) s = time_sustained(t, burst);
    const double sustained = s.seconds;
    printf("%-34s %-34s %9.3f ms %8.0f %8.0f %s", name, shape, burst * 1e3, work / burst / divisor,
        work / sustained / divisor, unit);
    if (s.watts > 0) printf("  %4.0f W %5.0f MHz", s.watts, s.mhz);
    printf("\n");
    fflush(stdout);
    if (!json) return;
    fprintf(json, "%s\n  {\"name\": \"%s\", \"shape\": \"%s\", \"ms\": %.5f, \"burst\": %.1f, \"sustained\": ",
        json_lines++ ? "," : "[", name, shape, burst * 1e3, work / burst / divisor);
    if (sustain_seconds > 0)
        fprintf(json, "%.1f", work / sustained / divisor);
    else
        fprintf(json, "null");
    fprintf(json, ", \"unit\": \"%s\", \"watts\": %.1f, \"sm_mhz\": %.0f}", unit, s.watts, s.mhz);
}

#endif
