/* Log lines. torchtitan's parsers look for `step:\s*(\d+)`, `memory:\s*([\d.]+)GiB` and `tps:\s*([\d,]+)`. */
#include "train/logline.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

#define GIB 1073741824.0

char *mx8i_format_thousands(char buffer[64], double value, int decimals) {
    char digits[48];
    size_t length = (size_t)snprintf(digits, sizeof digits, "%.*f", decimals, fabs(value) < 1e30 ? value : 0);
    size_t whole = strcspn(digits, "."), used = 0;
    for (size_t i = 0; i < length; i++) {
        if (i > (digits[0] == '-') && i < whole && (whole - i) % 3 == 0) buffer[used++] = ',';
        buffer[used++] = digits[i];
    }
    buffer[used] = 0;
    return buffer;
}

static double get_per_cent(int64_t part, int64_t whole) {
    return whole > 0 ? 100 * (double)part / (double)whole : 0;
}

void mx8i_format_step(char *buffer, size_t size, const struct mx8_step_line *line) {
    double tflops = line->flops_per_token * line->tokens_per_second / 1e12;
    char tps_text[64], tflops_text[64], mfu[32] = "N/A";
    if (line->peak_flops > 0) snprintf(mfu, sizeof mfu, "%.2f%%", 100 * tflops * 1e12 / line->peak_flops);
    snprintf(buffer, size,
        "step: %2lld  loss: %7.4f  grad_norm: %7.4f  memory: %5.2fGiB(%.2f%%)  tps: %s  tflops: %s  mfu: %s",
        (long long)line->step, line->loss, line->grad_norm, (double)line->memory / GIB,
        get_per_cent(line->memory, line->capacity), mx8i_format_thousands(tps_text, rint(line->tokens_per_second), 0),
        mx8i_format_thousands(tflops_text, tflops, 2), mfu);
}

void mx8i_format_validation(char *buffer, size_t size, const struct mx8_step_line *line) {
    char tps_text[64];
    snprintf(buffer, size, "validate step: %2lld  loss: %7.4f  memory: %5.2fGiB(%.2f%%)  tps: %s",
        (long long)line->step, line->loss, (double)line->memory / GIB, get_per_cent(line->memory, line->capacity),
        mx8i_format_thousands(tps_text, rint(line->tokens_per_second), 0));
}

static void log_options(const struct mx8_log *log, const struct mx8_options *o) {
    for (int32_t i = 0; i < o->count; i++)
        if (o->value[i].set) mx8i_log(log, "%s = %s (%s)", o->table[i].key, o->value[i].text, o->value[i].source);
}

static void log_peak(
    const struct mx8_log *log, const struct mx8_job *job, const struct mx8_context *ctx, double peak_flops) {
    if (peak_flops <= 0)
        mx8i_log(log, "Peak FLOPS of %.60s are in no table here: mfu is N/A", ctx->backend_reason);
    else
        mx8i_log(log, "Peak FLOPS used for computing MFU: %.3e%s%s%s", peak_flops, job->device ? "" : " (measured, ",
            job->device ? "" : mx8_get_dtype_name(job->recipe.dtype), job->device ? "" : " products)");
}

void mx8i_log_start(const struct mx8_log *log, const struct mx8_job *job, const struct mx8_context *ctx,
    const struct mx8_data *data, const struct mx8_device_facts *facts) {
    const char *device = job->device ? "CUDA" : "CPU";
    struct mx8_model_counts n = mx8i_count_model(&job->config, job->model.seq_len);
    char total[64], dense[64], sparse[64], active[64], tokens[64];
    if (job->description[0]) mx8i_log(log, "Starting job: %s", job->description);
    if (job->print_args) log_options(log, job->options);
    mx8i_log(log, "%s capacity: %s with %.2fGiB memory, %d thread%s", device, ctx->backend_name,
        (double)facts->capacity / GIB, (int)ctx->exec.threads, ctx->exec.threads == 1 ? "" : "s");
    mx8i_log(log, "Data: %s, %s tokens a pass", mx8i_describe_data(data),
        mx8i_format_thousands(tokens, (double)mx8i_count_tokens(data), 0));
    mx8i_log(log, "Total parameter count: dense %s, sparse %s, active %s",
        mx8i_format_thousands(dense, (double)n.dense, 0), mx8i_format_thousands(sparse, (double)n.sparse, 0),
        mx8i_format_thousands(active, (double)n.active, 0));
    mx8i_log(log, "Model llama4 %s size: %s total parameters", job->config.flavor,
        mx8i_format_thousands(total, (double)n.total, 0));
    mx8i_log(log, "Recipe: %s", job->recipe.name);
    log_peak(log, job, ctx, facts->peak_flops);
    mx8i_log(log, "%s memory usage for model: %.2fGiB(%.2f%%)", device, (double)facts->memory / GIB,
        get_per_cent(facts->memory, facts->capacity));
    mx8i_log(log,
        "Trainer is initialized with local batch size %lld, global batch size %lld, gradient accumulation steps %lld, "
        "sequence length %lld, total steps %lld (warmup %lld)",
        (long long)job->local_batch_size, (long long)job->local_batch_size * job->accumulation,
        (long long)job->accumulation, (long long)job->model.seq_len, (long long)job->steps,
        (long long)job->schedule.warmup);
}

void mx8i_log_validation_set(const struct mx8_log *log, const struct mx8_validator *v) {
    const struct mx8_data *data = mx8i_get_validation_data(v);
    char samples[64];
    mx8i_log(log, "Validation: %s, %s samples of %lld tokens each time", mx8i_describe_data(data),
        mx8i_format_thousands(samples, (double)mx8i_count_validation_samples(v), 0),
        (long long)mx8i_get_sample_length(data));
}
