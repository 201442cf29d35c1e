/* The places where JSON from outside is read: lines of text corpora, metrics.jsonl and run.json of a report. */
#include "base/memory.h"
#include "fuzz.h"
#include "train/corpus.h"
#include "train/report_data.h"

static void read_field(const uint8_t *data, size_t size) {
    struct mx8_record record = {.data = data, .size = size, .path = "input.jsonl", .line = 3, .is_json = 1};
    char *text = NULL;
    size_t length = 0;
    if (mx8i_read_json_field(&record, "text", &text, &length) == MX8_OK)
        ALWAYS(text[length] == 0);
    else
        ALWAYS(strstr(mx8_get_last_error(), "input.jsonl"));
    mx8i_release(text);
}

/* What stands before a 0 byte are the metrics, behind it the facts. */
static void read_run(const uint8_t *data, size_t size) {
    struct mx8_report_run run;
    const uint8_t *cut = size ? memchr(data, 0, size) : NULL;
    size_t first = cut ? (size_t)(cut - data) : size;
    fuzz_file("metrics.jsonl", data, first);
    fuzz_file("run.json", cut ? cut + 1 : data, cut ? size - first - 1 : 0);
    if (mx8i_read_run(FUZZ_FOLDER, &run) == MX8_OK) {
        static volatile double sink; /* every number is read */
        double sum = 0;
        for (int64_t i = 0; i < run.n; i++) sum += run.loss[i] + run.speed[i];
        for (int64_t i = 0; i < run.n * run.layers * run.experts; i++) sum += run.load[i];
        sink = sum;
        (void)sink;
        ALWAYS(run.n > 0);
        mx8i_release_run(&run);
    } else {
        ALWAYS(mx8_get_last_error()[0]);
    }
    fuzz_forget_files();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size == 0) return 0;
    if (data[0] & 1)
        read_field(data + 1, size - 1);
    else
        read_run(data + 1, size - 1);
    return 0;
}
