/* Command lines of `mx8 train`, a word a line, and the job that they resolve to; a first line "[" makes it a TOML file.
 */
#include "base/memory.h"
#include "fuzz.h"
#include "train/job.h"

enum { MAX_WORDS = 64, MAX_SIZE = 4096 };

/* Options as they are before anything is said: made once, as checking every default takes longer than most inputs. */
static struct mx8_options open_options(void) {
    static struct mx8_options fresh;
    if (!fresh.table) ALWAYS(mx8i_open_options(mx8i_option_table, mx8i_option_count, &fresh) == MX8_OK);
    struct mx8_options o = fresh;
    size_t bytes = (size_t)o.count * sizeof *o.value;
    o.value = malloc(bytes);
    ALWAYS(o.value);
    memcpy(o.value, fresh.value, bytes);
    return o;
}

static void close_options(struct mx8_options *o) {
    for (int32_t i = 0; i < o->count; i++) mx8i_release(o->value[i].block);
    free(o->value);
}

static enum mx8_status parse_words(struct mx8_options *o, const uint8_t *data, size_t size) {
    char text[MAX_SIZE + 1], *words[MAX_WORDS];
    const char *rest[4];
    int n = 0, n_rest = 0;
    if (size) memcpy(text, data, size);
    text[size] = 0;
    for (char *at = text; n < MAX_WORDS && at < text + size; at += strlen(at) + 1) {
        char *end = strchr(at, '\n');
        if (end) *end = 0;
        words[n++] = at;
    }
    return mx8i_parse_flags(o, n, words, NULL, rest, &n_rest, 4);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct mx8_job job;
    if (size > MAX_SIZE) return 0;
    struct mx8_options o = open_options();
    enum mx8_status status = size > 0 && data[0] == '[' ? mx8i_parse_toml_file(&o, fuzz_file("input.toml", data, size))
                                                        : parse_words(&o, data, size);
    if (status == MX8_OK) status = mx8i_resolve_job(&o, &job, NULL);
    if (status == MX8_OK) ALWAYS(job.steps >= 1 && job.model.seq_len >= 1 && job.config.dim >= 1);
    if (status != MX8_OK) ALWAYS(mx8_get_last_error()[0]);
    close_options(&o);
    fuzz_forget_files();
    return 0;
}
