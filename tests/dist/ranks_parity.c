/* The parity files hold with two processes, too: each takes half of the batch, and the losses, gradient norms and
 * expert loads must be PyTorch's within the limits of the one-process test. Shards, replicas, and experts on different
 * ranks. */
#include "model/parity.h"
#include "train/optimizer.h"

struct gates {
    double early_loss, loss, load, norm;
};

static struct mx8_dist dist;
static int all; /* every fixture and grid, not only the quick ones */

static void open_groups(int64_t replicate, int64_t expert, struct mx8_dist *d) {
    struct mx8_grid grid;
    *d = (struct mx8_dist){.host = dist.host};
    assert_ok(mx8i_make_grid(dist.host.size, dist.host.rank, replicate, -1, expert, &grid));
    assert_ok(mx8i_open_groups(d, &grid, -1, NULL, 20));
}

static struct mx8_adamw read_adamw(const json_t *settings) {
    return (struct mx8_adamw){.beta1 = json_number_value(json_array_get(get(settings, "betas"), 0)),
        .beta2 = json_number_value(json_array_get(get(settings, "betas"), 1)),
        .eps = json_number_value(get(settings, "eps")),
        .weight_decay = json_number_value(get(settings, "weight_decay"))};
}

static void check_load(struct subject *s, const json_t *loads, double tolerance, int64_t T) {
    const int64_t E = mx8i_get_config(s->m)->num_experts, rows = T * mx8i_get_config(s->m)->top_k;
    int64_t counts[64];
    for (int64_t layer = 0; layer < mx8i_count_moe_layers(s->m); layer++) {
        int64_t total = 0;
        assert_ok(mx8i_get_expert_load(s->m, layer, counts));
        for (int64_t e = 0; e < E; e++) {
            int64_t theirs = json_integer_value(json_array_get(json_array_get(loads, (size_t)layer), (size_t)e));
            total += counts[e];
            if (tolerance > 0) assert_true(fabs((double)(counts[e] - theirs)) <= tolerance * (double)rows);
        }
        assert_int_equal(total, rows);
    }
}

static void check_run(const char *name, const char *recipe, const char *ours, int64_t replicate, int64_t expert,
    int32_t mxfp8_tokens, struct gates g) {
    struct fixture f = open_fixture(name);
    struct mx8_dist d;
    open_groups(replicate, expert, &d);
    struct mx8_model_options o = f.options;
    const int64_t B = o.batch, S = o.seq_len;
    o.batch = B / d.host.size;
    o.dist = &d;
    o.dispatch_mxfp8 = mxfp8_tokens;
    struct subject s = make_subject(&f.config, ours, o, 1);
    assert_ok(mx8i_load_weights(s.m, f.start, NULL));
    const json_t *run = get(get(f.meta, "runs"), recipe), *settings = get(f.meta, "optimizer");
    struct mx8_adamw adamw = read_adamw(settings);
    struct mx8_optimizer optimizer;
    assert_ok(mx8i_open_optimizer(s.ctx, &optimizer));
    struct mx8_flat flat = mx8i_view_flat(s.m, &d);
    int32_t *ids = calloc((size_t)(2 * B * S), sizeof *ids);
    for (int64_t step = 0; step < STEPS; step++) {
        double loss = 0, norm = 0;
        cut_batch(&f, step, ids);
        const int32_t *own = ids + d.host.rank * s.T;
        assert_ok(mx8i_forward_backward(s.m, own, own + B * S, NULL, 1.0f / (float)(B * S), 0, &loss));
        assert_ok(mx8i_sum_gradients(s.m));
        assert_ok(mx8i_sum_expert_load(s.m));
        assert_ok(mx8i_sum_doubles(&d.host, &loss, 1));
        check_load(&s, json_array_get(get(run, "tokens_per_expert"), (size_t)step), g.load, B * S);
        assert_ok(mx8i_clip_gradients(&optimizer, &flat, json_number_value(get(settings, "max_norm")), &norm));
        assert_ok(mx8i_update_expert_bias(s.m));
        const double lr = json_number_value(get(settings, "lr"));
        assert_ok(mx8i_begin_update(&optimizer, &adamw, lr));
        assert_ok(mx8i_apply_adamw(&optimizer, &flat, &adamw, lr));
        assert_ok(mx8i_refresh_weights(s.m, 1));
        const double theirs = json_number_value(json_array_get(get(run, "loss"), (size_t)step));
        const double their_norm = json_number_value(json_array_get(get(run, "grad_norm"), (size_t)step));
        if (!(fabs(loss - theirs) <= (step < 5 ? g.early_loss : g.loss)) || !(fabs(norm / their_norm - 1) <= g.norm)) {
            fail_msg("%s %s, %d x %d: step %d has loss %.6f and norm %.6f, PyTorch's are %.6f and %.6f", name, recipe,
                (int)replicate, (int)expert, (int)step, loss, norm, theirs, their_norm);
        }
    }
    free(ids);
    mx8i_close_optimizer(&optimizer);
    free_subject(&s);
    close_fixture(&f);
}

static void test_f32(void **state) {
    (void)state;
    const struct gates g = {.early_loss = 1e-4, .loss = 2e-3, .load = 0.03, .norm = 0.01};
    check_run("moe", "fp32", "f32", 1, 2, 0, g);
    if (!all) return;
    check_run("moe", "fp32", "f32", 1, 1, 0, g);
    check_run("interleaved", "fp32", "f32", 1, 2, 0, g);
    check_run("softmax", "fp32", "f32", 2, 1, 0, g);
    check_run("softmax", "fp32", "f32", 1, 2, 0, g);
}

static void test_bf16(void **state) {
    (void)state;
    if (all) check_run("moe", "bf16", "bf16", 1, 2, 0, (struct gates){0.01, 0.01, 0.03, 0.02});
}

static void test_mxfp8(void **state) {
    (void)state;
    const struct gates g = {.early_loss = 0.02, .loss = 0.02, .norm = 0.05};
    check_run("moe", "mxfp8_moe", "mxfp8_moe", 1, 2, 1, g); /* tokens travel as MXFP8 */
    if (!all) return;
    check_run("moe", "mxfp8_moe", "mxfp8_moe", 1, 1, 0, g);
    check_run("interleaved", "mxfp8_moe", "mxfp8_moe", 1, 2, 0, g);
}

int main(int argc, char **argv) {
    all = argc > 1 && !strcmp(argv[1], "all");
    struct mx8_launch launch;
    if (mx8i_find_launch(&launch) != MX8_OK || mx8i_open_dist(&launch, 20, &dist) != MX8_OK) {
        fprintf(stderr, "%s\n", mx8_get_last_error());
        return 1;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_f32), cmocka_unit_test(test_bf16), cmocka_unit_test(test_mxfp8)};
    const int failures = cmocka_run_group_tests(tests, NULL, NULL);
    if (failures) mx8i_abort_dist(&dist, 1);
    return failures;
}
