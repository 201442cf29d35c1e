/* Every operator that a layer is made of, on sizes around a block and on 2880, in memory that ends at a forbidden page,
 * for every instruction set: the same bits from 1, 2, 3 and 7 threads. What the bits should be, other tests say. */
#include "ops_test.h"

static const int64_t sizes[] = {0, 1, 31, 32, 33, 2880};
static const int32_t threads[] = {1, 2, 3, 7};
static const char *const isas[] = {"scalar", "avx2", "avx512"};
#define COUNT(array) ((int)(sizeof(array) / sizeof(array)[0]))

static struct mx8_context *contexts[COUNT(isas)][COUNT(threads)];

static int open_contexts(void **state) {
    (void)state;
    for (int i = 0; i < COUNT(isas); i++)
        for (int t = 0; t < COUNT(threads); t++) {
            struct mx8_context_options o = {.isa = isas[i], .threads = threads[t]};
            if (mx8_create_context(&o, &contexts[i][t]) != MX8_OK) contexts[i][t] = NULL; /* not on this CPU */
        }
    return contexts[0][0] ? 0 : -1;
}

static int close_contexts(void **state) {
    (void)state;
    for (int i = 0; i < COUNT(isas); i++)
        for (int t = 0; t < COUNT(threads); t++) mx8_destroy_context(contexts[i][t]);
    return 0;
}

/* Runs the call (inputs and options set) everywhere. A shape that infer refuses is no case: returns 0. */
static int replay(const char *name, int32_t backward, const struct mx8_op_call *wanted) {
    const struct mx8_op *op = mx8_find_op(name);
    struct mx8_op_call call = *wanted;
    void *first[MX8_MAX_OUTPUTS] = {NULL};
    if (mx8_infer_op(op, backward, &call) != MX8_OK) return 0;
    size_t bytes[MX8_MAX_OUTPUTS] = {0};
    for (int i = 0; i < MX8_MAX_OUTPUTS; i++) {
        if (!call.out[i].ndim) continue;
        bytes[i] = (size_t)mx8_count_elements(&call.out[i]) * mx8_get_dtype_size(call.out[i].dtype);
        call.out[i].data = take(bytes[i]);
        first[i] = malloc(bytes[i] + 1);
    }
    call.workspace = take_aligned(call.workspace_size);
    for (int i = 0; i < COUNT(isas); i++) {
        for (int t = 0; t < COUNT(threads); t++) {
            if (!contexts[i][t]) continue;
            for (int k = 0; k < MX8_MAX_OUTPUTS; k++)
                if (bytes[k]) memset(call.out[k].data, 0xA5, bytes[k]);
            memset(call.workspace, 0xFF, call.workspace_size);
            assert_ok(mx8_run_op(contexts[i][t], op, backward, &call));
            for (int k = 0; k < MX8_MAX_OUTPUTS; k++) {
                if (!bytes[k]) continue;
                if (t == 0) memcpy(first[k], call.out[k].data, bytes[k]);
                if (memcmp(first[k], call.out[k].data, bytes[k]) != 0)
                    fail_msg("%s %s: output %d differs between 1 and %d threads on %s", name,
                        backward ? "backward" : "forward", k + 1, (int)threads[t], isas[i]);
            }
        }
    }
    for (int i = 0; i < MX8_MAX_OUTPUTS; i++) free(first[i]);
    return 1;
}

static const int32_t dtypes[] = {MX8_F32, MX8_BF16};

static void test_quantizers(void **state) {
    (void)state;
    for (int d = 0; d < 2; d++)
        for (int i = 0; i < COUNT(sizes); i++)
            for (int k = 0; k < COUNT(sizes); k++) {
                if (sizes[i] * sizes[k] > 3000 && sizes[i] != 32) continue; /* 2880 x 1, 1 x 2880, 32 x 2880 */
                struct mx8_op_call call = {.in = {new_normal(dtypes[d], 1, SHAPE(sizes[i], sizes[k]))}};
                replay("quantize_rows", 0, &call);
                replay("quantize_cols", 0, &call);
                replay("quantize_both", 0, &call);
                call.options.scale_group = 128;
                call.options.tile_rows = 32;
                replay("quantize_both", 0, &call);
                struct mx8_op_call three = {.in = {new_normal(dtypes[d], 1, SHAPE(2, sizes[i], sizes[k]))}};
                replay("quantize_3d", 0, &three);
            }
}

static void test_elementwise(void **state) {
    (void)state;
    for (int d = 0; d < 2; d++)
        for (int i = 0; i < COUNT(sizes); i++)
            for (int k = 0; k < COUNT(sizes); k++) {
                if (sizes[i] * sizes[k] > 3000 && sizes[i] != 32) continue; /* 2880 x 1, 1 x 2880, 32 x 2880 */
                struct mx8_tensor x = new_normal(dtypes[d], 1, SHAPE(sizes[i], sizes[k]));
                struct mx8_tensor y = new_normal(dtypes[d], 1, SHAPE(sizes[i], sizes[k]));
                struct mx8_tensor w = new_normal(dtypes[d], 1, SHAPE(sizes[k]));
                struct mx8_tensor rstd = new_tensor(MX8_F32, SHAPE(sizes[i]));
                fill(&rstd, 0.5);
                replay("swiglu", 0, &(struct mx8_op_call){.in = {x, y}});
                replay("swiglu", 1, &(struct mx8_op_call){.in = {x, y, x}});
                replay("add", 0, &(struct mx8_op_call){.in = {x, y}});
                replay("rmsnorm", 0, &(struct mx8_op_call){.in = {x, w}});
                replay("rmsnorm", 1, &(struct mx8_op_call){.in = {x, y, w, rstd}});
            }
}

static void test_products(void **state) {
    (void)state;
    static const int64_t rows[] = {1, 33};
    for (int precision = 0; precision < 2; precision++)
        for (int m = 0; m < COUNT(rows); m++)
            for (int i = 0; i < COUNT(sizes); i++) {
                /* MXFP8 needs whole blocks; infer refuses the rest */
                int64_t M = rows[m], K = sizes[i], N = i % 2 ? 64 : 32;
                struct mx8_op_options o = {.precision = precision};
                struct mx8_tensor x = new_normal(MX8_BF16, 1, SHAPE(M, K)), w = new_normal(MX8_BF16, 1, SHAPE(N, K));
                struct mx8_tensor dy = new_normal(MX8_BF16, 1, SHAPE(M, N));
                replay("linear", 0, &(struct mx8_op_call){.in = {x, w}, .options = o});
                replay("linear", 1, &(struct mx8_op_call){.in = {dy, x, w}, .options = o});
                int32_t ends[] = {0, (int32_t)M / 2, (int32_t)(M - M / 3)};
                struct mx8_tensor w3 = new_normal(MX8_BF16, 1, SHAPE(3, N, K)), offsets = new_i32(3, ends);
                replay("grouped_linear", 0, &(struct mx8_op_call){.in = {x, w3, offsets}, .options = o});
                replay("grouped_linear", 1, &(struct mx8_op_call){.in = {dy, x, w3, offsets}, .options = o});
            }
}

/* `count` numbers below `below`, or -1. */
static struct mx8_tensor new_ids(int64_t count, int64_t below) {
    struct mx8_tensor t = new_tensor(MX8_I32, SHAPE(count));
    for (int64_t i = 0; i < count; i++) put(&t, i, i % 11 == 7 ? -1 : (double)((5 * i + 3) % below));
    return t;
}

/* One of the two sizes is from the list, the other small. */
static void replay_lookups(int32_t dtype, int64_t T, int64_t D) {
    struct mx8_tensor x = new_normal(dtype, 1, SHAPE(T, D)), dy = new_normal(dtype, 1, SHAPE(T, D));
    struct mx8_tensor w = new_normal(dtype, 1, SHAPE(33, D)), ids = new_ids(T, 33);
    assert_true(replay("embedding", 0, &(struct mx8_op_call){.in = {ids, w}}));
    struct mx8_op_call back = {.in = {dy, ids}, .out = {mx8_make_tensor(NULL, MX8_F32, SHAPE(33, D))}};
    assert_true(replay("embedding", 1, &back));
    struct mx8_op_options o = {.limit = 0.8f};
    assert_true(replay("clamp", 0, &(struct mx8_op_call){.in = {x}, .options = o}));
    assert_true(replay("clamp", 1, &(struct mx8_op_call){.in = {dy, x}, .options = o}));
    assert_true(replay("lm_head_loss", 0, &(struct mx8_op_call){.in = {x, w, ids}}) || T * D == 0);
    assert_true(replay("lm_head_loss", 1, &(struct mx8_op_call){.in = {x, w, ids}}) || T * D == 0);
}

static void test_lookups(void **state) {
    (void)state;
    for (int d = 0; d < 2; d++)
        for (int i = 0; i < COUNT(sizes); i++) {
            replay_lookups(dtypes[d], sizes[i], 33);
            replay_lookups(dtypes[d], 5, sizes[i]);
        }
}

/* A router's choice, and tokens through it. */
static void replay_routing(int32_t dtype, int64_t T, int64_t E, int64_t D) {
    int32_t k = E < 2 ? (int32_t)E : 2;
    struct mx8_op_call r = {.in = {new_normal(dtype, 1, SHAPE(T, E))}, .options = {.top_k = k}};
    assert_true(replay("router", 0, &r));
    run_call("router", 0, &r);
    struct mx8_tensor scores = r.out[0], indices = r.out[1], weights = r.out[2], order = r.out[3], positions = r.out[4];
    struct mx8_tensor dweights = new_normal(MX8_F32, 1, SHAPE(T, k)), x = new_normal(dtype, 1, SHAPE(T, D));
    struct mx8_tensor rows = new_normal(dtype, 1, SHAPE(T * k, D));
    struct mx8_op_options o = {.top_k = k};
    assert_true(replay("router", 1, &(struct mx8_op_call){.in = {dweights, scores, indices, weights}, .options = o}));
    assert_true(replay("permute", 0, &(struct mx8_op_call){.in = {x, order, positions, weights}}));
    assert_true(replay("permute", 1, &(struct mx8_op_call){.in = {rows, x, order, positions, weights}}));
    assert_true(replay("combine", 0, &(struct mx8_op_call){.in = {rows, order, positions, weights, x}}));
    assert_true(replay("combine", 1, &(struct mx8_op_call){.in = {x, rows, order, positions, weights}}));
}

static void test_routing(void **state) {
    (void)state;
    for (int d = 0; d < 2; d++)
        for (int i = 0; i < COUNT(sizes); i++) {
            replay_routing(dtypes[d], sizes[i], 8, 33);
            replay_routing(dtypes[d], 33, 8, sizes[i]);
            if (sizes[i] > 0) replay_routing(dtypes[d], 33, sizes[i], 5);
        }
}

/* Two sequences of S tokens, two heads of d columns on one key head. */
static void replay_attention(int32_t dtype, int64_t S, int64_t d) {
    int64_t T = 2 * S;
    struct mx8_op_options o = {.n_heads = 2, .n_kv_heads = 1, .seq_len = S};
    struct mx8_tensor q = new_normal(dtype, 1, SHAPE(T, 2 * d)), grad = new_normal(dtype, 1, SHAPE(T, 2 * d));
    struct mx8_tensor k = new_normal(dtype, 1, SHAPE(T, d)), v = new_normal(dtype, 1, SHAPE(T, d));
    struct mx8_op_call forward = {.in = {q, k, v}, .options = o};
    assert_true(replay("attention", 0, &forward));
    run_call("attention", 0, &forward);
    struct mx8_op_call back = {.in = {grad, q, k, v, forward.out[0], forward.out[1]}, .options = o};
    assert_true(replay("attention", 1, &back));
    struct mx8_tensor table = new_normal(MX8_F32, 1, SHAPE(S, d / 2, 2));
    assert_true(replay("rope", 0, &(struct mx8_op_call){.in = {q, table}, .options = o}));
    assert_true(replay("rope", 1, &(struct mx8_op_call){.in = {grad, table}, .options = o}));
}

static void test_attention(void **state) {
    (void)state;
    for (int d = 0; d < 2; d++) {
        for (int i = 1; i < COUNT(sizes); i++) {
            if (sizes[i] < 2880) replay_attention(dtypes[d], sizes[i], 32);
            if (sizes[i] % 2 == 0 && sizes[i] < 2880) replay_attention(dtypes[d], 33, sizes[i] * 2);
        }
        replay_attention(dtypes[d], 2880, 4);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_shelf_test(test_quantizers),
        cmocka_shelf_test(test_elementwise),
        cmocka_shelf_test(test_products),
        cmocka_shelf_test(test_lookups),
        cmocka_shelf_test(test_routing),
        cmocka_shelf_test(test_attention),
    };
    return cmocka_run_group_tests(tests, open_contexts, close_contexts);
}
