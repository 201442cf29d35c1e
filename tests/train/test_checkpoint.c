/* The format, without a model: pieces of tensors from several processes into folders, ranges out of them, damage. */
#include "train/job_testing.h"
#include "base/folder.h"
#include "base/memory.h"
#include "model/config.h"
#include "train/checkpoint_store.h"

enum { MATRIX = 7 * 13, VECTOR = 5, RANKS = 3 };

static float matrix[MATRIX], vector[VECTOR];
static int64_t counts[2] = {-1, 1LL << 40};
static double history[3] = {1.5, -0.0, 1e300};

static int fill(void **state) {
    (void)state;
    for (int i = 0; i < MATRIX; i++) matrix[i] = (float)i / 3 - 10;
    for (int i = 0; i < VECTOR; i++) vector[i] = -(float)i;
    return 0;
}

static void add_all(struct mx8_state *s) {
    static const int64_t shape[2] = {7, 13}, five = VECTOR, two = 2, three = 3, none = 0;
    *s = (struct mx8_state){0};
    assert_ok(mx8i_add_state(s, "matrix", MX8_F32, 2, shape, matrix, 1));
    assert_ok(mx8i_add_state(s, "vector", MX8_F32, 1, &five, vector, 1));
    assert_ok(mx8i_add_state(s, "counts", MX8_I64, 1, &two, counts, 1));
    assert_ok(mx8i_add_state(s, "history", MX8_F64, 1, &three, history, 1));
    assert_ok(mx8i_add_state(s, "nothing", MX8_F32, 1, &none, NULL, 1));
}

/* Leaves a process its share of every tensor: ragged, and empty where there are more processes than elements. */
static void take_share(struct mx8_state *s, int rank, int ranks) {
    for (int64_t i = 0; i < s->n_pieces; i++) {
        struct mx8_piece *p = &s->piece[i];
        const struct mx8_state_tensor *t = &s->tensor[p->tensor];
        int64_t start = t->count * rank / ranks, end = t->count * (rank + 1) / ranks;
        if (t->count) p->data = (char *)p->data + (size_t)start * mx8_get_dtype_size(t->dtype);
        p->start = start;
        p->count = end - start;
    }
}

/* A checkpoint of `ranks` processes, each with a manifest of its own that is sent as text to the first. */
static void write_folder(const char *folder, int ranks, size_t max_bytes) {
    struct mx8_manifest all = {.ranks = ranks, .progress = {40, 1LL << 45, 39, 38}};
    assert_ok(mx8i_add_fact(&all.job, "model.dim", "7"));
    assert_ok(mx8i_add_fact(&all.options, "job.description", "a \"quoted\" \\ text\n"));
    mkdir(folder, 0777);
    for (int rank = 0; rank < ranks; rank++) {
        struct mx8_state s;
        struct mx8_manifest part = {.ranks = ranks}, sent;
        char *text;
        add_all(&s);
        take_share(&s, rank, ranks);
        assert_ok(mx8i_write_pieces(folder, rank, &s, max_bytes, NULL, &part));
        assert_ok(mx8i_print_manifest(&part, &text));
        assert_ok(mx8i_parse_manifest(text, strlen(text), "part", &sent));
        assert_ok(mx8i_merge_manifest(&all, &sent));
        mx8i_free_manifest(&sent);
        mx8i_release(text);
        mx8i_free_manifest(&part);
        mx8i_free_state(&s);
    }
    assert_ok(mx8i_write_manifest(folder, &all));
    mx8i_free_manifest(&all);
}

static void test_any_range_from_any_ranks(void **state) {
    (void)state;
    static const size_t sizes[] = {1 << 20, 64, 4, 20};
    struct folder out = make_folder();
    for (int ranks = 1; ranks <= RANKS; ranks++) {
        for (size_t k = 0; k < COUNT(sizes); k++) {
            char name[32];
            snprintf(name, sizeof name, "c-%d-%zu", ranks, sizes[k]);
            write_folder(in_folder(&out, name), ranks, sizes[k]);
            struct mx8_checkpoint c;
            assert_ok(mx8i_open_checkpoint(in_folder(&out, name), 1, &c));
            const struct mx8_manifest *m = &c.manifest;
            assert_true(m->ranks == ranks && m->progress.step == 40 && m->progress.position == 1LL << 45);
            assert_true(m->progress.schedule_step == 39 && m->progress.updates == 38 && m->n_tensors == 5);
            assert_string_equal(mx8i_get_fact(&m->options, "job.description"), "a \"quoted\" \\ text\n");
            if (k > 0) assert_true(m->n_files > ranks);
            int64_t index = mx8i_find_stored_tensor(m, "matrix");
            for (int64_t start = 0; start <= MATRIX; start += 5) {
                for (int64_t n = 0; n <= MATRIX - start; n += 11) {
                    float got[MATRIX + 1];
                    got[n] = 77;
                    assert_ok(mx8i_read_range(&c, index, start, n, MX8_F32, NULL, got));
                    assert_memory_equal(got, matrix + start, (size_t)n * sizeof *got);
                    assert_true(got[n] == 77);
                }
            }
            float rest[2];
            assert_status(mx8i_read_range(&c, index, MATRIX - 1, 2, MX8_F32, NULL, rest), MX8_INVALID_ARGUMENT);
            assert_status(mx8i_read_range(&c, index, 0, 1, MX8_F64, NULL, rest), MX8_INVALID_ARGUMENT);
            mx8i_close_checkpoint(&c);
        }
    }
    remove_folder(&out);
}

/* Saved by three, loaded by two: every process gets its own share. */
static void test_another_number_of_ranks(void **state) {
    (void)state;
    struct folder out = make_folder();
    struct mx8_checkpoint c;
    write_folder(in_folder(&out, "c"), RANKS, 100);
    assert_ok(mx8i_open_checkpoint(in_folder(&out, "c"), 1, &c));
    float kept[MATRIX];
    double kept_history[3];
    memcpy(kept, matrix, sizeof kept);
    memcpy(kept_history, history, sizeof history);
    memset(matrix, 0, sizeof matrix);
    memset(history, 0, sizeof history);
    for (int rank = 0; rank < 2; rank++) {
        struct mx8_state s;
        add_all(&s);
        take_share(&s, rank, 2);
        assert_ok(mx8i_load_pieces(&c, &s, 1, NULL));
        mx8i_free_state(&s);
    }
    assert_memory_equal(matrix, kept, sizeof kept);
    assert_memory_equal(history, kept_history, sizeof history);
    mx8i_close_checkpoint(&c);
    remove_folder(&out);
}

static void test_state_that_does_not_fit(void **state) {
    (void)state;
    static const int64_t shape[2] = {13, 7}, six = 6;
    struct folder out = make_folder();
    struct mx8_checkpoint c;
    struct mx8_state s = {0};
    float kept = matrix[3], other[MATRIX] = {0};
    write_folder(in_folder(&out, "c"), 1, 1 << 20);
    assert_ok(mx8i_open_checkpoint(in_folder(&out, "c"), 1, &c));
    assert_ok(mx8i_add_state(&s, "matrix", MX8_F32, 2, shape, other, 1));
    assert_ok(mx8i_add_state(&s, "vector", MX8_F64, 1, (const int64_t[]){VECTOR}, other, 1));
    assert_ok(mx8i_add_state(&s, "absent", MX8_F32, 1, &six, other, 1));
    assert_status(mx8i_load_pieces(&c, &s, 1, NULL), MX8_INVALID_ARGUMENT);
    assert_message("matrix has shape (7, 13), expected (13, 7)");
    assert_message("vector is f32, expected f64");
    assert_message("absent is missing");
    assert_message("counts is left over");
    assert_true(matrix[3] == kept && other[1] == 0);
    mx8i_free_state(&s);
    assert_ok(mx8i_add_state(&s, "vector", MX8_F32, 1, (const int64_t[]){VECTOR}, other, 1));
    assert_ok(mx8i_load_pieces(&c, &s, 0, NULL));
    assert_true(other[4] == -4);
    mx8i_free_state(&s);
    mx8i_close_checkpoint(&c);
    remove_folder(&out);
}

/* Weights alone: rounded when asked, whole tensors a file, names and an index that other tools read. */
static void test_weights_in_several_files(void **state) {
    (void)state;
    struct folder out = make_folder();
    struct mx8_checkpoint c;
    struct mx8_manifest m = {.kind = MX8_CHECKPOINT_MODEL, .ranks = 1};
    struct mx8_state s;
    add_all(&s);
    s.tensor[0].stored = MX8_BF16;
    s.tensor[0].is_weight = s.tensor[1].is_weight = 1;
    assert_ok(mx8i_add_fact(&m.job, MX8_CONFIG_KEY, "{}"));
    assert_ok(mx8i_write_pieces(out.path, 0, &s, 30, NULL, &m));
    assert_ok(mx8i_write_manifest(out.path, &m));
    assert_int_equal(access(in_folder(&out, "model-00001-of-00002.safetensors"), F_OK), 0);
    assert_int_equal(access(in_folder(&out, "state-0000-0001.safetensors"), F_OK), 0);
    char *index;
    size_t size;
    assert_ok(mx8i_read_file(in_folder(&out, "model.safetensors.index.json"), 1 << 20, &index, &size));
    assert_non_null(strstr(index, "\"vector\": \"model-00002-of-00002.safetensors\""));
    assert_null(strstr(index, "history"));
    mx8i_release(index);
    assert_ok(mx8i_open_checkpoint(out.path, 1, &c));
    assert_int_equal(c.manifest.n_files, 2 + 1 + 2);
    assert_string_equal(c.shard[0].meta_key[2], MX8_CONFIG_KEY);
    assert_string_equal(c.shard[0].meta_value[2], "{}");
    float got[MATRIX];
    assert_ok(mx8i_read_range(&c, 0, 0, MATRIX, MX8_F32, NULL, got));
    for (int i = 0; i < MATRIX; i++) assert_true(got[i] == mx8_decode_bf16(mx8_encode_bf16(matrix[i])));
    mx8i_close_checkpoint(&c);
    mx8i_free_manifest(&m);
    mx8i_free_state(&s);
    remove_folder(&out);
}

/* ---- damage ---- */

static char *read_whole(const char *path, size_t *size) {
    char *bytes;
    assert_ok(mx8i_read_file(path, 1 << 24, &bytes, size));
    return bytes;
}

static void expect_damage(const char *folder, const char *name) {
    struct mx8_checkpoint c;
    assert_status(mx8i_open_checkpoint(folder, 1, &c), MX8_FORMAT_ERROR);
    assert_message(name);
}

static void test_every_damage_is_told(void **state) {
    (void)state;
    static const char *const names[] = {"state-0000-0000.safetensors", "state-0001-0001.safetensors"};
    struct folder out = make_folder();
    struct mx8_checkpoint c;
    write_folder(in_folder(&out, "c"), 2, 120);
    for (size_t i = 0; i < COUNT(names); i++) {
        char path[256], folder[128];
        size_t size;
        snprintf(folder, sizeof folder, "%s/c", out.path);
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        char *bytes = read_whole(path, &size);
        for (size_t at = 0; at < size; at += 3) {
            bytes[at] ^= (char)(1 << at % 8);
            write_file(path, bytes, size);
            expect_damage(folder, names[i]);
            bytes[at] ^= (char)(1 << at % 8);
        }
        write_file(path, bytes, size - 1);
        expect_damage(folder, names[i]);
        write_file(path, "", 0);
        expect_damage(folder, names[i]);
        unlink(path);
        expect_damage(folder, "is missing");
        write_file(path, bytes, size);
        assert_ok(mx8i_open_checkpoint(folder, 1, &c));
        mx8i_close_checkpoint(&c);
        mx8i_release(bytes);
    }
    remove_folder(&out);
}

static void test_damaged_manifests(void **state) {
    (void)state;
    struct folder out = make_folder();
    struct mx8_manifest m;
    size_t size;
    write_folder(in_folder(&out, "c"), 2, 120);
    char *text = read_whole(in_folder(&out, "c/" MX8_MANIFEST_NAME), &size), *again;
    for (size_t at = 0; at < size; at++) { /* another white space is no damage: the same manifest */
        text[at] ^= (char)(1 << at % 7);
        enum mx8_status status = mx8i_parse_manifest(text, size, "manifest", &m);
        text[at] ^= (char)(1 << at % 7);
        if (status == MX8_OK) {
            assert_ok(mx8i_print_manifest(&m, &again));
            assert_string_equal(again, text);
            mx8i_release(again);
            mx8i_free_manifest(&m);
        } else {
            assert_true(status == MX8_FORMAT_ERROR || status == MX8_UNSUPPORTED /* the version */);
        }
    }
    for (size_t n = 0; n + 2 < size; n += 5) assert_status(mx8i_parse_manifest(text, n, "cut", &m), MX8_FORMAT_ERROR);
    assert_ok(mx8i_parse_manifest(text, size, "whole", &m));
    mx8i_free_manifest(&m);
    mx8i_release(text);
    remove_folder(&out);
}

static void test_pieces_must_make_tensors(void **state) {
    (void)state;
    static const struct {
        struct mx8_stored_piece piece[3];
        int n;
        const char *message;
    } cases[] = {{{{0, 0, 0, 4}, {0, 0, 6, 4}}, 2, "starts at element 6, expected 4"},
        {{{0, 0, 0, 6}, {0, 0, 4, 6}}, 2, "starts at element 4, expected 6"},
        {{{0, 0, 0, 9}}, 1, "hold 9 elements, expected 10"}, {{{0, 0, 4, 6}, {0, 0, 0, 4}}, 2, NULL}};
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct mx8_manifest m = {0};
        struct mx8_stored_tensor t = {.name = (char *)(uintptr_t) "w", .ndim = 1, .shape = {10}, .count = 10};
        int64_t index;
        assert_ok(mx8i_add_stored_tensor(&m, &t, &index));
        for (int k = 0; k < cases[i].n; k++) assert_ok(mx8i_add_stored_piece(&m, &cases[i].piece[k]));
        assert_status(mx8i_check_coverage(&m, "there"), cases[i].message ? MX8_FORMAT_ERROR : MX8_OK);
        if (cases[i].message) assert_message(cases[i].message);
        t.shape[0] = t.count = 11;
        assert_status(mx8i_add_stored_tensor(&m, &t, &index), MX8_FORMAT_ERROR);
        mx8i_free_manifest(&m);
    }
}

/* ---- the folder of folders ---- */

static void publish(struct mx8_store *s, int64_t step) {
    char *path;
    struct mx8_manifest m = {.ranks = 1, .progress.step = step};
    struct mx8_state state;
    add_all(&state);
    assert_ok(mx8i_begin_checkpoint(s, step, &path));
    assert_ok(mx8i_write_pieces(path, 0, &state, 1 << 20, NULL, &m));
    assert_ok(mx8i_write_manifest(path, &m));
    assert_ok(mx8i_publish_checkpoint(s, path, step));
    mx8i_release(path);
    mx8i_free_manifest(&m);
    mx8i_free_state(&state);
}

static void expect_steps(const char *folder, int64_t n, const int64_t *expected) {
    int64_t *steps, count;
    assert_ok(mx8i_list_checkpoints(folder, &steps, &count));
    assert_int_equal(count, n);
    for (int64_t i = 0; i < n; i++) assert_int_equal(steps[i], expected[i]);
    mx8i_release(steps);
}

static void test_store(void **state) {
    (void)state;
    struct folder out = make_folder();
    struct mx8_store s, second;
    char folder[128], path[200];
    snprintf(folder, sizeof folder, "%s/a/b", out.path);
    expect_steps(folder, 0, NULL);
    assert_ok(mx8i_open_store(folder, &s));
    assert_status(mx8i_open_store(folder, &second), MX8_IO_ERROR);
    assert_message("another process");
    static const int64_t steps[] = {2, 10, 9, 100};
    for (size_t i = 0; i < COUNT(steps); i++) publish(&s, steps[i]);
    static const char *const strangers[] = {
        "step-", "step-x", "step-1x", "step--1", "step-007", "Step-1", "step-1.damaged", ".saving-step-3", "step-5"};
    for (size_t i = 0; i < COUNT(strangers); i++) {
        snprintf(path, sizeof path, "%s/%s", folder, strangers[i]);
        mkdir(path, 0777);
        if (i == COUNT(strangers) - 1) break; /* step-5 has no manifest */
        snprintf(path, sizeof path, "%s/%s/" MX8_MANIFEST_NAME, folder, strangers[i]);
        write_file(path, "{}", 2);
    }
    expect_steps(folder, 4, (const int64_t[]){2, 9, 10, 100});
    publish(&s, 10); /* the one that is there is set aside */
    snprintf(path, sizeof path, "%s/step-10.replaced/" MX8_MANIFEST_NAME, folder);
    assert_int_equal(access(path, F_OK), 0);
    publish(&s, 10);
    snprintf(path, sizeof path, "%s/step-10.replaced-2/" MX8_MANIFEST_NAME, folder);
    assert_int_equal(access(path, F_OK), 0);
    assert_ok(mx8i_prune_store(&s, 0));
    expect_steps(folder, 4, (const int64_t[]){2, 9, 10, 100});
    assert_ok(mx8i_prune_store(&s, 2));
    expect_steps(folder, 2, (const int64_t[]){10, 100});
    assert_int_equal(access(path, F_OK), 0); /* what was set aside stays */
    mx8i_close_store(&s);
    assert_ok(mx8i_open_store(folder, &s));
    snprintf(path, sizeof path, "%s/.saving-step-3", folder);
    assert_int_equal(access(path, F_OK), -1); /* what a killed process left is gone */
    mx8i_close_store(&s);
    remove_folder(&out);
}

static void test_folders_that_cannot_be_written(void **state) {
    (void)state;
    struct folder out = make_folder();
    struct mx8_store s;
    write_file(in_folder(&out, "file"), "x", 1);
    assert_status(mx8i_open_store(in_folder(&out, "file"), &s), MX8_IO_ERROR);
    assert_message("file");
    assert_status(mx8i_open_store(in_folder(&out, "file/below"), &s), MX8_IO_ERROR);
    struct mx8_state all;
    struct mx8_manifest m = {.ranks = 1};
    add_all(&all);
    assert_status(mx8i_write_pieces(in_folder(&out, "nowhere"), 0, &all, 1 << 20, NULL, &m), MX8_IO_ERROR);
    assert_message("nowhere/state-0000-0000.safetensors");
    mx8i_free_manifest(&m);
    mx8i_free_state(&all);
    remove_folder(&out);
}

static enum mx8_status save_and_load(const char *folder) {
    struct mx8_state s;
    struct mx8_manifest m = {.ranks = 1};
    struct mx8_checkpoint c = {0};
    static const int64_t shape[2] = {7, 13};
    s = (struct mx8_state){0};
    enum mx8_status status = mx8i_add_state(&s, "matrix", MX8_F32, 2, shape, matrix, 1);
    if (status == MX8_OK) status = mx8i_write_pieces(folder, 0, &s, 100, NULL, &m);
    if (status == MX8_OK) status = mx8i_write_manifest(folder, &m);
    if (status == MX8_OK) status = mx8i_open_checkpoint(folder, 1, &c);
    if (status == MX8_OK) status = mx8i_load_pieces(&c, &s, 1, NULL);
    mx8i_close_checkpoint(&c);
    mx8i_free_manifest(&m);
    mx8i_free_state(&s);
    return status;
}

static void test_memory_failures(void **state) {
    (void)state;
    struct folder out = make_folder();
    int64_t n = 0;
    for (enum mx8_status status = MX8_INTERNAL; status != MX8_OK && n < 1000;) {
        mx8i_fail_allocation(++n, 0);
        status = save_and_load(out.path);
        mx8i_fail_allocation(0, 0);
        assert_true(status == MX8_OK || status == MX8_OUT_OF_MEMORY);
    }
    assert_in_range(n, 20, 900);
    remove_folder(&out);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_any_range_from_any_ranks),
        cmocka_unit_test(test_another_number_of_ranks),
        cmocka_unit_test(test_state_that_does_not_fit),
        cmocka_unit_test(test_weights_in_several_files),
        cmocka_unit_test(test_every_damage_is_told),
        cmocka_unit_test(test_damaged_manifests),
        cmocka_unit_test(test_pieces_must_make_tensors),
        cmocka_unit_test(test_store),
        cmocka_unit_test(test_folders_that_cannot_be_written),
        cmocka_unit_test(test_memory_failures),
    };
    return cmocka_run_group_tests(tests, fill, NULL);
}
