/* Command lines of `mx8 train`, a word a line, and the job that they resolve to; a first line "[" makes it a TOML file.
 */
#include "fuzz.h"
#include "train/job.h"

enum { MAX_WORDS = 64, MAX_SIZE = 4096 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct mx8_options o;
    struct mx8_job job;
    char text[MAX_SIZE + 1], *words[MAX_WORDS];
    const char *rest[4];
    int n = 0, n_rest = 0;
    if (size > MAX_SIZE || mx8i_open_options(mx8i_option_table, mx8i_option_count, &o) != MX8_OK) return 0;
    enum mx8_status status;
    if (size > 0 && data[0] == '[') {
        status = mx8i_parse_toml_file(&o, fuzz_file("input.toml", data, size));
    } else {
        if (size) memcpy(text, data, size);
        text[size] = 0;
        for (char *at = text; n < MAX_WORDS && at < text + size; at += strlen(at) + 1) {
            char *end = strchr(at, '\n');
            if (end) *end = 0;
            words[n++] = at;
        }
        status = mx8i_parse_flags(&o, n, words, NULL, rest, &n_rest, 4);
    }
    if (status == MX8_OK) status = mx8i_resolve_job(&o, &job, NULL);
    if (status == MX8_OK) ALWAYS(job.steps >= 1 && job.model.seq_len >= 1 && job.config.dim >= 1);
    if (status != MX8_OK) ALWAYS(mx8_get_last_error()[0]);
    mx8i_close_options(&o);
    return 0;
}
