/* One step: what must not change its numbers (checkpointing, threads, accumulation), and what it must survive. */
#include "model_helpers.h"
#include "model/internal.h"
#include "base/error.h"

static const struct mx8_model_options small = {.batch = 2, .seq_len = 24};

/* Every shape of model: MoE only, interleaved with scores after the experts, softmax without shared experts, iRoPE. */
static struct mx8_model_config make_variant(int variant) {
    struct mx8_model_config c = make_tiny_config();
    c.n_layers = 3;
    if (variant == 1) {
        c.interleave_moe_layer_step = 2;
        c.score_before_experts = 0;
        c.top_k = 2;
        c.route_norm = 1;
        c.multiple_of = 64;
    }
    if (variant == 2) {
        c.score_func = MX8_SCORE_SOFTMAX;
        c.num_shared_experts = 0;
        c.top_k = 3;
        c.load_balance_coeff = (double)NAN;
    }
    if (variant == 3) {
        c.every_n_layers_nope = 2;
        c.fixed_attn_block_size = 7;
        c.attn_mask = MX8_MASK_DOCUMENT;
    }
    return c;
}
enum { VARIANTS = 4 };

static const char *const recipes[] = {"f32", "bf16", "mxfp8_dense", "mxfp8_moe"};
enum { RECIPES = 4 };

/* Documents of 9 and 15 tokens in the first sequence, of 24 in the second. */
static int32_t *make_docs(int64_t T) {
    int32_t *docs = calloc((size_t)T, sizeof *docs);
    for (int64_t t = 9; t < T; t++) docs[t] = t < 24 ? 1 : 2;
    return docs;
}

static double step(struct subject *s, const int32_t *ids) {
    int32_t *docs = make_docs(s->T);
    double loss = run_step(s, ids, docs);
    free(docs);
    return loss;
}

static void test_checkpointing_changes_no_bit(void **state) {
    (void)state;
    const int32_t modes[] = {MX8_AC_FULL, MX8_AC_EVERY_N, MX8_AC_OPS};
    for (int i = 0; i < VARIANTS * RECIPES; i++) {
        struct mx8_model_config c = make_variant(i % VARIANTS);
        struct subject plain = make_subject(&c, recipes[i / VARIANTS], small, 1);
        int32_t *ids = make_tokens(plain.T, c.vocab_size, 1);
        double loss = step(&plain, ids);
        for (size_t n = 0; n < sizeof modes / sizeof modes[0]; n++) {
            struct mx8_model_options o = small;
            o.ac_mode = modes[n];
            o.ac_every = 2;
            struct subject s = make_subject(&c, recipes[i / VARIANTS], o, 1);
            assert_true(step(&s, ids) == loss);
            assert_same_gradients(plain.m, s.m);
            assert_true(mx8i_get_memory_plan(s.m, NULL)->saved < mx8i_get_memory_plan(plain.m, NULL)->saved);
            free_subject(&s);
        }
        free(ids);
        free_subject(&plain);
    }
}

/* With scale groups of 256 the gradients inside an FFN exist as codes only, unless somebody looks at values: a dump
 * does, here of nothing. */
static void test_joined_gradients_change_no_bit(void **state) {
    (void)state;
    const int32_t modes[] = {MX8_AC_NONE, MX8_AC_FULL, MX8_AC_OPS};
    struct mx8_dump nothing = {.folder = "/proc/none", .names = "no module"};
    for (int i = 0; i < VARIANTS * 3 * 3; i++) {
        struct mx8_model_config c = make_variant(i % VARIANTS);
        const int way = i / VARIANTS / 3; /* all linears; experts alone; without their w2 */
        struct mx8_recipe r = make_recipe("mxfp8_moe");
        r.convert_linear = way != 1;
        if (way == 2) snprintf(r.expert_fqns, sizeof r.expert_fqns, "experts.w1,experts.w3");
        r.scale_group = 256;
        r.scale_rule = i % 2 ? MX8_SCALE_FLOOR : MX8_SCALE_RCEIL;
        r.alignment = 32 << i % 3;
        struct mx8_model_options o = small;
        o.training = 1;
        o.ac_mode = modes[i / VARIANTS % 3];
        struct subject s[2];
        double loss[2];
        int32_t *ids = NULL;
        for (int apart = 0; apart < 2; apart++) {
            s[apart] = (struct subject){.ctx = make_context(1), .T = o.batch * o.seq_len};
            assert_ok(mx8i_plan_model(&c, &r, &o, &s[apart].m));
            assert_ok(mx8i_allocate_model(s[apart].m, s[apart].ctx));
            assert_ok(mx8i_init_weights(s[apart].m, 7));
            mx8i_set_dump(s[apart].m, apart ? &nothing : NULL);
            if (!ids) ids = make_tokens(s[0].T, c.vocab_size, 1);
            for (int again = 0; again < 2; again++) loss[apart] = step(&s[apart], ids); /* over what the first one left */
        }
        assert_true(loss[0] == loss[1]);
        assert_same_gradients(s[0].m, s[1].m);
        int64_t clipped[2];
        for (int apart = 0; apart < 2; apart++) assert_ok(mx8i_take_saturated(s[apart].m, &clipped[apart]));
        assert_int_equal(clipped[0], clipped[1]);
        free(ids);
        for (int apart = 0; apart < 2; apart++) free_subject(&s[apart]);
    }
}

static void test_threads_change_no_bit(void **state) {
    (void)state;
    for (int i = 0; i < VARIANTS; i++) {
        struct mx8_model_config c = make_variant(i);
        const char *recipe = recipes[i % 2 ? 3 : 1];
        struct subject one = make_subject(&c, recipe, small, 1);
        int32_t *ids = make_tokens(one.T, c.vocab_size, 2);
        double loss = step(&one, ids);
        for (int32_t threads = 2; threads <= 3; threads++) {
            struct subject s = make_subject(&c, recipe, small, threads);
            assert_true(step(&s, ids) == loss);
            assert_same_gradients(one.m, s.m);
            free_subject(&s);
        }
        free(ids);
        free_subject(&one);
    }
}

/* Two microbatches of one sequence against one of two. Order of summation differs, nothing else. */
static void test_accumulation(void **state) {
    (void)state;
    for (int i = 0; i < 3; i++) {
        struct mx8_model_config c = make_variant(i);
        struct subject whole = make_subject(&c, "f32", small, 1);
        struct subject half = make_subject(&c, "f32", (struct mx8_model_options){.batch = 1, .seq_len = 24}, 1);
        const int64_t T = whole.T, H = half.T;
        int32_t *ids = make_tokens(T, c.vocab_size, 3);
        double loss = step(&whole, ids), sum = 0;
        for (int32_t n = 0; n < 2; n++) {
            assert_ok(mx8i_forward_backward(half.m, ids + n * H, ids + T + n * H, NULL, 1.0f / (float)T, n, &sum));
        }
        assert_true(fabs(sum - loss) < 1e-6);
        for (int64_t n = 0; n < mx8i_get_params(whole.m)->count; n++) {
            const struct mx8_param *p = &mx8i_get_params(whole.m)->param[n];
            double sqnr = get_sqnr(mx8i_get_gradients(half.m) + p->at, mx8i_get_gradients(whole.m) + p->at, p->count);
            if (sqnr < 100) fail_msg("%s: %.1f dB", p->name, sqnr);
        }
        int64_t ours[4], theirs[4]; /* loads add up as gradients do */
        assert_ok(mx8i_get_expert_load(half.m, 0, ours));
        assert_ok(mx8i_get_expert_load(whole.m, 0, theirs));
        assert_memory_equal(ours, theirs, sizeof ours);
        free(ids);
        free_subject(&half);
        free_subject(&whole);
    }
}

/* Without accumulate the gradients of the step before are gone. */
static void test_gradients_are_replaced(void **state) {
    (void)state;
    struct mx8_model_config c = make_variant(1);
    struct subject s = make_subject(&c, "bf16", small, 1), fresh = make_subject(&c, "bf16", small, 1);
    int32_t *first = make_tokens(s.T, c.vocab_size, 4), *second = make_tokens(s.T, c.vocab_size, 5);
    step(&s, first);
    assert_true(step(&s, second) == step(&fresh, second));
    assert_same_gradients(fresh.m, s.m);
    free(first);
    free(second);
    free_subject(&s);
    free_subject(&fresh);
}

/* Gradients that are written later lend the head its workspace: the same bits, and zeros between the tensors. */
static void test_head_in_gradients(void **state) {
    (void)state;
    for (int i = 0; i < 3; i++) {
        struct mx8_model_config c = make_variant(i);
        const char *recipe = i < 2 ? "bf16" : "mxfp8_moe";
        c.dim = 96; /* no multiple of 64: tensors with gaps behind them */
        struct mx8_model_options lent = small;
        lent.loss_chunk_rows = -1;
        struct subject plain = make_subject(&c, recipe, small, 1), s = make_subject(&c, recipe, lent, 1);
        assert_true(mx8i_get_memory_plan(s.m, NULL)->scratch <= mx8i_get_memory_plan(plain.m, NULL)->scratch);
        assert_true(s.m->head_bytes > 0 && plain.m->head_bytes == 0);
        int32_t *ids = make_tokens(s.T, c.vocab_size, 8);
        for (int n = 0; n < 2; n++) assert_true(step(&plain, ids) == step(&s, ids));
        assert_same_gradients(plain.m, s.m);
        const struct mx8_param_table *t = mx8i_get_params(s.m);
        int64_t gaps = 0;
        for (int64_t n = 0; n < t->count; n++) {
            const size_t next = n + 1 < t->count ? t->param[n + 1].at : t->elements;
            for (size_t e = t->param[n].at + (size_t)t->param[n].count; e < next; e++, gaps++)
                assert_true(mx8i_get_gradients(s.m)[e] == 0);
        }
        assert_true(gaps > 0);
        double loss = 0; /* accumulation needs the gradients that would be overwritten */
        assert_int_equal(mx8i_forward_backward(s.m, ids, ids + s.T, NULL, 1, 1, &loss), MX8_INVALID_ARGUMENT);
        free(ids);
        free_subject(&plain);
        free_subject(&s);
    }
}

static enum mx8_status refuse_graph(const struct mx8_exec *x) {
    (void)x;
    return MX8_FAIL(MX8_UNSUPPORTED, "no graph today");
}

static void keep_note(void *user, const char *line) {
    snprintf(user, 256, "%s", line);
}

/* A device that does not record: told once, and the steps are those without. */
static void test_graph_fallback(void **state) {
    (void)state;
    struct mx8_model_config c = make_variant(0);
    struct subject plain = make_subject(&c, "bf16", small, 1), s = make_subject(&c, "bf16", small, 1);
    struct mx8_kernels k = *s.ctx->exec.k;
    const struct mx8_kernels *real = s.ctx->exec.k;
    char note[256] = "";
    const struct mx8_log log = {keep_note, note};
    k.begin_graph = refuse_graph;
    s.ctx->exec.k = &k;
    mx8i_use_graphs(s.m, &log);
    int32_t *ids = make_tokens(s.T, c.vocab_size, 8);
    for (int n = 0; n < 3; n++) {
        assert_true(step(&plain, ids) == step(&s, ids));
        assert_int_equal(strstr(note, "no graph today") != NULL, n == 1); /* the first step is never recorded */
        note[0] = 0;
    }
    assert_same_gradients(plain.m, s.m);
    s.ctx->exec.k = real;
    free(ids);
    free_subject(&plain);
    free_subject(&s);
}

static double compute_loss(const float *logits, int64_t V, const int32_t *targets, int64_t T) {
    double loss = 0;
    for (int64_t t = 0; t < T; t++) {
        double sum = 0;
        for (int64_t v = 0; v < V; v++) sum += exp((double)logits[t * V + v]);
        loss += log(sum) - (double)logits[t * V + targets[t]];
    }
    return loss / (double)T;
}

static void test_validation(void **state) {
    (void)state;
    for (int i = 0; i < 3 * RECIPES; i++) {
        struct mx8_model_config c = make_variant(i % 3);
        struct subject s = make_subject(&c, recipes[i / 3], small, 1);
        const int64_t V = c.vocab_size;
        int32_t *ids = make_tokens(s.T, V, 6);
        float *logits = calloc((size_t)(s.T * V), sizeof *logits);
        double loss = 0;
        int64_t counts[4], total = 0;
        assert_ok(mx8i_forward(s.m, ids, ids + s.T, NULL, 1.0f / (float)s.T, &loss, logits));
        for (int64_t n = 0; n < s.T * V; n++) assert_true(isfinite(logits[n]));
        assert_true(fabs(compute_loss(logits, V, ids + s.T, s.T) - loss) < 1e-5);
        assert_ok(mx8i_get_expert_load(s.m, 0, counts));
        for (int e = 0; e < 4; e++) total += counts[e];
        assert_int_equal(total, 0); /* counted in training only */
        assert_true(fabs(step(&s, ids) - loss) == 0);
        free(logits);
        free(ids);
        free_subject(&s);
    }
}

/* Targets below zero have no loss and no gradient. */
static void test_ignored_targets(void **state) {
    (void)state;
    struct mx8_model_config c = make_variant(0);
    struct subject s = make_subject(&c, "f32", small, 1);
    int32_t *ids = make_tokens(s.T, c.vocab_size, 7);
    for (int64_t t = 0; t < s.T; t++) ids[s.T + t] = -1;
    assert_true(step(&s, ids) == 0);
    for (size_t i = 0; i < mx8i_get_params(s.m)->elements; i++) assert_true(mx8i_get_gradients(s.m)[i] == 0.0f);
    free(ids);
    free_subject(&s);
}

/* Experts without tokens: their gradients are exactly zero and nothing else suffers. */
static void test_empty_experts(void **state) {
    (void)state;
    for (int i = 0; i < RECIPES; i++) {
        struct mx8_model_config c = make_variant(0);
        struct subject s = make_subject(&c, recipes[i], small, 1);
        const struct mx8_param_table *t = mx8i_get_params(s.m);
        for (int64_t n = 0; n < t->buffer_count; n++) { /* everybody to expert 2 */
            mx8i_get_buffers(s.m)[t->buffer[n].at + 2] = 10;
        }
        int32_t *ids = make_tokens(s.T, c.vocab_size, 8);
        double loss = step(&s, ids);
        assert_true(isfinite(loss));
        const char *bad;
        assert_ok(mx8i_find_not_finite(s.m, 1, &bad));
        assert_null(bad);
        int64_t counts[4], n;
        assert_ok(mx8i_get_expert_load(s.m, 1, counts));
        for (int e = 0; e < 4; e++) assert_int_equal(counts[e], e == 2 ? s.T : 0);
        const float *g = find_gradient(s.m, "layers.1.moe.experts.w2", &n);
        double used = 0;
        for (int64_t j = 0; j < n; j++) {
            if (j / (n / 4) == 2)
                used += fabs((double)g[j]);
            else
                assert_true(g[j] == 0.0f);
        }
        assert_true(used > 0);
        free(ids);
        free_subject(&s);
    }
}

/* Everything converted, the head and K/V included, at a row count that is no multiple of 32; and the options that
 * change how products are made. Each follows f32 as closely as eight bits can. */
static void test_recipe_options(void **state) {
    (void)state;
    static const struct {
        int32_t scale_rule, group, tile, wgrad_hp, exact, dtype;
    } cases[] = {
        {0, 0, 0, 0, 0, MX8_BF16},
        {MX8_SCALE_FLOOR, 0, 0, 1, 0, MX8_BF16},
        {0, 32, 32, 0, 1, MX8_BF16},
        {0, 128, 1, 0, 0, MX8_F32},
        {MX8_SCALE_EVEN, 32, 1, 1, 0, MX8_F32},
    };
    struct mx8_model_config c = make_variant(1);
    struct subject f32 = make_subject(&c, "f32", small, 1);
    int32_t *ids = make_tokens(f32.T, c.vocab_size, 9);
    double want = step(&f32, ids);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct mx8_recipe r = make_recipe("mxfp8_moe");
        snprintf(r.filter_fqns, sizeof r.filter_fqns, "router.gate");
        r.scale_rule = cases[i].scale_rule;
        r.scale_group = r.weight_scale_group = cases[i].group;
        r.tile_rows = r.weight_tile_rows = cases[i].tile;
        r.wgrad_hp = cases[i].wgrad_hp;
        r.exact = cases[i].exact;
        r.dtype = cases[i].dtype;
        struct mx8_model_options o = small;
        o.training = 1;
        struct subject s = {.ctx = make_context(1), .T = f32.T};
        assert_ok(mx8i_plan_model(&c, &r, &o, &s.m));
        assert_ok(mx8i_allocate_model(s.m, s.ctx));
        assert_ok(mx8i_init_weights(s.m, 7));
        assert_true(fabs(step(&s, ids) - want) < 0.02);
        int64_t n;
        const float *g = find_gradient(f32.m, "output.weight", &n);
        double sqnr = get_sqnr(find_gradient(s.m, "output.weight", NULL), g, n);
        if (sqnr < 18) fail_msg("case %d: the head's gradient has %.1f dB", (int)i, sqnr);
        free_subject(&s);
    }
    free(ids);
    free_subject(&f32);
}

/* One tensor's codes in both orientations against the typed quantizers, with the weights' own scale geometry. */
static void check_codes(struct subject *s, const char *name, const struct mx8_op_options *o) {
    const struct mx8_param *p = mx8i_find_param(mx8i_get_params(s->m), name);
    struct mx8_forms w = mx8i_view_weight(s->m, p);
    const int64_t n = p->count, K = p->shape[p->ndim - 1], rows[2] = {n / K, K}, scales[2] = {n / K, K / 32};
    uint8_t *codes = calloc((size_t)n, 1), *bytes = calloc((size_t)(n / 32), 1);
    assert_true(!w.hp.ndim); /* codes and masters are all that there is */
    const struct mx8_exec *on = &s->ctx->exec;
    w.hp = mx8_make_tensor(calloc((size_t)n, 2), MX8_BF16, p->ndim, p->shape);
    assert_ok(on->k->cast(on, w.hp.data, MX8_BF16, mx8i_get_masters(s->m) + p->at, MX8_F32, n));
    struct mx8_tensor x = mx8_make_tensor(w.hp.data, w.hp.dtype, 2, rows),
                      q = mx8_make_tensor(codes, w.row.dtype, 2, rows);
    struct mx8_tensor e = mx8_make_tensor(bytes, MX8_F8_E8M0, 2, scales);
    assert_ok(mx8_quantize_rows(s->ctx, &q, &e, &x, o));
    assert_memory_equal(codes, w.row.data, (size_t)n);
    assert_memory_equal(bytes, w.row_scale.data, (size_t)(n / 32));
    q = w.col;
    e = w.col_scale;
    q.data = codes;
    e.data = bytes;
    if (p->ndim == 3)
        assert_ok(mx8_quantize_3d(s->ctx, &q, &e, &w.hp, o));
    else
        assert_ok(mx8_quantize_cols(s->ctx, &q, &e, &w.hp, o));
    assert_memory_equal(codes, w.col.data, (size_t)n);
    assert_memory_equal(bytes, w.col_scale.data, (size_t)(n / 32));
    free(w.hp.data);
    free(codes);
    free(bytes);
}

/* Whatever the pieces are that masters are rounded in: all at once, 256 rows or an expert at a time. `multiple`: of an
 * expert's rows, which a scale group of 128 divides or does not. */
static void check_weight_codes(int64_t piece, int64_t multiple) {
    struct mx8_model_config c = make_variant(0);
    c.dim = 128;
    c.vocab_size = 672; /* two pieces of 256 rows and a short one */
    c.multiple_of = multiple;
    struct mx8_recipe r = make_recipe("mxfp8_moe");
    snprintf(r.filter_fqns, sizeof r.filter_fqns, "router.gate");
    r.scale_rule = MX8_SCALE_FLOOR;
    r.weight_scale_group = 128;
    r.weight_tile_rows = 32;
    struct mx8_model_options o = small;
    struct subject s = {.ctx = make_context(1), .T = o.batch * o.seq_len};
    assert_ok(mx8i_plan_model(&c, &r, &o, &s.m));
    assert_ok(mx8i_allocate_model(s.m, s.ctx));
    if (piece) s.m->weight_piece = piece;
    memset(s.m->codes, 0x5A, s.m->params.code_bytes);
    memset(s.m->scratch.base, 0x5A, s.m->plan->scratch);
    assert_ok(mx8i_init_weights(s.m, 7));
    const struct mx8_op_options geometry = {
        .scale_rule = MX8_SCALE_FLOOR, .scale_group = 128, .tile_rows = 32};
    check_codes(&s, "output.weight", &geometry);
    check_codes(&s, "layers.1.attention.wq.weight", &geometry);
    check_codes(&s, "layers.2.moe.experts.w1", &geometry);
    check_codes(&s, "layers.0.moe.experts.w2", &geometry);
    free_subject(&s);
}

static void test_weight_codes(void **state) {
    (void)state;
    for (int64_t piece = 0; piece < 3; piece++) {
        check_weight_codes(piece == 2 ? 70000 : piece, 128);
        check_weight_codes(piece == 2 ? 70000 : piece, 32);
    }
}

/* FLOOR clips what RCEIL does not; a recomputed layer is not counted twice. */
static void test_saturation_count(void **state) {
    (void)state;
    int64_t counts[3] = {0};
    for (int i = 0; i < 3; i++) {
        struct mx8_model_config c = make_variant(0);
        struct mx8_recipe r = make_recipe("mxfp8_moe");
        r.scale_rule = i ? MX8_SCALE_FLOOR : MX8_SCALE_RCEIL;
        struct mx8_model_options o = small;
        o.training = 1;
        o.ac_mode = i == 2 ? MX8_AC_FULL : MX8_AC_NONE;
        struct subject s = {.ctx = make_context(1), .T = o.batch * o.seq_len};
        assert_ok(mx8i_plan_model(&c, &r, &o, &s.m));
        assert_ok(mx8i_allocate_model(s.m, s.ctx));
        assert_ok(mx8i_init_weights(s.m, 7));
        int32_t *ids = make_tokens(s.T, c.vocab_size, 10);
        step(&s, ids);
        assert_ok(mx8i_take_saturated(s.m, &counts[i]));
        int64_t again;
        assert_ok(mx8i_take_saturated(s.m, &again));
        assert_int_equal(again, 0);
        free(ids);
        free_subject(&s);
    }
    assert_int_equal(counts[0], 0);
    assert_true(counts[1] > 0);
    assert_int_equal(counts[2], counts[1]);
}

static void test_not_finite(void **state) {
    (void)state;
    struct mx8_model_config c = make_variant(1);
    struct subject s = make_subject(&c, "bf16", small, 1);
    int32_t *ids = make_tokens(s.T, c.vocab_size, 11);
    const char *name = "";
    step(&s, ids);
    assert_ok(mx8i_find_not_finite(s.m, 0, &name));
    assert_null(name);
    assert_ok(mx8i_find_not_finite(s.m, 1, &name));
    assert_null(name);
    const struct mx8_param *p = mx8i_find_param(mx8i_get_params(s.m), "layers.1.moe.experts.w3");
    mx8i_get_masters(s.m)[p->at + (size_t)p->count - 1] = (float)INFINITY;
    assert_ok(mx8i_find_not_finite(s.m, 0, &name));
    assert_string_equal(name, p->name);
    assert_ok(mx8i_refresh_weights(s.m, 0));
    step(&s, ids);
    assert_ok(mx8i_find_not_finite(s.m, 1, &name));
    assert_non_null(name);
    free(ids);
    free_subject(&s);
}

static void test_bad_batches(void **state) {
    (void)state;
    struct mx8_model_config c = make_variant(3);
    struct subject s = make_subject(&c, "bf16", small, 1);
    int32_t *ids = make_tokens(s.T, c.vocab_size, 12);
    double loss = 0;
    assert_status(mx8i_forward_backward(s.m, ids, ids + s.T, NULL, 1, 0, &loss), MX8_INVALID_ARGUMENT);
    assert_message("document");
    ids[5] = (int32_t)c.vocab_size;
    assert_status(mx8i_forward_backward(s.m, ids, ids + s.T, ids, 1, 0, &loss), MX8_INVALID_ARGUMENT);
    assert_message("token 96 at position 5");
    assert_status(mx8i_forward(s.m, ids + s.T, ids, ids, 1, &loss, NULL), MX8_INVALID_ARGUMENT);
    assert_message("target 96 at position 5");
    assert_true(loss == 0);
    free(ids);
    free_subject(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_checkpointing_changes_no_bit),
        cmocka_unit_test(test_joined_gradients_change_no_bit), cmocka_unit_test(test_threads_change_no_bit), cmocka_unit_test(test_accumulation), cmocka_unit_test(test_head_in_gradients), cmocka_unit_test(test_graph_fallback),
        cmocka_unit_test(test_gradients_are_replaced), cmocka_unit_test(test_validation),
        cmocka_unit_test(test_ignored_targets), cmocka_unit_test(test_empty_experts),
        cmocka_unit_test(test_recipe_options), cmocka_unit_test(test_weight_codes),
        cmocka_unit_test(test_saturation_count), cmocka_unit_test(test_not_finite), cmocka_unit_test(test_bad_batches)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
