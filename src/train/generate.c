/* Sampling. Every token costs a forward pass over all tokens so far, of exactly that length: no cache of keys and
 * values, and nothing that could differ from what training computes. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "base/clock.h"
#include "base/error.h"
#include "base/memory.h"
#include "base/rng.h"
#include "train/generate.h"

/* ---- one token ---- */

/* Larger first, the lower id among equals, so that the order is the same everywhere. */
static int compare_candidates(const void *a, const void *b) {
    const struct mx8_candidate *x = a, *y = b;
    if (x->logit != y->logit) return x->logit > y->logit ? -1 : 1;
    return (x->id > y->id) - (x->id < y->id);
}

static int64_t cut_to_top_p(struct mx8_candidate *c, int64_t n, double top_p) {
    double all = 0, sum = 0;
    for (int64_t i = 0; i < n; i++) all += c[i].weight;
    if (top_p <= 0 || top_p >= 1) return n;
    for (int64_t i = 0; i < n; i++) {
        sum += c[i].weight;
        if (sum >= top_p * all) return i + 1;
    }
    return n;
}

enum mx8_status mx8i_sample_token(const float *logits, int64_t allowed, const struct mx8_sampling *s, uint64_t draw,
    struct mx8_candidate *scratch, int32_t *id) {
    int64_t n = 0, best = 0;
    for (int64_t i = 0; i < allowed; i++) {
        if (isnan(logits[i])) continue;
        scratch[n++] = (struct mx8_candidate){.logit = logits[i], .id = (int32_t)i};
        if (compare_candidates(&scratch[n - 1], &scratch[best]) < 0) best = n - 1;
    }
    if (!n) return MX8_FAIL(MX8_NOT_FINITE, "sampling: all %lld logits are NaN", (long long)allowed);
    *id = scratch[best].id;
    const double top = (double)scratch[best].logit;
    if (s->temperature <= 0 || isinf(top)) return MX8_OK;

    qsort(scratch, (size_t)n, sizeof *scratch, compare_candidates);
    if (s->top_k > 0 && s->top_k < n) n = s->top_k;
    for (int64_t i = 0; i < n; i++) scratch[i].weight = exp(((double)scratch[i].logit - top) / s->temperature);
    n = cut_to_top_p(scratch, n, s->top_p);
    double all = 0;
    for (int64_t i = 0; i < n; i++) all += scratch[i].weight;
    double left = mx8i_random_uniform(s->seed, mx8i_hash_text("sampling"), draw) * all;
    int64_t at = 0;
    while (at < n - 1 && left >= scratch[at].weight) left -= scratch[at++].weight;
    *id = scratch[at].id;
    return MX8_OK;
}

/* ---- bytes to text ---- */

/* Bytes that a sequence with this first byte has; 0: no sequence begins so. */
static int32_t get_length(uint8_t first) {
    if (first < 0x80) return 1;
    if (first >= 0xC2 && first <= 0xDF) return 2;
    if (first >= 0xE0 && first <= 0xEF) return 3;
    return first >= 0xF0 && first <= 0xF4 ? 4 : 0;
}

/* Whether `next` may follow the held bytes: overlong forms, surrogates and numbers past U+10FFFF show at the second. */
static int may_follow(const uint8_t *held, int32_t n, uint8_t next) {
    uint8_t low = 0x80, high = 0xBF;
    if (n == 1 && held[0] == 0xE0) low = 0xA0;
    if (n == 1 && held[0] == 0xED) high = 0x9F;
    if (n == 1 && held[0] == 0xF0) low = 0x90;
    if (n == 1 && held[0] == 0xF4) high = 0x8F;
    return next >= low && next <= high;
}

static void replace_held(struct mx8_utf8_stream *s) {
    if (s->n_held) s->sink->write(s->sink->user, "\xEF\xBF\xBD", 3);
    s->n_held = 0;
}

void mx8i_push_utf8(struct mx8_utf8_stream *s, const void *bytes, size_t size) {
    const uint8_t *at = bytes;
    for (size_t i = 0; i < size; i++) {
        if (s->n_held && !may_follow(s->held, s->n_held, at[i])) replace_held(s);
        s->held[s->n_held++] = at[i];
        const int32_t length = get_length(s->held[0]);
        if (!length) replace_held(s);
        if (s->n_held == length && length) {
            s->sink->write(s->sink->user, (const char *)s->held, (size_t)length);
            s->n_held = 0;
        }
    }
}

void mx8i_end_utf8(struct mx8_utf8_stream *s) {
    replace_held(s);
}

/* ---- many tokens ---- */

static int is_stop(const struct mx8_generation *g, int32_t id) {
    for (int64_t i = 0; i < g->n_stop; i++) {
        if (g->stop[i] == id) return 1;
    }
    return 0;
}

static enum mx8_status generate(struct mx8_model *m, const struct mx8_tokenizer *t, const struct mx8_generation *g,
    struct mx8_tokens *tokens, struct mx8_utf8_stream *text, struct mx8_generated *out, float *logits,
    struct mx8_candidate *scratch) {
    const int64_t vocabulary = mx8i_get_config(m)->vocab_size, known = mx8i_count_vocabulary(t);
    const int64_t limit = mx8i_get_sequence_length(m), allowed = known < vocabulary ? known : vocabulary;
    while (out->tokens < g->most && tokens->count < limit && !(g->should_stop && g->should_stop(g->user))) {
        int32_t id;
        MX8_TRY(mx8i_compute_logits(m, tokens->id, tokens->count, tokens->count - 1, logits));
        MX8_TRY(mx8i_sample_token(logits, allowed, &g->sampling, (uint64_t)out->tokens, scratch, &id));
        out->stopped = is_stop(g, id);
        if (out->stopped) break;
        size_t size;
        int special;
        MX8_TRY(mx8i_append_token(tokens, id));
        out->tokens++;
        const uint8_t *bytes = mx8i_get_token(t, id, &size, &special);
        if (!special) mx8i_push_utf8(text, bytes, size);
    }
    mx8i_end_utf8(text);
    return MX8_OK;
}

enum mx8_status mx8i_generate(struct mx8_model *m, const struct mx8_tokenizer *t, const struct mx8_generation *g,
    struct mx8_tokens *tokens, struct mx8_utf8_stream *text, struct mx8_generated *out) {
    const int64_t V = mx8i_get_config(m)->vocab_size;
    *out = (struct mx8_generated){0};
    if (tokens->count < 1 || tokens->count > mx8i_get_sequence_length(m))
        return MX8_FAIL(MX8_INVALID_ARGUMENT,
            "a prompt of %lld tokens, expected 1 to %lld (the model's sequence length)", (long long)tokens->count,
            (long long)mx8i_get_sequence_length(m));
    float *logits = mx8i_allocate((size_t)V * sizeof *logits, "logits");
    struct mx8_candidate *scratch = logits ? mx8i_allocate((size_t)V * sizeof *scratch, "candidates") : NULL;
    const double before = mx8i_get_seconds();
    enum mx8_status status = scratch ? generate(m, t, g, tokens, text, out, logits, scratch) : MX8_OUT_OF_MEMORY;
    out->seconds = mx8i_get_seconds() - before;
    mx8i_release(scratch);
    mx8i_release(logits);
    return status;
}
