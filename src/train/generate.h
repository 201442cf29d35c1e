/* Sampling from a model: logits to a token, tokens to a stream of valid UTF-8. No printing: text goes to a callback. */
#ifndef MX8_TRAIN_GENERATE_H
#define MX8_TRAIN_GENERATE_H

#include "model/model.h"
#include "train/tokenizer.h"

/* Logits are divided by the temperature, the top_k largest are kept, then as many of these as it takes for their
 * probabilities to reach top_p. Zero is: greedy, all, all. */
struct mx8_sampling {
    double temperature, top_p;
    int64_t top_k;
    uint64_t seed;
};

/* Scratch of one vocabulary; release with mx8i_release. */
struct mx8_candidate {
    float logit;
    int32_t id;
    double weight;
};
/* The token of draw number `draw`: depends on the logits, the options and that number alone. allowed: ids below this.
 * NOT_FINITE when every logit is NaN. */
enum mx8_status mx8i_sample_token(const float *logits, int64_t allowed, const struct mx8_sampling *s, uint64_t draw,
    struct mx8_candidate *scratch, int32_t *id);

/* Whole UTF-8 sequences out of bytes that come in any pieces; what is none becomes U+FFFD. */
struct mx8_text_sink {
    void (*write)(void *user, const char *text, size_t size);
    void *user;
};
struct mx8_utf8_stream {
    const struct mx8_text_sink *sink;
    uint8_t held[4];
    int32_t n_held;
};
void mx8i_push_utf8(struct mx8_utf8_stream *s, const void *bytes, size_t size);
void mx8i_end_utf8(struct mx8_utf8_stream *s);

struct mx8_generation {
    struct mx8_sampling sampling;
    int64_t most;        /* new tokens */
    const int32_t *stop; /* ids that end it, and are not written */
    int64_t n_stop;
    int (*should_stop)(void *user); /* NULL: never */
    void *user;
};
struct mx8_generated {
    int64_t tokens;
    int32_t stopped; /* by one of `stop` */
    double seconds;
};
/* Appends to `tokens` (the prompt, at least one) until something ends it; the model's sequence length does too. */
enum mx8_status mx8i_generate(struct mx8_model *m, const struct mx8_tokenizer *t, const struct mx8_generation *g,
    struct mx8_tokens *tokens, struct mx8_utf8_stream *text, struct mx8_generated *out);

#endif
