/* Batches, read ahead or not. */
#include "train/job_testing.h"
#include "base/memory.h"
#include "train/prefetch.h"

enum { SEQ = 4, V = 300, TOKENS = 250 };

static struct folder folder;

static int make_shard(void **state) {
    (void)state;
    uint16_t tokens[TOKENS];
    for (int i = 0; i < TOKENS; i++) tokens[i] = (uint16_t)(i % 9 == 8 ? MX8_EOS : i);
    folder = make_folder();
    write_file(in_folder(&folder, "x.bin"), tokens, sizeof tokens);
    return 0;
}

static int remove_shard(void **state) {
    (void)state;
    remove_folder(&folder);
    return 0;
}

static struct mx8_data *open_shard(void) {
    struct mx8_data *d;
    assert_ok(open_data("shards", in_folder(&folder, "x.bin"), 0, SEQ, V, 0, &d));
    return d;
}

static void expect_batch(struct mx8_data *reference, const struct mx8_batch *b, int64_t rows) {
    for (int64_t i = 0; i < rows; i++) {
        int32_t tokens[SEQ], targets[SEQ], docs[SEQ];
        assert_ok(mx8i_read_sample(reference, b->position + i, tokens, targets, docs));
        assert_memory_equal(b->tokens + i * SEQ, tokens, sizeof tokens);
        assert_memory_equal(b->targets + i * SEQ, targets, sizeof targets);
        if (b->docs) assert_memory_equal(b->docs + i * SEQ, docs, sizeof docs);
    }
}

/* Every batch is what its position says, and stays so until the next is asked for, even when the reader has had time.
 */
static void test_batches(void **state) {
    (void)state;
    static const struct mx8_prefetch_options cases[] = {{.rows = 1}, {.rows = 3, .docs = 1}, {.first = 17, .rows = 2},
        {.first = 4, .rows = 2, .stride = 6, .docs = 1}, {.first = 1, .rows = 2, .stride = 1}};
    struct mx8_data *d = open_shard(), *reference = open_shard();
    for (size_t c = 0; c < COUNT(cases); c++)
        for (int threaded = 0; threaded < 2; threaded++) {
            struct mx8_prefetch_options o = cases[c];
            struct mx8_prefetch *p;
            o.threaded = threaded;
            assert_ok(mx8i_open_prefetch(d, &o, &p));
            for (int64_t n = 0; n < 100; n++) {
                struct mx8_batch b;
                assert_ok(mx8i_next_batch(p, &b));
                assert_int_equal(b.position, o.first + n * (o.stride ? o.stride : o.rows));
                assert_true(!b.docs == !o.docs);
                if (n % 50 == 7) usleep(5000);
                expect_batch(reference, &b, o.rows);
            }
            mx8i_close_prefetch(p);
        }
    mx8i_close_data(reference);
    mx8i_close_data(d);
}

/* The file is cut while batches are read ahead: those before the cut are whole, then comes the error, with its words,
 * in this thread, as often as it is asked for. */
static void test_errors_come_with_their_batch(void **state) {
    (void)state;
    for (int threaded = 0; threaded < 2; threaded++) {
        uint16_t tokens[TOKENS] = {0};
        struct folder f = make_folder();
        struct mx8_prefetch_options o = {.rows = 2, .threaded = threaded};
        struct mx8_prefetch *p;
        struct mx8_data *d;
        struct mx8_batch b;
        enum mx8_status status = MX8_OK;
        int n = 0;
        write_file(in_folder(&f, "cut.bin"), tokens, sizeof tokens);
        assert_ok(open_data("shards", in_folder(&f, "cut.bin"), 0, SEQ, V, 0, &d));
        assert_ok(mx8i_open_prefetch(d, &o, &p));
        for (; n < 3; n++) assert_ok(mx8i_next_batch(p, &b));
        assert_int_equal(truncate(in_folder(&f, "cut.bin"), 100), 0);
        mx8i_fail_allocation(1, 1); /* what failed last in this thread is not what the reader saw */
        assert_null(mx8i_allocate(1, "nothing"));
        mx8i_fail_allocation(0, 0);
        for (; n < 6 && status == MX8_OK; n++) status = mx8i_next_batch(p, &b); /* at most one more was read ahead */
        assert_true(n <= 5);
        for (int again = 0; again < 2; again++) {
            assert_int_equal(status, MX8_IO_ERROR);
            assert_message("cut.bin: the file had 500 bytes");
            status = mx8i_next_batch(p, &b);
        }
        mx8i_close_prefetch(p);
        mx8i_close_data(d);
        remove_folder(&f);
    }
}

/* A bad token that lies ahead is no error as long as no one wants its batch. */
static void test_errors_wait(void **state) {
    (void)state;
    enum { N = 70000 };
    struct folder f = make_folder();
    uint16_t *tokens = calloc(N, sizeof *tokens);
    struct mx8_prefetch_options o = {.first = N / 5 - 3, .rows = 1, .threaded = 1};
    struct mx8_prefetch *p;
    struct mx8_data *d;
    struct mx8_batch b;
    tokens[N - 1] = V;
    write_file(in_folder(&f, "late.bin"), tokens, N * sizeof *tokens);
    free(tokens);
    assert_ok(open_data("shards", in_folder(&f, "late.bin"), 0, SEQ, V, 0, &d));
    assert_ok(mx8i_open_prefetch(d, &o, &p));
    assert_ok(mx8i_next_batch(p, &b));
    assert_ok(mx8i_next_batch(p, &b));
    usleep(5000);
    mx8i_close_prefetch(p); /* the reader has met the error by now */
    assert_ok(mx8i_open_prefetch(d, &o, &p));
    for (int i = 0; i < 2; i++) assert_ok(mx8i_next_batch(p, &b));
    assert_status(mx8i_next_batch(p, &b), MX8_INVALID_ARGUMENT);
    assert_message("late.bin: token 69999 is 300");
    mx8i_close_prefetch(p);
    mx8i_close_data(d);
    remove_folder(&f);
}

static void test_opening_and_closing(void **state) {
    (void)state;
    static const struct mx8_prefetch_options bad[] = {{.rows = 0}, {.rows = 1, .first = -1}, {.rows = 1, .stride = -1}};
    struct mx8_data *d = open_shard();
    struct mx8_prefetch *p;
    for (size_t i = 0; i < COUNT(bad); i++) {
        assert_status(mx8i_open_prefetch(d, &bad[i], &p), MX8_INVALID_ARGUMENT);
        assert_null(p);
    }
    mx8i_close_prefetch(NULL);
    struct mx8_prefetch_options o = {.rows = 3, .docs = 1, .threaded = 1};
    assert_int_equal(mx8i_count_prefetch_bytes(&o, SEQ), 2 * 3 * 3 * SEQ * 4);
    for (int i = 0; i < 50; i++) { /* at any moment of the reader's first batch */
        assert_ok(mx8i_open_prefetch(d, &o, &p));
        if (i % 3 == 1) usleep(50);
        mx8i_close_prefetch(p);
    }
    int64_t n = 0;
    for (enum mx8_status status = MX8_INTERNAL; status != MX8_OK && n < 100;) {
        mx8i_fail_allocation(++n, 0);
        status = mx8i_open_prefetch(d, &o, &p);
        mx8i_fail_allocation(0, 0);
        if (status != MX8_OK) assert_int_equal(status, MX8_OUT_OF_MEMORY);
    }
    assert_int_equal(n, 8); /* itself, three arrays in two slots */
    mx8i_close_prefetch(p);
    o.threaded = 0;
    assert_int_equal(mx8i_count_prefetch_bytes(&o, SEQ), 3 * 3 * SEQ * 4);
    mx8i_close_data(d);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_batches),
        cmocka_unit_test(test_errors_come_with_their_batch),
        cmocka_unit_test(test_errors_wait),
        cmocka_unit_test(test_opening_and_closing),
    };
    return cmocka_run_group_tests(tests, make_shard, remove_shard);
}
