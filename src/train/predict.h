/* How long a step would take on GPUs that are not here: the memory and traffic are those of the model's own plan, the
 * times follow from bandwidths and rates that are stated below, one table row a GPU. */
#ifndef MX8_TRAIN_PREDICT_H
#define MX8_TRAIN_PREDICT_H

#include "train/job.h"

/* Rates of one GPU that a real job reaches, not peaks; bytes and operations a second. */
struct mx8_gpu {
    const char *name;
    double memory;           /* bytes that a job can have */
    double peak_bf16;        /* what mfu is counted against */
    double bf16, mxfp8, attention; /* operations a second of products and of attention */
    double hbm;              /* memory traffic of element-wise work */
    double nvlink, network;  /* to GPUs of the same machine; through this GPU's own network card: one direction */
    double latency;          /* of one collective, seconds */
    int32_t per_machine;     /* GPUs that NVLink joins */
};
const struct mx8_gpu *mx8i_find_gpu(const char *name); /* "h200", "b200"; NULL: none of that name */

/* Seconds of one step and its parts; what is hidden behind computing is in `hidden`, not in `step`. */
struct mx8_prediction {
    double products, attention, elements, weights /* quantized, or put in place, with each gather */, optimizer;
    double gather, reduce, dispatch, sum, hidden, step;
    double tokens_per_second; /* of one GPU */
    double mfu;
    double bytes;             /* that a GPU sends in a step */
    int32_t fits;
};

/* Bytes a second at which every rank of a group gets or gives away its part. `together`: ranks of it in one machine. */
double mx8i_get_group_bandwidth(const struct mx8_gpu *gpu, int32_t size, int32_t together);
void mx8i_predict_step(const struct mx8_job *job, const struct mx8_model *m, const struct mx8_gpu *gpu,
    struct mx8_prediction *p);

#endif
