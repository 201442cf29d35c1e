/* Clipping and AdamW over the flat arrays of all weights; everything stays on the device but the norm. */
#ifndef MX8_TRAIN_OPTIMIZER_H
#define MX8_TRAIN_OPTIMIZER_H

#include "kernels/kernels.h"
#include "train/job.h"

#define MX8_OPTIMIZER_BYTES 64 /* device memory that an optimizer holds beside the arrays */

struct mx8_optimizer {
    struct mx8_context *ctx;
    uint8_t *scalars; /* device: sum of squares (f64), clip factor (f32), norm (f32), struct mx8_adamw_state */
    int32_t scalars_on_device; /* AdamW reads struct mx8_adamw_state from memory, so that a recorded update stays good */
    int64_t updates;  /* done so far: AdamW's t, which a skipped step does not count in */
    uint64_t seed;    /* of rounding bf16 moments */
};

/* Device arrays of n elements; copy (bf16 weights, of the stretches that have one) may be NULL. */
struct mx8_flat {
    float *master, *grad;
    void *m, *v; /* of moment_dtype */
    uint16_t *copy;
    int64_t n;
    struct mx8_dist *dist; /* the arrays are this rank's parts; NULL: they are whole */
    int32_t moment_dtype;
    const struct mx8_stretch *stretch; /* NULL: one, of everything */
    int64_t stretches;
    struct mx8_model *model; /* updates what its stretches leave out; NULL: nothing is left out */
};

/* A model's arrays, which must be there. */
struct mx8_flat mx8i_view_flat(struct mx8_model *m, struct mx8_dist *dist);

enum mx8_status mx8i_open_optimizer(struct mx8_context *ctx, struct mx8_optimizer *out);
void mx8i_close_optimizer(struct mx8_optimizer *o);
/* Global norm of the gradients, before clipping; the factor min(1, max_norm / (norm + 1e-6)) is kept for the update. */
enum mx8_status mx8i_clip_gradients(
    struct mx8_optimizer *o, const struct mx8_flat *flat, double max_norm, double *norm);
/* What one update needs beside the arrays: counts it, and with scalars_on_device uploads what follows from t and lr. */
enum mx8_status mx8i_begin_update(struct mx8_optimizer *o, const struct mx8_adamw *a, double lr);
/* One update with the clipped gradients; copies are written, too, and codes of what the stretches leave out. */
enum mx8_status mx8i_apply_adamw(
    struct mx8_optimizer *o, const struct mx8_flat *flat, const struct mx8_adamw *a, double lr);

#endif
