/* Runs with checkpoints that stop, are hurt and go on: what the tests of it share. */
#ifndef MX8_TESTS_TRAIN_RESUME_TESTING_H
#define MX8_TESTS_TRAIN_RESUME_TESTING_H

#include "train/loop_testing.h"
#include "base/file.h"
#include "base/memory.h"

#define ENABLE "--checkpoint.enable"
#define EVERY  "--checkpoint.interval=2"
#define FULL   "--checkpoint.last_save_model_only=false"

static inline int exists(const struct folder *out, const char *name) {
    return access(in_folder(out, name), F_OK) == 0;
}

static inline char *read_text(const char *path, size_t *size) {
    char *text;
    assert_ok(mx8i_read_file(path, 1 << 26, &text, size));
    return text;
}

static inline void expect_same_file(const char *a, const char *b) {
    size_t size_a, size_b;
    char *x = read_text(a, &size_a), *y = read_text(b, &size_b);
    if (size_a != size_b || memcmp(x, y, size_a)) fail_msg("%s and %s differ", a, b);
    mx8i_release(x);
    mx8i_release(y);
}

/* Weights and the rest of two checkpoints in the folder. */
static inline void expect_same_state(const struct folder *out, const char *a, const char *b) {
    static const char *const files[] = {"model.safetensors", "state-0000-0000.safetensors"};
    for (size_t i = 0; i < COUNT(files); i++) {
        char x[128], y[128];
        snprintf(x, sizeof x, "%s/%s", a, files[i]);
        snprintf(y, sizeof y, "%s/%s", b, files[i]);
        expect_same_file(in_folder(out, x), in_folder(out, y));
    }
}

/* Lines of metrics.jsonl without their times: the part before "seconds", the part from "saturated" on. */
static inline void read_metrics(const char *path, struct lines *out) {
    FILE *file = fopen(path, "r");
    char line[4096], kept[4096];
    assert_non_null(file);
    out->used = 0;
    while (fgets(line, sizeof line, file)) {
        char *seconds = strstr(line, ",\"seconds\""), *rest = strstr(line, ",\"saturated\"");
        assert_true(seconds && rest);
        *seconds = 0;
        rest[strcspn(rest, "\n")] = 0;
        snprintf(kept, sizeof kept, "%s%s", line, rest);
        keep_line(out, kept);
    }
    fclose(file);
}

static inline void expect_same_metrics(const char *a, const char *b) {
    struct lines *x = calloc(1, sizeof *x), *y = calloc(1, sizeof *y);
    read_metrics(a, x);
    read_metrics(b, y);
    assert_string_equal(x->text, y->text);
    free(x);
    free(y);
}

static inline void expect_log(const struct outcome *o, const char *words) {
    if (!strstr(o->log.text, words)) fail_msg("the log has no \"%s\":\n%s", words, o->log.text);
}

/* Six steps with checkpoints 2, 4 and (full) 6. */
static inline struct folder make_steps(void) {
    struct folder out = make_folder();
    struct outcome *o = make_outcome();
    assert_ok(RUN(o, &out, 1, F32, ENABLE, EVERY, FULL, "--training.steps=6"));
    free(o);
    return out;
}

static inline void flip_byte(const char *path) {
    FILE *file = fopen(path, "r+");
    assert_true(file && fseek(file, -100, SEEK_END) == 0);
    int byte = fgetc(file);
    assert_true(fseek(file, -1, SEEK_CUR) == 0 && fputc(byte ^ 16, file) != EOF && fclose(file) == 0);
}

#endif
