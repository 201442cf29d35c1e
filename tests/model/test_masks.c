/* Positions and masks: attention of every layer against a naive one, from the q, k and v that the model saved. */
#include "model_helpers.h"
#include "model/internal.h"

enum { BATCH = 2, S = 24, CHUNK = 7 };

/* Documents that end neither where chunks nor where sequences do; ids repeat in the second sequence. */
static const int32_t lengths[] = {9, 15, 3, 20, 1};

static void fill_docs(int32_t *docs) {
    int64_t t = 0;
    for (int32_t d = 0; d < 5; d++) {
        for (int32_t i = 0; i < lengths[d]; i++) docs[t++] = d % 3;
    }
}

static int is_visible(
    const struct mx8_model_config *c, int64_t layer, const int32_t *docs, int64_t query, int64_t key) {
    if (query / S != key / S || key > query) return 0;
    if (c->attn_mask == MX8_MASK_DOCUMENT && docs[query] != docs[key]) return 0;
    int chunked = c->every_n_layers_nope && layer % c->every_n_layers_nope != 0;
    return !chunked || query % S / CHUNK == key % S / CHUNK;
}

static void check_attention(struct subject *s, int64_t layer, const int32_t *docs) {
    const struct mx8_model_config *c = mx8i_get_config(s->m);
    const struct mx8_activations *a = &s->m->layer[layer].a;
    const int64_t H = c->n_heads, KV = c->n_kv_heads, d = c->dim / H;
    const float *q = a->q.data, *k = a->k.data, *v = a->v.data, *o = a->o.hp.data;
    for (int64_t t = 0; t < s->T; t++) {
        for (int64_t h = 0; h < H; h++) {
            double weight[BATCH * S], sum = 0;
            const int64_t kv = h / (H / KV);
            for (int64_t j = 0; j < s->T; j++) {
                double dot = 0;
                for (int64_t i = 0; i < d; i++)
                    dot += (double)q[(t * H + h) * d + i] * (double)k[(j * KV + kv) * d + i];
                weight[j] = is_visible(c, layer, docs, t, j) ? exp(dot / sqrt((double)d)) : 0;
                sum += weight[j];
            }
            for (int64_t i = 0; i < d; i++) {
                double want = 0, got = (double)o[(t * H + h) * d + i];
                for (int64_t j = 0; j < s->T; j++) want += weight[j] / sum * (double)v[(j * KV + kv) * d + i];
                if (fabs(got - want) > 2e-6)
                    fail_msg("layer %d, token %d: %g, expected %g", (int)layer, (int)t, got, want);
            }
        }
    }
}

/* q of one token is its normalised input (the norm's weights are ones) through wq, turned by its position in the sequence unless the layer has none.
 */
static void check_positions(struct subject *s, int64_t layer, int64_t t) {
    const struct mx8_model_config *c = mx8i_get_config(s->m);
    const struct mx8_layer *l = &s->m->layer[layer];
    const int64_t D = c->dim, d = D / c->n_heads;
    const float *in = (const float *)l->a.x.data + t * D, rstd = ((const float *)l->a.rstd_attention.data)[t], *w = mx8i_get_masters(s->m) + l->wq->at;
    const float *q = (const float *)l->a.q.data + t * D;
    int turned = !c->every_n_layers_nope || layer % c->every_n_layers_nope != 0;
    for (int64_t row = 0; row < D; row += 2) {
        double x[2] = {0, 0}, angle = turned ? (double)(t % S) * pow(c->rope_theta, -(double)(row % d) / (double)d) : 0;
        for (int64_t i = 0; i < 2; i++) {
            for (int64_t j = 0; j < D; j++) x[i] += (double)w[(row + i) * D + j] * (double)(in[j] * rstd);
        }
        double want[2] = {x[0] * cos(angle) - x[1] * sin(angle), x[0] * sin(angle) + x[1] * cos(angle)};
        assert_true(fabs((double)q[row] - want[0]) < 5e-6 && fabs((double)q[row + 1] - want[1]) < 5e-6);
    }
}

static void check_model(int32_t mask, int64_t nope) {
    struct mx8_model_config c = make_tiny_config();
    c.n_layers = 3;
    c.attn_mask = mask;
    c.every_n_layers_nope = nope;
    c.fixed_attn_block_size = CHUNK;
    struct subject s = make_subject(&c, "f32", (struct mx8_model_options){.batch = BATCH, .seq_len = S}, 1);
    int32_t docs[BATCH * S], *ids = make_tokens(s.T, c.vocab_size, 21);
    fill_docs(docs);
    run_step(&s, ids, docs); /* leaves q, k, v and o of every layer where they were */
    for (int64_t layer = 0; layer < c.n_layers; layer++) {
        check_attention(&s, layer, docs);
        check_positions(&s, layer, 0);
        check_positions(&s, layer, 11);
        check_positions(&s, layer, S + 5);
    }
    free(ids);
    free_subject(&s);
}

static void test_causal(void **state) {
    (void)state;
    check_model(MX8_MASK_CAUSAL, 0);
}

static void test_documents(void **state) {
    (void)state;
    check_model(MX8_MASK_DOCUMENT, 0);
}

static void test_chunks(void **state) {
    (void)state;
    check_model(MX8_MASK_CAUSAL, 2);
}

/* torchtitan of 2025-09 looks documents up at positions modulo the chunk; here they stay where they are. */
static void test_documents_in_chunks(void **state) {
    (void)state;
    check_model(MX8_MASK_DOCUMENT, 2);
    check_model(MX8_MASK_DOCUMENT, 3);
}

/* A document does not notice what stands before it: RoPE is relative, so its logits are those it has alone. */
static void test_documents_are_independent(void **state) {
    (void)state;
    struct mx8_model_config c = make_tiny_config();
    c.attn_mask = MX8_MASK_DOCUMENT;
    struct subject s = make_subject(&c, "f32", (struct mx8_model_options){.batch = 1, .seq_len = S}, 1);
    int32_t *ids = make_tokens(S, c.vocab_size, 22), docs[S] = {0}, first[S] = {0}, alone[S] = {0};
    enum { AT = 10 };
    for (int t = AT; t < S; t++) docs[t] = 1;
    for (int t = AT; t < S; t++) alone[t - AT] = ids[t];
    const int64_t V = c.vocab_size;
    float *packed = calloc((size_t)(S * V), sizeof *packed), *single = calloc((size_t)(S * V), sizeof *single);
    double loss = 0;
    assert_ok(mx8i_forward(s.m, ids, ids, docs, 1, &loss, packed));
    assert_ok(mx8i_forward(s.m, alone, alone, first, 1, &loss, single));
    for (int64_t i = AT * V; i < S * V; i++) assert_true(fabs((double)(packed[i] - single[i - AT * V])) < 1e-4);
    free(packed);
    free(single);
    free(ids);
    free_subject(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_causal), cmocka_unit_test(test_documents),
        cmocka_unit_test(test_chunks), cmocka_unit_test(test_documents_in_chunks),
        cmocka_unit_test(test_documents_are_independent)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
