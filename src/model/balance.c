/* Expert load, and the aux-loss-free balancing that follows from it (torchtitan's rule, with its mean subtraction). */
#include <string.h>
#include "model/internal.h"
#include "base/error.h"

int64_t mx8i_count_moe_layers(const struct mx8_model *m) {
    return m->moe_layers;
}

enum mx8_status mx8i_get_expert_load(struct mx8_model *m, int64_t moe_layer, int64_t *counts) {
    const int64_t E = m->config.num_experts;
    if (moe_layer < 0 || moe_layer >= m->moe_layers) {
        return MX8_FAIL(MX8_INVALID_ARGUMENT, "mx8i_get_expert_load: MoE layer %lld, expected 0 to %lld",
            (long long)moe_layer, (long long)m->moe_layers - 1);
    }
    memcpy(counts, m->load + moe_layer * E, (size_t)E * sizeof *counts);
    return MX8_OK;
}

void mx8i_accept_expert_counts(struct mx8_model *m) {
    const size_t n = (size_t)(m->moe_layers * m->config.num_experts);
    if (m->parallel && n) memcpy(m->known_load, m->load, n * sizeof *m->load);
}

int64_t *mx8i_get_expert_counts(struct mx8_model *m) {
    return m->load;
}

/* bias += d - mean(d), d = coeff * sign(mean(count) - count): experts with less than the mean become likelier. */
static void balance_layer(float *bias, const int64_t *count, int64_t E, float coeff) {
    double total = 0, drift = 0;
    for (int64_t e = 0; e < E; e++) total += (double)count[e];
    const double mean = total / (double)E;
    for (int64_t e = 0; e < E; e++) drift += (mean > (double)count[e]) - (mean < (double)count[e]);
    const float mean_step = (float)(drift / (double)E) * coeff;
    for (int64_t e = 0; e < E; e++) {
        float step = coeff * (float)((mean > (double)count[e]) - (mean < (double)count[e]));
        bias[e] += step - mean_step;
    }
}

/* Counts since the last sum are this rank's own; those before are everyone's already (a skipped step keeps its counts).
 */
enum mx8_status mx8i_sum_expert_load(struct mx8_model *m) {
    const int64_t n = m->moe_layers * m->config.num_experts;
    if (!m->parallel || !n) return MX8_OK;
    for (int64_t i = 0; i < n; i++) m->load[i] -= m->known_load[i];
    MX8_TRY(mx8i_sum_integers(&m->options.dist->host, m->load, n));
    for (int64_t i = 0; i < n; i++) m->known_load[i] = m->load[i] += m->known_load[i];
    return MX8_OK;
}

enum mx8_status mx8i_update_expert_bias(struct mx8_model *m) {
    const size_t bytes = m->params.buffer_elements * sizeof(float);
    if (bytes) {
        const struct mx8_exec *x = &m->ctx->exec;
        float *bias = m->host_bias;
        MX8_TRY(x->k->download(x, bias, m->buffers, bytes));
        for (int64_t i = 0; i < m->config.n_layers; i++) {
            const struct mx8_layer *l = &m->layer[i];
            if (!l->bias) continue;
            balance_layer(bias + l->bias->at, m->load + l->moe * m->config.num_experts, m->config.num_experts,
                (float)m->config.load_balance_coeff);
        }
        MX8_TRY(x->k->upload(x, m->buffers, bias, bytes));
    }
    const size_t counts = (size_t)(m->moe_layers * m->config.num_experts) * sizeof *m->load;
    memset(m->load, 0, counts);
    if (m->parallel) memset(m->known_load, 0, counts);
    return MX8_OK;
}
