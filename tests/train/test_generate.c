/* Sampling: what the options keep, how often each token comes, the same text from the same seed; and valid UTF-8. */
#include <math.h>
#include "train/job_testing.h"
#include "base/memory.h"
#include "model/model_helpers.h"
#include "train/generate.h"

#define SQRT2 1.4142135623730951 /* a constant to every compiler */

enum { V = 6 };
/* Probabilities 0.5, 0.25, 0.125, ... at temperature 1, ids shuffled: id 3 first, then 0, 5, 1, 4, 2. */
static const int32_t order[V] = {3, 0, 5, 1, 4, 2};

static void make_logits(float logits[V]) {
    for (int i = 0; i < V; i++) logits[order[i]] = 10 - (float)i * (float)log(2);
}

static void test_shares(void **state) {
    (void)state;
    static const struct {
        struct mx8_sampling s;
        double share[V]; /* in falling order; 0: never */
    } cases[] = {
        {{0}, {1, 0, 0, 0, 0, 0}},
        {{.temperature = 1}, {32. / 63, 16. / 63, 8. / 63, 4. / 63, 2. / 63, 1. / 63}},
        {{.temperature = 1, .top_k = 2}, {2. / 3, 1. / 3, 0, 0, 0, 0}},
        {{.temperature = 1, .top_p = 0.7}, {2. / 3, 1. / 3, 0, 0, 0, 0}},
        {{.temperature = 1, .top_p = 0.5}, {1, 0, 0, 0, 0, 0}}, /* 32/63 is half already */
        {{.temperature = 1, .top_p = 1e-9}, {1, 0, 0, 0, 0, 0}},
        {{.temperature = 0.5, .top_k = 3}, {16. / 21, 4. / 21, 1. / 21, 0, 0, 0}},
        {{.temperature = 2, .top_k = 2, .top_p = 0.99}, {2 - SQRT2, SQRT2 - 1, 0, 0, 0, 0}},
        {{.temperature = 1, .top_k = 100}, {32. / 63, 16. / 63, 8. / 63, 4. / 63, 2. / 63, 1. / 63}},
    };
    enum { DRAWS = 20000 };
    float logits[V];
    struct mx8_candidate scratch[V];
    make_logits(logits);
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        int seen[V] = {0};
        for (uint64_t n = 0; n < DRAWS; n++) {
            int32_t id, again;
            assert_ok(mx8i_sample_token(logits, V, &cases[c].s, n, scratch, &id));
            assert_in_range(id, 0, V - 1);
            seen[id]++;
            if (n % 1000) continue;
            assert_ok(mx8i_sample_token(logits, V, &cases[c].s, n, scratch, &again));
            assert_int_equal(id, again);
        }
        for (int i = 0; i < V; i++) {
            const double p = cases[c].share[i], got = (double)seen[order[i]] / DRAWS;
            if (fabs(got - p) > 4.5 * sqrt(p * (1 - p) / DRAWS)) /* exact where p is 0 or 1 */
                fail_msg("case %d: token %d comes in %g of the draws, expected %g", (int)c, (int)order[i], got, p);
        }
    }
}

static void test_strange_logits(void **state) {
    (void)state;
    struct mx8_candidate scratch[V];
    const struct mx8_sampling greedy = {0}, free = {.temperature = 1};
    int32_t id;
    float tie[V] = {1, 2, 2, 2, 0, 9}, nans[V] = {(float)NAN, 1, (float)NAN, 0, 0, 0},
          all[2] = {(float)NAN, (float)NAN};
    float infinite[V] = {0, (float)INFINITY, 0, 0, 0, 0};
    assert_ok(mx8i_sample_token(tie, 5, &greedy, 0, scratch, &id)); /* id 5 is not allowed; the lowest among equals */
    assert_int_equal(id, 1);
    assert_ok(mx8i_sample_token(nans, V, &greedy, 0, scratch, &id));
    assert_int_equal(id, 1);
    for (uint64_t n = 0; n < 50; n++) {
        assert_ok(mx8i_sample_token(infinite, V, &free, n, scratch, &id));
        assert_int_equal(id, 1);
        assert_ok(mx8i_sample_token(nans, V, &free, n, scratch, &id));
        assert_true(id != 0 && id != 2);
    }
    assert_status(mx8i_sample_token(all, 2, &free, 0, scratch, &id), MX8_NOT_FINITE);
    assert_message("all 2 logits are NaN");
}

static void collect(void *user, const char *text, size_t size) {
    strncat(user, text, size);
}

static void test_utf8(void **state) {
    (void)state;
#define BAD "\xEF\xBF\xBD"
    static const struct {
        const char *in, *out;
    } cases[] = {{"", ""}, {"plain", "plain"}, {"\xC3\xA9t\xC3\xA9", "\xC3\xA9t\xC3\xA9"},
        {"\xE2\x82\xAC\xF0\x9F\x98\x80", "\xE2\x82\xAC\xF0\x9F\x98\x80"}, {"\xC3", BAD}, {"\xC3x", BAD "x"},
        {"\x80\xBF", BAD BAD}, {"\xE2\x82", BAD}, {"\xE2\x82x\xF0\x9F", BAD "x" BAD}, {"\xC0\xAF", BAD BAD},
        {"\xE0\x80\x80", BAD BAD BAD}, {"\xED\xA0\x80", BAD BAD BAD}, {"\xF4\x90\x80\x80", BAD BAD BAD BAD},
        {"\xF4\x8F\xBF\xBF", "\xF4\x8F\xBF\xBF"}, {"\xFF\xFE", BAD BAD}, {"\xE2\xC3\xA9", BAD "\xC3\xA9"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        for (size_t piece = 1; piece < 4; piece++) {
            char got[64] = "";
            const struct mx8_text_sink sink = {.write = collect, .user = got};
            struct mx8_utf8_stream s = {.sink = &sink};
            const size_t size = strlen(cases[i].in);
            for (size_t at = 0; at < size; at += piece)
                mx8i_push_utf8(&s, cases[i].in + at, size - at < piece ? size - at : piece);
            mx8i_end_utf8(&s);
            if (strcmp(got, cases[i].out)) fail_msg("case %d in pieces of %d gave \"%s\"", (int)i, (int)piece, got);
        }
    }
}

struct made {
    struct mx8_tokens tokens;
    struct mx8_generated result;
    char text[512];
};

static struct made make_text(struct mx8_model *m, const struct mx8_generation *g) {
    struct made made = {0};
    struct mx8_tokenizer *t;
    const struct mx8_tokenizer_options options = {0};
    const struct mx8_text_sink sink = {.write = collect, .user = made.text};
    struct mx8_utf8_stream stream = {.sink = &sink};
    assert_ok(mx8i_open_tokenizer("bytes", &options, &t));
    assert_ok(mx8i_append_token(&made.tokens, 256));
    assert_ok(mx8i_append_token(&made.tokens, 'a'));
    assert_ok(mx8i_generate(m, t, g, &made.tokens, &stream, &made.result));
    mx8i_close_tokenizer(t);
    return made;
}

static void test_text(void **state) {
    (void)state;
    struct mx8_model_config c = make_tiny_config();
    c.vocab_size = 288; /* ids 258 and up have no meaning and must not come */
    struct subject one = make_subject(&c, "f32", (struct mx8_model_options){.batch = 1, .seq_len = 40}, 1);
    struct subject three = make_subject(&c, "f32", (struct mx8_model_options){.batch = 1, .seq_len = 40}, 3);
    struct mx8_generation g = {.sampling = {.temperature = 1, .seed = 5}, .most = 20};
    struct made a = make_text(one.m, &g), b = make_text(three.m, &g);
    assert_int_equal(a.result.tokens, 20);
    assert_int_equal(a.tokens.count, 22);
    assert_memory_equal(a.tokens.id, b.tokens.id, 22 * sizeof(int32_t));
    assert_string_equal(a.text, b.text);
    for (int64_t i = 2; i < 22; i++) assert_true(a.tokens.id[i] < 258);
    g.sampling.seed = 6;
    struct made other = make_text(one.m, &g);
    assert_true(memcmp(a.tokens.id, other.tokens.id, 22 * sizeof(int32_t)) != 0);

    g.sampling.seed = 5; /* a token of before as an end mark: the text ends in front of it */
    g.stop = &a.tokens.id[10];
    g.n_stop = 1;
    struct made ended = make_text(one.m, &g);
    assert_true(ended.result.stopped && ended.tokens.count <= 10);
    assert_memory_equal(ended.tokens.id, a.tokens.id, (size_t)ended.tokens.count * sizeof(int32_t));
    g.n_stop = 0;
    g.most = 1000; /* the model's own length ends it */
    struct made full = make_text(one.m, &g);
    assert_int_equal(full.tokens.count, 40);
    assert_int_equal(full.result.stopped, 0);
    mx8i_release(a.tokens.id);
    mx8i_release(b.tokens.id);
    mx8i_release(other.tokens.id);
    mx8i_release(ended.tokens.id);
    mx8i_release(full.tokens.id);
    free_subject(&one);
    free_subject(&three);
}

/* A short walk in memory that was planned for a long one gives the bits of one planned for it. */
static void test_logits_of_every_length(void **state) {
    (void)state;
    struct mx8_model_config c = make_tiny_config();
    c.every_n_layers_nope = 2;
    c.fixed_attn_block_size = 7;
    static const char *const recipes[] = {"f32", "bf16", "mxfp8_moe"};
    for (int r = 0; r < 3; r++) {
        struct subject whole = make_subject(&c, recipes[r], (struct mx8_model_options){.batch = 2, .seq_len = 33}, 1);
        int32_t *ids = make_tokens(33, c.vocab_size, 3);
        const int64_t lengths[] = {1, 2, 8, 31, 32, 33};
        for (int i = 0; i < 6; i++) {
            const int64_t n = lengths[i], values = c.vocab_size * n;
            struct subject exact =
                make_subject(&c, recipes[r], (struct mx8_model_options){.batch = 1, .seq_len = n}, 1);
            float *got = malloc((size_t)values * sizeof *got), *want = malloc((size_t)values * sizeof *want);
            double loss = 0;
            assert_ok(mx8i_forward(exact.m, ids, ids, NULL, 1, &loss, want));
            assert_ok(mx8i_compute_logits(whole.m, ids, n, 0, got));
            assert_memory_equal(got, want, (size_t)values * sizeof *got);
            assert_ok(mx8i_compute_logits(whole.m, ids, n, n - 1, got));
            assert_memory_equal(got, want + values - c.vocab_size, (size_t)c.vocab_size * sizeof *got);
            free(got);
            free(want);
            free_subject(&exact);
        }
        assert_status(mx8i_compute_logits(whole.m, ids, 34, 0, NULL), MX8_INVALID_ARGUMENT);
        ids[1] = (int32_t)c.vocab_size;
        assert_status(mx8i_compute_logits(whole.m, ids, 2, 0, NULL), MX8_INVALID_ARGUMENT);
        assert_message("token 96 at position 1");
        free(ids);
        free_subject(&whole);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_shares), cmocka_unit_test(test_strange_logits),
        cmocka_unit_test(test_utf8), cmocka_unit_test(test_text), cmocka_unit_test(test_logits_of_every_length)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
