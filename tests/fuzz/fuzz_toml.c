/* TOML text, and what the option table makes of it. */
#include "base/toml.h"
#include "fuzz.h"

static int count(const struct mx8_toml *t, int depth) {
    int n = 1;
    ALWAYS(depth <= 64);
    if (t->type == MX8_TOML_TEXT) ALWAYS(strlen(t->text) <= t->text_size);
    if (t->type != MX8_TOML_ARRAY && t->type != MX8_TOML_TABLE) return n;
    for (const struct mx8_toml *c = t->child; c; c = c->next) {
        if (t->type == MX8_TOML_TABLE) ALWAYS(c->key && mx8i_find_toml(t, c->key) == c);
        n += count(c, depth + 1);
    }
    return n;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct mx8_toml *root = NULL;
    char *copy = malloc(size ? size : 1); /* no 0 byte after the text */
    if (size) memcpy(copy, data, size);
    if (mx8i_parse_toml(copy, size, "input.toml", &root) == MX8_OK)
        ALWAYS(count(root, 0) > 0);
    else
        ALWAYS(strstr(mx8_get_last_error(), "input.toml"));
    mx8i_free_toml(root);
    free(copy);
    return 0;
}
