/* Learning rate: linear warmup, a plateau, then decay, by torchtitan's rules to the step.
 * With s = step - 1, W warmup, P plateau and N decay steps, the factor of the learning rate is
 *     s < W:      (s + 1) / W
 *     s < W + P:  1
 *     else:       min + (1 - min) f(p),  p = (s + 1 - W - P) / N,  f = 1 - p, 1 - sqrt(p) or (1 + cos(pi p)) / 2
 * P = steps + 1 - W - N: the last step has p = (N - 1) / N, so the rate never falls to the minimum itself. */
#include <math.h>
#include "train/resolve.h"

struct mx8_schedule mx8i_make_schedule(double lr, int64_t steps, int64_t warmup, double ratio, enum mx8_decay type,
    double min_lr_factor, const struct mx8_log *notes) {
    if (warmup > steps) {
        mx8i_log(notes, "lr_scheduler.warmup_steps %lld is more than training.steps %lld: clamped to %lld",
            (long long)warmup, (long long)steps, (long long)steps);
        warmup = steps;
    }
    int64_t decay = steps - warmup;
    if (!isnan(ratio)) {
        int64_t wanted = (int64_t)rint((double)steps * ratio); /* half to even, as Python rounds */
        if (wanted > decay)
            mx8i_log(notes,
                "lr_scheduler: %lld warmup and %lld decay steps are more than training.steps %lld: decay "
                "clamped to %lld",
                (long long)warmup, (long long)wanted, (long long)steps, (long long)decay);
        else
            decay = wanted;
    }
    return (struct mx8_schedule){.lr = lr,
        .min_lr_factor = min_lr_factor,
        .warmup = warmup,
        .stable = steps + 1 - warmup - decay,
        .decay = decay,
        .type = type};
}

static double get_decay(enum mx8_decay type, double p) {
    switch (type) {
    case MX8_DECAY_SQRT:
        return 1 - sqrt(p);
    case MX8_DECAY_COSINE:
        return 0.5 * (1 + cos(3.14159265358979323846 * p));
    case MX8_DECAY_LINEAR:
        break;
    }
    return 1 - p;
}

double mx8i_get_learning_rate(const struct mx8_schedule *s, int64_t step) {
    int64_t past = step - s->warmup - s->stable; /* steps into the decay */
    double factor = 1;
    if (step <= s->warmup)
        factor = (double)step / (double)s->warmup;
    else if (past > 0) {
        double p = past < s->decay ? (double)past / (double)s->decay : 1;
        factor = s->min_lr_factor + (1 - s->min_lr_factor) * get_decay(s->type, p);
    }
    return s->lr * factor;
}
