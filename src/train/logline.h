/* The log of a job in torchtitan's words, so that the scripts that read its logs read these. */
#ifndef MX8_TRAIN_LOGLINE_H
#define MX8_TRAIN_LOGLINE_H

#include "train/loop.h"
#include "train/validate.h"

/* What one step line says. Rates are over the steps since the line before. */
struct mx8_step_line {
    int64_t step, memory, capacity; /* bytes; capacity 0: unknown */
    double loss, grad_norm, tokens_per_second, flops_per_token;
    double peak_flops; /* of the device; 0: unknown, which makes mfu N/A */
};

/* "1,234,567.89". Returns buffer. */
char *mx8i_format_thousands(char buffer[64], double value, int decimals);
/* step:  1  loss:  8.1234  grad_norm:  1.2345  memory:  1.25GiB(3.10%)  tps: 1,234  tflops: 0.12  mfu: N/A */
void mx8i_format_step(char *buffer, size_t size, const struct mx8_step_line *line);
/* validate step:  1  loss:  8.1234  memory:  1.25GiB(3.10%)  tps: 1,234 */
void mx8i_format_validation(char *buffer, size_t size, const struct mx8_step_line *line);
struct mx8_device_facts {
    int64_t memory, capacity; /* bytes: of the job; that were free before */
    double peak_flops;        /* 0: unknown */
};
/* What the job is and runs on, before the weights are made. */
void mx8i_log_start(const struct mx8_log *log, const struct mx8_job *job, const struct mx8_context *ctx,
    const struct mx8_data *data, const struct mx8_device_facts *facts);
void mx8i_log_validation_set(const struct mx8_log *log, const struct mx8_validator *v);

#endif
