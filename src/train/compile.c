/* Recording the update; a failure to record is told once, and the job goes on without. */
#include "train/compile.h"
#include <stdio.h>
#include "base/error.h"
#include "train/parallel.h"
#include "train/run.h"

enum mx8_status mx8i_begin_compiling(const struct mx8_job *job, struct mx8_context *ctx, struct mx8_compiled *out) {
    *out = (struct mx8_compiled){0};
    const struct mx8_kernels *k = ctx->exec.k;
    if (!job->compile || job->profile || !k->make_stream || mx8i_count_ranks(job) > 1) return MX8_OK;
    out->on = 1;
    return k->make_stream(&ctx->exec, &ctx->exec.stream);
}

void mx8i_end_compiling(struct mx8_compiled *c, struct mx8_context *ctx) {
    if (c->update) ctx->exec.k->release_graph(&ctx->exec, c->update);
    *c = (struct mx8_compiled){0};
}

static enum mx8_status update_weights(struct mx8_run *r, double lr) {
    MX8_TRY(mx8i_apply_adamw(&r->optimizer, &r->flat, &r->job->adamw, lr));
    return mx8i_refresh_weights(r->model, 1);
}

/* The recording always ends, so that the stream works again. */
static enum mx8_status record_update(struct mx8_run *r, double lr) {
    const struct mx8_exec *x = &r->ctx->exec;
    char why[256];
    MX8_TRY(x->k->begin_graph(x));
    enum mx8_status ran = update_weights(r, lr);
    if (ran != MX8_OK) snprintf(why, sizeof why, "%s", mx8_get_last_error());
    enum mx8_status ended = x->k->end_graph(x, &r->compiled.update);
    if (ran == MX8_OK) return ended;
    if (r->compiled.update) x->k->release_graph(x, r->compiled.update);
    r->compiled.update = NULL;
    return MX8_FAIL(ran, "%s", why);
}

enum mx8_status mx8i_run_update(struct mx8_run *r, double lr) {
    struct mx8_compiled *c = &r->compiled;
    MX8_TRY(mx8i_begin_update(&r->optimizer, &r->job->adamw, lr));
    if (!c->on || !c->warm) { /* the first time call by call, as the walk */
        c->warm = 1;
        return update_weights(r, lr);
    }
    if (!c->update && record_update(r, lr) != MX8_OK) {
        mx8i_log(&r->watch->log, "compile.enable: the update cannot be captured as a graph (%s); it runs call by call",
            mx8_get_last_error());
        c->on = 0;
        return update_weights(r, lr);
    }
    return r->ctx->exec.k->launch_graph(&r->ctx->exec, c->update);
}
