/* The MPI transport, from inside: run by mpirun with 2 and 4 processes. */
#include "test.h"
#include "base/rng.h"
#include "dist/dist.h"

#define COUNT(array) (sizeof(array) / sizeof(array)[0])

static struct mx8_dist dist;

/* Ranks own uneven pieces, some nothing: of rank r, (r % 3) * unit. */
static void make_cuts(int32_t size, size_t unit, size_t *cut) {
    cut[0] = 0;
    for (int32_t r = 0; r < size; r++) cut[r + 1] = cut[r] + (size_t)(r % 3) * unit;
}

static float get_value(int32_t rank, size_t i) {
    return (float)mx8i_random_normal(11, (uint64_t)rank, i);
}

static void test_gather(void **state) {
    (void)state;
    struct mx8_comm *c = &dist.group[MX8_GROUP_SHARD];
    const size_t units[] = {1, 1000, 300000};
    for (size_t u = 0; u < COUNT(units); u++) {
        size_t cut[65];
        make_cuts(c->size, units[u], cut);
        const size_t n = cut[c->size];
        char *buffer = calloc(n + 1, 1);
        memset(buffer + cut[c->rank], 'a' + c->rank, cut[c->rank + 1] - cut[c->rank]);
        int32_t ticket = 0;
        assert_ok(c->t->start_gather(c, buffer, cut, &ticket));
        c->t->poll(c);
        assert_ok(c->t->wait(c, &ticket));
        assert_int_equal(ticket, 0);
        assert_ok(c->t->wait(c, &ticket)); /* nothing to wait for */
        for (int32_t r = 0; r < c->size; r++) {
            for (size_t i = cut[r]; i < cut[r + 1]; i++) assert_int_equal(buffer[i], 'a' + r);
        }
        assert_int_equal(buffer[n], 0);
        free(buffer);
    }
}

/* The bits of a sum are those of adding in order of rank. Two at a time, waited for the other way round. */
static void test_reduce(void **state) {
    (void)state;
    struct mx8_comm *c = &dist.group[MX8_GROUP_SHARD];
    size_t cut[65];
    make_cuts(c->size, 5003, cut);
    const size_t n = cut[c->size], own = cut[c->rank + 1] - cut[c->rank];
    float *in = calloc(n + 1, sizeof *in), *out = calloc(own + 1, sizeof *out), *again = calloc(own + 1, sizeof *out);
    float *scratch = calloc(2 * (mx8i_count_reduce_scratch(c, cut) + 4), 1);
    for (size_t i = 0; i < n; i++) in[i] = get_value(c->rank, i);
    for (size_t i = 0; i < own; i++) again[i] = 1;
    out[own] = again[own] = -7; /* must survive */
    int32_t first = 0, second = 0;
    assert_ok(c->t->start_reduce(c, out, in, cut, 0, scratch, &first));
    assert_ok(c->t->start_reduce(
        c, again, in, cut, 1, scratch + mx8i_count_reduce_scratch(c, cut) / sizeof *scratch + 1, &second));
    assert_ok(c->t->wait(c, &second));
    assert_ok(c->t->wait(c, &first));
    for (size_t i = 0; i < own; i++) {
        float want = get_value(0, cut[c->rank] + i);
        for (int32_t r = 1; r < c->size; r++) want += get_value(r, cut[c->rank] + i);
        assert_true(out[i] == want);
        assert_true(again[i] == 1 + want);
    }
    assert_true(out[own] == -7 && again[own] == -7);
    free(in);
    free(out);
    free(again);
    free(scratch);
}

/* Rank r sends peer p (r + 2 p) % 5 letters in two pieces; some are empty. */
static void test_exchange(void **state) {
    (void)state;
    struct mx8_comm *c = &dist.group[MX8_GROUP_SHARD];
    struct mx8_part part[128];
    char sent[64][8], got[64][8];
    int32_t n = 0, ticket = 0;
    memset(got, 0, sizeof got);
    for (int32_t p = 0; p < c->size; p++) {
        const size_t out = (size_t)((c->rank + 2 * p) % 5), in = (size_t)((p + 2 * c->rank) % 5);
        memset(sent[p], 'a' + c->rank, sizeof sent[p]);
        for (int32_t half = 0; half < 2; half++) {
            const size_t send = half ? out - out / 2 : out / 2, receive = half ? in - in / 2 : in / 2;
            part[n++] =
                (struct mx8_part){p, sent[p] + (half ? out / 2 : 0), send, got[p] + (half ? in / 2 : 0), receive};
        }
    }
    assert_ok(c->t->start_exchange(c, part, n, &ticket));
    assert_ok(c->t->wait(c, &ticket));
    for (int32_t p = 0; p < c->size; p++) {
        assert_int_equal(strlen(got[p]), (size_t)((p + 2 * c->rank) % 5));
        for (char *at = got[p]; *at; at++) assert_int_equal(*at, 'a' + p);
    }
}

static void test_small_collectives(void **state) {
    (void)state;
    struct mx8_comm *c = &dist.host;
    double x[2] = {c->rank + 1, 0.5};
    int64_t n = c->rank == 1 ? -3 : 100 + c->rank, sum = 1ll << 40;
    char word[8] = "";
    assert_ok(mx8i_sum_doubles(c, x, 2));
    assert_true(x[0] == c->size * (c->size + 1) / 2 && x[1] == 0.5 * c->size);
    assert_ok(mx8i_find_least(c, &n));
    assert_int_equal(n, -3);
    assert_ok(mx8i_sum_integers(c, &sum, 1));
    assert_int_equal(sum, (int64_t)c->size << 40);
    if (c->rank == 1) strcpy(word, "hello");
    assert_ok(mx8i_broadcast(c, word, sizeof word, 1));
    assert_string_equal(word, "hello");
    assert_ok(mx8i_barrier(c));
}

/* In pieces smaller than the array, and the traffic that was foretold. */
static void test_sum_floats(void **state) {
    (void)state;
    struct mx8_comm *c = &dist.group[MX8_GROUP_SHARD];
    enum { N = 10007 };
    static float values[N];
    const size_t bytes = (size_t)(c->size - 1) * 700 * sizeof(float);
    void *scratch = malloc(bytes);
    for (size_t i = 0; i < N; i++) values[i] = get_value(c->rank, i);
    const int64_t before = dist.traffic.sent;
    assert_ok(mx8i_sum_floats(c, values, N, scratch, bytes));
    assert_int_equal(dist.traffic.sent - before, mx8i_count_sum_bytes(c, N, bytes));
    for (size_t i = 0; i < N; i++) {
        float want = get_value(0, i);
        for (int32_t r = 1; r < c->size; r++) want += get_value(r, i);
        assert_true(values[i] == want);
    }
    free(scratch);
}

int main(void) {
    struct mx8_launch launch;
    struct mx8_grid grid;
    if (mx8i_find_launch(&launch) != MX8_OK || mx8i_open_dist(&launch, 20, &dist) != MX8_OK ||
        mx8i_make_grid(launch.size, launch.rank, 1, -1, 1, &grid) != MX8_OK ||
        mx8i_open_groups(&dist, &grid, -1, NULL, 20) != MX8_OK) {
        fprintf(stderr, "%s\n", mx8_get_last_error());
        return 1;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_gather), cmocka_unit_test(test_reduce),
        cmocka_unit_test(test_exchange), cmocka_unit_test(test_small_collectives), cmocka_unit_test(test_sum_floats)};
    const int failures = cmocka_run_group_tests(tests, NULL, NULL);
    if (failures) mx8i_abort_dist(&dist, 1);
    mx8i_close_dist(&dist);
    return failures;
}
