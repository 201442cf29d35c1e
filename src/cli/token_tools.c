#include "cli/token_tools.h"
#include "base/error.h"
#include "base/file.h"
#include "base/memory.h"

const char *mx8i_get_given(const struct mx8_options *o, const char *key) {
    const char *text = mx8i_get_text(o, key);
    return *text ? text : NULL;
}

int mx8i_parse_command(struct mx8_options *o, const struct mx8_option *table, int32_t count, int argc, char **argv,
    const char **rest, int *n_rest, int least, int most, const char *needs, int *code) {
    *n_rest = 0;
    enum mx8_status status = mx8i_open_options(table, count, o);
    if (status != MX8_OK) {
        *code = mx8i_report_failure(argv[0], status, MX8_EXIT_FAILURE);
        return 0;
    }
    status = mx8i_parse_flags(o, argc - 1, argv + 1, NULL, rest, n_rest, most);
    if (status == MX8_OK && *n_rest >= least) return 1;
    *code = status != MX8_OK ? mx8i_report_failure(argv[0], status, MX8_EXIT_USAGE)
                             : mx8i_report_usage(argv[0], "needs %s", needs);
    mx8i_close_options(o);
    return 0;
}

enum mx8_status mx8i_read_input(char **text, size_t *size) {
    return mx8i_read_file("/dev/stdin", SIZE_MAX / 4, text, size);
}

void mx8i_print_tokens(FILE *out, const struct mx8_tokenizer *t, const int32_t *id, int64_t n, int skip_special) {
    for (int64_t i = 0; i < n; i++) {
        size_t size;
        int special;
        const uint8_t *bytes = mx8i_get_token(t, id[i], &size, &special);
        if (bytes && !(special && skip_special)) fwrite(bytes, 1, size, out);
    }
}
