/* Which source a position reads from, and the permutation behind the shuffle. */
#include "train/job_testing.h"
#include "train/mixture.h"

static void test_parsing(void **state) {
    (void)state;
    static const struct {
        const char *text;
        int64_t count, weight[3];
        const char *first;
    } cases[] = {
        {"a", 1, {0}, "a"}, {"a=5", 1, {1}, "a"}, {"a=0.7,b=0.3", 2, {7, 3}, "a"}, {"a=2,b=4,c=.5", 3, {4, 8, 1}, "a"},
        {"a=0.000001,b=999999.999999", 2, {1, 999999999999}, "a"}, {"a,b,c", 3, {0, 0, 0}, "a"},
        {"dir/x=y", 1, {0}, "dir/x=y"},       /* no number: part of the path */
        {"x=1=0.25,y=3.", 2, {1, 12}, "x=1"}, /* the last = is the weight's */
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct mx8_mixture m;
        assert_ok(mx8i_parse_mixture(cases[i].text, "o", &m));
        assert_int_equal(m.count, cases[i].count);
        assert_string_equal(m.path[0], cases[i].first);
        int64_t sum = 0;
        for (int64_t k = 0; k < m.count; k++) {
            assert_int_equal(m.weight[k], cases[i].weight[k]);
            sum += m.weight[k];
        }
        assert_int_equal(m.sum, sum);
        mx8i_release_mixture(&m);
    }
}

static void test_what_exists_is_a_path(void **state) {
    (void)state;
    struct folder f = make_folder();
    struct mx8_mixture m;
    char list[600];
    mkdir(in_folder(&f, "year=2024"), 0777);
    mkdir(in_folder(&f, "a,b=1"), 0777);
    snprintf(list, sizeof list, "%s", in_folder(&f, "a,b=1"));
    assert_ok(mx8i_parse_mixture(list, "o", &m));
    assert_int_equal(m.count, 1);
    assert_string_equal(m.path[0], list);
    mx8i_release_mixture(&m);
    snprintf(list, sizeof list, "%s,other", in_folder(&f, "year=2024"));
    assert_ok(mx8i_parse_mixture(list, "o", &m));
    assert_int_equal(m.count, 2);
    assert_non_null(strstr(m.path[0], "year=2024"));
    mx8i_release_mixture(&m);
    snprintf(list, sizeof list, "%s=3,other=1", in_folder(&f, "year=2024"));
    assert_ok(mx8i_parse_mixture(list, "o", &m));
    assert_true(m.weight[0] == 3 && m.weight[1] == 1);
    mx8i_release_mixture(&m);
    remove_folder(&f);
}

static void test_bad_mixtures(void **state) {
    (void)state;
    static const struct {
        const char *text, *message;
    } cases[] = {
        {"a=0,b=1", "the weight of \"a\" is \"0\""},
        {"a=1,b=-1", "the weight of \"b\" is \"-1\""},
        {"a=1,b=1e3", "\"1e3\""},
        {"a=1,b=0.1234567", "at most 6 decimals"},
        {"a=1000000,b=1", "below a million"},
        {"a=1,b=1.2.3", "\"1.2.3\""},
        {"a=1,b=.", "\".\""},
        {"a=1,b", "\"a\" has a weight and \"b\" has none"},
        {"a,b=1", "\"b\" has a weight and \"a\" has none"},
        {"a,,b", "an empty path"},
        {"=1,b=1", "an empty path"},
        {"a=1,a=2", "\"a\" stands twice"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct mx8_mixture m;
        assert_status(mx8i_parse_mixture(cases[i].text, "training.dataset_path", &m), MX8_INVALID_ARGUMENT);
        assert_message(cases[i].message);
        assert_message("training.dataset_path");
        mx8i_release_mixture(&m);
    }
}

/* At every position each source has given its share but for count / 2 samples, in its own order; exactly its share
 * after every `sum` samples; and far away the pattern is the same. */
static void test_shares_are_exact(void **state) {
    (void)state;
    static const struct {
        int64_t count, weight[6];
    } cases[] = {{1, {1}}, {2, {7, 3}}, {2, {1, 999}}, {3, {1, 1, 1}}, {4, {5, 1, 1, 3}}, {6, {1, 2, 3, 5, 7, 11}},
        {6, {100, 1, 1, 1, 1, 1}}, {5, {0x10001, 3, 5, 7, 17}}};
    for (size_t c = 0; c < COUNT(cases); c++) {
        int64_t weight[6], given[6] = {0};
        struct mx8_mixture m = {.count = cases[c].count, .weight = weight};
        for (int64_t k = 0; k < m.count; k++) weight[k] = 12 * cases[c].weight[k];
        mx8i_set_weights(&m, weight);
        assert_int_equal(m.weight[0], cases[c].weight[0]);
        int64_t far = INT64_C(0x7fffffff) * m.sum;
        for (int64_t p = 0; p < 3 * m.sum; p++) {
            int64_t source, index, far_source, far_index;
            mx8i_pick_source(&m, p, &source, &index);
            assert_in_range(source, 0, m.count - 1);
            assert_int_equal(index, given[source]++);
            for (int64_t k = 0; k < m.count; k++) {
                double off = (double)given[k] - (double)(p + 1) * (double)weight[k] / (double)m.sum;
                double most = m.count == 2 ? 0.5 : (double)m.count / 2;
                assert_true(off <= most && off >= -most);
                if ((p + 1) % m.sum == 0) assert_int_equal(given[k] * m.sum, (p + 1) * weight[k]);
            }
            mx8i_pick_source(&m, far + p, &far_source, &far_index);
            assert_true(far_source == source && far_index == index + INT64_C(0x7fffffff) * weight[source]);
        }
    }
}

static void test_permutations(void **state) {
    (void)state;
    static uint8_t seen[70000];
    for (int64_t n = 1; n < 70000; n = n < 70 ? n + 1 : n * 2 + n % 7)
        for (uint64_t epoch = 0; epoch < 3; epoch++) {
            memset(seen, 0, sizeof seen);
            for (int64_t i = 0; i < n; i++) {
                int64_t x = mx8i_permute(5, 0, epoch, n, i);
                assert_in_range(x, 0, n - 1);
                assert_int_equal(seen[x]++, 0);
            }
        }
    /* far beyond what could be counted: in range, no two alike among neighbours, and not in order */
    int64_t n = (INT64_C(1) << 47) + 12345, ascents = 0;
    for (int64_t i = 0; i < 200; i++) {
        int64_t x = mx8i_permute(5, 0, 1, n, n - 200 + i);
        assert_in_range(x, 0, n - 1);
        for (int64_t j = 0; j < i; j++) assert_true(x != mx8i_permute(5, 0, 1, n, n - 200 + j));
        ascents += i > 0 && x > mx8i_permute(5, 0, 1, n, n - 200 + i - 1);
    }
    assert_in_range(ascents, 75, 125);
}

static int64_t count_alike(uint64_t seed, uint64_t stream, uint64_t epoch) {
    int64_t alike = 0;
    for (int64_t i = 0; i < 1000; i++)
        alike += mx8i_permute(seed, stream, epoch, 1000, i) == mx8i_permute(1, 1, 1, 1000, i);
    return alike;
}

/* Seed, stream and epoch each make another order: about one place in n stays the same. Every number goes everywhere
 * equally often, and all orders of three come about equally often. */
static void test_orders_differ_and_are_fair(void **state) {
    (void)state;
    enum { EPOCHS = 12000 };
    int64_t place[6][6] = {{0}}, order[27] = {0};
    assert_int_equal(count_alike(1, 1, 1), 1000);
    assert_in_range(count_alike(2, 1, 1), 0, 8);
    assert_in_range(count_alike(1, 2, 1), 0, 8);
    assert_in_range(count_alike(1, 1, 2), 0, 8);
    for (uint64_t e = 0; e < EPOCHS; e++) {
        for (int64_t i = 0; i < 6; i++) place[i][mx8i_permute(9, 0, e, 6, i)]++;
        order[9 * mx8i_permute(9, 1, e, 3, 0) + 3 * mx8i_permute(9, 1, e, 3, 1) + mx8i_permute(9, 1, e, 3, 2)]++;
    }
    for (int i = 0; i < 36; i++) assert_in_range(place[i / 6][i % 6], 1800, 2200); /* sigma 41 */
    static const int orders[] = {9 * 0 + 3 * 1 + 2, 9 * 0 + 3 * 2 + 1, 9 * 1 + 3 * 0 + 2, 9 * 1 + 3 * 2 + 0,
        9 * 2 + 3 * 0 + 1, 9 * 2 + 3 * 1 + 0};
    for (size_t i = 0; i < COUNT(orders); i++) assert_in_range(order[orders[i]], 1600, 2400);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parsing),
        cmocka_unit_test(test_what_exists_is_a_path),
        cmocka_unit_test(test_bad_mixtures),
        cmocka_unit_test(test_shares_are_exact),
        cmocka_unit_test(test_permutations),
        cmocka_unit_test(test_orders_differ_and_are_fair),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
