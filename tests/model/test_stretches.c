/* What the optimizer walks over: with any number of ranks, every element of every tensor once, under the number that it
 * has when one process holds them all. */
#include "model_helpers.h"
#include "base/memory.h"

static struct mx8_model *plan(const struct mx8_dist *dist, const char *recipe) {
    struct mx8_model_config c = make_tiny_config();
    struct mx8_recipe r = make_recipe(recipe);
    struct mx8_model_options o = {.batch = 2, .seq_len = 32, .training = 1, .dist = (struct mx8_dist *)dist};
    struct mx8_model *m;
    assert_ok(mx8i_plan_model(&c, &r, &o, &m));
    return m;
}

/* Adds one to `seen` for each element that the ranks' stretches hold. */
static void count_elements(const struct mx8_model *m, uint8_t *seen, size_t elements) {
    int64_t n;
    const struct mx8_stretch *s = mx8i_get_stretches(m, &n);
    uint8_t *own = mx8i_allocate(mx8i_get_params(m)->elements, "test"); /* an update must not walk over one twice */
    assert_non_null(own);
    for (int64_t i = 0; i < n; i++) {
        assert_true(s[i].n > 0 && s[i].at + (size_t)s[i].n <= mx8i_get_params(m)->elements);
        assert_true(s[i].at % 32 == 0 && s[i].place + (uint64_t)s[i].n <= elements);
        for (int64_t e = 0; e < s[i].n; e++) {
            seen[s[i].place + (uint64_t)e]++;
            assert_int_equal(own[s[i].at + (size_t)e]++, 0);
        }
    }
    mx8i_release(own);
}

static void check_ranks(int32_t replicate, int32_t shard, int32_t expert, const char *recipe) {
    struct mx8_model *alone = plan(NULL, recipe);
    const struct mx8_param_table *t = mx8i_get_params(alone);
    uint8_t *seen = mx8i_allocate(t->elements, "test");
    assert_non_null(seen);
    for (int32_t rank = 0; rank < replicate * shard; rank++) {
        struct mx8_grid grid = {replicate * shard, rank, replicate, shard, expert};
        struct mx8_dist dist;
        mx8i_imagine_dist(&grid, &dist);
        struct mx8_model *m = plan(&dist, recipe);
        count_elements(m, seen, t->elements);
        const struct mx8_param_table *own = mx8i_get_params(m);
        int64_t n;
        const struct mx8_stretch *s = mx8i_get_stretches(m, &n);
        for (int64_t i = 0; i < own->count; i++) { /* and the number is the element's own */
            const struct mx8_part_of part = mx8i_get_part(m, &own->param[i]);
            if (!part.count) continue;
            int64_t k = 0;
            while (k < n && !(own->param[i].at >= s[k].at && own->param[i].at < s[k].at + (size_t)s[k].n)) k++;
            assert_true(k < n);
            assert_int_equal(s[k].place + (own->param[i].at - s[k].at), t->param[i].at + (size_t)part.first);
        }
        mx8i_free_model(m);
    }
    for (int64_t i = 0; i < t->count; i++)
        for (int64_t e = 0; e < t->param[i].count; e++) assert_int_equal(seen[t->param[i].at + (size_t)e], replicate);
    mx8i_release(seen);
    mx8i_free_model(alone);
}

static void test_one_process_has_one_stretch(void **state) {
    (void)state;
    struct mx8_model *m = plan(NULL, "f32");
    int64_t n;
    const struct mx8_stretch *s = mx8i_get_stretches(m, &n);
    const struct mx8_param_table *t = mx8i_get_params(m);
    const struct mx8_param *last = &t->param[t->count - 1];
    assert_int_equal(n, 1);
    assert_true(s->at == 0 && s->place == 0 && (size_t)s->n == last->at + (size_t)last->count);
    mx8i_free_model(m);
}

static void test_ranks(void **state) {
    (void)state;
    check_ranks(1, 2, 1, "bf16");
    check_ranks(1, 3, 1, "f32");
    check_ranks(1, 4, 2, "mxfp8_moe");
    check_ranks(2, 4, 4, "bf16");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_process_has_one_stretch),
        cmocka_unit_test(test_ranks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
