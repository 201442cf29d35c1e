#include "test.h"

#include <math.h>
#include <unistd.h>
#include "base/file.h"
#include "base/memory.h"
#include "train/report.h"
#include "train/report_data.h"
#include "train/report_svg.h"

static char root[64];

static void write_file(const char *folder, const char *name, const char *text) {
    char path[256];
    snprintf(path, sizeof path, "%s/%s", root, folder);
    assert_ok(mx8i_make_folders(path));
    snprintf(path, sizeof path, "%s/%s/%s", root, folder, name);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

/* Good for the next three calls. */
static const char *in_root(const char *name) {
    static char path[4][256];
    static int next;
    next = (next + 1) % 4;
    snprintf(path[next], sizeof path[next], "%s/%s", root, name);
    return path[next];
}

static int set_up(void **state) {
    (void)state;
    snprintf(root, sizeof root, "/tmp/mx8-report-XXXXXX");
    return mkdtemp(root) ? 0 : 1;
}

static int tear_down(void **state) {
    char command[128];
    (void)state;
    snprintf(command, sizeof command, "rm -rf '%s'", root);
    return system(command);
}

static void axes_have_round_ticks(void **state) {
    static const struct {
        double low, high;
        int32_t wanted, tight;
        double first, last, step;
        int32_t count;
    } cases[] = {
        {0, 1, 5, 0, 0, 1, 0.2, 6},
        {1.63, 5.9, 6, 0, 1, 6, 1, 6},
        {-0.31, 0.22, 5, 0, -0.4, 0.4, 0.2, 5},
        {1, 300, 8, 1, 1, 300, 50, 6},
        {0, 15300, 4, 0, 0, 20000, 5000, 5},
        {3, 3, 4, 0, 2.8, 3.2, 0.1, 5},
        {0, 0, 4, 0, -0.5, 0.5, 0.5, 3},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct mx8_axis a = mx8i_make_axis(cases[i].low, cases[i].high, cases[i].wanted, cases[i].tight);
        assert_true(fabs(a.low - cases[i].first) < 1e-9);
        assert_true(fabs(a.high - cases[i].last) < 1e-9);
        assert_true(fabs(a.step - cases[i].step) < 1e-9);
        assert_int_equal(a.count, cases[i].count);
    }
    /* no data at all still makes an axis */
    struct mx8_axis a = mx8i_make_axis((double)NAN, (double)NAN, 4, 0);
    assert_true(a.low < a.high && a.count > 1);
}

static void ticks_read_well(void **state) {
    char text[32];
    struct mx8_axis fine = {.step = 0.05, .decimals = 2}, thousands = {.step = 5000}, millions = {.step = 2e6};
    (void)state;
    assert_string_equal(mx8i_format_tick(text, &fine, -1e-12), "0");
    assert_string_equal(mx8i_format_tick(text, &fine, -0.35), "-0.35");
    assert_string_equal(mx8i_format_tick(text, &thousands, 15000), "15k");
    assert_string_equal(mx8i_format_tick(text, &millions, 4e6), "4M");
}

static void smoothing_leaves_out_what_is_no_number(void **state) {
    double in[] = {8, 4, (double)NAN, 6, 2}, out[5];
    (void)state;
    mx8i_smooth(in, 5, 1, out);
    assert_true(out[0] == 8 && isnan(out[2]) && out[4] == 2);
    mx8i_smooth(in, 5, 3, out);
    assert_true(out[0] == 8); /* nothing before the start: the first value stands alone */
    assert_true(out[1] == 6 && out[2] == 5 && out[3] == 4 && out[4] == 4);
}

static void text_is_escaped(void **state) {
    struct mx8_text t = {0};
    (void)state;
    mx8i_append_escaped(&t, "a<b> & \"c\"");
    assert_int_equal(t.status, MX8_OK);
    assert_string_equal(t.data, "a&lt;b&gt; &amp; &quot;c&quot;");
    mx8i_release_text(&t);
}

#define LINE(step, loss, speed)                                                                                        \
    "{\"step\":" step ",\"loss\":" loss ",\"tokens_per_second\":" speed ",\"memory\":1073741824,\"saturated\":0,"      \
    "\"expert_load\":[[3,1],[0,0]]}\n"

static void a_run_is_read(void **state) {
    struct mx8_report_run r;
    (void)state;
    write_file("good", "metrics.jsonl",
        LINE("1", "4.5", "10") LINE("2", "null", "100") LINE("3", "2.5", "300") "{\"step\":4,");
    write_file("good", "run.json", "{\"recipe\": \"bf16\", \"parameters\": 12, \"options\": {\"a\": 1}}");
    assert_ok(mx8i_read_run(in_root("good"), &r));
    assert_string_equal(r.name, "bf16");
    assert_int_equal(r.n, 3); /* the line that was cut off is not counted */
    assert_true(isnan(r.loss[1]) && r.final_loss == 2.5 && r.median_speed == 200);
    assert_true(r.peak_memory == (double)(1 << 30));
    assert_int_equal(r.layers, 2);
    assert_true(r.load[0] == 1.5 && r.load[1] == 0.5 && r.load[2] == 1); /* no token at all counts as even */
    assert_string_equal(mx8i_find_fact(&r, "parameters"), "12");
    assert_null(mx8i_find_fact(&r, "options"));
    mx8i_release_run(&r);

    write_file("bare", "metrics.jsonl", "{\"step\":1,\"loss\":4}\n");
    assert_ok(mx8i_read_run(in_root("bare/"), &r)); /* without run.json the folder names the run */
    assert_string_equal(r.name, "bare");
    assert_true(isnan(r.median_speed));
    mx8i_release_run(&r);
}

/* Validations are lines that have one; waiting for data counts where a line tells it. */
static void validation_and_waiting_are_read(void **state) {
    struct mx8_report_run r;
    char *page = NULL;
    size_t size = 0;
    (void)state;
    write_file("valid", "metrics.jsonl",
        "{\"step\":1,\"loss\":4,\"seconds\":3,\"data_seconds\":0.5,\"validation_loss\":4.25}\n"
        "{\"step\":2,\"loss\":3,\"seconds\":1,\"data_seconds\":0}\n"
        "{\"step\":3,\"loss\":2,\"seconds\":4,\"data_seconds\":0.5,\"validation_loss\":null}\n"
        "{\"step\":4,\"loss\":1,\"validation_loss\":2.0625}\n");
    write_file("bare", "metrics.jsonl", "{\"step\":1,\"loss\":4}\n");
    assert_ok(mx8i_read_run(in_root("valid"), &r));
    assert_int_equal(r.n_validations, 2);
    assert_true(r.validation_step[1] == 4 && r.validation_loss[0] == 4.25 && r.final_validation == 2.0625);
    assert_true(r.data_share == 0.125);
    mx8i_release_run(&r);
    const char *runs[] = {in_root("valid"), in_root("bare")};
    assert_ok(mx8i_write_report(in_root("valid.html"), NULL, runs, 2));
    assert_ok(mx8i_read_file(in_root("valid.html"), 1 << 20, &page, &size));
    assert_non_null(strstr(page, "<td>12.50 %</td><td>2.0625</td>"));
    assert_non_null(strstr(page, "validation loss by step"));
    mx8i_release(page);
    runs[0] = in_root("bare");
    assert_ok(mx8i_write_report(in_root("valid.html"), NULL, runs, 1)); /* a run without either shows neither */
    assert_ok(mx8i_read_file(in_root("valid.html"), 1 << 20, &page, &size));
    assert_null(strstr(page, "alidation"));
    assert_non_null(strstr(page, "GiB</td><td>-</td><td>4.0000</td>"));
    mx8i_release(page);
}

/* A count is a chart where it is not zero, a sentence where it is, and nothing where no line has it. */
static void counts_are_drawn(void **state) {
    static const struct {
        const char *metrics;
        int chart, sentence; /* of wide blocks */
    } cases[] = {
        {"{\"step\":1,\"saturated\":0,\"wide_blocks\":3}\n{\"step\":2,\"saturated\":0,\"wide_blocks\":4}\n", 1, 0},
        {"{\"step\":1,\"saturated\":0}\n{\"step\":2,\"saturated\":0,\"wide_blocks\":5}\n", 1,
            0}, /* switched on later */
        {"{\"step\":1,\"saturated\":0,\"wide_blocks\":0}\n", 0, 1},
        {"{\"step\":1,\"saturated\":0}\n", 0, 0},
    };
    static const double totals[] = {7, 5, 0, (double)NAN};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct mx8_report_run r;
        char *page = NULL;
        size_t size = 0;
        write_file("counts", "metrics.jsonl", cases[i].metrics);
        const char *runs[] = {in_root("counts"), in_root("bare")}; /* the other run counts nothing */
        assert_ok(mx8i_read_run(runs[0], &r));
        double total = r.total[MX8_COUNT_WIDE_BLOCKS];
        assert_true(isnan(totals[i]) ? isnan(total) : total == totals[i]);
        assert_true(r.total[MX8_COUNT_SATURATED] == 0);
        mx8i_release_run(&r);
        assert_ok(mx8i_write_report(in_root("counts.html"), NULL, runs, 2));
        assert_ok(mx8i_read_file(in_root("counts.html"), 1 << 20, &page, &size));
        assert_int_equal(strstr(page, "wide blocks by step") != NULL, cases[i].chart);
        assert_int_equal(strstr(page, "No block lies") != NULL, cases[i].sentence);
        assert_non_null(strstr(page, "No value was clipped"));
        assert_null(strstr(page, "saturated values by step"));
        mx8i_release(page);
    }
}

static void bad_runs_name_file_and_line(void **state) {
    static const struct {
        const char *metrics, *message;
    } cases[] = {
        {"", "metrics.jsonl: no step"},
        {"{\"step\":1}\nnonsense\n", "metrics.jsonl:2"},
        {"[1]\n", "expected a JSON object"},
        {"{\"loss\":1}\n", "metrics.jsonl:1"},
        {LINE("1", "1", "1") "{\"step\":2,\"expert_load\":[[1,2]]}\n", "1 layers, the lines before it 2"},
        {LINE("1", "1", "1") "{\"step\":2,\"expert_load\":[[1,2],[1]]}\n", "1 experts in layer 1"},
    };
    struct mx8_report_run r;
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        write_file("bad", "metrics.jsonl", cases[i].metrics);
        assert_status(mx8i_read_run(in_root("bad"), &r), MX8_FORMAT_ERROR);
        assert_message(cases[i].message);
    }
    assert_status(mx8i_read_run(in_root("nowhere"), &r), MX8_IO_ERROR);
    assert_status(mx8i_read_run(in_root("bad/metrics.jsonl"), &r), MX8_INVALID_ARGUMENT);
    assert_message("is a file, expected a run's folder");
    write_file("bad", "metrics.jsonl", LINE("1", "1", "1"));
    write_file("bad", "run.json", "{\n\"recipe\": }\n");
    assert_status(mx8i_read_run(in_root("bad"), &r), MX8_FORMAT_ERROR);
    assert_message("run.json:2");
}

static void a_report_stands_alone(void **state) {
    const char *runs[] = {in_root("good"), in_root("bare")};
    char *page = NULL;
    size_t size = 0;
    (void)state;
    assert_ok(mx8i_write_report(in_root("report.html"), "T <1>", runs, 2));
    assert_ok(mx8i_read_file(in_root("report.html"), 1 << 20, &page, &size));
    assert_non_null(strstr(page, "<title>T &lt;1&gt;</title>"));
    assert_non_null(strstr(page, "</html>"));
    assert_null(strstr(page, "<script"));
    assert_null(strstr(page, "d=\"Mnan")); /* steps without a number break a line, they do not end up in it */
    assert_null(strstr(page, "inf"));
    mx8i_release(page);
    assert_status(mx8i_write_report(in_root("report.html"), NULL, runs, 0), MX8_INVALID_ARGUMENT);
}

static void runs_of_one_recipe_are_told_apart(void **state) {
    char *page = NULL;
    size_t size = 0;
    (void)state;
    write_file("again", "metrics.jsonl", LINE("1", "4.5", "10"));
    write_file("again", "run.json", "{\"recipe\": \"bf16\"}");
    const char *runs[] = {in_root("good"), in_root("again"), in_root("bare")};
    assert_ok(mx8i_write_report(in_root("same.html"), NULL, runs, 3));
    assert_ok(mx8i_read_file(in_root("same.html"), 1 << 20, &page, &size));
    assert_non_null(strstr(page, "</i>bf16 (/tmp/mx8-report-"));
    assert_non_null(strstr(page, "/again)</span>"));
    assert_non_null(strstr(page, "</i>bare</span>"));
    mx8i_release(page);
}

static void running_out_of_memory_is_reported(void **state) {
    const char *runs[] = {in_root("good"), in_root("bare")}, *path = in_root("memory.html");
    enum mx8_status status = MX8_OUT_OF_MEMORY;
    (void)state;
    for (int64_t n = 1; !mx8i_is_file(path); n++) {
        assert_true(n < 1000);
        mx8i_fail_allocation(n, 1);
        status = mx8i_write_report(path, NULL, runs, 2);
        mx8i_fail_allocation(0, 0);
        /* once the page is in place, only syncing its folder can still fail */
        if (!mx8i_is_file(path)) assert_status(status, MX8_OUT_OF_MEMORY);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(axes_have_round_ticks),
        cmocka_unit_test(ticks_read_well),
        cmocka_unit_test(smoothing_leaves_out_what_is_no_number),
        cmocka_unit_test(text_is_escaped),
        cmocka_unit_test(a_run_is_read),
        cmocka_unit_test(validation_and_waiting_are_read),
        cmocka_unit_test(counts_are_drawn),
        cmocka_unit_test(bad_runs_name_file_and_line),
        cmocka_unit_test(a_report_stands_alone),
        cmocka_unit_test(runs_of_one_recipe_are_told_apart),
        cmocka_unit_test(running_out_of_memory_is_reported),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
