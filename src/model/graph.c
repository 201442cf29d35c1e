/* A training walk as one graph: the host's part of a step becomes a single launch. What changes from step to step lies
 * in device memory (tokens, targets, group ends, weights); what is baked in (loss scale, accumulation) has its own
 * recording. */
#include <stdio.h>
#include "model/internal.h"
#include "base/error.h"

void mx8i_use_graphs(struct mx8_model *m, const struct mx8_log *log) {
    m->graph_log = log;
}

void mx8i_release_graphs(struct mx8_model *m) {
    for (int i = 0; i < 2; i++) {
        if (m->recording[i].graph) m->ctx->exec.k->release_graph(&m->ctx->exec, m->recording[i].graph);
        m->recording[i] = (struct mx8_recording){0};
    }
}

/* The recording always ends, so that the stream works again. */
static enum mx8_status record_walk(struct mx8_model *m, struct mx8_recording *r) {
    const struct mx8_exec *x = &m->ctx->exec;
    if (!x->k->begin_graph) return MX8_FAIL(MX8_UNSUPPORTED, "%s has no graphs", x->k->name);
    MX8_TRY(x->k->begin_graph(x));
    enum mx8_status walked = mx8i_walk_training(m);
    char why[256];
    if (walked != MX8_OK) snprintf(why, sizeof why, "%s", mx8_get_last_error());
    enum mx8_status ended = x->k->end_graph(x, &r->graph);
    if (walked == MX8_OK) return ended;
    if (r->graph) x->k->release_graph(x, r->graph);
    r->graph = NULL;
    return MX8_FAIL(walked, "%s", why);
}

enum mx8_status mx8i_run_training_walk(struct mx8_model *m) {
    struct mx8_recording *r = &m->recording[m->accumulate != 0];
    const struct mx8_exec *x = &m->ctx->exec;
    if (!m->graph_log || m->dump) return mx8i_walk_training(m);
    if (!r->warm) { /* libraries choose and build their kernels at the first call, which cannot be recorded */
        r->warm = 1;
        return mx8i_walk_training(m);
    }
    if (r->graph && r->loss_scale != m->loss_scale) {
        x->k->release_graph(x, r->graph);
        r->graph = NULL;
    }
    if (!r->graph) {
        if (record_walk(m, r) != MX8_OK) {
            mx8i_log(m->graph_log, "compile.enable: the step cannot be captured as a graph (%s); it runs call by call",
                mx8_get_last_error());
            m->graph_log = NULL;
            return mx8i_walk_training(m);
        }
        r->loss_scale = m->loss_scale;
        mx8i_log(m->graph_log, "compile.enable: forward and backward captured as a graph%s",
            m->accumulate ? ", with accumulation" : "");
    }
    return x->k->launch_graph(x, r->graph);
}
