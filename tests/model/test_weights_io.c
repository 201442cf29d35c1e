/* Weights to a file and back, and files that do not fit. */
#include <unistd.h>
#include "model_helpers.h"
#include "base/safetensors.h"

static const struct mx8_model_options small = {.batch = 1, .seq_len = 16};

static const char *make_path(const char *name) {
    static char path[256];
    snprintf(path, sizeof path, "/tmp/mx8-weights-%d-%s.safetensors", (int)getpid(), name);
    return path;
}

static void test_round_trip(void **state) {
    (void)state;
    struct mx8_model_config c = make_tiny_config();
    struct subject a = make_subject(&c, "mxfp8_moe", small, 1), b = make_subject(&c, "mxfp8_moe", small, 1);
    const struct mx8_param_table *t = mx8i_get_params(a.m);
    const char *path = make_path("round");
    for (size_t i = 0; i < t->buffer_elements; i++) mx8i_get_buffers(a.m)[i] = 0.001f * (float)i;
    assert_ok(mx8i_init_weights(b.m, 8));
    int32_t *ids = make_tokens(a.T, c.vocab_size, 51);
    assert_ok(mx8i_save_weights(a.m, path, MX8_F32));
    assert_ok(mx8i_load_weights(b.m, path, NULL));
    assert_memory_equal(mx8i_get_masters(a.m), mx8i_get_masters(b.m), t->elements * sizeof(float));
    for (int64_t i = 0; i < t->buffer_count; i++) {
        const struct mx8_buffer *buffer = &t->buffer[i];
        assert_memory_equal(mx8i_get_buffers(a.m) + buffer->at, mx8i_get_buffers(b.m) + buffer->at,
            (size_t)buffer->count * sizeof(float));
    }
    assert_true(run_step(&a, ids, NULL) == run_step(&b, ids, NULL)); /* copies and codes followed */

    assert_ok(mx8i_save_weights(a.m, path, MX8_BF16));
    assert_ok(mx8i_load_weights(b.m, path, NULL));
    for (size_t i = 0; i < t->elements; i++) {
        assert_true(mx8i_get_masters(b.m)[i] == mx8_decode_bf16(mx8_encode_bf16(mx8i_get_masters(a.m)[i])));
    }
    assert_status(mx8i_save_weights(a.m, path, MX8_U8), MX8_INVALID_ARGUMENT);
    unlink(path);
    free(ids);
    free_subject(&a);
    free_subject(&b);
}

static void test_names_in_file(void **state) {
    (void)state;
    struct mx8_model_config c = make_tiny_config();
    struct subject s = make_subject(&c, "bf16", small, 1);
    const char *path = make_path("names");
    assert_ok(mx8i_save_weights(s.m, path, MX8_BF16));
    struct mx8_safetensors st;
    assert_ok(mx8i_open_safetensors(path, &st));
    const struct mx8_st_entry *w1 = mx8i_find_tensor(&st, "layers.1.moe.experts.w1");
    const struct mx8_st_entry *bias = mx8i_find_tensor(&st, "layers.0.moe.expert_bias");
    assert_non_null(w1);
    assert_non_null(bias);
    assert_int_equal(w1->dtype, MX8_BF16);
    assert_int_equal(w1->ndim, 3);
    assert_int_equal(bias->dtype, MX8_F32); /* routing follows its last bit */
    assert_int_equal(st.count, mx8i_get_params(s.m)->count + 2);
    mx8i_close_safetensors(&st);
    unlink(path);
    free_subject(&s);
}

/* Writes the model's own file again with a few changes: a tensor renamed, one reshaped, biases dropped, extras added.
 */
static void write_changed(const char *from, const char *to, int broken) {
    struct mx8_safetensors st;
    struct mx8_st_writer w;
    assert_ok(mx8i_open_safetensors(from, &st));
    struct mx8_st_entry *entry = calloc((size_t)st.count + 1, sizeof *entry);
    static float zeros[8];
    int64_t n = 0;
    for (int64_t i = 0; i < st.count; i++) {
        if (strstr(st.entry[i].name, "expert_bias")) continue;
        entry[n] = st.entry[i];
        if (broken && !strcmp(entry[n].name, "norm.weight")) entry[n].name = "norms.weight";
        if (broken && !strcmp(entry[n].name, "layers.0.attention.wk.weight")) {
            entry[n].shape[0] = 64;
            entry[n].shape[1] = 32;
        }
        n++;
    }
    entry[n++] = (struct mx8_st_entry){
        .name = "layers.0.moe.tokens_per_expert", .dtype = MX8_F32, .ndim = 1, .shape = {4}, .data = zeros, .size = 16};
    assert_ok(mx8i_begin_safetensors(to, entry, n, NULL, &w));
    for (int64_t i = 0; i < n; i++) assert_ok(mx8i_write_tensor(&w, entry[i].data, entry[i].size));
    assert_ok(mx8i_commit_safetensors(&w));
    mx8i_close_safetensors(&st);
    free(entry);
}

static void keep_line(void *user, const char *line) {
    char *text = user;
    snprintf(text + strlen(text), 512 - strlen(text), "%s\n", line);
}

static void test_files_that_do_not_fit(void **state) {
    (void)state;
    struct mx8_model_config c = make_tiny_config();
    struct subject s = make_subject(&c, "bf16", small, 1);
    char from[256], to[256], lines[512] = "";
    snprintf(from, sizeof from, "%s", make_path("from"));
    snprintf(to, sizeof to, "%s", make_path("to"));
    assert_ok(mx8i_save_weights(s.m, from, MX8_F32));

    write_changed(from, to, 1);
    float before = mx8i_get_masters(s.m)[0];
    mx8i_get_masters(s.m)[0] = 77;
    assert_status(mx8i_load_weights(s.m, to, NULL), MX8_FORMAT_ERROR);
    assert_message(to);
    assert_message("3 differences");
    assert_message("norm.weight is missing");
    assert_message("norms.weight is left over");
    assert_message("layers.0.attention.wk.weight has shape (64, 32), expected (32, 64)");
    assert_true(mx8i_get_masters(s.m)[0] == 77.0f); /* nothing was copied */

    /* Counters are ignored; missing biases are zero, and said. */
    write_changed(from, to, 0);
    mx8i_get_buffers(s.m)[1] = 5;
    assert_ok(mx8i_load_weights(s.m, to, &(struct mx8_log){.write = keep_line, .user = lines}));
    assert_true(mx8i_get_masters(s.m)[0] == before && mx8i_get_buffers(s.m)[1] == 0.0f);
    assert_non_null(strstr(lines, "layers.0.moe.expert_bias"));
    assert_non_null(strstr(lines, "layers.1.moe.expert_bias"));

    assert_status(mx8i_load_weights(s.m, make_path("nowhere"), NULL), MX8_IO_ERROR);
    assert_status(mx8i_save_weights(s.m, "/nowhere/at/all.safetensors", MX8_F32), MX8_IO_ERROR);
    unlink(from);
    unlink(to);
    free_subject(&s);
}

/* Another architecture's file: every tensor is wrong, and the message still ends with a count. */
static void test_many_differences(void **state) {
    (void)state;
    struct mx8_model_config c = make_tiny_config();
    struct subject a = make_subject(&c, "f32", small, 1);
    c.dim = 32;
    c.n_layers = 5;
    struct subject b = make_subject(&c, "f32", small, 1);
    const char *path = make_path("many");
    assert_ok(mx8i_save_weights(a.m, path, MX8_F32));
    assert_status(mx8i_load_weights(b.m, path, NULL), MX8_FORMAT_ERROR);
    assert_message("tok_embeddings.weight has shape (96, 64), expected (96, 32)");
    assert_message("differences");
    unlink(path);
    free_subject(&a);
    free_subject(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_round_trip), cmocka_unit_test(test_names_in_file),
        cmocka_unit_test(test_files_that_do_not_fit), cmocka_unit_test(test_many_differences)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
