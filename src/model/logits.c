/* The forward pass of one sequence of any length up to the planned one, for sampling and for comparisons. Activations
 * lie where the planned walk's lie; a shorter walk needs no more of any of them. */
#include "model/internal.h"
#include "base/error.h"

static enum mx8_status upload_sequence(struct mx8_model *m, const int32_t *tokens, int64_t n) {
    const struct mx8_exec *x = &m->ctx->exec;
    for (int64_t t = 0; t < n; t++) {
        if (tokens[t] < 0 || tokens[t] >= m->config.vocab_size)
            return MX8_FAIL(MX8_INVALID_ARGUMENT, "token %d at position %lld, expected 0 to %lld", (int)tokens[t],
                (long long)t, (long long)m->config.vocab_size - 1);
    }
    MX8_TRY(x->k->upload(x, m->io.tokens, tokens, (size_t)n * sizeof *tokens));
    return x->k->fill(x, m->io.docs, 0, (size_t)n * sizeof *m->io.docs); /* all of one document */
}

enum mx8_status mx8i_compute_logits(
    struct mx8_model *m, const int32_t *tokens, int64_t n, int64_t from, float *logits) {
    if (!m->ctx || n < 1 || n > m->options.seq_len || from < 0 || from >= n)
        return MX8_FAIL(MX8_INVALID_ARGUMENT,
            "mx8i_compute_logits: positions %lld to %lld, expected some of at most %lld, and a model with memory",
            (long long)from, (long long)n, (long long)m->options.seq_len);
    MX8_TRY(upload_sequence(m, tokens, n));
    const int64_t T = m->T, S = m->options.seq_len;
    m->T = m->options.seq_len = n;
    m->logits_from = from;
    m->logits_only = 1;
    enum mx8_status status = mx8i_walk_validation(m, logits);
    m->T = T;
    m->options.seq_len = S;
    m->logits_from = m->logits_only = 0;
    return status;
}

int64_t mx8i_get_sequence_length(const struct mx8_model *m) {
    return m->options.seq_len;
}
